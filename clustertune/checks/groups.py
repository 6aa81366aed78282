"""Checks of query groups, which a ranking needs whole and in order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from clustertune.core.findings import critical, info, warning
from clustertune.core.model import (
    ORDER,
    CollectionInfo,
    Finding,
    Layout,
    Scalar,
    Severity,
    View,
)
from clustertune.core.wording import bytes_text, plural, printable, variable
from clustertune.planner import grouping, layouts, remedies
from clustertune.planner.memory import free_memory


def group_order(view: View) -> Iterator[Finding]:
    """Find groups that come back after another group, are not in order, or are missing.

    LightGBM needs the rows of each group to be neighbours. XGBoost also needs the
    groups in ascending order, else every worker sorts a full copy of its data.
    XGBoost's ranker (from 3.0 on, with ``allow_group_split=False``) sorts frames in
    every fit, so ``prepare`` sorts rows for it by default. Rows without a group (NaN,
    NA or masked) have no place in any order.

    Remedy: Run ``X, y, qid = clustertune.prepare(client, X, y, qid=qid, sort=True)``.
    It sorts all rows by group and keeps the order within a group. ``.row_order`` has
    the former number of each row.
    """
    needed, asked = view.goal.workload.groups, view.goal.order == "sort"
    for layout in view.layouts:
        yield from _without_group(layout, view)
        groups = grouping.of(layout)
        if groups is None:
            continue
        if not grouping.are_in_order(groups, "sorted" if asked else needed):
            yield _out_of_order(layout, groups, view)
        elif not asked and any(m.label == ORDER for m in layout.collections):
            yield _sorted(groups.label, view)


def _out_of_order(layout: Layout, groups: grouping.Groups, view: View) -> Finding:
    workload = view.goal.workload
    wrong = not grouping.are_in_order(groups, workload.groups)
    sorts = workload.sorts_groups and bool(view.goal.cutting_action)
    how = "do not come in ascending order"
    if not groups.together:
        how = "come back after another group"
    whole = groups.together or workload.sorts_groups
    harm = "sort them in every fit" if whole else "split them"
    return Finding(
        severity=Severity.critical if wrong else Severity.info,
        message=f"groups in {groups.label} {how}"
        + (f"; {workload.title} would {harm}" if wrong else ""),
        subject=layout.labels,
        evidence={"together": groups.together, "ascending": groups.ascending},
        remedy=remedies.run(
            remedies.prepare(view, sort=True), ", which sorts all rows by group"
        ),
        fixed_by="shuffle" if view.goal.order == "sort" or sorts else "",
    )


def _sorted(label: str, view: View) -> Finding:
    """Report a sort that the user did not ask for, as it changes the order of rows."""
    return info(
        message=f"prepare sorted the rows by {label}, as {view.goal.workload.title} "
        "would in every fit: the returned rows are in another order than the given "
        "ones",
        subject=(label,),
        remedy="`prediction[numpy.argsort(row_order)]` is in the given order, with "
        "`row_order = prepared.row_order.compute()`.",
    )


def _without_group(layout: Layout, view: View) -> Iterator[Finding]:
    """Find rows without a group; no order of the rows can fix that."""
    for collection in layout.collections:
        count = _count(collection, "missing") if _is_qid(collection) else 0
        if count:
            needed = view.goal.workload.groups or view.goal.order == "sort"
            yield Finding(
                severity=Severity.critical if needed else Severity.warning,
                message=f"{collection.label} has {plural(count, 'row')} without a "
                "group (NaN, NA or masked), so these rows cannot be sorted or ranked",
                subject=(collection.label,),
                evidence={"missing": count},
                remedy=remedies.drop_rows(layout, collection),
            )


def _is_qid(collection: CollectionInfo) -> bool:
    return variable(collection.label) == "qid" and collection.contents is not None


def _count(collection: CollectionInfo, name: str) -> int:
    partitions = collection.contents.partitions if collection.contents else ()
    return sum(int(partition.get(name, 0)) for partition in partitions)


def split_groups(view: View) -> Iterator[Finding]:
    """Find groups that are split over several partitions, or come back after another.

    A library ranks the halves of a split group separately. With a group on two workers
    XGBoost raises an error, or with ``allow_group_split`` trains on halves. The check
    reads ``qid``, so it runs only with ``deep=True``, or if the workload ranks.

    Remedy: Run ``X, y, qid = clustertune.prepare(client, X, y, qid=qid,
    estimator=ranker)``, which cuts the data where groups end. By hand sort by group
    before loading, for example with ``frame.set_index("qid")``.
    """
    if view.goal.workload.groups:
        for layout in view.layouts:
            yield from _cut_through(layout, view)
        return
    for collection in filter(_is_qid, view.collections):
        cut, unsorted = _boundaries_within(collection), _count(collection, "scattered")
        if cut:
            text = f"{plural(cut, 'group')} in two partitions"
            yield _split(collection, text, {"groups": cut}, view)
        if unsorted:
            text = f"groups that come back in {plural(unsorted, 'partition')}"
            yield _split(collection, text, {"partitions": unsorted}, view)


def _cut_through(layout: Layout, view: View) -> Iterator[Finding]:
    """Find partitions that end within a group; ``group_order`` comes first."""
    groups, needed = grouping.of(layout), view.goal.workload.groups
    if groups is None or not grouping.are_in_order(groups, needed):
        return
    count = len(grouping.cut(layout, groups))
    if count:
        yield critical(
            message=f"{plural(count, 'group')} of {groups.label} would be split, as a "
            "partition ends within it",
            subject=layout.labels,
            evidence={"groups": count},
            remedy=remedies.cut(view, ", which cuts the data where groups end"),
            fixed_by=view.goal.cutting_action,
        )


def _boundaries_within(collection: CollectionInfo) -> int:
    """How many partitions begin with the group with which the previous one ends."""
    assert collection.contents is not None
    ends = [p["ends"] for p in collection.contents.partitions if p.get("ends")]
    return sum(a[1] == b[0] for a, b in pairwise(ends))


def _split(
    collection: CollectionInfo, what: str, evidence: dict[str, Scalar], view: View
) -> Finding:
    return warning(
        message=f"{collection.label} has {what}, which a ranking would split",
        subject=(collection.label,),
        evidence=evidence,
        remedy=remedies.run(
            remedies.prepare(view, model="ranker", sort=True),
            ", with your ranking estimator",
        ),
    )


def large_groups(view: View) -> Iterator[Finding]:
    """Find query groups for which no worker has enough memory.

    All rows of a group must be on one worker, however many workers there are.

    Remedy: Use workers with more memory, with ``clustertune.resize_workers(client,
    memory_limit="16 GiB")``. Or make the data smaller, for example with
    ``dtype="float32"``. Or leave out rows of that group.
    """
    rooms = free_memory(view)[layouts.weights(view) > 0]
    for layout in view.layouts if view.goal.workload.groups else ():
        groups = grouping.of(layout)
        if groups is None or not layout.loaded or not len(rooms):
            continue
        rows = np.unique(groups.values, return_inverse=True)[1].reshape(-1)
        sizes = np.bincount(rows, groups.counts)
        nbytes = sizes.max() * layout.nbytes / max(1, groups.counts.sum())
        if nbytes <= rooms.max():
            continue
        name = printable(str(groups.values[rows == sizes.argmax()][0]), longest=40)
        yield critical(
            message=f"the group {name} of {groups.label} has {int(sizes.max()):,} rows "
            f"({bytes_text(nbytes)}), and no worker has more than "
            f"{bytes_text(rooms.max())} free below the thresholds at which it spills",
            subject=(groups.label,),
            evidence={"rows": int(sizes.max()), "bytes": round(nbytes)},
            remedy="Use workers with more memory, or leave out rows of that group.",
        )
