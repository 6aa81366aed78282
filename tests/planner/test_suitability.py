"""Partitions that suit the workers, and the workers that will train."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clustertune import checks
from clustertune.actions import ACTIONS
from clustertune.core.model import Contents, Moves, Rechunk, Unknown, View
from clustertune.planner import forecast, layouts, suitability
from clustertune.planner import plan as planner
from clustertune.planner.hosts import nearby
from clustertune.planner.suitability import attainable
from clustertune.remote.worker import content
from tests.builders import layout, view, worker

GIB = 2**30

# --- evenness -------------------------------------------------------------------------


def test_no_rows_or_no_workers_are_even():
    """Without rows or workers nothing is uneven."""
    paused = [worker(0, status="paused")]
    assert attainable(layout([0, 0], [0, 0]), view()) == 1.0
    assert attainable(layout([5], [0]), view(workers=paused)) == 1.0


def test_partitions_that_divide_evenly_reach_the_tolerance():
    """Four equal partitions on two workers can be even, wherever they are now."""
    assert attainable(layout([10] * 4, [0] * 4), view()) == pytest.approx(1.0)


def test_many_small_partitions_are_known_to_reach_the_tolerance():
    """Partitions smaller than the tolerance can always be even."""
    many = layout([1] * 1000, [0] * 1000)
    assert attainable(many, view()) == pytest.approx(1.002)
    workers = [worker(0, nthreads=3), worker(1)]
    assert attainable(many, view(workers=workers)) == pytest.approx(1.004)


def test_a_whole_partition_too_many_cannot_be_avoided():
    """Three equal partitions on two workers leave one with two of them."""
    lazy = layout([10] * 3, None)
    assert attainable(lazy, view()) == pytest.approx(4 / 3)


def test_the_larger_partition_decides():
    """A partition larger than a share exceeds the tolerance if the others are small."""
    data = layout([900] + [1] * 100, [0] * 101)
    assert attainable(data, view()) == pytest.approx(1.8)


def test_shares_are_by_threads():
    """Three equal partitions are even on workers of two threads and one."""
    workers = [worker(0, nthreads=2), worker(1, nthreads=1)]
    assert attainable(layout([10] * 3, [0] * 3), view(workers=workers)) == (
        pytest.approx(1.0)
    )


# --- trainers -------------------------------------------------------------------------


def seen(data: Any, workers: int = 3, needs: Any = None, **goal: Any) -> View:
    """Return a view of healthy workers with one thread each."""
    at = view([worker(i, nthreads=1) for i in range(workers)], [data], **goal)
    workload = replace(at.goal.workload, **(needs or {}))
    return replace(at, goal=replace(at.goal, workload=workload))


def ranked(*groups: str, label: str = "qid") -> Any:
    """Return partitions with a row for each letter, which is its group."""
    looked = tuple(content.runs(np.array([*g])) for g in groups)
    data = layout([len(g) for g in groups], [0] * len(groups), ("X", "y", label))
    qid = replace(data.collections[2], contents=Contents(partitions=looked))
    return replace(data, collections=(*data.collections[:2], qid))


@pytest.mark.parametrize(
    ("data", "needs", "goal", "expected"),
    [
        pytest.param(layout([2], [0]), {}, {}, {0, 1}, id="2 rows"),
        pytest.param(layout([2], None), {}, {}, {0, 1}, id="2 rows, not loaded"),
        pytest.param(layout([1, 1], [2, 1]), {}, {}, {1, 2}, id="where they are"),
        pytest.param(layout([5], [2]), {"min_rows": 2}, {}, {0, 2}, id="2 rows each"),
        pytest.param(layout([1], [1]), {"min_rows": 2}, {}, {1}, id="1 row"),
        pytest.param(layout([9], [1]), {}, {"rechunk": False}, {1}, id="not cut"),
        pytest.param(layout([9], [0]), {}, {"rechunk": 2}, {0, 1}, id="2 partitions"),
        pytest.param(layout([1], [0]), {}, {"rechunk": 2}, {0}, id="1 row in 2"),
        pytest.param(ranked("aab", "bb"), {"groups": "together"}, {}, {0, 1}, id="ab"),
        pytest.param(ranked("aba"), {"groups": "together"}, {}, {0, 1}, id="unsorted"),
    ],
)
def test_fewer_parts_than_workers(
    data: Any, needs: Any, goal: Any, expected: set[int]
) -> None:
    """As many workers train as can get a partition; another look chooses the same."""
    once = suitability.chosen(seen(data, needs=needs, **goal))
    assert once.trainers == expected
    assert {w.id for w in once.eligible_workers} == expected
    assert suitability.chosen(once).trainers == expected


@pytest.mark.parametrize(
    ("data", "needs"),
    [
        pytest.param(layout([1, 1, 1], [0] * 3), {}, id="as many rows"),
        pytest.param(layout([100], [0]), {}, id="one partition, which is cut"),
        pytest.param(layout([0], [0]), {}, id="no rows at all"),
        pytest.param(layout(None, [0]), {}, id="unknown rows"),
        pytest.param(ranked("abc"), {"groups": "together"}, id="as many groups"),
    ],
)
def test_all_train(data: Any, needs: Any) -> None:
    """Nothing is chosen if all can train, or if it is unknown."""
    assert suitability.chosen(seen(data, needs=needs)).trainers is None


def test_no_data() -> None:
    """Without data all may train."""
    assert suitability.chosen(view()).trainers is None
    assert suitability.chosen(view(one_per_host=True)).trainers is None


def on_hosts(owners: Any, memory_limit: int = 8 * GIB, loaded: bool = True) -> View:
    """Return a view of two hosts with two workers each, and the rows' workers."""
    workers = [
        worker(
            i,
            nthreads=2,
            host=f"10.0.0.{i // 2}",
            affinity=frozenset(range(4)),
            memory_limit=memory_limit,
        )
        for i in range(4)
    ]
    data = layout([10] * len(owners), owners if loaded else None)
    return view(workers, [data], one_per_host=True)


def test_one_worker_of_each_host() -> None:
    """Those with most rows train; their tasks use all threads once all rows are there.

    Another look chooses the same.
    """
    before = suitability.chosen(on_hosts([0, 1, 1, 2, 3, 3]))
    assert before.trainers == {1, 3}
    assert suitability.threads_of_task(before) is None
    after = suitability.chosen(on_hosts([1, 1, 1, 3, 3, 3]))
    assert after.trainers == {1, 3}
    assert suitability.chosen(after).trainers == {1, 3}
    assert suitability.threads_of_task(after) == 4


@pytest.mark.parametrize(
    ("owners", "crossing"),
    [
        ([2, 0, 1, 2, 3, 3, 1, 2, 3, 0, 0, 1], 0),
        ([1, 1, 1, 0, 3, 3, 3, 2], 0),
        ([1, 1, 1, 0, 0, 0, 3, 2], 2),
    ],
)
def test_partitions_stay_on_their_host(owners: list[int], crossing: int) -> None:
    """Only rows that the host has in excess use the network."""
    seen = suitability.chosen(on_hosts(owners))
    plan = planner.make_plan(checks.run(seen), seen, ACTIONS)
    (step,) = plan.steps
    assert isinstance(step.args, Moves)
    hosts = {w.address: w.host for w in seen.now.workers}
    moves = step.args.moves[0]
    number = {key: i for i, key in enumerate(seen.layouts[0].collections[0].keys)}
    crossed = [
        key
        for key, i in zip(moves.keys, moves.targets.tolist(), strict=True)
        if hosts[step.args.workers[i]] != f"10.0.0.{owners[number[key]] // 2}"
    ]
    assert len(crossed) == crossing
    # every partition is copied; the copies on its own worker share its memory
    assert step.args.copies
    assert len(moves.keys) == len(owners)
    placed = zip(moves.keys, moves.targets.tolist(), strict=True)
    sent = [key for key, i in placed if i != owners[number[key]]]
    assert step.price.nbytes == len(sent) * seen.layouts[0].nbytes // len(owners)


def test_a_full_holder_counts_more_than_its_host() -> None:
    """Replicas next to the worker that trains do not count as a replica on it."""
    owners = [0, 0, 0, 2, 2, 2, [1, 3], [1, 3]]
    seen = suitability.chosen(on_hosts(owners))
    assert seen.trainers == {0, 2}
    partition, worker = np.array([0, 0, 0]), np.array([1, 1, 2])
    held = layouts.HeldBytes(partition, worker, np.array([100, 100, 100]))
    found = nearby(
        held, np.array([100]), layouts.weights(seen) > 0, layouts.hosts(seen)
    )
    counted = dict(zip(found.worker.tolist(), found.nbytes.tolist(), strict=True))
    assert 50 < counted[0] < 100
    assert counted[2] == 100


def test_classes_keep_partitions_on_their_host() -> None:
    """Of placements with the same bytes, one within hosts is taken."""
    looked = content.classes(np.array([*"abababab"]), 64)
    data = layout([8] * 4, [1, 1, 3, 3], contents=Contents(partitions=(looked,) * 4))
    seen = replace(on_hosts([]), layouts=(data,), trainers=frozenset({0, 2}))
    workload = replace(seen.goal.workload, needs_all_classes=True)
    seen = replace(seen, goal=replace(seen.goal, workload=workload))
    (step,) = planner.make_plan(checks.run(seen), seen, ACTIONS).steps
    assert isinstance(step.args, Moves)
    assert step.args.moves[0].targets.tolist() == [0, 0, 2, 2]


def test_cut_partitions_stay_on_their_host() -> None:
    """Each host cuts its own rows, also those of the worker that does not train."""
    owners = [1, 3, 0, 2, 3, 1, 2, 0]
    seen = suitability.chosen(on_hosts(owners))
    seen = replace(seen, goal=replace(seen.goal, rechunk=24))
    findings = (*checks.run(seen), *planner.unmet_goals(seen))
    (step,) = planner.make_plan(findings, seen, ACTIONS).steps
    assert isinstance(step.args, Rechunk)
    hosts = np.array([int(w.host[-1]) for w in seen.now.workers])
    for cut in step.args.cuts:
        crossing = hosts[cut.owner] != hosts[step.args.targets[cut.new]]
        assert not crossing.any()


@pytest.mark.parametrize("holders", [[], [0], [2]])
def test_a_partition_elsewhere(holders: list[int]) -> None:
    """A task uses its own worker's threads while a partition is not where it trains."""
    data = on_hosts([1, 1, holders, 3, 3])
    assert suitability.threads_of_task(suitability.chosen(data)) is None


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(on_hosts([0, 1, 2, 3], memory_limit=2**20), id="little memory"),
        pytest.param(on_hosts([0, 1, 2, 3], loaded=False), id="all load the data"),
    ],
)
def test_all_workers_of_a_host_train(seen: View) -> None:
    """One worker of a host trains only if its memory is known to be enough."""
    assert suitability.chosen(seen).trainers is None
    assert suitability.threads_of_task(seen) is None


def test_workers_that_do_not_train_get_no_share() -> None:
    """One worker of each host would get half of the data, not a quarter."""
    limit = (200 * 2**20 + 2500) * 10 // 7  # 2500 bytes are free for a fit
    seen = on_hosts([0, 1, 2, 3], memory_limit=limit)
    seen = replace(seen, goal=replace(seen.goal, n_workers=4))
    found = forecast.needs(seen)
    assert not isinstance(found, Unknown)
    assert not forecast.short(found)
    assert suitability.chosen(seen).trainers is None
