"""Coiled's clusters, which run in a cloud account.

Coiled starts and stops virtual machines. Its cluster object scales adaptively in the
process of the user, as those of distributed do. A call of ``scale`` ends adaptive
scaling. New workers have the size that the cluster was made with.
"""

from __future__ import annotations

from typing import Any

from clustertune.integrations.managers.adapter import (
    off_loop,
    starts_by_itself,
)
from clustertune.integrations.managers.spec_cluster import adapt as adapt
from clustertune.integrations.managers.spec_cluster import bounds as bounds


def obstacle(cluster: Any, n_workers: int) -> str | None:
    """Return why it cannot have so many workers."""
    if cluster.status.name != "running":
        return f"the cluster object is {cluster.status.name}; make a new one"
    return None


async def scale(cluster: Any, n_workers: int, there: int) -> None:
    """Request this many; Coiled counts workers that are starting.

    Adaptive scaling starts its minimum by itself, and a request would end it.
    """
    if not starts_by_itself(await bounds(cluster), n_workers):
        await off_loop(cluster.scale, n_workers)


async def retired(cluster: Any, id: str | int) -> None:
    """Stop the machine of the worker."""
    await off_loop(cluster.sync, cluster.scale_down, [str(id)], reason="clustertune")
