"""The check ``group_order``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clustertune.checks.group_order import ERROR, find
from clustertune.errors import GroupOrderError
from clustertune.model import Contents, Severity
from clustertune.remote import content
from clustertune.testing import layout, view


def found(*pieces, needs="", order=""):
    """In data with these groups, one for each row."""
    looked = Contents(pieces=tuple(content.runs(np.array(p)) for p in pieces))
    data = layout([len(p) for p in pieces], [0] * len(pieces), ("X", "qid"))
    X, qid = data.members
    data = replace(data, members=(X, replace(qid, contents=looked)))
    seen = view((), [data], order=order)
    workload = replace(seen.goal.workload, groups=needs)
    return list(find(replace(seen, goal=replace(seen.goal, workload=workload))))


@pytest.mark.parametrize(
    ("pieces", "needs", "order"),
    [
        pytest.param([[3, 1], [3]], "", "", id="nothing is needed"),
        pytest.param([[3, 3], [3, 1]], "together", "", id="together across pieces"),
        pytest.param([[1, 1], [], [1, 2]], "sorted", "", id="sorted, an empty piece"),
        pytest.param([[1], [2]], "", "sort", id="sorted as was asked for"),
        pytest.param([[], []], "sorted", "", id="no rows"),
    ],
)
def test_silent_where_groups_lie_as_needed(pieces, needs, order):
    """Or nothing needs it."""
    assert found(*pieces, needs=needs, order=order) == []


def test_silent_where_nobody_looked():
    """Without groups, or before their values were read."""
    assert list(find(view())) == []
    assert list(find(view((), [layout([5], [0], ("X", "qid"))]))) == []


def test_groups_that_come_back():
    """Within a piece or across pieces; nothing puts it right unless asked for."""
    for pieces in ([[1, 2, 1]], [[1, 2], [1]]):
        (finding,) = found(*pieces, needs="together")
        assert finding.severity is Severity.critical
        assert finding.message == (
            "groups in qid come back after another group; Any training library would "
            "split them"
        )
        assert finding.subject == ("X", "qid")
        assert finding.fixed_by == ""
    assert ERROR is GroupOrderError


def test_groups_that_are_not_ascending():
    """Wrong for one library, right for another."""
    assert found([2, 1], needs="together") == []
    (finding,) = found([2, 1], needs="sorted")
    assert "do not come in ascending order" in finding.message
    assert "would sort them on every worker" in finding.message
    assert finding.severity is Severity.critical


def test_they_are_put_in_order_where_that_was_asked_for():
    """Which is no error, whatever will train."""
    (finding,) = found([2, 1], needs="", order="sort")
    assert finding.severity is Severity.info
    assert finding.fixed_by == "reorder"
    (finding,) = found([2, 1], needs="sorted", order="sort")
    assert finding.severity is Severity.critical
    assert finding.fixed_by == "reorder"
