"""Which piece goes on which worker: rows balanced, fewest bytes moved.

A piece is one row range of all row-aligned collections, so X and y stay paired
whatever is decided here. Budgets come before row balance, row balance before bytes.

Pieces stay where most of their bytes lie, biggest first, while that worker's share
lasts; the others go where most room is. Then a few pieces at a time, those that moved
or weigh on the fullest worker, are placed anew by branch and bound. The best placement
is NP-hard to find: with few pieces this is it, with many it is near the lower bound.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from clustertune.errors import CapacityError

if TYPE_CHECKING:
    import numpy.typing as npt

    Array: TypeAlias = npt.NDArray[Any]
    Bound: TypeAlias = tuple[float, int, int]  # strain, idle workers, bytes moved

SMALL = 12  # pieces: so few are placed by one search over all of them
LARGE = 20_000  # pieces: above, the first placement is near the bound, and time is not
TOGETHER = 9  # pieces placed anew at a time
PATIENCE = 200  # fruitless tries in a row until a placement counts as good
ALL_NODES, TRY_NODES, NODES = 20_000, 300, 10_000  # of search trees, 10 us each
OVER = 1e6  # strain of a worker filled to its budget; above: it does not fit
EXACT = 1 + 1e-12  # what rounding may add to a ratio
TINY = 1e-300  # stands for a share or a budget of 0, to divide by


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Placement:
    """Where every piece should be, and what it takes to get there."""

    target: npt.NDArray[np.intp]  # (pieces,) index of the worker it should be on
    moved: int  # bytes that must travel: of each piece those not yet on its target
    rows: npt.NDArray[np.int64]  # (workers,) rows afterwards
    imbalance: float  # max over workers of rows / share, 1.0 is perfect
    limit: float  # imbalance allowed: 1 + tolerance, or the least these pieces allow


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Problem:
    """The pieces, who holds them, and the eligible workers, numbered from 0."""

    rows: Array  # (pieces,)
    nbytes: Array  # (pieces,)
    piece: Array  # (holdings,) ascending
    holder: Array  # (holdings,) worker, most bytes first within a piece
    held: Array  # (holdings,) bytes
    start: Array  # (pieces + 1,) where the holdings of each piece begin
    home: Array  # (pieces,) worker with most of its bytes; -1: none has any
    most: Array  # (pieces,) bytes there
    share: Array  # (workers,) rows
    budget: Array  # (workers,) bytes, inf: no bound


def place(
    rows: npt.ArrayLike,
    held: tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike],
    weights: npt.ArrayLike,
    *,
    nbytes: npt.ArrayLike,
    budget: npt.ArrayLike | None = None,
    tolerance: float = 0.05,
) -> Placement:
    """Choose a worker for every piece.

    Parameters
    ----------
    rows, nbytes : (pieces,) int
        Rows and bytes of each piece, all its collections together; may be 0.
    held : three (holdings,) int
        Piece, worker, bytes of that piece on that worker. Replicas are several
        entries; entries with the same piece and worker add up.
    weights : (workers,) float
        A worker's share of the rows is proportional to it. 0: nothing may stay there.
    budget : (workers,) float, optional
        Bytes of these pieces that each worker may hold in the end; inf: no bound.
    tolerance : float
        How far above its share a worker may be, as a fraction of the share.

    Raises
    ------
    CapacityError
        The pieces do not fit the budgets, or no way to fit them was found.
    ValueError
        The arrays do not describe pieces on workers, or no worker is eligible.
    """
    given = [np.asarray(values) for values in (rows, nbytes, *held)]
    weight = np.asarray(weights, np.float64)
    room = np.full(weight.shape, np.inf) if budget is None else np.asarray(budget)
    _check(given, weight, room, tolerance)
    problem = _problem(given, weight, room.astype(np.float64))
    target, limit = _solve(problem, (1 + tolerance) * EXACT)
    strain = float(_strain(problem, target).max())
    if strain > OVER:
        raise CapacityError(
            f"No way was found to fit {target.size} pieces, {sum(given[1]):,} bytes, "
            f"the largest {max(given[1]):,}, into the budgets of {weight.size} workers: "
            f"{problem.budget.sum():,.0f} bytes, the largest {problem.budget.max():,.0f}"
        )
    return Placement(
        target=np.flatnonzero(weight)[target],
        moved=int((problem.nbytes - _kept(problem, target)).sum()),
        rows=np.bincount(np.flatnonzero(weight)[target], problem.rows, weight.size),
        imbalance=round(max(1.0, strain), 9),
        limit=round(limit, 9),
    )


def _check(given: list[Array], weight: Array, budget: Array, tolerance: float) -> None:
    rows, nbytes, piece, worker, held = given
    for name, array in zip(("rows", "nbytes", *["held"] * 3), given, strict=True):
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise ValueError(f"{name} must be 1-D integers, not {array.dtype}")
        if (array < 0).any():
            raise ValueError(f"{name} must not be negative")
    if rows.size != nbytes.size or not piece.size == worker.size == held.size:
        raise ValueError(f"lengths differ: {[array.size for array in given]}")
    if not (np.isfinite(weight).all() and (weight >= 0).all() and weight.any()):
        raise ValueError("weights must be finite, none below 0 and one above")
    if budget.shape != weight.shape or not (budget >= 0).all() or not tolerance >= 0:
        raise ValueError("budget (one a worker) and tolerance must not be negative")
    if (piece >= rows.size).any() or (worker >= weight.size).any():
        raise ValueError(f"held goes beyond {rows.size} pieces, {weight.size} workers")


def _problem(given: list[Array], weight: Array, budget: Array) -> _Problem:
    rows, nbytes, piece, worker, held = (array.astype(np.int64) for array in given)
    pairs, entry = np.unique(piece * weight.size + worker, return_inverse=True)
    held = np.bincount(entry, held, pairs.size).astype(np.int64)
    piece, worker = np.divmod(pairs, weight.size)
    if (held > nbytes[piece]).any():
        raise ValueError("held: a worker has more bytes of a piece than the piece")
    useful = np.flatnonzero((weight[worker] > 0) & (held > 0))
    order = useful[np.lexsort((-held[useful], piece[useful]))]
    piece, holder, held = (
        piece[order],
        (np.cumsum(weight > 0) - 1)[worker[order]],
        held[order],
    )
    start = np.searchsorted(piece, np.arange(rows.size + 1))
    first, any_ = start[:-1], np.diff(start) > 0
    home, most = np.full(rows.size, -1), np.zeros(rows.size, np.int64)
    home[any_], most[any_] = holder[first[any_]], held[first[any_]]
    eligible, total, volume = weight > 0, float(rows.sum()), nbytes.sum()
    cap = budget * total / volume if volume else np.full(weight.size, np.inf)
    return _Problem(
        rows=rows,
        nbytes=nbytes,
        piece=piece,
        holder=holder,
        held=held,
        start=start,
        home=home,
        most=most,
        share=np.maximum(_shares(weight[eligible], cap[eligible], total), TINY),
        budget=np.maximum(budget[eligible], TINY),
    )


def _shares(weight: Array, most: Array, left: float) -> Array:
    """Rows in proportion to `weight`; what is above `most` goes to the others."""
    share, below = np.zeros(weight.size), np.ones(weight.size, bool)
    while below.any():
        fair = left * weight / weight[below].sum()
        full = below & (fair >= most)
        if not full.any():
            share[below] = fair[below]
            break
        share[full], left, below = most[full], left - most[full].sum(), below & ~full
    return share


def _kept(problem: _Problem, target: Array) -> Array:
    """(pieces,) bytes of each piece that lie on its target already."""
    there = target[problem.piece] == problem.holder
    kept = np.zeros(target.size, np.int64)
    kept[problem.piece[there]] = problem.held[there]
    return kept


def _strain(problem: _Problem, target: Array) -> Array:
    """(workers,) rows / share, and what no such ratio reaches if above the budget."""
    load = np.bincount(target, problem.rows, problem.share.size)
    used = np.bincount(target, problem.nbytes, problem.share.size)
    over = np.where(used > problem.budget, OVER * used / problem.budget, 0.0)
    return np.maximum(over, load / problem.share)


def _solve(problem: _Problem, floor: float) -> tuple[Array, float]:
    """Return the targets, and the imbalance that they were allowed."""
    floor = max(floor, problem.rows.max(initial=0) / problem.share.max() * EXACT)
    target = _occupy(problem, _first(problem, floor), floor)
    if target.size <= SMALL:
        pieces = np.lexsort((-problem.nbytes, -problem.rows))
        search = _Search(problem, target, floor, pieces, np.arange(problem.share.size))
        target[pieces] = search.run(ALL_NODES)
        if search.nodes > 0:  # nothing is left to try
            return target, max(floor, float(_strain(problem, target).max()))
    if target.size <= LARGE:
        target = _polish(problem, target, floor)
    limit = max(floor, float(_strain(problem, target).max()) * EXACT)
    if floor < limit and target.size <= LARGE:
        target = _polish(problem, target, limit)
    return target, limit


def _first(problem: _Problem, limit: float) -> Array:
    """Return the best balanced of: stay where room is; all anew; all stay."""
    stay = _fill(problem, limit, stay=True)
    if _strain(problem, stay).max() <= limit:
        return stay
    home = np.where(problem.home < 0, stay, problem.home)
    every = (stay, home, _fill(problem, limit, stay=False))
    return min(every, key=lambda target: float(_strain(problem, target).max()))


def _fill(problem: _Problem, limit: float, *, stay: bool) -> Array:
    """Biggest pieces first: those at home stay if they fit, the rest go where room is."""
    rows, nbytes = problem.rows.tolist(), problem.nbytes.tolist()
    room, space = (limit * problem.share).tolist(), problem.budget.tolist()
    waiting = np.lexsort((-problem.nbytes, -problem.rows)).tolist()
    target = [-1] * len(rows)
    start, holder = problem.start.tolist(), problem.holder.tolist()
    # First only the workers with most of a piece, then any that has some of it.
    best = problem.held == problem.held[problem.start[problem.piece]]
    ends = problem.start[:-1] + np.bincount(problem.piece, best, len(rows)).astype(int)
    for end in (ends.tolist(), start[1:]) if stay else ():
        leaving = []
        for piece in waiting:
            count, size = rows[piece], nbytes[piece]
            near = holder[start[piece] : end[piece]]
            fits = [w for w in near if count <= room[w] and size <= space[w]]
            if not fits:
                leaving.append(piece)
                continue
            worker = max(fits, key=room.__getitem__) if len(fits) > 1 else fits[0]
            target[piece] = worker
            room[worker] -= count
            space[worker] -= size
        waiting = leaving
    rate = sum(rows) / (sum(nbytes) or 1)
    heap = [(-min(room[w], space[w] * rate), w) for w in range(len(room))]
    heapq.heapify(heap)
    for piece in waiting:
        full = []
        while len(heap) > 1 and nbytes[piece] > space[heap[0][1]]:
            full.append(heapq.heappop(heap))
        target[piece] = worker = heap[0][1]
        room[worker] -= rows[piece]
        space[worker] -= nbytes[piece]
        heapq.heapreplace(heap, (-min(room[worker], space[worker] * rate), worker))
        for entry in full:
            heapq.heappush(heap, entry)
    return np.array(target, np.intp)


def _occupy(problem: _Problem, target: Array, limit: float) -> Array:
    """Give idle workers a piece each, the cheapest of those that have several."""
    real = problem.rows > 0
    busy = np.bincount(target[real], minlength=problem.share.size)
    kept = _kept(problem, target)
    for worker in np.flatnonzero((busy == 0) & (problem.share > TINY)):
        room = problem.budget[worker] - problem.nbytes[target == worker].sum()
        fits = real & (busy[target] > 1) & (problem.nbytes <= room)
        fits &= problem.rows <= limit * problem.share[worker]
        if fits.any():
            piece = np.where(fits, kept, np.inf).argmin()
            busy[target[piece]] -= 1
            busy[worker] += 1
            target[piece] = worker
    return target


class _Search:
    """Branch and bound: some pieces placed anew on some workers, the others stay."""

    def __init__(
        self, problem: _Problem, target: Array, floor: float, pieces: Array, on: Array
    ) -> None:
        kept = np.zeros((pieces.size, problem.share.size), np.int64)
        for row, piece in zip(kept, pieces, strict=True):
            span = slice(problem.start[piece], problem.start[piece + 1])
            row[problem.holder[span]] = problem.held[span]
        cost = (problem.nbytes[pieces, None] - kept)[:, on]
        share, budget = problem.share[on], problem.budget[on]
        rows, nbytes = problem.rows[pieces], problem.nbytes[pieces]
        size, now = problem.share.size, np.searchsorted(on, target[pieces])
        load = np.bincount(target, problem.rows, size)[on]
        used = np.bincount(target, problem.nbytes, size)[on]
        moved = int(cost[np.arange(pieces.size), now].sum())
        strain = max(floor, _strain(problem, target)[on].max())
        self.best: Bound = (strain, int(((load == 0) & (share > TINY)).sum()), moved)
        self.found = now.tolist()
        self.load = (load - np.bincount(now, rows, on.size)).tolist()
        self.used = (used - np.bincount(now, nbytes, on.size)).tolist()
        self.cost, self.rows, self.nbytes = (
            cost.tolist(),
            rows.tolist(),
            nbytes.tolist(),
        )
        self.share, self.budget, self.floor = share.tolist(), budget.tolist(), floor
        # What the pieces still to come cost at least, and how many idle workers they fill.
        self.rest = [*np.cumsum(cost.min(1)[::-1])[::-1].tolist(), 0]
        self.fill = [*np.cumsum((rows > 0)[::-1])[::-1].tolist(), 0]
        # Two workers that nothing tells apart need not both be tried.
        looks = [tuple(look) for look in np.vstack([cost, share, budget]).T.tolist()]
        self.twin = [looks.index(look) for look in looks]
        self.chosen = [0] * pieces.size
        self.on = on

    def run(self, nodes: int) -> Array:
        self.nodes = nodes
        idle = sum(
            not load and share > TINY
            for load, share in zip(self.load, self.share, strict=True)
        )
        self.descend(0, (self.floor, idle, 0))
        return self.on[self.found]

    def descend(self, depth: int, so_far: Bound) -> None:
        self.nodes -= 1
        if depth == len(self.rows):
            self.best, self.found = so_far, self.chosen.copy()
            return
        rows, nbytes = self.rows[depth], self.nbytes[depth]
        for bound, worker in self.choices(depth, so_far):
            if bound >= self.best or self.nodes <= 0:
                return
            strain, _, moved = bound
            idle = so_far[1] - (rows > 0 == self.load[worker])
            self.load[worker] += rows
            self.used[worker] += nbytes
            self.chosen[depth] = worker
            self.descend(depth + 1, (strain, idle, moved - self.rest[depth + 1]))
            self.load[worker] -= rows
            self.used[worker] -= nbytes

    def choices(self, depth: int, so_far: Bound) -> list[tuple[Bound, int]]:
        """Workers for the piece at `depth`, most promising first, with what they bound."""
        strain, idle, moved = so_far
        rows, nbytes = self.rows[depth], self.nbytes[depth]
        rest, fill = self.rest[depth + 1], self.fill[depth + 1]
        found, seen = [], set()
        for worker, cost in enumerate(self.cost[depth]):
            load, used = self.load[worker] + rows, self.used[worker] + nbytes
            over = used > self.budget[worker]
            ratio = (
                OVER * used / self.budget[worker] if over else load / self.share[worker]
            )
            gain = rows > 0 and load == rows
            bound = (
                max(strain, ratio),
                max(0, idle - gain - fill),
                moved + cost + rest,
            )
            look = (self.twin[worker], load, used)
            if bound < self.best and look not in seen:
                seen.add(look)
                found.append((bound, worker))
        return sorted(found)


def _polish(problem: _Problem, target: Array, floor: float) -> Array:
    """Place a few pieces anew, again and again, and keep what is better."""
    generator = np.random.default_rng(0)  # same input, same output
    nodes, tries = NODES, PATIENCE
    target = target.copy()
    while nodes > 0 and tries > 0:
        pieces, workers = _neighbours(problem, target, floor, generator)
        if not pieces.size:
            break
        search = _Search(problem, target, floor, pieces, workers)
        before = search.best
        target[pieces] = search.run(TRY_NODES)
        tries = PATIENCE if search.best < before else tries - 1
        nodes -= TRY_NODES - search.nodes
    return target


def _neighbours(
    problem: _Problem, target: Array, floor: float, generator: np.random.Generator
) -> tuple[Array, Array]:
    """Pick pieces worth placing anew together, biggest first, and workers for them."""
    strain = _strain(problem, target)
    away = _kept(problem, target) < problem.most
    fullest = target == strain.argmax()
    seeds = np.flatnonzero(fullest if strain.max() > floor else away)
    if not seeds.size:
        return seeds, seeds
    seed = generator.choice(seeds)
    home = problem.home[seed]
    # Who could take the seed, and who could take something from the seed's home.
    load = np.bincount(target, problem.rows, strain.size) + problem.rows[seed]
    there = np.flatnonzero(target == home)
    other = generator.choice(there) if there.size else seed
    holders = problem.holder[problem.start[other] : problem.start[other + 1]]
    third = generator.choice([*holders, generator.integers(strain.size)])
    chosen = {home, target[seed], (load / problem.share).argmin(), third} - {-1}
    near = np.isin(target, [*chosen]) | (away & np.isin(problem.home, [*chosen]))
    near[seed] = False
    others = np.flatnonzero(near)
    urgency = generator.random(others.size) + 0.3 * away[others]
    pieces = np.append(others[np.argsort(-urgency)[: TOGETHER - 1]], seed)
    pieces = pieces[np.lexsort((-problem.nbytes[pieces], -problem.rows[pieces]))]
    return pieces, np.union1d([*chosen], target[pieces])
