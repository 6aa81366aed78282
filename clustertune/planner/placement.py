"""Choose a worker for every partition: balance rows, then move the fewest bytes (pure).

A partition is one row range of all row-aligned collections, so X and y stay paired.
Budgets come before row balance, and row balance before bytes.

Large partitions come first. A partition stays on the worker with most of its bytes
while the worker's share lasts; the others go to the worker with most free room. A local
search then places a few partitions at a time in the best of all ways. With few
partitions and workers, it tries all placements at once, so the result is optimal. With
more, the result is near the bound.

A search for very even rows may exchange many partitions. So ``place`` searches again
within the whole tolerance if the bytes are far above their lower bound.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from clustertune.errors import CapacityError

Array: TypeAlias = npt.NDArray[Any]
Held: TypeAlias = tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike]
NOTHING: Held = ((), (), ())

# An uneven layout is brought well within the tolerance, unless that costs many bytes.
# At the edge of the tolerance, the next small change would make it uneven again.
AIM = 0.2  # fraction of the tolerance
WORTH = 1.05  # bytes within this factor are as good as the fewest

# Limits of the search. They bound its time, and results do not depend on time.
ALL = 2_000_000  # numbers in the loads of all placements, up to which all are tried
WAYS = 4_096  # placements that one step of the local search tries
TRIES = 800  # steps of a local search
EFFORT = 8_000_000  # steps times holdings of a local search; each step reads them all
PATIENCE = 200  # steps without an improvement after which the search ends
NEAR = 1e-4  # a smaller fraction of all bytes or of a share is not worth a search
LARGE = 20_000  # partitions; with more, the first placement is near the bound
OVER = 1e6  # strain of a worker at its budget; more does not fit
EXACT = 1 + 1e-12  # rounding error of a ratio
TINY = 1e-9  # replaces a share or a budget of 0 in divisions


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Placement:
    """The target of every partition, and the bytes to move."""

    target: npt.NDArray[np.int64]  # (partitions,) index of a worker
    moved: int  # bytes that are not on their target yet
    rows: npt.NDArray[np.int64]  # (workers,) rows afterwards
    imbalance: float  # max over workers of rows / share, 1.0 is perfect
    limit: float  # allowed imbalance: 1 + tolerance, or the minimum if that is more


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Problem:
    """Partitions, their holders, and the eligible workers, numbered from 0."""

    rows: Array  # (partitions,)
    nbytes: Array  # (partitions,)
    partition: Array  # (holdings,) ascending
    holder: Array  # (holdings,) worker, most bytes first within a partition
    held: Array  # (holdings,) bytes
    start: Array  # (partitions + 1,) index of the first holding of each partition
    home: Array  # (partitions,) worker with most of its bytes; -1: none
    most: Array  # (partitions,) bytes on that worker
    share: Array  # (workers,) rows
    budget: Array  # (workers,) bytes, inf: no bound
    first: Array | None = None  # (partitions,) targets with which the search begins


def place(
    rows: npt.ArrayLike,
    held: Held | None,
    weights: npt.ArrayLike,
    *,
    nbytes: npt.ArrayLike,
    budget: npt.ArrayLike | None = None,
    tolerance: float = 0.05,
    aim: float = 1.0,
    first: npt.NDArray[np.int64] | None = None,
) -> Placement:
    """Choose a worker for every partition.

    Parameters
    ----------
    rows, nbytes : (partitions,) int
        Rows and bytes of each partition, of all collections together; 0 is allowed.
    held : three (holdings,) int, or None
        Partition, worker, and bytes of the partition on the worker. Replicas are more
        entries; entries with the same partition and worker add up. None: nothing.
    weights : (workers,) float
        Shares of rows are proportional to it. 0: the worker may hold no partition.
    budget : (workers,) float, optional
        Bytes of these partitions that each worker may hold at the end; inf: no bound.
    tolerance : float
        Rows by which a worker may exceed its share, as a fraction of the share.
    aim : float
        Fraction of the tolerance to stay within, unless the whole tolerance saves bytes
        (see ``WORTH``).
    first : (partitions,) int, optional
        Targets with which the search begins, if it can bring them within tolerance and
        budgets.

    Raises
    ------
    CapacityError
        The partitions do not fit the budgets, or no fitting placement was found.
    """
    given = [np.asarray(x) for x in (rows, nbytes, *(held or NOTHING))]
    weight = np.asarray(weights, np.float64)
    bound = np.full(weight.shape, np.inf) if budget is None else np.asarray(budget)
    problem = _problem(given, weight, bound)
    if first is not None:
        problem = replace(problem, first=(np.cumsum(weight > 0) - 1)[first])
    target, limit = _solve(problem, (1 + aim * tolerance) * EXACT)
    moved = _moved(problem, target)
    if aim < 1 and moved > WORTH * (problem.nbytes.sum() - _most_kept(problem, limit)):
        wide = _solve(problem, (1 + tolerance) * EXACT)
        if moved > WORTH * _moved(problem, wide[0]):
            target, limit = wide
    return _placement(problem, target, limit, weight)


def placed(
    rows: npt.ArrayLike,
    held: Held | None,
    weights: npt.ArrayLike,
    *,
    nbytes: npt.ArrayLike,
    target: npt.NDArray[np.int64],
) -> Placement:
    """Return the placement with given targets, as :func:`place` does.

    The weights of all targets are positive.
    """
    given = [np.asarray(x) for x in (rows, nbytes, *(held or NOTHING))]
    weight = np.asarray(weights, np.float64)
    problem = _problem(given, weight, np.full(weight.shape, np.inf))
    numbers = (np.cumsum(weight > 0) - 1)[target]
    return _placement(problem, numbers, _worst(problem, numbers), weight)


def fewest_bytes(
    rows: npt.ArrayLike,
    held: Held,
    weights: npt.ArrayLike,
    *,
    nbytes: npt.ArrayLike,
    limit: float,
) -> float:
    """Return a lower bound of the bytes that move if no worker exceeds the limit."""
    given = [np.asarray(x) for x in (rows, nbytes, *held)]
    weight = np.asarray(weights, np.float64)
    problem = _problem(given, weight, np.full(weight.shape, np.inf))
    return float(problem.nbytes.sum() - _most_kept(problem, limit))


def _placement(
    problem: _Problem, target: Array, limit: float, weight: Array
) -> Placement:
    nbytes, budget = problem.nbytes, problem.budget
    imbalance = max(1.0, _worst(problem, target))
    if imbalance > OVER:
        raise CapacityError(
            f"no placement fits {nbytes.sum():,} bytes, the largest partition "
            f"{nbytes.max():,}, into budgets of {budget.sum():,.0f} bytes in all, the "
            f"largest {budget.max():,.0f}"
        )
    workers = np.flatnonzero(weight)[target].astype(np.int64)
    return Placement(
        target=workers,
        moved=_moved(problem, target),
        rows=np.bincount(workers, problem.rows, weight.size).astype(np.int64),
        imbalance=round(imbalance, 9),
        limit=round(limit, 9),
    )


def _problem(given: list[Array], weight: Array, bound: Array) -> _Problem:
    rows, nbytes = (values.astype(np.int64) for values in given[:2])
    partition, holder, held = _holdings(given, weight)
    start = np.searchsorted(partition, np.arange(rows.size + 1))
    is_held, first = np.diff(start) > 0, start[:-1]
    budget = np.maximum(bound[weight > 0].astype(np.float64), TINY)
    return _Problem(
        rows=rows,
        nbytes=nbytes,
        partition=partition,
        holder=holder,
        held=held,
        start=start,
        home=np.where(is_held, np.append(holder, 0)[first], -1),
        most=np.where(is_held, np.append(held, 0)[first], 0),
        share=_shares(weight[weight > 0], budget, rows.sum(), nbytes.sum()),
        budget=budget,
    )


def _holdings(given: list[Array], weight: Array) -> tuple[Array, Array, Array]:
    """Return holdings in order: equal pairs added, only eligible workers."""
    nbytes, partition, worker, held = (values.astype(np.int64) for values in given[1:])
    pairs, entry = np.unique(partition * weight.size + worker, return_inverse=True)
    held = np.bincount(entry, held, pairs.size).astype(np.int64)
    partition, worker = np.divmod(pairs, weight.size)
    if (held > nbytes[partition]).any():
        raise ValueError("held: a worker holds more of a partition than its nbytes")
    useful = np.flatnonzero((weight[worker] > 0) & (held > 0))
    order = useful[np.lexsort((-held[useful], partition[useful]))]
    return partition[order], (np.cumsum(weight > 0) - 1)[worker[order]], held[order]


def _shares(weight: Array, budget: Array, rows: float, nbytes: float) -> Array:
    """Return shares of rows by weight, reduced to the budgets of workers."""
    share, below = np.zeros(weight.size), np.ones(weight.size, bool)
    # inf * 0 is no number
    most = budget * rows / nbytes if rows and nbytes else np.full(weight.size, np.inf)
    while below.any():
        fair = rows * weight / weight[below].sum()
        full = below & (fair > most)
        if not full.any():
            share[below] = fair[below]
            break
        share[full], rows, below = most[full], rows - most[full].sum(), below & ~full
    return np.maximum(share, TINY)


def _kept(problem: _Problem, target: Array) -> Array:
    """Return (partitions,) bytes of each partition that are on its target."""
    there = target[problem.partition] == problem.holder
    kept = np.zeros(target.size, np.int64)
    kept[problem.partition[there]] = problem.held[there]
    return kept


def _moved(problem: _Problem, target: Array) -> int:
    return int((problem.nbytes - _kept(problem, target)).sum())


def _loads(problem: _Problem, target: Array) -> tuple[Array, Array]:
    """Return (workers,) rows and bytes."""
    size = problem.share.size
    load = np.bincount(target, problem.rows, size)
    return load, np.bincount(target, problem.nbytes, size)


def _strain(load: Array, used: Array, share: Array, budget: Array) -> Array:
    """Return rows / share, or a larger number for a worker above its budget."""
    return np.maximum(load / share, np.where(used > budget, OVER * used / budget, 0.0))


def _worst(problem: _Problem, target: Array) -> float:
    loads = _loads(problem, target)
    return float(_strain(*loads, problem.share, problem.budget).max())


def _solve(problem: _Problem, floor: float) -> tuple[Array, float]:
    """Return the targets, and the allowed imbalance.

    The latter depends on holders only if no placement is more even than the present
    one. So a placement that was carried out needs no other one.
    """
    rows, share = problem.rows, problem.share
    largest = rows.max(initial=0) / share.max()  # some worker has this partition
    least = max(largest, _least_by_count(rows, share))
    limit = max(floor, least * EXACT)
    target = _fill(problem, limit, stay=True)
    home = even = np.where(problem.home < 0, target, problem.home)
    if _is_small(problem):
        _replace(problem, target, limit, np.arange(rows.size), np.arange(share.size))
        return target, max(limit, _worst(problem, target))
    if _worst(problem, target) > limit:
        near = max(limit, least * (1 + NEAR))
        target = _fill(problem, near, stay=True)
        limit = near if _worst(problem, target) <= near else limit
    if _worst(problem, target) > limit:
        fresh = _fill(problem, limit, stay=False)
        _improve(_bare(problem), fresh, limit)
        even = min((home, fresh), key=lambda x: _worst(problem, x))
        limit = max(limit, _worst(problem, even) * EXACT)
        target = _fill(problem, limit, stay=True)
    if problem.first is not None:
        begun = problem.first.copy()
        _improve(problem, begun, limit)
        if _worst(problem, begun) <= limit:
            return begun, limit
    _improve(problem, target, limit)
    if _worst(problem, target) > limit:
        target = even
        _improve(problem, target, limit)
    return target, limit


def _bare(problem: _Problem) -> _Problem:
    """Return the problem without holders: its search does not depend on them."""
    none, empty = np.zeros_like(problem.most), problem.held[:0]
    return replace(
        problem,
        partition=empty,
        holder=empty,
        held=empty,
        start=np.zeros_like(problem.start),
        home=none - 1,
        most=none,
    )


def _is_small(problem: _Problem) -> bool:
    """Return whether all placements can be tried."""
    numbers = (problem.rows.size + 1) * np.log(max(problem.share.size, 2))
    return bool(problem.rows.size) and bool(numbers <= np.log(ALL))


def _improve(problem: _Problem, target: Array, limit: float) -> None:
    """Fill idle workers, make rows even within the limit, and then move fewer bytes."""
    _occupy(problem, target, limit)
    if target.size <= LARGE:
        _polish(problem, target, limit)
        _occupy(problem, target, limit)


def _least_by_count(rows: Array, share: Array) -> float:
    """Return a lower bound of the imbalance: partitions are not cut.

    A worker with k partitions has at least the rows of the k smallest ones. Bisection
    finds the smallest ratio with which all partitions have a worker.
    """
    smallest = np.cumsum(np.sort(rows[rows > 0]))
    if not smallest.size:
        return 1.0

    def hold_all(ratio: float) -> bool:
        counts = np.searchsorted(smallest, ratio * share, side="right")
        return bool(counts.sum() >= smallest.size)

    low, high = 1.0, float(smallest[-1] / share.max())
    if hold_all(low):
        return low
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if hold_all(middle) else (middle, high)
    return high


def _fill(problem: _Problem, limit: float, *, stay: bool) -> Array:
    """Place the largest first; partitions stay with a holder if they fit."""
    filling = _Filling(problem, limit)
    waiting = np.lexsort((-problem.nbytes, -problem.rows)).tolist()
    if stay:
        # first on a worker with most of its bytes, then on any with some
        equal = problem.partition[problem.held == problem.most[problem.partition]]
        end = problem.start[:-1] + np.bincount(equal, minlength=len(waiting))
        waiting = filling.keep(waiting, problem, end)
        waiting = filling.keep(waiting, problem, problem.start[1:])
    filling.send(waiting)
    return np.array(filling.target, np.intp)


class _Filling:
    """The partitions placed so far, and the free room of each worker."""

    def __init__(self, problem: _Problem, limit: float) -> None:
        self.rows: list[int] = problem.rows.tolist()
        self.nbytes: list[int] = problem.nbytes.tolist()
        self.room: list[float] = (limit * problem.share).tolist()  # rows
        self.space: list[float] = problem.budget.tolist()  # bytes
        self.rate: float = sum(self.rows) / (sum(self.nbytes) or 1) or 1.0
        self.target = [-1] * len(self.rows)

    def put(self, partition: int, worker: int) -> None:
        self.target[partition] = worker
        self.room[worker] -= self.rows[partition]
        self.space[worker] -= self.nbytes[partition]

    def left(self, worker: int) -> float:
        """Return the free room in rows; bytes count as rows of mean size."""
        return min(self.room[worker], self.rate * self.space[worker])

    def keep(self, partitions: list[int], problem: _Problem, ends: Array) -> list[int]:
        """Place partitions on holders with room; return the others."""
        holder, start, end = (
            problem.holder.tolist(),
            problem.start.tolist(),
            ends.tolist(),
        )
        room, space, leaving = self.room, self.space, []
        for partition in partitions:
            rows, nbytes = self.rows[partition], self.nbytes[partition]
            holders = holder[start[partition] : end[partition]]
            fits = [w for w in holders if rows <= room[w] and nbytes <= space[w]]
            if fits:
                self.put(partition, max(fits, key=room.__getitem__))
            else:
                leaving.append(partition)
        return leaving

    def send(self, partitions: list[int]) -> None:
        """Place each on the worker with most room in rows and bytes."""
        heap = [(-self.left(worker), worker) for worker in range(len(self.room))]
        heapq.heapify(heap)
        for partition in partitions:
            full = []
            while len(heap) > 1 and self.nbytes[partition] > self.space[heap[0][1]]:
                full.append(heapq.heappop(heap))
            worker = heap[0][1]
            self.put(partition, worker)
            heapq.heapreplace(heap, (-self.left(worker), worker))
            for entry in full:
                heapq.heappush(heap, entry)


def _occupy(problem: _Problem, target: Array, limit: float) -> None:
    """Give each idle worker the cheapest partition of a worker with several."""
    real, kept = problem.rows > 0, _kept(problem, target)
    busy = np.bincount(target[real], minlength=problem.share.size)
    for worker in np.flatnonzero((busy == 0) & (problem.share > TINY)):
        space = problem.budget[worker] - problem.nbytes[target == worker].sum()
        fits = real & (busy[target] > 1) & (problem.nbytes <= space)
        fits &= problem.rows <= limit * problem.share[worker]
        if fits.any():
            price, replica = kept.copy(), problem.holder == worker
            price[problem.partition[replica]] -= problem.held[replica]
            partition = np.where(fits, price, np.inf).argmin()
            busy[target[partition]] -= 1
            busy[worker] += 1
            target[partition] = worker


def _polish(problem: _Problem, target: Array, floor: float) -> None:
    """Improve targets by a local search: place a few partitions in the best way.

    The search begins at any partition that moves. A second search begins more often at
    a partition that moves many bytes, as between hosts.
    """
    generator = np.random.default_rng(0)  # the same input gives the same output
    bound = _most_kept(problem, floor)
    tries = min(TRIES, EFFORT // max(1, problem.held.size))
    for by_bytes in (False, True):
        patience = PATIENCE
        for _ in range(tries):
            if _is_best(problem, target, floor, bound):
                return
            few = _neighbours(problem, target, floor, generator, by_bytes=by_bytes)
            if not few[0].size or not patience:
                break
            better = _replace(problem, target, floor, *few)
            patience = PATIENCE if better else patience - 1


def _most_kept(problem: _Problem, limit: float) -> float:
    """Return an upper bound of the bytes that can stay on their workers.

    Each worker keeps partitions with most bytes per row, the last one in part, until
    its share of rows is full. Rows come in whole units. It keeps no more partitions
    than would fit if these were its smallest, and no more bytes than as many of its
    largest have.
    """
    unit = int(np.gcd.reduce(problem.rows)) or 1
    room = np.floor(limit * problem.share / unit) * unit
    rows, held, holder = problem.rows[problem.partition], problem.held, problem.holder
    density = np.divide(held, rows, out=np.full(rows.size, np.inf), where=rows > 0)

    def by_worker(order: Array, amount: Array) -> tuple[Array, Array]:
        """Return holders in this order, and what each one has in entries before."""
        on, amount = holder[order], amount[order]
        before = np.append(np.cumsum(amount) - amount, 0)
        return on, before[:-1] - before[np.searchsorted(on, np.arange(room.size))][on]

    dense = np.lexsort((-density, holder))
    on, before = by_worker(dense, rows)
    fits = np.clip(room[on] - before, 0, rows[dense])
    share = np.divide(fits, rows[dense], out=np.ones(rows.size), where=rows[dense] > 0)
    in_part = np.bincount(on, share * held[dense], room.size)
    small = np.lexsort((rows, holder))
    on, before = by_worker(small, rows)
    count = np.bincount(on[before + rows[small] <= room[on]], minlength=room.size)
    large = np.lexsort((-held, rows > 0, holder))  # without rows: always kept
    on, before = by_worker(large, np.ones_like(rows))
    whole = np.bincount(on, held[large] * (before < count[on]), room.size)
    return float(np.minimum(in_part, whole).sum())


def _is_best(problem: _Problem, target: Array, floor: float, bound: float) -> bool:
    """Return whether no placement can be noticeably better."""
    least = bound - NEAR * problem.nbytes.sum()
    if _kept(problem, target).sum() < least or _worst(problem, target) > floor:
        return False
    load, _ = _loads(problem, target)
    return not ((load == 0) & (problem.share > TINY)).any()


def _neighbours(
    problem: _Problem,
    target: Array,
    floor: float,
    generator: np.random.Generator,
    *,
    by_bytes: bool,
) -> tuple[Array, Array]:
    """Choose a few partitions to place again, and workers for them."""
    load, used = _loads(problem, target)
    strain = _strain(load, used, problem.share, problem.budget)
    lost = problem.most - _kept(problem, target)
    away, full = lost > 0, strain.max() > floor
    seeds = np.flatnonzero(target == strain.argmax() if full else away)
    if not seeds.size:
        return seeds, seeds
    chance = lost[seeds] / lost[seeds].sum() if by_bytes and not full else None
    seed = generator.choice(seeds, p=chance)
    home = problem.home[seed]
    # a worker that could take the seed
    emptiest = ((load + problem.rows[seed]) / problem.share).argmin()
    # a worker that could take another partition from the home
    other = generator.choice([*np.flatnonzero(target == home), seed])
    holders = problem.holder[problem.start[other] : problem.start[other + 1]]
    third = generator.choice([*holders, generator.integers(strain.size)])
    on = {home, target[seed], emptiest, third} - {-1}
    near = np.isin(target, [*on]) | (away & np.isin(problem.home, [*on]))
    near[seed] = False
    others = np.flatnonzero(near)
    # prefer partitions that moved, or that have a replica elsewhere
    loose = (away | (np.diff(problem.start) > 1))[others]
    order = (generator.random(others.size) - 0.3 * loose).argsort()
    return _few(target, [seed, *others[order]], on)


def _few(target: Array, partitions: list[Any], on: set[Any]) -> tuple[Array, Array]:
    """Return the first partitions, and workers, with at most WAYS placements."""
    count = 1
    while count < len(partitions):
        more = on | {target[partitions[count]]}
        if max(len(more), 2) ** (count + 1) > WAYS:
            break
        on, count = more, count + 1
    return np.array(partitions[:count]), np.array(sorted(on))


def _replace(
    problem: _Problem, target: Array, floor: float, partitions: Array, on: Array
) -> bool:
    """Place `partitions` on workers `on` in the best way; return if it improved."""
    load, used, kept = _ways(problem, target, partitions, on)
    share, budget = problem.share[on, None], problem.budget[on, None]
    full = _strain(load, used, share, budget).max(0)
    strain = np.maximum(full, floor)
    idle = ((load == 0) & (share > TINY)).sum(0)
    shape = (on.size,) * partitions.size
    now = np.ravel_multi_index(tuple(np.searchsorted(on, target[partitions])), shape)
    best = np.flatnonzero(strain <= strain.min() * EXACT)
    best = best[idle[best] == idle[best].min()]
    best = best[kept[best] == kept[best].max()]
    way = best[full[best].argmin()]
    # an equally good placement is taken too: it may lead to better ones
    target[partitions] = on[np.array(np.unravel_index(way, shape))]
    new, old = ((strain[at], idle[at], -kept[at]) for at in (way, now))
    return bool(new < old)


def _ways(
    problem: _Problem, target: Array, partitions: Array, on: Array
) -> tuple[Array, Array, Array]:
    """Return (on, ways) rows and bytes, and (ways,) bytes kept, for each placement."""
    others = np.delete(np.arange(target.size), partitions)
    amounts = np.stack((problem.rows, problem.nbytes))
    sums = [np.bincount(target[others], n[others], problem.share.size) for n in amounts]
    total: Array = np.array(sums)[:, on, None]  # (rows or bytes, on, ways)
    kept, unit = np.zeros(1), np.eye(on.size)[:, None]
    for partition in partitions:  # multiplies the placements by the number of workers
        span = slice(problem.start[partition], problem.start[partition + 1])
        added = amounts[:, partition, None, None, None] * unit
        total = (total[..., None] + added).reshape(2, on.size, -1)
        kept = kept[:, None] + problem.held[span] @ (problem.holder[span, None] == on)
        kept = kept.ravel()
    return total[0], total[1], kept
