"""Find the adapter of a cluster object and scale through it; one file per manager.

:mod:`~clustertune.integrations.managers.adapter` describes what an adapter has. The
class of the cluster object names the adapter.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from clustertune.core.model import Unknown, WorkerSize, WorkerSnapshot
from clustertune.errors import NoWorkersError
from clustertune.integrations.managers import (
    coiled,
    gateway,
    jobqueue,
    kubernetes,
    saturn,
    spec_cluster,
)
from clustertune.integrations.managers.adapter import Adapter, Bounds

#: module and name of the class of the cluster objects, the most general one last
KINDS = {
    "coiled": ("coiled", "Cluster"),
    "gateway": ("dask_gateway", "GatewayCluster"),
    "jobqueue": ("dask_jobqueue", "JobQueueCluster"),
    "kubernetes": ("dask_kubernetes.operator", "KubeCluster"),
    "saturn": ("dask_saturn", "SaturnCluster"),
    "spec_cluster": ("distributed", "SpecCluster"),
}


def available() -> Mapping[str, Adapter]:
    """Return every adapter by name."""
    adapters: dict[str, Any] = {
        "coiled": coiled,
        "gateway": gateway,
        "jobqueue": jobqueue,
        "kubernetes": kubernetes,
        "saturn": saturn,
        "spec_cluster": spec_cluster,
    }
    return adapters


def find(cluster: Any) -> Adapter | None:
    """Return the adapter for a cluster object, or None."""
    for name, (module, kind) in KINDS.items():
        known = getattr(sys.modules.get(module), kind, None)
        if known is not None and isinstance(cluster, known):
            return available()[name]
    return None


async def bounds(cluster: Any) -> Bounds | Unknown | None:
    """Return the bounds of adaptive scaling; None: it is off, or no adapter matches."""
    adapter = find(cluster)
    return None if adapter is None else await adapter.bounds(cluster)


async def adapt(cluster: Any, minimum: int, maximum: float) -> None:
    """Set the bounds of adaptive scaling; raise NoWorkersError if it is off."""
    adapter = find(cluster)
    if adapter is None:
        raise NoWorkersError(
            f"clustertune has no adapter for {type(cluster).__name__}; run "
            f"cluster.adapt(minimum={minimum}, maximum={maximum})"
        )
    await adapter.adapt(cluster, minimum, maximum)


def _optional(cluster: Any, name: str) -> Callable[..., Any] | None:
    """Return a function that not every adapter has."""
    found: Callable[..., Any] | None = getattr(find(cluster), name, None)
    return found


def resized(cluster: Any, id: str | int, size: WorkerSize) -> None:
    """Give the cluster object the new size of one of its workers."""
    if own := _optional(cluster, "resized"):
        own(cluster, id, size)


def resize_obstacle(
    cluster: Any, size: WorkerSize, workers: Sequence[WorkerSnapshot]
) -> str | None:
    """Return why these workers cannot have this size; None: they can, or unknown."""
    own = _optional(cluster, "resize_obstacle")
    reason: str | None = None if own is None else own(cluster, size, workers)
    return reason


async def retired(cluster: Any, id: str | int) -> None:
    """Remove a retired worker from the cluster object."""
    adapter = find(cluster)
    if adapter is not None:
        await adapter.retired(cluster, id)


def restart_obstacle(cluster: Any) -> str | None:
    """Return why nannies must not restart workers; None: they may, or unknown."""
    own = _optional(cluster, "restart_obstacle")
    return None if own is None else str(own(cluster))


def merge_obstacle(cluster: Any) -> str | None:
    """Return why one worker cannot replace several; see ``Snapshot.can_merge``."""
    if own := _optional(cluster, "merge_obstacle"):
        reason: str | None = own(cluster)
        return reason
    if find(cluster) is None or _optional(cluster, "resized"):
        return None
    kind = type(cluster).__name__
    return (
        f"{kind} starts workers again in the size that it was made with; make the "
        "cluster with one worker per host, {nthreads} threads and {memory_limit} each"
    )


def obstacle(cluster: Any, n_workers: int) -> str | None:
    """Return why this client cannot scale its cluster to so many workers."""
    if cluster is None:
        return (
            "this client has only the scheduler's address and no cluster object, so it "
            f"cannot scale; run cluster.scale({n_workers}) where the cluster was "
            "made, then call prepare without n_workers"
        )
    adapter = find(cluster)
    if adapter is None:
        return (
            f"clustertune has no adapter for {type(cluster).__name__}; run "
            f"cluster.scale({n_workers}), wait for the workers, then call prepare "
            "without n_workers"
        )
    return adapter.obstacle(cluster, n_workers)
