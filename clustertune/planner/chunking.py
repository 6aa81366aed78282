"""Decide at which rows data is cut into partitions (pure).

Partitions of X stay if they suit the workers. Otherwise large ones are cut, and small
ones are joined if there are too many. Then each worker keeps its share of the rows
where they are, and the rest goes to the other workers. A further cut is made only near
the end of a share, so boundaries and targets are chosen together.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from clustertune.core.model import (
    Bools,
    CollectionInfo,
    Cut,
    Finding,
    Float64s,
    Int64s,
    Layout,
    View,
)
from clustertune.planner import contents, layouts, suitability
from clustertune.planner.contents import Groups
from clustertune.planner.layouts import HeldBytes, part_bytes
from clustertune.planner.placement import AIM

#: checks whose findings require other partitions
PARTITIONS = {
    "eval_sets",
    "large_partitions",
    "too_few_partitions",
    "too_many_partitions",
}
#: bytes below which a thread gets no further partition; Dask's best practices name it
SMALL_PARTITION = 100 * 2**20
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


def capped(rows: Int64s, most: int) -> Int64s:
    """Return rows of partitions, cut into equal parts of up to ``most`` rows.

    Empty partitions are removed.
    """
    parts = [even(n, -(-n // most)) for n in rows[rows > 0].tolist()]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def near(rows: Int64s, most: int, home: Int64s | None = None) -> Int64s:
    """Return rows of partitions of up to ``most`` rows, cut near the old boundaries.

    A partition is joined with the next one while the sum is at most ``most``, or while
    it has less than half of that. Larger ones are cut into equal parts. Empty ones are
    removed. With ``home``, the worker of each partition, the partitions of one worker
    are not joined with the next worker's if either are enough for a new partition.
    """
    apart = np.zeros(len(rows), dtype=bool)
    if home is not None:
        begins = np.diff(home, prepend=-2) != 0
        in_run = np.cumsum(begins) - 1
        enough = 2 * np.bincount(in_run, rows) >= most
        apart = begins & (enough | np.append(False, enough[:-1]))[in_run]
    runs: list[int] = []
    run = 0
    for n, ends in zip(rows.tolist(), apart.tolist(), strict=True):
        if 2 * run >= most and (ends or run + n > most):
            runs.append(run)
            run = 0
        run += n
    if runs and 2 * run < most:
        runs[-1] += run
    elif run:
        runs.append(run)
    return capped(np.array(runs, dtype=np.int64), most)


def divided(
    rows: Int64s,
    held: HeldBytes,
    weights: Float64s,
    slack: float,
    hosts: Int64s | None = None,
) -> tuple[Int64s, Int64s]:
    """Return partitions and targets with which each worker has its share of rows.

    A partition stays on the worker that holds most of it while that worker's share
    lasts, the largest first, and among equal ones that with most bytes there. The
    others go to the worker with most room, on the host with most of their bytes, then
    on the second one, then anywhere. A partition is cut if it exceeds that room, and if
    only a part of it can stay. ``hosts`` are the numbers of the workers' hosts.

    Workers exceed their share by at most the fraction ``slack`` of it, or by one row.
    A cut fills a share, or half of the slack if less room is left. So no part is
    smaller than half of the slack.
    """
    shares = _Shares(rows, weights, slack)
    hosts = np.arange(len(weights)) if hosts is None else hosts
    may = weights[held.worker] > 0
    home, there = layouts.largest(HeldBytes(*(x[may] for x in held)), len(rows))
    leaving = []
    for i in np.lexsort((-there, -rows)).tolist():
        stays = shares.keep(i, int(rows[i]), int(home[i]))
        if stays < rows[i]:
            leaving.append((stays - int(rows[i]), i))
    on_host = layouts.added([held._replace(worker=hosts[held.worker])], len(weights))
    for _ in range(2):
        best, _ = layouts.largest(on_host, len(rows))
        for host in np.unique(best[[i for _, i in leaving]]).tolist():
            workers = np.flatnonzero((weights > 0) & (hosts == host)).tolist()
            some = [part for part in leaving if best[part[1]] == host]
            others = [part for part in leaving if best[part[1]] != host]
            leaving = others + shares.send(some, workers)
        other = on_host.worker != best[on_host.partition]
        on_host = HeldBytes(*(x[other] for x in on_host))
    shares.send(leaving, np.flatnonzero(weights).tolist(), last=True)
    new, target = zip(*(part for parts in shares.found for part in parts), strict=True)
    return np.array(new, np.int64), np.array(target, np.int64)


class _Shares:
    """The room of each worker, and the parts of each partition with their workers."""

    def __init__(self, rows: Int64s, weights: Float64s, slack: float):
        share = rows.sum() * weights / weights.sum()
        self.room: list[float] = share.tolist()
        self.spare: list[float] = (share * slack).tolist()
        self.found: list[list[tuple[int, int]]] = [[] for _ in rows]  # (rows, target)

    def keep(self, partition: int, n: int, worker: int) -> int:
        """Keep rows on a worker that has most of them (-1: none); return how many."""
        if worker < 0:
            return 0
        whole = n <= self.room[worker] + self.spare[worker]
        stays = n if whole else self._part(worker)
        if not whole and self.room[worker] <= self.spare[worker]:
            return 0
        if stays:
            self._put(partition, stays, worker)
        return stays

    def send(
        self, parts: list[tuple[int, int]], workers: list[int], *, last: bool = False
    ) -> list[tuple[int, int]]:
        """Give (-rows, partition) to the workers with most room; return the rest.

        There is no rest if these are the ``last`` workers.
        """
        most = [(-self.room[w] - self.spare[w], w) for w in workers]
        heapq.heapify(most)
        heapq.heapify(parts)
        while parts and most:
            worker = most[0][1]
            if not last and self.room[worker] <= self.spare[worker]:
                break
            n, i = heapq.heappop(parts)
            n = -n
            if n > self.room[worker] + self.spare[worker]:
                whole, n = n, min(n, max(1, self._part(worker)))
                if n < whole:
                    heapq.heappush(parts, (n - whole, i))
            self._put(i, n, worker)
            heapq.heapreplace(most, (-self.room[worker] - self.spare[worker], worker))
        return parts

    def _put(self, partition: int, n: int, worker: int) -> None:
        self.found[partition].append((n, worker))
        self.room[worker] -= n

    def _part(self, worker: int) -> int:
        """Return the rows that fill a worker's share, or half of its slack."""
        least = self.spare[worker] / 2
        return int(self.room[worker] + (0 if self.room[worker] > least else least))


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
# more only while partitions are large.


def partition_count(nbytes: float | None, view: View, n_threads: int) -> int:
    """Return a number of partitions for these bytes (None: unknown) and threads."""
    profile = view.goal.workload
    if nbytes is None:
        return n_threads * profile.partitions_per_thread
    each = nbytes / n_threads
    fewest = max(1, math.ceil(each / max(1, max_partition_bytes(view))))
    more = min(profile.partitions_per_thread, int(each / SMALL_PARTITION))
    return n_threads * max(fewest, more)


def max_partition_bytes(view: View) -> int:
    """Return the bytes above which a partition is cut, of all collections together."""
    limits = [w.memory_limit for w in view.eligible_workers if w.memory_limit]
    return min([view.goal.workload.max_partition_bytes, *(n // 10 for n in limits)])


# --- partitions of a layout -----------------------------------------------------------


def rows_of(collection: CollectionInfo) -> Int64s:
    """Return the rows of the partitions of a loaded, counted collection."""
    assert collection.rows is not None
    return collection.rows


def parts_of(collection: CollectionInfo, rows: Int64s) -> Cut:
    """Return the parts of a collection's new partitions, without their owners."""
    blocks = collection.column_blocks
    found = parts(rows_of(collection), rows)
    new, old, start, stop = (np.repeat(x, blocks) for x in found)
    key = old * blocks + np.tile(np.arange(blocks), len(found.new))
    return Cut(
        label=collection.label,
        keys=collection.keys,
        new=new,
        key=key,
        start=start,
        stop=stop,
        owner=np.full(len(key), -1, dtype=np.int64),
    )


def held_parts(cut: Cut, collection: CollectionInfo, amount: Int64s) -> HeldBytes:
    """Return what each worker holds of new partitions, for every replica of a part."""
    assert collection.holders is not None
    key, worker = collection.holders
    order = np.argsort(key, kind="stable")
    key, worker = key[order], worker[order]
    first = np.searchsorted(key, cut.key)
    count = np.searchsorted(key, cut.key, side="right") - first
    part = np.repeat(np.arange(len(cut.key)), count)
    offset = np.arange(len(part)) - np.repeat(np.cumsum(count) - count, count)
    return HeldBytes(cut.new[part], worker[first[part] + offset], amount[part])


class Division(NamedTuple):
    """New partitions in the order of rows."""

    rows: Int64s
    target: Int64s | None = None  # worker of each; None: any


def divide(layout: Layout, view: View, about: Sequence[Finding]) -> Division:
    """Return new partitions for a loaded, counted layout, and targets if known.

    They are those of X if these suit. ``about`` are the findings about the layout.
    """
    old = rows_of(layout.collections[0])
    if view.goal.rechunk is False or layouts.is_copied(layout):
        return Division(old)
    if view.goal.workload.whole_groups and contents.has_groups(layout):
        groups = contents.groups_of(layout)  # None: unread
        return Division(
            old if groups is None else _at_groups(layout, groups, view, about)
        )
    return _anywhere(layout, view, about)


def _anywhere(layout: Layout, view: View, about: Sequence[Finding]) -> Division:
    """Return partitions that may be cut at any row."""
    old, trains = rows_of(layout.collections[0]), layout is view.layouts[0]
    total = int(old.sum())
    wanted = view.goal.partitions
    if trains and wanted is not None:
        return Division(even(total, min(total, wanted)))
    if _suits(layout, old, view, about):
        return Division(old)
    n_partitions = min(total, _count_for(layout, view))
    most = -(-total // n_partitions)
    if not trains:  # only scored, so rows need not be even
        rows, n_workers = near(old, most), len(view.eligible_workers)
        enough = len(rows) >= min(total, n_workers)
        return Division(rows if enough else even(total, n_partitions))
    weights = layouts.weights(view)
    rows, target = _divided(layout, most, view, about)
    share = np.maximum(total * weights / weights.sum(), _ROUNDING)
    load = np.bincount(target, rows, len(weights))
    if not suitability.is_uneven(float((load / share).max()), view):
        return Division(rows, target)
    tries = [rows, even(total, n_partitions)]  # few rows for each worker
    return Division(_most_even(layout, tries, view))


def _divided(
    layout: Layout, most: int, view: View, about: Sequence[Finding]
) -> tuple[Int64s, Int64s]:
    """Return partitions of up to ``most`` rows, and targets, that move few bytes."""
    old, weights = rows_of(layout.collections[0]), layouts.weights(view)
    joins = any(f.check == "too_many_partitions" for f in about)
    if joins or suitability.too_many(_bare(layout, old), view):
        held = _held(layout, old, len(weights))
        may = weights[held.worker] > 0
        home, _ = layouts.largest(HeldBytes(*(x[may] for x in held)), len(old))
        rows = near(old, most, home)
    else:
        rows = capped(old, most)
    held = _held(layout, rows, len(weights))
    slack = AIM * view.goal.tolerance
    return divided(rows, held, weights, slack, layouts.hosts(view))


def _held(layout: Layout, rows: Int64s, n_workers: int) -> HeldBytes:
    """Return what each worker holds of new partitions with these rows."""
    found = []
    for collection in layout.collections:
        cut = parts_of(collection, rows)
        amount = part_bytes(collection, cut.key, cut.stop - cut.start)
        found.append(held_parts(cut, collection, amount))
    return layouts.added(found, n_workers)


def covering(
    layout: Layout, rows: Int64s, view: View, *, alone: bool
) -> tuple[Int64s, Bools] | None:
    """Cut partitions further so that every worker can have every class, if needed.

    ``alone`` puts rows of rare classes into partitions without other rows, for cases in
    which whole partitions cannot be distributed. The second result is the classes of
    each partition. None means that no class is needed.
    """
    classes = contents.needed_classes(layout, view)
    if classes is None:
        return None
    n_workers = len(view.eligible_workers)
    finer = contents.finer(classes, rows, n_workers, alone=alone)
    old = rows_of(layout.collections[0])
    if not alone and len(rows) < len(old) <= len(finer):
        # the witnesses, and so the cuts, change with the partitions: old cuts stay
        suffice = (contents.present_in(classes, old).sum(axis=0) >= n_workers).all()
        if suffice and np.isin(np.cumsum(rows), np.cumsum(old)).all():
            finer = old
    return finer, contents.present_in(classes, finer)


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
    if not groups.together:
        return old  # an error, or left for a later call
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
