"""Builders of views for tests of checks and plans, and a comparison of two views.

Each builder returns a complete value, healthy by default, and takes fields to override
as keywords. A test states only the fields that matter to it::

    view(workers=[worker(0, process=3 * 2**30)], layouts=[layout([10, 10], [0, 0])])
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from clustertune.core.model import (
    CollectionInfo,
    Details,
    Goal,
    Int64s,
    Layout,
    Profile,
    Run,
    Snapshot,
    Survey,
    Thresholds,
    View,
    WorkerFacts,
    WorkerSnapshot,
)
from clustertune.planner.layouts import held_bytes
from clustertune.planner.memory import free_memory
from clustertune.planner.plan import lost_rows, separations, uncounted_rows

Homes = Sequence[int | Sequence[int]]
"""For each partition the index of its holder; several for replicas, -1 or none without
a holder."""

_GIB = 2**30
_WORKLOAD = Profile(
    name="generic", title="Any training library", memory_multiple={4: 2.0, 8: 2.0}
)


def worker(id: str | int = 0, **overrides: Any) -> WorkerSnapshot:
    """Build a worker with one thread, 4 GiB, Dask's default thresholds and no data.

    Workers whose id is an ``int`` have separate CPUs, as in a ``LocalCluster``. Workers
    with a ``str`` on the same host share CPUs. Overrides are fields of
    :class:`WorkerSnapshot`, :class:`WorkerFacts` and :class:`Thresholds`:
    ``pause=None``.
    """
    number = id if isinstance(id, int) else 0
    host = overrides.get("host", "127.0.0.1")
    nthreads = overrides.get("nthreads", 1)
    thresholds = Thresholds(target=0.6, spill=0.7, pause=0.8, terminate=0.95)
    facts = WorkerFacts(
        thresholds=replace(thresholds, **_take(overrides, Thresholds)),
        affinity=frozenset(range(number * nthreads, (number + 1) * nthreads)),
        quotas=(),
        host_memory=64 * _GIB,
    )
    built = WorkerSnapshot(
        id=id,
        address=f"tcp://{host}/{id}",
        host=host,
        nanny=f"tcp://{host}/nanny-{id}",
        nthreads=nthreads,
        status="running",
        memory_limit=4 * _GIB,
        process=200 * 2**20,
        managed=0,
        spilled=0,
        facts=replace(facts, **_take(overrides, WorkerFacts)),
    )
    return replace(built, **{"counted": overrides.get("managed", 0), **overrides})


def details(**overrides: Any) -> Details:
    """Build a worker's answer to a diagnosis, as in a ``LocalCluster``."""
    built = Details(
        thread_pools=(1,),
        disk_free=50 * _GIB,
        expires=None,
        packages={"dask": "2026.8.0", "xgboost": "3.2.0"},
    )
    return replace(built, **overrides)


def survey(**overrides: Any) -> Survey:
    """Build the scheduler's answer to a diagnosis: no tasks."""
    built = Survey(
        worker_ttl=300.0,
        loop_delay=0.02,
        packages={"client": {"dask": "2026.8.0"}, "scheduler": {"dask": "2026.8.0"}},
    )
    return replace(built, **overrides)


def runs(
    *floors: Mapping[str | int, int], peaks: Mapping[str | int, int] | None = None
) -> tuple[Run, ...]:
    """Build past runs from the unmanaged memory of workers after each run."""
    return tuple(
        Run(began=100.0 * i, ended=100.0 * i + 60, floors=floor, peaks=peaks or floor)
        for i, floor in enumerate(floors)
    )


def snapshot(workers: Sequence[WorkerSnapshot], **overrides: Any) -> Snapshot:
    """Build the cluster at one moment."""
    built = Snapshot(
        time=0.0,
        scheduler="tcp://127.0.0.1:8786",
        workers=tuple(workers),
    )
    return replace(built, **overrides)


def collection(
    label: str,
    rows: Sequence[int] | None,
    homes: Homes | None,
    row_bytes: int = 8,
    **overrides: Any,
) -> CollectionInfo:
    """Build a collection of float64 values; overrides are fields of ``CollectionInfo``.

    ``rows`` are None if unknown, which requires ``keys``. ``homes`` has the holders of
    each partition, and is None for data that is not loaded.
    """
    counts = None if rows is None else np.array(rows, dtype=np.int64)
    n_partitions = len(rows or ()) if homes is None else len(homes)
    nbytes = None if counts is None else counts * row_bytes
    built = CollectionInfo(
        label=label,
        kind="array",
        keys=tuple((label, i) for i in range(n_partitions)),
        loaded=homes is not None,
        rows=counts,
        nbytes=None if homes is None else nbytes,
        holders=None if homes is None else indices(homes),
        columns=max(1, row_bytes // 8),
        itemsize=8,
        total_bytes=None if nbytes is None else int(nbytes.sum()),
    )
    return replace(built, **overrides)


def layout(
    rows: Sequence[int] | None,
    homes: Homes | Mapping[str, Homes] | None,
    collections: Sequence[str] = ("X", "y"),
    row_bytes: Mapping[str, int] | None = None,
    label: str = "training data",
    **overrides: Any,
) -> Layout:
    """Build row-aligned collections; overrides are fields of every ``CollectionInfo``.

    All collections have the same ``rows``. ``homes`` are for all collections or by
    label, and None for data that is not loaded. ``row_bytes`` by label are 80 for the
    first label and 8 for others by default.
    """
    widths = {m: 80 if m == collections[0] else 8 for m in collections}
    widths |= row_bytes or {}
    own = homes if isinstance(homes, Mapping) else dict.fromkeys(collections, homes)
    built = (collection(m, rows, own[m], widths[m], **overrides) for m in collections)
    return Layout(label=label, collections=tuple(built))


def view(
    workers: Sequence[WorkerSnapshot] = (),
    layouts: Sequence[Layout] = (),
    snapshots: Sequence[Snapshot] | None = None,
    goal_workers: Collection[str | int] | None = None,
    survey: Survey | None = None,
    runs: tuple[Run, ...] | None = None,
    **overrides: Any,
) -> View:
    """Build the view that a check reads; overrides are other fields of :class:`Goal`.

    There are two healthy workers by default. ``layouts`` has the training data first.
    ``snapshots`` (oldest first) replace ``workers``. ``goal_workers`` are the ids of
    the requested workers; None means all. The ``survey`` is that of the last snapshot.
    """
    seen = list(snapshots or [snapshot(workers or (worker(0), worker(1)))])
    if survey is not None:
        seen[-1] = replace(seen[-1], survey=survey)
    requested = None if goal_workers is None else frozenset(goal_workers)
    goal = replace(Goal(workload=_WORKLOAD, workers=requested), **overrides)
    return View(snapshots=tuple(seen), goal=goal, layouts=tuple(layouts), runs=runs)


def indices(homes: Homes) -> tuple[Int64s, Int64s]:
    """Return the partitions and holders of all replicas, as in ``CollectionInfo``."""
    pairs = [
        (partition, home)
        for partition, held in enumerate(homes)
        for home in ([held] if isinstance(held, int) else held)
        if home >= 0
    ]
    partitions, workers = zip(*pairs, strict=True) if pairs else ((), ())
    return np.array(partitions, dtype=np.int64), np.array(workers, dtype=np.int64)


def verify(before: View, after: View) -> None:
    """Assert that no data was lost, mispaired or separated, and no worker overfilled.

    Raises ``AssertionError`` if one of these happened. The message lists all problems.
    """
    wrong = broken_promises(before, after)
    if wrong:
        raise AssertionError("; ".join(wrong))


def broken_promises(before: View, after: View) -> tuple[str, ...]:
    """Return what went wrong between two views of the same data.

    - Rows were lost or changed.
    - Collections that had the same row boundaries differ in them.
    - More partitions are spread over several workers than before.
    - Dask's memory manager was left in another state.
    - A worker holds more than fits below its spill threshold, and did not before.
    """
    return (
        *lost_rows(before, after),
        *uncounted_rows(before, after),
        *separations(before, after),
        *_memory_manager(before, after),
        *_over_budget(before, after),
    )


def _memory_manager(before: View, after: View) -> Iterator[str]:
    if before.now.memory_manager != after.now.memory_manager:
        state = "runs" if after.now.memory_manager else "does not run"
        yield f"Dask's memory manager {state}, unlike before"


def _over_budget(before: View, after: View) -> Iterator[str]:
    if not all(x.loaded for x in after.layouts):
        return
    ids = [w.id for w in before.now.workers]
    amounts = held_bytes(before.layouts, len(ids)).tolist()
    had = dict(zip(ids, amounts, strict=True))
    has = held_bytes(after.layouts, len(after.now.workers))
    for worker, most, n in zip(after.now.workers, free_memory(after), has, strict=True):
        if n > most and n > had.get(worker.id, 0):
            yield f"worker {worker.id} holds {n:,} bytes, but only {int(most):,} fit"


def _take(overrides: dict[str, Any], kind: type[Any]) -> dict[str, Any]:
    """Remove the fields of a dataclass from the overrides and return them."""
    names = {f.name for f in fields(kind)} & overrides.keys()
    return {name: overrides.pop(name) for name in names}
