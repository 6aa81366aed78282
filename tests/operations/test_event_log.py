"""Calls are in Dask's event log, with user, reason, and state before and after."""

from __future__ import annotations

import logging
import os
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Status, wait

import clustertune
from clustertune.core.model import Finding, Outcome, Price, Severity, Step
from clustertune.core.report import Report
from clustertune.operations import journal as journals
from clustertune.operations.journal import Journal
from tests.builders import layout, view, worker
from tests.in_process import gen_cluster
from tests.processes import stop_stealing


async def noted(client: Any) -> list[dict[str, Any]]:
    """Return the events of calls, without those of the scheduler plugin."""
    return [e for _, e in await client.get_events("clustertune") if "by" in e]


def trimmed() -> tuple[Report, Journal]:
    """Return the report and the journal of a call with one step."""
    price = Price(nbytes=0)
    step = Step(action="trim", summary="trim", price=price)
    done = Outcome(step=step, status="done", seconds=1.0)
    journal = Journal(views=[view()], findings=[()], outcomes=[done])
    return Report(status="done", seconds=1.0), journal


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_calls_are_events(c: Any, s: Any, a: Any, b: Any) -> None:
    """Each call is one event; a dry run, and a call without work, are none."""
    data = da.from_array(np.arange(80.0).reshape(40, 2), chunks=(10, 2))
    await c.run_on_scheduler(stop_stealing)
    X = c.persist(data, workers=[a.address], allow_other_workers=True)
    await wait(X)
    await clustertune.prepare(c, X, dry_run=True)
    assert await noted(c) == []
    with dask.config.set({"clustertune.reason": "ticket 7\x1b[2J"}):
        await clustertune.prepare(c, X)
    await clustertune.prepare(c, X)
    (event,) = await noted(c)
    assert (event["action"], event["status"]) == ("prepare", "done")
    assert event["summary"].startswith("Ready: moved")
    assert event["by"] == journals.user()
    assert (event["pid"], event["client"]) == (os.getpid(), c.id)
    assert event["reason"] == "ticket 7\\x1b[2J"
    assert event["before"]["workers"] == event["after"]["workers"] == 2
    before, after = (event[when]["findings"]["warning"] for when in ("before", "after"))
    assert before > after
    assert [d["label"] for d in event["after"]["data"]] == ["X"]
    (step,) = event["steps"]
    assert (step["action"], step["status"]) == ("rebalance", "done")
    await clustertune.trim_memory(c)
    last = (await noted(c))[-1]
    assert (last["action"], last["reason"]) == ("trim", None)


@gen_cluster(client=True)
async def test_a_scheduler_that_does_not_answer(
    c: Any, s: Any, a: Any, b: Any, caplog: Any, monkeypatch: Any
) -> None:
    """The work is done, so a failure to log it is only a warning."""

    def broken(**_: Any) -> None:
        raise RuntimeError("no log today")

    monkeypatch.setitem(s.handlers, "log_event", broken)
    assert (await clustertune.trim_memory(c)).status == "done"
    assert "could not write to Dask's event log: RuntimeError('no log today')" in (
        caplog.text
    )
    await c.close()
    await journals.log_call(c, "trim", *trimmed())


@gen_cluster(client=True)
async def test_a_scheduler_that_ends_meanwhile(
    c: Any, s: Any, a: Any, b: Any, caplog: Any
) -> None:
    """The connection breaks while the event is sent: the call's own error says so."""

    def ends(comm: Any, **_: Any) -> Any:
        comm.abort()
        return Status.dont_reply

    s.handlers["log_event"] = ends
    with caplog.at_level(logging.INFO, "clustertune"):
        await journals.log_call(c, "trim", *trimmed())
    found = [r.levelname for r in caplog.records if "event log" in r.message]
    assert found == ["INFO"]
    assert c.status == "running"


def test_a_user_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may run as a user without a name."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 4_000_000_000)
    assert journals.user().startswith("uid 4000000000@")


def test_a_state_is_plain_and_short() -> None:
    """Parking workers are left out, and findings are counted."""
    some = [worker(0, process=5), worker(1, process=7, nthreads=2)]
    seen = view([*some, worker(2, parking=True)], [layout([10, 10], [0, 1])])
    found = [
        Finding(severity=severity, message="m")
        for severity in (Severity.info, Severity.warning, Severity.warning)
    ]
    state = journals.state_of_cluster(seen, found)
    assert (state["workers"], state["threads"]) == (2, 3)
    assert state["process_bytes"] == 12
    assert state["findings"] == {"warning": 2}
    assert [d["partitions"] for d in state["data"]] == [2] * len(state["data"])
