"""Derive facts from a layout: holders, bytes, evenness, moves, replicated eval sets.

All functions are pure NumPy over :class:`~clustertune.core.model.Layout`. Workers are
indices into ``Snapshot.workers``. A training library takes a partition on the worker
that holds most of its bytes; that worker is the partition's *home*.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from clustertune.core.model import (
    COPIED,
    Bools,
    Float64s,
    Int64s,
    Layout,
    Member,
    Move,
    Moves,
    Unknown,
    View,
    WorkerSnapshot,
)
from clustertune.core.results import LayoutSummary, WorkerShare

Targets = npt.NDArray[np.intp] | Int64s
"""For each partition, the index of a worker of the snapshot."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Held:
    """Bytes of partitions on the workers that hold some of them, as coordinates."""

    partition: Int64s
    worker: Int64s
    nbytes: Int64s


# --- holders and rows -----------------------------------------------------------------


def partition_bytes(layout: Layout) -> Int64s:
    """Return the bytes of every partition of a loaded, aligned layout."""
    total = np.zeros(layout.members[0].n_partitions, dtype=np.int64)
    for member in layout.members:
        if member.nbytes is not None:
            total += member.nbytes
    return total


def held(layout: Layout, n_workers: int) -> Held:
    """Sum what each worker holds of each partition over all collections."""
    codes, amounts = [], []
    for member in layout.members:
        if member.holders is None or member.nbytes is None:
            continue
        partition, worker = member.holders
        codes.append(partition * n_workers + worker)
        amounts.append(member.nbytes[partition])
    if not codes:
        empty = np.zeros(0, dtype=np.int64)
        return Held(partition=empty, worker=empty, nbytes=empty)
    code, index = np.unique(np.concatenate(codes), return_inverse=True)
    nbytes = np.zeros(len(code), dtype=np.int64)
    np.add.at(nbytes, index.reshape(-1), np.concatenate(amounts))
    return Held(partition=code // n_workers, worker=code % n_workers, nbytes=nbytes)


def copied(layout: Layout) -> Bools:
    """Return for every partition whether several workers hold one of its keys."""
    n_partitions = layout.members[0].n_partitions
    result = np.zeros(n_partitions, dtype=np.bool_)
    for member in layout.members:
        if member.holders is not None:
            result |= np.bincount(member.holders[0], minlength=n_partitions) > 1
    return result


def homes(layout: Layout, n_workers: int) -> Int64s:
    """Return for every partition the worker that holds most of it; -1 means none."""
    spread = held(layout, n_workers)
    home = np.full(layout.members[0].n_partitions, -1, dtype=np.int64)
    # The last write of a repeated index wins. The sort puts the largest amount last,
    # and among equal amounts the first worker.
    order = np.lexsort((-spread.worker, spread.nbytes))
    home[spread.partition[order]] = spread.worker[order]
    return home


def apart(layout: Layout, n_workers: int) -> Bools:
    """Return for every partition with rows whether no single worker holds all of it."""
    codes = [
        member.holders[0] * n_workers + member.holders[1]  # each pair occurs once
        for member in layout.members
        if member.holders is not None
    ]
    result = np.ones(layout.members[0].n_partitions, dtype=np.bool_)
    if len(codes) == len(layout.members):
        code, count = np.unique(np.concatenate(codes), return_counts=True)
        result[code[count == len(codes)] // n_workers] = False
    rows = layout.members[0].rows
    return result if rows is None else result & (rows > 0)


def weights(view: View) -> Float64s:
    """Return each worker's weight: its threads, or 0 if it may not hold training data.

    All weights are equal if the workload needs the same number of rows on each worker.
    """
    equal = view.goal.workload.exact_rows
    claims = [1 if equal else w.nthreads for w in view.now.workers]
    may = [view.eligible(w) for w in view.now.workers]
    return np.array(claims, dtype=np.float64) * np.array(may, dtype=np.float64)


def shares(layout: Layout, view: View) -> tuple[WorkerShare, ...]:
    """Compare what each worker holds of an aligned, loaded layout with its share."""
    n_workers = len(view.now.workers)
    home = homes(layout, n_workers)
    known = home >= 0
    rows = np.bincount(home[known], layout.rows[known], minlength=n_workers)
    nbytes = np.bincount(
        home[known], partition_bytes(layout)[known], minlength=n_workers
    )
    partitions = np.bincount(home[known], minlength=n_workers)
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
    return LayoutSummary(
        label=layout.label,
        members=tuple(m.label for m in layout.members),
        partitions=layout.members[0].n_partitions,
        loaded=layout.loaded,
        rows=int(layout.rows.sum()) if layout.aligned else None,
        nbytes=layout.nbytes if layout.loaded else None,
        separated=int(apart(layout, n_workers).sum()) if known else None,
        imbalance=imbalance(layout, view) if known else None,
        workers=shares(layout, view) if known else (),
    )


# --- bytes, as Dask counts them -------------------------------------------------------


def member_bytes(member: Member) -> int | Unknown:
    """Return the bytes of one collection."""
    if member.nbytes is not None:
        return int(member.nbytes.sum())
    if member.total_bytes is not None:
        return member.total_bytes
    return Unknown(f"{member.label} is not loaded, so its size is unknown")


def sum_bytes(members: Iterable[Member]) -> int | Unknown:
    """Return the bytes of several collections; unknown if one of them is unknown."""
    total = 0
    for amount in map(member_bytes, members):
        if isinstance(amount, Unknown):
            return amount
        total += amount
    return total


def layout_bytes(layout: Layout) -> int | Unknown:
    """Return the bytes of all collections of a layout."""
    return sum_bytes(layout.members)


def largest_partition(layout: Layout) -> int | Unknown:
    """Return the bytes of the largest partition, of all collections if aligned."""
    if layout.loaded and layout.aligned:
        return int(partition_bytes(layout).max(initial=0))
    largest = 0
    for amount in map(_largest_of, layout.members):
        if isinstance(amount, Unknown):
            return amount
        largest = max(largest, amount)
    return largest


def _largest_of(member: Member) -> int | Unknown:
    if member.nbytes is not None:
        return int(member.nbytes.max(initial=0))
    total = member_bytes(member)
    if isinstance(total, Unknown):
        return total
    if member.rows is None or not member.rows.sum():
        return total // max(1, member.n_partitions)
    return int(total * member.rows.max() / member.rows.sum())


def held_bytes(layouts: Iterable[Layout], n_workers: int) -> Int64s:
    """Return the bytes of these layouts on every worker, replicas included."""
    total = np.zeros(n_workers, dtype=np.int64)
    for member in (m for layout in layouts for m in layout.members):
        if member.holders is not None and member.nbytes is not None:
            partition, worker = member.holders
            np.add.at(total, worker, member.nbytes[partition])
    return total


def part_bytes(member: Member, key: Int64s, n_rows: Int64s) -> Int64s:
    """Predict the bytes of row ranges of a loaded collection, after its conversion.

    The prediction is exact for numbers in arrays and frames, except for up to 8 bytes
    of a range index with Python 3.10. For text and other objects, Dask's own sizes are
    estimates.

    Parameters
    ----------
    member
        A collection that is loaded and counted.
    key, n_rows : (parts,)
        Index into its keys, and the number of rows of that key.
    """
    assert member.nbytes is not None
    assert member.rows is not None
    blocks, conversion = member.column_blocks, member.conversion
    rows, nbytes = np.repeat(member.rows, blocks), member.nbytes
    if conversion is None or conversion.row_bytes is None:
        fixed, each = member.fixed, np.maximum(0, nbytes - member.fixed)
    else:
        fixed = conversion.fixed
        whole = np.add.reduceat(nbytes, np.arange(0, len(nbytes), blocks))
        # each block of columns keeps its fraction of a row's bytes
        part = nbytes / np.maximum(1, np.repeat(whole, blocks))
        each = conversion.row_bytes * rows * part
    amount = each[key] * n_rows / np.maximum(1, rows[key])
    return np.rint(fixed + amount).astype(np.int64)


def list_bytes(lengths: Int64s) -> Int64s:
    """Return the bytes of lists of these lengths, without their elements."""
    known = {n: sys.getsizeof(list(range(n))) for n in set(lengths.tolist())}
    return np.array([known[n] for n in lengths.tolist()], dtype=np.int64)


# --- moves ----------------------------------------------------------------------------


def moves(layout: Layout, view: View, target: Targets) -> Moves:
    """Return the moves that bring the partitions of a layout to their targets."""
    return Moves(
        workers=tuple(w.address for w in view.now.workers),
        ceilings=tuple(_pause_bytes(w) for w in view.now.workers),
        moves=tuple(_moves(layout, target)),
    )


def _moves(layout: Layout, target: Targets) -> Iterator[Move]:
    """Yield the keys that are not held by their target alone."""
    for member in layout.members:
        if member.holders is None:
            continue
        partition, holder = member.holders
        stray = np.ones(len(target), dtype=bool)
        alone = np.bincount(partition, minlength=len(target)) == 1
        stray[partition[(holder == target[partition]) & alone[partition]]] = False
        which = np.flatnonzero(stray)
        if len(which):
            yield Move(
                label=member.label,
                keys=tuple(member.keys[i] for i in which),
                targets=target[which].astype(np.int64),
            )


def _pause_bytes(worker: WorkerSnapshot) -> int:
    """Return the process memory at which the worker pauses; 0 means no limit."""
    thresholds = worker.thresholds
    if isinstance(thresholds, Unknown) or thresholds.pause is None:
        return 0
    return int(thresholds.pause * worker.memory_limit)


def travelling(layout: Layout, view: View, target: Targets) -> tuple[Int64s, Int64s]:
    """Return the bytes that every worker receives, and that every worker sends."""
    n_workers = len(view.now.workers)
    total = partition_bytes(layout)
    there = held(layout, n_workers)
    present = np.zeros(len(target), dtype=np.int64)
    stays = there.worker == target[there.partition]
    present[there.partition[stays]] = there.nbytes[stays]
    travels = total - present
    home = homes(layout, n_workers)
    known = home >= 0
    into = np.bincount(target, travels, minlength=n_workers)
    out = np.bincount(home[known], travels[known], minlength=n_workers)
    return into.astype(np.int64), out.astype(np.int64)


def in_runs(n_partitions: int, held: Held, may: Bools) -> Int64s:
    """Choose targets that give each worker one run of equally many partitions.

    The run with the largest saving is placed first, on the worker that holds most of
    its bytes. The bytes that stay are at least half of the best possible result.

    Parameters
    ----------
    n_partitions
        Number of partitions: the same number for each worker, or a few more. The rest
        goes to the worker of the last run.
    held
        Bytes that workers hold of the partitions; replicas are more entries.
    may : (workers,)
        Workers that take part.
    """
    workers = np.flatnonzero(may)
    each = max(1, n_partitions // len(workers))
    run = np.minimum(np.arange(n_partitions) // each, len(workers) - 1)
    saved = np.zeros((len(workers), len(may)))
    np.add.at(saved, (run[held.partition], held.worker), held.nbytes)
    saved = saved[:, workers]
    target = np.full(len(workers), -1, dtype=np.int64)
    free = np.ones(len(workers), dtype=bool)
    for code in np.argsort(-saved, axis=None, kind="stable").tolist():
        number, worker = divmod(code, len(workers))
        if target[number] < 0 and free[worker]:
            target[number], free[worker] = workers[worker], False
    result: Int64s = target[run]
    return result


# --- eval sets of which every worker has all rows -------------------------------------
#
# A replicated eval set has one partition for each partition of the training data. The
# first partition of each worker has all rows of the eval set; the others are empty.


def is_copied(layout: Layout) -> bool:
    """Return whether the collections are replicas that clustertune made."""
    return all(
        isinstance(key, tuple) and str(key[0]).startswith(f"{COPIED}-")
        for m in layout.members
        for key in m.keys
    )


def copies(layout: Layout) -> int:
    """Return how often the layout contains each row."""
    if not is_copied(layout) or layout.members[0].rows is None:
        return 1
    return max(1, int((layout.members[0].rows > 0).sum()))


def original(layout: Layout) -> tuple[tuple[int, int, int], ...]:
    """Return each row once, as (partition, first row, one past the last), in order."""
    rows = layout.rows.tolist()
    partitions = [i for i, n in enumerate(rows) if n] or [0]
    if is_copied(layout):
        partitions = partitions[:1]
    return tuple((i, 0, rows[i]) for i in partitions)


def first_partitions(view: View) -> Int64s:
    """Return each worker's first partition with rows of the training data."""
    training = view.layouts[0]
    home = homes(training, len(view.now.workers))
    real = np.flatnonzero((training.rows > 0) & (home >= 0))
    _, index = np.unique(home[real], return_index=True)
    return np.sort(real[index]).astype(np.int64)


def are_in_place(layout: Layout, view: View) -> bool:
    """Return whether every training worker holds a whole replica of an eval set."""
    training = view.layouts[0]
    if len(layout.rows) != len(training.rows):
        return False
    n_workers = len(view.now.workers)
    real = np.flatnonzero(layout.rows > 0)
    full = np.unique(layout.rows[real])
    return (
        np.array_equal(real, first_partitions(view))
        and len(full) == 1
        and (is_copied(layout) or len(real) == 1)
        # an empty partition elsewhere would pull its training partition with it
        and np.array_equal(homes(training, n_workers), homes(layout, n_workers))
        and not apart(layout, n_workers).any()
    )
