"""Cuts of partitions, decided without a cluster."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustertune import checks
from clustertune.actions import ACTIONS, rechunk
from clustertune.core.model import (
    Layout,
    Result,
    Step,
    View,
    attach_result,
    attached_result,
)
from clustertune.errors import CapacityError
from clustertune.planner import layouts
from clustertune.planner import plan as planner
from clustertune.planner.layouts import list_bytes
from clustertune.planner.plan import make_plan
from tests.builders import collection, layout, verify, view, worker
from tests.memory_cluster import MemoryCluster
from tests.operations.test_loop import now, run

MIB = 2**20


def proposed(seen: View) -> list[Step]:
    return list(rechunk.propose((*checks.run(seen), *planner.unmet_goals(seen)), seen))


def unlike(rows: list[int], others: list[int], homes: Any = 0) -> Layout:
    """X and y with different boundaries, all on one worker or round robin."""

    def lie(partitions: list[int]) -> list[int]:
        return [0 if homes == 0 else i % homes for i in range(len(partitions))]

    X = collection("X", rows, lie(rows), 80)
    y = collection("y", others, lie(others), 8)
    return Layout(label="training data", collections=(X, y))


def two(**options: Any) -> list[Any]:
    return [worker(0, **options), worker(1, **options)]


def test_silent_where_partitions_suit() -> None:
    """Aligned, even partitions of suitable size are not cut."""
    assert proposed(view(two(), [layout([10] * 8, [0, 1] * 4)])) == []


def test_silent_before_rows_are_known() -> None:
    """Lazy data, and data of different lengths, are not cut."""
    assert proposed(view(two(), [layout([20], None)])) == []
    assert proposed(view(two(), [unlike([10, 10], [10, 9])])) == []


def test_only_what_differs_is_cut() -> None:
    """The larger collection keeps its partitions."""
    (step,) = proposed(view(two(), [unlike([10] * 8, [20] * 4, homes=2)]))
    (cut,) = step.args.cuts
    assert cut.label == "y"
    assert step.args.rows.tolist() == [10] * 8
    assert step.price.nbytes is not None
    assert step.price.nbytes < 80 * 8


def test_what_stays_as_it_is_comes_along() -> None:
    """Partitions of X move in the step that cuts y, to the same workers."""
    start = view(two(), [unlike([10] * 8, [20] * 4, homes=0)])
    (step,) = proposed(start)
    (move,) = step.args.moves.moves
    assert move.label == "X"
    assert len(move.keys) == 4
    positions = [k[1] for k in move.keys]
    assert step.args.targets[positions].tolist() == move.targets.tolist()
    cluster = MemoryCluster(start)
    (outcome,) = run(cluster).outcomes
    assert cluster.calls == ["recut 8", "move 4"]
    (one,) = list_bytes(np.array([1]))
    assert outcome.nbytes == 40 * 88
    assert outcome.step.price.nbytes == 40 * 88 + 4 * one
    assert outcome.step.price.peak == 80 * 8 + 40 * 80 - 40 * 8
    assert not layouts.separated(now(cluster).layouts[0], 2).any()


def test_what_lies_evenly_enough_stays() -> None:
    """A cut of y does not move X if X is even enough."""
    X = collection("X", [104, 100, 100, 100], [0, 0, 1, 1], 80)
    y = collection("y", [202, 202], [0, 1], 8)
    data = Layout(label="training data", collections=(X, y))
    (step,) = proposed(view(two(), [data]))
    assert step.args.moves is None
    assert step.args.targets.tolist() == [0, 0, 1, 1]


def test_too_few_partitions_are_cut_for_every_thread() -> None:
    """One partition for each thread, on two workers with one and three threads."""
    some = [worker(0, nthreads=1), worker(1, nthreads=3)]
    (step,) = proposed(view(some, [layout([1600], [0])]))
    recut = step.args
    assert recut.rows.tolist() == [400] * 4
    assert np.bincount(recut.targets).tolist() == [1, 3]
    (one,) = list_bytes(np.array([1]))
    # parts of three new partitions travel, of X and of y, each in a list
    assert step.price.nbytes == 1200 * 88 + 6 * one


def test_tiny_partitions_are_joined() -> None:
    """Each thread gets one partition, in the order of rows."""
    tiny = layout([2] * 5000, [i % 2 for i in range(5000)])
    (step,) = proposed(view(two(), [tiny]))
    assert len(step.args.rows) == 2
    assert step.args.rows.sum() == 10_000


def test_large_partitions_are_cut() -> None:
    """Partitions have at most a tenth of the smallest worker's memory."""
    large = layout([1000] * 4, [0, 1, 0, 1], row_bytes={"X": 300_000, "y": 8})
    (step,) = proposed(view(two(memory_limit=1000 * MIB, process=0), [large]))
    assert step.args.rows.max() * 300_008 <= 100 * MIB
    assert "does not fit" not in step.summary


def test_a_number_of_partitions() -> None:
    """The partitions are even, in the requested number."""
    (step,) = proposed(view(two(), [layout([10] * 8, [0, 1] * 4)], rechunk=5))
    assert step.args.rows.tolist() == [16] * 5


def test_blocks_of_columns_are_joined() -> None:
    """Each part is used once for every block, in order."""
    X = collection("X", [10, 10], [0, 1, 0, 1], 80, column_blocks=2, keys=tuple("abcd"))
    X = replace(X, nbytes=np.array([400] * 4))
    y = collection("y", [10, 10], [0, 1], 8)
    data = Layout(label="training data", collections=(X, y))
    (step,) = proposed(view(two(), [data]))
    cut = step.args.cuts[0]
    assert cut.label == "X"
    first = [cut.keys[k] for k, new in zip(cut.key, cut.new) if new == 0]
    assert first == ["a", "b"]


def test_groups_are_not_cut() -> None:
    """The remedy for too few partitions says so."""
    few = layout([16, 16], [0, 1], ("X", "y", "qid"))
    seen = view([worker(i) for i in range(3)], [few])
    for groups, said in (("together", True), ("anywhere", False)):
        workload = replace(seen.goal.workload, groups=groups)
        found = checks.run(replace(seen, goal=replace(seen.goal, workload=workload)))
        (finding,) = (f for f in found if f.check == "too_few_partitions")
        assert ("Groups are not cut" in finding.remedy) == said


def test_the_least_is_cut_where_all_does_not_fit() -> None:
    """X could be more even, but there is no room; y has to be cut like X."""
    some = two(memory_limit=100 * MIB, process=10 * MIB)
    X = collection("X", [MIB] * 5, [0, 1, 0, 1, 0], 14)
    y = collection("y", [2 * MIB, 3 * MIB], [0, 1], 1)
    seen = view(some, [Layout(label="training data", collections=(X, y))])
    (step,) = proposed(seen)
    assert [cut.label for cut in step.args.cuts] == ["y"]
    assert not step.args.shortage


@pytest.mark.parametrize(("size", "fits"), [(14, True), (26, False)])
def test_room_is_given_out_once(size: int, fits: bool) -> None:
    """Two data sets that one plan cuts share the workers' memory."""
    some = two(memory_limit=100 * MIB, process=10 * MIB)
    X = collection("X", [8 * MIB] * 2, [0, 1], 1)
    y = collection("y", [4 * MIB] * 4, [0, 1] * 2, 1)
    train = Layout(label="training data", collections=(X, y))
    X = collection("eval_set[0].X", [size * MIB // 2] * 2, [1, 1], 1)
    y = collection("eval_set[0].y", [size * MIB], [1], 1)
    valid = Layout(label="eval_set[0]", collections=(X, y))
    idle = Layout(label="training data", collections=train.collections[:1])
    assert proposed(view(some, [idle, valid]))
    if fits:
        assert len(proposed(view(some, [train, valid]))) == 2
    else:
        with pytest.raises(CapacityError, match="eval_set"):
            proposed(view(some, [train, valid]))


def test_requested_partitions_are_made_or_an_error() -> None:
    """A requested number of partitions is made, or an error is raised.

    With fewer partitions than workers, fewer workers train.
    """
    (step,) = proposed(view(two(), [layout([10] * 4, [0, 1] * 2)], rechunk=1))
    assert step.args.rows.tolist() == [40]
    full = two(memory_limit=100 * MIB, process=10 * MIB)
    data = layout([25 * MIB] * 4, [0, 1] * 2, ("X",), {"X": 1})
    with pytest.raises(CapacityError, match=r"release_inputs=True|n_workers="):
        proposed(view(full, [data], rechunk=6))


def test_how_many_workers_would_do() -> None:
    """A new worker has all its memory, without old partitions."""
    some = [worker(i, memory_limit=100 * MIB, process=0) for i in range(4)]
    data = layout([50 * MIB] * 4, list(range(4)), ("X",), {"X": 1})
    with pytest.raises(CapacityError, match="n_workers=") as caught:
        proposed(view(some, [data], rechunk=21))
    enough = int(str(caught.value).split("n_workers=")[1].split(";")[0])
    assert 6 <= enough <= 9


def test_whole_old_partitions_leave_first_where_they_are_freed() -> None:
    """Remaining partitions are copied last, when the others have freed memory."""
    some = [worker(i) for i in range(4)]
    data = layout([800] * 10, [0] * 5 + [1] * 5)
    (held,) = proposed(view(some, [data], rechunk=80))
    (freed,) = proposed(view(some, [data], rechunk=80, release_inputs=True))
    assert freed.price == held.price
    assert np.bincount(freed.args.targets).tolist() == [20] * 4
    for source in (0, 1):
        own = freed.args.targets[source * 40 : source * 40 + 40].tolist()
        assert own[-20:] == [source] * 20
        assert source not in own[:20]
        assert own[:20] == sorted(own[:20])


def test_old_partitions_count() -> None:
    """If a necessary cut does not fit, the error has a fix."""
    small = two(memory_limit=100 * MIB, process=0)
    data = unlike([100] * 8, [200] * 4, homes=2)
    large = [
        replace(m, nbytes=m.rows * n * 1000, total_bytes=None)
        for m, n in zip(data.collections, (20, 80))
    ]
    seen = view(small, [replace(data, collections=tuple(large))])
    with pytest.raises(CapacityError, match="release_inputs=True"):
        proposed(seen)
    (step,) = proposed(replace(seen, goal=replace(seen.goal, release_inputs=True)))
    assert step.args.released == ("y",)
    ours = [replace(m, made_here=True) for m in large]
    (step,) = proposed(view(small, [replace(data, collections=tuple(ours))]))
    assert step.args.released == ("y",)


def test_what_need_not_be_cut_is_refused_without_room() -> None:
    """A cut that is only an improvement is left out, and the plan has the reason."""
    some = two(memory_limit=100 * MIB, process=0)
    homes = {"X": [0, 0, 1], "y": [1, 0, 1]}
    data = layout([10] * 3, homes, row_bytes={"X": 2_500_000, "y": 8})
    seen = view(some, [data])
    plan = make_plan((*checks.run(seen), *planner.unmet_goals(seen)), seen, ACTIONS)
    assert [r.guard for r in plan.refused] == ["memory_is_enough"]
    assert plan.phase == "rebalance"
    assert plan.steps


@st.composite
def unlike_starts(draw: Any) -> View:
    """Draw workers, and collections of equal rows with any partitions and holders."""
    n_workers = draw(st.integers(1, 4))
    some = [worker(i, nthreads=draw(st.integers(1, 2))) for i in range(n_workers)]
    rows = draw(st.lists(st.integers(0, 40), min_size=1, max_size=10).filter(any))
    collections = []
    for label in ("X", "y", "w"):
        edges = draw(st.lists(st.integers(0, sum(rows)), max_size=8).map(sorted))
        mine = rows if label == "X" else np.diff([0, *edges, sum(rows)]).tolist()
        homes = [draw(st.integers(0, n_workers - 1)) for _ in mine]
        collections.append(
            collection(label, mine, homes, draw(st.sampled_from([8, 80])))
        )
    data = Layout(label="training data", collections=tuple(collections))
    wanted = draw(st.sampled_from([True, True, 3, 20]))
    return view(some, [data], rechunk=wanted, release_inputs=draw(st.booleans()))


@given(unlike_starts())
@settings(deadline=None, max_examples=60)
def test_whatever_the_partitions(start: View) -> None:
    """Every row exists once, in order, in the same partition of every collection."""
    cluster = MemoryCluster(start)
    before = now(cluster)
    total = int(start.layouts[0].collections[0].rows.sum())
    run(cluster)
    verify(before, now(cluster))
    contents = cluster.contents
    assert contents["X"] == contents["y"] == contents["w"]
    assert [row for partition in contents["X"] for row in partition] == list(
        range(total)
    )
    for label, places in cluster.homes.items():
        assert places == cluster.homes["X"], label


def test_a_new_partition_that_is_joined_of_many() -> None:
    """Its parts stay until it exists, so it needs room twice."""
    rows = [5] * 12
    X = replace(collection("X", rows, [0] * 6 + [1] * 6, 20 * MIB), made_here=True)
    data = Layout(label="training data", collections=(X,))
    holding = {"process": 700 * MIB, "managed": 600 * MIB}
    some = two(memory_limit=4000 * MIB, **holding)
    (step,) = proposed(view(some, [data], rechunk=2))  # half of it, 600 MiB each
    assert step.args.rows.tolist() == [30, 30]
    small = two(memory_limit=1600 * MIB, **holding)
    (step,) = proposed(view(small, [data], rechunk=60))
    with pytest.raises(CapacityError):
        proposed(view(small, [data], rechunk=2))


def test_a_move_that_is_stopped_after_a_cut() -> None:
    """The step counts collections, and its bytes are those of both."""

    class Stopped:
        async def rechunk(self, *_: object) -> Result:
            return Result(nbytes=5, count=1, details="cut")

        async def move(self, *_: object) -> Result:
            error = TimeoutError()
            attach_result(error, Result(nbytes=7, count=40, not_done="on their way"))
            raise error

    (step,) = proposed(view(two(), [unlike([10] * 8, [20] * 4, homes=0)]))
    cluster: Any = Stopped()
    with pytest.raises(TimeoutError) as caught:
        asyncio.run(rechunk.enact(step, cluster, lambda *_: None))
    known = attached_result(caught.value)
    assert known is not None
    assert (known.nbytes, known.count, known.details) == (12, 1, "cut")
    assert known.not_done == "on their way"
