"""Clusters of distributed with a specification: LocalCluster, SSHCluster, ..."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distributed.deploy.spec import SpecCluster

from clustertune.core.model import WorkerSize
from clustertune.errors import NoWorkersError
from clustertune.integrations.managers.adapter import await_if_needed

MAX_NAMES = 10_000  # of new workers that are compared with a retired one
SIZE = ("nthreads", "memory_limit", "env")  # options of a worker


def obstacle(cluster: SpecCluster, n_workers: int) -> str | None:
    """Return why it cannot have so many workers."""
    if cluster.status.name != "running":
        return f"the cluster object is {cluster.status.name}; make a new one"
    if not cluster._supports_scaling:
        return (
            f"this {type(cluster).__name__} was made with a fixed list of workers; "
            f"start more with `dask worker {cluster.scheduler_address}`, then call "
            "prepare without n_workers"
        )
    return None


async def bounds(cluster: SpecCluster) -> tuple[int, float] | None:
    """Return the bounds of adaptive scaling, if it is on."""
    adaptive = adaptive_of(cluster)
    return None if adaptive is None else (adaptive.minimum, adaptive.maximum)


async def adapt(cluster: SpecCluster, minimum: int, maximum: float) -> None:
    """Set the bounds in place: a new ``Adaptive`` would lose its other settings."""
    adaptive = adaptive_of(cluster)
    if adaptive is None:
        raise NoWorkersError(f"this {type(cluster).__name__} does not scale by itself")
    adaptive.minimum, adaptive.maximum = minimum, maximum


def adaptive_of(cluster: Any) -> Any:
    """Return the running ``Adaptive``; the cluster keeps a stopped one."""
    adaptive = getattr(cluster, "_adaptive", None)
    return None if getattr(adaptive, "periodic_callback", None) is None else adaptive


async def scale(cluster: SpecCluster, n_workers: int, there: int) -> None:
    """Request the missing workers; earlier requests are starting.

    ``there`` includes workers that the cluster object did not start, but the object's
    ``scale`` does not count them.
    """
    coming = len(cluster.plan) - len(cluster.plan & cluster.observed)
    missing = n_workers - there - coming
    if missing <= 0:
        return
    await await_if_needed(cluster.scale(len(cluster.plan) + missing))


def resized(cluster: SpecCluster, id: str | int, size: WorkerSize) -> None:
    """Start this worker with this size, and new workers once all have it."""
    specs = cluster.worker_spec
    if "options" not in specs.get(id, {}):
        return
    # a new dict, because workers may share one
    specs[id] = _resized_spec(specs[id], size)
    if all(_resized_spec(spec, size) == spec for spec in specs.values()):
        cluster.new_spec = _resized_spec(cluster.new_spec, size)


def merge_obstacle(cluster: SpecCluster) -> str | None:
    """Return that workers are missing, or are started together as a group."""
    kind = type(cluster).__name__
    if any("group" in spec for spec in cluster.worker_spec.values()):
        return (
            f"{kind} starts the workers of a host together; run "
            f"`{kind}(..., worker_options={{{{'n_workers': 1, "
            "'nthreads': {nthreads}}})`"
        )
    planned, observed = len(cluster.plan), len(cluster.observed)
    if observed < planned:
        return (
            f"only {observed} of {planned} workers of the {kind} run; the others may "
            "return with their threads, so wait for them, and call this again"
        )
    return None


def _resized_spec(spec: Mapping[str, Any], size: WorkerSize) -> dict[str, Any]:
    """Return a worker's specification with another size."""
    options = dict(spec.get("options") or {})
    if size.nthreads is not None:
        options["nthreads"] = size.nthreads
    if size.memory_limit is not None:
        options["memory_limit"] = size.memory_limit
    if size.env:
        options["env"] = {**(options.get("env") or {}), **size.env}
    return {**spec, "options": options}


async def retired(cluster: SpecCluster, id: str | int) -> None:
    """Remove the worker, or the next ``scale`` would start it again."""
    if cluster.worker_spec.pop(id, None) is not None:
        _skip_name(cluster, id)
        _use_common_size(cluster)
        await await_if_needed(cluster.scale(len(cluster.worker_spec)))


def _use_common_size(cluster: SpecCluster) -> None:
    """Give new workers the size of the remaining ones, if all have the same."""
    given = [spec.get("options") or {} for spec in cluster.worker_spec.values()]
    sizes = [{name: own[name] for name in SIZE if name in own} for own in given]
    new = cluster.new_spec
    if new and sizes and all(size == sizes[0] for size in sizes):
        options = {**(new.get("options") or {}), **sizes[0]}
        cluster.new_spec = {**new, "options": options}


def _skip_name(cluster: SpecCluster, id: str | int) -> None:
    """Make the names of new workers differ from this one.

    A worker keeps its name while it closes, which can take seconds. The cluster object
    skips a new worker with the same name, and does not try again.
    """
    for number in range(cluster._i, cluster._i + MAX_NAMES):
        if cluster._new_worker_name(number) == id:
            cluster._i = number + 1
            return
