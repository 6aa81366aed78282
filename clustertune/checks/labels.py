"""Checks of labels: classes on each worker, and the order of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from clustertune.core.model import (
    Bools,
    Finding,
    Float64s,
    Int64s,
    Layout,
    Severity,
    View,
)
from clustertune.core.wording import plural, printable, verb, workers_text
from clustertune.planner import coverage, remedies
from clustertune.planner.coverage import Classes
from clustertune.planner.layouts import home_workers, weights

#: by whether the workload needs all classes on every worker; None: unknown
_SEVERITIES = {True: Severity.critical, None: Severity.warning, False: Severity.info}
CERTAIN = 6.0  # standard errors: more than chance explains
MAX_CLASSES = 100  # with more distinct labels they count as numbers


def _placed_training(view: View) -> Layout | None:
    """The training data, if it is in memory and its rows are known."""
    layout = view.layouts[0] if view.layouts else None
    return layout if layout is not None and layout.loaded and layout.aligned else None


# --- classes --------------------------------------------------------------------------


def missing_classes(view: View) -> Iterator[Finding]:
    """Find workers that hold no row of some class.

    LightGBM's classifier counts the classes on each worker separately. If one is
    missing there, the model lacks classes, without an error. Data that is sorted by
    label is the usual cause. The check reads all labels, so it runs only with
    ``deep=True``, or if the workload needs all classes. It stops ``prepare`` only if
    the estimator is a classifier.

    Remedy: Run ``X, y = clustertune.prepare(client, X, y, estimator=model)``, which
    spreads the rows of each class over all workers. If a class has fewer rows than
    there are workers, leave its rows out, or name fewer workers in ``workers=``. If the
    labels are numbers and no classes, pass a regressor.
    """
    layout = _placed_training(view)
    classes = None if layout is None else coverage.of(layout)
    if layout is None or classes is None or len(classes.names) < 2:
        return
    severity = _SEVERITIES[view.goal.workload.needs_all_classes]
    needed = severity is not Severity.info
    rare = int(classes.totals.argmin())
    if needed and classes.totals[rare] < len(view.eligible_workers):
        yield _too_rare(classes, rare, view)
        return
    home, claim = home_workers(layout, len(view.now.workers)), weights(view)
    # other checks report workers without rows
    held = np.bincount(home[home >= 0], layout.rows[home >= 0], len(claim)) > 0
    may = (claim > 0) & (held | needed)
    lacking = coverage.missing(classes.counts > 0, home, may)
    if lacking.any():
        yield _lacking_classes(layout, classes, lacking, view, severity)


def _too_rare(classes: Classes, number: int, view: View) -> Finding:
    rows, n_workers = int(classes.totals[number]), len(view.eligible_workers)
    name = printable(str(classes.names[number]), longest=40)
    workload = view.goal.workload
    known = workload.needs_all_classes is not None
    return Finding(
        severity=Severity.critical if known else Severity.info,
        message=f"{'class' if known else 'label'} {name} of {classes.label} has "
        f"{plural(rows, 'row')}, too few for {n_workers:,} workers: {workload.title} "
        f"needs every class on each worker{'' if known else ', if it is a classifier'}",
        subject=(classes.label,),
        evidence={"rows": rows, "workers": n_workers},
        remedy=f"Leave out the rows of that class, or name only "
        f"{plural(rows, 'worker')} in workers=. If {classes.label} has numbers and no "
        "classes, pass a regressor as estimator=."
        if known
        else "Pass the model, `estimator=model`, which shows whether it is a "
        "classifier.",
    )


def _lacking_classes(
    layout: Layout, classes: Classes, lacking: Bools, view: View, severity: Severity
) -> Finding:
    worst = int(lacking.sum(axis=1).argmax())
    workers = view.now.workers
    ids = tuple(workers[i].id for i in np.flatnonzero(lacking.any(axis=1)).tolist())
    example = str(classes.names[int(np.flatnonzero(lacking[worst])[0])])
    names = len(classes.names)
    needed = severity is not Severity.info
    whole = needed and coverage.shared(layout, classes, view) is not None
    return Finding(
        severity=severity,
        message=f"{workers_text(ids)} {verb(ids, 'has')} no rows of some of "
        f"{plural(names, 'class', 'classes')} in {classes.label}; on "
        f"{workers_text([workers[worst].id])} {int(lacking[worst].sum()):,} are "
        f"missing, for example {printable(example, longest=40)}",
        subject=layout.labels if needed else ids,
        evidence={"classes": names, "workers": len(ids)},
        remedy=_spread_classes(view, needed=needed),
        fixed_by=("rebalance" if whole else view.goal.cutting_action) if needed else "",
    )


def _spread_classes(view: View, *, needed: bool) -> str:
    """Code after which each worker has rows of each class."""
    if not needed:
        call = remedies.prepare(view, shuffle="rows")
        return remedies.run(call, ", which puts the rows in random order")
    return remedies.cut(view)


# --- order ----------------------------------------------------------------------------


def unshuffled_rows(view: View, *, max_deviations: float = 0.3) -> Iterator[Finding]:
    """Find workers whose labels differ from all labels, as rows are not shuffled.

    Data in order of label, source or date gives each worker another mixture of labels.
    Libraries with stochastic gradients, or with means over workers, then train worse
    without an error; trees of XGBoost are not affected. The check reads the labels, so
    it runs only with ``deep=True``, or if the workload needs random order.

    Remedy: Run ``X, y = clustertune.prepare(client, X, y, shuffle="rows")``.
    ``.row_order`` of the result has the former number of each row.

    Parameters
    ----------
    max_deviations
        Standard deviations by which the mean label of a worker may differ.
    """
    layout = _placed_training(view)
    if layout is None or view.goal.workload.random_order is False:
        return
    for collection in layout.collections:
        if collection.label == "y" and collection.contents is not None:
            yield from _differing(
                layout, collection.contents.partitions, view, max_deviations
            )


def _differing(
    layout: Layout, partitions: Sequence[Mapping[str, Any]], view: View, most: float
) -> Iterator[Finding]:
    workers = view.now.workers
    home = home_workers(layout, len(workers))
    shift = np.zeros(len(workers))
    for sums in _sums(partitions):
        shift = np.maximum(shift, _shifts(home, sums, len(workers)))
    far = np.flatnonzero(shift > most)
    if not len(far):
        return
    ids = tuple(workers[i].id for i in far)
    worst = int(shift.argmax())
    yield Finding(
        severity=Severity(1 + bool(view.goal.workload.random_order)),
        message=f"labels on {workers_text(ids)} differ from the labels of all workers: "
        f"the mean on {workers_text([workers[worst].id])} differs by "
        f"{shift[worst]:.2g} standard deviations; the order of the rows is not random",
        subject=ids,
        evidence={
            "standard_deviations": round(float(shift[worst]), 3),
            "workers": len(far),
        },
        remedy=remedies.run(remedies.prepare(view, shuffle="rows")),
    )


def _sums(partitions: Sequence[Mapping[str, Any]]) -> Iterator[Float64s]:
    """Rows, sum and sum of squares by partition: of numbers, or of each class."""
    tables = [dict(p.get("classes") or ()) for p in partitions]
    classes = {c for table in tables for c in table}
    counted = all(p.get("classes") is not None for p in partitions)
    if 0 < len(classes) <= MAX_CLASSES and counted:
        rows = [sum(table.values()) for table in tables]
        for c in classes:
            count = [table.get(c, 0) for table in tables]
            yield np.array([rows, count, count], dtype=np.float64)
    elif all(p.get("moments") is not None for p in partitions):
        yield np.array([p["moments"] for p in partitions], dtype=np.float64).T


def _shifts(home: Int64s, sums: Float64s, n_workers: int) -> Float64s:
    """By worker, by how much its mean differs from that of all; 0 if by chance."""
    held = home >= 0
    n, total, squares = sums[:, held]
    own = [np.bincount(home[held], x, n_workers) for x in (n, total)]
    mean = total.sum() / max(1.0, n.sum())
    deviation = np.sqrt(max(0.0, squares.sum() / max(1.0, n.sum()) - mean**2))
    if not deviation:
        return np.zeros(n_workers)
    shift = np.abs(own[1] / np.maximum(own[0], 1) - mean) / deviation
    return np.where(shift * np.sqrt(own[0]) > CERTAIN, shift, 0.0)
