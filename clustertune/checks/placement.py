"""Checks of which workers hold the rows, pairs and replicas of the data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from clustertune.core.model import Finding, Int64s, Layout, Severity, View
from clustertune.core.wording import are, bytes_text, plural, times_text, workers_text
from clustertune.planner.layouts import apart, copied, held, partition_bytes, shares
from clustertune.planner.suitability import attainable, units

_ROUNDING = 1e-9


def _placed(view: View) -> Iterator[Layout]:
    """Layouts in memory, all members of which have the same rows per partition."""
    return (x for x in view.layouts if x.loaded and x.aligned)


# --- rows -----------------------------------------------------------------------------


def empty_workers(view: View) -> Iterator[Finding]:
    """Find workers that hold no rows of the training data.

    XGBoost and LightGBM train with one task for every worker that holds a partition. A
    worker without rows does not train and gives no warning. New workers start empty,
    and ``client.rebalance()`` rarely moves anything.

    If there are fewer rows, groups or uncut partitions than workers, ``prepare`` places
    them on as many workers as can have some. A library may need several rows on each
    worker: LightGBM needs two.

    Remedy: Run ``X, y = clustertune.prepare(client, X, y)``, which moves whole
    partitions until every worker holds its share. To leave workers out, name the others
    in ``workers=``.
    """
    if view.trainers is not None:
        yield _not_enough_for_all(view)
    layout = view.layouts[0] if view.layouts else None
    if layout is None or not layout.loaded or not layout.aligned:
        return
    eligible = {w.id for w in view.eligible_workers}
    n_partitions = int((layout.rows > 0).sum())
    empty = tuple(
        s.worker for s in shares(layout, view) if s.worker in eligible and not s.rows
    )
    if empty and n_partitions >= len(eligible):
        yield Finding(
            severity=Severity.warning,
            message=f"no rows of the {layout.label} on {workers_text(empty)}: only "
            f"{len(eligible) - len(empty):,} of {plural(len(eligible), 'worker')} will "
            "train",
            subject=empty,
            evidence={
                "empty": len(empty),
                "workers": len(eligible),
                "partitions": n_partitions,
            },
        )


#: what gives more workers a share, by what there is too little of
_MORE = {
    "row": "Give more rows, or start fewer workers.",
    "group": "Give more groups, or start fewer workers. Groups stay whole.",
    "partition": "Leave out rechunk=, so that prepare may cut partitions, at the ends "
    "of groups with qid. Or load the data in more partitions.",
}


def _not_enough_for_all(view: View) -> Finding:
    """Report the workers that get no rows, since there are too few for all."""
    found = units(view)
    assert found is not None
    able = replace(view, trainers=None).eligible_workers
    idle = tuple(w.id for w in able if not view.eligible(w))
    needs = f", and a worker needs {found.least:,} of them" if found.least > 1 else ""
    return Finding(
        severity=Severity.warning,
        message=f"the {view.layouts[0].label} has {plural(found.number, found.name)}"
        f"{needs}: only {found.workers:,} of {plural(len(able), 'worker')} will train, "
        f"without {workers_text(idle)}",
        subject=idle,
        evidence={
            "empty": len(idle),
            "workers": len(able),
            f"{found.name}s": found.number,
        },
        remedy=_MORE[found.name],
    )


def uneven_rows(view: View) -> Iterator[Finding]:
    """Find training rows that are uneven over the workers.

    Each worker trains on the rows that it holds. Every round ends when the slowest
    worker is done, so the worker with the largest share sets the pace. A worker's share
    is in proportion to its threads. Rows on a worker that may not train (paused, or not
    in ``workers=``) are always wrong.

    The tolerance is that of the call (0.05: a worker may hold 5 % more than its share).
    If partitions are too large or too few for a better placement, the finding is
    information, and ``too_few_partitions`` has the fix.

    Remedy: Run ``X, y = clustertune.prepare(client, X, y)``, which moves whole
    partitions with their companions until each worker holds its share.
    ``client.rebalance()`` looks at bytes, not rows, moves nothing below 30 % of memory,
    and separates X from y.
    """
    for layout in _placed(view):
        yield from _misplaced(layout, view)
        if layout is view.layouts[0]:  # eval sets are only scored, not trained on
            yield from _uneven(layout, view)


def _misplaced(layout: Layout, view: View) -> Iterator[Finding]:
    eligible = {w.id for w in view.eligible_workers}
    wrong = [s for s in shares(layout, view) if s.rows and s.worker not in eligible]
    if wrong:
        ids, rows = tuple(s.worker for s in wrong), sum(s.rows for s in wrong)
        yield Finding(
            severity=Severity.warning,
            message=f"{plural(rows, 'row')} of the {layout.label} on "
            f"{workers_text(ids)}, which {are(ids)} not running or not in workers=, so "
            "a fit must move them first",
            subject=ids,
            evidence={"rows": rows, "of_rows": int(layout.rows.sum())},
        )


def _uneven(layout: Layout, view: View) -> Iterator[Finding]:
    fullest = max(shares(layout, view), key=lambda s: s.share, default=None)
    if fullest is None or fullest.share <= 1 + view.goal.tolerance + _ROUNDING:
        return
    best = attainable(layout, view)
    movable = best < fullest.share - _ROUNDING
    total = int(layout.rows.sum())
    remark = f"moving whole partitions can reduce that to {best:.3g}"
    yield Finding(
        severity=Severity.warning if movable else Severity.info,
        message=f"{workers_text([fullest.worker])} holds {times_text(fullest.share)} "
        f"its share of rows: {fullest.rows:,} of {total:,} of the {layout.label}; "
        + (remark if movable else "whole partitions cannot be placed more evenly"),
        subject=(fullest.worker,),
        evidence={
            "imbalance": fullest.share,
            "best": best,
            "tolerance": view.goal.tolerance,
        },
        remedy=""
        if movable
        else "Cut the data into more partitions, as ``too_few_partitions`` explains.",
    )


# --- pairs and replicas ---------------------------------------------------------------


def separated_pairs(view: View) -> Iterator[Finding]:
    """Find partitions of X and companions that are on different workers.

    Every fit first brings X_i, y_i and the other companions to one worker. Dask chooses
    the less busy holder, so it may ship the large X_i to the small y_i. Collections
    that were persisted from different sources are often separated, also after one
    ``persist`` call. ``client.rebalance()`` separates pairs too.

    Remedy: Run ``X, y = clustertune.prepare(client, X, y)``, which moves every y_i to
    its X_i. To keep pairs together from the start, take X and y from one frame and
    persist both in one call.
    """
    n_workers = len(view.now.workers)
    for layout in _placed(view):
        filled = layout.rows > 0
        torn = apart(layout, n_workers) & filled
        count, total = int(torn.sum()), int(filled.sum())
        if not count:
            continue
        nbytes = int(_missing_bytes(layout, n_workers)[torn].sum())
        yield Finding(
            severity=Severity.warning,
            message=f"{count:,} of {total:,} partitions ({count / total:.0%}) of the "
            f"{layout.label} are split over several workers; a fit ships at least "
            f"{bytes_text(nbytes)} to join them",
            subject=tuple(m.label for m in layout.members),
            evidence={"apart": count, "partitions": total, "bytes": nbytes},
        )


def _missing_bytes(layout: Layout, n_workers: int) -> Int64s:
    """Bytes of every partition that its main holder lacks."""
    spread = held(layout, n_workers)
    most = np.zeros(layout.members[0].n_partitions, dtype=np.int64)
    np.maximum.at(most, spread.partition, spread.nbytes)
    return partition_bytes(layout) - most


def surplus_replicas(view: View) -> Iterator[Finding]:
    """Find partitions with replicas on more than one worker.

    Dask's memory manager drops surplus replicas every 2 s. It keeps the replicas that
    ``clustertune.prepare`` has placed, and for other data the replica on the worker
    with least memory. Until then a training library may use any of them. The place of
    such a partition may change, and X_i and y_i may be separated.

    Remedy: Run ``X, y = clustertune.prepare(client, X, y)``, which keeps one replica of
    each partition in its right place. ``client.replicate`` and
    ``scatter(broadcast=True)`` do not help training data.
    """
    for layout in _placed(view):
        count, total = int(copied(layout).sum()), layout.members[0].n_partitions
        if count:
            yield Finding(
                severity=Severity.info,
                message=f"{count:,} of {total:,} partitions of the {layout.label} have "
                "replicas on more than one worker; Dask will drop some, so their place "
                "may change",
                subject=tuple(m.label for m in layout.members),
                evidence={"copied": count, "partitions": total},
            )
