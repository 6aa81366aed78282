"""Derive facts from a layout: holders, bytes, evenness, moves, replicated eval sets.

All functions are pure NumPy over :class:`~clustertune.core.model.Layout`. Workers are
indices into ``Snapshot.workers``. A training library takes a partition on the worker
that holds most of its bytes; that worker is the partition's *home*.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from clustertune.core.model import (
    COPIED,
    Bools,
    CollectionInfo,
    Float64s,
    Int64s,
    Layout,
    LayoutSummary,
    Move,
    Moves,
    Rechunk,
    Unknown,
    View,
    WorkerShare,
    WorkerSnapshot,
)
from clustertune.core.wording import natural

Targets = Int64s
"""For each partition, the index of a worker of the snapshot."""


class HeldBytes(NamedTuple):
    """Bytes of partitions on the workers that hold some of them, as coordinates."""

    partition: Int64s
    worker: Int64s
    nbytes: Int64s


# --- holders and rows -----------------------------------------------------------------


def partition_bytes(layout: Layout) -> Int64s:
    """Return the bytes of every partition of a loaded, aligned layout."""
    total = np.zeros(layout.collections[0].n_partitions, dtype=np.int64)
    for collection in layout.collections:
        if collection.nbytes is not None:
            total += collection.nbytes
    return total


def held_bytes_by_worker(layout: Layout, n_workers: int) -> HeldBytes:
    """Sum what each worker holds of each partition over all collections."""
    return added([held_of(m) for m in layout.collections], n_workers)


def held_of(collection: CollectionInfo) -> HeldBytes:
    """Return what each worker holds of each partition; nothing if it is not loaded."""
    if collection.holders is None or collection.nbytes is None:
        return HeldBytes(*np.zeros((3, 0), dtype=np.int64))
    partition, worker = collection.holders
    return HeldBytes(partition, worker, collection.nbytes[partition])


def owners(collection: CollectionInfo, view: View) -> Int64s:
    """Return a holder of each key, a running worker if possible; -1: none."""
    assert collection.holders is not None
    key, worker = collection.holders
    running = np.array([w.running for w in view.now.workers], dtype=bool)
    order = np.lexsort((~running[worker], key))
    held, first = np.unique(key[order], return_index=True)
    owner = np.full(len(collection.keys), -1, dtype=np.int64)
    owner[held] = worker[order][first]
    return owner


def hosts(view: View) -> Int64s:
    """Return the number of each worker's host."""
    names = [w.host for w in view.now.workers]
    return np.unique(names, return_inverse=True)[1].reshape(-1).astype(np.int64)


def largest_held(held: HeldBytes, n_workers: int) -> Int64s:
    """Return the bytes of the largest partition on every worker."""
    result = np.zeros(n_workers, dtype=np.int64)
    np.maximum.at(result, held.worker, held.nbytes)
    return result


def added(held: Iterable[HeldBytes], n_workers: int) -> HeldBytes:
    """Add up the bytes of equal partitions and workers, in the order of partitions."""
    partition, worker, amounts = (np.concatenate(x) for x in zip(*held, strict=True))
    code, index = np.unique(partition * n_workers + worker, return_inverse=True)
    nbytes = np.zeros(len(code), dtype=np.int64)
    np.add.at(nbytes, index.reshape(-1), amounts)
    return HeldBytes(code // n_workers, code % n_workers, nbytes)


def of_partitions(held: HeldBytes, some: Bools) -> HeldBytes:
    """Return what is held of some partitions, with numbers from 0."""
    number, its = np.cumsum(some) - 1, some[held.partition]
    return HeldBytes(number[held.partition[its]], held.worker[its], held.nbytes[its])


def replicated(layout: Layout) -> Bools:
    """Return for every partition whether several workers hold one of its keys."""
    n_partitions = layout.collections[0].n_partitions
    result = np.zeros(n_partitions, dtype=np.bool_)
    for collection in layout.collections:
        if collection.holders is not None:
            result |= np.bincount(collection.holders[0], minlength=n_partitions) > 1
    return result


def home_workers(layout: Layout, n_workers: int) -> Int64s:
    """Return for every partition the worker that holds most of it; -1 means none."""
    n_partitions = layout.collections[0].n_partitions
    return largest(held_bytes_by_worker(layout, n_workers), n_partitions)[0]


def home_ids(layout: Layout, view: View) -> tuple[str | int | None, ...]:
    """Return the id of each partition's home; None: it is not in memory."""
    workers = view.now.workers
    homes = home_workers(layout, len(workers))
    return tuple(workers[i].id if i >= 0 else None for i in homes)


def former_homes(layout: Layout, view: View) -> Targets | None:
    """Return the homes that the goal wants restored; None: some worker is not there."""
    former = view.goal.placement.get(layout.label, ())
    there = enumerate(view.now.workers)
    index: dict[object, int] = {w.id: i for i, w in there if view.eligible(w)}
    homes = [index.get(id, -1) for id in former]
    if len(homes) != layout.collections[0].n_partitions or -1 in homes:
        return None
    return np.array(homes, dtype=np.int64)


def largest(held: HeldBytes, n_partitions: int) -> tuple[Int64s, Int64s]:
    """Return for every partition the worker with most bytes (-1: none), and these."""
    home = np.full(n_partitions, -1, dtype=np.int64)
    amount = np.zeros(n_partitions, dtype=np.int64)
    # The last write of a repeated index wins. The sort puts the largest amount last,
    # and among equal amounts the first worker.
    order = np.lexsort((-held.worker, held.nbytes))
    home[held.partition[order]] = held.worker[order]
    amount[held.partition[order]] = held.nbytes[order]
    return home, amount


def separated(layout: Layout, n_workers: int) -> Bools:
    """Return for every partition with rows whether no single worker holds all of it."""
    codes = [  # a number for each pair of partition and holder, which occurs once
        m.holders[0] * n_workers + m.holders[1]
        for m in layout.collections
        if m.holders is not None
    ]
    result = np.ones(layout.collections[0].n_partitions, dtype=np.bool_)
    if len(codes) == len(layout.collections):
        code, count = np.unique(np.concatenate(codes), return_counts=True)
        result[code[count == len(codes)] // n_workers] = False
    rows = layout.collections[0].rows
    return result if rows is None else result & (rows > 0)


def weights(view: View) -> Float64s:
    """Return each worker's weight: its threads, or 0 if it may not hold training data.

    All weights are equal if the workers take each step of the training together.
    """
    equal = view.goal.workload.equal_shares
    found = [view.eligible(w) * (1 if equal else w.nthreads) for w in view.now.workers]
    return np.array(found, dtype=np.float64)


def shares(layout: Layout, view: View) -> tuple[WorkerShare, ...]:
    """Compare what each worker holds of an aligned, loaded layout with its share."""
    n_workers = len(view.now.workers)
    home = home_workers(layout, n_workers)
    known = home >= 0
    home, held = home[known], partition_bytes(layout)[known]
    rows = np.bincount(home, layout.rows[known], minlength=n_workers)
    nbytes = np.bincount(home, held, minlength=n_workers)
    partitions = np.bincount(home, minlength=n_workers)
    claim = weights(view)
    due = layout.rows.sum() * claim / max(claim.sum(), 1.0)
    return tuple(
        WorkerShare(
            worker=w.id,
            partitions=int(partitions[i]),
            rows=int(rows[i]),
            nbytes=int(nbytes[i]),
            share=float(rows[i] / due[i]) if due[i] > 0 else 0.0,
        )
        for i, w in enumerate(view.now.workers)
    )


def imbalance(layout: Layout, view: View) -> float:
    """Return the rows of the fullest worker over its share by threads; 1.0 is even."""
    found = [s.share for s in shares(layout, view)]
    return max(found, default=1.0) if layout.rows.sum() else 1.0


def summarize(layout: Layout, view: View) -> LayoutSummary:
    """Describe a layout in a few numbers; unknown numbers are None."""
    n_workers = len(view.now.workers)
    known = layout.loaded and layout.aligned
    found = shares(layout, view) if known else ()
    return LayoutSummary(
        label=layout.label,
        collections=tuple(m.label for m in layout.collections),
        partitions=layout.collections[0].n_partitions,
        loaded=layout.loaded,
        rows=int(layout.rows.sum()) if layout.aligned else None,
        nbytes=layout.nbytes if layout.loaded else None,
        separated=int(separated(layout, n_workers).sum()) if known else None,
        imbalance=imbalance(layout, view) if known else None,
        workers=tuple(sorted(found, key=lambda share: natural(share.worker))),
    )


# --- bytes, as Dask counts them -------------------------------------------------------


def collection_bytes(collection: CollectionInfo) -> int | Unknown:
    """Return the bytes of one collection."""
    if collection.nbytes is not None:
        return int(collection.nbytes.sum())
    if collection.total_bytes is not None:
        return collection.total_bytes
    return Unknown(f"{collection.label} is not loaded, so its size is unknown")


def sum_bytes(collections: Iterable[CollectionInfo]) -> int | Unknown:
    """Return the bytes of several collections; unknown if one of them is unknown."""
    found = [collection_bytes(m) for m in collections]
    unknown = next((n for n in found if isinstance(n, Unknown)), None)
    return unknown or sum(n for n in found if not isinstance(n, Unknown))


def largest_partition(layout: Layout) -> int | Unknown:
    """Return the bytes of the largest partition, of all collections if aligned."""
    if layout.loaded and layout.aligned:
        return int(partition_bytes(layout).max(initial=0))
    found = [_largest_of(m) for m in layout.collections]
    unknown = next((n for n in found if isinstance(n, Unknown)), None)
    return unknown or max(n for n in found if not isinstance(n, Unknown))


def _largest_of(collection: CollectionInfo) -> int | Unknown:
    if collection.nbytes is not None:
        return int(collection.nbytes.max(initial=0))
    total = collection_bytes(collection)
    if isinstance(total, Unknown):
        return total
    if collection.rows is None or not collection.rows.sum():
        return total // max(1, collection.n_partitions)
    return int(total * collection.rows.max() / collection.rows.sum())


def held_bytes(layouts: Iterable[Layout], n_workers: int) -> Int64s:
    """Return the bytes of these layouts on every worker, replicas included."""
    total = np.zeros(n_workers, dtype=np.int64)
    for collection in (m for layout in layouts for m in layout.collections):
        held = held_of(collection)
        np.add.at(total, held.worker, held.nbytes)
    return total


def part_bytes(collection: CollectionInfo, key: Int64s, n_rows: Int64s) -> Int64s:
    """Predict the bytes of row ranges of a loaded collection.

    ``key`` has the index of each part's key, and ``n_rows`` its number of rows. The
    prediction is exact for numbers in arrays and frames, except for up to 8 bytes of a
    range index with Python 3.10. For text and other objects, Dask's own sizes are
    estimates.
    """
    assert collection.nbytes is not None
    assert collection.rows is not None
    rows = np.repeat(collection.rows, collection.column_blocks)
    each = np.maximum(0, collection.nbytes - collection.fixed)
    amount = each[key] * n_rows / np.maximum(1, rows[key])
    return np.rint(collection.fixed + amount).astype(np.int64)


def list_bytes(lengths: Int64s) -> Int64s:
    """Return the bytes of lists of these lengths, without their elements."""
    known = {n: sys.getsizeof(list(range(n))) for n in set(lengths.tolist())}
    return np.array([known[n] for n in lengths.tolist()], dtype=np.int64)


# --- moves ----------------------------------------------------------------------------


def moves(layout: Layout, view: View, target: Targets) -> Moves:
    """Return moves after which each partition is held by its target alone."""
    found = []
    for m in layout.collections:
        if m.holders is None:
            continue
        partition, holder = m.holders
        single = np.bincount(partition, minlength=len(target)) == 1
        in_place = partition[(holder == target[partition]) & single[partition]]
        moving = np.delete(np.arange(len(target)), in_place)
        if len(moving):
            keys = tuple(m.keys[i] for i in moving)
            found.append(Move(label=m.label, keys=keys, targets=target[moving]))
    return Moves(
        workers=tuple(w.address for w in view.now.workers),
        process_limits=tuple(_pause_bytes(w) for w in view.now.workers),
        moves=tuple(found),
    )


def moves_of_copies(layout: Layout, view: View, target: Targets) -> Moves:
    """Return a copy of each partition on its target; the given partitions stay."""
    home = home_workers(layout, len(view.now.workers))

    def every(targets: Targets) -> tuple[Move, ...]:
        return tuple(
            Move(label=m.label, keys=m.keys, targets=targets)
            for m in layout.collections
        )

    found = moves(layout, view, target)
    return replace(found, moves=every(target), copies=True, kept=every(home))


def _pause_bytes(worker: WorkerSnapshot) -> int:
    """Return the process memory at which the worker pauses; 0 means no limit."""
    thresholds = worker.thresholds
    if isinstance(thresholds, Unknown) or thresholds.pause is None:
        return 0
    return int(thresholds.pause * worker.memory_limit)


def received_bytes(layout: Layout, view: View, target: Targets) -> Int64s:
    """Return the bytes that every worker receives if the partitions move."""
    n_workers = len(view.now.workers)
    there = held_bytes_by_worker(layout, n_workers)
    travels = partition_bytes(layout)
    stays = there.worker == target[there.partition]
    travels[there.partition[stays]] -= there.nbytes[stays]
    into = np.bincount(target, travels, minlength=n_workers)
    return into.astype(np.int64)


def recut_bytes(
    recut: Rechunk, collections: Sequence[CollectionInfo]
) -> tuple[Int64s, Int64s]:
    """Return the bytes that every worker receives and makes in cuts of collections.

    ``collections`` are in the order of the cuts.
    """
    into, made = np.zeros((2, len(recut.workers)), dtype=np.int64)
    for cut, collection in zip(recut.cuts, collections, strict=True):
        amount = part_bytes(collection, cut.key, cut.stop - cut.start)
        target = recut.targets[cut.new]
        away = cut.owner != target
        np.add.at(into, target[away], amount[away])
        np.add.at(made, target, amount)
        # parts travel in one list per new partition and sender
        pairs = np.stack((cut.new[away], cut.owner[away]))
        (new, _), lengths = np.unique(pairs, axis=1, return_counts=True)
        np.add.at(into, recut.targets[new], list_bytes(lengths))
    return into, made


# --- eval sets of which every worker has all rows -------------------------------------
#
# A replicated eval set has one partition for each partition of the training data. The
# first partition of each worker has all rows of the eval set; the others are empty.


def is_copied(layout: Layout) -> bool:
    """Return whether the collections are replicas that clustertune made."""
    return all(
        isinstance(key, tuple) and str(key[0]).startswith(f"{COPIED}-")
        for m in layout.collections
        for key in m.keys
    )


def copies(layout: Layout) -> int:
    """Return how often the layout contains each row."""
    if not is_copied(layout) or layout.collections[0].rows is None:
        return 1
    return max(1, int((layout.collections[0].rows > 0).sum()))


def original(layout: Layout) -> tuple[tuple[int, int, int], ...]:
    """Return each row once, as (partition, first row, one past the last), in order."""
    full = np.flatnonzero(layout.rows).tolist() or [0]
    unique = full[:1] if is_copied(layout) else full
    return tuple((i, 0, int(layout.rows[i])) for i in unique)


def first_partitions(view: View) -> Int64s:
    """Return each worker's first partition with rows of the training data."""
    training = view.layouts[0]
    home = home_workers(training, len(view.now.workers))
    full = np.flatnonzero((training.rows > 0) & (home >= 0))
    _, index = np.unique(home[full], return_index=True)
    return np.sort(full[index]).astype(np.int64)


def are_in_place(layout: Layout, view: View) -> bool:
    """Return whether every training worker holds a whole replica of an eval set."""
    training, n_workers = view.layouts[0], len(view.now.workers)
    if len(layout.rows) != len(training.rows):
        return False
    full = np.flatnonzero(layout.rows > 0)
    homes = home_workers(layout, n_workers)
    return (
        np.array_equal(full, first_partitions(view))
        and len(np.unique(layout.rows[full])) == 1
        and (is_copied(layout) or len(full) == 1)
        # an empty partition elsewhere would move its training partition there
        and np.array_equal(homes, home_workers(training, n_workers))
        and not separated(layout, n_workers).any()
    )
