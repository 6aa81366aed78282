"""A plan is carried out later only if nothing has changed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from time import time
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import wait
from distributed.utils_test import gen_cluster

import clustertune
from clustertune.actions import restart
from clustertune.core.counts import planned
from clustertune.core.model import (
    Finding,
    HeldData,
    Plan,
    Refusal,
    Restart,
    Severity,
    View,
)
from clustertune.core.report import Report
from clustertune.errors import ChangedError, ConnectionLostError, RefusedError
from clustertune.operations import call as shell
from clustertune.operations import event_log
from clustertune.operations.journal import Journal
from clustertune.operations.planfile import PlannedCall, StoredPlan
from clustertune.operations.planning import Comparison, refuse_other
from clustertune.operations.prepare import tune
from clustertune.planner import verification
from clustertune.testing import layout, view, worker
from tests.memory_cluster import MemoryCluster

BURDEN = HeldData(keys=4, unique=3, nbytes=100, scattered=0, actors=0)


def stored(start: View, plan: Plan, found: tuple[Finding, ...] = ()) -> StoredPlan:
    return StoredPlan(
        made=time(),
        expires=time() + 60,
        by="ada@node7",
        reason="",
        call=PlannedCall(verb="restart"),
        seen=verification.fingerprint("Scheduler-1", start),
        report=Report(
            status="planned", seconds=0, found=found, steps=tuple(planned(plan))
        ),
    )


def tuned(cluster: MemoryCluster, **how: Any) -> Journal:
    journal = Journal()
    asyncio.run(tune(cluster, journal, notify=lambda *_: None, **how))
    return journal


# --- comparison (pure, or in memory) --------------------------------------------------


def crowded(**how: Any) -> MemoryCluster:
    """All partitions are on the first of three workers."""
    data = layout([10] * 6, [0] * 6)
    return MemoryCluster(view([worker(i) for i in range(3)], [data]), **how)


def kept(cluster: MemoryCluster) -> Comparison:
    """A comparison with the plan of a dry run."""
    seen = tuned(cluster, dry_run=True)
    assert seen.plans[0].steps
    return Comparison(stored(seen.views[0], seen.plans[0], seen.findings[0]))


def test_what_is_as_planned_is_done() -> None:
    """The planned step is done, and the steps that follow from it."""
    comparison = kept(crowded())
    cluster = crowded()
    with shell.assigned(shell.approval, comparison):
        assert tuned(cluster).status(dry_run=False) == "done"
    assert cluster.calls == ["move 8"]


def test_what_has_changed_stops_it() -> None:
    """The call stops before the first step; the error names the change."""
    comparison = kept(crowded())
    cluster = crowded()
    cluster.workers.popitem()
    with (
        shell.assigned(shell.approval, comparison),
        pytest.raises(ChangedError, match=r"nothing was done: worker 2 is gone; "),
    ):
        tuned(cluster)
    assert cluster.calls == []
    tuned(crowded())  # without an approval the call goes on


def test_a_worker_that_goes_meanwhile_stops_it() -> None:
    """Moved partitions stay, and no other plan begins."""

    def leave(cluster: MemoryCluster) -> None:
        cluster.workers.pop(worker(2).address, None)

    comparison = kept(crowded())
    cluster = crowded(fault=leave)
    with (
        shell.assigned(shell.approval, comparison),
        pytest.raises(ChangedError, match="stopped before the next step: worker 2: go"),
    ):
        tuned(cluster)
    assert cluster.calls == ["move 8"]


def three(*changes: dict[str, Any]) -> View:
    some = {i: {"held_data": BURDEN} for i in range(3)}
    for change in changes:
        some[change["id"]] |= {k: v for k, v in change.items() if k != "id"}
    return view([worker(i, **how) for i, how in some.items()])


def one_by_one(start: View) -> tuple[Plan, Comparison]:
    plan = Plan(phase="restart", steps=tuple(restart.steps(start, {0, 1, 2})))
    comparison = Comparison(stored(start, plan))
    comparison.plan(start, (), plan)
    return plan, comparison


def test_a_worker_that_we_restart_may_have_another_address() -> None:
    """Other workers must keep their addresses."""
    plan, comparison = one_by_one(three())
    comparison.step(three(), plan.steps[0])
    again = three({"id": 0, "address": "tcp://b:9"})
    comparison.step(again, plan.steps[1])
    other = three({"id": 2, "address": "tcp://b:8"})
    with pytest.raises(ChangedError, match="worker 2: restarted"):
        comparison.step(other, plan.steps[2])


def test_a_step_that_is_not_safe_any_more() -> None:
    """The guards are asked again, and the error has their reason."""
    plan, comparison = one_by_one(three())
    comparison.step(three(), plan.steps[0])
    with pytest.raises(ChangedError, match=r"restart worker 1; .*2 actors"):
        comparison.step(
            three({"id": 1, "held_data": replace(BURDEN, actors=2)}), plan.steps[1]
        )


def test_workers_that_we_take_away_may_be_gone() -> None:
    """They may also still exist, but no worker may join."""
    start = three()
    (step,) = restart.steps(start, {1})
    assert isinstance(step.args, Restart)
    step = replace(step, action="retire", args=replace(step.args, retire=True))
    plan = Plan(phase="scale", steps=(step,))
    comparison = Comparison(stored(start, plan))
    comparison.plan(start, (), plan)
    comparison.step(start, step)
    comparison.plan(view([worker(0), worker(2)]), (), Plan())
    comparison.plan(start, (), Plan())
    with pytest.raises(ChangedError, match="worker 5: new"):
        comparison.plan(view([worker(0), worker(2), worker(5)]), (), Plan())


def test_other_steps() -> None:
    """The error names missing and new steps, and the reason of a refusal."""
    start = three()
    plan = Plan(steps=tuple(restart.steps(start, {0, 1})))
    first, second = plan.steps
    comparison = Comparison(stored(start, plan))
    no = Refusal(step=second, guard="fire", reason="it burns")
    text = r"step not planned any more: restart worker 1; .*: it burns; plan again"
    with pytest.raises(ChangedError, match=text):
        comparison.plan(start, (), Plan(steps=(first,), refused=(no,)))
    more = Plan(steps=tuple(restart.steps(start, {0, 1, 2})))
    with pytest.raises(ChangedError, match="new step: restart worker 2"):
        Comparison(stored(start, plan)).plan(start, (), more)
    turned = Plan(steps=(second, first))
    with pytest.raises(ChangedError, match="the steps have another order"):
        Comparison(stored(start, plan)).plan(start, (), turned)


def test_what_is_critical_now() -> None:
    """A critical finding that the plan does not have stops the call."""
    start, plan = three(), Plan()
    bad = Finding(severity=Severity.critical, message="it burns", check="fire")
    mild = replace(bad, severity=Severity.warning)
    with pytest.raises(ChangedError, match="new finding: it burns"):
        Comparison(stored(start, plan, (mild,))).plan(start, (bad,), plan)
    Comparison(stored(start, plan, (bad,))).plan(start, (bad,), plan)


def test_other_clusters() -> None:
    """A scheduler at another address, and a restarted one at the same address."""
    plan = stored(three(), Plan())
    address = plan.seen.address
    refuse_other(plan, "Scheduler-1", "tcp://elsewhere:1")
    with pytest.raises(
        RefusedError, match="belongs to another cluster: it was made for"
    ):
        refuse_other(plan, "Scheduler-2", "tcp://elsewhere:1")
    with pytest.raises(RefusedError, match="was restarted after the plan was made"):
        refuse_other(plan, "Scheduler-2", address)


# --- on a cluster ---------------------------------------------------------------------


async def published(client: Any, worker: Any) -> np.ndarray[Any, Any]:
    """X and y, with all partitions on one worker."""
    rows = np.arange(200.0)
    X = da.from_array(rows.reshape(100, 2), chunks=(10, 2))
    y = da.from_array(rows[:100], chunks=10)
    loaded = client.persist([X, y], workers=[worker.address], allow_other_workers=True)
    await wait(loaded)
    await client.publish_dataset(X=loaded[0], y=loaded[1])
    return rows.reshape(100, 2)


@gen_cluster(client=True, config={"clustertune.reason": "more workers"})
async def test_published_data(c: Any, s: Any, a: Any, b: Any, tmp_path: Path) -> None:
    """A plan is saved and carried out; the second time the data has changed."""
    expected = await published(c, a)
    plan = await clustertune.make_plan(c, "prepare", "X", "y", estimator="xgboost")
    assert plan.report.status == "planned"
    assert [step.action for step in plan.steps] == ["rebalance", "publish"]
    assert {d.label for d in plan.seen.data} == {"X", "y"}
    assert not any(ts.who_has for ts in s.tasks.values() if b.state in ts.who_has)
    plan.save(tmp_path / "plan.json")
    dry = await clustertune.apply_plan(c, tmp_path / "plan.json", dry_run=True)
    assert dry.status == "planned"
    with dask.config.set({"clustertune.reason": None}):
        done = await clustertune.apply_plan(c, str(tmp_path / "plan.json"))
    assert done.status == "done", str(done)
    X = await c.get_dataset("X")
    np.testing.assert_array_equal(await c.compute(X), expected)
    with pytest.raises(ChangedError, match="nothing was done: X is on other work"):
        await clustertune.apply_plan(c, plan)
    events = [e for _, e in await c.get_events("clustertune")]
    (event,) = [e for e in events if e["action"] == "prepare"]
    assert event["reason"] == "more workers"  # the reason of the plan
    assert [step["action"] for step in event["steps"]] == ["rebalance"]


@gen_cluster(client=True)
async def test_the_reason_is_that_of_the_call(c: Any, s: Any, a: Any, b: Any) -> None:
    """A concurrent call has its own reason, or none."""
    with dask.config.set({"clustertune.reason": "planned"}):
        plan = await clustertune.make_plan(c, "trim")
    reasons: dict[str, Any] = {}
    inside, over = asyncio.Event(), asyncio.Event()

    class Slow:
        async def make(self, _client: Any, **_how: Any) -> None:
            reasons["apply"] = event_log.change_reason()
            inside.set()
            await over.wait()
            reasons["still"] = await asyncio.to_thread(event_log.change_reason)

    slow = replace(plan, call=Slow())
    applied = asyncio.ensure_future(clustertune.apply_plan(c, slow))
    await inside.wait()
    reasons["another call"] = event_log.change_reason()
    reasons["setting"] = dask.config.get("clustertune.reason", None)
    with dask.config.set({"clustertune.reason": "mine"}):
        reasons["of the caller"] = event_log.change_reason()
    over.set()
    await applied
    assert reasons == {
        "apply": "planned",
        "still": "planned",
        "another call": None,
        "setting": None,
        "of the caller": "mine",
    }


@gen_cluster(client=True)
async def test_other_data_under_the_name(c: Any, s: Any, a: Any, b: Any) -> None:
    """Another data set was published, or none is left."""
    await published(c, a)
    plan = await clustertune.make_plan(c, "prepare", "X", "y")
    await c.unpublish_dataset("X")
    with pytest.raises(ChangedError, match=r"there is no data set X; .*; plan again"):
        await clustertune.apply_plan(c, plan)
    other = c.persist(da.ones((100, 2), chunks=(20, 2)))
    await wait(other)
    await c.publish_dataset(X=other)
    with pytest.raises(ChangedError, match="X has other partitions: 5, and it had 10"):
        await clustertune.apply_plan(c, plan)


@gen_cluster(client=True)
async def test_too_late_and_elsewhere(c: Any, s: Any, a: Any, b: Any) -> None:
    """Refused before the cluster is read."""
    plan = await clustertune.make_plan(c, "trim", expires="2 minutes")
    assert plan.expires - plan.made == 120
    for changes, text in (
        ({"expires": plan.made}, "if necessary with a longer"),
        (
            {"seen": replace(plan.seen, scheduler="Scheduler-0")},
            "was restarted after the plan",
        ),
    ):
        with pytest.raises(RefusedError, match=text):
            await clustertune.apply_plan(c, replace(plan, **changes))
    assert (await clustertune.apply_plan(c, plan, progress=False)).status == "done"
    for wrong in ("2 years", "soon", -1):
        with pytest.raises(ValueError, match="expires"):
            clustertune.make_plan(c, "trim", expires=wrong)
    await c.close()
    with pytest.raises(ConnectionLostError):
        await clustertune.apply_plan(c, plan)
