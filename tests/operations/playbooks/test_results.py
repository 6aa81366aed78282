"""Limits and results of playbooks (pure)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clustertune.core.model import Finding, Severity
from clustertune.core.report import Report
from clustertune.core.results import Done, Loss
from clustertune.operations.playbooks.reading import Step
from clustertune.operations.playbooks.running import (
    PlaybookResult,
    StepResult,
    failure_of,
    status_of,
    subjects,
)

STEP, LOOK = "trim", "check a"


def finding(check: str, severity: Severity, *subject: Any) -> Finding:
    return Finding(check=check, severity=severity, message="why", subject=subject)


def test_subjects_of_a_condition() -> None:
    """Findings that are bad enough count; unknown ones never do."""
    found = [
        finding("a", Severity.warning, 1, 2),
        finding("a", Severity.critical, 3),
        finding("a", Severity.unknown, 4),
        finding("b", Severity.critical, 5),
        finding("c", Severity.info),
    ]

    def of(check: str, at_least: Severity) -> Any:
        step = Step(when=check, at_least=at_least, do="trim")
        return subjects(step, found)

    assert of("a", Severity.warning) == {1, 2, 3}
    assert of("a", Severity.critical) == {3}
    assert of("c", Severity.info) == {None}
    assert of("c", Severity.warning) == set()
    assert of("d", Severity.info) == set()


def result(*statuses: str, **what: Any) -> PlaybookResult:
    steps = tuple(StepResult(step=STEP, status=s) for s in statuses)
    return PlaybookResult(playbook="p", seconds=1, steps=steps, **what)


@pytest.mark.parametrize(
    ("statuses", "status", "code"),
    [
        ((), "fine", 0),
        (("checked", "skipped"), "fine", 0),
        (("done", "fine"), "done", 0),
        (("done", "failed", "not begun"), "failed", 5),
        (("refused", "not begun"), "refused", 4),
        (("done", "refused"), "refused", 5),
        (("left", "done"), "left", 5),
        (("planned", "skipped"), "planned", 0),
    ],
)
def test_status_and_exit_code(
    statuses: tuple[str, ...], status: str, code: int
) -> None:
    """The exit codes are those of all commands."""
    assert result(*statuses).status == status
    assert result(*statuses).exit_status() == code


def test_details_have_information() -> None:
    """The reports of the steps follow the table, as option -v prints them."""
    found = (finding("a", Severity.info),)
    report = Report(status="checked", call="check", seconds=0.0, found=found)
    step = StepResult(step=LOOK, status="checked", report=report)
    seen = PlaybookResult(playbook="p", seconds=1, steps=(step,))
    assert "why (a)" not in str(seen)
    assert seen.details.startswith(f"{seen}\n\nsteps[0], check a\n")
    assert "why (a)" in seen.details


def test_last_findings_count() -> None:
    """The last step that ran a check decides."""

    def looked(severity: Severity | None) -> StepResult:
        found = () if severity is None else (finding("a", severity),)
        report = Report(status="checked", seconds=0.0, found=found)
        return StepResult(step=LOOK, status="checked", report=report)

    def code(*steps: StepResult) -> int:
        return PlaybookResult(playbook="p", seconds=1, steps=steps).exit_status()

    bad, mild = looked(Severity.critical), looked(Severity.warning)
    assert code(bad) == 1
    assert code(bad, looked(None)) == 0
    assert code(bad, mild) == 0
    assert code(bad, StepResult(step=STEP, status="planned")) == 0


def test_results_are_escaped() -> None:
    """Untrusted text is harmless on a terminal and on a page."""
    odd = Finding(check="a", severity=Severity.critical, message="\x1b[2J<script>")
    report = Report(status="checked", seconds=0.0, found=(odd,))
    step = StepResult(step=LOOK, status="checked", report=report)
    failed = StepResult(step=STEP, status="failed", reason="\x1b<b>")
    shown = PlaybookResult(playbook="<i>", seconds=1, steps=(step, failed))
    assert "\x1b" not in str(shown)
    assert "1 problem: \\x1b[2J<script>" in str(shown)
    page = shown._repr_html_()
    assert "\x1b" not in page
    assert not [tag for tag in ("<i>", "<b>", "<script>") if tag in page]
    data = json.loads(shown.to_json())
    assert data["schema_version"] == 1
    assert data["status"] == "failed"
    assert data["steps"][0]["report"]["found"][0]["check"] == "a"
    assert repr(shown).startswith("<PlaybookResult: <i>: failed; 2 steps")


@pytest.mark.parametrize(
    ("statuses", "action", "status"),
    [
        (("planned", "refused"), "restart", "refused"),  # the call would do no step
        (("planned", "refused"), "prepare", "planned"),  # it does the others
        (("refused",), "prepare", "refused"),
        (("planned",), "restart", "planned"),
        ((), "restart", "fine"),
    ],
)
def test_status_of_a_dry_run(statuses: Any, action: str, status: str) -> None:
    """A dry run has the status that the real call would have."""
    steps = tuple(map(step_of_a_report, statuses))
    report = Report(status="planned", seconds=0.0, steps=steps)
    assert status_of(report, action) == status


def step_of_a_report(status: str) -> Done:
    return Done(
        action="restart",
        summary="restart worker 1",
        status=status,
        predicted_bytes=0,
        at_risk="",
        reason="it is busy" if status == "skipped" else "",
    )


def test_why_a_step_was_left() -> None:
    """It has the undone steps, or else the lost keys."""
    undone = Report(status="left", seconds=0.0, steps=(step_of_a_report("skipped"),))
    assert failure_of(undone) == "restart worker 1: it is busy"
    lost = Report(status="left", seconds=0.0, lost=(Loss(worker=1, keys=2),))
    assert "lost 2 keys with worker 1" in failure_of(lost)
