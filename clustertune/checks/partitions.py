"""Checks of partitions: their number, their size and their boundaries."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

import numpy as np

from clustertune.core.model import (
    CollectionInfo,
    Finding,
    Layout,
    Severity,
    Unknown,
    View,
    critical,
    info,
    unknown,
    warning,
)
from clustertune.core.wording import (
    bytes_text,
    names_text,
    plural,
    times_text,
    workers_text,
)
from clustertune.planner import contents, remedies, suitability
from clustertune.planner.layouts import largest_partition, sum_bytes

#: partitions over the workload's limit: handling more can take longer than the fit
CRITICAL_RATIO = 8.0

# --- rows that do not match -----------------------------------------------------------


def misaligned_partitions(view: View) -> Iterator[Finding]:
    """Find X, y and companions that are not cut at the same rows.

    Training libraries join X_i with y_i by the number of the partition. If the rows
    differ, XGBoost without ``hist`` and LightGBM can train on labels of other rows
    without an error. The check compares lazy data after loading.

    Remedy: Run ``X, y = clustertune.prepare(client, X, y)``, which gives y
    and companions the partitions of X. By hand use ``y = y.rechunk({0: X.chunks[0]})``
    for arrays, or take X and y as columns of one DataFrame. If the numbers of rows
    differ, find the step that changed the rows of only one collection.
    """
    for layout in view.layouts:
        known = [m for m in layout.collections if m.rows is not None]
        first, *_ = known or layout.collections
        for other in layout.collections:
            if first.rows is not None and other.rows is not None:
                yield from _compare(first, other, view)
            elif (first.loaded and other.loaded) and (
                first.n_partitions != other.n_partitions
            ):
                yield _differing_counts(first, other)
        if len(known) < len(layout.collections) > 1:
            yield _unknown_rows(layout, view)


def _compare(a: CollectionInfo, b: CollectionInfo, view: View) -> Iterator[Finding]:
    """Compare the rows of each partition, and all rows."""
    rows, others = a.rows, b.rows
    if rows is None or others is None or np.array_equal(rows, others):
        return
    total, total_b = int(rows.sum()), int(others.sum())
    pairs = enumerate(zip_longest(rows.tolist(), others.tolist()))
    partition, counts = next((i, (n, m)) for i, (n, m) in pairs if n != m)
    first = ["none" if n is None else f"{n:,} rows" for n in counts]
    same = total == total_b
    if same:
        text = f"{a.label} and {b.label} have {total:,} rows each, but are cut at "
        text += "different rows, so a fit could pair rows with wrong labels"
    else:
        text = f"{a.label} has {plural(total, 'row')}, {b.label} has {total_b:,}, so "
        text += "their rows cannot be paired"
    yield critical(
        message=f"{text}; the first partition that differs is number {partition}: "
        f"{first[0]} in {a.label}, {first[1]} in {b.label}",
        subject=(a.label, b.label),
        evidence={
            "partition": partition,
            "rows": total,
            "other_rows": total_b,
            "same_total": same,
            "partitions": len(rows),
            "other_partitions": len(others),
        },
        remedy=remedies.cut(
            view, f", which gives {b.label} the partitions of {a.label}"
        )
        if same
        else _find_lost_rows(a, b),
        fixed_by=view.goal.cutting_action if same else "",
    )


def _lengths(collection: CollectionInfo) -> str:
    """Code of the rows of each partition."""
    name = remedies.name_of(collection.label)
    if collection.kind == "array":
        return f"{name}.compute_chunk_sizes().chunks[0]"
    return f"tuple({name}.map_partitions(len).compute())"


def _find_lost_rows(a: CollectionInfo, b: CollectionInfo) -> str:
    return (
        f"Find the step that changed the rows of only one of them, such as a filter. "
        f"`print({_lengths(a)}, {_lengths(b)})` shows the rows of each partition. "
        "To keep rows together, take both as columns of one DataFrame."
    )


def _differing_counts(a: CollectionInfo, b: CollectionInfo) -> Finding:
    return critical(
        message=f"{a.label} has {plural(a.n_partitions, 'partition')}, {b.label} has "
        f"{b.n_partitions:,}, so a fit could pair rows with wrong labels",
        subject=(a.label, b.label),
        evidence={"partitions": a.n_partitions, "other_partitions": b.n_partitions},
        # rows are unknown, so no code could cut one where the other is cut
        remedy=f"Make {a.label} and {b.label} from one collection, so that their "
        "partitions have the same rows.",
    )


def _unknown_rows(layout: Layout, view: View) -> Finding:
    labels = tuple(m.label for m in layout.collections if m.rows is None)
    when = "were not counted" if layout.loaded else "are known only after loading"
    return unknown(
        message=f"whether the collections of the {layout.label} are cut at the same "
        f"rows is unknown: the rows of {names_text(labels)} {when}",
        subject=labels,
        # prepare could not count the rows of loaded data either
        remedy=""
        if layout.loaded
        else remedies.run(
            remedies.load(view), ", which loads the data and compares it"
        ),
        fixed_by="load" if view.loads_data and not layout.loaded else "",
    )


def column_chunks(view: View) -> Iterator[Finding]:
    """Find arrays that are also cut by columns.

    Training libraries need all columns of a row in one partition. XGBoost and LightGBM
    fail on such an array; dask-ml's ``Incremental`` trains on the first block only.

    Remedy: Join the columns with ``X = X.rechunk({1: -1})``. ``prepare`` does so, too.
    """
    for collection in view.collections:
        if collection.column_blocks > 1:
            name = remedies.name_of(collection.label)
            line = f"{name} = {name}.rechunk({{1: -1}})"
            yield critical(
                message=f"{collection.label} is cut into "
                f"{collection.column_blocks} blocks of columns, but a fit needs all "
                "columns of a row in one partition",
                subject=(collection.label,),
                evidence={"column_blocks": collection.column_blocks},
                remedy=remedies.run(remedies.edit([collection.label], line)),
                fixed_by=view.goal.cutting_action if view.loads_data else "",
            )


def no_rows(view: View) -> Iterator[Finding]:
    """Find collections without a single row.

    No library can train on them, and the errors are about shapes. The rows of a frame
    are known only after counting, so an empty frame is found late.

    Remedy: Look at the source of the data with ``print(len(X))`` after each step. A
    filter may be too strict, or a path may name an empty folder.
    """
    for collection in view.collections:
        if collection.rows is not None and not collection.rows.sum():
            yield critical(
                message=f"{collection.label} has no rows, so nothing can be trained "
                "on it",
                subject=(collection.label,),
                evidence={"partitions": collection.n_partitions},
                remedy="Find the step that removed all rows: a filter that is too "
                f"strict, or a path to an empty folder. "
                f"`print({_lengths(collection)})` shows the rows of each partition.",
            )


# --- number and size ------------------------------------------------------------------


def too_few_partitions(view: View) -> Iterator[Finding]:
    """Find too few, or too large, partitions for every worker to have its share.

    With fewer partitions than workers some workers do not train. With 5 equal
    partitions on 4 workers one worker does the work of two. Eval sets may have fewer.

    Remedy: Run ``X, y = clustertune.prepare(client, X, y)``, which cuts partitions if
    memory allows and ``rechunk=False`` is not set. By hand, before loading, use ``X =
    X.rechunk({0: rows})`` for arrays, ``X = X.repartition(npartitions=n)`` for frames,
    and the same for y. Or train on fewer workers, named in ``workers=``.
    """
    layout = view.layouts[0] if view.layouts else None
    if layout is None or not layout.aligned:
        return
    best = suitability.fullest_share(layout, view)
    if not suitability.is_uneven(best, view):
        return
    n_workers = suitability.n_training(view)
    n_partitions = int((layout.rows > 0).sum())
    evidence: dict[str, float] = {"partitions": n_partitions, "workers": n_workers}
    severity = Severity.warning
    if n_partitions < n_workers:
        without = n_workers - n_partitions
        text = f"{plural(n_partitions, 'partition')} with rows for {n_workers:,} "
        text += f"workers, so {plural(without, 'worker')} cannot train"
    else:
        severity, evidence["best_imbalance"] = Severity.info, best
        text = f"{plural(n_partitions, 'partition')}, the largest of "
        text += f"{int(layout.rows.max()):,} rows, so one of "
        text += f"{plural(n_workers, 'worker')} has at least {times_text(best)} its "
        text += "share of rows, and the others wait for it"
    whole = view.goal.workload.whole_groups and contents.has_groups(layout)
    groups = " Groups are not cut." if whole else ""
    yield Finding(
        severity=severity,
        message=f"the {layout.label} has {text}",
        subject=layout.labels,
        evidence=evidence,
        remedy=f"{remedies.cut(view)}{groups}",
        fixed_by=view.goal.cutting_action,
    )


def too_many_partitions(view: View) -> Iterator[Finding]:
    """Find so many and so small partitions that handling them costs more than the fit.

    Every partition is a task to schedule, a key to keep and a block to join. Partitions
    of 1 MiB or more are never too many. For training data the finding is critical above
    8 times the workload's limit. It is a warning if you set the number
    (``rechunk=80``).

    Remedy: Run ``X, y = clustertune.prepare(client, X, y)``, which joins partitions
    unless ``rechunk=False`` is set. By hand, before loading, use ``X = X.rechunk({0:
    rows})`` for arrays, ``X = X.repartition(partition_size="100MB")`` for frames, and
    cut y at the same rows. One partition per thread is enough.
    """
    for number, layout in enumerate(view.layouts):
        if suitability.too_many(layout, view):
            yield _too_many(layout, view, training=number == 0)


def _too_many(layout: Layout, view: View, *, training: bool) -> Finding:
    threads = sum(w.nthreads for w in view.eligible_workers)
    limit = view.goal.workload.max_partitions_per_thread * threads
    n_partitions = max(m.n_partitions for m in layout.collections)
    size = sum_bytes(layout.collections)
    if isinstance(size, Unknown):
        severity, cutting, remedy = Severity.unknown, "", ""
        text = f"whether they are too small is unknown: {size.reason}"
    else:
        wanted = training and n_partitions == view.goal.partitions
        worse = training and n_partitions > CRITICAL_RATIO * limit and not wanted
        severity = Severity.critical if worse else Severity.warning
        cutting = "" if wanted else view.goal.cutting_action
        remedy = remedies.cut(view, ", which joins partitions")
        if wanted:
            remedy = remedies.run(remedies.omit_rechunk(remedies.prepare(view), view))
        text = f"{bytes_text(size / n_partitions)} each, so handling them can take "
        text += "longer than their work"
    return Finding(
        severity=severity,
        message=f"the {layout.label} has {plural(n_partitions, 'partition')} for "
        f"{plural(threads, 'thread')}: {text}",
        subject=layout.labels,
        evidence={"partitions": n_partitions, "threads": threads},
        remedy=remedy,
        fixed_by=cutting,
    )


def large_partitions(view: View) -> Iterator[Finding]:
    """Find partitions that are a large part of a worker's memory.

    A partition is moved, cut and converted as a whole, and meanwhile its bytes are in
    memory twice. So one large partition can make a worker spill or pause. The check
    reports more than a quarter of the smallest memory limit of the workers that may
    train. Before loading it estimates sizes in proportion to rows.

    Remedy: Run ``X, y = clustertune.prepare(client, X, y)``, which cuts them if memory
    allows. By hand, before loading, use ``X = X.rechunk({0: rows})`` for arrays, ``X =
    X.repartition(partition_size="100MB")`` for frames, and cut y at the same rows.
    """
    limited = [w for w in view.eligible_workers if w.memory_limit]
    if not limited:
        return
    smallest = min(limited, key=lambda w: w.memory_limit)
    limit = smallest.memory_limit
    for layout in view.layouts:
        largest = largest_partition(layout)
        if isinstance(largest, Unknown):  # fit_memory reports it
            continue
        if suitability.too_large(layout, view):
            yield warning(
                message=f"a partition of the {layout.label} has "
                f"{bytes_text(largest)}, {largest / limit:.0%} of the "
                f"{bytes_text(limit)} that {workers_text([smallest.id])} may use; "
                "moving or cutting it takes twice that memory",
                subject=layout.labels,
                evidence={"partition_bytes": largest, "limit_bytes": limit},
                remedy=remedies.cut(view, ", which cuts large partitions"),
                fixed_by=view.goal.cutting_action,
            )


def changed_partitions(view: View) -> Iterator[Finding]:
    """Find another number of partitions, on which the model depends.

    ADMM solves one problem for each partition, ``Incremental`` uses each partition as a
    mini-batch, and blockwise voting fits one model to each. With another number than in
    the given data, the model differs.

    Remedy: Set the number with ``rechunk=8``; then at most 8 workers train. Give the
    same number before each fit whose models you compare.
    """
    layout = view.layouts[0] if view.layouts else None
    if layout is None or not view.goal.workload.keeps_partitions or not layout.aligned:
        return
    now, given = len(layout.rows), view.given_partitions
    if given is not None and given != now:
        yield info(
            message=f"the {layout.label} was given in {plural(given, 'partition')} "
            f"and has {now:,} now, so {view.goal.workload.title} makes another model",
            subject=layout.labels,
            evidence={"partitions": now, "given_partitions": given},
            remedy="For the model of the given partitions run "
            f"`{remedies.prepare(view, rechunk=given)}`; then at most "
            f"{plural(given, 'worker')} will train.",
        )
