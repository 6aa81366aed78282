"""Checks of the coming fit: its memory, its workload and its eval sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from clustertune.core.model import Finding, Layout, Scalar, Severity, Unknown, View
from clustertune.core.wording import bytes_text, names_text, plural, workers_text
from clustertune.planner import forecast, layouts
from clustertune.planner.chunking import wanted_partitions
from clustertune.planner.forecast import Need
from clustertune.planner.machines import (
    by_host,
    host_cpus,
    host_memory,
    unknown_findings,
)
from clustertune.planner.memory import limit

# --- memory ---------------------------------------------------------------------------


def fit_memory(view: View) -> Iterator[Finding]:
    """Find workers without the memory that the fit needs besides the data.

    A fit makes copies of the data that Dask neither counts nor can spill. The
    workload's profile has their size as a multiple of the data, for XGBoost's ``hist``
    and float32 1.8 times with the data itself. A worker without this memory spills,
    pauses (XGBoost then hangs) or is killed, which shows as ``Invalid worker address``
    or ``Socket recv error``.

    The check gives each worker its even share of all data and eval sets, and adds the
    other memory of its process. That is at least the memory of a process that has
    imported the library. It compares the sum with ``memory_fraction`` (0.7) of the
    worker's limit, or of its part of the host's memory. The sum is an estimate, so the
    finding is a warning, and an error only with ``strict=True``. The suggested fixes
    pass the same test if no variable keeps replaced data or released keys.

    Remedy: Do one of the things that the finding names, the cheapest first:
    ``clustertune.prepare(client, X, y, dtype="float32")``, a workload that copies less,
    ``clustertune.release_data`` for other keys, more workers (``n_workers=8``), or a
    higher ``--memory-limit``.
    """
    workers = view.eligible_workers
    if not view.layouts or not workers:
        return
    needs = forecast.needs(view)
    if isinstance(needs, Unknown):
        yield Finding(
            severity=Severity.unknown,
            message=f"whether the fit has enough memory is {needs}",
            remedy="Run ``clustertune.prepare(client, X, y)``, which loads the data "
            "and checks again. For Parquet files ``clustertune.recommend_size`` tells "
            "it before loading.",
        )
        return
    if short := forecast.short(needs):
        yield _lacks_memory(view, short)
    yield from unknown_findings("usable memory", [(w, limit(w, view)) for w in workers])


def _lacks_memory(view: View, short: Sequence[Need]) -> Finding:
    worst = max(short, key=lambda need: need.lacking)
    ways, enough = forecast.ways(view), forecast.workers_needed(view)
    alone = "" if enough else "more workers alone would not do; "
    return Finding(
        severity=Severity.critical if view.goal.raises else Severity.warning,
        message=f"the fit needs about {bytes_text(worst.total)} on "
        f"{workers_text([worst.worker.id])}, {bytes_text(worst.lacking)} more than it "
        f"may fill; {len(short):,} of {plural(len(view.eligible_workers), 'worker')} "
        f"lack memory; {alone}cheapest fix: {ways[0].text}",
        subject=tuple(need.worker.id for need in short),
        evidence=_evidence(view, worst),
        remedy=f"Do one of these: {'; '.join(way.text for way in ways)}",
    )


def _evidence(view: View, worst: Need) -> dict[str, Scalar]:
    """The need as it is and after each change, and the limits that would be enough."""
    enough = forecast.workers_needed(view)
    return {
        "needed_bytes": round(worst.total),
        "lacking_bytes": round(worst.lacking),
        **{
            f"{name}_bytes": forecast.fullest(view, change)
            for name, change in forecast.options(view).items()
        },
        "workers_needed": enough if isinstance(enough, int) else None,
        "limit_needed": round(forecast.larger_workers(view).memory_limit),
    }


class _Host(NamedTuple):
    cpus: float  # usable by its workers
    memory: int  # bytes
    name: str


def one_machine(view: View, *, alone: float = 0.76) -> Iterator[Finding]:
    """Find data on which one machine could train without a cluster.

    If the data and its copies fit the memory of one host, one process there needs no
    Dask and saves its overhead. The check reports a host if threads of the cluster /
    CPUs of the host * ``alone`` is at most 1. It counts only threads that have a CPU to
    themselves, and does not estimate the time. Memory is estimated as in
    ``fit_memory``. The check is silent if sizes, CPUs or memory are unknown.

    Remedy: Load the data into one process (``X.compute()``, or pandas) and call the
    library's own ``fit`` there. Stay with the cluster if the data will grow, or if
    other work needs it there.

    Parameters
    ----------
    alone
        Time of one process over the time of a cluster with as many CPUs. The default
        was measured with XGBoost on two CPUs.
    """
    wanted = forecast.demand(view)
    threads = sum(_busy_threads(view))
    if not view.layouts or not threads or isinstance(wanted, Unknown):
        return
    needed = sum(wanted) + view.goal.workload.base_bytes
    fitting = [
        h for h in _hosts(view) if needed <= view.goal.memory_fraction * h.memory
    ]
    best = max(fitting, default=None)
    if best is None or threads / best.cpus * alone > 1:
        return
    yield Finding(
        severity=Severity.info,
        message=f"The data and its copies fit one machine: about {bytes_text(needed)} "
        f"of {bytes_text(best.memory)} on {names_text([best.name])}; one process "
        f"without Dask on its {best.cpus:g} CPUs may be as fast as this cluster with "
        f"{plural(threads, 'thread')}",
        evidence={
            "needed_bytes": round(needed),
            "memory": best.memory,
            "threads": threads,
            "cpus": best.cpus,
        },
    )


def _busy_threads(view: View) -> Iterator[float]:
    """By host, the threads that can run at once."""
    for workers in by_host(view.eligible_workers).values():
        threads, cpus = sum(w.nthreads for w in workers), host_cpus(workers)
        yield threads if isinstance(cpus, Unknown) else min(threads, cpus.usable)


def _hosts(view: View) -> Iterator[_Host]:
    """Hosts of eligible workers whose CPUs and memory are known."""
    for name, workers in by_host(view.eligible_workers).items():
        cpus, memory = host_cpus(workers), host_memory(workers)
        if not isinstance(cpus, Unknown) and not isinstance(memory, Unknown):
            yield _Host(cpus.usable, memory, name)


# --- workload -------------------------------------------------------------------------


def missing_estimator(view: View) -> Iterator[Finding]:
    """Find data that is prepared for any library, while some libraries need more.

    LightGBM's classifier needs every class on every worker, and a ranking needs groups
    that are whole and in order. Otherwise they train a wrong model without an error.
    Without ``estimator=`` clustertune only makes rows even and keeps
    pairs together.

    Remedy: Pass the model, ``clustertune.prepare(client, X, y, estimator=model)``, or
    the name of a workload, as ``estimator="lightgbm"``.
    """
    if view.goal.chosen or not view.layouts:
        return
    groups = any(m.label == "qid" for m in view.layouts[0].members)
    if not groups and "lightgbm" not in view.goal.imported:
        return
    why = "LightGBM's classifier needs every class on every worker"
    if groups:
        why = "a ranking needs query groups that are whole and in order"
    yield Finding(
        severity=Severity.warning if groups else Severity.info,
        message=f"the data is prepared for any library, but {why}: pass estimator=",
    )


def changed_partitions(view: View) -> Iterator[Finding]:
    """Find another number of partitions, on which the model depends.

    ADMM solves one problem for each partition and divides its penalty by their number,
    so its coefficients depend on that number. ``Incremental`` uses each partition as a
    mini-batch, and blockwise voting fits one model to each. With another number of
    partitions than in the fit before, or than in the given data, the model differs.

    Remedy: Run ``clustertune.prepare(client, X, y, estimator=model)``. It keeps the
    number of the last call for as many rows, if there are no more workers than
    partitions. Or set the number with ``rechunk=8``; then at most 8 workers train.
    """
    layout = view.layouts[0] if view.layouts else None
    if layout is None or not view.goal.workload.keeps_partitions or not layout.aligned:
        return
    now, total = len(layout.rows), int(layout.rows.sum())
    rows, before = view.goal.kept or (0, 0)
    if rows == total:
        if now != before:
            yield _unlike_before(layout, before, view)
    elif view.given not in (None, now):
        yield _unlike_given(layout, view)


def _unlike_before(layout: Layout, before: int, view: View) -> Finding:
    now, rows = len(layout.rows), int(layout.rows.sum())
    return Finding(
        severity=Severity.warning,
        message=f"the {layout.label} has {plural(now, 'partition')}, and had "
        f"{before:,} for the fit before: {view.goal.workload.title} would make "
        "another model",
        subject=tuple(m.label for m in layout.members),
        evidence={"partitions": now, "before": before},
        fixed_by=view.goal.cutting if wanted_partitions(view, rows) == before else "",
    )


def _unlike_given(layout: Layout, view: View) -> Finding:
    now, given = len(layout.rows), view.given
    return Finding(
        severity=Severity.info,
        message=f"the {layout.label} was given in {plural(given or 0, 'partition')} "
        f"and has {now:,} now: {view.goal.workload.title} makes another model",
        subject=tuple(m.label for m in layout.members),
        evidence={"partitions": now, "given": given},
        remedy=f"For the model of the given partitions pass rechunk={given}. Then at "
        f"most {plural(given or 0, 'worker')} will train.",
    )


# --- eval sets ------------------------------------------------------------------------


def missing_eval_rows(view: View) -> Iterator[Finding]:
    """Find workers without rows of an eval set with categories, which XGBoost needs.

    XGBoost learns the lists of categories from the rows of each worker, for every eval
    set. On a worker without rows it raises ``A worker cannot have empty input when a
    dataframe with categorical features is used``. The other workers then report a
    failed connection.

    Remedy: Pass ``eval_set=`` and ``estimator=`` to ``clustertune.prepare``, which
    gives every worker some rows. If the eval set has fewer rows than there are workers,
    use more rows.
    """
    if not view.goal.workload.eval_everywhere:
        return
    for layout in view.layouts[1:]:
        listed = any("category" in m.types for m in layout.members)
        if listed and layout.loaded and layout.aligned:
            yield from _without_evals(layout, view)


def _without_evals(layout: Layout, view: View) -> Iterator[Finding]:
    workers = view.now.workers
    held, may = layouts.homes(layout, len(workers)), layouts.weights(view) > 0
    filled = np.zeros(len(workers), dtype=bool)
    filled[held[(layout.rows > 0) & (held >= 0)]] = True
    empty = tuple(workers[i].id for i in np.flatnonzero(may & ~filled).tolist())
    if not empty:
        return
    n_workers = int(may.sum())
    fixed_by = "" if layout.rows.sum() < n_workers else view.goal.cutting
    if (layout.rows > 0).sum() >= n_workers:
        fixed_by = "rebalance"
    yield Finding(
        severity=Severity.warning,
        message=f"no rows of {layout.label} on {workers_text(empty)}: as it has "
        f"categories, {view.goal.workload.title} fails there",
        subject=tuple(m.label for m in layout.members),
        evidence={"empty": len(empty), "workers": n_workers},
        fixed_by=fixed_by,
    )


def unreplicated_eval_sets(view: View) -> Iterator[Finding]:
    """Find eval sets of which a library needs all rows on every worker.

    LightGBM scores an eval set on each worker with the rows of that worker. Each worker
    decides by its own score when to stop. If they stop at different rounds, the slower
    one hangs or fails with ``Socket recv error``. A worker without rows raises ``For
    early stopping, at least one dataset is required``, and the others wait for it.

    ``prepare`` leaves an eval set that is the training data as it is, and the library
    keeps the score of one worker. That is harmless without early stopping. ``prepare``
    refuses such an eval set if the estimator sets early stopping, but cannot see the
    callbacks of ``fit``.

    Remedy: Pass ``eval_set=`` and ``estimator=`` to ``clustertune.prepare``. It copies
    each eval set to every worker, and returns ``.eval_set`` and ``.fit_kwargs``.
    """
    if not view.goal.workload.eval_copies or not view.layouts:
        return
    for name in view.goal.evaluated:
        yield Finding(
            severity=Severity.info,
            message=f"{name} is the training data, and each worker scores its own "
            f"rows: the score of {view.goal.workload.title} is that of one worker, and "
            "with early stopping the fit would hang",
            subject=(name,),
            remedy="Fit without the callback early_stopping, or leave the training "
            "data out of eval_set. For a score of all rows use model.predict.",
        )
    training = view.layouts[0]
    for layout in view.layouts[1:]:
        known = all(x.loaded and x.aligned for x in (training, layout))
        if known and not layouts.are_in_place(layout, view):
            yield Finding(
                severity=Severity.warning,
                message=f"{layout.label} is not completely on every worker: with early "
                f"stopping {view.goal.workload.title} would hang",
                subject=tuple(m.label for m in layout.members),
                fixed_by="replicate",
            )
