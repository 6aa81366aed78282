"""The result of a playbook, as text, HTML and JSON."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any

from tabulate import tabulate

from clustertune.core import counts, report
from clustertune.core.model import Finding, Severity
from clustertune.core.report import Report
from clustertune.core.wording import plural, printable, seconds_text
from clustertune.operations.prepared import Prepared

SCHEMA_VERSION = 1
#: statuses of steps that did not reach their goal
BAD = frozenset(("failed", "left", "refused"))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The result of one step.

    Attributes
    ----------
    step, line
        The step in words; file and line.
    status
        ``checked`` (a check), ``done``, ``fine`` (nothing to do), ``planned`` (a dry
        run), ``skipped`` (the condition is not met, or unknown), ``refused`` (nothing
        was changed), ``left`` (done in part), ``failed``, or ``not begun`` (an earlier
        step failed).
    checks, found
        Names of the checks that ran; findings of the checks, or of the condition.
    report
        The report of the action.
    """

    step: str
    line: str
    status: str
    seconds: float = 0.0
    reason: str = ""
    checks: tuple[str, ...] = ()
    found: tuple[Finding, ...] = ()
    report: Report | None = None

    @property
    def outcome(self) -> str:
        """The result in one line."""
        if self.reason:
            return self.reason
        if self.status == "checked":
            number = Counter(str(f.severity) for f in self.found)
            order = ("critical", "warning", "unknown", "info")
            shown = [f"{number[s]} {s}" for s in order if number[s]]
            return ", ".join(shown) or "nothing"
        if self.report is None:
            return ""
        done = counts.line(self.report.steps, lost=self.report.lost)
        return planned_of(self.report) or done or "nothing to do"

    @property
    def as_report(self) -> Report:
        """The findings as a report, which knows their forms."""
        return Report(status=self.status, seconds=self.seconds, found=self.found)

    def with_commands(self, cluster: str) -> StepResult:
        """Return the step with command lines in its remedies."""
        found = report.with_commands(self.as_report, cluster).found
        own = self.report and report.with_commands(self.report, cluster)
        return replace(self, found=found, report=own)

    def plain(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "step": self.step,
            "line": self.line,
            "status": self.status,
            "seconds": self.seconds,
            "reason": self.reason,
            "checks": self.checks,
            "found": json.loads(self.as_report.to_json())["found"],
            "report": self.report and json.loads(self.report.to_json()),
        }


def planned_of(report: Report) -> str:
    """The planned steps in one line."""
    return "; then ".join(s.summary for s in report.steps if s.status == "planned")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaybookResult:
    """The result of a playbook.

    Attributes
    ----------
    playbook, seconds, dry_run
        Name of the playbook; duration; whether the call changed nothing.
    steps : tuple of StepResult
        In order.
    X, y, sample_weight, qid, base_margin, init_score, eval_set
        The given collections in their final form.
    prepared : Prepared or None
        The last result of ``prepare``, if a step called it. It has ``fit_kwargs`` and
        ``verify()``.
    """

    playbook: str
    seconds: float
    steps: tuple[StepResult, ...]
    dry_run: bool = False
    X: Any = field(default=None, repr=False, compare=False)
    y: Any = field(default=None, repr=False, compare=False)
    sample_weight: Any = field(default=None, repr=False, compare=False)
    qid: Any = field(default=None, repr=False, compare=False)
    base_margin: Any = field(default=None, repr=False, compare=False)
    init_score: Any = field(default=None, repr=False, compare=False)
    eval_set: Any = field(default=None, repr=False, compare=False)
    prepared: Prepared | None = field(default=None, repr=False, compare=False)

    @property
    def status(self) -> str:
        """``failed``, ``refused``, ``left``, ``planned``, ``done`` or ``fine``."""
        statuses = {step.status for step in self.steps}
        order = ("failed", "refused", "left", "planned", "done")
        return next((status for status in order if status in statuses), "fine")

    @property
    def found(self) -> tuple[Finding, ...]:
        """For each check, the findings of the last step that ran it."""
        latest = {
            name: tuple(f for f in step.found if f.check == name)
            for step in self.steps
            if step.status == "checked"
            for name in step.checks
        }
        return tuple(f for found in latest.values() for f in found)

    def with_commands(self, cluster: str) -> PlaybookResult:
        """Return the result with command lines in its remedies."""
        return replace(self, steps=tuple(s.with_commands(cluster) for s in self.steps))

    def exit_status(self, fail_on: Severity | None = Severity.critical) -> int:
        """Return an exit code: 0, 1 (findings), 4 (refused), or 5 (failed, partly).

        Findings of at least the severity ``fail_on`` count; None: no finding counts.
        """
        statuses = {step.status for step in self.steps}
        if bad := statuses & BAD:
            return 4 if bad == {"refused"} and "done" not in statuses else 5
        # a planned step may fix the findings
        if fail_on is None or "planned" in statuses:
            return 0
        return int(any(f.severity >= fail_on for f in self.found))

    def __str__(self) -> str:
        paragraphs = [self._headline(), self._table(maxcolwidths=[4, 9, 40, 60])]
        for i, step in enumerate(self.steps):
            shown = [f for f in step.found if f.severity is not Severity.info]
            if step.status == "checked" and shown:
                title = f"Found by steps[{i}], {printable(step.step)}"
                paragraphs.append(report.findings_text(title, shown))
        return "\n\n".join(paragraphs)

    def __repr__(self) -> str:
        return f"<PlaybookResult: {printable(self.playbook)}; {self.status}>"

    def _repr_html_(self) -> str:
        parts = [f"<p>{escape(self._headline())}</p>", self._table(tablefmt="html")]
        for i, step in enumerate(self.steps):
            inner = "" if step.report is None else step.report._repr_html_()
            if step.status == "checked" and step.found:
                inner = report.findings_html("Findings", step.found)
            if inner:
                title = escape(f"steps[{i}]: {printable(step.step)}")
                parts.append(f"<details><summary>{title}</summary>{inner}</details>")
        return '<div class="clustertune">' + "".join(parts) + "</div>"

    def to_json(self) -> str:
        """Return all but the collections as JSON, with ``schema_version``."""
        return json.dumps(
            {
                "schema_version": SCHEMA_VERSION,
                "playbook": self.playbook,
                "status": self.status,
                "dry_run": self.dry_run,
                "seconds": self.seconds,
                "steps": [step.plain() for step in self.steps],
            }
        )

    def _headline(self) -> str:
        number = Counter(step.status for step in self.steps)
        shown = ", ".join(f"{n} {status}" for status, n in number.items())
        kind = "would be carried out as follows" if self.dry_run else self.status
        return printable(
            f"{self.playbook}: {kind}; {plural(len(self.steps), 'step')} ({shown}), "
            f"{seconds_text(self.seconds)}"
        )

    def _table(self, **style: Any) -> str:
        rows = [
            (f"[{i}]", s.status, printable(s.step), printable(s.outcome))
            for i, s in enumerate(self.steps)
        ]
        headers = ("", "status", "step", "what came of it")
        return tabulate(rows, headers=headers, disable_numparse=True, **style)
