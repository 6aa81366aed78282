"""Query groups: runs of equal ids, and cuts between groups."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustertune.core.model import Contents
from clustertune.planner import chunking, grouping
from clustertune.planner.chunking import at_edges
from clustertune.remote.worker import content
from tests.builders import collection, layout, view, worker


def array(*rows):
    return np.array(rows, dtype=np.int64)


def data(*partitions, X=None):
    """Return partitions with these group ids, one for each row; X may have others."""
    looked = Contents(partitions=tuple(content.runs(np.array(p)) for p in partitions))
    rows = [len(p) for p in partitions]
    X = rows if X is None else X
    collections = (
        collection("X", X, [0] * len(X)),
        collection("qid", rows, [0] * len(rows), contents=looked),
    )
    return replace(layout([1], [0]), collections=collections)


# --- what is known --------------------------------------------------------------------


def test_runs_go_on_across_partitions():
    """A group that ends one partition and begins the next is one run."""
    groups = grouping.of(data([1, 1, 2], [], [2, 2], [5]))
    assert groups.values.tolist() == [1, 2, 5]
    assert groups.counts.tolist() == [2, 3, 1]
    assert groups.edges.tolist() == [2, 5]
    assert groups.together


@pytest.mark.parametrize(
    ("partitions", "together"),
    [
        ([[1, 2]], True),
        ([[2], [1]], True),
        ([[1, 2, 1]], False),
        ([[1], [2], [1]], False),
        ([["a"], ["bb"]], True),
    ],
)
def test_groups_together(partitions, together):
    """The order within and across partitions, of numbers and of texts."""
    assert grouping.of(data(*partitions)).together == together


def test_where_nothing_is_known():
    """Runs are unknown without groups, before they are read, or without rows."""
    assert grouping.of(layout([1], [0])) is None
    assert grouping.of(layout([1], [0], ("qid",))) is None
    ends = Contents(partitions=({"ends": [1, 1]},))  # of a diagnosis
    assert grouping.of(layout([1], [0], ("qid",), contents=ends)) is None
    assert grouping.of(data([], [])) is None


def test_eval_sets_have_groups_too():
    """Labels of collections of eval sets are recognized."""
    looked = Contents(partitions=(content.runs(np.array([3])),))
    valid = layout([1], [0], ("eval_set[0].qid",), contents=looked)
    assert grouping.of(valid).label == "eval_set[0].qid"


def test_boundaries_within_groups():
    """Boundaries within groups are listed once for all collections."""
    known = data([1, 1], [1, 2], X=[1, 2, 1])
    assert grouping.cut(known, grouping.of(known)).tolist() == [1, 2]
    known = data([1, 1], [], [2, 2])
    assert grouping.cut(known, grouping.of(known)).tolist() == []


def test_a_million_groups():
    """A million groups are arrays, without an object for each group."""
    partitions = [
        np.repeat(np.arange(i, i + 100_000), 3) for i in range(0, 10**6, 10**5)
    ]
    groups = grouping.of(data(*partitions))
    assert len(groups.counts) == 10**6
    assert groups.together
    cuts = np.arange(1, 1000) * 3000 + 1
    assert at_edges(groups.edges, 3 * 10**6, cuts).tolist() == [3000] * 1000


# --- cuts -----------------------------------------------------------------------------


def test_cuts_at_edges():
    """Cuts are at the nearest edge; two cuts at the same edge become one."""
    assert at_edges(array(2, 5, 9), 12, array(3, 8)).tolist() == [2, 7, 3]
    assert at_edges(array(2, 5, 9), 12, array(5, 6)).tolist() == [5, 7]
    assert at_edges(array(2), 12, array(0, 11)).tolist() == [2, 10]
    assert at_edges(array(), 12, array(6)).tolist() == [12]
    assert at_edges(array(4), 12, array()).tolist() == [12]


@given(st.data())
def test_cuts_at_any_edges(data):
    """Cuts are as near as possible, never within a group, and no row is lost."""
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=20))
    total = sum(sizes)
    edges = np.cumsum(sizes)[:-1].astype(np.int64)
    cuts = np.array(sorted(data.draw(st.lists(st.integers(0, total)))), dtype=np.int64)
    rows = at_edges(edges, total, cuts)
    ends = np.cumsum(rows)
    assert ends[-1] == total
    assert rows.min() > 0
    assert set(ends[:-1].tolist()) <= set(edges.tolist())
    if len(edges):
        for wanted in cuts.tolist():
            nearest = np.abs(edges - wanted).min()
            assert np.abs(ends[:-1] - wanted).min() == nearest


def test_an_empty_partition_is_none_for_a_worker():
    """Two groups of one row become two partitions for two workers."""
    known = data(np.arange(0), np.arange(2))
    seen = view([worker(0), worker(1)], [known])
    goal = replace(seen.goal, workload=replace(seen.goal.workload, groups="together"))
    rows = chunking.divide(known, replace(seen, goal=goal), []).rows
    assert rows.tolist() == [1, 1]


@given(st.data())
@settings(deadline=None)
def test_new_partitions_end_where_groups_do(data_):
    """There are as many partitions as workers, if groups allow it."""
    sizes = data_.draw(st.lists(st.integers(1, 9), min_size=1, max_size=20))
    qid = np.repeat(np.arange(len(sizes)), sizes)
    cuts = data_.draw(st.lists(st.integers(0, len(qid)), max_size=6), label="cuts")
    known = data(*np.split(qid, sorted(cuts)))
    workers = [worker(i) for i in range(data_.draw(st.integers(1, 4)))]
    seen = view(workers, [known])
    goal = replace(seen.goal, workload=replace(seen.goal.workload, groups="together"))
    seen = replace(seen, goal=goal)
    rows = chunking.divide(known, seen, []).rows
    ends = np.cumsum(rows)
    assert ends[-1] == len(qid)
    assert set(ends[rows > 0].tolist()) <= set(np.cumsum(sizes).tolist())
    assert np.count_nonzero(rows) >= min(len(workers), len(sizes))
