"""The callbacks of one attempt to train, which run in the tasks of a library.

A library's :class:`Continuation` decides which callbacks an attempt has. They are made
here, because their code travels to workers, which may lack clustertune.
"""

from __future__ import annotations

import importlib
from typing import Any

from distributed import Client

from clustertune.integrations.libraries.workload import Continuation
from clustertune.remote import ship
from clustertune.remote.worker.rounds import Reports


class Callbacks:
    """Makes the callbacks of one attempt.

    Parameters
    ----------
    client
        The client of the fit.
    continuation
        The library's; it names the module of its callbacks.
    reports
        The reports of rank 0.
    """

    def __init__(self, client: Client, continuation: Continuation, reports: Reports):
        scheduler: Any = client.scheduler
        # tasks in the same process get the objects themselves
        self._sends = not scheduler.address.startswith("inproc")
        name = f"clustertune.remote.worker.{continuation.callbacks}"
        self._module: Any = importlib.import_module(name)
        self._reports = reports

    def rounds(self, history: Any) -> Any:
        """Return the callback that reports rounds, and sends checkpoints."""
        return self._sent(self._module.Rounds(self._reports, history))

    def continued(self, inner: Any, *arguments: Any) -> Any:
        """Return another callback, which gets the rounds of the whole training."""
        return self._sent(self._module.Continued(inner, *arguments))

    def _sent(self, callback: Any) -> Any:
        return ship.function(callback) if self._sends else callback
