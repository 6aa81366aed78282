"""Decide by the contents of data: classes of labels, and query groups (pure).

``remote.worker.content`` returns them. *Groups* (``qid``) must begin and end with a
partition. Some rows of a class are its *witnesses*: a worker with a witness of a
class has that class. Each worker keeps or gets one partition with each class, and the
other partitions are placed as usual.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from clustertune.core.model import Bools, CollectionInfo, Float64s, Int64s, Layout, View
from clustertune.core.wording import variable
from clustertune.errors import CapacityError
from clustertune.planner import layouts
from clustertune.planner.layouts import HeldBytes
from clustertune.planner.placement import Held, Placement, place, placed

# --- groups ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Groups:
    """Runs of rows of one group, in the order of rows."""

    label: str  # of the collection with the groups
    values: npt.NDArray[Any]  # (runs,) group of each run
    counts: Int64s  # (runs,) rows; meaningless if rows of a group are scattered
    together: bool  # every group is one run

    @property
    def edges(self) -> Int64s:
        """First rows of all runs but the first, at which a cut is allowed."""
        return np.cumsum(self.counts)[:-1]


def has_groups(layout: Layout) -> bool:
    """Return whether a layout has query groups, which may be unread."""
    return any(variable(m.label) == "qid" for m in layout.collections)


def read_groups(layout: Layout) -> CollectionInfo | None:
    """Return the collection with the groups, if its values were read."""
    for m in layout.collections:
        if variable(m.label) == "qid" and m.contents is not None:
            is_read = all("counts" in p for p in m.contents.partitions)
            return m if is_read else None
    return None


def groups_of(layout: Layout) -> Groups | None:
    """Return the groups of a layout; None: it has none, or they were not read.

    A replicated layout has None: each partition with rows has all groups in order.
    """
    collection = read_groups(layout)
    if collection is None or layouts.is_copied(layout):
        return None
    assert collection.contents is not None
    partitions = [p for p in collection.contents.partitions if len(p["counts"])]
    if not partitions:
        return None
    values = np.concatenate([p["values"] for p in partitions])
    counts = np.concatenate([p["counts"] for p in partitions]).astype(np.int64)
    starts = np.flatnonzero(np.append(True, values[1:] != values[:-1]))
    values, counts = values[starts], np.add.reduceat(counts, starts)
    scattered = any(p["scattered"] for p in partitions)
    return Groups(
        label=collection.label,
        values=values,
        counts=counts,
        together=not scattered and len(np.unique(values)) == len(values),
    )


def cuts_in_groups(layout: Layout, groups: Groups) -> Int64s:
    """Return the rows within a group at which some collection is divided."""
    found = [np.cumsum(m.rows)[:-1] for m in layout.collections if m.rows is not None]
    inner = np.unique(np.concatenate(found)) if found else np.zeros(0, dtype=np.int64)
    ends = np.array([0, int(groups.counts.sum())])
    return np.setdiff1d(inner, np.concatenate([groups.edges, ends]))


# --- classes --------------------------------------------------------------------------


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


def classes_of(layout: Layout) -> Classes | None:
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


def distinct_labels(collection: CollectionInfo) -> set[Any] | None:
    """Return the different labels; None: unknown, texts or no classes."""
    partitions = collection.contents.partitions if collection.contents else ()
    found = [p.get("distinct") for p in partitions]
    if not found or any(x is None for x in found):
        return None
    labels = {name for names in found for name in names or ()}
    return None if any(isinstance(name, str) for name in labels) else labels


def outputs(view: View) -> int:
    """Return how many trees boosting grows in each round; 1 also if that is unknown.

    A classifier grows one for each of three or more classes.
    """
    workload = view.goal.workload
    y = next((m for m in view.layouts[0].collections if m.label == "y"), None)
    if y is None or y.contents is None:
        return 1
    names: set[Any] = set()
    if workload.numbered_classes:
        names = distinct_labels(y) or set()
    elif workload.needs_all_classes:
        found = [p.get("classes") for p in y.contents.partitions]
        if None not in found:
            names = {name for counts in found for name, _ in counts or ()}
    return len(names) if len(names) > 2 else 1


def needed_classes(layout: Layout, view: View) -> Classes | None:
    """Return the classes that every worker needs; None: none, or too few rows."""
    if view.goal.workload.needs_all_classes is False or layout is not view.layouts[0]:
        return None
    classes = classes_of(layout)
    if classes is None or not classes.names:
        return None
    return classes if classes.totals.min() >= len(view.eligible_workers) else None


def missing_classes(present: Bools, home: Int64s, eligible: Bools) -> Bools:
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


def whole_partitions_suffice(layout: Layout, classes: Classes, view: View) -> bool:
    """Return whether every worker can get each class without a cut."""
    claim, rows = layouts.weights(view), layout.rows
    home, present = layouts.home_workers(layout, len(claim)), classes.counts > 0
    nothing, unlimited = np.zeros_like(rows), np.full(len(claim), np.inf)
    found = pins(home, present, rows, claim, nbytes=nothing, budget=unlimited)
    return found is not None


# --- placement ------------------------------------------------------------------------


def place_all(
    start: Placement,
    present: Bools,
    rows: Int64s,
    held: Held,
    claim: Float64s,
    *,
    nbytes: Int64s,
    budget: Float64s,
    tolerance: float,
) -> Placement | None:
    """Return a placement with which every worker has every class; None: impossible.

    ``present`` has the classes of each partition. The other arguments are those of
    :func:`place`, which returned ``start``. Budgets are exceeded only if the partitions
    do not fit otherwise.
    """
    if not missing_classes(present, start.target, claim > 0).any():
        return start
    pin = pins(start.target, present, rows, claim, nbytes=nbytes, budget=budget)
    if pin is None:
        return None
    target, rest = pin.copy(), np.flatnonzero(pin < 0)
    fixed, n_workers = pin >= 0, len(claim)
    share = rows.sum() * claim / claim.sum()
    left = np.maximum(0.0, share - np.bincount(pin[fixed], rows[fixed], n_workers))
    if len(rest):
        space = budget - np.bincount(pin[fixed], nbytes[fixed], n_workers)
        place_rest = partial(
            place,
            rows[rest],
            layouts.of_partitions(HeldBytes(*map(np.asarray, held)), ~fixed),
            left if left.any() else claim,
            nbytes=nbytes[rest],
            tolerance=tolerance,
        )
        try:
            found = place_rest(budget=np.maximum(0.0, space))
        except CapacityError:
            found = place_rest()
        target[rest] = found.target
    return placed(rows, held, claim, nbytes=nbytes, target=target)


def pins(
    start: Int64s,
    present: Bools,
    rows: Int64s,
    claim: Float64s,
    *,
    nbytes: Int64s,
    budget: Float64s,
) -> Int64s | None:
    """Choose one partition with each class for every worker, the rarest class first.

    Returns the worker of each chosen partition, and -1 for the others; None: too few
    partitions have a class. A worker keeps a partition that it has, if possible. This
    succeeds if as many partitions as workers have each class alone.
    """
    workers = np.flatnonzero(claim > 0)
    room, space = rows.sum() * claim / claim.sum(), budget.astype(np.float64)
    pin, has = np.full(len(rows), -1), np.zeros((len(claim), present.shape[1]), bool)
    for number in np.argsort(present.sum(axis=0), kind="stable").tolist():
        own = np.isin(workers, start[present[:, number] & (pin < 0)])
        for worker in workers[np.argsort(~own, kind="stable")].tolist():
            if has[worker, number]:
                continue
            some = np.flatnonzero(present[:, number] & (pin < 0))
            if not len(some):
                return None
            away = start[some] != worker
            # each missing class may use the same part of the room
            fair = room[worker] / (~has[worker]).sum()
            size = np.abs(rows[some] - fair)
            more = (present[some] & ~has[worker]).sum(axis=1)
            travels = np.where(away, nbytes[some], -nbytes[some])
            over = nbytes[some] > space[worker]
            best = some[np.lexsort((travels, size, -more, away, over))[0]]
            pin[best] = worker
            has[worker] |= present[best]
            room[worker] -= rows[best]
            space[worker] -= nbytes[best]
    return pin
