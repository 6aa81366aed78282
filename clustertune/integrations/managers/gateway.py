"""Clusters behind a Dask Gateway (dask_gateway).

The gateway's server starts and ends workers for all clients of a cluster. A client can
set the bounds of adaptive scaling, but it cannot read them. A call of ``scale`` ends
adaptive scaling. New workers have the size that the cluster was made with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from clustertune.core.model import Unknown
from clustertune.integrations.managers.adapter import off_loop


def obstacle(cluster: Any, n_workers: int) -> str | None:
    """Return why it cannot have so many workers."""
    if cluster.status != "running":
        return f"the cluster object is {cluster.status}; connect to the cluster again"
    return None


def restart_obstacle(cluster: Any) -> str:
    """Return that the gateway replaces a restarting worker under another name."""
    return (
        "a gateway ends a worker that its nanny restarts, and starts another; scale to "
        "one worker more, then back: leaving workers move their data to the others"
    )


async def bounds(cluster: Any) -> Unknown:
    """Return Unknown: a client cannot read the bounds."""
    return Unknown(
        "only the gateway's server knows; cluster.adapt(active=False) turns it off"
    )


async def adapt(cluster: Any, minimum: int, maximum: float) -> None:
    """Set the bounds. This also turns adaptive scaling on."""
    most = None if math.isinf(maximum) else int(maximum)
    await off_loop(cluster.adapt, minimum=minimum, maximum=most)


async def scale(cluster: Any, n_workers: int, there: int) -> None:
    """Request this many; the server counts workers that are starting."""
    await off_loop(cluster.scale, n_workers)


async def retired(cluster: Any, id: str | int) -> None:
    """Request the remaining number, or the server would replace the worker."""
    names = {w["name"] for w in _workers(cluster).values()} - {id}
    await off_loop(cluster.scale, len(names))


def _workers(cluster: Any) -> Mapping[str, Any]:
    """Return the scheduler's workers; the client gets updates of them."""
    workers: Mapping[str, Any] = cluster.scheduler_info.get("workers", {})
    return workers
