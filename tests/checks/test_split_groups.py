from __future__ import annotations

from clustertune.checks.split_groups import find
from clustertune.model import Contents, Severity
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
