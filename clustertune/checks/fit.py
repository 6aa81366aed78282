"""Checks of the coming fit: its memory, its workload and its eval sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from clustertune.core.findings import Literal, info, unknown, warning
from clustertune.core.model import Finding, Layout, Scalar, Severity, Unknown, View
from clustertune.core.wording import bytes_text, names_text, plural, verb, workers_text
from clustertune.planner import forecast, grouping, layouts, remedies
from clustertune.planner.chunking import wanted_partitions
from clustertune.planner.forecast import Need
from clustertune.planner.machines import by_host, host_memory, unknown_findings
from clustertune.planner.memory import limit

# --- memory ---------------------------------------------------------------------------


def fit_memory(view: View) -> Iterator[Finding]:
    """Find workers without the memory that the fit needs besides the data.

    A fit makes copies of the data that Dask neither counts nor can spill. A worker
    without this memory spills, pauses (XGBoost then hangs) or is killed, which shows as
    ``Invalid worker address`` or ``Socket recv error``. The check multiplies each
    worker's share of the data as the workload's profile says, adds the other memory of
    its process, and compares this with 0.7 (``clustertune.prepare.memory_fraction``) of
    its limit. It stops ``prepare`` only with ``on_low_memory="raise"``.

    Remedy: Do one of the things that the finding names, the cheapest first: ``X =
    X.astype("float32")``, a workload that copies less, ``clustertune.release_data`` for
    other keys, more workers (``n_workers=8``), or a higher memory limit.
    """
    workers = view.eligible_workers
    if not view.layouts or not workers:
        return
    needs = forecast.needs(view)
    if isinstance(needs, Unknown):
        yield unknown(
            message=f"whether the fit has enough memory is {needs}",
            remedy=f"Run `{remedies.load(view)}`, which loads the data and checks "
            "again.",
            fixed_by="load" if view.loads_data else "",
        )
        return
    if short := forecast.short(needs):
        yield _lacks_memory(view, short)
    yield from unknown_findings("usable memory", [(w, limit(w, view)) for w in workers])


def _lacks_memory(view: View, short: Sequence[Need]) -> Finding:
    worst = max(short, key=lambda need: need.lacking)
    ids = tuple(need.worker.id for need in short)
    enough = forecast.workers_needed(view)
    only = "" if enough else "; more workers are not enough, as other memory fills them"
    return Finding(
        severity=Severity.critical
        if view.goal.raise_on_low_memory
        else Severity.warning,
        message=f"the fit needs about {bytes_text(worst.total)} on "
        f"{workers_text([worst.worker.id])}, {bytes_text(worst.lacking)} more than "
        f"{view.goal.memory_fraction:.0%} of its memory; {len(short):,} of "
        f"{plural(len(view.eligible_workers), 'worker')} {verb(ids, 'has')} too little "
        f"memory and may spill, pause or be killed{only}",
        subject=ids,
        evidence=_evidence(view, worst),
        remedy=f"Do one of these: {'; '.join(w.text for w in forecast.ways(view))}",
    )


def _evidence(view: View, worst: Need) -> dict[str, Scalar]:
    """The need as it is and after each change, and the limits that would be enough."""
    enough = forecast.workers_needed(view)
    return {
        "needed_bytes": round(worst.total),
        "missing_bytes": round(worst.lacking),
        **{
            f"{name}_bytes": forecast.fullest(view, change)
            for name, change in forecast.options(view).items()
        },
        "needed_workers": enough if isinstance(enough, int) else None,
        "needed_limit_bytes": round(forecast.larger_workers(view).memory_limit),
    }


def one_machine(view: View) -> Iterator[Finding]:
    """Find data that fits the memory of one host, so a fit needs no cluster.

    One process without Dask has no overhead of tasks and transfers, so it may be
    faster. The check estimates memory as ``fit_memory`` does, and does not estimate the
    time.

    Remedy: Load the data into one process (``X.compute()``, or pandas) and call the
    library's own ``fit`` there. Stay with the cluster if the data will grow, or if
    other work needs it there.
    """
    wanted = forecast.demand(view)
    if not view.layouts or isinstance(wanted, Unknown):
        return
    needed = sum(wanted) + view.goal.workload.base_bytes
    hosts = by_host(view.eligible_workers).items()
    found = [(host_memory(workers), name) for name, workers in hosts]
    known = [(n, name) for n, name in found if not isinstance(n, Unknown)]
    memory, host = max(known, default=(0, ""))
    if not known or needed > view.goal.memory_fraction * memory:
        return
    single = len(view.layouts[0].collections) == 1
    code = "X = X.compute()" if single else "X, y = dask.compute(X, y)"
    yield info(
        message=f"the data and its copies need about {bytes_text(needed)} and fit "
        f"host {names_text([host])} with {bytes_text(memory)}; one process without "
        "Dask may be faster",
        evidence={"needed_bytes": round(needed), "memory_bytes": memory},
        remedy=f"To compare, run `{code}` on such a host, and fit there without Dask.",
    )


# --- workload -------------------------------------------------------------------------


def missing_estimator(view: View) -> Iterator[Finding]:
    """Find data that is prepared for any library, while some libraries need more.

    LightGBM's classifier needs every class on every worker, and a ranking needs groups
    that are whole and in order. Otherwise they train a wrong model without an error.
    Without ``estimator=`` clustertune only makes rows even and keeps pairs together.

    Remedy: Pass the model, ``clustertune.prepare(client, X, y, estimator=model)``, or
    the name of a workload, as ``estimator="lightgbm"``.
    """
    if view.goal.workload_chosen or not view.layouts:
        return
    groups = grouping.has_groups(view.layouts[0])
    if not groups and "lightgbm" not in view.goal.imported:
        return
    why = "LightGBM's classifier needs every class on every worker"
    if groups:
        why = "a ranking needs query groups that are whole and in order"
    yield Finding(
        severity=Severity.warning if groups else Severity.info,
        message=f"the data is prepared for any library, but {why}",
        remedy=remedies.run(remedies.prepare(view, model="model")),
    )


def changed_partitions(view: View) -> Iterator[Finding]:
    """Find another number of partitions, on which the model depends.

    ADMM solves one problem for each partition, ``Incremental`` uses each partition as a
    mini-batch, and blockwise voting fits one model to each. With another number than in
    the fit before, or than in the given data, the model differs.

    Remedy: Run ``clustertune.prepare(client, X, y, estimator=model)``. It keeps the
    number of the last call for as many rows, if there are no more workers than
    partitions. Or set the number with ``rechunk=8``; then at most 8 workers train.
    """
    layout = view.layouts[0] if view.layouts else None
    if layout is None or not view.goal.workload.keeps_partitions or not layout.aligned:
        return
    now, total = len(layout.rows), int(layout.rows.sum())
    rows, before = view.goal.previous_shape or (0, 0)
    if rows == total:
        if now != before:
            yield _other_than_before(layout, before, view)
    elif view.given_partitions not in (None, now):
        yield _other_than_given(layout, view)


def _other_than_before(layout: Layout, before: int, view: View) -> Finding:
    now, rows = len(layout.rows), int(layout.rows.sum())
    fixed = view.goal.cutting_action if wanted_partitions(view, rows) == before else ""
    number: dict[str, Literal] = {} if fixed else {"rechunk": before}
    call = remedies.prepare(view, None, **number)
    return warning(
        message=f"the {layout.label} has {plural(now, 'partition')}, and had "
        f"{before:,} for the previous fit, so {view.goal.workload.title} would make "
        "another model",
        subject=layout.labels,
        evidence={"partitions": now, "previous_partitions": before},
        remedy=remedies.run(
            call,
            f" for {plural(before, 'partition')} again; then at most "
            f"{plural(before, 'worker')} will train",
        ),
        fixed_by=fixed,
    )


def _other_than_given(layout: Layout, view: View) -> Finding:
    now, given = len(layout.rows), view.given_partitions
    return info(
        message=f"the {layout.label} was given in {plural(given or 0, 'partition')} "
        f"and has {now:,} now, so {view.goal.workload.title} makes another model",
        subject=layout.labels,
        evidence={"partitions": now, "given_partitions": given},
        remedy="For the model of the given partitions run "
        f"`{remedies.prepare(view, rechunk=given or 1)}`; then at most "
        f"{plural(given or 0, 'worker')} will train.",
    )


# --- eval sets ------------------------------------------------------------------------


def missing_eval_rows(view: View) -> Iterator[Finding]:
    """Find workers without rows of an eval set with categories, which XGBoost needs.

    On such a worker XGBoost raises ``A worker cannot have empty input when a dataframe
    with categorical features is used``. The others report a failed connection.

    Remedy: Run ``clustertune.prepare(client, X, y, eval_set=[(X_valid, y_valid)],
    estimator=model)``, which gives every worker some rows. If the eval set has fewer
    rows than there are workers, use more rows.
    """
    if not view.goal.workload.eval_everywhere:
        return
    for layout in view.layouts[1:]:
        listed = any("category" in m.types for m in layout.collections)
        if listed and layout.loaded and layout.aligned:
            yield from _without_evals(layout, view)


def _without_evals(layout: Layout, view: View) -> Iterator[Finding]:
    workers = view.now.workers
    held, may = layouts.home_workers(layout, len(workers)), layouts.weights(view) > 0
    filled = np.zeros(len(workers), dtype=bool)
    filled[held[(layout.rows > 0) & (held >= 0)]] = True
    empty = tuple(workers[i].id for i in np.flatnonzero(may & ~filled).tolist())
    if not empty:
        return
    n_workers, rows = int(may.sum()), int(layout.rows.sum())
    fixed_by, remedy = view.goal.cutting_action, remedies.cut(view)
    if (layout.rows > 0).sum() >= n_workers:
        fixed_by, remedy = "rebalance", remedies.run(remedies.prepare(view))
    if rows < n_workers:
        fixed_by = ""
        remedy = f"Use an eval set of at least {n_workers:,} rows."
    yield warning(
        message=f"{workers_text(empty)} {verb(empty, 'has')} no rows of "
        f"{layout.label}, which has categories, so {view.goal.workload.title} fails "
        "there",
        subject=layout.labels,
        evidence={"empty_workers": len(empty), "workers": n_workers},
        remedy=remedy,
        fixed_by=fixed_by,
    )


def unreplicated_eval_sets(view: View) -> Iterator[Finding]:
    """Find eval sets of which a library needs all rows on every worker.

    Each LightGBM worker scores its own rows of an eval set, and decides by that score
    when to stop. If workers stop at different rounds, or have no rows, the fit hangs or
    fails. ``prepare`` does not copy an eval set that is the training data. It refuses
    such a set if the estimator sets early stopping, but cannot see the callbacks of
    ``fit``.

    Remedy: Run ``clustertune.prepare(client, X, y, eval_set=[(X_valid, y_valid)],
    estimator=model)``. It copies each eval set to every worker, and returns
    ``.eval_set`` and ``.fit_kwargs``.
    """
    if not view.goal.workload.eval_copies or not view.layouts:
        return
    for name in view.goal.training_eval_sets:
        yield info(
            message=f"{name} is the training data, and each worker scores its own "
            f"rows, so {view.goal.workload.title} returns the score of one worker, and "
            "with early stopping the fit would hang",
            subject=(name,),
            remedy="Fit without the callback early_stopping, or leave the training "
            "data out of eval_set=. For a score of all rows use `model.predict(X)`.",
        )
    training = view.layouts[0]
    for layout in view.layouts[1:]:
        known = all(x.loaded and x.aligned for x in (training, layout))
        if known and not layouts.are_in_place(layout, view):
            yield warning(
                message=f"{layout.label} is not completely on every worker, so "
                f"{view.goal.workload.title} would hang with early stopping",
                subject=layout.labels,
                remedy=remedies.run(
                    remedies.prepare(view), ", which copies it to every worker"
                ),
                fixed_by="replicate",
            )
