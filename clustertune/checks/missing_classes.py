"""Workers that hold no row of some class.

LightGBM's classifier counts classes on each worker by itself. Where one lacks a class
the model knows only the classes of one worker, and nothing says so: with labels 0 on
one worker, 1 and 2 on another, its accuracy was 0.3 to 0.5 and no error was raised.
Other libraries train, but rounds in which a worker has one class only teach it little.
Data that is sorted by label is the usual cause. Looked for with ``deep=True`` and where
the workload needs all classes, as it reads all labels.

A workload's name does not tell classifiers from regressors: nothing is refused then.

Remedy: ``prepare`` with the estimator shares out rows of each class. With fewer rows of
a class than workers leave those rows out, or name fewer workers in ``workers=``; for
labels that are numbers and no classes give a regressor as ``estimator=``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clustertune.core.model import Bools, Finding, Layout, Severity, View
from clustertune.core.wording import plural, printable, workers_text
from clustertune.errors import ClassCoverageError
from clustertune.planner import coverage
from clustertune.planner.coverage import Classes
from clustertune.planner.layouts import homes, weights

ERROR = ClassCoverageError
#: by whether the workload needs all classes on every worker; None: unknown
_SEVERITIES = {True: Severity.critical, None: Severity.warning, False: Severity.info}


def find(view: View) -> Iterator[Finding]:
    """Find classes that are not on all workers which may train."""
    layout = view.layouts[0] if view.layouts else None
    if layout is None or not (layout.loaded and layout.aligned):
        return
    classes = coverage.of(layout)
    if classes is None or len(classes.names) < 2:
        return
    severity = _SEVERITIES[view.goal.workload.needs_all_classes]
    needed = severity is not Severity.info
    rare = int(classes.totals.argmin())
    if needed and classes.totals[rare] < len(view.eligible_workers):
        yield _too_rare(classes, rare, view)
        return
    home, claim = homes(layout, len(view.now.workers)), weights(view)
    # of workers without rows other checks speak
    held = np.bincount(home[home >= 0], layout.rows[home >= 0], len(claim)) > 0
    may = (claim > 0) & (held | needed)
    lacking = coverage.missing(classes.counts > 0, home, may)
    if lacking.any():
        yield _finding(layout, classes, lacking, view, severity)


def _too_rare(classes: Classes, number: int, view: View) -> Finding:
    rows, n_workers = int(classes.totals[number]), len(view.eligible_workers)
    name = printable(str(classes.names[number]), longest=40)
    workload = view.goal.workload
    known = workload.needs_all_classes is not None
    return Finding(
        severity=Severity.critical if known else Severity.info,
        message=f"{'class' if known else 'label'} {name} of {classes.label} has "
        f"{plural(rows, 'row')}, too few for {n_workers:,} workers: {workload.title} "
        f"needs every class on each{'' if known else ', if it is a classifier'}",
        subject=(classes.label,),
        evidence={"rows": rows, "workers": n_workers},
        remedy=f"leave the rows of that class out; or train on {plural(rows, 'worker')}"
        f", named in workers=; if {classes.label} are numbers and no classes, give a "
        "regressor as estimator="
        if known
        else "give the model as estimator=, which tells a classifier from a regressor",
    )


def _finding(
    layout: Layout,
    classes: Classes,
    lacking: Bools,
    view: View,
    severity: Severity,
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
        message=f"of {plural(names, 'class', 'classes')} in {classes.label}, "
        f"{workers_text(ids)} hold not all; {workers_text([workers[worst].id])} lacks "
        f"{int(lacking[worst].sum()):,}, for example {printable(example, longest=40)}",
        subject=tuple(m.label for m in layout.members) if needed else ids,
        evidence={"classes": names, "workers": len(ids)},
        fixed_by=("rebalance" if whole else view.goal.cutting) if needed else "",
    )
