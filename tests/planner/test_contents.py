"""Placement and cuts that give each worker every class."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustertune.core.model import Contents
from clustertune.errors import CapacityError
from clustertune.planner import chunking, contents
from clustertune.planner.chunking import at_edges
from clustertune.planner.contents import finer, missing_classes, place_all, present_in
from clustertune.planner.placement import place
from clustertune.remote.worker import content
from tests.builders import collection, layout, view, worker

# --- groups ---------------------------------------------------------------------------


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
    groups = contents.groups_of(data([1, 1, 2], [], [2, 2], [5]))
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
    assert contents.groups_of(data(*partitions)).together == together


def test_groups_that_are_not_known():
    """Runs are unknown without groups, before they are read, or without rows."""
    assert contents.groups_of(layout([1], [0])) is None
    assert contents.groups_of(layout([1], [0], ("qid",))) is None
    other = Contents(partitions=({"index": None},))  # without the groups
    assert contents.groups_of(layout([1], [0], ("qid",), contents=other)) is None
    assert contents.groups_of(data([], [])) is None


def test_eval_sets_have_groups_too():
    """Labels of collections of eval sets are recognized."""
    looked = Contents(partitions=(content.runs(np.array([3])),))
    valid = layout([1], [0], ("eval_set[0].qid",), contents=looked)
    assert contents.groups_of(valid).label == "eval_set[0].qid"


def test_boundaries_within_groups():
    """Boundaries within groups are listed once for all collections."""
    known = data([1, 1], [1, 2], X=[1, 2, 1])
    assert contents.cuts_in_groups(known, contents.groups_of(known)).tolist() == [1, 2]
    known = data([1, 1], [], [2, 2])
    assert contents.cuts_in_groups(known, contents.groups_of(known)).tolist() == []


def test_a_million_groups():
    """A million groups are arrays, without an object for each group."""
    partitions = [
        np.repeat(np.arange(i, i + 100_000), 3) for i in range(0, 10**6, 10**5)
    ]
    groups = contents.groups_of(data(*partitions))
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


# --- classes --------------------------------------------------------------------------


def array(*rows):
    return np.array(rows, dtype=np.int64)


def classes(labels, rows, most=64):
    """Return the classes of partitions with these rows."""
    ends = np.cumsum(rows)[:-1]
    looked = [content.classes(x, most) for x in np.split(np.array([*labels]), ends)]
    data = layout(list(rows), None, ("y",), contents=Contents(partitions=tuple(looked)))
    found = contents.classes_of(data)
    assert found is not None
    return found


def covered(target, present, claim):
    """Whether each eligible worker has every class."""
    return not missing_classes(present, target, claim > 0).any()


def all_on(target, rows, present, claim, *, nbytes=None, budget=None, tolerance=0.0):
    """The targets with which every worker has every class, from where rows are."""
    nbytes = rows if nbytes is None else nbytes
    budget = np.full(len(claim), np.inf) if budget is None else budget
    held = (np.arange(len(rows)), target, nbytes)
    limits = {"nbytes": nbytes, "budget": budget, "tolerance": tolerance}
    try:
        start = place(rows, held, claim, **limits)
    except CapacityError:
        start = place(rows, held, claim, **(limits | {"budget": None}))
    found = place_all(start, present, rows, held, claim, **limits)
    return None if found is None else found.target


def share_out(known, rows, target_of, claim, **how):
    """Share classes like ``actions.rechunk``: by few cuts first, then by more."""
    n_workers = int((claim > 0).sum())
    for alone in (False, True):
        rows = finer(known, rows, n_workers, alone=alone)
        present = present_in(known, rows)
        target = all_on(target_of(len(rows)), rows, present, claim, **how)
        if target is not None:
            return rows, present, target
    return None


# --- what is known --------------------------------------------------------------------


def test_what_is_known_of_classes():
    """The summary has the rows of each class in each partition, and some positions."""
    found = classes("aab" + "bcb", [3, 3])
    assert found.names == ("a", "b", "c")
    assert found.counts.tolist() == [[2, 1, 0], [0, 2, 1]]
    assert found.totals.tolist() == [2, 3, 1]
    assert [w.tolist() for w in found.witnesses] == [[0, 1], [2, 3, 5], [4]]


def test_of_many_rows_some_are_known():
    """Known positions are far apart, so cuts between them give useful partitions."""
    found = classes([7] * 1000, [1000], most=3)
    assert [w.tolist() for w in found.witnesses] == [[0, 499, 999]]
    assert found.counts.tolist() == [[1000]]


def test_numbers_that_are_equal_are_one_class():
    """Equal numbers of other types are one class; empty partitions add none."""
    partitions = [np.array([0, 1]), np.array([], dtype=int), np.array([True])]
    looked = tuple(content.classes(p, 9) for p in partitions)
    data = layout([2, 0, 1], None, ("y",), contents=Contents(partitions=looked))
    found = contents.classes_of(data)
    assert found.names == (0, 1)
    assert found.counts.tolist() == [[1, 1], [0, 0], [0, 1]]


@pytest.mark.parametrize(
    "data",
    [
        layout([3], [0], ("X",)),
        layout([3], [0]),
        layout([3], [0], contents=Contents(partitions=({"classes": None},))),
        layout(None, [0], contents=Contents(partitions=({"classes": []},))),
    ],
    ids=["no labels", "not looked at", "no classes", "rows unknown"],
)
def test_where_nothing_is_known(data):
    """Without labels or values the classes are unknown."""
    assert contents.classes_of(data) is None


# --- finer partitions -----------------------------------------------------------------


def test_classes_in_enough_partitions_need_no_cut():
    """Rows stay if classes are in enough partitions."""
    known = classes("abab", [2, 2])
    assert finer(known, array(2, 2), 2, alone=False).tolist() == [2, 2]


def test_sorted_labels_are_cut_within_each_class():
    """Each class gets as many partitions as there are workers, of similar size."""
    known = classes("a" * 12 + "b" * 12, [12, 12])
    assert finer(known, array(12, 12), 3, alone=False).tolist() == [3, 5, 4] * 2
    rows = finer(known, array(12, 12), 2, alone=False)
    assert present_in(known, rows).sum(axis=0).tolist() == [2, 2]


def test_rows_that_stand_alone():
    """A class of few rows gets one partition for each worker."""
    known = classes("abcabc", [6])
    assert finer(known, array(6), 2, alone=True).tolist() == [1] * 6


# --- sharing out ----------------------------------------------------------------------


def test_classes_that_are_on_one_worker_each():
    """Each worker keeps the larger partition of its class, so rows stay even."""
    present = np.array([[1, 0], [1, 0], [0, 1], [0, 1]], dtype=bool)
    target = all_on(array(0, 0, 1, 1), array(5, 7, 7, 5), present, np.ones(2))
    assert covered(target, present, np.ones(2))
    assert np.bincount(target, [5, 7, 7, 5]).tolist() == [12, 12]


def test_what_lies_well_stays():
    """Nothing moves if all classes are everywhere and rows are even."""
    present = np.array([[1, 1], [1, 1], [1, 0]], dtype=bool)
    before = array(0, 1, 1)
    target = all_on(before, array(9, 5, 4), present, np.ones(2))
    assert target.tolist() == [0, 1, 1]
    assert before.tolist() == [0, 1, 1]


def test_too_few_partitions():
    """Three partitions have two classes each, so no two workers can have all three."""
    present = np.array([[1, 1, 0], [1, 0, 1], [0, 1, 1]], dtype=bool)
    assert all_on(array(0, 0, 1), array(2, 2, 2), present, np.ones(2)) is None


def test_budgets_are_kept():
    """Another order would be as even, but too large for a worker."""
    present = np.array([[1, 0], [1, 0], [0, 1], [0, 1]], dtype=bool)
    for large in (0, 1):
        nbytes = np.where(np.arange(4) == large, 50, 10)
        target = all_on(
            array(0, 0, 1, 1),
            array(5, 5, 5, 5),
            present,
            np.ones(2),
            nbytes=nbytes,
            budget=np.array([70.0, 30.0]),
        )
        assert covered(target, present, np.ones(2))
        assert target[large] == 0


def test_a_worker_that_may_not_train_gets_nothing():
    """A worker that may not train needs no class."""
    present = np.array([[1, 0], [1, 0], [0, 1], [0, 1]], dtype=bool)
    claim = np.array([1.0, 0.0, 1.0])
    target = all_on(array(0, 0, 2, 2), array(1, 1, 1, 1), present, claim)
    assert covered(target, present, claim)
    assert set(target.tolist()) == {0, 2}


def test_shares_follow_the_claims():
    """Rows stay even in proportion to threads."""
    rng = np.random.default_rng(0)
    claim, rows = np.array([3.0, 1.0]), rng.integers(5, 9, 40)
    present = np.eye(4, dtype=bool)[np.sort(rng.integers(0, 4, 40))]
    target = all_on(np.arange(40) // 30, rows, present, claim, tolerance=0.05)
    load = np.bincount(target, rows) / (rows.sum() * claim / 4)
    assert covered(target, present, claim)
    assert load.max() <= 1.05


@given(st.data())
@settings(deadline=None, max_examples=50)
def test_always_a_way(data):
    """A row of each class for each worker suffices, for any cut, place and budget."""
    n_workers = data.draw(st.integers(1, 5), label="workers")
    n_classes = data.draw(st.integers(1, 6), label="classes")
    extra = data.draw(st.lists(st.integers(0, n_classes - 1), max_size=40))
    labels = data.draw(st.permutations([*range(n_classes)] * n_workers + extra))
    n_rows = len(labels)
    edges = data.draw(st.lists(st.integers(0, n_rows), max_size=8), label="edges")
    rows = np.diff([0, *sorted(edges), n_rows]).astype(np.int64)
    known = classes(labels, rows, most=n_workers)
    claims = st.lists(st.integers(1, 4), min_size=n_workers, max_size=n_workers)
    claim = np.array([*data.draw(claims), 0], dtype=np.float64)
    seed = data.draw(st.integers(0, 99), label="place")
    found = share_out(
        known,
        rows,
        lambda n: np.random.default_rng(seed).integers(0, n_workers, n),
        claim,
        nbytes=None,
        budget=np.full(n_workers + 1, float(data.draw(st.integers(0, 50)))),
    )
    assert found is not None
    rows, present, target = found
    assert rows.sum() == n_rows
    assert rows.min() > 0
    assert covered(target, present, claim)
    partition = np.repeat(np.arange(len(rows)), rows)
    for number in range(n_workers):  # in truth too, not only by what is known
        assert {labels[i] for i in np.flatnonzero(target[partition] == number)} == {
            *labels
        }


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("skewed", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_rows_stay_even(ordered, skewed, seed):
    """Rows stay within the tolerance for sorted, random, rare or frequent classes."""
    rng = np.random.default_rng(seed)
    labels = rng.geometric(0.5, 20_000) if skewed else rng.integers(0, 20, 20_000)
    labels = np.minimum(labels, 9)
    rows = chunking.even(20_000, 64)
    known = classes(np.sort(labels) if ordered else labels, rows)
    claim = np.array([2.0, 1, 1, 1, 1, 1, 1, 0])
    found = share_out(known, rows, lambda n: np.arange(n) % 7, claim, tolerance=0.05)
    rows, present, target = found
    share = 20_000 * claim[:7] / 8
    assert covered(target, present, claim)
    assert (np.bincount(target, rows)[:7] / share).max() <= 1.06


def test_many_partitions_classes_and_workers():
    """A thousand partitions of a hundred sorted classes, on 64 workers."""
    labels = np.sort(np.random.default_rng(0).integers(0, 100, 200_000))
    rows = chunking.even(len(labels), 1000)
    known = classes(labels, rows)
    claim = np.ones(64)
    rows, present, target = share_out(
        known, rows, lambda n: np.arange(n) * 64 // n, claim, tolerance=0.05
    )
    assert covered(target, present, claim)
    assert np.bincount(target, rows).max() <= 1.05 * 200_000 / 64


def test_whole_partitions():
    """They suffice if each class is in as many as workers train."""
    looked = tuple(content.classes(np.array([*x]), 9) for x in ("ab", "ab", "b", "a"))
    data = layout([2, 2, 1, 1], [0, 2, -1, 1], contents=Contents(partitions=looked))
    seen = view([worker(0), worker(1), worker(2, status="paused")], [data])
    known = contents.classes_of(data)
    assert contents.whole_partitions_suffice(data, known, seen)
    cut = replace(known, counts=array([2, 0], [0, 2], [0, 1], [0, 1]))
    assert not contents.whole_partitions_suffice(data, cut, seen)
