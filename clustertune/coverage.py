"""Which classes of labels every worker holds, and how each can have all (pure).

What is known of classes comes from :func:`clustertune.remote.content.classes`: how many
rows of each are in every piece, and where some of them are. Those rows are *witnesses*:
a worker that has one of a class has that class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from clustertune.model import Int64s, Layout

Bools = npt.NDArray[np.bool_]

NEAR = 64  # pieces of similar size that are tried in an exchange


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


def spread(
    target: Int64s, present: Bools, rows: Int64s, eligible: Bools
) -> Int64s | None:
    """Targets of pieces with which every worker has every class; None: none found.

    Pieces are exchanged with others of about as many rows, or go alone, until nothing
    is missing: at each step what leaves least missing, then what moves least rows from
    one worker to another.

    Parameters
    ----------
    target : (pieces,)
        Workers to begin with.
    present : (pieces, classes)
        Which piece has rows of which class.
    rows : (pieces,)
        Rows of each.
    eligible : (workers,)
        Which of them need all classes.
    """
    target = target.copy()
    held = np.zeros((len(eligible), present.shape[1]), dtype=np.int64)
    np.add.at(held, target, present)
    while True:
        lacking = (held == 0) & eligible[:, None]
        if not lacking.any():
            return target
        rare = np.where(lacking.any(axis=0), present.sum(axis=0), len(target) + 1)
        number = int(rare.argmin())
        worker = int(np.flatnonzero(lacking[:, number])[0])
        found = _best(target, present, rows, held, worker, number)
        if found is None:
            return None
        give, take = found
        source = int(target[give])
        held[source] -= present[give]
        held[worker] += present[give]
        target[give] = worker
        if take >= 0:
            held[worker] -= present[take]
            held[source] += present[take]
            target[take] = source


def _best(
    target: Int64s,
    present: Bools,
    rows: Int64s,
    held: Int64s,
    worker: int,
    number: int,
) -> tuple[int, int] | None:
    """A piece that brings the class to the worker, and one that goes back, or -1."""
    best: tuple[int, int] | None = None
    least = (0, 0)  # what it must be better than: as much is missing as before
    own = np.flatnonzero(target == worker)
    for give in np.flatnonzero(present[:, number] & (target != worker)).tolist():
        source = int(target[give])
        near = own[np.argsort(np.abs(rows[own] - rows[give]), kind="stable")[:NEAR]]
        for take in [*near.tolist(), -1]:
            back = present[take] if take >= 0 else np.zeros_like(present[give])
            after = [
                held[worker] + present[give] - back,
                held[source] - present[give] + back,
            ]
            before = [held[worker], held[source]]
            change = sum(int((x == 0).sum()) for x in after)
            change -= sum(int((x == 0).sum()) for x in before)
            shift = abs(int(rows[give]) - (int(rows[take]) if take >= 0 else 0))
            if change < 0 and (best is None or (change, shift) < least):
                best, least = (give, take), (change, shift)
    return best
