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
from clustertune.errors import RefusedError
from clustertune.planner import remedies
from clustertune.planner.chunking import TOO_MANY_TO_SHUFFLE, even


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


def requested_type(view: View) -> Iterator[Finding]:
    """Find collections that must get another collection type or dtype.

    ``to="array"`` makes arrays of frames, ``dtype="float32"`` casts features. Libraries
    that train on the codes of categories need one list of categories everywhere.
    LightGBM makes one array of all columns, so ``prepare`` casts a column of int64
    among float32 if no number changes.

    Remedy: Run ``X, y = clustertune.prepare(client, X, y, to="array",
    dtype="float32")``, which converts them.
    """
    for collection in view.collections:
        wanted = collection.conversion
        if wanted is not None:
            yield info(
                message=f"{collection.label} is not {wanted}",
                subject=(collection.label,),
                evidence={
                    "type": collection.kind,
                    "requested_type": wanted.kind,
                    "requested_dtype": wanted.dtype,
                },
                fixed_by="rechunk",
            )


def requested_shuffle(view: View) -> Iterator[Finding]:
    """Find rows that are not shuffled yet, as ``shuffle=`` requests.

    ``shuffle="rows"`` puts all rows in another order. ``shuffle="partitions"`` does so
    with whole partitions. That moves no data, and helps if partitions differ (by date
    or source) and a library takes them one after the other.
    """
    if view.goal.order not in ("rows", "partitions") or not view.layouts:
        return
    layout = view.layouts[0]
    labels = layout.labels
    counted = layout.collections[0].rows
    rows = 0 if counted is None else int(counted.sum())
    if view.goal.order == "rows" and rows >= TOO_MANY_TO_SHUFFLE:
        yield critical(
            message=f"the {layout.label} has {rows:,} rows, but "
            f'shuffle="rows" can draw a uniform order only of fewer than '
            f"{TOO_MANY_TO_SHUFFLE:,} rows, so nothing was shuffled",
            subject=labels,
            evidence={"rows": rows, "limit": TOO_MANY_TO_SHUFFLE},
            remedy='Use shuffle="partitions", or shuffle the rows before loading.',
        )
        return
    what = "rows" if view.goal.order == "rows" else "partitions"
    yield info(
        message=f"the {what} of the {layout.label} are not shuffled yet",
        subject=labels,
        fixed_by="shuffle",
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


#: by name
GOALS: Mapping[str, Callable[[View], Iterator[Finding]]] = {
    goal.__name__: goal
    for goal in (requested_partitions, requested_shuffle, requested_type, unloaded_data)
}
#: the error with which a critical finding of a goal stops ``prepare``
ERRORS: Mapping[str, type[Exception]] = {"requested_shuffle": RefusedError}


def unmet(view: View) -> tuple[Finding, ...]:
    """Findings of every goal that the given data does not meet."""
    return tuple(
        replace(finding, check=name)
        for name, goal in GOALS.items()
        for finding in goal(view)
    )
