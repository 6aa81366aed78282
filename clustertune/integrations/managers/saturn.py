"""Clusters of Saturn Cloud (dask_saturn).

The cluster object requests everything from Saturn's server, also its status, so its
methods are not called in the event loop. A client cannot read whether the server scales
the cluster by itself. New workers have the size that the cluster was made with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clustertune.core.model import Unknown, WorkerSize, WorkerSnapshot
from clustertune.integrations.managers.adapter import MAX_WORKERS, off_loop


def obstacle(cluster: Any, n_workers: int) -> str | None:
    """Return why it cannot have so many workers. The server may still refuse."""
    return None if cluster.cluster_url else "the cluster was closed; make a new one"


async def bounds(cluster: Any) -> Unknown:
    """Return Unknown: a client cannot read the bounds."""
    return Unknown("only Saturn's server knows the bounds")


async def adapt(cluster: Any, minimum: int, maximum: float) -> None:
    """Set the bounds. This also turns adaptive scaling on."""
    await off_loop(cluster.adapt, minimum, int(min(maximum, MAX_WORKERS)))


async def scale(cluster: Any, n_workers: int, there: int) -> None:
    """Request this many; the server counts workers that are starting."""
    await off_loop(cluster.scale, n_workers)


async def retired(cluster: Any, id: str | int) -> None:
    """Request the remaining number, or the server would replace the worker."""
    left = await off_loop(lambda: _names(cluster) - {id})
    await off_loop(cluster.scale, len(left))


def _names(cluster: Any) -> set[str]:
    return {worker["name"] for worker in cluster.scheduler_info["workers"].values()}


def resize_obstacle(
    cluster: Any,
    size: WorkerSize,
    workers: Sequence[WorkerSnapshot],
) -> str | None:
    """Return why these workers cannot have more threads or memory.

    A worker is a machine of one size, and only a new cluster has another size.
    """
    wanted = {"n_workers": str(len(workers))}
    if any((size.memory_limit or 0) > w.memory_limit for w in workers):
        wanted["worker_size"] = '"NAME"'
    if any((size.nthreads or 0) > w.nthreads for w in workers):
        wanted["nthreads"] = str(size.nthreads)
    if len(wanted) == 1:
        return None
    call = ", ".join(f"{name}={value}" for name, value in wanted.items())
    names = "; dask_saturn.describe_sizes() has the names"
    return (
        "Saturn Cloud gives no running worker more threads or memory. Write the data "
        "with X.to_parquet(PATH) or X.to_zarr(PATH), because all data in memory will "
        f"be lost. Then run `cluster = cluster.reset({call})`"
        f"{names if 'worker_size' in wanted else ''}"
    )
