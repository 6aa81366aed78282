"""A report is short and complete, escapes names, and is read back from JSON."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clustertune import checks
from clustertune.core import sections, tables
from clustertune.core.model import (
    Finding,
    LayoutSummary,
    Outcome,
    Plan,
    Price,
    Refusal,
    Restart,
    Severity,
    Step,
    Trim,
    WorkerShare,
)
from clustertune.core.report import SCHEMA_VERSION, Report
from clustertune.core.results import (
    Done,
    WorkerState,
    carried_out,
    planned,
    summary_line,
)
from clustertune.core.sections import headlines, of_findings
from clustertune.core.tables import to_html
from clustertune.operations.journal import Journal
from clustertune.operations.prepare import tune
from clustertune.planner.layouts import summarize
from tests.builders import layout, view, worker
from tests.memory_cluster import MemoryCluster

EVIL = "\x1b[2J\x1b]0;x\x07<script>alert('1')</script>\r\nclustertune: \u202eenif\u200f"
STEP = Step(action="rebalance", summary="move it", price=Price(nbytes=2048, at_risk=""))


LOSSES = (
    "restarted 1 of 3 workers; failed 1: x; skipped 2: y; lost 2 keys, unknown for 1"
)


def report_of(*workers: Any, data: Any = None, **how: Any) -> Report:
    """Return the report of a call on a cluster in memory."""
    data = layout([10] * 4, [0] * 4) if data is None else data
    journal = Journal()
    cluster = MemoryCluster(view(workers or (worker(0), worker(1)), [data]))
    asyncio.run(tune(cluster, journal, notify=lambda *_: None, **how))
    return journal.report(journal.status(how.get("dry_run", False)), 2.0)


def titles(report: Report) -> list[str]:
    """Return the titles of the sections, in order."""
    return [line for line in str(report).splitlines() if line and line[0] != " "]


def step_of(status: str) -> Done:
    return carried_out(Outcome(step=STEP, status=status, seconds=1.0, nbytes=1024))


def restart_of(id: int) -> Restart:
    return Restart(id=id, address="", process_limits={}, wait=1.0)


def finding(severity: Severity, message: str, check: str = "uneven_rows") -> Finding:
    return Finding(severity=severity, message=message, check=check, remedy="mend it")


# --- what it says ---------------------------------------------------------------------


def test_a_thousand_steps_are_no_line() -> None:
    """The first steps are named and the others counted; a table has all of them."""
    steps = [replace(STEP, summary=f"restart worker {i}") for i in range(1000)]
    report = Report(
        status="planned", seconds=9.0, steps=tuple(planned(Plan(steps=tuple(steps))))
    )
    line = headlines(report)[0]
    assert line.startswith(
        "Plan: would restart worker 0; then restart worker 1; then restart worker 2; "
    )
    assert "restart worker 7; then 992 more" in line
    assert "restart worker 999" in str(report)
    done = tuple(carried_out(Outcome(step=s, status="done")) for s in steps)
    report = replace(report, status="done", steps=done)
    line = summary_line(report.steps)
    assert line == "carried out 1,000 of 1,000 rebalance steps"
    assert headlines(report)[0].startswith(f"Ready: {line}; ")


@pytest.mark.parametrize(
    ("outcomes", "text"),
    [
        ([("done", "", 0)], "restarted 1 of 1 worker; lost 0 keys"),
        (
            [("done", "", 2), ("failed", "x", None), ("skipped", "y", None)],
            LOSSES,
        ),
        (
            [("skipped", "busy", 0), ("skipped", "busy", 0)],
            "restarted 0 of 2 workers; skipped 0 and 1: busy; lost 0 keys",
        ),
    ],
)
def test_restarts_are_counted(outcomes: list[Any], text: str) -> None:
    """They are counted by outcome; lost keys are always listed."""
    steps = tuple(
        carried_out(
            Outcome(
                step=replace(STEP, action="restart", args=restart_of(i)),
                status=status,
                reason=reason,
                lost=lost,
            )
        )
        for i, (status, reason, lost) in enumerate(outcomes)
    )
    report = Report(status="left", seconds=1.0, steps=steps)
    assert headlines(report)[0].startswith(f"Not ready: {text}; ")
    failed = replace(report, status="failed", error="interrupted")
    assert headlines(failed)[0] == f"Failed: interrupted; {text}"


def test_nothing_to_do() -> None:
    """The first line states it, with the rows of each worker."""
    report = report_of(data=layout([10] * 4, [0, 1, 0, 1]))
    ready = "Ready: nothing to do (2 s); all 2 workers hold 20 rows; no problem remains"
    assert headlines(report)[0] == ready
    assert str(report).startswith(f"{ready}\n\nWorkers\n")
    assert report.status == "fine"


def test_the_first_line_is_the_answer() -> None:
    """It has the bytes, the time, the rows of each worker and remaining problems."""
    report = report_of()
    begin = "Ready: moved 1.7 KiB in 2 s, so all 2 workers hold 20 rows; "
    assert headlines(report)[0] == f"{begin}no problem remains"
    found = [finding(Severity.warning, "few threads"), *report.left]
    some = replace(report, left=tuple(found))
    assert headlines(some)[0] == f"{begin}1 problem remains: few threads"
    more = (finding(Severity.critical, "all is lost", "new"), *some.left)
    lines = headlines(replace(some, left=more))
    assert lines[0].startswith("Not ready: moved ")
    assert lines[0].endswith("; 2 problems remain: all is lost")
    assert lines[1] == "warning: few threads"


def test_a_report_is_short() -> None:
    """All is well with three workers: at most 20 lines, and the rest on request."""
    some = [worker(i, nanny=None) for i in range(3)]
    for data in (layout([10] * 6, [0] * 6), layout([10] * 6, [0, 1, 2] * 2)):
        report = report_of(*some, data=data)
        assert len(str(report).splitlines()) <= 20
        assert "no_nanny" in str(report)
        assert "has no nanny" not in str(report)
        assert "no nanny, which would" in " ".join(report.details.split())
        assert "no nanny, which would" in report._repr_html_()


@pytest.mark.parametrize("rows", [[20, 20, 20], [20, 40, 0]])
def test_rows_of_workers(rows: list[int]) -> None:
    """Workers without rows are counted."""
    some = [worker(i) for i in range(3)]
    data = layout([10] * 6, [i for i, n in enumerate(rows) for _ in range(n // 10)])
    seen = (summarize(data, view(some, [data])),)
    line = headlines(Report(status="fine", seconds=1.0, before=seen, after=seen))[0]
    even = "all 3 workers hold 20 rows"
    assert (
        even if 0 not in rows else "2 workers hold 20 to 40 rows, and 1 none"
    ) in line


@pytest.mark.parametrize(
    ("homes", "text"),
    [
        ([0] * 4, "1 worker holds 40 rows and trains with 2 threads"),
        ([0, 0, 1, 1], "2 workers hold 20 rows and train with 2 threads"),
    ],
)
def test_one_worker_of_each_host(homes: list[int], text: str) -> None:
    """Workers that need no rows are no problem, so the headline does not count them."""
    some = [worker(i) for i in range(4)]
    data = layout([10] * 4, homes)
    seen = (summarize(data, view(some, [data])),)
    report = Report(status="fine", seconds=1.0, before=seen, after=seen, host_threads=2)
    assert text in headlines(report)[0]
    assert "none" not in headlines(report)[0]


def test_a_dry_run() -> None:
    """A dry run has neither cost nor remaining problems, and no measured time."""
    report = report_of(dry_run=True)
    assert headlines(report)[0].startswith("Plan: would move 1.7 KiB of training data ")
    assert "planned" in str(report)
    assert "predicted" in report.details
    assert "2 s" not in report.details


def test_what_a_dry_run_needs_to_know() -> None:
    """Facts that are unknown before loading are named."""
    text = str(report_of(data=layout([10] * 4, None), dry_run=True))
    assert "unknown yet  rows, bytes and holders of X, y" in text


def test_a_failure() -> None:
    """The first line is the error, with what was done until then."""
    done = carried_out(Outcome(step=STEP, status="done", seconds=1.0, nbytes=1024))
    report = Report(status="failed", seconds=3.0, steps=(done,), error="it broke")
    line = "Failed: it broke; carried out 1 of 1 rebalance step"
    assert headlines(report) == [line]
    assert str(report) == line
    assert "done  move it" in report.details


def test_known_bytes_are_no_unknown_bytes() -> None:
    """The line names steps whose bytes nothing has measured."""
    known, unknown = step_of("done"), replace(step_of("done"), nbytes=None)
    report = Report(status="done", seconds=1.0, steps=(known, unknown))
    assert "moved 1.0 KiB (1 step not counted) in 1 s" in headlines(report)[0]
    load = replace(unknown, action="load")
    report = Report(status="done", seconds=1.0, steps=(known, load))
    assert "moved 1.0 KiB in 1 s" in headlines(report)[0]
    report = Report(status="done", seconds=1.0, steps=(known,))
    assert "moved 1.0 KiB in 1 s" in headlines(report)[0]
    report = Report(status="done", seconds=1.0, steps=(unknown,))
    assert ": carried out 1 of 1 rebalance step; took 1 s; " in headlines(report)[0]


def test_what_is_not_known_yet_has_its_own_note() -> None:
    """A check without an answer is neither a problem nor a hint."""
    hint = finding(Severity.info, "a hint", "missing_estimator")
    open_ = finding(Severity.unknown, "rows are unknown", "misaligned_partitions")
    text = str(Report(status="checked", seconds=1.0, found=(hint, open_)))
    assert "info     1 hint, not urgent: missing_estimator (more: print" in text
    assert "unknown  misaligned_partitions (more: print" in text


def test_each_finding_is_shown_once() -> None:
    """Fixed problems, remaining problems and information have their own sections."""
    found = [finding(Severity.warning, f"problem {i}", f"check{i}") for i in range(3)]
    hint = finding(Severity.info, "a hint", "missing_estimator")
    new = finding(Severity.critical, "a new problem", "new")
    report = Report(
        status="left",
        seconds=1.0,
        call="prepare",
        found=(*found, hint),
        left=(found[2], new, hint),
        steps=(step_of("done"),),
    )
    text = report.details
    order = ["Problems", "Fixed problems", "Actions", "Notes"]
    assert [line for line in text.splitlines() if line in order] == order
    for f in found:
        assert text.count(f"{f.message} (") == 1
    parts = re.split(rf"^({'|'.join(order)})$", text, flags=re.MULTILINE)[1:]
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    assert "problem 0 (check0)" in sections["Fixed problems"]
    assert "problem 1 (check1)" in sections["Fixed problems"]
    assert "problem 2" in sections["Problems"]
    # the worst is the first
    assert sections["Problems"].index("a new") < sections["Problems"].index("problem 2")
    assert "a hint" in sections["Notes"]
    short = str(report)
    assert titles(report)[-2:] == ["Problems", "Notes"]
    assert (
        "fixed  check0 and check1 (more: print(report.details), or option -v)" in short
    )
    assert "a hint" not in short
    # a fixed problem needs no remedy, and findings of a section share one
    assert short.count("mend it") == 1
    assert short.count("Remedy of new and check2: mend it") == 1


def test_unrelated_findings_are_one_line() -> None:
    """A restart does not explain problems that it cannot fix."""
    threads = finding(Severity.warning, "too many threads", "thread_count")
    growth = finding(Severity.unknown, "unknown growth", "memory_growth")
    memory = replace(
        finding(Severity.warning, "much unmanaged memory", "unmanaged_memory"),
        remedy="Run `clustertune.restart_workers(client)`.",
    )
    restart = replace(step_of("done"), action="restart", noun="worker", workers=(1,))
    report = Report(
        status="done",
        seconds=1.0,
        call="restart",
        found=(threads, growth, memory),
        left=(threads, growth),
        steps=(restart,),
    )
    assert "unmanaged_memory (more: print(report.details), or option -v)" in str(report)
    text = report.details
    assert "fixed  much unmanaged memory (unmanaged_memory)" in text
    assert "too many threads" not in text
    assert "2 findings that this call does not change: thread_count and memory" in text
    again = str(replace(report, left=report.found))
    assert "Remedy" not in again  # not the call that did not help
    assert "much unmanaged memory (unmanaged_memory)" in again


@pytest.mark.parametrize("status", ["done", "planned"])
def test_no_remedy_is_the_same_call(status: str) -> None:
    """A report of ``prepare`` does not advise to call ``prepare`` in the same way."""
    same = "Run `X, y = clustertune.prepare(client, X, y)`, which moves partitions."
    bad = replace(finding(Severity.warning, "bad"), remedy=same, fixed_by="rebalance")
    other = replace(finding(Severity.warning, "worse", "other"), remedy="Try 1 thread.")
    report = Report(
        status=status,
        seconds=1.0,
        call="prepare",
        found=(bad, other),
        left=(bad, other),
        steps=(step_of(status),),
    )
    assert same not in " ".join(str(report).split())
    assert "Remedy: Try 1 thread." in str(report)
    checked = replace(report, status="checked", call="check", left=(), steps=())
    assert f"Remedy: {same}" in " ".join(str(checked).split())


def test_at_most_six_lines() -> None:
    """The head of a report has at most six lines."""
    hint = finding(Severity.info, "one machine would do", "missing_estimator")
    bad = finding(Severity.critical, "bad")
    done = tuple(
        carried_out(Outcome(step=STEP, status="partly", seconds=1.0, nbytes=1))
        for _ in range(9)
    )
    for status in ("fine", "done", "left", "planned", "failed"):
        for error in ("", "it broke"):
            report = Report(
                status=status,
                seconds=1.0,
                found=(hint, bad, bad),
                left=(hint, bad),
                steps=done,
                error=error,
            )
            lines = headlines(report)
            assert 1 <= len(lines) <= 6
            assert not any("one machine" in line for line in lines)


def test_steps_say_what_became_of_them() -> None:
    """Done, refused and planned steps differ, and have reasons."""
    refused = Plan(
        steps=(STEP,), refused=(Refusal(step=STEP, guard="g", reason="why"),)
    )
    steps = [carried_out(Outcome(step=STEP, status="failed", reason="lost"))]
    steps += planned(refused)
    assert [(s.status, s.reason) for s in steps] == [
        ("failed", "lost"),
        ("planned", ""),
        ("refused", "why (g)"),
    ]
    assert {s.predicted_bytes for s in steps} == {2048}
    text = str(Report(status="failed", seconds=1.0, steps=tuple(steps)))
    assert "why (g)" in text


def test_unknown_values_are_shown_as_unknown() -> None:
    """A price that is not known is no zero, in text and in HTML."""
    unknown = replace(STEP, price=Price(nbytes=None))
    steps = (carried_out(Outcome(step=unknown, status="done")),)
    report = Report(
        status="done",
        seconds=1.0,
        steps=steps,
        found=(finding(Severity.unknown, "who knows"),),
    )
    for text in (report.details, report._repr_html_()):
        assert "0 B" not in text


# --- what a layout comes down to ------------------------------------------------------


def test_a_layout_in_numbers() -> None:
    """Rows, bytes, separated pairs and the share of every worker."""
    data = layout([10, 30], {"X": [0, 0], "y": [0, 1]})
    found = summarize(data, view([worker(0), worker(1)], [data]))
    assert (found.label, found.collections) == ("training data", ("X", "y"))
    assert (found.partitions, found.rows, found.nbytes) == (2, 40, 40 * 88)
    assert (found.separated, found.imbalance) == (1, 2.0)
    assert [w.rows for w in found.workers] == [40, 0]


def test_a_layout_that_is_not_loaded() -> None:
    """What cannot be known yet is None."""
    data = layout([10, 30], None)
    found = summarize(data, view((), [data]))
    assert (found.rows, found.loaded) == (40, False)
    assert found.nbytes is found.separated is found.imbalance is None
    assert found.workers == ()


def test_a_layout_of_other_boundaries() -> None:
    """X and y with different boundaries have bytes but no common rows."""
    data = layout([10, 30], [0, 1])
    other = replace(data.collections[1], rows=np.array([20, 20]))
    data = replace(data, collections=(data.collections[0], other))
    found = summarize(data, view((), [data]))
    assert found.rows is found.separated is found.imbalance is None
    assert found.nbytes == 40 * 88


def test_many_workers_make_a_short_table() -> None:
    """Of 1,000 workers the fullest and the emptiest are shown, and the rest counted."""
    some = [worker(i) for i in range(1000)]
    data = layout([10] * 999 + [20], list(range(1000)))
    seen = view(some, [data])
    report = Report(status="fine", seconds=1.0, after=(summarize(data, seen),))
    lines = str(report).splitlines()
    assert len(lines) < 25
    assert any(line.startswith("  999 ") for line in lines)  # it holds most
    assert any(line.startswith("  ... 988 more") for line in lines)
    assert len(report._repr_html_()) < 5000


def test_few_workers_are_all_shown() -> None:
    """Up to a dozen workers are listed, in natural order."""
    some = [worker(f"w{i}") for i in reversed(range(12))]
    data = layout([10] * 12, list(range(12)))
    summary = summarize(data, view(some, [data]))
    text = str(Report(status="fine", seconds=1.0, after=(summary,)))
    rows = [line.split()[0] for line in text.splitlines() if line.startswith("  w")]
    assert rows == ["worker", *(f"w{i}" for i in range(12))]


def test_before_and_after_are_side_by_side() -> None:
    """One table has both; unchanged values are shown once."""
    data = layout([10] * 2, [0, 0])
    here, there = (
        (summarize(x, view([worker("w0"), worker("w1")], [x])),)
        for x in (data, layout([10] * 2, [0, 1]))
    )
    text = str(Report(status="planned", seconds=1.0, before=here, after=here))
    assert text.count("training data: ") == 1
    assert "->" not in text
    states = (
        WorkerState(
            worker="w0",
            data_before=2 * 2**20,
            data_after=2**20,
            process_before=10 * 2**20,
            process_after=9 * 2**20,
            limit=20 * 2**20,
            peak=15 * 2**20,
        ),
    )
    report = Report(
        status="done",
        seconds=1.0,
        before=here,
        after=there,
        workers=states,
    )
    text = str(report)
    assert text.count("training data: ") == 1
    rows = [re.split(r"  +", x)[1:] for x in text.splitlines() if x.startswith("  w")]
    assert rows[1] == ["w0", "2 -> 1", "20 -> 10", "1.7 KiB -> 880 B", *rows[1][4:]]
    assert rows[1][4:] == ["10.0 -> 9.0 MiB", "15.0 MiB"]
    assert rows[2][:3] == ["w1", "0 -> 1", "0 -> 10"]


# --- untrusted text -------------------------------------------------------------------


def harmless(text: str) -> bool:
    return all(c.isprintable() or c == "\n" for c in text)


def test_hostile_names_of_workers() -> None:
    """A worker's name has no effect on a terminal or a notebook."""
    report = report_of(worker(EVIL, nthreads=64), worker("b", status="paused"))
    assert EVIL in {w.worker for s in report.after for w in s.workers}
    assert harmless(str(report))
    assert harmless(repr(report))
    assert all("\n" not in line for line in headlines(report))
    assert "<script" not in report._repr_html_()
    assert "&lt;script" in report._repr_html_()


def hostile() -> Report:
    """Return a report in which every text is hostile, as from a hostile scheduler."""
    share = WorkerShare(worker=EVIL, partitions=1, rows=1, nbytes=1, share=1.0)
    summary = LayoutSummary(
        label=EVIL,
        collections=(EVIL,),
        partitions=1,
        loaded=True,
        rows=1,
        nbytes=1,
        separated=1,
        imbalance=1.0,
        workers=(share,),
    )
    found = Finding(
        severity=Severity.critical,
        message=EVIL,
        check=EVIL,
        remedy=EVIL,
        subject=(EVIL,),
        evidence={EVIL: EVIL},
    )
    done = Done(
        action=EVIL,
        summary=EVIL,
        status=EVIL,
        predicted_bytes=1,
        at_risk=EVIL,
        reason=EVIL,
    )
    return Report(
        status="left",
        seconds=1.0,
        found=(found,),
        left=(found, found),
        before=(summary,),
        after=(summary,),
        steps=(done,),
        needs=(EVIL,),
        error=EVIL,
    )


def test_hostile_reports() -> None:
    """A report from a scheduler is shown without harm, whatever it contains."""
    report = Report.from_json(hostile().to_json())
    assert harmless(str(report))
    assert harmless(repr(report))
    html = report._repr_html_()
    assert harmless(html.replace("\n", ""))
    assert "<script" not in html
    assert len(headlines(report)) <= 6
    assert not [
        line for line in str(report).splitlines() if line.startswith("clustert")
    ]


# --- a report as a file ---------------------------------------------------------------


def test_a_file_replaces_the_old_one_and_loads_nothing(tmp_path) -> None:
    """Every text of a report is escaped, as in a notebook."""
    file = tmp_path / "report.html"
    file.write_text("of last week")
    report = hostile()
    report.save(str(file))
    text = file.read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>")
    assert "of last week" not in text
    assert report._repr_html_() in text
    for markup in ("<script", "<link", "<img", "src="):
        assert markup not in text


def test_a_report_without_data_is_saved(tmp_path) -> None:
    file = tmp_path / "report.html"
    Report(status="fine", seconds=0.1).save(file)
    assert "nothing to do" in file.read_text(encoding="utf-8")


def test_findings_of_a_monitor_are_escaped() -> None:
    bad = Finding(severity=Severity.warning, message=EVIL, check="c", remedy=EVIL)
    text = to_html([of_findings("<Monitor: watching>", [bad])])
    assert "&lt;Monitor: watching&gt;" in text
    assert "<script" not in text


# --- JSON -----------------------------------------------------------------------------


def test_a_real_report_comes_back() -> None:
    """A report of a real call, with NumPy numbers, is read back equal."""
    report = report_of()
    assert Report.from_json(report.to_json()) == report
    assert json.loads(report.to_json())["schema_version"] == SCHEMA_VERSION == 1


def test_severities_are_words() -> None:
    """JSON has the words of severities; another word is an error."""
    for report in (report_of(), report_of(dry_run=True), hostile()):
        data = json.loads(report.to_json())
        words = {f["severity"] for f in data["found"]}
        assert words <= {"unknown", "info", "warning", "critical"}
        assert words
    data["found"][0]["severity"] = "bad"
    with pytest.raises(ValueError, match="this is not a report: 'bad'"):
        Report.from_json(json.dumps(data))


def test_numpy_numbers_in_evidence() -> None:
    """A check may put a NumPy number into its evidence."""
    found = replace(finding(Severity.info, "x"), evidence={"n": np.int64(3)})
    report = Report(status="fine", seconds=1.0, found=(found,))
    assert Report.from_json(report.to_json()).found[0].evidence == {"n": 3}


def test_fields_of_a_later_release_are_passed_over() -> None:
    """Within a schema version fields may be added; older releases ignore them."""
    report = report_of()
    data = json.loads(report.to_json())
    data["colour"] = data["found"][0]["colour"] = data["steps"][0]["colour"] = "red"
    data["after"][0]["colour"] = data["after"][0]["workers"][0]["colour"] = "red"
    assert Report.from_json(json.dumps(data)) == report


@pytest.mark.parametrize("version", [None, 0, 2, "1"])
def test_another_schema_version(version: object) -> None:
    """A report of another schema version is refused with that version."""
    data = json.loads(report_of().to_json()) | {"schema_version": version}
    with pytest.raises(ValueError, match=f"schema version {version!r} .* reads only 1"):
        Report.from_json(json.dumps(data))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"schema_version": 1}',
        '{"schema_version": 1, "found": 3}',
        '{"schema_version": 1, "found": [[]], "left": []}',
        '{"schema_version": 1, "status": "done", "seconds": "long"}',
        '{"schema_version": 1, "status": "done", "seconds": 1, "workers": [[0, 1]]}',
        '{"schema_version": true, "status": "done", "seconds": 1}',
        "[" * 100_000,
    ],
)
def test_no_report(text: str) -> None:
    """Other data raises ValueError only."""
    with pytest.raises(
        ValueError, match=r"^schema version|^this is not a report|Expecting value"
    ):
        Report.from_json(text)


def test_checks_name_the_findings_of_a_report() -> None:
    """Findings in a report have the check that found them and its remedy."""
    report = report_of()
    assert {f.check for f in report.found} <= set(checks.available())
    assert all(f.remedy for f in report.found)


def test_a_check_without_problems() -> None:
    """A check has nothing to do."""
    workers = (WorkerState(worker=0, limit=0),)
    report = Report(status="checked", seconds=0.2, workers=workers)
    assert headlines(report) == ["Ready: checked 1 worker in 0.2 s; no problems"]
    bad = replace(report, found=(finding(Severity.critical, "no worker"),))
    line = "Not ready: checked 1 worker in 0.2 s; 1 problem: no worker"
    assert headlines(bad) == [line]
    assert repr(bad) == f"<Report: {line}>"
    assert f'<h4 style="color:#c62828">{line}</h4>' in bad._repr_html_()


def test_memory_of_workers() -> None:
    """A row for each worker in text, HTML and JSON; what was not measured is no 0."""
    trimmed = Step(action="trim", summary="t", price=STEP.price, args=Trim(workers={}))
    again = Step(action="restart", summary="r", price=STEP.price)
    outcomes = [
        Outcome(step=trimmed, status="done"),
        Outcome(step=again, status="done", seconds=2.0, count=1),
    ]
    steps = tuple(
        replace(carried_out(o), action=a, verb=v, noun="worker", workers=w)
        for o, a, v, w in zip(
            outcomes,
            ("trim", "restart"),
            ("trimmed", "restarted"),
            ((0, 1), (1,)),
            strict=True,
        )
    )
    limit = 4 * 2**30
    states = (
        WorkerState(
            worker=0,
            process_before=9 * 2**20,
            process_after=3 * 2**20,
            limit=limit,
        ),
        WorkerState(worker=1, process_before=8 * 2**20, limit=limit),
    )
    told = Report(status="done", seconds=1.0, workers=states, steps=steps)
    table = [x.split("  ") for x in str(told).splitlines()]
    cells = [[c.strip() for c in row if c] for row in table]
    assert ["0", "9.0 -> 3.0 MiB", "trimmed"] in cells
    assert ["1", "8.0 MiB -> -", "trimmed; restarted"] in cells
    assert Report.from_json(told.to_json()) == told
    many = replace(told, steps=(replace(steps[0], workers=tuple(range(99))),))
    for text in (str(many), many._repr_html_()):
        assert "... 87 more" in text


@pytest.mark.parametrize("columns", [None, 60, 200])
def test_width(columns: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text has at most 100 columns, or those of the terminal."""
    if columns is not None:
        monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
        monkeypatch.setenv("COLUMNS", str(columns))
    for report in (hostile(), report_of(), report_of(dry_run=True)):
        widest = max(map(len, str(report).splitlines()))
        assert widest <= min(columns or 100, 100)
        if columns == 60:
            assert widest > 40


def test_findings_as_text() -> None:
    bad = finding(Severity.warning, "bad")
    text = tables.to_text([sections.of_findings("Found by a check", [bad])])
    assert text.splitlines() == [
        "Found by a check",
        "  warning  bad (uneven_rows)",
        "           Remedy: mend it",
    ]


def test_a_worker_that_was_killed_is_counted_once() -> None:
    """The reason of a failed restart does not repeat the number of lost keys."""
    restart = replace(STEP, action="restart", args=restart_of(0))
    reason = "it went away"
    outcome = Outcome(step=restart, status="failed", reason=reason, lost=6, count=0)
    report = Report(status="left", seconds=1.0, steps=(carried_out(outcome),))
    line = headlines(report)[0]
    assert line.startswith(
        "Not ready: restarted 0 of 1 worker; failed 0: it went away; lost 6 keys; "
    )


def test_unknown_process_memory() -> None:
    """It is not shown as 0 bytes."""
    state = WorkerState(
        worker=0,
        data_before=None,
        data_after=None,
        process_before=None,
        process_after=None,
        limit=2**30,
    )
    known = replace(state, worker=1, process_before=2**20)
    report = Report(status="checked", seconds=1.0, workers=(state,))
    assert "0 B" not in str(report)
    assert "1.0 MiB -> -" in str(replace(report, workers=(state, known)))
