"""The check ``group_order``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clustertune.checks.group_order import ERROR, find
from clustertune.core.model import Contents, Severity
from clustertune.errors import GroupOrderError
from clustertune.remote.worker import content
from clustertune.testing import layout, view


def found(*pieces, needs="", order="", sorts=False, **goal):
    """In data with these groups, one for each row."""
    looked = Contents(pieces=tuple(content.runs(np.array(p)) for p in pieces))
    data = layout([len(p) for p in pieces], [0] * len(pieces), ("X", "qid"))
    X, qid = data.members
    data = replace(data, members=(X, replace(qid, contents=looked)))
    seen = view((), [data], order=order, **goal)
    workload = replace(seen.goal.workload, groups=needs, sorts_groups=sorts)
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
    assert "would sort them in every fit" in finding.message
    assert finding.severity is Severity.critical


def test_they_are_put_in_order_where_that_was_asked_for():
    """Which is no error, whatever will train."""
    (finding,) = found([2, 1], needs="", order="sort")
    assert finding.severity is Severity.info
    assert finding.fixed_by == "reorder"
    (finding,) = found([2, 1], needs="sorted", order="sort")
    assert finding.severity is Severity.critical
    assert finding.fixed_by == "reorder"


def test_a_library_that_sorts_rows_itself():
    """They are sorted without being asked to, unless pieces must stay as they are."""
    for pieces in ([[1, 2, 1]], [[2, 1], [3]]):
        (finding,) = found(*pieces, needs="sorted", sorts=True)
        assert finding.fixed_by == "reorder"
        assert "would sort them in every fit" in finding.message
        (finding,) = found(*pieces, needs="sorted", sorts=True, rechunk=False)
        assert finding.severity is Severity.critical
        assert finding.fixed_by == ""


def test_rows_that_were_sorted():
    """Without being asked to: their order is another one, which is said."""
    looked = Contents(pieces=(content.runs(np.array([1, 1, 2])),))
    data = layout([3], [0], ("X", "qid", "row_order"))
    X, qid, order = data.members
    data = replace(data, members=(X, replace(qid, contents=looked), order))
    for asked, expected in (("", 1), ("sort", 0)):
        seen = view((), [data], order=asked)
        workload = replace(seen.goal.workload, groups="sorted", sorts_groups=True)
        seen = replace(seen, goal=replace(seen.goal, workload=workload))
        found_there = list(find(seen))
        assert [f.severity for f in found_there] == [Severity.info] * expected
        assert all(".row_order" in f.remedy for f in found_there)


@pytest.mark.parametrize(("needs", "order"), [("sorted", ""), ("", "sort"), ("", "")])
def test_rows_without_a_group(needs, order):
    """No order helps them, so the remedy is no order."""
    finding, *_ = found([1.0, np.nan], [np.nan], needs=needs, order=order)
    needed = bool(needs or order)
    assert finding.severity is (Severity.critical if needed else Severity.warning)
    assert finding.message.startswith("qid has 2 rows without a group")
    assert not finding.fixed_by
    assert "sort=True" not in finding.remedy
