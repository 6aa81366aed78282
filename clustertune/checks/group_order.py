"""Query groups that come back after another, are not in order, or are missing.

A ranking objective compares the rows of one group, and libraries take rows that follow
each other with the same ``qid`` for one. LightGBM needs the rows of each group to be
neighbours; XGBoost needs the groups in ascending order too, else every worker sorts a
full copy of its data. Rows without a group (NaN, NA or masked) have no place in any
order.

XGBoost's ranker (from 3.0 on, with ``allow_group_split=False``) sorts frames by group
itself in every fit, so for it ``prepare`` sorts rows without being asked to. For other
workloads that is an error without ``sort=True``.

Remedy: ``X, y, qid = clustertune.prepare(client, X, y, qid=qid, sort=True)`` sorts all
rows by group, those of a group as they were; ``.row_order`` says where each came from.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import ORDER, Finding, Layout, Member, Severity, View
from clustertune.core.wording import plural
from clustertune.errors import GroupOrderError
from clustertune.planner import grouping

ERROR = GroupOrderError


def find(view: View) -> Iterator[Finding]:
    """Find groups that do not lie as the workload needs them."""
    needed, asked = view.goal.workload.groups, view.goal.order == "sort"
    for layout in view.layouts:
        yield from _missing(layout, view)
        groups = grouping.of(layout)
        if groups is None:
            continue
        if grouping.are_in_order(groups, "sorted" if asked else needed):
            if not asked and any(m.label == ORDER for m in layout.members):
                yield _sorted(groups.label, view)
            continue
        how = "do not come in ascending order"
        if not groups.together:
            how = "come back after another group"
        wrong = not grouping.are_in_order(groups, needed)
        sorts = view.goal.workload.sorts_groups and bool(view.goal.cutting)
        whole = groups.together or view.goal.workload.sorts_groups
        harm = "sort them in every fit" if whole else "split them"
        yield Finding(
            severity=Severity.critical if wrong else Severity.info,
            message=f"groups in {groups.label} {how}"
            + (f"; {view.goal.workload.title} would {harm}" if wrong else ""),
            subject=tuple(m.label for m in layout.members),
            evidence={"together": groups.together, "ascending": groups.ascending},
            fixed_by="reorder" if asked or sorts else "",
        )


def _sorted(label: str, view: View) -> Finding:
    """What was done without being asked for, as the order of rows has changed."""
    return Finding(
        severity=Severity.info,
        message=f"rows were sorted by {label}, which {view.goal.workload.title} would "
        "do in every fit: what was returned is in another order than what was given",
        subject=(label,),
        remedy=".row_order has the number that each row had: prediction["
        "np.argsort(row_order)] is in the order that was given",
    )


def _missing(layout: Layout, view: View) -> Iterator[Finding]:
    """Find rows without a group; no order of the rows can remedy that."""
    for member in layout.members:
        if member.label.rpartition(".")[2] != "qid" or member.contents is None:
            continue
        count = sum(piece.get("missing", 0) for piece in member.contents.pieces)
        if count:
            needed = view.goal.workload.groups or view.goal.order == "sort"
            yield Finding(
                severity=Severity.critical if needed else Severity.warning,
                message=f"{member.label} has {plural(count, 'row')} without a group "
                "(NaN, NA or masked), so these rows cannot be sorted or ranked",
                subject=(member.label,),
                evidence={"missing": count},
                remedy=_drop_rows(member),
            )


def _drop_rows(member: Member) -> str:
    """Code that drops the rows without a group from everything."""
    keep = "qid.notnull()"
    if member.kind == "array":
        keep = (
            "~(dask.array.isnan(dask.array.ma.getdata(qid)) | "
            "dask.array.ma.getmaskarray(qid))"
        )
    return (
        f"drop these rows from X, y, qid and every companion: `keep = {keep}; "
        "X, y, qid = X[keep], y[keep], qid[keep]`; or give them a group"
    )
