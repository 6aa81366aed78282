"""Checks of which workers hold rows, pairs and eval sets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from clustertune.core.model import Finding, Layout, Severity, View, info, warning
from clustertune.core.wording import (
    are,
    bytes_text,
    names_text,
    plural,
    times_text,
    verb,
    workers_text,
)
from clustertune.planner import remedies
from clustertune.planner.layouts import (
    are_in_place,
    held_bytes_by_worker,
    largest,
    partition_bytes,
    replicated,
    separated,
    shares,
)
from clustertune.planner.suitability import attainable, enough_for, units

_ROUNDING = 1e-9


def _placed(view: View) -> Iterator[Layout]:
    """Layouts in memory, all collections of which have the same rows per partition."""
    return (x for x in view.layouts if x.loaded and x.aligned)


def _without_rows(layout: Layout, view: View) -> tuple[str | int, ...]:
    """Ids of workers that may train and hold no rows of a layout in memory."""
    may = {w.id for w in view.eligible_workers}
    return tuple(
        s.worker for s in shares(layout, view) if not s.rows and s.worker in may
    )


def _prepare(view: View) -> str:
    return remedies.run(remedies.prepare(view))


# --- rows -----------------------------------------------------------------------------


def empty_workers(view: View) -> Iterator[Finding]:
    """Find workers that hold no rows of the training data.

    XGBoost and LightGBM train only on workers that hold a partition, without a warning.
    New workers start empty, and ``client.rebalance()`` rarely moves anything. With
    fewer rows, groups or uncut partitions than workers, some workers stay empty.
    LightGBM needs two rows per worker.

    Remedy: Run ``X, y = clustertune.prepare(client, X, y)``, which moves whole
    partitions until every worker holds its share. To leave workers out, name the other
    workers in ``workers=``.
    """
    if view.trainers is not None and enough_for(view) is not None:
        yield _not_enough_for_all(view)
    layout = view.layouts[0] if view.layouts else None
    if layout is None or not layout.loaded or not layout.aligned:
        return
    n_workers = len(view.eligible_workers)
    n_partitions = int((layout.rows > 0).sum())
    empty = _without_rows(layout, view)
    if empty and n_partitions >= n_workers:
        yield warning(
            message=f"{workers_text(empty)} {verb(empty, 'holds')} no rows of the "
            f"{layout.label}, so only {n_workers - len(empty):,} of "
            f"{plural(n_workers, 'worker')} will train",
            subject=empty,
            evidence={
                "empty_workers": len(empty),
                "workers": n_workers,
                "partitions": n_partitions,
            },
            remedy=_prepare(view),
            fixed_by="rebalance",
        )


#: the change that gives more workers a share, by the units that are too few
_MORE = {
    "row": "Use more rows or fewer workers.",
    "group": "Use more groups or fewer workers. All rows of a group stay on one "
    "worker.",
    "partition": "Leave out rechunk=, so that prepare may cut partitions; with qid it "
    "cuts them where groups end. Or load the data in more partitions.",
}


def _not_enough_for_all(view: View) -> Finding:
    """Report the workers that get no rows, since there are too few for all."""
    found = units(view)
    assert found is not None
    able = replace(view, trainers=None).eligible_workers
    idle = tuple(w.id for w in able if not view.eligible(w))
    needs = f", and a worker needs {found.least:,} of them" if found.least > 1 else ""
    return warning(
        message=f"the {view.layouts[0].label} has only "
        f"{plural(found.number, found.name)}{needs}, so only "
        f"{found.workers:,} of {plural(len(able), 'worker')} will train, without "
        f"{workers_text(idle)}",
        subject=idle,
        evidence={
            "empty_workers": len(idle),
            "workers": len(able),
            f"{found.name}s": found.number,
        },
        remedy=_MORE[found.name],
    )


def uneven_rows(view: View) -> Iterator[Finding]:
    """Find training rows that are uneven over the workers.

    All workers wait for the slowest in every round. A worker's share is in proportion
    to its threads, and it may hold 5 % more (``clustertune.prepare.tolerance``). Rows
    on a worker that will not train are always reported. If whole partitions cannot be
    placed more evenly, ``too_few_partitions`` reports it.

    Remedy: Run ``X, y = clustertune.prepare(client, X, y)``, which moves whole
    partitions with their companions. ``client.rebalance()`` balances bytes, moves
    nothing below 30 % of memory, and separates X from y.
    """
    for layout in _placed(view):
        yield from _misplaced(layout, view)
        if layout is view.layouts[0]:  # libraries score eval sets, and do not train
            yield from _uneven(layout, view)


def _misplaced(layout: Layout, view: View) -> Iterator[Finding]:
    eligible = {w.id for w in view.eligible_workers}
    wrong = [s for s in shares(layout, view) if s.rows and s.worker not in eligible]
    if wrong:
        ids, rows = tuple(s.worker for s in wrong), sum(s.rows for s in wrong)
        reason = (
            f"which {are(ids)} not running or not in workers=, so every fit must move "
            "them first"
        )
        if view.goal.one_per_host and view.trainers is not None:
            reason = "but one worker of each host is to train"
        yield warning(
            message=f"{plural(rows, 'row')} of the {layout.label} "
            f"{are(range(rows))} on {workers_text(ids)}, {reason}",
            subject=ids,
            evidence={"rows": rows, "total_rows": int(layout.rows.sum())},
            # without a worker that may train, prepare could move the rows nowhere
            remedy=_prepare(view) if eligible else "",
            fixed_by="rebalance" if eligible else "",
        )


def _uneven(layout: Layout, view: View) -> Iterator[Finding]:
    fullest = max(shares(layout, view), key=lambda s: s.share, default=None)
    if fullest is None or fullest.share <= 1 + view.goal.tolerance + _ROUNDING:
        return
    best = attainable(layout, view)
    if best >= fullest.share - _ROUNDING:  # too_few_partitions reports it
        return
    total = int(layout.rows.sum())
    yield warning(
        message=f"{workers_text([fullest.worker])} holds {times_text(fullest.share)} "
        f"its share of rows ({fullest.rows:,} of {total:,} of the {layout.label}), so "
        "the other workers wait for it; moving whole partitions can reduce that to "
        f"{best:.3g}",
        subject=(fullest.worker,),
        evidence={
            "imbalance": fullest.share,
            "best_imbalance": best,
            "tolerance": view.goal.tolerance,
        },
        remedy=_prepare(view),
        fixed_by="rebalance",
    )


# --- pairs ----------------------------------------------------------------------------


def separated_pairs(view: View) -> Iterator[Finding]:
    """Find partitions of X and companions that are on different workers.

    Every fit first brings X_i, y_i and the other companions to one worker. Dask may
    send the large X_i to the small y_i. Collections from different sources are often
    separated, and ``client.rebalance()`` separates pairs too. Replicas on several
    workers are information: Dask's active memory manager drops some of them every 2 s,
    and may separate pairs. It keeps the replicas that ``prepare`` has placed.

    Remedy: Run ``X, y = clustertune.prepare(client, X, y)``, which moves every y_i to
    its X_i, and keeps one replica. To keep pairs together from the start, take X and y
    from one frame and persist both in one call.
    """
    n_workers = len(view.now.workers)
    for layout in _placed(view):
        filled = layout.rows > 0
        torn = separated(layout, n_workers) & filled
        count, total = int(torn.sum()), int(filled.sum())
        if surplus := int((replicated(layout) & filled & ~torn).sum()):
            yield info(
                message=f"{surplus:,} of {plural(total, 'partition')} of the "
                f"{layout.label} have replicas on more than one worker; Dask will drop "
                "some, so the workers of these partitions may change",
                subject=layout.labels,
                evidence={"replicated": surplus, "partitions": total},
                remedy=_prepare(view),
                fixed_by="rebalance",
            )
        if not count:
            continue
        _, most = largest(held_bytes_by_worker(layout, n_workers), len(torn))
        nbytes = int((partition_bytes(layout) - most)[torn].sum())
        labels = layout.labels
        yield warning(
            message=f"{count:,} of {plural(total, 'partition')} ({count / total:.0%}) "
            f"of {names_text(labels)} are split over several workers, so every fit "
            f"sends at least {bytes_text(nbytes)} between workers",
            subject=labels,
            evidence={"separated": count, "partitions": total, "bytes": nbytes},
            remedy=_prepare(view),
            fixed_by="rebalance",
        )


# --- eval sets ------------------------------------------------------------------------


def eval_sets(view: View) -> Iterator[Finding]:
    """Find eval sets of which some workers lack the rows that the library needs.

    Each XGBoost worker scores its rows of an eval set. A worker without rows has no
    value of a custom metric, so the score of all workers is NaN (xgboost#9795). With
    categories it raises ``A worker cannot have empty input when a dataframe with
    categorical features is used``. A LightGBM worker needs all rows, since it stops by
    the score of the rows that it holds. If workers stop at different rounds, or have no
    rows, the fit hangs or fails. ``prepare`` does not copy an eval set that is the
    training data. It refuses such a set if the estimator sets early stopping, but
    cannot see the callbacks of ``fit``.

    Remedy: Run ``clustertune.prepare(client, X, y, eval_set=[(X_valid, y_valid)],
    estimator=model)``. It gives every worker some rows, or for LightGBM all rows, and
    returns ``.eval_set`` and ``.fit_kwargs``. If an eval set has fewer rows than there
    are workers, use more rows.
    """
    if not view.layouts:
        return
    if view.goal.workload.eval_copies:
        yield from _without_copies(view)
    elif view.goal.workload.eval_everywhere:
        for layout in view.layouts[1:]:
            if layout.loaded and layout.aligned:
                yield from _without_evals(layout, view)


def _without_evals(layout: Layout, view: View) -> Iterator[Finding]:
    empty = _without_rows(layout, view)
    if not empty:
        return
    n_workers, rows = len(view.eligible_workers), int(layout.rows.sum())
    fixed_by, remedy = view.goal.cutting_action, remedies.cut(view)
    if (layout.rows > 0).sum() >= n_workers:
        fixed_by, remedy = "rebalance", _prepare(view)
    if rows < n_workers:
        fixed_by = ""
        remedy = f"Use an eval set of at least {n_workers:,} rows."
    categories = any("category" in m.types for m in layout.collections)
    harm = ", so a custom metric has no value there, and its score is NaN"
    if categories:
        harm = f", which has categories, so {view.goal.workload.title} fails there"
    yield Finding(
        severity=Severity.warning if categories else Severity.info,
        message=f"{workers_text(empty)} {verb(empty, 'has')} no rows of "
        f"{layout.label}{harm}",
        subject=layout.labels,
        evidence={"empty_workers": len(empty), "workers": n_workers},
        remedy=remedy,
        fixed_by=fixed_by,
    )


def _without_copies(view: View) -> Iterator[Finding]:
    title, means = view.goal.workload.title, view.goal.workload.eval_everywhere
    for name in () if means else view.goal.training_eval_sets:
        yield info(
            message=f"{name} is the training data, and each worker scores its own "
            f"rows, so {title} returns the score of one worker, and "
            "with early stopping the fit would hang",
            subject=(name,),
            remedy="Fit without the callback early_stopping, or leave the training "
            "data out of eval_set=. For a score of all rows use `model.predict(X)`.",
        )
    harm = f"{title} would hang with early stopping"
    if means:
        harm = "a custom metric is the mean of the workers' scores, or NaN"
    training = view.layouts[0]
    for layout in view.layouts[1:]:
        known = all(x.loaded and x.aligned for x in (training, layout))
        if known and not are_in_place(layout, view):
            yield warning(
                message=f"{layout.label} is not completely on every worker, so {harm}",
                subject=layout.labels,
                remedy=remedies.run(
                    remedies.prepare(view), ", which copies it to every worker"
                ),
                fixed_by="replicate",
            )
