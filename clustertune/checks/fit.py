"""Checks of the coming fit: its memory and its workload."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clustertune.core.model import Finding, Layout, Scalar, Severity, Unknown, View
from clustertune.core.results import Literal, info, unknown, warning
from clustertune.core.wording import bytes_text, plural, verb, workers_text
from clustertune.planner import contents, forecast, remedies
from clustertune.planner.chunking import wanted_partitions
from clustertune.planner.forecast import Need
from clustertune.planner.machines import unknown_findings
from clustertune.planner.memory import limit

# --- memory ---------------------------------------------------------------------------


def fit_memory(view: View) -> Iterator[Finding]:
    """Find workers without the memory that the fit needs besides the data.

    A fit makes copies of the data that Dask neither counts nor can spill. A worker
    without this memory spills, pauses (XGBoost then hangs) or is killed, which shows as
    ``Invalid worker address`` or ``Socket recv error``. The check multiplies each
    worker's share of the data as the workload's profile says, adds the other memory of
    its process, and compares this with 0.7 (``clustertune.prepare.memory_fraction``) of
    its limit. For XGBoost's ``hist`` and LightGBM it adds up histograms, bins and
    sketches by the model's depth, leaves and bins. It stops ``prepare`` only with
    ``on_low_memory="raise"``.

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
    elif uncertain := [need for need in needs if need.may_lack]:
        yield _uncertain(uncertain)
    yield from unknown_findings("usable memory", [(w, limit(w, view)) for w in workers])


def _uncertain(needs: Sequence[Need]) -> Finding:
    worst = max(needs, key=lambda need: need.most)
    return unknown(
        message="whether the fit has enough memory is unknown: the fit takes between "
        f"{bytes_text(worst.total)} and {bytes_text(worst.most)} on "
        f"{workers_text([worst.worker.id])}, as trees may have fewer nodes than the "
        "model allows, and free memory may stay in the process",
        remedy="Use a smaller max_depth, num_leaves or max_bin, or larger workers: "
        "`clustertune.resize_workers(client, memory_limit=...)`",
        subject=tuple(need.worker.id for need in needs),
    )


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
    groups = contents.has_groups(view.layouts[0])
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
