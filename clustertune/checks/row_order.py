"""Labels whose order follows the pieces: workers see different data.

Data that was written sorted, or by source or date, gives each worker another mixture of
labels. A library that learns from one batch after the other (stochastic gradients),
takes means of workers for means of all, or bins features by what a few workers hold,
then trains worse, without a word. Trees of XGBoost do not mind. Looked for with
``deep=True`` and where the workload wants rows in random order, as it reads the labels:
by shares of classes, or means of numbers.

Remedy: ``prepare`` with ``shuffle="rows"``; ``.row_order`` of what it returns says
where each row was. Or shuffle before the rows are cut, for example
``frame.shuffle(on="id")`` with a key that says nothing of the label.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from clustertune.core.model import Finding, Float64s, Int64s, Layout, Severity, View
from clustertune.core.wording import workers_text
from clustertune.planner.layouts import homes

SURE = 6.0  # standard errors: more than chance does
MANY = 100  # classes, above which labels are taken for numbers


def find(view: View, *, most: float = 0.3) -> Iterator[Finding]:
    """Find workers whose labels are unlike all labels.

    Parameters
    ----------
    view
        What is seen.
    most
        Standard deviations by which the labels of a worker may differ in their mean.
    """
    layout = view.layouts[0] if view.layouts else None
    if view.goal.workload.random_order is False:
        return
    if layout is None or not (layout.loaded and layout.aligned):
        return
    for member in layout.members:
        if member.label == "y" and member.contents is not None:
            yield from _unlike(layout, member.contents.pieces, view, most)


def _unlike(
    layout: Layout, pieces: Sequence[Mapping[str, Any]], view: View, most: float
) -> Iterator[Finding]:
    workers = view.now.workers
    home = homes(layout, len(workers))
    shift = np.zeros(len(workers))
    for sums in _sums(pieces):
        shift = np.maximum(shift, _shifts(home, sums, len(workers)))
    far = np.flatnonzero(shift > most)
    if not len(far):
        return
    ids = tuple(workers[i].id for i in far)
    worst = int(shift.argmax())
    yield Finding(
        severity=Severity(1 + bool(view.goal.workload.random_order)),
        message=f"labels on {workers_text(ids)} are unlike those of all workers: on "
        f"{workers_text([workers[worst].id])} their mean is off by {shift[worst]:.2g} "
        "standard deviations; the order of the rows is not random",
        subject=ids,
        evidence={"shift": round(float(shift[worst]), 3), "workers": len(far)},
    )


def _sums(pieces: Sequence[Mapping[str, Any]]) -> Iterator[Float64s]:
    """By piece (rows, sum, sum of squares): of numbers, or of each class as 0 and 1."""
    tables = [dict(p.get("classes") or ()) for p in pieces]
    classes = {c for table in tables for c in table}
    if 0 < len(classes) <= MANY and all(p.get("classes") is not None for p in pieces):
        rows = [sum(table.values()) for table in tables]
        for c in classes:
            count = [table.get(c, 0) for table in tables]
            yield np.array([rows, count, count], dtype=np.float64)
    elif all(p.get("moments") is not None for p in pieces):
        yield np.array([p["moments"] for p in pieces], dtype=np.float64).T


def _shifts(home: Int64s, sums: Float64s, n_workers: int) -> Float64s:
    """By worker how far its mean is from that of all; 0 where that may be chance."""
    held = home >= 0
    n, total, squares = sums[:, held]
    own = [np.bincount(home[held], x, n_workers) for x in (n, total)]
    mean = total.sum() / max(1.0, n.sum())
    deviation = np.sqrt(max(0.0, squares.sum() / max(1.0, n.sum()) - mean**2))
    if not deviation:
        return np.zeros(n_workers)
    shift = np.abs(own[1] / np.maximum(own[0], 1) - mean) / deviation
    return np.where(shift * np.sqrt(own[0]) > SURE, shift, 0.0)
