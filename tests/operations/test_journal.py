"""The report of a call at each stage, however the call ends."""

from __future__ import annotations

from dataclasses import replace

from clustertune import checks
from clustertune.actions import ACTIONS
from clustertune.core.model import (
    Outcome,
    Plan,
    Price,
    Refusal,
    Restart,
    Step,
    View,
)
from clustertune.core.sections import headlines
from clustertune.operations.journal import Journal
from clustertune.planner import plan as planner
from tests.builders import layout, view, worker

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


def test_keys_that_are_lost_between_steps() -> None:
    """The step about such a worker has failed; other losses have their worker."""
    first, second = (w.address for w in GOOD.now.workers)
    args = Restart(id=0, address=first, process_limits={}, wait=1.0)
    step = replace(STEP, action="restart", args=args)
    journal = after(GOOD, GOOD)
    journal.outcomes.append(Outcome(step=step, status="skipped", reason="has left"))
    journal.note_losses({first: 4, second: 2, "tcp://gone": 1})
    report = journal.report("left", 1.0)
    assert [(s.status, s.lost) for s in report.steps] == [("failed", 4)]
    assert [(x.worker, x.keys) for x in report.lost or ()] == [
        (1, 2),
        ("tcp://gone", 1),
    ]
    line = "lost 7 keys, 3 of them with workers 1 and tcp://gone, which ended meanwhile"
    assert headlines(report)[0].partition("has left; ")[2].startswith(line)


def test_losses_that_are_unknown() -> None:
    """The scheduler did not answer at the end, so no number is claimed."""
    args = Restart(id=0, address="", process_limits={}, wait=1.0)
    step = replace(STEP, action="restart", args=args)
    journal = after(GOOD)
    journal.outcomes.append(Outcome(step=step, status="done", lost=0, count=1))
    journal.note_losses(None)
    line = headlines(journal.report("failed", 1.0))[0]
    assert "restarted 1 of 1 worker; lost 0 keys as far as known" in line


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
