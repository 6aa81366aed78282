"""``schedule_restart``: checks of the request, states, and the commands."""

from __future__ import annotations

import asyncio
import json
import sys
from functools import partial
from time import time
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, Nanny, wait

import clustertune
from clustertune.errors import RefusedError, TimedOutError
from clustertune.monitor import inquiry
from clustertune.operations import schedules
from clustertune.operations.schedules import Schedule
from tests.cli.test_cli import run
from tests.in_process import gen_cluster
from tests.processes import soon

NANNIES: dict[str, Any] = {
    "client": True,
    "Worker": Nanny,
    "worker_kwargs": {"memory_limit": "1 GiB"},
    "timeout": 120,
}


@gen_cluster(nthreads=[("127.0.0.1", 1)], **NANNIES)
async def test_from_request_to_done(c: Any, s: Any, nanny: Any) -> None:
    """Its client may close meanwhile; the only worker keeps its data."""
    with dask.config.set({"clustertune.reason": "nightly"}):
        plan = await clustertune.schedule_restart(c, if_needed=True, dry_run=True)
    assert (plan.state, plan.id, plan.if_needed) == ("planned", "", True)
    assert "for 30 s, if needed; until" in " ".join(str(plan).split())
    assert plan.reason == "nightly"
    assert await clustertune.schedules(c) == ()
    with pytest.raises(LookupError, match="a plan only"):
        plan.cancel()
    x = c.persist(da.arange(1000, chunks=100))
    await wait(x)  # otherwise the other client's message may arrive first
    scattered = await c.scatter({"a": np.arange(10)}, hash=False)
    other = await Client(s.address, asynchronous=True, set_as_default=False)
    same = other.persist(x)
    await wait(same)
    made = await clustertune.schedule_restart(other, same, idle_for="300 ms")
    assert made.state == "waiting"
    await other.close()
    before = set(s.workers)
    plugin, row = s.plugins["clustertune"], [(0, 2**20), ("another", 2**20)]
    past = {"began": 0.0, "ended": 1.0, "ended_by": "gap", "managed": []}
    past |= {"floors": row, "peaks": row}
    plugin.runs.kept.append(past)
    kept = plugin.schedules.kept[made.id]
    await soon(lambda: kept.ended)
    (done,) = await clustertune.schedules(c)
    assert done.state == "done"
    assert ": done; worker 0 restarted, 11 keys" in done.last
    assert done.last.endswith(" kept, 0 lost")
    assert done.last in str(done)
    assert before.isdisjoint(s.workers)
    # the restart ended this leak, so its samples are dropped
    assert past["floors"] == [("another", 2**20)]
    assert await c.compute(x.sum()) == 499500
    np.testing.assert_array_equal(await scattered["a"], np.arange(10))
    with dask.config.set({"clustertune.reason": "<b>\x1b[2J"}):
        later = await clustertune.schedule_restart(
            c, cron="0 3 * * *", tz="Asia/Tokyo", expires="2 days"
        )
    assert len(later.instants) == 2
    assert "<b>" in str(later)
    assert "\x1b" not in str(later)
    assert (await later.cancel()).state == "cancelled"
    with pytest.raises(LookupError, match="no scheduled restart 'absent' to cancel"):
        await schedules.cancel(c, "absent")
    last = (await clustertune.schedules(c))[-1]
    assert (last.id, last.ended) == (later.id, True)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_impossible_restarts(c: Any, s: Any, *workers: Any) -> None:
    """Workers without a nanny would not return; nothing is sent."""
    with pytest.raises(RefusedError, match="it has no nanny"):
        await clustertune.schedule_restart(c)
    assert s.plugins["clustertune"].schedules.listed() == []


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_bad_arguments(
    c: Any, s: Any, worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each error is raised before anything is sent."""
    for given, error, text in (
        ({"cron": "0 3 * *"}, ValueError, "five fields"),
        ({"cron": "0 3 * * *", "tz": "Mars/Sea"}, ValueError, "is no time zone"),
        ({"tz": "UTC"}, TypeError, "give cron, too"),
        ({"if_needed": "leak"}, ValueError, "must be True or False"),
        ({"expires": "2000 days"}, ValueError, "at most a year"),
        ({"expires": 0}, ValueError, "expires=0 must be a duration"),
        ({"idle_for": "soon"}, ValueError, "idle_for='soon' must be a duration"),
        ({"workers": "w"}, ValueError, "must be a list"),
        ({"dry_run": 1}, ValueError, "must be True or False"),
    ):
        with pytest.raises(error, match=text):
            clustertune.schedule_restart(c, **given)
    assert "clustertune" not in s.plugins
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "CET-1CEST")  # without cron no time zone is needed
        with pytest.raises(RefusedError, match="it has no nanny"):
            await clustertune.schedule_restart(c)
    assert s.plugins["clustertune"].schedules.listed() == []


HOUR = 3600.0


@pytest.mark.parametrize("shift", [-HOUR, HOUR], ids=["slow", "fast"])
@gen_cluster(nthreads=[("127.0.0.1", 1)], **NANNIES)
async def test_a_client_with_another_clock(
    c: Any, s: Any, nanny: Any, shift: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times, findings, plans and expiry follow the scheduler's clock."""
    now = time()
    for name, module in list(sys.modules.items()):
        ours = name.startswith("clustertune.") and ".remote." not in name
        if ours and getattr(module, "time", None) is time:
            monkeypatch.setattr(module, "time", lambda: time() + shift)
    made = await clustertune.schedule_restart(
        c, cron="* * * * *", expires="10 minutes", idle_for="1h"
    )
    assert now < made.instants[0] < now + 100
    assert made.expires == made.instants[0] + 600
    await clustertune.check(c)
    plugin = s.plugins["clustertune"]
    state = await plugin.page_data.look()
    assert abs(state["time"] - state["findings"]["time"]) < 60
    await made.cancel()


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_a_scheduler_that_hangs(
    c: Any, s: Any, a: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call ends after its time limit."""
    assert await clustertune.schedules(c) == ()
    monkeypatch.setattr(inquiry, "ANSWER_SECONDS", 0.3)
    released = asyncio.Event()

    async def hang(**_: Any) -> None:
        await released.wait()

    it = Schedule(id="x", state="waiting", idle_for=30, expires=0.0, client=c)
    with monkeypatch.context() as patch:
        patch.setitem(s.handlers, "clustertune", hang)
        for call in (
            partial(clustertune.schedules, c),
            it.cancel,
            partial(clustertune.last_report, c),
        ):
            with pytest.raises(TimedOutError, match="did not answer within"):
                await asyncio.wait_for(call(), 30)
    released.set()


# --- in words -------------------------------------------------------------------------


def test_why_it_waits() -> None:
    """One line, with escaped text."""
    waits = "held by a fit\n since noon"
    it = Schedule(id="x", state="waiting", idle_for=30, expires=0.0, waits=waits)
    assert str(it).splitlines()[1] == "  waiting: held by a fit\\n since noon"


def test_while_it_runs() -> None:
    """It lists the remaining workers."""
    it = Schedule(id="x", state="running", idle_for=30, expires=0.0, left=(0,))
    assert str(it).splitlines()[1] == "  running: worker 0 not restarted yet"


# --- the command line -----------------------------------------------------------------


def test_from_the_shell(local_cluster: Any) -> None:
    """Plan, schedule, list and cancel; bad input is one line."""
    cluster, _ = local_cluster(1)
    where = cluster.scheduler_address
    later = ("schedule", "restart")
    bad = run(*later, "--cron", "0 3 * *", "--yes", where)
    assert (bad.exit_code, "five fields" in bad.stderr) == (2, True)
    plan = run(*later, "--dry-run", where)
    assert plan.exit_code == 0
    assert plan.stdout.startswith("restart all workers once nothing has run")
    done = run(*later, "--yes", "--if-needed", "--reason", "why", where)
    assert done.exit_code == 0
    listed = run("schedule", "list", "-f", "json", where)
    (row,) = json.loads(listed.stdout)["schedules"]
    assert (row["reason"], row["if_needed"]) == ("why", True)
    assert f"schedule cancel {row['id']} tcp:" in done.stderr
    assert run("schedule", "cancel", "absent", where).exit_code == 2
    ended = run("schedule", "cancel", row["id"], where)
    assert (ended.exit_code, "cancelled" in ended.stdout) == (0, True)
