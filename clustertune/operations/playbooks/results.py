"""The result of a playbook, as text, HTML and JSON."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from clustertune.core import report, sections, tables
from clustertune.core.model import Finding, Severity
from clustertune.core.report import Report
from clustertune.core.tables import Section, Table
from clustertune.core.wording import plural, seconds_text
from clustertune.operations.prepared import Prepared

SCHEMA_VERSION = 1
#: statuses of steps that did not reach their goal
BAD = frozenset(("failed", "left", "refused"))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The result of one step.

    Attributes
    ----------
    step
        The step in words.
    status
        ``checked`` (a check), ``done``, ``fine`` (nothing to do), ``planned`` (a dry
        run), ``skipped`` (the condition is not met, or unknown), ``refused`` (nothing
        was changed), ``left`` (done in part), ``failed``, or ``not begun`` (an earlier
        step failed).
    reason
        Why it has this status; may be empty.
    report
        The report of the check or of the action.
    """

    step: str
    status: str
    reason: str = ""
    seconds: float = 0.0
    report: Report | None = None

    @property
    def found(self) -> tuple[Finding, ...]:
        """The findings of a step with ``check``."""
        return self.report.found if self.report and self.status == "checked" else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaybookResult:
    """The result of a playbook.

    Attributes
    ----------
    playbook, seconds, dry_run
        Name of the playbook; duration; whether the call changed nothing.
    steps : tuple of StepResult
        In order.
    X, y
        The given collections in their final form; None after ``release``.
    prepared : Prepared or None
        The last result of ``prepare``, if a step called it. It has the companions,
        ``fit_kwargs`` and ``verify()``.
    """

    playbook: str
    seconds: float
    steps: tuple[StepResult, ...]
    dry_run: bool = False
    X: Any = field(default=None, repr=False, compare=False)
    y: Any = field(default=None, repr=False, compare=False)
    prepared: Prepared | None = field(default=None, repr=False, compare=False)

    @property
    def status(self) -> str:
        """``failed``, ``refused``, ``left``, ``planned``, ``done`` or ``fine``."""
        statuses = {step.status for step in self.steps}
        order = ("failed", "refused", "left", "planned", "done")
        return next((status for status in order if status in statuses), "fine")

    @property
    def found(self) -> tuple[Finding, ...]:
        """The findings of the last step with ``check``."""
        checked = [s.found for s in self.steps if s.status == "checked"]
        return checked[-1] if checked else ()

    def with_commands(self, cluster: str) -> PlaybookResult:
        """Return the result with command lines in its remedies."""
        steps = (
            replace(s, report=s.report and report.with_commands(s.report, cluster))
            for s in self.steps
        )
        return replace(self, steps=tuple(steps))

    def exit_status(self) -> int:
        """Return an exit code: 0, 1 (critical), 4 (refused), or 5 (failed, partly)."""
        statuses = {step.status for step in self.steps}
        if bad := statuses & BAD:
            return 4 if bad == {"refused"} and "done" not in statuses else 5
        found = any(f.severity is Severity.critical for f in self.found)
        return int(found and "planned" not in statuses)  # a planned step may fix it

    def __str__(self) -> str:
        return tables.to_text(self._sections())

    def __repr__(self) -> str:
        return f"<PlaybookResult: {self._headline()}>"

    def _repr_html_(self) -> str:
        return tables.to_html(self._sections())

    def to_json(self) -> str:
        """Return all but the collections as JSON, with ``schema_version``."""
        steps = [
            asdict(replace(s, report=None))
            | {"report": s.report and json.loads(s.report.to_json())}
            for s in self.steps
        ]
        plain = {"schema_version": SCHEMA_VERSION, "playbook": self.playbook}
        plain |= {"status": self.status, "dry_run": self.dry_run}
        return json.dumps(plain | {"seconds": self.seconds, "steps": steps})

    def _headline(self) -> str:
        number = Counter(step.status for step in self.steps)
        shown = ", ".join(f"{n} {status}" for status, n in number.items())
        kind = "would be carried out as follows" if self.dry_run else self.status
        steps = plural(len(self.steps), "step")
        return (
            f"{self.playbook}: {kind}; {steps} ({shown}), {seconds_text(self.seconds)}"
        )

    def _sections(self) -> list[Section]:
        rows = tuple(
            (f"[{i}]", s.status, s.step, _result_text(s))
            for i, s in enumerate(self.steps)
        )
        found = [
            sections.of_findings(f"Found by steps[{i}], {s.step}", shown)
            for i, s in enumerate(self.steps)
            if (shown := [f for f in s.found if f.severity is not Severity.info])
        ]
        table = Table(("", "status", "step", "result"), rows)
        return [Section(self._headline(), (table,)), *found]


def _result_text(step: StepResult) -> str:
    if step.status in BAD or step.report is None:
        return step.reason
    return ": ".join(filter(None, [step.reason, sections.verdict(step.report)[1]]))
