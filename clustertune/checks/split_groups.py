"""Query groups that lie in several pieces, or come back after another.

A ranking objective compares the rows of one group. Where a group is cut, its halves are
ranked apart; on two workers XGBoost refuses or, with ``allow_group_split``, trains on
halves. Groups must be sorted, so that the rows of each follow each other. Looked for
with ``deep=True`` and where the workload ranks, as it reads ``qid``.

Remedy: ``prepare`` with a ranking estimator cuts where groups end; for any other
workload it joins pieces of such data and cuts none. By hand sort by group before
loading, and cut where groups end, for example ``frame.set_index("qid")``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from clustertune.core.model import Finding, Layout, Member, Severity, View
from clustertune.core.wording import plural
from clustertune.errors import GroupSplitError
from clustertune.planner import grouping

ERROR = GroupSplitError


def find(view: View) -> Iterator[Finding]:
    """Find groups that are cut or scattered."""
    if view.goal.workload.groups:
        for layout in view.layouts:
            yield from _cut_through(layout, view)
        return
    for member in (m for x in view.layouts for m in x.members):
        if member.label.rpartition(".")[2] != "qid" or member.contents is None:
            continue
        cut, unsorted = _cut(member), _unsorted(member)
        if cut:
            yield _finding(member, f"{plural(cut, 'group')} in two pieces", cut)
        if unsorted:
            text = f"groups that come back in {plural(unsorted, 'piece')}"
            yield _finding(member, text, unsorted)


def _cut_through(layout: Layout, view: View) -> Iterator[Finding]:
    """Where pieces end within a group; what is out of order is no group yet."""
    groups, needed = grouping.of(layout), view.goal.workload.groups
    if groups is None or not grouping.are_in_order(groups, needed):
        return
    count = len(grouping.cut(layout, groups))
    if count:
        yield Finding(
            severity=Severity.critical,
            message=f"{plural(count, 'group')} of {groups.label} would be cut: a piece "
            "ends within it",
            subject=tuple(m.label for m in layout.members),
            evidence={"count": count},
            fixed_by=view.goal.cutting,
        )


def _cut(member: Member) -> int:
    """How many pieces begin with the group with which the one before ends."""
    assert member.contents is not None
    ends = [p["ends"] for p in member.contents.pieces if p.get("ends")]
    return sum(a[1] == b[0] for a, b in pairwise(ends))


def _unsorted(member: Member) -> int:
    assert member.contents is not None
    return sum(bool(p.get("scattered")) for p in member.contents.pieces)


def _finding(member: Member, what: str, count: int) -> Finding:
    return Finding(
        severity=Severity.warning,
        message=f"{member.label} has {what}",
        subject=(member.label,),
        evidence={"count": count},
    )
