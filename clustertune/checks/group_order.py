"""Query groups that come back after another, or are not in order.

A ranking objective compares the rows of one group, and libraries take rows that follow
each other with the same ``qid`` for one. LightGBM needs the rows of each group to be
neighbours; XGBoost needs the groups in ascending order too, else every worker sorts a
full copy of its data.

Remedy: ``X, y, qid = clustertune.prepare(client, X, y, qid=qid, sort=True)`` sorts all
rows by group, those of a group as they were; ``.row_order`` says where each came from.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.errors import GroupOrderError
from clustertune.model import Finding, Severity, View
from clustertune.rows import grouping

ERROR = GroupOrderError


def find(view: View) -> Iterator[Finding]:
    """Find groups that do not lie as the workload needs them."""
    needed, asked = view.goal.workload.groups, view.goal.order == "sort"
    for layout in view.layouts:
        groups = grouping.of(layout)
        if groups is None or grouping.are_in_order(
            groups, "sorted" if asked else needed
        ):
            continue
        how = "do not come in ascending order"
        if not groups.together:
            how = "come back after another group"
        harm = "sort them on every worker" if groups.together else "split them"
        wrong = not grouping.are_in_order(groups, needed)
        yield Finding(
            severity=Severity.critical if wrong else Severity.info,
            message=f"groups in {groups.label} {how}"
            + (f"; {view.goal.workload.title} would {harm}" if wrong else ""),
            subject=tuple(m.label for m in layout.members),
            evidence={"together": groups.together, "ascending": groups.ascending},
            fixed_by="reorder" if asked else "",
        )
