"""Actions: one file each, named after the action.

``propose(findings, view) -> steps`` is pure. ``enact(step, cluster, notify) -> Result``
carries out one step, and acts only through the port ``cluster``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Awaitable, Callable, Mapping
from functools import cache

from clustertune.core.model import Action, Cluster, Notify, Result, Step, View


@cache
def available() -> Mapping[str, Action]:
    """Every action by name."""
    return {
        info.name: importlib.import_module(f"{__name__}.{info.name}")
        for info in pkgutil.iter_modules(__path__)
        if not info.ispkg  # the live cluster
    }


def by_port(method: str) -> Callable[[Step, Cluster, Notify], Awaitable[Result]]:
    """Return the ``enact`` of an action for which the port has a method."""

    async def enact(step: Step, cluster: Cluster, notify: Notify) -> Result:
        result: Result = await getattr(cluster, method)(step.args, notify)
        return result

    return enact


def needless(step: Step, view: View) -> str:
    """Why a step is not needed any more; empty if it is or may be."""
    decide = getattr(available().get(step.action), "needless", None)
    return decide(step, view) if decide else ""
