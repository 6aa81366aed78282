"""Playbooks and their results as plain data.

:mod:`clustertune.operations.playbooks.library` reads playbooks from files.
:mod:`clustertune.operations.playbooks.running` carries them out.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any

from tabulate import tabulate

from clustertune.core import counts, model, report
from clustertune.core.model import Finding, Severity, Snapshot
from clustertune.core.report import Report, is_refused
from clustertune.core.wording import (
    bytes_text,
    names_text,
    plural,
    printable,
    seconds_text,
)
from clustertune.errors import RefusedError
from clustertune.operations.prepared import Prepared
from clustertune.planner.machines import shared_hosts

SCHEMA_VERSION = 1  # of the JSON of a result
NAMED = "named"  # ``workers``: the workers that the condition names
GIVEN = "given"  # ``keep``: the collections that are passed to the call

#: statuses of steps that did not reach their goal
BAD = frozenset(("failed", "left", "refused"))
_UNDONE = ("skipped", "partly", "failed", "refused")  # statuses of steps of an action
_COLUMNS = ("", "status", "step", "what came of it")
_WIDTHS = [4, 9, 40, 60]

Id = str | int


# --- playbooks ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Run checks, or an action if a condition is met."""

    line: str  # file and line
    check: tuple[str, ...] = ()  # names of checks, or words of their names
    when: str = ""  # the check whose finding is the condition; "": no condition
    at_least: Severity = Severity.warning
    holds: float = 0.0  # seconds for which the condition must last
    do: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)  # of the action

    def __str__(self) -> str:
        if self.check:
            return f"check {', '.join(self.check)}"
        text = self.do
        if self.options:
            shown = (f"{k}: {_option_text(k, v)}" for k, v in self.options.items())
            text += f" ({', '.join(shown)})"
        if self.when:
            text += f", when {self.when} is at least {self.at_least}"
        return text + (f" for {seconds_text(self.holds)}" if self.holds else "")

    def subjects(self, found: Iterable[Finding]) -> frozenset[Id | None]:
        """Subjects of the condition; None is the cluster. Empty: it is not met."""
        own = [f for f in found if f.check == self.when]
        bad = [f for f in own if f.severity >= self.at_least]
        return frozenset(x for f in bad for x in f.subject or (None,))

    def unknown(self, found: Iterable[Finding]) -> str:
        """Why the condition is unknown; empty if it is known."""
        unknowns = (f for f in found if f.severity is Severity.unknown)
        return next((f.message for f in unknowns if f.check == self.when), "")


def _option_text(key: str, value: Any) -> str:
    if key in ("timeout", "wait"):
        return seconds_text(value)
    if key == "memory_limit":
        return bytes_text(value)
    if isinstance(value, list | tuple):
        return names_text([str(v) for v in value], most=8)
    return printable(str(value), longest=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds that hold for every step."""

    disrupted_workers: float = 1  # away at the same time; below 1: a fraction of all
    minimum_workers: int = 0  # that must run meanwhile
    settle: float = 5.0  # seconds after a step before the cluster is read again

    def max_unavailable(self, snapshot: Snapshot, ids: Collection[Id]) -> int:
        """How many of these workers may be away at the same time.

        Raise RefusedError if one of them away leaves fewer than ``minimum_workers``.
        """
        wanted = self.disrupted_workers
        if not isinstance(wanted, int):
            wanted = math.floor(wanted * len(snapshot.workers))
        most = max(1, wanted)
        running = [w for w in snapshot.workers if w.running]
        if not any(w.id in ids for w in running):
            return most  # all running workers stay
        spare = len(running) - self.minimum_workers
        if spare < 1:
            raise RefusedError(
                f"limits.minimum_workers={self.minimum_workers} and "
                f"{plural(len(running), 'worker')} run: none may be away; nothing was "
                "touched"
            )
        return min(most, spare)

    def refuse_fewer(self, snapshot: Snapshot, ids: Collection[Id]) -> None:
        """Refuse a merge of these workers if too few would remain."""
        retired = sum(len(group) - 1 for group in shared_hosts(snapshot, ids))
        left = sum(w.is_counted for w in snapshot.workers) - retired
        if retired and left < self.minimum_workers:
            raise RefusedError(
                f"limits.minimum_workers={self.minimum_workers}, and "
                f"{plural(left, 'worker')} would remain; nothing was touched"
            )

    def refuse_beyond(self, snapshot: Snapshot, steps: Collection[model.Step]) -> None:
        """Refuse steps of another package's action that exceed the limits."""
        restarts = [s.args for s in steps if isinstance(s.args, model.Restart)]
        drops = [s.args for s in steps if isinstance(s.args, model.Drop)]
        # retired workers do not come back, so all of them are away in the end
        retired = sum(restart.retire for restart in restarts)
        together = [1 + len(restart.concurrent) for restart in restarts]
        away = max([retired, *together, *(len(drop.workers) for drop in drops)])
        ids = {restart.id for restart in restarts}
        ids |= {id for drop in drops for id in drop.workers.values()}
        most = self.max_unavailable(snapshot, ids)
        if away > most:
            raise RefusedError(
                f"{plural(away, 'worker')} would be away at the same time, and the "
                f"limits of the playbook allow {most}; nothing was touched"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Playbook:
    """A valid playbook."""

    name: str
    steps: tuple[Step, ...]
    description: str = ""
    limits: Limits = field(default_factory=Limits)
    on_failure: str = "stop"

    @property
    def acts(self) -> bool:
        """Whether a step may change anything."""
        return any(step.do for step in self.steps)


# --- results --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The result of one step.

    Attributes
    ----------
    step
        The step in words.
    line
        File and line.
    status
        ``checked`` (a check), ``done``, ``fine`` (nothing to do), ``planned`` (a dry
        run), ``skipped`` (the condition is not met, or unknown), ``refused`` (nothing
        was changed), ``left`` (done in part), ``failed``, or ``not begun`` (an earlier
        step failed).
    checks
        Names of the checks that ran.
    found
        Findings of the checks, or of the condition.
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
        done = counts.line(self.report.steps)
        return planned_of(self.report) or done or "nothing to do"

    def with_commands(self, cluster: str) -> StepResult:
        """Return the step with commands in its remedies."""
        return replace(
            self,
            found=tuple(f.as_command(cluster) for f in self.found),
            report=self.report and report.with_commands(self.report, cluster),
        )

    def plain(self) -> dict[str, Any]:
        """Plain values for JSON; findings have the form that a report gives them."""
        as_report = Report(status=self.status, seconds=self.seconds, found=self.found)
        return {
            "step": self.step,
            "line": self.line,
            "status": self.status,
            "seconds": self.seconds,
            "reason": self.reason,
            "checks": self.checks,
            "found": json.loads(as_report.to_json())["found"],
            "report": self.report and json.loads(self.report.to_json()),
        }


def status_of(report: Report, *, in_part: bool) -> str:
    """The status of a step, from the report of its action.

    ``in_part``: whether the action skips refused steps and does the others.
    """
    if report.status == "planned":  # a dry run
        if is_refused(report, in_part=in_part):
            return "refused"
        return "planned" if planned_of(report) else "fine"
    return report.status if report.status in ("done", "fine", "left") else "failed"


def failure_of(report: Report) -> str:
    """Why an action did not do all of its steps."""
    undone = [s for s in report.steps if s.status in _UNDONE]
    texts = [f"{s.summary}: {s.reason}" for s in undone if s.reason]
    return report.error or "; ".join(texts[:3])


def planned_of(report: Report) -> str:
    """The planned steps in one line."""
    return "; then ".join(s.summary for s in report.steps if s.status == "planned")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaybookResult:
    """The result of a playbook.

    Attributes
    ----------
    playbook
        The name of the playbook.
    seconds
        Duration of all steps.
    steps : tuple of StepResult
        In order.
    dry_run
        Whether the call changed nothing.
    X, y, sample_weight, qid, base_margin, init_score, eval_set
        The given collections in their final form.
    prepared : Prepared or None
        The last result of ``prepare``, if a step called it. It has ``fit_kwargs`` and
        ``verify()``, and :func:`clustertune.hold` takes it.
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
        """Return the result with commands in its remedies."""
        steps = tuple(step.with_commands(cluster) for step in self.steps)
        return replace(self, steps=steps)

    def exit_status(self, fail_on: Severity | None = Severity.critical) -> int:
        """Return an exit code: 0, 1 (findings), 4 (refused), or 5 (failed, partly).

        Parameters
        ----------
        fail_on
            The lowest severity of findings that count. None: no finding counts.
        """
        statuses = [step.status for step in self.steps]
        bad = {status for status in statuses if status in BAD}
        if bad:
            return 4 if bad == {"refused"} and "done" not in statuses else 5
        # a planned step may fix the findings
        if fail_on is None or "planned" in statuses:
            return 0
        return int(any(f.severity >= fail_on for f in self.found))

    def __str__(self) -> str:
        paragraphs = [
            self._headline(),
            self._table(maxcolwidths=_WIDTHS),
        ]
        for i, step in enumerate(self.steps):
            shown = [f for f in step.found if f.severity is not Severity.info]
            if step.status == "checked" and shown:
                title = f"Found by steps[{i}], {printable(step.step)}"
                paragraphs.append(report.findings_text(title, shown))
        return "\n\n".join(paragraphs)

    def __repr__(self) -> str:
        return f"<PlaybookResult: {printable(self.playbook)}; {self.status}>"

    def _repr_html_(self) -> str:
        headline = escape(self._headline())
        parts = [f"<p>{headline}</p>", self._table(tablefmt="html")]
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
            [f"[{i}]", s.status, printable(s.step), printable(s.outcome)]
            for i, s in enumerate(self.steps)
        ]
        return tabulate(rows, _COLUMNS, disable_numparse=True, **style)
