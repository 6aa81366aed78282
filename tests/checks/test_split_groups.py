from __future__ import annotations

from dataclasses import replace

import numpy as np

from clustertune.checks.split_groups import ERROR, find
from clustertune.core.model import Contents, Severity
from clustertune.errors import GroupSplitError
from clustertune.remote.worker import content
from clustertune.testing import layout, view


def found(*pieces):
    """From (first, last, whether one comes back), or nothing of an empty piece."""
    told = [
        {"ends": None, "scattered": False}
        if p is None
        else {"ends": [p[0], p[1]], "scattered": p[2]}
        for p in pieces
    ]
    data = layout(
        [10] * len(told), None, ("qid",), contents=Contents(pieces=tuple(told))
    )
    return list(find(view((), [data])))


def test_silent_where_groups_are_whole():
    """Empty pieces are between nothing."""
    assert found((1, 2, False), None, (3, 5, False)) == []
    assert list(find(view((), [layout([10], [0], ("qid",))]))) == []


def test_groups_that_are_cut():
    """Also across an empty piece; and those that come back."""
    (finding,) = found((1, 2, False), None, (2, 5, False))
    assert finding.severity is Severity.warning
    assert finding.message == "qid has 1 group in two pieces"
    (finding,) = found((1, 2, True), (3, 5, True))
    assert finding.message == "qid has groups that come back in 2 pieces"


def ranked(*pieces, others=None, needs="together", **goal):
    """In data with these groups, one for each row; X may be cut otherwise."""
    looked = Contents(pieces=tuple(content.runs(np.array(p)) for p in pieces))
    rows = [len(p) for p in pieces]
    qid = layout(rows, [0] * len(rows), ("qid",), contents=looked).members[0]
    others = rows if others is None else others
    X = layout(others, [0] * len(others), ("X",)).members[0]
    data = replace(layout(rows, [0] * len(rows)), members=(X, qid))
    seen = view((), [data], **goal)
    workload = replace(seen.goal.workload, groups=needs)
    return list(find(replace(seen, goal=replace(seen.goal, workload=workload))))


def test_silent_where_pieces_end_with_groups():
    """Of all members; what is out of order is not cut yet, it is refused or sorted."""
    assert ranked([1, 1], [], [2, 3]) == []
    assert ranked([1, 1], [2, 3], others=[2, 1, 1]) == []
    assert ranked([1, 2], [1]) == []
    assert ranked([2], [2, 1], needs="sorted") == []


def test_groups_that_pieces_cut():
    """Where the workload ranks, they are put right, if cutting is allowed."""
    (finding,) = ranked([1, 1], [1, 2])
    assert finding.severity is Severity.critical
    assert finding.message == ("1 group of qid would be cut: a piece ends within it")
    assert finding.subject == ("X", "qid")
    assert finding.fixed_by == "rechunk"
    (finding,) = ranked([1, 1], [2, 2], others=[1, 2, 1])
    assert finding.evidence == {"count": 2}
    (finding,) = ranked([1, 1], [1, 2], rechunk=False)
    assert finding.fixed_by == ""
    assert ERROR is GroupSplitError
