"""Distribute partitions so that every worker has every class of labels (pure).

``remote.worker.content.classes`` returns the rows of each class in every partition, and
the positions of some of them. These rows are *witnesses*: a worker with a witness of a
class has that class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from clustertune.core.model import Bools, Float64s, Int64s, Layout, View
from clustertune.planner import layouts

Float32s = npt.NDArray[np.float32]

NEAR = 32  # partitions, and workers, that are tried for an exchange
LESS = 1 - 1e-9  # rounding: below this factor a ratio counts as smaller
TINY = 1e-9  # replaces a share of 0 in divisions


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Classes:
    """The classes of the labels of a layout."""

    label: str
    names: tuple[Any, ...]
    counts: Int64s  # (partitions, classes) rows
    witnesses: tuple[Int64s, ...]  # by class, positions of some rows, ascending

    @property
    def totals(self) -> Int64s:
        """Rows of each class."""
        total: Int64s = self.counts.sum(axis=0)
        return total


def of(layout: Layout) -> Classes | None:
    """Return the classes of a layout; None: not classes, or not read."""
    collection = next((m for m in layout.collections if m.label == "y"), None)
    if collection is None or collection.contents is None or collection.rows is None:
        return None
    partitions = collection.contents.partitions
    if any(p.get("classes") is None for p in partitions):
        return None
    names = tuple(dict.fromkeys(c for p in partitions for c, _ in p["classes"]))
    number = {name: i for i, name in enumerate(names)}
    counts = np.zeros((len(partitions), len(names)), dtype=np.int64)
    found: list[list[Int64s]] = [[] for _ in names]
    starts = (np.cumsum(collection.rows) - collection.rows).tolist()
    for i, (partition, start) in enumerate(zip(partitions, starts, strict=True)):
        for name, count in partition["classes"]:
            counts[i, number[name]] = count
        for name, rows in partition.get("positions", {}).items():
            found[number[name]].append(np.asarray(rows, dtype=np.int64) + start)
    none = np.zeros(0, dtype=np.int64)
    witnesses = tuple(np.concatenate([none, *rows]) for rows in found)
    return Classes(
        label=collection.label, names=names, counts=counts, witnesses=witnesses
    )


def needed(layout: Layout, view: View) -> Classes | None:
    """Return the classes that every worker needs; None: none, or too few rows."""
    if view.goal.workload.needs_all_classes is False or layout is not view.layouts[0]:
        return None
    classes = of(layout)
    if classes is None or not classes.names:
        return None
    return classes if classes.totals.min() >= len(view.eligible_workers) else None


def missing(present: Bools, home: Int64s, eligible: Bools) -> Bools:
    """Return (workers, classes): the classes that eligible workers lack."""
    held = np.zeros((len(eligible), present.shape[1]), dtype=bool)
    np.logical_or.at(held, home[home >= 0], present[home >= 0])
    return ~held & eligible[:, None]


def present_in(classes: Classes, rows: Int64s) -> Bools:
    """Return (partitions, classes): the classes that a witness proves."""
    ends = np.cumsum(rows)
    found = np.zeros((len(rows), len(classes.names)), dtype=bool)
    for number, witnesses in enumerate(classes.witnesses):
        found[np.searchsorted(ends, witnesses, side="right"), number] = True
    return found


def finer(classes: Classes, rows: Int64s, n_workers: int, *, alone: bool) -> Int64s:
    """Cut partitions of these rows until every class is in at least ``n_workers``.

    Each class must have that many rows. ``alone`` puts each witness into a partition
    without other rows; then the partitions can always be distributed.
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
    return np.diff(inner, prepend=0, append=total).astype(np.int64)


def shared(
    layout: Layout,
    classes: Classes,
    view: View,
    *,
    start: Int64s | None = None,
    budget: Float64s | None = None,
) -> Int64s | None:
    """Return targets with which whole partitions cover all classes; None: impossible.

    The search starts from ``start``. By default, that is the home of each partition, or
    the first worker that trains if the home does not train.
    """
    claim = layouts.weights(view)
    if start is None:
        home = layouts.home_workers(layout, len(claim))
        stays = (home >= 0) & (claim[home] > 0)
        start = np.where(stays, home, (claim > 0).argmax())
    return spread(
        start,
        classes.counts > 0,
        layout.rows,
        claim,
        nbytes=layouts.partition_bytes(layout),
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
    """Return targets with which every worker has every class; None: none found.

    Each step exchanges two partitions, or moves one. It prefers, in this order, a step
    that keeps to the budgets, leaves rows even, adds most classes, and moves fewest
    rows. At the end, rows are made more even without losing a class.

    Parameters
    ----------
    target, rows, nbytes : (partitions,)
        Worker at the start (with a positive claim), rows, and bytes of each partition.
    present : (partitions, classes)
        Whether a partition has rows of a class.
    claim, budget : (workers,)
        Shares of rows are proportional to the claim. A worker with claim 0 needs no
        class. A budget of bytes is exceeded only if no other targets are found.
    tolerance
        Fraction by which a worker may exceed its share of rows.
    """
    sharing = _Sharing(target, present, rows, claim, nbytes, budget, 1 + tolerance)
    # the rarest class first: the fewest partitions have it
    rare = np.argsort(present.sum(axis=0), kind="stable")
    while (missing := sharing.missing()[:, rare]).any():
        first = int(missing.any(axis=0).argmax())
        worker = int(missing[:, first].argmax())
        if not sharing.bring(int(rare[first]), worker):
            return None
    while sharing.relieve():
        pass
    return sharing.target


class _Sharing:
    """The partitions of each worker, with their classes, rows and bytes."""

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
        # number of partitions with each class on each worker
        self.held = np.zeros((n_workers, present.shape[1]), dtype=np.int64)
        np.add.at(self.held, target, present)
        self.load = np.bincount(target, rows, n_workers)
        self.used = np.bincount(target, self.nbytes, n_workers)

    def missing(self) -> Bools:
        """Return (workers, classes): the classes that are missing."""
        missing: Bools = (self.held == 0) & self.needs[:, None]
        return missing

    def bring(self, number: int, worker: int) -> bool:
        """Bring a class to a worker; return whether fewer classes are missing then.

        This succeeds if as many partitions as workers have this class alone: then some
        worker has two of them.
        """
        others = np.flatnonzero(self.present[:, number] & (self.target != worker))
        ways = _Ways(self, worker, others)
        return self._exchange(worker, ways.best(np.where(ways.missing < 0, 0, np.inf)))

    def relieve(self) -> bool:
        """Make the fullest worker less full; return whether that was possible."""
        ratio = np.where(self.needs, self.load / self.share, np.inf)
        fullest = int(np.where(self.needs, ratio, 0.0).argmax())
        if ratio[fullest] <= self.limit:
            return False
        for worker in np.argsort(ratio, kind="stable")[:NEAR].tolist():
            if worker == fullest or not self.needs[worker]:
                break
            ways = _Ways(self, worker, np.flatnonzero(self.target == fullest))
            worse = (ways.missing > 0) | (ways.over > 0)
            worse |= ways.strain > ratio[fullest] * LESS
            best = ways.best(np.where(worse, np.inf, ways.strain))
            if self._exchange(worker, best):
                return True
        return False

    def _exchange(self, worker: int, way: tuple[int, int] | None) -> bool:
        """Exchange two partitions, or move one if the second is -1; None: neither."""
        if way is None:
            return False
        give, take = way
        source = int(self.target[give])
        self._move(give, worker)
        if take >= 0:
            self._move(take, source)
        return True

    def _move(self, partition: int, worker: int) -> None:
        source = self.target[partition]
        for sums, amounts in (
            (self.held, self.present),
            (self.load, self.rows),
            (self.used, self.nbytes),
        ):
            sums[source] -= amounts[partition]
            sums[worker] += amounts[partition]
        self.target[partition] = worker


class _Ways:
    """Ways to give a worker one of some partitions, perhaps for another one.

    Rows of each array are partitions to give, columns are partitions to take back; the
    last column means none. ``missing`` is the change of missing (worker, class) pairs,
    ``over`` the additional bytes above budgets, and ``strain`` the rows over the share
    of the fuller worker.
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

    def _few(self, partitions: Int64s) -> Int64s:
        """Return the partitions whose worker would lose the fewest classes."""
        now = self._now
        missed = (now.held[now.target[partitions]] == 1) & now.present[partitions]
        order = np.argsort(missed.sum(axis=1), kind="stable")
        return partitions[order[:NEAR]]

    def _shift(self, amounts: Int64s) -> Int64s:
        """Return (give, take): what the worker gets, minus what it gives back."""
        back = np.append(amounts[self.take], 0)
        shift: Int64s = amounts[self.give][:, None] - back
        return shift

    def _missing(self) -> Float32s:
        now = self._now
        target, source = now.held[self._worker], now.held[self._source]
        comes = now.present[self.give]
        goes = np.vstack([now.present[self.take], np.zeros_like(target, dtype=bool)])
        less = _common(comes, target[None] == 0) + _common(source == 0, goes)
        more = _common(~comes, (target == 1) & goes)
        more += _common(comes & (source == 1), ~goes)
        return more - less

    def best(self, cost: Float64s) -> tuple[int, int] | None:
        """Return the way with the least cost, then as in :func:`spread`, or None."""
        ways = np.flatnonzero(np.isfinite(cost))
        if not len(ways):
            return None
        over = np.maximum(self.over, 0)
        strain = np.maximum(self.strain, self._now.limit)
        for price in (cost, over, strain, self.missing, self._rows):
            prices = price.flat[ways]
            ways = ways[prices == prices.min()]
        give, take = divmod(int(ways[0]), len(self.take) + 1)
        back = int(self.take[take]) if take < len(self.take) else -1
        return int(self.give[give]), back


def _common(a: Bools, b: Bools) -> Float32s:
    """Return (a, b): the number of classes in both."""
    return a.astype(np.float32) @ b.astype(np.float32).T
