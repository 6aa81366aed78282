"""Rows of new pieces, where a workload needs more than even ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustertune.core.model import Contents
from clustertune.planner import boundaries
from clustertune.remote.worker import content
from clustertune.testing import layout, view, worker


def seen(data, *, workers=2, needs=None, **goal):
    """A view of data for a workload that needs this."""
    found = view([worker(i) for i in range(workers)], [data], **goal)
    workload = replace(found.goal.workload, **(needs or {}))
    return replace(found, goal=replace(found.goal, workload=workload))


# --- as many rows for each worker -----------------------------------------------------

EXACT = {"exact_rows": True}


@given(st.lists(st.integers(0, 40), min_size=1, max_size=8), st.integers(1, 5))
def test_as_many_rows_for_each(rows, workers):
    """Pieces of each worker follow each other; the rest is the last piece."""
    data, total = layout(rows, [0] * len(rows)), sum(rows)
    at = seen(data, workers=workers, needs=EXACT, tolerance=0.0)
    new, left = boundaries.new_rows(data, at, []), boundaries.remainder(data, at)
    if total < workers:
        assert left == 0
        assert new.tolist() == rows
        return
    assert left == total % workers
    assert new.sum() == total
    if left:
        assert new[-1] == left
    ends = {0, *np.cumsum(new).tolist()}
    each = total // workers
    if left or len(new) != len(rows):
        assert {i * each for i in range(workers + 1)} <= ends


def test_pieces_that_suit_stay():
    """Each worker can have as many of their rows, in whatever order."""
    data = layout([6, 4, 4, 6], [0, 0, 1, 1])
    at = seen(data, needs=EXACT, tolerance=0.0)
    assert boundaries.new_rows(data, at, []).tolist() == [6, 4, 4, 6]


def test_exact_rows_where_groups_are_given():
    """A library that needs the one knows nothing of the other: what is set aside is a
    piece of its own, and not the last one of those that there were."""
    data = layout([1, 1, 1, 1, 1, 2], [0, 0, 1, 1, 0, 1], ("X", "y", "qid"))
    at = seen(data, needs=EXACT, tolerance=0.0)
    assert boundaries.remainder(data, at) == boundaries.new_rows(data, at, [])[-1] == 1


def test_nothing_is_set_aside_of_what_is_not_cut():
    """Else it would be the last piece, whatever rows that has."""
    data = layout([4, 5], [0, 1])
    at = seen(data, needs=EXACT, tolerance=0.0, rechunk=False)
    assert boundaries.remainder(data, at) == 0
    assert boundaries.new_rows(data, at, []).tolist() == [4, 5]


def test_eval_sets_need_not_be_exact():
    """Nothing of them is set aside."""
    valid = layout([7], [0], ("Xv", "yv"), label="eval_set[0]")
    at = seen(layout([8, 8], [0, 1]), needs=EXACT)
    at = replace(at, layouts=(*at.layouts, valid))
    assert boundaries.remainder(valid, at) == 0
    assert boundaries.new_rows(valid, at, []).sum() == 7


# --- how many -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        pytest.param({}, None, id="any number"),
        pytest.param({"rechunk": 7}, 7, id="asked for"),
        pytest.param({"rechunk": False}, None, id="none is cut"),
        pytest.param({"kept": (40, 9)}, 9, id="as before"),
        pytest.param({"kept": (41, 9)}, None, id="of other data"),
        pytest.param({"kept": (40, 1)}, None, id="fewer than workers"),
        pytest.param({"kept": (40, 41)}, None, id="more than rows"),
        pytest.param({"kept": (40, 9), "rechunk": 7}, 7, id="asked for otherwise"),
    ],
)
def test_how_many_pieces_are_wanted(how, expected):
    """A model that is made of its pieces has as many as before."""
    data = layout([20, 20], [0, 1])
    at = seen(data, needs={"keeps_pieces": True}, **how)
    assert boundaries.wanted_pieces(at, 40) == expected
    other = seen(data, **how)
    asked = how.get("rechunk")
    assert boundaries.wanted_pieces(other, 40) == (asked or None)


def test_pieces_of_rows_that_all_travel():
    """Even, whatever the old ones are; no more than rows."""
    data = layout([1, 39], [0, 1])
    assert boundaries.fresh(data, seen(data)).tolist() == [5] * 8
    assert boundaries.fresh(data, seen(data, rechunk=3)).tolist() == [13, 13, 14]
    small = layout([1, 1], [0, 1])
    assert boundaries.fresh(small, seen(small)).tolist() == [1, 1]


# --- groups and copies ----------------------------------------------------------------


def ranked(*pieces, **how):
    looked = Contents(pieces=tuple(content.runs(np.array(p)) for p in pieces))
    rows = [len(p) for p in pieces]
    data = layout(rows, [0] * len(rows), ("X", "qid"), contents=looked)
    return boundaries.new_rows(
        data, seen(data, needs={"groups": "together"}, **how), []
    )


def test_pieces_end_where_groups_do():
    """Near the old ends, if the workers can lie evenly so."""
    ones, twos = [1] * 9, [2] * 10
    assert ranked([*ones, 2], twos[1:]).tolist() == [9, 10]
    assert ranked(ones, twos).tolist() == [9, 10]
    assert ranked([1, 2], [1, 2]).tolist() == [2, 2]  # sorted first


def test_a_group_that_all_rows_are_of():
    """There is one piece then, however many there were."""
    assert ranked([1], [1], [1]).tolist() == [3]


def test_copies_are_not_cut():
    """New pieces of one would be rows of nothing."""
    data = layout([7, 7, 0], [0, 1, 1], ("Xv", "yv"), label="eval_set[0]")
    members = [
        replace(m, keys=tuple((f"copied-{m.label}", i) for i in range(3)))
        for m in data.members
    ]
    data = replace(data, members=tuple(members))
    at = seen(layout([8, 8], [0, 1]))
    at = replace(at, layouts=(*at.layouts, data))
    assert boundaries.new_rows(data, at, []).tolist() == [7, 7, 0]


# --- classes --------------------------------------------------------------------------


def labelled(*pieces):
    looked = tuple(content.classes(np.array([*p]), 64) for p in pieces)
    rows = [len(p) for p in pieces]
    return layout(rows, [0] * len(rows), contents=Contents(pieces=looked))


def test_pieces_that_can_be_shared_out():
    """With the classes that each surely has."""
    data = labelled("aaaa", "bbbb")
    at = seen(data, needs={"needs_all_classes": True})
    rows, present = boundaries.covering(data, data.rows, at, alone=False)
    assert rows.sum() == 8
    assert present.sum(axis=0).tolist() == [2, 2]


@pytest.mark.parametrize(
    ("data", "needs", "workers"),
    [
        pytest.param(labelled("ab", "ab"), {}, 2, id="nobody needs them"),
        pytest.param(
            labelled("aa", "ab"), {"needs_all_classes": True}, 2, id="too few rows"
        ),
        pytest.param(
            labelled("aa", "ab"), {"needs_all_classes": None}, 2, id="maybe no classes"
        ),
        pytest.param(
            layout([4, 4], [0, 1]), {"needs_all_classes": True}, 2, id="not looked at"
        ),
    ],
)
def test_nothing_to_share_out(data, needs, workers):
    """Where it is not needed, not known, or cannot be."""
    at = seen(data, needs=needs, workers=workers)
    assert boundaries.covering(data, data.rows, at, alone=False) is None
