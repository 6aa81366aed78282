"""What was seen, done and left, as text, as JSON, and as HTML for notebooks.

A report is plain data: it can be kept by the scheduler and read by another process.
Names and error texts in it come from a cluster and are untrusted: they are shown with
control characters replaced, and escaped in HTML.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any

from tabulate import tabulate

from clustertune.core import counts, decoding
from clustertune.core.counts import Done
from clustertune.core.model import Finding, Outcome, Plan, Severity, Step
from clustertune.core.wording import (
    bytes_text,
    cost_text,
    names_text,
    plural,
    printable,
    seconds_text,
)

SCHEMA_VERSION = 1
UNTOUCHED = ("skipped", "not needed")  # statuses of steps that changed nothing
MOST_STEPS = 8  # in a line; a table has all
MOST_WORKERS = 12  # shown one by one; of more, the fullest and the emptiest
#: checks that are said first: what the data is not prepared for, the honest other side
HEADLINES = ("missing_estimator", "one_machine")
#: a report as a file: the browser loads nothing for it, whatever text is in it
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
      content="default-src 'none'; style-src 'unsafe-inline'">
<title>clustertune: report</title>
<style>
body {{ font-family: sans-serif; margin: 2em; }}
td, th {{ padding: 0.2em 0.8em; text-align: left; vertical-align: top; }}
summary {{ font-weight: bold; margin-top: 1em; }}
</style>
</head>
<body>
{body}
</body>
</html>
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerShare:
    """What one worker holds of a layout."""

    worker: str | int  # id
    partitions: int
    rows: int
    nbytes: int
    share: float  # its rows over those it should have; 0 where it should have none


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutSummary:
    """A layout in a few numbers."""

    label: str
    members: tuple[str, ...]
    partitions: int
    loaded: bool
    rows: int | None  # None: not known, or not the same for all members
    nbytes: int | None
    separated: int | None  # pairs
    imbalance: float | None  # rows of the fullest worker over its share
    workers: tuple[WorkerShare, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMemory:
    """Bytes of one worker's process, by its own measure; None: not measured."""

    worker: str | int
    before: int | None
    after_trim: int | None
    after_restart: int | None
    threshold: int | None  # above it the worker spills or pauses; None: not known
    keys: int | None  # that its restart moved away and back
    seconds: float | None  # that its restart took


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a call of clustertune saw, did and left.

    Attributes
    ----------
    status
        ``looked`` (of ``check``), ``fine`` (there was nothing to do), ``done``,
        ``left`` (not all could be done or put right), ``planned`` (a dry run) or
        ``failed``.
    seconds
        What the whole call took.
    workload
        For what ``prepare`` has prepared the data; empty for other calls.
    found, left
        Findings of the first look and of the last one.
    before, after
        The layouts as they were and as they are, training data first.
    steps
        What was done, or in a dry run would be, and what was refused.
    forecast
        By worker the bytes that its process is predicted to have at most in the fit,
        with the data where it lies in the end; empty where it is not loaded.
    needs
        What a dry run would have to learn before it could plan further.
    memory
        For each worker that was trimmed or restarted, the memory of its process.
    error
        Why the call failed, if it did.
    notes
        What there is to say besides: that a plan would interrupt running tasks, that
        the call could not be noted in the history,
        or that the scheduler had too much to look at all of it.
    """

    status: str
    seconds: float
    workload: str = ""  # for what was prepared
    found: tuple[Finding, ...] = ()
    left: tuple[Finding, ...] = ()
    before: tuple[LayoutSummary, ...] = ()
    after: tuple[LayoutSummary, ...] = ()
    steps: tuple[Done, ...] = ()
    needs: tuple[str, ...] = ()
    error: str = ""
    forecast: Mapping[str | int, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    memory: tuple[WorkerMemory, ...] = ()

    def __str__(self) -> str:
        return "\n\n".join(_text(self))

    def __repr__(self) -> str:
        return f"<Report: {printable(headlines(self)[0])}>"

    def _repr_html_(self) -> str:
        return to_html(self)

    def save(self, path: str | Path) -> None:
        """Write the report as one HTML file that needs no network.

        Parameters
        ----------
        path
            Of the file, like ``"report.html"``; what is there is overwritten.

        Raises
        ------
        OSError
            The file cannot be written.
        """
        Path(path).write_text(PAGE.format(body=to_html(self)), encoding="utf-8")

    def to_json(self) -> str:
        """The report as JSON, with ``schema_version``."""
        data = {"schema_version": SCHEMA_VERSION} | asdict(self)
        # ids are text or numbers, and names of JSON are text only
        data["forecast"] = [
            {"worker": id, "nbytes": n} for id, n in self.forecast.items()
        ]
        return json.dumps(data, default=_plain)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Read what :meth:`to_json` wrote.

        Raises
        ------
        ValueError
            It is not a report, or of another schema version.
        """
        try:
            data = decoding.parse_json(text)
        except ValueError as error:
            raise ValueError(f"this is not a report: {error}") from error
        version = data.get("schema_version") if isinstance(data, dict) else None
        if type(version) is not int or version != SCHEMA_VERSION:
            raise ValueError(
                f"schema version {printable(repr(version), longest=60)} of reports is "
                f"not known here, only {SCHEMA_VERSION} is"
            )
        peaks = {"forecast": data.pop("forecast", [])}
        try:
            read = decoding.convert(peaks, _Forecast).forecast
            report = decoding.convert(data, cls)
        except ValueError as error:
            raise ValueError(f"this is not a report: {error}") from error
        return replace(report, forecast={p.worker: p.nbytes for p in read})


@dataclass(frozen=True, slots=True)
class _Peak:
    """One worker's forecast in JSON, where an object cannot have numbers as keys."""

    worker: str | int
    nbytes: int


@dataclass(frozen=True, slots=True)
class _Forecast:
    """The field ``forecast`` in JSON; errors name it."""

    forecast: tuple[_Peak, ...]


# --- making one -----------------------------------------------------------------------


def planned(plan: Plan) -> Iterator[Done]:
    """The steps of a plan that is not carried out, and the refused ones of any plan."""
    yield from (_done(step, "planned") for step in plan.steps)
    yield from refusals(plan)


def refusals(plan: Plan) -> Iterator[Done]:
    """The steps that a guard has refused."""
    for r in plan.refused:
        yield _done(r.step, "refused", reason=f"{r.reason} ({r.guard})")


def carried_out(outcome: Outcome) -> Done:
    """What became of a step."""
    return _done(
        outcome.step,
        outcome.status,
        nbytes=outcome.nbytes,
        seconds=outcome.seconds,
        reason=outcome.reason,
        count=outcome.count,
        # a worker that ended by itself is skipped, and its keys are lost all the same
        lost=outcome.lost or 0 if outcome.status in UNTOUCHED else outcome.lost,
    )


def _done(step: Step, status: str, **what: Any) -> Done:
    counted = counts.of(step)
    return Done(
        verb=counted.verb,
        noun=counted.noun,
        total=counted.total,
        workers=counted.workers,
        loses=counted.loses,
        action=step.action,
        summary=step.summary,
        gain=step.gain,
        status=status,
        predicted_bytes=step.price.nbytes,
        predicted_seconds=step.price.seconds,
        at_risk=step.price.at_risk,
        **what,
    )


def findings_text(found: Sequence[Finding], style: str = "simple") -> str:
    """Findings as a table: ``"simple"`` text, or ``"html"``, which is escaped."""
    return _table(_FINDINGS, _finding_rows(found), style)


def acted(report: Report | None) -> bool:
    """Whether anything was done, as far as a report says."""
    done = {"done", "partly", "failed"}
    return report is not None and any(s.status in done for s in report.steps)


# --- text -----------------------------------------------------------------------------


def headlines(report: Report) -> list[str]:
    """At most six lines: the other side, wrong, done, cost, left."""
    # of the last look, where there was more than one: scaling changes the answer
    latest = report.left or report.found
    said = {f.check: f.message for f in reversed(latest)}
    lines = [said[check] for check in HEADLINES if check in said]
    wrong = [f for f in report.found if f.severity > Severity.info]
    wrong = [f for f in wrong if f.check not in HEADLINES] or wrong
    if wrong and not (report.error and wrong[0].message in report.error):
        others = plural(len(wrong) - 1, "more finding")
        more = f" (and {others})" if len(wrong) > 1 else ""
        lines.append(f"wrong: {wrong[0].message}{more}")
    planned = [s for s in report.steps if s.status == "planned"]
    if planned:
        lines.append(f"would do: {_in_turn([s.summary for s in planned])}")
    account = counts.line(report.steps, report.error)
    if account and not report.error:
        lines.append(f"did: {account}")
    risks = [s.at_risk for s in report.steps if not _is_safe(s)]
    if risks and report.status in ("planned", "failed"):
        lines.append(f"would lose: {_in_turn(risks)}")
    if account:
        moved = sum(s.nbytes or 0 for s in report.steps)
        cost = f"cost: {seconds_text(report.seconds)}, {bytes_text(moved)} moved"
        lines.append(cost)
    left = [f for f in report.left if f.severity is not Severity.info]
    if left and report.status not in ("planned", "failed"):
        lines.append(f"left: {left[0].message}")
    unsettled = report.status == "left" and left
    acted = planned or account
    if not acted and not report.error and not wrong and not unsettled:
        nothing = "nothing is wrong" if report.status == "looked" else "nothing to do"
        lines.append(f"{nothing} ({seconds_text(report.seconds)})")
    # the last line of all: people look there after ^C
    failed = [_failure(report, account)] if report.error else []
    most = 6 - len(report.notes) - len(failed)
    return [printable(line) for line in (*lines[:most], *report.notes, *failed)]


def _failure(report: Report, account: str) -> str:
    text = f"failed: {report.error}"
    return f"{text}; {account}" if account else text


def _in_turn(texts: Sequence[str]) -> str:
    """The first ones, and how many more there are: a thousand workers are no line."""
    more = [f"{len(texts) - MOST_STEPS:,} more"] if len(texts) > MOST_STEPS else []
    return "; then ".join([*texts[:MOST_STEPS], *more])


def _is_safe(step: Done) -> bool:
    return step.at_risk.partition(":")[0] == "nothing"


def _text(report: Report) -> Iterator[str]:
    yield "\n".join(headlines(report))
    for title, found in (("Found", report.found), ("Left", report.left)):
        if found and (title == "Found" or found != report.found):
            yield f"{title}\n{_table(_FINDINGS, _finding_rows(found))}"
    if report.steps:
        yield f"Steps\n{_table(_STEPS, _step_rows(report.steps))}"
    if report.memory:
        yield f"Memory of workers\n{_table(MEMORY, memory_rows(report))}"
    for summary, title in _layout_tables(report):
        yield f"{title}\n{_table(_SHARES, _share_rows(summary))}"
    if report.needs:
        yield "To plan further it needs\n" + "\n".join(map(printable, report.needs))


_FINDINGS = ("severity", "check", "message", "remedy")
_STEPS = ("status", "step", "predicted", "took", "gain", "reason")
MEMORY = (
    "worker",
    "before",
    "after trim",
    "after restart",
    "threshold",
    "keys",
    "seconds",
)
_SHARES = ("worker", "partitions", "rows", "bytes", "of its share")
_WIDTHS = {_FINDINGS: (8, 16, 50, 44), _STEPS: (8, 40, 16, 16, 30, 30)}


def _table(
    header: tuple[str, ...], rows: Sequence[Sequence[str]], style: str = "simple"
) -> str:
    if style == "html":
        return tabulate(rows, header, tablefmt="html", disable_numparse=True)
    widths = list(_WIDTHS[header]) if header in _WIDTHS else None
    return tabulate(rows, header, disable_numparse=True, maxcolwidths=widths)


def _finding_rows(found: Sequence[Finding]) -> list[list[str]]:
    return [
        [str(f.severity), *map(printable, (f.check, f.message, f.remedy))]
        for f in found
    ]


def _step_rows(steps: Sequence[Done]) -> list[list[str]]:
    return [
        [
            printable(s.status),
            printable(s.summary),
            cost_text(s.predicted_bytes, s.predicted_seconds),
            cost_text(s.nbytes, s.seconds),
            printable(s.gain),
            printable(s.reason),
        ]
        for s in steps
    ]


def memory_rows(report: Report) -> list[list[str]]:
    """Cells by worker; ``-`` where nothing was measured."""
    rows = [
        [
            names_text([m.worker]),
            *(_or_dash(n, bytes_text) for n in (m.before, m.after_trim)),
            *(_or_dash(n, bytes_text) for n in (m.after_restart, m.threshold)),
            _or_dash(m.keys, "{:,}".format),
            _or_dash(m.seconds, seconds_text),
        ]
        for m in report.memory
    ]
    return _shortened(rows)


def _or_dash(value: Any, text: Callable[[Any], str]) -> str:
    return "-" if value is None else text(value)


def _shortened(rows: list[list[str]]) -> list[list[str]]:
    """The first and the last of many rows."""
    if len(rows) <= MOST_WORKERS:
        return rows
    half = MOST_WORKERS // 2
    more = [f"... {len(rows) - 2 * half} more", *[""] * (len(rows[0]) - 1)]
    return [*rows[:half], more, *rows[-half:]]


def placements(report: Report) -> tuple[tuple[str, tuple[LayoutSummary, ...]], ...]:
    """Where the data lay, and when; once where it lies as it did, as in a dry run."""
    if report.before == report.after:
        return (("as it lies", report.after),)
    return (("before", report.before), ("after", report.after))


def _layout_tables(report: Report) -> Iterator[tuple[LayoutSummary, str]]:
    for when, summaries in placements(report):
        for s in summaries:
            if s.workers:
                yield s, f"{_describe(s)}, {when}"


def _describe(s: LayoutSummary) -> str:
    rows = "unknown" if s.rows is None else f"{s.rows:,}"
    size = bytes_text(s.nbytes or 0)
    text = f"{s.label}: {s.partitions} partitions, {rows} rows, {size}"
    return printable(text + (f", {s.separated} pairs separated" if s.separated else ""))


def _share_rows(summary: LayoutSummary) -> list[list[str]]:
    ordered = sorted(summary.workers, key=lambda w: -w.share)
    shown = list(summary.workers)
    if len(ordered) > MOST_WORKERS:
        shown = ordered[: MOST_WORKERS // 2] + ordered[-MOST_WORKERS // 2 :]
    rows = [
        [
            names_text([w.worker]),
            f"{w.partitions:,}",
            f"{w.rows:,}",
            bytes_text(w.nbytes),
            f"{w.share:.2f}",
        ]
        for w in shown
    ]
    if len(ordered) > len(shown):
        rows.insert(MOST_WORKERS // 2, [f"... {len(ordered) - len(shown)} more"])
    return rows


def to_html(report: Report) -> str:
    """Tables for a notebook; everything is escaped."""
    parts = [f"<p>{escape(line)}</p>" for line in headlines(report)]
    tables = [
        ("Found", _FINDINGS, _finding_rows(report.found)),
        ("Left", _FINDINGS, _finding_rows(report.left)),
        ("Steps", _STEPS, _step_rows(report.steps)),
        ("Memory of workers", MEMORY, memory_rows(report)),
    ]
    tables += [(t, _SHARES, _share_rows(s)) for s, t in _layout_tables(report)]
    for title, header, rows in tables:
        if rows:
            body = _table(header, rows, "html")
            parts.append(f"<details><summary>{escape(title)}</summary>{body}</details>")
    parts += [f"<p>To plan further: {escape(printable(n))}</p>" for n in report.needs]
    return '<div class="clustertune">' + "".join(parts) + "</div>"


def findings_html(title: str, found: Sequence[Finding]) -> str:
    """Findings for a notebook under a line of text; everything is escaped."""
    body = _table(_FINDINGS, _finding_rows(found), "html") if found else ""
    return f'<div class="clustertune"><p>{escape(title)}</p>{body}</div>'


# --- JSON -----------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    if hasattr(value, "item"):  # a NumPy number
        return value.item()
    raise TypeError(f"{type(value).__name__} in a report")
