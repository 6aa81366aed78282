"""Restarts and trims as plans: what is proposed, and what guards refuse (pure)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clustertune.actions import restart, trim
from clustertune.model import Burden, Finding, Severity
from clustertune.plans import guards
from clustertune.testing import MemoryCluster, layout, view, worker

GIB = 2**30


def burden(**changes: Any) -> Burden:
    built = Burden(keys=4, unique=3, nbytes=GIB, scattered=1, actors=0)
    return replace(built, **changes)


def steps(*workers: Any, ids: tuple[Any, ...] = (0,), layouts: Any = ()) -> list[Any]:
    return list(restart.steps(view(workers, layouts), ids))


def refusal(*workers: Any, **options: Any) -> str | None:
    (step,) = steps(*workers, **options)
    no = guards.refusal(step, view(workers))
    return None if no is None else no.reason


def test_a_step_for_each_worker_with_its_price() -> None:
    """Its keys travel twice; a second for the process."""
    some = [worker(i, burden=burden(), bandwidth=1e9) for i in range(3)]
    one, other = steps(*some, ids=(0, 2))
    assert one.summary == (
        "restart worker 0; 3 keys that only it holds (1.0 GiB) go to the others and "
        "come back"
    )
    assert one.price.nbytes == 2 * GIB
    assert one.price.seconds == pytest.approx(1 + 2 * GIB / 1e9)
    assert one.args.ceilings.keys() == {1, 2}
    assert one.args.ceilings[1] == int(0.7 * 4 * GIB)
    assert other.args.id == 2


def test_ceilings_are_those_of_the_others() -> None:
    """As a dictionary of its own for each would say; of so many no such is made."""
    some = [worker(i, burden=burden()) for i in range(5)]
    found = list(restart.steps(view(some), set(range(5)), most=2))
    line = int(0.7 * 4 * GIB)
    for step, away in zip(found, [{0, 1}, {0, 1}, {2, 3}, {2, 3}, {4}]):
        others = set(range(5)) - away
        assert step.args.ceilings == dict.fromkeys(others, line)
        assert len(step.args.ceilings) == len(others)
        assert not any(i in step.args.ceilings for i in away)


def test_pieces_stay_together() -> None:
    """Keys of collections that are given go along."""
    data = layout([10, 10], [0, 1])
    (step,) = steps(worker(0, burden=burden()), worker(1), layouts=[data])
    assert step.args.collections == tuple(m.keys for m in data.members)


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        ({}, {}, None),
        ({"nanny": None}, {}, "it has no nanny"),
        ({"burden": None}, {}, "what it holds is unknown"),
        ({"burden": burden(actors=2)}, {}, "2 actors, which cannot be moved"),
        ({"burden": burden(nbytes=3 * GIB)}, {}, "the others have room for 2.6 GiB"),
        ({}, {"process": 3 * GIB}, "the others have room for 0 B"),
        ({}, {"counted": 3 * GIB}, "the others have room for 0 B"),
        ({}, {"status": "paused"}, "no other worker runs, 1.0 GiB of keys"),
        ({"burden": burden(nbytes=0)}, {"status": "paused"}, None),
        ({}, {"memory_limit": 0}, None),
    ],
)
def test_guards(first: Any, second: Any, text: str | None) -> None:
    """What would lose something, or could not come back, is refused."""
    found = refusal(worker(0, **{"burden": burden(), **first}), worker(1, **second))
    assert (found is None) if text is None else (text in (found or ""))


def test_a_worker_that_was_restarted_meanwhile() -> None:
    """Is not the one that was planned for."""
    (step,) = steps(worker(0, burden=burden()), worker(1))
    now = view([worker(0, address="tcp://x/9", burden=burden()), worker(1)])
    no = guards.refusal(step, now)
    assert no is not None
    assert "is gone, or was started again" in no.reason


def named(check: str, *ids: int, severity: Severity = Severity.warning) -> Finding:
    return Finding(severity=severity, message="x", check=check, subject=ids)


def test_what_findings_propose() -> None:
    """Workers that a finding names, if it is bad enough and that would help."""
    seen = view([worker(i, burden=burden()) for i in range(3)], restart="auto")
    (step,) = restart.propose((named("memory_growth", 1),), seen)
    assert step.args.id == 1
    assert list(restart.propose((named("uneven_rows", 1),), seen)) == []
    mild = named("memory_growth", 1, severity=Severity.info)
    assert list(restart.propose((mild,), seen)) == []
    advised = view([worker(i, burden=burden()) for i in range(3)])
    assert list(restart.propose((named("memory_growth", 1),), advised)) == []
    every = view([worker(i, burden=burden()) for i in range(3)], restart=True)
    assert len(list(restart.propose((), every))) == 3
    busy = view([worker(0, processing=1), worker(1)], restart="auto")
    assert list(restart.propose((named("memory_growth", 1),), busy)) == []
    full = worker(0, status="paused", process=3 * GIB, managed=GIB)
    paused = view([full, worker(1)], restart="auto")
    (step,) = restart.propose((named("paused_workers", 0),), paused)
    assert step.args.id == 0
    tried = replace(paused, goal=replace(paused.goal, restarted=frozenset({0})))
    assert list(restart.propose((named("paused_workers", 0),), tried)) == []
    (step,) = trim.propose((named("unmanaged_memory", 0, 2),), seen)
    assert set(step.args.workers.values()) == {0, 2}
    assert list(trim.propose((), seen)) == []


async def _restarted() -> tuple[Any, Any, Any]:
    data = layout([10, 10], [0, 1])
    seen = view([worker(i, burden=burden(), managed=880) for i in range(2)], [data])
    cluster = MemoryCluster(seen)
    (step,) = restart.steps(seen, (0,))
    result = await restart.enact(step, cluster, lambda *_: None)
    return seen, await cluster.look(lambda *_: None), result


def test_in_memory() -> None:
    """The port for tests does it too: a new address, everything where it was."""
    import asyncio

    before, after, result = asyncio.run(_restarted())
    assert {w.id for w in after.now.workers} == {0, 1}
    assert before.now.workers[0].address not in {w.address for w in after.now.workers}
    assert result.nbytes == 2 * 880
    ids = [w.id for w in after.now.workers]
    holders = after.layouts[0].members[0].holders
    assert [ids[i] for i in holders[1]] == [0, 1]
