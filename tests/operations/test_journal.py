"""The report of a call at each stage, however the call ends."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Status, wait

import clustertune
from clustertune import checks
from clustertune.actions import ACTIONS
from clustertune.core.model import (
    Finding,
    Outcome,
    Plan,
    Price,
    Refusal,
    Restart,
    Severity,
    Step,
    Unknown,
    View,
)
from clustertune.core.report import Report
from clustertune.core.sections import headlines
from clustertune.operations import journal as journals
from clustertune.operations.journal import Journal
from clustertune.planner import plan as planner
from clustertune.remote.keys import unpack
from tests.builders import layout, view, worker
from tests.in_process import gen_cluster
from tests.processes import stop_stealing

STEP = Step(action="scale", summary="scale", price=Price(nbytes=0))
BAD = view([worker(0), worker(1)], [layout([10] * 4, [0, 0, 0, 0])])
GOOD = view([worker(0), worker(1)], [layout([10] * 4, [0, 1, 0, 1])])


def after(*views: View) -> Journal:
    """Return the journal of a call with these looks and nothing else."""
    journal = Journal()
    for seen in views:
        journal.views.append(seen)
        journal.findings.append(checks.run(seen))
        journal.plans.append(planner.make_plan(journal.findings[-1], seen, ACTIONS))
    return journal


def test_nothing_was_wrong() -> None:
    """One look without problems is fine."""
    journal = after(GOOD)
    assert journal.status(dry_run=False) == "fine"
    report = journal.report("fine", 1.0)
    assert report.before == report.after
    assert report.found == report.left
    assert report.steps == ()


def test_something_was_done() -> None:
    """``before`` has the first findings, and ``after`` the last ones."""
    journal = after(BAD, GOOD)
    journal.outcomes.append(Outcome(step=STEP, status="done", nbytes=3, seconds=2.0))
    assert journal.status(dry_run=False) == "done"
    report = journal.report("done", 5.0)
    assert (report.status, report.seconds) == ("done", 5.0)
    assert [x.imbalance for x in (*report.before, *report.after)] == [2.0, 1.0]
    assert {f.check for f in report.found} > {f.check for f in report.left}
    assert [(s.status, s.nbytes, s.seconds) for s in report.steps] == [("done", 3, 2.0)]


def restarted(status: str, **fields: Any) -> Outcome:
    """Return the outcome of a restart of the first worker."""
    address = GOOD.now.workers[0].address
    args = Restart(id=0, address=address, process_limits={}, wait=1.0)
    step = replace(STEP, action="restart", args=args)
    return Outcome(step=step, status=status, **fields)


def test_keys_that_are_lost_between_steps() -> None:
    """The step about such a worker has failed; other losses have their worker."""
    first, second = (w.address for w in GOOD.now.workers)
    journal = after(GOOD, GOOD)
    journal.outcomes.append(restarted("skipped", reason="has left"))
    journal.note_losses({first: (4, 0), second: (2, 0), "tcp://gone": (1, 0)})
    report = journal.report("left", 1.0)
    assert [(s.status, s.lost) for s in report.steps] == [("failed", 4)]
    assert [(x.worker, x.keys) for x in report.lost or ()] == [
        (1, 2),
        ("tcp://gone", 1),
    ]
    line = "lost 7 keys, 3 of them with workers 1 and tcp://gone, which ended meanwhile"
    assert headlines(report)[0].partition("has left; ")[2].startswith(line)
    assert journal.lost == 7


def test_keys_that_are_not_computed_again_yet() -> None:
    """They are reported, and are no losses."""
    first, second = (w.address for w in GOOD.now.workers)
    journal = after(GOOD, GOOD)
    journal.outcomes.append(restarted("skipped", reason="has left"))
    journal.note_losses({first: (0, 5), second: (2, 1)})
    report = journal.report("left", 1.0)
    assert [(s.status, s.lost) for s in report.steps] == [("skipped", 0)]
    found = [(x.worker, x.keys, x.coming) for x in report.lost or ()]
    assert found == [(0, 0, 5), (1, 2, 1)]
    line = headlines(report)[0]
    assert "5 keys of worker 0, which ended, are not computed again yet" in line
    assert "1 key of worker 1" in line
    assert "lost 2 keys with worker 1" in line
    assert journal.lost == 2


def test_losses_that_are_unknown() -> None:
    """The scheduler did not answer at the end, so no number is claimed."""
    journal = after(GOOD)
    journal.outcomes.append(restarted("done", lost=0, count=1))
    journal.note_losses(None)
    line = headlines(journal.report("failed", 1.0))[0]
    assert "restarted 1 of 1 worker; lost 0 keys as far as known" in line
    assert journal.lost is None  # in the event and the audit trail too


def test_something_is_left() -> None:
    """Steps that are still planned at the end are left."""
    journal = after(BAD, BAD)
    journal.outcomes.append(Outcome(step=STEP, status="partly"))
    assert journal.status(dry_run=False) == "left"
    # they were neither done nor, as in a dry run, asked for
    assert [s.status for s in journal.report("left", 1.0).steps] == ["partly"]


def test_something_was_refused() -> None:
    """A refused step is left, and the report has the guard's reason."""
    journal = after(GOOD)
    refused = Refusal(step=STEP, guard="targets_still_run", reason="w is paused")
    journal.plans[-1] = Plan(phase="rebalance", refused=(refused,))
    assert journal.status(dry_run=False) == "left"
    (done,) = journal.report("left", 1.0).steps
    assert (done.status, done.reason) == ("refused", "w is paused (targets_still_run)")


def test_a_dry_run() -> None:
    """A dry run lists its steps, also refused ones."""
    journal = after(BAD)
    assert journal.status(dry_run=True) == "planned"
    (done,) = journal.report("planned", 1.0).steps
    assert (done.action, done.status) == ("rebalance", "planned")
    lazy = after(view((), [layout([10], None)]))
    assert lazy.report("planned", 1.0).needs[0].startswith("rows, bytes and holders of")


def test_it_failed_before_anything_was_seen() -> None:
    """A call without a look has a report with its error."""
    report = Journal().report("failed", 0.1, "no cluster")
    assert (report.status, report.error) == ("failed", "no cluster")
    assert report.found == report.before == report.after == report.steps == ()


def test_it_failed_between_look_and_plan() -> None:
    """The report has findings that stopped the call before a plan."""
    journal = after(BAD)
    journal.plans.clear()
    report = journal.report("failed", 0.1, "it does not fit")
    assert report.found
    assert report.needs == report.steps == ()


def test_rows_that_nobody_could_count_are_left() -> None:
    """Loaded data of unknown rows is left, with the reason."""
    journal = Journal()
    seen = view(layouts=[layout(None, [0, 1])])
    journal.views.append(seen)
    journal.findings.append(checks.run(seen))
    journal.plans.append(Plan())
    status = journal.status(dry_run=False)
    assert status == "left"
    lines = headlines(journal.report(status, 0.1))
    assert any("unknown" in line for line in lines)
    assert not any("nothing to do" in line for line in lines)


# --- facts for the page ---------------------------------------------------------------


GIB = 2**30


def test_thresholds_are_bytes_of_each_worker() -> None:
    told = journals.page_facts(view([worker(0), worker(1, pause=None)]), [])
    first, second = told["workers"].values()
    assert first == [int(f * 4 * GIB) for f in (0.6, 0.7, 0.8, 0.95)]
    assert second == [int(0.6 * 4 * GIB), int(0.7 * 4 * GIB), None, int(0.95 * 4 * GIB)]


@pytest.mark.parametrize(
    "blind",
    [
        worker(0, facts=Unknown("silent")),
        worker(0, memory_limit=0),
        worker(0, memory_limit=0, pause=None),
    ],
)
def test_what_is_not_known_is_none(blind) -> None:
    told = journals.page_facts(view([blind]), [])
    assert list(told["workers"].values()) == [[None] * 4]


def test_collections_of_an_earlier_call_stay_where_this_one_has_none() -> None:
    assert "collections" not in journals.page_facts(view(), [])
    (told,) = journals.page_facts(view(layouts=[layout([5, 7], [0, 1])]), [])[
        "collections"
    ]
    assert told["rows"] == [5, 7]
    assert [list(unpack(m)) for m in told["members"]] == [
        [("X", 0), ("X", 1)],
        [("y", 0), ("y", 1)],
    ]


@pytest.mark.parametrize("some", [None, frozenset({1})])
def test_workers_that_train(some) -> None:
    """The page expects no rows on workers that do not train."""
    seen = view([worker(0), worker(1)], [layout([5, 7], [1, 1])])
    (told,) = journals.page_facts(replace(seen, trainers=some), [])["collections"]
    assert told["trainers"] == (None if some is None else [1])


def test_too_many_keys_are_not_sent(monkeypatch) -> None:
    monkeypatch.setattr(journals, "MOST_KEYS", 3)
    many = journals.page_facts(view(layouts=[layout([5, 7], [0, 1])]), [])
    assert many["collections"] == []


def test_findings_of_processes_say_of_which() -> None:
    """Findings have the addresses of their processes, if they depend on processes."""
    workers = [worker(0), worker(1)]
    every = {
        check: Finding(check=check, severity=Severity.warning, message="m", subject=who)
        for check, who in (
            ("memory_growth", (1,)),
            ("thread_count", (1,)),
            ("blocked_event_loops", ("scheduler",)),
        )
    }
    told = journals.page_facts(view(workers), every.values())["findings"]["found"]
    assert [f["processes"] for f in told] == [[workers[1].address], [], []]


def test_the_checks_of_processes_exist() -> None:
    assert set(checks.available()) >= journals.OF_PROCESSES


# --- the event log --------------------------------------------------------------------


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
