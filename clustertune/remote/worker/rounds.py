"""Reports of rank 0 about a training that runs: its round, and checkpoints.

The objects here travel in the callbacks of training libraries. They run in the thread
of a training task, and send from the event loop of its worker, so the training does not
wait for an answer. A broken connection costs one report, and another failure ends the
reports. Neither ends the training.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from time import monotonic
from typing import Any

logger = logging.getLogger("distributed.clustertune")

REPORT = 0.5  # seconds between two reports


class Reports:
    """Sends the reports of one training.

    Parameters
    ----------
    name
        The name of the fit in the scheduler plugin.
    last
        The last round of the training; it needs no checkpoint.
    every
        Seconds between two checkpoints; None: only if the scheduler wants one.
    """

    def __init__(self, name: str, last: int | None, every: float | None):
        self.name = name
        self.last = last
        self.every = every
        self.reported = 0.0
        #: from the first round on, since each host has its own monotonic time
        self.saved: float | None = None
        self.wanted = False
        self.ended = False
        self.pending: Future[Any] | None = None

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """End the reports if the block raises; the training goes on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001, the model is worth more
            logger.warning("clustertune gets no more reports of a fit: %r", error)
            self.ended = True

    def note(
        self,
        done: int,
        metric: Callable[[], str],
        save: Callable[[], tuple[bytes, Any]],
    ) -> None:
        """Report a finished round, with a checkpoint if one is due."""
        now = monotonic()
        if self.ended or not self._is_free():
            return
        if self.saved is None:
            self.saved = now
        due = self.every is not None and now - self.saved >= self.every
        saving = (due or self.wanted) and done != self.last
        if not saving and now - self.reported < REPORT:
            return
        message: dict[str, Any] = {"round": done, "metric": metric()}
        if saving:
            message["model"], message["history"] = save()
            self.saved = now
            self.wanted = True  # until it has arrived
        self.reported = now
        self._send(message)

    def _is_free(self) -> bool:
        """Whether the next report may be sent; take the answer to the last one."""
        if self.pending is None:
            return True
        if not self.pending.done():
            return False
        try:
            answer = self.pending.result()["result"]
        except OSError:  # a broken connection; the next report uses another one
            if monotonic() - self.reported < REPORT:
                return False
            self.pending = None
            return True
        self.pending = None
        self.wanted = bool(answer.get("checkpoint"))
        self.ended = bool(answer.get("ended"))
        return not self.ended

    def _send(self, message: dict[str, Any]) -> None:
        from distributed import get_worker

        worker: Any = get_worker()
        work = worker.scheduler.clustertune(
            method="fit", name=self.name, do="note", **message
        )
        loop = worker.loop.asyncio_loop
        self.pending = asyncio.run_coroutine_threadsafe(work, loop)


def training_tasks(dask_worker: Any, prefixes: list[str]) -> list[str]:
    """Return keys with a prefix that occupy a worker's thread; runs on the worker."""
    state = dask_worker.state
    keys = [str(ts.key) for ts in (*state.executing, *state.long_running)]
    return [key for key in keys if key.startswith(tuple(prefixes))]
