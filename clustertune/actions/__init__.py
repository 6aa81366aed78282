"""Actions by name: which steps each proposes, and how a step is carried out.

Modules here propose steps (pure). A step acts only through the port
(:class:`~clustertune.core.model.Cluster`), by one of its methods.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from clustertune.actions import placing, rechunk, restart, scale
from clustertune.core.model import Action, Cluster, Notify, Result, Step


def _by_port(method: str) -> Callable[[Step, Cluster, Notify], Awaitable[Result]]:
    """Return the function that carries out a step by one method of the port."""

    async def enact(step: Step, cluster: Cluster, notify: Notify) -> Result:
        result: Result = await getattr(cluster, method)(step.args, notify)
        return result

    return enact


#: without ``propose``, only the caller can request the action
ACTIONS: Mapping[str, Action] = {
    "adapt": Action(_by_port("adapt"), scale.propose_bounds),
    "drop": Action(_by_port("drop")),
    "load": Action(_by_port("load"), placing.propose_load),
    "merge": Action(_by_port("restart"), scale.propose_merges),
    "rebalance": Action(_by_port("move"), placing.propose_moves),
    "rechunk": Action(rechunk.enact, rechunk.propose),
    "release": Action(_by_port("release")),
    "replicate": Action(_by_port("rechunk"), placing.propose_replicas),
    "restart": Action(_by_port("restart"), restart.propose),
    "retire": Action(_by_port("restart")),
    "scale": Action(_by_port("scale"), scale.propose),
    "trim": Action(_by_port("trim"), restart.propose_trims),
}
