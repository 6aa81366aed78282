"""Clusters that distributed runs from a specification: LocalCluster, SSHCluster, ..."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from distributed.deploy.spec import SpecCluster

from clustertune.core.model import Size
from clustertune.errors import ScaleError
from clustertune.integrations.managers import settled

NAMES = 10_000  # that are looked through, of workers to come
EXPECTED = "clustertune://restarting/"  # instead of an address, before a name


def matches(cluster: Any) -> bool:
    """Whether it is a cluster of this kind."""
    return isinstance(cluster, SpecCluster)


def obstacle(cluster: SpecCluster, n_workers: int) -> str | None:
    """Why it cannot have so many workers."""
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
    """The least and most workers of its adaptive scaling, if that is on."""
    adaptive = adaptive_of(cluster)
    return None if adaptive is None else (adaptive.minimum, adaptive.maximum)


async def adapt(cluster: SpecCluster, minimum: int, maximum: float) -> None:
    """Set the bounds in place: another ``Adaptive`` would forget what it was told."""
    adaptive = adaptive_of(cluster)
    if adaptive is None:
        raise ScaleError(f"this {type(cluster).__name__} does not scale by itself")
    adaptive.minimum, adaptive.maximum = minimum, maximum


def adaptive_of(cluster: Any) -> Any:
    """What scales it, or None; one that was stopped stays with its cluster."""
    adaptive = getattr(cluster, "_adaptive", None)
    return None if getattr(adaptive, "periodic_callback", None) is None else adaptive


async def scale(cluster: SpecCluster, n_workers: int, there: int) -> None:
    """Ask for what is missing; workers that were asked for before are on their way.

    ``there`` counts the workers of the scheduler, also those that others have started;
    the cluster object counts its own, and ``scale`` takes that number.
    """
    coming = len(cluster.plan) - len(cluster.plan & cluster.observed)
    missing = n_workers - there - coming
    if missing <= 0:
        return
    await settled(cluster.scale(len(cluster.plan) + missing))


async def state(cluster: SpecCluster) -> str:
    """What the cluster object knows of its workers."""
    return (
        f"{type(cluster).__name__} ({cluster.status.name}) has planned "
        f"{len(cluster.plan)}, started {len(cluster.requested)} and seen "
        f"{len(cluster.observed)} workers"
    )


def resized(cluster: SpecCluster, id: str | int, size: Size) -> None:
    """Have it start that worker with this size, and new ones once all have it."""
    specs = cluster.worker_spec
    if "options" not in specs.get(id, {}):
        return
    specs[id] = _with(specs[id], size)  # anew: workers may share one
    if all(_with(spec, size) == spec for spec in specs.values()):
        cluster.new_spec = _with(cluster.new_spec, size)


def _with(spec: Mapping[str, Any], size: Size) -> dict[str, Any]:
    """A worker's specification with another size."""
    options = dict(spec.get("options") or {})
    if size.nthreads is not None:
        options["nthreads"] = size.nthreads
    if size.memory_limit is not None:
        options["memory_limit"] = size.memory_limit
    if size.env:
        options["env"] = {**(options.get("env") or {}), **size.env}
    return {**spec, "options": options}


@contextmanager
def expecting(cluster: SpecCluster, ids: Collection[str | int]) -> Iterator[None]:
    """Have it see these workers meanwhile, though they are away for a moment.

    It gives a worker up for good, and closes its nanny, that is not there when it looks
    15 s (``distributed.deploy.lost-worker-timeout``) after one of that name went: if a
    restart takes that long, or another one has been so long before.
    """
    workers = cluster.scheduler_info["workers"]
    marks = {
        f"{EXPECTED}{entry['name']}": entry
        for entry in list(workers.values())
        if entry["name"] in ids
    }
    workers.update(marks)
    try:
        yield
    finally:  # of what is known by then: it may have been read anew
        for mark in marks:
            cluster.scheduler_info["workers"].pop(mark, None)


async def retired(cluster: SpecCluster, id: str | int) -> None:
    """Forget it: the next ``scale`` would start it again."""
    if cluster.worker_spec.pop(id, None) is not None:
        _use_up(cluster, id)
        await settled(cluster.scale(len(cluster.worker_spec)))


def _use_up(cluster: SpecCluster, id: str | int) -> None:
    """Have new workers get other names than this one.

    A worker that is closing, which can take seconds, has its name still; the cluster
    object starts none of a name that it has, and does not look again.
    """
    for number in range(cluster._i, cluster._i + NAMES):
        if cluster._new_worker_name(number) == id:
            cluster._i = number + 1
            return
