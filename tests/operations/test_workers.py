"""Plans of restarts and trims: proposed steps, and refusals by guards (pure)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clustertune.actions import ACTIONS, restart
from clustertune.core.model import (
    Finding,
    HeldData,
    OtherVersions,
    ParkingSpace,
    Severity,
    Unknown,
    View,
)
from clustertune.planner import guards, memory
from clustertune.planner import plan as planner
from tests.builders import layout, view, worker
from tests.memory_cluster import MemoryCluster

GIB = 2**30


def held_data(**changes: Any) -> HeldData:
    built = HeldData(keys=4, unique=3, nbytes=GIB, scattered=1, actors=0)
    return replace(built, **changes)


def steps(*workers: Any, ids: tuple[Any, ...] = (0,), layouts: Any = ()) -> list[Any]:
    return list(restart.steps(view(workers, layouts), ids))


def refusal(*workers: Any, **options: Any) -> str | None:
    (step,) = steps(*workers, **options)
    no = guards.refusal(step, view(workers))
    return None if no is None else no.reason


def test_a_step_for_each_worker_with_its_price() -> None:
    """Its keys move once."""
    space = ParkingSpace(memory=GIB, disk=0)
    some = [worker(i, held_data=held_data(), parking_space=space) for i in range(3)]
    one, other = steps(*some, ids=(0, 2))
    assert one.summary == (
        "restart worker 0; 3 unreplicated keys (1.0 GiB) move to its new process"
    )
    assert one.price.nbytes == GIB
    assert one.args.process_limits.keys() == {1, 2}
    assert one.args.process_limits[1] == int(0.7 * 4 * GIB)
    assert other.args.id == 2


@pytest.mark.parametrize(
    ("space", "fields", "gib"),
    [
        (ParkingSpace(memory=GIB, disk=0), {}, 1 + 3),
        (ParkingSpace(memory=GIB, disk=0), {"spilled": GIB}, 3),
        (ParkingSpace(memory=GIB, disk=0), {"resources": True}, 2 + 3),
        (ParkingSpace(memory=GIB, disk=0, obstacle="a port"), {}, 2 + 3),
        (ParkingSpace(memory=GIB, disk=0, second=GIB), {"counted": 1}, 2 + 3),
        (Unknown("no answer"), {}, None),
    ],
)
def test_bytes_that_a_restart_sends(
    space: Any, fields: dict[str, Any], gib: int | None
) -> None:
    """Keys that make a detour are sent twice, replicas once, spill files never."""
    data = held_data(copied=3 * GIB)
    (step,) = steps(worker(0, held_data=data, parking_space=space, **fields))
    assert step.price.nbytes == (None if gib is None else gib * GIB)
    assert step.price.peak == GIB


def test_ceilings_are_those_of_the_others() -> None:
    """The limits equal those of separate dictionaries, which would be too large."""
    some = [worker(i, held_data=held_data()) for i in range(5)]
    found = list(restart.steps(view(some), set(range(5)), most=2))
    line = int(0.7 * 4 * GIB)
    for step, away in zip(found, [{0, 1}, {0, 1}, {2, 3}, {2, 3}, {4}]):
        others = set(range(5)) - away
        assert step.args.process_limits == dict.fromkeys(others, line)
        assert len(step.args.process_limits) == len(others)
        assert not any(i in step.args.process_limits for i in away)


def test_partitions_stay_together() -> None:
    """Keys of given collections move together."""
    data = layout([10, 10], [0, 1])
    (step,) = steps(worker(0, held_data=held_data()), worker(1), layouts=[data])
    assert step.args.collections == tuple(m.keys for m in data.collections)


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        ({}, {}, None),
        ({"nanny": None}, {}, "it has no nanny"),
        ({"facts": OtherVersions("it runs Python 3.4")}, {}, "it runs Python 3.4"),
        ({"held_data": None}, {}, "its keys are unknown"),
        ({"held_data": held_data(actors=2)}, {}, "2 actors, which cannot be moved"),
        (
            {"held_data": held_data(nbytes=3 * GIB)},
            {},
            "the others have room for 2.6 GiB",
        ),
        ({}, {"process": 3 * GIB}, "the others have room for 0 B"),
        ({}, {"counted": 3 * GIB}, "the others have room for 0 B"),
        ({}, {"status": "paused"}, "no other worker runs, 1.0 GiB of keys"),
        ({"held_data": held_data(nbytes=0)}, {"status": "paused"}, None),
        ({}, {"memory_limit": 0}, None),
    ],
)
def test_guards(first: Any, second: Any, text: str | None) -> None:
    """Guards refuse steps that lose data, or workers that could not return."""
    found = refusal(
        worker(0, **{"held_data": held_data(), **first}), worker(1, **second)
    )
    assert (found is None) if text is None else (text in (found or ""))


def test_a_worker_that_was_restarted_meanwhile() -> None:
    """A worker that was restarted after the plan is not restarted again."""
    (step,) = steps(worker(0, held_data=held_data()), worker(1))
    now = view([worker(0, address="tcp://x/9", held_data=held_data()), worker(1)])
    no = guards.refusal(step, now)
    assert no is not None
    assert "has left or was restarted" in no.reason


def named(
    check: str, *ids: int, severity: Severity = Severity.warning, **evidence: int
) -> Finding:
    return Finding(
        severity=severity, message="x", check=check, subject=ids, evidence=evidence
    )


FULL = int(0.75 * 4 * GIB)  # above the spill threshold of 0.7, below that of pause


def auto(*workers: Any, **goal: Any) -> View:
    return view(workers, restart="auto", **goal)


def proposed(action: str, seen: View, *findings: Finding) -> list[Any]:
    return list(ACTIONS[action].propose(findings, seen))


def test_what_findings_propose() -> None:
    """Workers named by a finding and above a threshold are restarted if that helps."""
    seen = auto(*(worker(i, held_data=held_data(), process=FULL) for i in range(3)))
    for check in ("memory_growth", "memory_pressure", "unmanaged_memory"):
        (step,) = proposed("restart", seen, named(check, 1))
        assert step.args.id == 1
        assert step.summary.endswith("its spill threshold is 2.8 GiB")
    assert proposed("restart", seen, named("uneven_rows", 1)) == []
    mild = named("memory_growth", 1, severity=Severity.info)
    assert proposed("restart", seen, mild) == []
    advised = view([worker(i, held_data=held_data(), process=FULL) for i in range(3)])
    assert proposed("restart", advised, named("memory_growth", 1)) == []
    assert proposed("trim", advised, named("memory_growth", 1)) == []
    every = view([worker(i, held_data=held_data()) for i in range(3)], restart=True)
    assert len(proposed("restart", every)) == 3
    some = replace(every, goal=replace(every.goal, workers=frozenset({2})))
    assert [step.args.id for step in proposed("restart", some)] == [2]
    some = replace(seen, goal=replace(seen.goal, workers=frozenset({2})))
    found = named("unmanaged_memory", 1, 2)
    assert [step.args.id for step in proposed("restart", some, found)] == [2]
    (step,) = proposed("trim", some, found)
    assert set(step.args.workers.values()) == {2}
    busy = auto(worker(0, processing=1), worker(1, process=FULL))
    assert proposed("restart", busy, named("memory_growth", 1)) == []
    assert proposed("trim", busy, named("memory_growth", 1)) == []
    full = worker(0, status="paused", process=3 * GIB, managed=GIB, processing=2)
    paused = auto(full, worker(1))
    (step,) = proposed("restart", paused, named("paused_workers", 0))
    assert step.args.id == 0
    tried = replace(paused, goal=replace(paused.goal, restarted=frozenset({0})))
    assert proposed("restart", tried, named("paused_workers", 0)) == []
    (step,) = proposed("trim", seen, named("unmanaged_memory", 0, 2))
    assert set(step.args.workers.values()) == {0, 2}
    trimmed = replace(seen, goal=replace(seen.goal, trimmed=frozenset({0, 2})))
    assert proposed("trim", trimmed, named("unmanaged_memory", 0, 2)) == []
    assert proposed("trim", seen) == []


def test_named_workers_only() -> None:
    """A call that names workers restarts and trims no others, also not as a fix."""
    some = [worker(i, held_data=held_data(), process=FULL) for i in range(3)]
    every = view(some, restart=True, goal_workers=[0])
    assert [step.args.id for step in proposed("restart", every)] == [0]
    needed = view(some, restart="auto", goal_workers=[0])
    found = (named("unmanaged_memory", 0, 1), named("memory_growth", 1))
    assert [step.args.id for step in proposed("restart", needed, *found)] == [0]
    (step,) = proposed("trim", needed, *found)
    assert set(step.args.workers.values()) == {0}
    assert needed.goal.may_restart([0, 1])
    assert not needed.goal.may_restart([1])


def test_the_trim_comes_first() -> None:
    """A dry run shows the workers that would be restarted now."""
    held = held_data(nbytes=9)
    seen = auto(*(worker(i, held_data=held, process=FULL - i * GIB) for i in (0, 1)))
    found = (named("unmanaged_memory", 0, 1),)
    plan = planner.make_plan(found, seen, ACTIONS)
    assert (plan.phase, len(plan.steps)) == ("trim", 1)
    text = "only workers that need it then are restarted (worker 0 now)"
    assert text in plan.needs[0]
    trimmed = replace(seen, goal=replace(seen.goal, trimmed=frozenset({0, 1})))
    plan = planner.make_plan(found, trimmed, ACTIONS)
    assert (plan.phase, len(plan.steps)) == ("restart", 1)


LEAST = 200 * 2**20


@pytest.mark.parametrize(
    ("changes", "growth", "needed"),
    [
        ({"process": FULL}, 0, True),
        ({"process": GIB}, 0, False),
        ({"process": FULL, "memory_limit": 0}, 0, False),
        ({"process": FULL, "facts": Unknown("not asked")}, 0, False),
        # it will be above after the next run
        ({"process": 2 * GIB}, GIB, True),
        ({"process": 2 * GIB}, GIB // 2, False),
        # data alone is above the line: it would only come back
        ({"process": FULL, "managed": FULL}, 0, False),
        ({"process": FULL, "managed": FULL - GIB // 2, "least_memory": GIB}, 0, False),
        # the disk is full, and a new process would be just below the line
        ({"process": FULL, "managed": FULL - LEAST - GIB // 4}, 0, False),
        # but it would not be paused any more
        ({"process": int(0.9 * 4 * GIB), "managed": FULL - LEAST}, 0, True),
        # its own pause threshold is lower than it was when it was asked
        ({"process": GIB, "status": "paused"}, 0, True),
        ({"process": GIB, "status": "paused", "managed": GIB - 9}, 0, False),
        ({"process": FULL, "spill": None}, 0, False),
        ({"process": FULL, "spill": None, "pause": 0.7}, 0, True),
    ],
)
def test_need(changes: Any, growth: int, needed: bool) -> None:
    """A restart is needed if a new process with the keys is below the threshold."""
    one = worker(0, **({"least_memory": LEAST} | changes))
    assert bool(memory.restart_reason(one, growth)) == needed


def test_a_leak_is_restarted_before_the_run_that_fills_it() -> None:
    """The growth per run decides."""
    seen = auto(worker(0, process=2 * GIB), worker(1))
    (step,) = proposed("restart", seen, named("memory_growth", 0, bytes_per_run=GIB))
    assert "grows by 1.0 GiB in a run" in step.summary
    assert proposed("restart", seen, named("memory_growth", 0, bytes_per_run=9)) == []


async def _restarted() -> tuple[Any, Any, Any]:
    data = layout([10, 10], [0, 1])
    seen = view(
        [worker(i, held_data=held_data(), managed=880) for i in range(2)], [data]
    )
    cluster = MemoryCluster(seen)
    (step,) = restart.steps(seen, (0,))
    result = await ACTIONS["restart"].enact(step, cluster, lambda *_: None)
    return seen, await cluster.look(lambda *_: None), result


def test_in_memory() -> None:
    """The cluster in memory restarts too: the address changes, the data stays."""
    import asyncio

    before, after, result = asyncio.run(_restarted())
    assert {w.id for w in after.now.workers} == {0, 1}
    assert before.now.workers[0].address not in {w.address for w in after.now.workers}
    assert result.nbytes == 2 * 880
    ids = [w.id for w in after.now.workers]
    holders = after.layouts[0].collections[0].holders
    assert [ids[i] for i in holders[1]] == [0, 1]
