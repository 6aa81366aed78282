"""Goals of a call that the given data does not meet yet, such as ``rechunk=80`` (pure).

Each goal is a function of the view. Its findings make the planner act; the function's
name is the ``check`` of its findings in reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from clustertune.core.findings import critical, info
from clustertune.core.model import Finding, View
from clustertune.core.wording import are, names_text, plural
from clustertune.planner import remedies
from clustertune.planner.chunking import even


def unloaded_data(view: View) -> Iterator[Finding]:
    """Find collections that are not in memory yet.

    A training library loads lazy data inside every fit, on any worker. X and y of one
    Parquet data set can get different partitions if they are loaded one after the
    other. A library that reads its data once (``Incremental``, predictions) takes lazy
    data partition by partition, so ``prepare`` leaves it lazy unless ``persist=True``
    is set.

    Remedy: Run ``X, y = clustertune.prepare(client, X, y)``, which loads them in one
    call. By hand run ``rows = client.persist(rows)``, and take X and y as columns of
    that frame.
    """
    labels = tuple(m.label for m in view.collections if not m.loaded)
    if labels:
        what = "so every fit would load them again"
        if not view.loads_data:
            what = f"and stay lazy, since {view.goal.workload.title} reads data once"
        yield info(
            message=f"{names_text(labels)} {are(labels)} not in memory, {what}",
            subject=labels,
            evidence={"collections": len(labels)},
            remedy=remedies.run(remedies.prepare(view)) if view.loads_data else "",
            fixed_by="load" if view.loads_data else "",
        )


def requested_partitions(view: View) -> Iterator[Finding]:
    """Find training data in another number of partitions than ``rechunk=`` requests.

    ``rechunk=80`` requests 80 partitions of the training data, whose rows differ by at
    most one. Without a number ``prepare`` chooses it to suit the workers.
    """
    wanted = view.goal.rechunk
    layout = view.layouts[0] if view.layouts else None
    if isinstance(wanted, bool) or layout is None or layout.collections[0].rows is None:
        return
    rows = layout.collections[0].rows
    total = int(rows.sum())
    if np.array_equal(rows, even(total, min(wanted, max(1, total)))):
        return
    yield info(
        message=f"the {layout.label} has {plural(len(rows), 'partition')} of up to "
        f"{int(rows.max(initial=0)):,} rows, and not {wanted:,} even ones yet",
        subject=layout.labels,
        evidence={"partitions": len(rows), "requested_partitions": wanted},
        fixed_by=view.goal.cutting_action,
    )


def unread_data(view: View) -> Iterator[Finding]:
    """Find data that a check could not read within its time limit.

    A worker that does not answer, or whose task never ends, keeps its partitions. The
    checks of the data cannot run without them.

    Remedy: Restart the worker that the finding names, or give ``clustertune.check`` a
    longer ``timeout``.
    """
    if view.unread is not None:
        why, remedy = view.unread
        yield critical(message=f"the data was not read {why}", remedy=remedy)


#: by name
GOALS: Mapping[str, Callable[[View], Iterator[Finding]]] = {
    goal.__name__: goal for goal in (requested_partitions, unloaded_data, unread_data)
}


def unmet(view: View) -> tuple[Finding, ...]:
    """Findings of every goal that the given data does not meet."""
    return tuple(
        replace(finding, check=name)
        for name, goal in GOALS.items()
        for finding in goal(view)
    )
