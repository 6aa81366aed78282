"""Properties of a layout equal those of plain loops over its partitions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.sizeof import sizeof
from distributed import wait
from hypothesis import given
from hypothesis import strategies as st

import clustertune
from clustertune.actions import placing
from clustertune.core.model import Finding, Layout, Severity, Unknown, View
from clustertune.errors import CapacityError
from clustertune.planner import layouts
from clustertune.planner.layouts import (
    HeldBytes,
    collection_bytes,
    held_bytes,
    largest_partition,
    list_bytes,
    sum_bytes,
)
from tests.builders import collection, layout, view, worker
from tests.in_process import TWO, gen_cluster

ROWS = 40_000

# --- layouts --------------------------------------------------------------------------


Spread = dict[str, list[list[int]]]
"""By label of collection, for every partition the workers that hold it."""


@st.composite
def cases(draw: Any, *, whole: bool = False) -> tuple[Layout, View, Spread]:
    """Draw a layout with replicas, separated pairs and, unless ``whole``, missing
    partitions.
    """
    n_workers = draw(st.integers(1, 4))
    rows = draw(st.lists(st.integers(0, 5), min_size=1, max_size=6))
    holders = st.lists(
        st.integers(0, n_workers - 1), unique=True, min_size=whole, max_size=3
    )
    one_collection = st.lists(holders, min_size=len(rows), max_size=len(rows))
    labels = ["X", "y", "w"][: draw(st.integers(1, 3))]
    spread = {label: draw(one_collection) for label in labels}
    widths = {label: draw(st.integers(1, 3)) for label in labels}
    workers = [
        worker(
            i,
            nthreads=draw(st.integers(1, 3)),
            status=draw(st.sampled_from(["running", "running", "paused"])),
        )
        for i in range(n_workers)
    ]
    data = layout(rows, spread, labels, row_bytes=widths)
    return data, view(workers, [data]), spread


def bytes_by_holder(data: Layout, spread: Spread) -> dict[tuple[int, int], int]:
    found: dict[tuple[int, int], int] = {}
    for m in data.collections:
        for partition, workers in enumerate(spread[m.label]):
            for w in workers:
                found[partition, w] = found.get((partition, w), 0) + int(
                    m.nbytes[partition]
                )
    return found


def home_of(partition: int, held: dict[tuple[int, int], int]) -> int:
    """Return the worker with most bytes of a partition; -1: none."""
    there = {w: n for (p, w), n in held.items() if p == partition}
    return min(there, key=lambda w: (-there[w], w)) if there else -1


@given(cases())
def test_held(case: tuple[Layout, View, Spread]) -> None:
    """Bytes of all collections add up for each partition and holder."""
    data, seen, spread = case
    found = layouts.held_bytes_by_worker(data, len(seen.now.workers))
    triples = zip(
        found.partition.tolist(), found.worker.tolist(), found.nbytes.tolist()
    )
    assert {(p, w): n for p, w, n in triples} == bytes_by_holder(data, spread)
    assert len(found.partition) == len(bytes_by_holder(data, spread))


@given(cases())
def test_copied(case: tuple[Layout, View, Spread]) -> None:
    """A partition has surplus replicas if several workers hold one of its keys."""
    data, _, _ = case
    expected = [
        any((m.holders[0] == i).sum() > 1 for m in data.collections)
        for i in range(len(data.rows))
    ]
    assert layouts.replicated(data).tolist() == expected


@given(cases())
def test_homes(case: tuple[Layout, View, Spread]) -> None:
    """The home of a partition is the worker with most of its bytes, or none."""
    data, seen, spread = case
    held = bytes_by_holder(data, spread)
    expected = [home_of(i, held) for i in range(len(data.rows))]
    assert layouts.home_workers(data, len(seen.now.workers)).tolist() == expected


@given(cases())
def test_apart(case: tuple[Layout, View, Spread]) -> None:
    """A partition is together if some worker holds all its collections."""
    data, seen, spread = case
    expected = [
        rows > 0
        and not set.intersection(*(set(spread[m.label][i]) for m in data.collections))
        for i, rows in enumerate(data.rows.tolist())
    ]
    assert layouts.separated(data, len(seen.now.workers)).tolist() == expected


@given(cases())
def test_shares(case: tuple[Layout, View, Spread]) -> None:
    """Rows, bytes and partitions count at their home; shares follow running threads."""
    data, seen, spread = case
    held, workers = bytes_by_holder(data, spread), seen.now.workers
    threads = sum(w.nthreads for w in workers if w.running)
    for i, share in enumerate(layouts.shares(data, seen)):
        here = [p for p in range(len(data.rows)) if home_of(p, held) == i]
        rows = sum(int(data.rows[p]) for p in here)
        due = data.rows.sum() * workers[i].nthreads / max(1, threads)
        assert share.worker == workers[i].id
        assert share.partitions == len(here)
        assert share.rows == rows
        assert share.nbytes == sum(
            int(m.nbytes[p]) for m in data.collections for p in here
        )
        expected = rows / due if workers[i].running and due else 0.0
        assert share.share == pytest.approx(expected)


@given(cases(whole=True))
def test_imbalance(case: tuple[Layout, View, Spread]) -> None:
    """The imbalance is the largest share; it is above 1 unless rows are idle."""
    data, seen, _ = case
    found = layouts.imbalance(data, seen)
    shares = layouts.shares(data, seen)
    if not data.rows.sum():
        assert found == 1.0
        return
    assert found == max(s.share for s in shares)
    running = {w.id for w in seen.now.workers if w.running}
    if running and all(s.worker in running for s in shares if s.rows):
        assert found >= 1 - 1e-9


def test_a_worker_that_was_not_asked_for_is_due_nothing() -> None:
    """A worker that was not named should hold no rows."""
    workers = [worker(i, nthreads=2) for i in range(3)]
    data = layout([10, 10], [0, 1])
    seen = view(workers, [data])
    seen = replace(seen, goal=replace(seen.goal, workers=frozenset((0, 1))))
    assert layouts.weights(seen).tolist() == [2, 2, 0]
    assert [s.share for s in layouts.shares(data, seen)] == [1, 1, 0]


def test_more_bytes_than_a_float_counts() -> None:
    """Rows and bytes are exact far above a gigabyte."""
    many = 2**50 + 1
    data = layout([many, many], [0, 0], ["X"], row_bytes={"X": 1})
    only = layouts.shares(data, view([worker(0)], [data]))[0]
    assert only.rows == only.nbytes == 2 * many
    assert layouts.partition_bytes(data).tolist() == [many, many]


def test_nothing_is_held_of_what_is_not_loaded() -> None:
    """Data that is not in memory has no holder, replica or home."""
    data = layout([3, 3], None)
    assert layouts.held_bytes_by_worker(data, 2).partition.tolist() == []
    assert layouts.replicated(data).tolist() == [False, False]
    assert layouts.home_workers(data, 2).tolist() == [-1, -1]
    assert np.all(layouts.separated(data, 2))


# --- sizes ----------------------------------------------------------------------------


def test_loaded_data_has_the_bytes_of_its_partitions():
    """Loaded data has the measured size, whatever its metadata promised."""
    loaded = collection("X", [10, 20], [0, 1], row_bytes=8, total_bytes=1)
    assert collection_bytes(loaded) == 240


def test_data_that_is_not_loaded_tells_its_size_or_does_not():
    """Lazy data has the size of its metadata, or an unknown size."""
    assert collection_bytes(collection("X", [10, 20], None)) == 240
    silent = collection("X", [10, 20], None, total_bytes=None)
    assert "X is not loaded" in str(collection_bytes(silent))


def test_sizes_add_up_over_members():
    """The size of a layout is the sum; one unknown part makes it unknown."""
    loaded = layout([10], [0], row_bytes={"X": 80, "y": 8})
    assert sum_bytes(loaded.collections) == 880
    lazy = layout([10], None, total_bytes=None)
    assert isinstance(sum_bytes(lazy.collections), Unknown)


def test_the_largest_partition_has_all_members_of_an_aligned_layout():
    """A partition of aligned data is X_i with y_i."""
    assert largest_partition(layout([10, 30], [0, 1])) == 30 * 88


def test_the_largest_partition_of_data_not_loaded_is_in_proportion_to_rows():
    """Bytes of a lazy array follow its rows; others are spread evenly."""
    assert largest_partition(layout([10, 30], None, collections=["X"])) == 30 * 80
    keys = (("X", 0), ("X", 1))
    blind = layout(None, None, collections=["X"], keys=keys, total_bytes=100)
    assert largest_partition(blind) == 50
    assert isinstance(largest_partition(layout(None, None, keys=keys)), Unknown)


def test_held_bytes_count_every_copy():
    """Bytes on a worker include replicas; lazy data has none."""
    copied = layout([10, 10], [[0, 1], 1], collections=["X"], row_bytes={"X": 8})
    lazy = layout([10], None)
    np.testing.assert_array_equal(held_bytes([copied, lazy], 3), [80, 160, 0])


def test_a_running_holder_is_the_owner():
    """A key is read from a running worker if one holds it; -1 means that none does."""
    seen = view([worker(0, status="paused"), worker(1), worker(2)])
    (X,) = layout([1, 1, 1, 1], [[0, 2, 1], 0, [2, 1], []], ["X"]).collections
    assert layouts.owners(X, seen).tolist() == [2, 0, 2, -1]


# --- arranging ------------------------------------------------------------------------


def held(*entries):
    """Return holdings from (partition, worker, bytes)."""
    partition, worker, nbytes = np.array(entries, dtype=np.int64).reshape(-1, 3).T
    return HeldBytes(partition=partition, worker=worker, nbytes=nbytes)


# --- replicas -------------------------------------------------------------------------


TRAINING = layout([10, 0, 10, 10], [1, 0, 1, 0])
WRONG = Finding(
    severity=Severity.warning, message="", subject=("Xv",), fixed_by="replicate"
)


def evals(rows, homes, *, copied=False):
    valid = layout(rows, homes, ("Xv", "yv"), label="eval_set[0]")
    if not copied:
        return valid
    collections = [
        replace(m, keys=tuple((f"copied-{m.label}", i) for _, i in m.keys))
        for m in valid.collections
    ]
    return replace(valid, collections=tuple(collections))


def seen(valid, **overrides):
    return view([worker(i, **overrides) for i in range(2)], [TRAINING, valid])


def test_what_is_a_copy_is_told_by_its_keys():
    """Replicas of an eval set that is given again are recognized by their keys."""
    assert layouts.is_copied(evals([5, 5], [0, 1], copied=True))
    assert not layouts.is_copied(evals([5, 5], [0, 1]))
    assert layouts.copies(evals([5, 5, 0], [0, 1, 0], copied=True)) == 2
    assert layouts.copies(evals([5, 5], [0, 1])) == 1
    assert layouts.copies(evals([0, 0], [0, 1], copied=True)) == 1


def test_all_rows_once():
    """The given partitions count, or one of the replicas."""
    assert layouts.original(evals([0, 3, 4], [0, 1, 0])) == ((1, 0, 3), (2, 0, 4))
    copies = evals([0, 5, 5], [0, 1, 0], copied=True)
    assert layouts.original(copies) == ((1, 0, 5),)
    assert layouts.original(evals([0, 0], [0, 1])) == ((0, 0, 0),)


def test_first_partitions_are_those_with_rows():
    """The first partitions with rows of each worker, in the order of partitions."""
    assert layouts.first_partitions(seen(evals([5], [0]))).tolist() == [0, 3]


def test_what_is_in_place():
    """Each worker has as many partitions, and all rows in the first one."""
    assert layouts.are_in_place(
        evals([5, 0, 0, 5], [1, 0, 1, 0], copied=True),
        seen(evals([5], [0])),
    )
    for rows, homes in (
        ([5, 0, 0, 5], [0, 0, 1, 0]),
        ([5, 0, 5, 5], [1, 0, 1, 0]),
        ([5, 0, 0, 6], [1, 0, 1, 0]),
        ([5, 0, 0], [1, 0, 1]),
    ):
        valid = evals(rows, homes, copied=True)
        assert not layouts.are_in_place(valid, seen(valid))
    alone = view([worker(0)], [layout([4, 4], [0, 0]), evals([5, 0], [0, 0])])
    assert layouts.are_in_place(alone.layouts[1], alone)  # one worker needs no copy


def test_the_step():
    """Each worker's first partition gets all rows; the others get none."""
    valid = evals([3, 4], [0, 1])
    (step,) = placing.propose_replicas((WRONG,), seen(valid))
    recut = step.args
    assert recut.rows.tolist() == [7, 0, 0, 7]
    assert recut.targets.tolist() == [1, 0, 1, 0]
    assert recut.copies == 2
    assert [c.label for c in recut.cuts] == ["Xv", "yv"]
    for cut in recut.cuts:
        parts = zip(cut.new, cut.key, cut.start, cut.stop, cut.owner, strict=True)
        assert [tuple(int(x) for x in p) for p in parts] == [
            (0, 0, 0, 3, 0),
            (0, 1, 0, 4, 1),
            (1, 0, 0, 0, 0),
            (2, 0, 0, 0, 0),
            (3, 0, 0, 3, 0),
            (3, 1, 0, 4, 1),
        ]
    # of both collections three rows, four rows, and none, each in a list
    (one,) = list_bytes(np.array([1]))
    assert step.price.nbytes == 7 * 88 + 6 * one
    assert step.price.peak == 7 * 88


def test_nothing_to_do():
    """Without a finding there is no step."""
    assert list(placing.propose_replicas((), seen(evals([3], [0])))) == []


def test_copies_that_do_not_fit():
    """Each worker needs room for a replica, which is checked before the copy."""
    small = {"memory_limit": 4500, "process": 0}
    with pytest.raises(CapacityError, match=r"on every worker, .* 2 workers would"):
        list(placing.propose_replicas((WRONG,), seen(evals([20], [0]), **small)))


def test_two_sets_take_room_of_each_other():
    """The first set reduces the room for the second one."""
    one = evals([10], [0])
    other = layout([10], [0], ("Xw", "yw"), label="eval_set[1]")
    both = replace(WRONG, subject=("Xv", "Xw"))
    workers = [worker(i, memory_limit=7000, process=0) for i in range(2)]
    at = view(workers, [TRAINING, one, other])
    assert len(list(placing.propose_replicas((WRONG,), at))) == 1
    with pytest.raises(CapacityError, match=r"eval_set\[1\]"):
        list(placing.propose_replicas((both,), at))
    assert np.array_equal(at.layouts[1].rows, [10])


def test_an_eval_set_with_separated_labels_is_not_in_place():
    """Its larger part is on the right worker, but its labels are on another one."""
    training = layout([10], [0])
    for homes, expected in (
        ({"Xv": [0], "yv": [0]}, True),
        ({"Xv": [0], "yv": [1]}, False),
    ):
        valid = layout([5], homes, ("Xv", "yv"), label="eval_set[0]")
        built = view([worker(0), worker(1)], [training, valid])
        assert layouts.are_in_place(valid, built) == expected


# --- predicted bytes ------------------------------------------------------------------

#: bytes: in older Pythons 0 takes less than other numbers, and a range begins with one
SLACK = sizeof(pd.RangeIndex(1, 1)) - sizeof(pd.RangeIndex(0, 0))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=5), st.data())
def test_rows_of_a_frame(counts: list[int], data: st.DataObject) -> None:
    """Sizes are those of Dask, for any rows of any partition."""
    frame = pd.DataFrame(np.zeros((sum(counts), 3)), columns=list("abc"))
    ends = np.cumsum(counts)
    partitions = [
        frame.iloc[end - n : end] for end, n in zip(ends, counts, strict=True)
    ]
    held = collection(
        "X",
        counts,
        [0] * len(counts),
        nbytes=np.array([sizeof(p) for p in partitions]),
        fixed=sizeof(frame.iloc[:0]),
    )
    key = data.draw(st.integers(0, len(counts) - 1))
    start = data.draw(st.integers(0, counts[key]))
    stop = data.draw(st.integers(start, counts[key]))
    found = layouts.part_bytes(held, np.array([key]), np.array([stop - start]))
    assert found[0] == pytest.approx(
        sizeof(partitions[key].iloc[start:stop]), abs=SLACK
    )


@pytest.mark.parametrize("n", [1, 2, 3, 10])
def test_lists(n: int) -> None:
    """The size of a list of parts is that of Dask."""
    parts = [np.zeros(i) for i in range(n)]
    besides = sizeof(list(list(parts))) - sum(map(sizeof, parts))  # noqa: C414
    assert layouts.list_bytes(np.array([n])).tolist() == [besides]


# --- live -----------------------------------------------------------------------------


async def on_one(client: Any, address: str, *given: Any) -> Any:
    """Loaded on one worker."""
    loaded = [client.persist(x, workers=[address]) for x in given]
    await wait(loaded)
    return loaded


@gen_cluster(client=True, nthreads=TWO)
async def test_predicted_bytes_are_those_that_travel(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    """Of cuts and moves of all kinds of numbers, to the byte."""
    numbers = np.arange(4.0 * ROWS).reshape(ROWS, 4)
    frame = pd.DataFrame(numbers, columns=list("abcd"))
    frame["e"] = np.arange(ROWS, dtype="i4")
    labels = da.from_array(numbers[:, 0], chunks=ROWS // 3 + 1)
    kinds: list[tuple[Any, Any, dict[str, Any]]] = [
        (da.from_array(numbers.astype("f4"), chunks=(ROWS, 4)), labels, {}),
        (da.from_array(numbers, chunks=(ROWS // 2, 4)), labels, {"rechunk": 7}),
        (da.from_array(numbers, chunks=(9000, 3)), labels, {}),
        (dd.from_pandas(frame, npartitions=3), labels, {"rechunk": 4}),
        (dd.from_pandas(frame, npartitions=8), labels, {}),
        (
            dd.from_pandas(frame, npartitions=3),
            dd.from_pandas(frame["a"], npartitions=5),
            {"rechunk": 5},
        ),
    ]
    for features, target, asked in kinds:
        X, y = await on_one(c, a.address, features, target)
        prepared = await clustertune.prepare(c, X, y, **asked)
        steps = prepared.report.steps
        assert {step.status for step in steps} == {"done"}
        assert sum(step.nbytes for step in steps) > 0
        found = [s.nbytes for s in steps]
        # of each of at most 16 parts
        slack = 16 * SLACK
        assert [s.predicted_bytes for s in steps] == pytest.approx(found, abs=slack)
        del X, y, prepared
