"""Steps are carried out in order, each after a look; outcomes are recorded."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any
from unittest.mock import patch

import pytest

from clustertune import checks
from clustertune.actions import ACTIONS
from clustertune.core.model import Outcome, Plan, Price, Step, View
from clustertune.errors import NoWorkersError
from clustertune.operations.call import execute
from clustertune.planner import plan as planner
from tests.builders import layout, view, worker
from tests.memory_cluster import MemoryCluster

ROWS = [10, 10, 10, 10]
DATA = layout(ROWS, [0, 0, 0, 0])
VALID = layout([5, 5], [0, 0], label="eval_set[0]", collections=("Xv", "yv"))
SCALE = Step(action="scale", summary="scale to 3", price=Price(nbytes=0), args=3)


def start(**goal: Any) -> View:
    return view([worker(0), worker(1)], [DATA, VALID], **goal)


def place(seen: View) -> Plan:
    """Return a plan of two steps: the training data, then the eval set."""
    plan = planner.make_plan(checks.run(seen), seen, ACTIONS)
    assert [s.action for s in plan.steps] == ["rebalance", "rebalance"]
    return plan


class Told:
    """Records progress, outcomes and the ticks of a clock."""

    def __init__(self) -> None:
        self.progress: list[str] = []
        self.outcomes: list[Outcome] = []
        self.clock = count(0, 3).__next__

    def run(self, plan: Plan, seen: View, cluster: Any) -> list[Outcome]:
        def notify(text: str, _: object) -> None:
            self.progress.append(text)

        with patch("clustertune.operations.call.monotonic", self.clock):
            asyncio.run(execute(plan, seen, cluster, self.outcomes, notify))
        return self.outcomes


def looks(cluster: MemoryCluster) -> MemoryCluster:
    """A cluster that records looks and calls in their order."""
    look = cluster.look

    async def noted(notify: Any) -> View:
        cluster.calls.append("look")
        return await look(notify)

    cluster.look = noted
    return cluster


def test_an_empty_plan_does_nothing() -> None:
    """A plan without steps needs no look."""
    told, cluster = Told(), looks(MemoryCluster(start()))
    assert told.run(Plan(), start(), cluster) == []
    assert cluster.calls == told.progress == []


def test_steps_in_order_with_a_look_between() -> None:
    """The first step uses the view of the plan, each later one a new look."""
    told, cluster = Told(), looks(MemoryCluster(start()))
    plan = place(start())
    counts = [s.args.count for s in plan.steps]
    outcomes = told.run(plan, start(), cluster)
    assert cluster.calls == [f"move {counts[0]}", "look", f"move {counts[1]}"]
    assert [o.step for o in outcomes] == list(plan.steps)
    assert told.progress == [s.summary for s in plan.steps]


def test_what_a_step_took() -> None:
    """An outcome has the seconds of the clock and the transferred bytes."""
    told = Told()
    plan = place(start())
    outcomes = told.run(plan, start(), MemoryCluster(start()))
    assert [o.status for o in outcomes] == ["done", "done"]
    assert [o.seconds for o in outcomes] == [3, 3]
    assert [o.nbytes for o in outcomes] == [s.price.nbytes for s in plan.steps]
    assert all(o.nbytes > 0 for o in outcomes)


def test_what_a_step_could_not_do() -> None:
    """A partly done move has a reason, and the next step follows."""
    some = [worker(0), worker(1), worker(2)]
    seen = view(some, [DATA, VALID], rechunk=False)
    cluster = MemoryCluster(seen)
    cluster.fault = lambda c: c.pause("tcp://127.0.0.1/2")
    outcomes = Told().run(place(seen), seen, cluster)
    assert outcomes[0].status == "partly"
    assert outcomes[0].reason == "tcp://127.0.0.1/2 is gone or paused"


def test_a_guard_may_object_at_once() -> None:
    """A step that a guard refuses at its beginning is skipped with the reason."""
    plan, paused = place(start()), MemoryCluster(start())
    paused.pause("tcp://127.0.0.1/1")
    seen = asyncio.run(paused.look(lambda *_: None))
    outcomes = Told().run(plan, seen, paused)
    assert [o.status for o in outcomes] == ["skipped", "skipped"]
    assert outcomes[0].reason == "tcp://127.0.0.1/1 no longer runs"
    assert paused.calls == []


def test_a_guard_may_object_on_the_second_look() -> None:
    """A change during a step is seen before the next one, which is skipped."""
    cluster = MemoryCluster(start())
    plan = place(start())
    left = iter(range(plan.steps[0].args.count))

    def pause_at_the_last_key(cluster: MemoryCluster) -> None:
        if next(left) == plan.steps[0].args.count - 1:
            cluster.pause("tcp://127.0.0.1/1")

    cluster.fault = pause_at_the_last_key
    outcomes = Told().run(plan, start(), cluster)
    assert [o.status for o in outcomes] == ["partly", "skipped"]
    assert outcomes[1].seconds is None
    assert cluster.calls == [f"move {plan.steps[0].args.count}"]


def test_a_failure_is_recorded_before_it_goes_on() -> None:
    """The outcome of a failed step is recorded, and no other step begins."""
    told, cluster = Told(), MemoryCluster(start(), most=2)
    plan = Plan(phase="scale", steps=(SCALE, SCALE))
    with pytest.raises(NoWorkersError, match="asked for 3 workers"):
        told.run(plan, start(), cluster)
    assert [o.status for o in told.outcomes] == ["failed"]
    assert told.outcomes[0].reason == "asked for 3 workers, 2 run"
    assert told.outcomes[0].seconds == 3
    assert cluster.calls == ["scale 3"]


@pytest.mark.parametrize("error", [asyncio.CancelledError, KeyboardInterrupt])
def test_an_interruption_is_recorded(error: type[BaseException]) -> None:
    """A cancelled or interrupted step has the status failed."""
    told = Told()

    def interrupt(cluster: MemoryCluster) -> None:
        raise error

    with pytest.raises(error):
        told.run(place(start()), start(), MemoryCluster(start(), fault=interrupt))
    assert [(o.status, o.reason) for o in told.outcomes] == [("failed", "interrupted")]
