"""Shuffle graphs, computed here, give exactly the planned order."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustertune.actions import shuffle as action
from clustertune.collections import shuffling
from clustertune.collections.shuffling import ORDER
from clustertune.core.model import Contents, Finding, Severity
from clustertune.errors import CapacityError
from clustertune.remote.worker import content
from tests.builders import collection, layout, view, worker

KINDS = ("array", "matrix", "frame", "series")


def given_as(kind, numbers):
    """Return a collection of that kind, and all of its rows."""
    if kind == "array":
        return da.from_array(numbers, chunks=-1), numbers
    if kind == "matrix":
        rows = np.stack([numbers, -numbers], axis=1)
        return da.from_array(rows, chunks=-1), rows
    series = pd.Series(numbers, name="v")
    if kind == "series":
        return dd.from_pandas(series, npartitions=1), series
    frame = pd.DataFrame({"a": numbers, "b": [f"r{n}" for n in numbers]})
    return dd.from_pandas(frame, npartitions=1), frame


def parts(x, sizes):
    ends = np.cumsum(sizes).tolist()
    where = x if isinstance(x, np.ndarray) else x.iloc
    return [where[end - n : end] for end, n in zip(ends, sizes)]


def numbers_of(partition):
    """Return the numbers from which a partition was made."""
    if isinstance(partition, pd.DataFrame):
        assert [f"r{n}" for n in partition["a"]] == partition["b"].tolist()
        return partition["a"].tolist()
    values = np.asarray(partition)
    if values.ndim == 2:
        assert (values[:, 0] == -values[:, 1]).all()
        values = values[:, 0]
    return values.tolist()


def step_for(rows, homes, workers, qid=None, **goal):
    """Return the proposed step for X and y, or for X and qid."""
    collections = [collection("X", rows, homes), collection("y", rows, homes)]
    if qid is not None:
        looked = tuple(content.runs(p) for p in parts(qid, rows))
        made = collection("qid", rows, homes, contents=Contents(partitions=looked))
        collections.append(made)
    data = replace(layout([1], [0]), collections=tuple(collections))
    seen = view([worker(i) for i in range(workers)], [data], **goal)
    finding = Finding(
        severity=Severity.info, message="", subject=("X",), fixed_by="shuffle"
    )
    (step,) = action.propose((finding,), seen)
    return step


def carried_out(shuffle, collections, partitions):
    """Compute the graph here, and return the new partitions by label."""
    graph = shuffling.build(shuffle, collections)
    there = {
        key: partition
        for source in shuffle.sources
        for key, partition in zip(source.keys, partitions[source.label], strict=True)
    }
    assert set(graph.where) == set(graph.tasks)
    wanted = {label: list(keys) for label, keys in graph.partitions.items()}
    return {
        label: list(dask.get({**there, **graph.tasks}, keys))
        for label, keys in wanted.items()
    }


ROWS = st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any)


@given(ROWS, st.sampled_from(KINDS), st.sampled_from(["array", "series"]), st.data())
@settings(deadline=None, max_examples=30)
def test_sorted(rows, kind, kind_of_groups, data):
    """A stable sort by group; each group is in one partition."""
    total, workers = sum(rows), data.draw(st.integers(1, 3))
    some = st.lists(st.integers(0, 12), min_size=total, max_size=total)
    groups = np.array(data.draw(some, label="groups"))
    homes = [i % workers for i in range(len(rows))]
    shuffle = step_for(rows, homes, workers, groups, order="sort").args
    x, values = given_as(kind, np.arange(total))
    q, qvalues = given_as(kind_of_groups, groups)
    collections = {"X": x, "y": x, "qid": q}
    partitions = {"X": parts(values, rows), "qid": parts(qvalues, rows)}
    made = carried_out(shuffle, collections, {**partitions, "y": partitions["X"]})
    wanted = np.argsort(groups, kind="stable").tolist()
    for label in ("X", "y"):
        assert [len(p) for p in made[label]] == shuffle.rows.tolist()
        assert [n for p in made[label] for n in numbers_of(p)] == wanted
    assert np.concatenate(made[ORDER]).tolist() == wanted
    ends = [np.unique(np.asarray(p)) for p in made["qid"] if len(p)]
    assert all(a[-1] < b[0] for a, b in pairwise(ends))


@given(ROWS, st.sampled_from(KINDS), st.integers(1, 3), st.integers(0, 9))
@settings(deadline=None, max_examples=30)
def test_shuffled(rows, kind, workers, seed):
    """All collections get the same permutation; equal seeds give equal orders."""
    homes = [i % workers for i in range(len(rows))]
    x, values = given_as(kind, np.arange(sum(rows)))
    partitions = dict.fromkeys(("X", "y"), parts(values, rows))
    orders = []
    for _ in range(2):
        step = step_for(rows, homes, workers, order="rows", seed=seed)
        made = carried_out(step.args, {"X": x, "y": x}, partitions)
        order = [n for p in made["X"] for n in numbers_of(p)]
        assert sorted(order) == list(range(sum(rows)))
        assert [n for p in made["y"] for n in numbers_of(p)] == order
        assert np.concatenate(made[ORDER]).tolist() == order
        orders.append(order)
    assert orders[0] == orders[1]


@given(ROWS, st.data())
@settings(deadline=None)
def test_every_row_goes_somewhere_once(rows, data):
    """New partitions receive every row of the old partitions exactly once."""
    total, workers = sum(rows), data.draw(st.integers(1, 4))
    order = data.draw(st.sampled_from(["rows", "sort"]))
    some = st.lists(st.integers(0, 5), min_size=total, max_size=total)
    groups = np.array(data.draw(some)) if order == "sort" else None
    homes = [0] * len(rows)
    shuffle = step_for(rows, homes, workers, groups, order=order).args
    taken = np.diff(shuffle.starts, axis=1)
    assert (taken >= 0).all()
    assert shuffle.starts[:, 0].tolist() == [0] * len(rows)
    assert taken.sum(axis=1).tolist() == rows
    assert taken.sum(axis=0).tolist() == shuffle.rows.tolist()


def test_a_shuffle_is_uniform():
    """All orders of three rows in two partitions are equally probable."""
    x, values = given_as("array", np.arange(3))
    partitions = dict.fromkeys(("X", "y"), parts(values, [2, 1]))
    found = {}
    for seed in range(240):
        step = step_for([2, 1], [0, 1], 2, order="rows", seed=seed)
        made = carried_out(step.args, {"X": x, "y": x}, partitions)
        order = tuple(np.concatenate(made["X"]).tolist())
        found[order] = found.get(order, 0) + 1
    assert len(found) == 6
    chi_square = sum((n - 40) ** 2 / 40 for n in found.values())
    assert chi_square < 15.1  # exceeded once in 100 times, if they are


def test_whole_partitions():
    """Whole partitions are renumbered, without copies and moves."""
    step = step_for([3, 0, 2], [0, 1, 1], 2, order="partitions", seed=1)
    shuffle = step.args
    assert step.price.nbytes == 0
    whole = shuffle.partition_order.tolist()
    assert sorted(whole) == [0, 1, 2]
    assert shuffle.rows.tolist() == [[3, 0, 2][i] for i in whole]
    assert shuffle.targets.tolist() == [[0, 1, 1][i] for i in whole]
    graph = shuffling.build(shuffle, {})
    assert list(graph.partitions) == [ORDER]
    made = dask.get(dict(graph.tasks), list(graph.partitions[ORDER]))
    assert [m.tolist() for m in made] == [[[0, 1, 2], [], [3, 4]][i] for i in whole]
    x, _ = given_as("matrix", np.arange(5))
    futures = {key: ("number", j) for j, key in enumerate(graph.partitions[ORDER])}
    old = {"X": ["a", "b", "c"], "y": ["d", "e", "f"]}
    found = shuffling.collections(shuffle, {"X": x, "y": x}, old, graph, futures)
    assert found["X"].chunks == (tuple(shuffle.rows.tolist()), (2,))
    assert [found["X"].dask[k] for (k,) in found["X"].__dask_keys__()] == [
        "abc"[i] for i in whole
    ]
    assert found[ORDER].chunks == (tuple(shuffle.rows.tolist()),)


def test_numbers_of_an_order_before():
    """The row numbers of an earlier order are shuffled like any collection."""
    data = layout([2, 2], [0, 1], ("X", ORDER))
    finding = Finding(
        severity=Severity.info, message="", subject=("X",), fixed_by="shuffle"
    )
    for order in ("rows", "partitions"):
        (step,) = action.propose((finding,), view((), [data], order=order))
        x, _ = given_as("array", np.arange(4))
        graph = shuffling.build(step.args, {"X": x, ORDER: x})
        assert set(graph.partitions) == ({"X", ORDER} if order == "rows" else set())


@pytest.mark.parametrize("order", ["rows", "sort"])
def test_without_room(order):
    """Old and new partitions and transferred rows are in memory at the same time."""
    qid = np.arange(20)
    looked = tuple(content.runs(p) for p in parts(qid, [10, 10]))
    data = layout([10, 10], [0, 1], ("X", "qid"), contents=Contents(partitions=looked))
    finding = Finding(
        severity=Severity.info, message="", subject=("X",), fixed_by="shuffle"
    )
    workers = [worker(i, memory_limit=3000, process=0) for i in range(2)]
    with pytest.raises(CapacityError, match="cannot be sorted or shuffled"):
        list(action.propose((finding,), view(workers, [data], order=order)))


@pytest.mark.parametrize("order", ["rows", "sort"])
def test_too_many_tasks_are_refused(order, monkeypatch):
    """The fix joins partitions, and then the same request is possible."""
    old = [1000] * 8
    groups = np.tile(np.arange(1000), 8) if order == "sort" else None
    new = len(step_for(old, [0] * 8, 2, groups, order=order).args.rows)
    monkeypatch.setattr(action, "MAX_EXCHANGES", 2 * new)
    with pytest.raises(CapacityError, match=f"8 partitions and {new} new") as refused:
        step_for(old, [0] * 8, 2, groups, order=order)
    assert "`X = X.rechunk({0: 4000}); " in str(refused.value)
    joined = step_for([4000, 4000], [0, 0], 2, groups, order=order).args
    assert len(joined.rows) == new
