"""Which classes of labels every worker holds, and how each can have all (pure).

What is known of classes comes from :func:`clustertune.remote.worker.content.classes`: how many
rows of each are in every piece, and where some of them are. Those rows are *witnesses*:
a worker that has one of a class has that class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from clustertune.core.model import Bools, Float64s, Int64s, Layout, View
from clustertune.planner import layouts

Float32s = npt.NDArray[np.float32]

NEAR = 32  # pieces, and workers, among which an exchange is looked for
LESS = 1 - 1e-9  # what a ratio must come down to, to be less
TINY = 1e-9  # instead of a share of 0, to divide by


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Classes:
    """The classes of the labels of a layout."""

    label: str
    names: tuple[Any, ...]
    counts: Int64s  # (pieces, classes) rows
    witnesses: tuple[Int64s, ...]  # by class, rows of some of its rows, ascending

    @property
    def totals(self) -> Int64s:
        """Rows of each class."""
        total: Int64s = self.counts.sum(axis=0)
        return total


def of(layout: Layout) -> Classes | None:
    """The classes of a layout; None: these are no classes, or were not looked at."""
    member = next((m for m in layout.members if m.label == "y"), None)
    if member is None or member.contents is None or member.rows is None:
        return None
    pieces = member.contents.pieces
    if any(p.get("classes") is None for p in pieces):
        return None
    names = tuple(dict.fromkeys(c for p in pieces for c, _ in p["classes"]))
    number = {name: i for i, name in enumerate(names)}
    counts = np.zeros((len(pieces), len(names)), dtype=np.int64)
    found: list[list[Int64s]] = [[] for _ in names]
    starts = (np.cumsum(member.rows) - member.rows).tolist()
    for i, (piece, start) in enumerate(zip(pieces, starts, strict=True)):
        for name, count in piece["classes"]:
            counts[i, number[name]] = count
        for name, rows in piece.get("positions", {}).items():
            found[number[name]].append(np.asarray(rows, dtype=np.int64) + start)
    none = np.zeros(0, dtype=np.int64)
    witnesses = tuple(np.concatenate([none, *rows]) for rows in found)
    return Classes(label=member.label, names=names, counts=counts, witnesses=witnesses)


def needed(layout: Layout, view: View) -> Classes | None:
    """Classes that every worker is to have; None: none, or they have too few rows."""
    if view.goal.workload.needs_all_classes is False or layout is not view.layouts[0]:
        return None
    classes = of(layout)
    if classes is None or not classes.names:
        return None
    return classes if classes.totals.min() >= len(view.eligible_workers) else None


def missing(present: Bools, home: Int64s, eligible: Bools) -> Bools:
    """(workers, classes): which class an eligible worker has no row of."""
    held = np.zeros((len(eligible), present.shape[1]), dtype=bool)
    np.logical_or.at(held, home[home >= 0], present[home >= 0])
    return ~held & eligible[:, None]


def present_in(classes: Classes, rows: Int64s) -> Bools:
    """(pieces, classes): which classes pieces of these rows surely have."""
    ends = np.cumsum(rows)
    found = np.zeros((len(rows), len(classes.names)), dtype=bool)
    for number, witnesses in enumerate(classes.witnesses):
        found[np.searchsorted(ends, witnesses, side="right"), number] = True
    return found


def finer(classes: Classes, rows: Int64s, n_workers: int, *, alone: bool) -> Int64s:
    """Rows of pieces cut so that every class is in as many pieces as there are workers.

    Parameters
    ----------
    classes
        Each with as many rows as workers, or more.
    rows : (pieces,)
        Of the pieces that are cut further, where that is needed.
    n_workers
        How many workers need each class.
    alone
        Give the rows that stand for a class pieces of their own. Then there is always
        a way to share them out.
    """
    edges = set(np.cumsum(rows).tolist())
    enough = present_in(classes, rows).sum(axis=0) >= n_workers
    for known, is_enough in zip(classes.witnesses, enough.tolist(), strict=True):
        if is_enough and not alone:
            continue
        take = np.linspace(0, len(known) - 1, n_workers).astype(np.int64)
        chosen = known[take]
        if alone:
            edges |= set(chosen.tolist()) | set((chosen + 1).tolist())
        else:
            edges |= set(((chosen[:-1] + chosen[1:] + 1) // 2).tolist())
    total = int(rows.sum())
    inner = np.array(sorted(e for e in edges if 0 < e < total), dtype=np.int64)
    return np.diff(np.concatenate(([0], inner, [total]))).astype(np.int64)


def shared(
    layout: Layout,
    classes: Classes,
    view: View,
    *,
    start: Int64s | None = None,
    budget: Float64s | None = None,
) -> Int64s | None:
    """Targets with which whole pieces cover all classes; None: they have to be cut.

    By default from where they are; those on workers that may not train go to the first.
    """
    claim = layouts.weights(view)
    if start is None:
        home = layouts.homes(layout, len(claim))
        stays = (home >= 0) & (claim[home] > 0)
        start = np.where(stays, home, (claim > 0).argmax())
    return spread(
        start,
        classes.counts > 0,
        layout.rows,
        claim,
        nbytes=layouts.piece_bytes(layout),
        budget=budget,
        tolerance=view.goal.tolerance,
    )


def spread(
    target: Int64s,
    present: Bools,
    rows: Int64s,
    claim: Float64s,
    *,
    nbytes: Int64s | None = None,
    budget: Float64s | None = None,
    tolerance: float = 0.0,
) -> Int64s | None:
    """Targets of pieces with which every worker has every class; None: none found.

    A piece is exchanged for another one, or goes alone, until nothing is missing: at
    each step what keeps to the budgets, of that what leaves rows even, of that what
    brings most, of that what moves least rows. Then rows are evened out, as far as no
    class goes missing.

    Parameters
    ----------
    target : (pieces,)
        Workers to begin with, all of which have a claim.
    present : (pieces, classes)
        Which piece has rows of which class.
    rows : (pieces,)
        Rows of each.
    claim : (workers,)
        Rows are even in proportion to it. Who has none needs no class.
    nbytes : (pieces,), optional
        Bytes of each.
    budget : (workers,), optional
        Bytes that each has room for; exceeded only where nothing else is found.
    tolerance
        By how much a worker may exceed its share of rows, as a fraction.
    """
    sharing = _Sharing(target, present, rows, claim, nbytes, budget, 1 + tolerance)
    # the rarest first: it can come from the fewest pieces
    rare = np.argsort(present.sum(axis=0), kind="stable")
    while (lacking := sharing.lacking()[:, rare]).any():
        first = int(lacking.any(axis=0).argmax())
        worker = int(lacking[:, first].argmax())
        if not sharing.bring(int(rare[first]), worker):
            return None
    while sharing.relieve():
        pass
    return sharing.target


class _Sharing:
    """Which worker has which pieces, and so which classes, rows and bytes."""

    def __init__(
        self,
        target: Int64s,
        present: Bools,
        rows: Int64s,
        claim: Float64s,
        nbytes: Int64s | None,
        budget: Float64s | None,
        limit: float,
    ):
        n_workers = len(claim)
        self.target = target.copy()
        self.present = present
        self.rows = rows
        self.nbytes = np.zeros_like(rows) if nbytes is None else nbytes
        self.budget = np.full(n_workers, np.inf) if budget is None else budget
        self.limit = limit
        self.needs = claim > 0
        self.share = np.maximum(rows.sum() * claim / claim.sum(), TINY)
        self.held = np.zeros((n_workers, present.shape[1]), dtype=np.int64)  # pieces
        np.add.at(self.held, target, present)
        self.load = np.bincount(target, rows, n_workers)
        self.used = np.bincount(target, self.nbytes, n_workers)

    def lacking(self) -> Bools:
        """(workers, classes): what is missing."""
        lacking: Bools = (self.held == 0) & self.needs[:, None]
        return lacking

    def bring(self, number: int, worker: int) -> bool:
        """Bring a class to a worker; whether there is a way with which less is missing.

        Of a class in as many pieces with no other class as there are workers, one is
        always to be had: some worker has two of them.
        """
        others = np.flatnonzero(self.present[:, number] & (self.target != worker))
        way = _Ways(self, worker, others)
        best = way.best(np.where(way.missing < 0, 0, np.inf))
        if best is not None:
            self._exchange(worker, *best)
        return best is not None

    def relieve(self) -> bool:
        """Make the fullest worker less full; whether there is a way to do so."""
        ratio = np.where(self.needs, self.load / self.share, np.inf)
        fullest = int(np.where(self.needs, ratio, 0.0).argmax())
        if ratio[fullest] <= self.limit:
            return False
        for worker in np.argsort(ratio, kind="stable")[:NEAR].tolist():
            if worker == fullest or not self.needs[worker]:
                break
            way = _Ways(self, worker, np.flatnonzero(self.target == fullest))
            worse = (way.missing > 0) | (way.over > 0)
            worse |= way.strain > ratio[fullest] * LESS
            best = way.best(np.where(worse, np.inf, way.strain))
            if best is not None:
                self._exchange(worker, *best)
                return True
        return False

    def _exchange(self, worker: int, give: int, take: int) -> None:
        """One piece comes to the worker, and one goes back to where that was, or -1."""
        source = int(self.target[give])
        self._move(give, worker)
        if take >= 0:
            self._move(take, source)

    def _move(self, piece: int, worker: int) -> None:
        source = self.target[piece]
        for sums, amounts in (
            (self.held, self.present),
            (self.load, self.rows),
            (self.used, self.nbytes),
        ):
            sums[source] -= amounts[piece]
            sums[worker] += amounts[piece]
        self.target[piece] = worker


class _Ways:
    """Ways to bring one of some pieces to a worker, in exchange for one of its own.

    Each is told by an entry for a piece that comes, and one that goes back; the last
    stands for none. ``missing`` is by how much more (worker, class) are missing then,
    ``over`` by how many bytes budgets are exceeded further, ``strain`` the rows of the
    fuller of both over its share.
    """

    def __init__(self, now: _Sharing, worker: int, others: Int64s):
        self._now, self._worker = now, worker
        self.give = self._few(others)
        self.take = self._few(np.flatnonzero(now.target == worker))
        self._source = now.target[self.give]
        self.missing = self._missing()
        rows, amount = self._shift(now.rows), self._shift(now.nbytes)
        self._rows = np.abs(rows)
        pair = (worker, rows, amount), (self._source[:, None], -rows, -amount)
        self.strain = np.maximum(
            *((now.load[w] + n) / now.share[w] for w, n, _ in pair)
        )
        self.over = sum(
            np.maximum(0, now.used[w] + n - now.budget[w])
            - np.maximum(0, now.used[w] - now.budget[w])
            for w, _, n in pair
        )

    def _few(self, pieces: Int64s) -> Int64s:
        """Those of which least is missed where they are."""
        now = self._now
        missed = (now.held[now.target[pieces]] == 1) & now.present[pieces]
        order = np.argsort(missed.sum(axis=1), kind="stable")
        return pieces[order[:NEAR]]

    def _shift(self, amounts: Int64s) -> Int64s:
        """(give, take) what comes to the worker, less what goes back."""
        back = np.append(amounts[self.take], 0)
        shift: Int64s = amounts[self.give][:, None] - back
        return shift

    def _missing(self) -> Float32s:
        now, own = self._now, self._now.held[self._worker]
        there = now.held[self._source]
        comes = now.present[self.give]
        goes = np.vstack([now.present[self.take], np.zeros_like(own, dtype=bool)])
        less = _common(comes, own[None] == 0) + _common(there == 0, goes)
        more = _common(~comes, (own == 1) & goes) + _common(comes & (there == 1), ~goes)
        return more - less

    def best(self, cost: Float64s) -> tuple[int, int] | None:
        """The way of least cost, and of these as :func:`spread` says; None: none."""
        ways = np.flatnonzero(np.isfinite(cost))
        if not len(ways):
            return None
        strain, over = (
            np.maximum(self.strain, self._now.limit),
            np.maximum(self.over, 0),
        )
        for price in (cost, over, strain, self.missing, self._rows):
            own = price.flat[ways]
            ways = ways[own == own.min()]
        give, take = divmod(int(ways[0]), len(self.take) + 1)
        back = int(self.take[take]) if take < len(self.take) else -1
        return int(self.give[give]), back


def _common(a: Bools, b: Bools) -> Float32s:
    """(a, b) how many classes are in both."""
    return a.astype(np.float32) @ b.astype(np.float32).T
