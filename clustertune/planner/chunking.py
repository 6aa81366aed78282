"""Decide at which rows data is cut into partitions (pure).

Partitions of X stay if they suit the workers. Otherwise they are cut near the old
boundaries, into as many as :func:`partition_count` returns; or into up to twice as
many; or evenly. A boundary that stays on an old one saves a copy, and a transfer if
the parts are on two workers.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

import numpy as np

from clustertune.core.model import (
    Bools,
    CollectionInfo,
    Finding,
    Float64s,
    Int64s,
    Layout,
    View,
)
from clustertune.planner import coverage, grouping, layouts, suitability
from clustertune.planner.grouping import Groups

#: checks whose findings require other partitions
PARTITIONS = {
    "large_partitions",
    "missing_eval_rows",
    "too_few_partitions",
    "too_many_partitions",
}
MIN_TASK_LENGTH = 100  # of a partition's task, as a multiple of the task overhead
#: bytes per second that a thread reads: measured 1.6 to 2.0 GB/s for variances and
#: products of float32 and float64 columns in arrays larger than all caches
PASS = 2e9
_ROUNDING = 1e-9


# --- boundaries -----------------------------------------------------------------------


class Parts(NamedTuple):
    """Row ranges of old partitions that make up new ones, in the order of rows."""

    new: Int64s  # index of the new partition
    old: Int64s  # index of the old partition
    start: Int64s  # first row in the old partition
    stop: Int64s  # one past the last


def even(n_rows: int, n_partitions: int) -> Int64s:
    """Return rows of ``n_partitions`` partitions that differ by one row at most."""
    edges = np.arange(n_partitions + 1, dtype=np.int64) * n_rows // n_partitions
    return np.diff(edges)


def near(rows: Int64s, most: int) -> Int64s:
    """Return rows of partitions of up to ``most`` rows, cut near the old boundaries.

    A partition is joined with the next one while the sum is at most ``most``, or while
    it has less than half of that. Larger ones are cut into equal parts. Empty ones are
    removed.
    """
    runs: list[int] = []
    run = 0
    for n in rows.tolist():
        if run + n > most and 2 * run >= most:
            runs.append(run)
            run = 0
        run += n
    if runs and 2 * run < most:
        runs[-1] += run
    elif run:
        runs.append(run)
    cut = [even(n, -(-n // most)) for n in runs]
    return np.concatenate(cut) if cut else np.zeros(0, dtype=np.int64)


def joined(rows: Int64s, most: int) -> Int64s:
    """Return rows of runs of whole old partitions, of up to ``most`` rows if possible.

    For data that may not be cut: every remaining boundary is an old one.
    """
    runs: list[int] = []
    for n in rows[rows > 0].tolist():
        if runs and runs[-1] + n <= most:
            runs[-1] += n
        else:
            runs.append(n)
    return np.array(runs, dtype=np.int64)


def at_edges(edges: Int64s, n_rows: int, cuts: Int64s) -> Int64s:
    """Return rows of partitions, cut at the allowed edges nearest to the wanted cuts.

    Both are row numbers, and the edges ascend. Cuts with the same edge become one.
    """
    near = np.zeros(0, dtype=np.int64)
    if len(edges) and len(cuts):
        after = np.minimum(np.searchsorted(edges, cuts), len(edges) - 1)
        before = np.maximum(after - 1, 0)
        closer = cuts - edges[before] < edges[after] - cuts
        near = np.unique(edges[np.where(closer, before, after)])
    return np.diff(near, prepend=0, append=n_rows).astype(np.int64)


def fullest(rows: Int64s, weights: Float64s) -> float:
    """Return the rows of the fullest worker over its share, placing large ones first.

    Each partition goes to the worker that is then least full. Without a search, the
    result exceeds the minimum by at most a third for equal workers (R. L. Graham,
    Bounds on multiprocessing timing anomalies, 1969).
    """
    claim = weights[weights > 0]
    shares = rows.sum() * claim / claim.sum()
    # among workers with the same share only the emptiest is a candidate
    heaps = [[(0, i) for i in np.flatnonzero(shares == s)] for s in np.unique(shares)]
    for n in np.sort(rows)[::-1].tolist():
        heap = min(heaps, key=lambda h: ((h[0][0] + n) / shares[h[0][1]], h[0][1]))
        load, worker = heap[0]
        heapq.heapreplace(heap, (load + n, worker))
    return float(max(load / shares[worker] for heap in heaps for load, worker in heap))


def parts(old: Int64s, new: Int64s) -> Parts:
    """Return the row ranges of old partitions that make up the new ones.

    ``old`` and ``new`` are the rows of all partitions; they have the same positive sum.
    An empty new partition gets one part without rows, of a nearby partition.
    """
    if old.sum() != new.sum() or not old.sum():
        raise ValueError(f"{old.sum():,} rows cannot be cut into {new.sum():,}")
    ends, new_ends = np.cumsum(old), np.cumsum(new)
    # np.unique would use a hash table, which takes fifty times as long
    edges = np.sort(np.concatenate(([0], ends, new_ends)))
    edges = edges[np.diff(edges, prepend=-1) > 0]
    first, last = edges[:-1], edges[1:]
    # the partition of a row is the first that ends after it, so never an empty one
    partition = np.searchsorted(ends, first, side="right")
    target = np.searchsorted(new_ends, first, side="right")
    start = first - (ends - old)[partition]
    stop = start + (last - first)
    empty = np.flatnonzero(new == 0)
    if len(empty):
        nearby = np.searchsorted(ends, new_ends[empty], side="right")
        nearby = np.minimum(nearby, len(old) - 1)
        nothing = np.zeros_like(empty)
        target = np.concatenate((target, empty))
        partition = np.concatenate((partition, nearby))
        start = np.concatenate((start, nothing))
        stop = np.concatenate((stop, nothing))
    order = np.argsort(target, kind="stable")
    return Parts(*(x[order].astype(np.int64) for x in (target, partition, start, stop)))


# --- number of partitions -------------------------------------------------------------
#
# One partition per thread is the minimum that keeps all threads busy. More partitions
# let rows be more even after workers join or leave, and each costs a task. So there are
# more only while the task of a partition is long compared with the task overhead.


def partition_count(nbytes: float | None, view: View, n_threads: int) -> int:
    """Return a number of partitions for these bytes (None: unknown) and threads."""
    profile = view.goal.workload
    if nbytes is None:
        return n_threads * profile.partitions_per_thread
    each = nbytes / n_threads
    fewest = max(1, math.ceil(each / max(1, max_partition_bytes(view))))
    most, overhead = profile.partitions_per_thread, view.now.overhead
    # a model that depends on the number of partitions must not depend on a timing
    if overhead is not None and not profile.keeps_partitions:
        most = min(most, int(each / (MIN_TASK_LENGTH * overhead * PASS)))
    return n_threads * max(fewest, most)


def max_partition_bytes(view: View) -> int:
    """Return the bytes above which a partition is cut, of all collections together."""
    limits = [w.memory_limit for w in view.eligible_workers if w.memory_limit]
    return min([view.goal.workload.max_partition_bytes, *(n // 10 for n in limits)])


def overhead_text(view: View) -> str:
    """Return the measured task overhead in words, or "" if it is not used."""
    overhead = view.now.overhead
    if overhead is None or view.goal.workload.keeps_partitions:
        return ""
    return f"a task costs {overhead * 1e3:.2g} ms here"


def wanted_partitions(view: View, n_rows: int) -> int | None:
    """Return the requested number of partitions, or that of the model; None: any."""
    if not isinstance(view.goal.rechunk, bool):
        return view.goal.rechunk
    rows, partitions = view.goal.previous_shape or (0, 0)
    possible = rows == n_rows and len(view.eligible_workers) <= partitions <= n_rows
    return partitions if possible and view.goal.workload.keeps_partitions else None


# --- partitions of a layout -----------------------------------------------------------


def rows_of(collection: CollectionInfo) -> Int64s:
    """Return the rows of the partitions of a loaded, counted collection."""
    assert collection.rows is not None
    return collection.rows


def new_rows(layout: Layout, view: View, about: Sequence[Finding]) -> Int64s:
    """Return rows of new partitions for a loaded, counted layout.

    They are those of X if these suit. ``about`` are the findings about the layout.
    """
    if view.goal.rechunk is False or layouts.is_copied(layout):
        return rows_of(layout.collections[0])  # only values are converted
    groups = grouping.of(layout)
    if groups is not None and view.goal.workload.groups:
        return _at_groups(layout, groups, view, about)
    # A fit that needs equal rows hangs with unequal ones. So this comes before groups
    # that the library does not use.
    if layout is view.layouts[0] and view.goal.workload.exact_rows:
        return _exact(layout, view, about)
    if any(m.label.rpartition(".")[2] == "qid" for m in layout.collections):
        return _of_groups(layout, view, about)
    return _anywhere(layout, view, about)


def fresh(layout: Layout, view: View) -> Int64s:
    """Return rows of even partitions for rows that all travel."""
    total = int(rows_of(layout.collections[0]).sum())
    wanted = wanted_partitions(view, total) if layout is view.layouts[0] else None
    n_partitions = _count_for(layout, view) if wanted is None else wanted
    return even(total, min(max(1, total), n_partitions))


def _anywhere(layout: Layout, view: View, about: Sequence[Finding]) -> Int64s:
    """Return rows of partitions that may be cut at any row."""
    old = rows_of(layout.collections[0])
    total = int(old.sum())
    wanted = wanted_partitions(view, total) if layout is view.layouts[0] else None
    if wanted is not None:
        return even(total, min(total, wanted))
    if _suits(layout, old, view, about):
        return old
    n_partitions = min(total, _count_for(layout, view))
    most = -(-total // n_partitions)
    closest = near(old, most)
    if layout is not view.layouts[0]:
        return closest  # an eval set is only scored, so rows need not be even
    finer = near(old, max(1, most // 2))
    return _most_even(layout, [closest, finer, even(total, n_partitions)], view)


def covering(
    layout: Layout, rows: Int64s, view: View, *, alone: bool
) -> tuple[Int64s, Bools] | None:
    """Cut partitions further so that every worker can have every class, if needed.

    ``alone`` puts rows of rare classes into partitions without other rows, for cases in
    which whole partitions cannot be distributed. The second result is the classes of
    each partition. None means that no class is needed.
    """
    classes = coverage.needed(layout, view)
    if classes is None:
        return None
    n_workers = len(view.eligible_workers)
    finer = coverage.finer(classes, rows, n_workers, alone=alone)
    return finer, coverage.present_in(classes, finer)


def remainder(layout: Layout, view: View) -> int:
    """Return the rows of the training data left out to make workers exactly even."""
    if layout is not view.layouts[0] or not view.goal.workload.exact_rows:
        return 0
    if view.goal.rechunk is False:  # no partition is cut
        return 0
    total = int(rows_of(layout.collections[0]).sum())
    n_workers = len(view.eligible_workers)
    return total % n_workers if n_workers <= total else 0  # too few rows are an error


def _exact(layout: Layout, view: View, about: Sequence[Finding]) -> Int64s:
    """Return equal rows for each worker, one run per worker, then the remainder."""
    old, n_workers = rows_of(layout.collections[0]), len(view.eligible_workers)
    left, total = remainder(layout, view), int(old.sum())
    if total < n_workers:
        return old
    is_even = fullest(old, layouts.weights(view)) <= 1 + _ROUNDING
    if not left and is_even and _suits(layout, old, view, about):
        return old
    each = total // n_workers
    parts = max(1, _count_for(layout, view) // n_workers)
    rows = np.tile(even(each, min(each, parts)), n_workers)
    return np.append(rows, left) if left else rows


def _most_even(
    layout: Layout, tries: list[Int64s], view: View, *, can_stay: bool = True
) -> Int64s:
    """Return the first rows that can be even within the tolerance, else the best."""
    weights = layouts.weights(view)
    ratios = []
    for rows in tries:
        ratios.append(fullest(rows, weights))
        if not suitability.is_uneven(ratios[-1], view):
            return rows
    old, best = rows_of(layout.collections[0]), int(np.argmin(ratios))
    # partitions stay if none is better and each worker can have one
    enough = np.count_nonzero(old) >= np.count_nonzero(weights)
    if can_stay and layout.aligned and enough:
        return old if fullest(old, weights) <= ratios[best] + _ROUNDING else tries[best]
    return tries[best]


def _at_groups(
    layout: Layout, groups: Groups, view: View, about: Sequence[Finding]
) -> Int64s:
    """Return partitions that end where groups end, near the old ends if these suit."""
    old, total = rows_of(layout.collections[0]), int(groups.counts.sum())
    if not grouping.are_in_order(groups, view.goal.workload.groups):
        return old  # a shuffle puts the groups in order first
    ends = np.cumsum(old)[:-1]
    closest = at_edges(groups.edges, total, ends)
    whole = np.isin(ends, np.concatenate([groups.edges, [0, total]])).all()
    if whole and _suits(layout, old, view, about):
        return old
    # the ends of empty partitions may have moved to other edges
    if _suits(layout, closest, view, about):
        return closest
    n_partitions = _count_for(layout, view)
    tries = [closest]
    for factor in (1, 2, 4, 8):
        cuts = np.cumsum(even(total, min(total, n_partitions * factor)))[:-1]
        tries.append(at_edges(groups.edges, total, cuts))
    # too few partitions are no improvement, even if they are even
    fewest = min(int((layouts.weights(view) > 0).sum()), len(groups.counts))
    enough = [rows for rows in tries if np.count_nonzero(rows) >= fewest]
    # old partitions that cut through groups may be more even than whole groups
    return _most_even(layout, enough or tries[-1:], view, can_stay=bool(whole))


def _of_groups(layout: Layout, view: View, about: Sequence[Finding]) -> Int64s:
    """Return joined partitions: any other cut may go through a group."""
    ends = [np.cumsum(rows_of(m)) for m in layout.collections]
    common = reduce(np.intersect1d, ends)
    old = np.diff(common[common > 0], prepend=0)
    if _suits(layout, old, view, about):
        return old
    total = int(old.sum())
    new = joined(old, -(-total // _count_for(layout, view)))
    weights = layouts.weights(view)
    crowded = bool(suitability.too_many(_bare(layout, old), view))
    # joining does not help against too few or uneven partitions
    better = fullest(new, weights) < fullest(old, weights)
    return new if crowded or better else old


def _count_for(layout: Layout, view: View) -> int:
    n_threads = sum(w.nthreads for w in view.eligible_workers)
    return partition_count(layout.nbytes, view, n_threads)


def _suits(layout: Layout, rows: Int64s, view: View, about: Sequence[Finding]) -> bool:
    """Return whether partitions of these rows are not too few, too many, or too large.

    Checks see aligned layouts only, so the rules are applied to X alone as well.
    """
    if any(f.check in PARTITIONS for f in about):
        return False
    bare = _bare(layout, rows)
    only = replace(view, layouts=(bare,))
    if layout.collections[0].column_blocks > 1:
        n_bytes = layout.nbytes / max(1, len(rows))
        if n_bytes > view.goal.workload.max_partition_bytes:
            return False
    if suitability.too_large(bare, only) or suitability.too_many(bare, only):
        return False
    if layout is not view.layouts[0]:
        return True
    return not suitability.is_uneven(suitability.fullest_share(bare, only), only)


def _bare(layout: Layout, rows: Int64s) -> Layout:
    """Return the layout with partitions of these rows: one collection, no holders."""
    total = int(rows.sum())
    nbytes = (rows * (layout.nbytes / max(1, total))).astype(np.int64)
    none = np.zeros(0, dtype=np.int64)
    collection = replace(
        layout.collections[0],
        keys=tuple(range(len(rows))),
        rows=rows,
        nbytes=nbytes,
        holders=(none, none),
        column_blocks=1,
    )
    return Layout(label=layout.label, collections=(collection,))
