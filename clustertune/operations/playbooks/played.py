"""What became of a playbook, step by step: as text, JSON, HTML and an exit status."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from typing import Any

from tabulate import tabulate

from clustertune.core import counts, report
from clustertune.core.model import Finding, Severity
from clustertune.core.report import Report
from clustertune.core.wording import plural, printable, seconds_text
from clustertune.operations.prepared import Prepared

SCHEMA_VERSION = 1

#: of steps that did not do what they should
BAD = frozenset(("failed", "left", "refused"))
_COLUMNS = ("", "status", "step", "what came of it")
_WIDTHS = (4, 9, 40, 60)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedStep:
    """One step, and what became of it.

    Attributes
    ----------
    step
        What it is, in words.
    line
        File and line.
    status
        ``looked`` (a check), ``done``, ``fine`` (there was nothing to do), ``planned``
        (a dry run), ``skipped`` (its condition did not hold, or is not known),
        ``refused`` (nothing was touched), ``left`` (done in part), ``failed``, or
        ``not begun`` (a step before it failed).
    checks
        Names of those that were looked for.
    found
        Of a check what it found, of a condition what it stands on.
    report
        Of what was done.
    """

    step: str
    line: str
    status: str
    seconds: float = 0.0
    reason: str = ""
    checks: tuple[str, ...] = ()
    found: tuple[Finding, ...] = ()
    report: Report | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What became of a playbook.

    Attributes
    ----------
    playbook
        Its name.
    seconds
        What all of it took.
    steps : tuple of PlayedStep
        In order.
    dry_run
        Nothing was changed.
    X, y, sample_weight, qid, base_margin, init_score, eval_set
        The collections that were given, as they are now.
    prepared : Prepared or None
        What ``prepare`` has handed back last, if a step of the playbook has called it:
        it has ``fit_kwargs``, ``verify()`` and can be held.
    """

    playbook: str
    seconds: float
    steps: tuple[PlayedStep, ...]
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
        there = {step.status for step in self.steps}
        order = ("failed", "refused", "left", "planned", "done")
        return next((status for status in order if status in there), "fine")

    @property
    def found(self) -> tuple[Finding, ...]:
        """By each check what the last step that looked for it has found."""
        latest = {
            name: tuple(f for f in step.found if f.check == name)
            for step in self.steps
            if step.status == "looked"
            for name in step.checks
        }
        return tuple(f for found in latest.values() for f in found)

    def exit_status(self, fail_on: Severity | None = Severity.critical) -> int:
        """Of a process that did this: 0, 1 (findings), 4 (refused), 5 (failed, partly).

        Parameters
        ----------
        fail_on
            Findings of ``check`` steps that count from this severity on; None: none do.
        """
        there = [step.status for step in self.steps]
        bad = [status for status in there if status in BAD]
        if bad:
            return 4 if set(bad) == {"refused"} and "done" not in there else 5
        # what is planned may put right what was found
        if fail_on is None or "planned" in there:
            return 0
        return int(any(f.severity >= fail_on for f in self.found))

    def __str__(self) -> str:
        return "\n\n".join(_text(self))

    def __repr__(self) -> str:
        return f"<Played: {printable(self.playbook)}; {self.status}>"

    def _repr_html_(self) -> str:
        table = tabulate(_rows(self), _COLUMNS, tablefmt="html", disable_numparse=True)
        parts = [f"<p>{escape(_headline(self))}</p>", table]
        for i, step in enumerate(self.steps):
            inner = "" if step.report is None else step.report._repr_html_()
            if step.status == "looked" and step.found:
                inner = report.findings_text(step.found, "html")
            if inner:
                title = escape(f"steps[{i}]: {printable(step.step)}")
                parts.append(f"<details><summary>{title}</summary>{inner}</details>")
        return '<div class="clustertune">' + "".join(parts) + "</div>"

    def to_json(self) -> str:
        """All but the collections as JSON, with ``schema_version``."""
        steps = [
            {
                "step": s.step,
                "line": s.line,
                "status": s.status,
                "seconds": s.seconds,
                "reason": s.reason,
                "checks": s.checks,
                **_plain(Report(status=s.status, seconds=s.seconds, found=s.found)),
                "report": None if s.report is None else json.loads(s.report.to_json()),
            }
            for s in self.steps
        ]
        return json.dumps(
            {
                "schema_version": SCHEMA_VERSION,
                "playbook": self.playbook,
                "status": self.status,
                "dry_run": self.dry_run,
                "seconds": self.seconds,
                "steps": steps,
            }
        )


def _plain(found: Report) -> dict[str, Any]:
    """Findings as they are in the JSON of a report."""
    return {"found": json.loads(found.to_json())["found"]}


def _headline(played: Played) -> str:
    counts = Counter(step.status for step in played.steps)
    shown = ", ".join(f"{n} {status}" for status, n in counts.items())
    kind = "would be carried out as follows" if played.dry_run else played.status
    return printable(
        f"{played.playbook}: {kind}; {plural(len(played.steps), 'step')} ({shown}), "
        f"{seconds_text(played.seconds)}"
    )


def _text(played: Played) -> Iterator[str]:
    yield _headline(played)
    yield tabulate(
        _rows(played), _COLUMNS, disable_numparse=True, maxcolwidths=list(_WIDTHS)
    )
    for i, step in enumerate(played.steps):
        shown = [f for f in step.found if f.severity is not Severity.info]
        if step.status == "looked" and shown:
            title = f"Found by steps[{i}], {printable(step.step)}"
            yield f"{title}\n{report.findings_text(shown)}"


def _rows(played: Played) -> list[list[str]]:
    return [
        [f"[{i}]", s.status, printable(s.step), printable(_came(s))]
        for i, s in enumerate(played.steps)
    ]


def _came(step: PlayedStep) -> str:
    """What came of a step, in one line."""
    if step.reason:
        return step.reason
    if step.status == "looked":
        by_severity = Counter(str(f.severity) for f in step.found)
        order = ("critical", "warning", "unknown", "info")
        return (
            ", ".join(f"{by_severity[s]} {s}" for s in order if by_severity[s])
            or "nothing"
        )
    if step.report is None:
        return ""
    steps = step.report.steps
    planned = [s.summary for s in steps if s.status == "planned"]
    return "; then ".join(planned) or counts.line(steps) or "nothing to do"
