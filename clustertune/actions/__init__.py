"""Actions: one file each, named after the action; ``registry`` has all of them.

``propose(findings, view) -> steps`` is pure. ``enact(step, cluster, notify) -> Result``
carries out one step, and acts only through the port ``cluster``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from clustertune.core.model import Cluster, Notify, Result, Step


def by_port(method: str) -> Callable[[Step, Cluster, Notify], Awaitable[Result]]:
    """Return the ``enact`` of an action for which the port has a method."""

    async def enact(step: Step, cluster: Cluster, notify: Notify) -> Result:
        result: Result = await getattr(cluster, method)(step.args, notify)
        return result

    return enact
