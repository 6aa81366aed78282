"""Decide what a report shows: sections for the renderers, and headlines (pure).

The order is: problems, actions with their cost, remaining problems, workers,
information, and the error of a call that failed. Each fact has one place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from clustertune.core import counts, tables
from clustertune.core.counts import EXECUTED, Done
from clustertune.core.model import Finding, Severity
from clustertune.core.rendering import Cell, Item, Section, Table
from clustertune.core.results import Results, WorkerMemory, WorkerState
from clustertune.core.tables import NONE, Row, bars, compact, predicted, value_text
from clustertune.core.wording import (
    bytes_text,
    names_text,
    plural,
    printable,
    seconds_text,
    workers_text,
)

MAX_STEPS = 8  # in a headline
MAX_HEADLINES = 6

#: checks about the request itself; their findings have a line of their own
ABOUT_REQUEST = ("missing_estimator", "one_machine")
#: calls that are about data and training, so that all findings are relevant
ABOUT_TRAINING = ("", "check", "prepare")
#: actions with one row for each worker
BY_WORKER = ("restart", "trim")
#: headers of tables
MOVED, PREDICTED_BYTES = "bytes\nmoved", "bytes\npredicted"
PREDICTED_RISE = "memory rise of a worker:\npredicted"
#: parts of reasons that the table of workers already shows
_SHOWN = re.compile(
    r"[\d,]+ keys moved away( and back)?|lost [\d,]+( keys)?"
    r"|[\d,]+ keys? \([^)]*\) (released|dropped)"
)
_TRIMMED = re.compile(r"^[\d.]+ \w+ to [\d.]+ \w+ ?")


def sections(results: Results, plan: Results | None = None) -> list[Section]:
    """Return the sections of a report, without empty ones.

    ``plan`` is the report that the reader has seen just before. Its findings are only
    named, and its notes are left out.
    """
    findings = _Findings.of(results)
    by_worker = any(map(_by_worker, results.steps))
    seen = {f.message for f in plan.found} if plan else frozenset()
    remaining = [f for f in findings.remaining if f.message not in seen]
    content: dict[str, Sequence[Item | Table]] = {
        "Problems": list(_problems(results, findings, seen)),
        "Actions": list(_actions(results)),
        "Remaining problems": list(_items(results, remaining)),
        "Workers": list(tables.of_workers(results, memory=not by_worker)),
        "Information": list(_information(results, findings, plan, seen)),
        "Error": [Item("failed", results.error)] if results.error else [],
    }
    return [Section(title, tuple(parts)) for title, parts in content.items() if parts]


def of_findings(title: str, found: Sequence[Finding]) -> Section:
    """Return a section with findings and their remedies."""
    return Section(title, tuple(_items(None, found)))


# --- findings -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Findings:
    """The findings of a report by their place; a finding has one place."""

    problems: tuple[Finding, ...]  # of the first look, without the remaining ones
    remaining: tuple[Finding, ...]  # problems of the last look after changes
    information: tuple[Finding, ...]
    unrelated: tuple[Finding, ...]  # the call does not change them
    fixed: tuple[Finding, ...]

    @classmethod
    def of(cls, results: Results) -> _Findings:
        before, after = results.found, results.left
        final = results.status not in ("checked", "planned")
        compared = final and (results.changed or after != before)
        latest = after if compared else before
        stays = {_identity(f) for f in before} & {_identity(f) for f in after}

        def related(f: Finding) -> bool:
            changed = compared and _identity(f) not in stays
            names_call = f"clustertune.{results.call}" in f.remedy
            general = results.call in ABOUT_TRAINING
            return general or changed or names_call or f.severity is Severity.critical

        def problem(f: Finding) -> bool:
            unsure = f.severity is Severity.unknown and results.status == "left"
            return related(f) and (f.severity > Severity.info or unsure)

        remaining = tuple(f for f in after if problem(f)) if compared else ()
        shown = {f.message for f in remaining}
        return cls(
            problems=tuple(f for f in before if problem(f) and f.message not in shown),
            remaining=remaining,
            information=tuple(f for f in latest if related(f) and not problem(f)),
            unrelated=tuple(f for f in latest if not related(f)),
            fixed=tuple(
                f for f in before if compared and not any(_same(f, g) for g in after)
            ),
        )


def _identity(finding: Finding) -> tuple[object, ...]:
    """Return what stays the same when the numbers in a message change."""
    return finding.check, finding.subject


def _same(a: Finding, b: Finding) -> bool:
    """Whether two findings are of one check, and about one thing at least."""
    common = a.subject == b.subject or not {*a.subject}.isdisjoint(b.subject)
    return a.check == b.check and common


def _problems(
    results: Results, findings: _Findings, seen: Collection[str]
) -> Iterator[Item]:
    known = [f for f in findings.problems if f.message in seen]
    for finding in findings.problems:
        if finding in findings.fixed and finding not in known:
            yield _finding_item(finding, "", "; fixed")
    unfixed = [f for f in findings.problems if f not in findings.fixed]
    yield from _items(results, [f for f in unfixed if f not in known])
    remaining = {f.check for f in findings.remaining}
    named = {
        "fixed": [f for f in known if f in findings.fixed],
        "unchanged": [f for f in unfixed if f in known and f.check not in remaining],
        "remaining": [f for f in findings.remaining if f.message in seen],
    }
    for label, some in named.items():
        if some:
            yield Item(label, _checks_text(some))
    others = findings.remaining or findings.unrelated or results.error
    if results.call in ABOUT_TRAINING and not (findings.problems or others):
        yield Item("none", "")


def _checks_text(found: Sequence[Finding]) -> str:
    return names_text(list(dict.fromkeys(f.check for f in found)), most=8)


def _items(results: Results | None, found: Sequence[Finding]) -> Iterator[Item]:
    """Return findings, and each remedy once: at the last finding that has it."""
    remedies = [_useful_remedy(results, f) for f in found]
    for number, (finding, remedy) in enumerate(zip(found, remedies, strict=True)):
        sharing = [f for f, r in zip(found, remedies, strict=True) if r == remedy]
        last = remedy not in remedies[number + 1 :]
        of = f" of {_checks_text(sharing)}" if len(sharing) > 1 else ""
        yield _finding_item(finding, f"Remedy{of}: {remedy}" if remedy and last else "")


def _finding_item(finding: Finding, detail: str, state: str = "") -> Item:
    check = f" ({finding.check}{state})" if finding.check else ""
    text = f"{finding.message}{check}"
    return Item(str(finding.severity), text, (detail,) if detail else ())


def _useful_remedy(results: Results | None, finding: Finding) -> str:
    """Return the remedy, unless it is the call that the report is about."""
    if results is None or results.status == "checked":
        return finding.remedy
    ours = finding.remedy.count("clustertune.")
    same = ours == finding.remedy.count(f"clustertune.{results.call}_") == 1
    return "" if finding.fixed_by or same else finding.remedy


def _information(
    results: Results,
    findings: _Findings,
    plan: Results | None,
    seen: Collection[str],
) -> Iterator[Item]:
    new = [f for f in findings.information if f.message not in seen]
    yield from _items(results, new)
    unrelated = [f for f in findings.unrelated if f.message not in seen]
    if unrelated:
        others = plural(len(unrelated), "finding")
        yield Item(
            "unrelated",
            f"{others} that this call does not change: {_checks_text(unrelated)} "
            "(see `check`)",
        )
    for note in results.notes:
        if plan is None or note not in plan.notes:
            yield Item("note", note)


# --- steps ----------------------------------------------------------------------------


def _by_worker(step: Done) -> bool:
    about_workers = step.action in BY_WORKER and step.noun == "worker"
    return about_workers and step.status != "refused"


def _actions(results: Results) -> Iterator[Item | Table]:
    if results.status == "fine":
        yield Item("none", "nothing to do")
    by_worker = [s for s in results.steps if _by_worker(s)]
    for step in results.steps:
        # the error of a refused call describes the refused steps
        known = step.status == "refused" and step.summary in results.error
        if not (_by_worker(step) or known):
            yield Item(step.status, step.summary, tuple(_details(step, results.error)))
    total = counts.totals([s for s in results.steps if s.loses or _by_worker(s)])
    if total:
        yield Item("total", total)
    for need in results.needs:
        yield Item("unknown yet", need)
    yield from _cost(results)
    if by_worker:
        yield from _reason_items(by_worker)
        yield _steps_table(results, by_worker)
    costs = [s for s in results.steps if not _alone(s) and _has_cost(s)]
    if len(costs) > 1:
        yield _cost_table(costs)


def _details(step: Done, error: str) -> Iterator[str]:
    known = step.gain.removesuffix(" of memory") in step.summary
    if step.gain and not known and step.status == "planned":
        yield f"Gain: {step.gain}"
    reason = _unshown(step.reason)
    if reason and reason not in error:
        yield f"Reason: {reason}"


def _unshown(reason: str) -> str:
    """Return the parts of a reason that no other line shows."""
    parts = reason.split("; ")
    return "; ".join(part for part in parts if not _SHOWN.fullmatch(part))


def _steps_table(results: Results, steps: Sequence[Done]) -> Table:
    """Return a table of workers that were restarted or trimmed.

    Columns that repeat what other places show are hidden.
    """
    memory = {m.worker: m for m in results.memory}
    states = {w.worker: w for w in results.workers}
    rows = [
        _step_row(step, worker, memory.get(worker), states.get(worker))
        for step in steps
        for worker in step.workers
    ]
    above = any(
        m.threshold and value and value > m.threshold
        for m in results.memory
        for value in (m.before, m.after_trim, m.after_restart)
    )
    cells = [dict(row) for row in rows]
    done = all(s.status == "done" and not s.lost for s in steps)
    repeated = {
        "threshold": not above,
        PREDICTED_BYTES: all(row[MOVED] == row[PREDICTED_BYTES] for row in cells),
        "outcome": done and len({s.verb for s in steps}) == 1,
    }
    return compact(rows, hidden=[name for name, hides in repeated.items() if hides])


def _step_row(
    step: Done,
    worker: str | int,
    memory: WorkerMemory | None,
    state: WorkerState | None,
) -> Row:
    before = memory.before if memory else state.process_before if state else None
    after = threshold = keys = None
    if memory is not None:
        trims = step.action == "trim"
        after = memory.after_trim if trims else memory.after_restart
        threshold, keys = memory.threshold, None if trims else memory.keys
        if not trims and memory.after_trim is not None:
            before = memory.after_trim
    moved = predicted_bytes = seconds = NONE
    if len(step.workers) == 1:
        predicted_bytes = predicted(step.predicted_bytes, bytes_text)
        if step.status in EXECUTED:
            moved = value_text(step.nbytes, bytes_text)
            seconds = value_text(step.seconds, seconds_text)
    was, now = (
        Cell(value_text(n, bytes_text), bars(threshold, n)) for n in (before, after)
    )
    return (
        ("worker", names_text([worker])),
        ("memory\nbefore", was),
        ("memory\nafter", now),
        ("threshold", value_text(threshold, bytes_text)),
        ("keys", value_text(keys, "{:,}".format)),
        (MOVED, moved),
        (PREDICTED_BYTES, predicted_bytes),
        ("seconds", seconds),
        ("outcome", _outcome(step)),
    )


def _outcome(step: Done) -> str:
    if step.status == "planned":
        if not _alone(step):
            return f"to be {step.verb}"
        text = step.summary  # the first column has the worker
        for verb in ("restart", "resize"):
            text = text.removeprefix(f"{verb} {workers_text(step.workers)}; ")
        return text
    result = step.verb if step.status == "done" else step.status
    return f"{result}; lost {plural(step.lost, 'key')}" if step.lost else result


def _reason_items(steps: Sequence[Done]) -> Iterator[Item]:
    """Return the reasons of steps by worker, equal ones in one line."""
    groups: dict[tuple[str, str], list[str | int]] = {}
    for step in steps:
        for worker in step.workers:
            if reason := _reason(step, worker):
                groups.setdefault((step.status, reason), []).append(worker)
    for (status, reason), workers in list(groups.items())[:MAX_STEPS]:
        yield Item(status, f"{workers_text(workers)}: {reason}")
    if len(groups) > MAX_STEPS:
        yield Item("more", plural(len(groups) - MAX_STEPS, "reason"))


def _reason(step: Done, worker: str | int) -> str:
    """Return the parts of a reason that are about a worker or about all."""
    own, parts = f"worker {names_text([worker])}: ", []
    for part in step.reason.split("; "):
        if part.startswith(own):
            parts.append(_TRIMMED.sub("", part.removeprefix(own)))
        elif not (step.action == "trim" and part.startswith("worker ")):
            parts.append(part)
    return _unshown("; ".join(filter(None, parts)))


# --- cost -----------------------------------------------------------------------------


def _cost(results: Results) -> Iterator[Item]:
    predicted_cost = _predicted_cost(results.steps)
    if results.changed:
        known = f" (predicted: {predicted_cost})" if predicted_cost else ""
        unknown = any(s.nbytes is None for s in results.steps if _has_cost(s))
        moved = "unknown bytes moved" if unknown and predicted_cost else ""
        took = f"{seconds_text(results.seconds)}, {moved}"
        yield Item("cost", f"{took if moved else _total_cost(results)}{known}")
    elif predicted_cost:
        yield Item("predicted", predicted_cost)
    if risks := _risks(results):
        yield Item("would lose", risks)


def _predicted_cost(steps: Sequence[Done]) -> str:
    """Return the prediction for all steps that have a cost."""
    costs = [s for s in steps if _has_cost(s)]
    nbytes = [s.predicted_bytes for s in costs]
    peaks = [s.predicted_peak for s in costs if s.predicted_peak]
    if not (any(n != 0 for n in nbytes) or peaks):
        return ""
    total = None if None in nbytes else sum(n or 0 for n in nbytes)
    parts = [f"{predicted(total, bytes_text)}{' bytes' if total is None else ''} moved"]
    if peaks:
        parts.append(f"at most {bytes_text(max(peaks))} more memory on a worker")
    return ", ".join(parts)


def _alone(step: Done) -> bool:
    """Whether the table of workers has the cost of a step."""
    return _by_worker(step) and len(step.workers) == 1


def _has_cost(step: Done) -> bool:
    if step.status == "planned":
        return step.predicted_bytes != 0 or bool(step.predicted_peak)
    return step.status in EXECUTED


def _total_cost(results: Results) -> str:
    moved = sum(s.nbytes or 0 for s in results.steps)
    return f"{seconds_text(results.seconds)}, {bytes_text(moved)} moved"


def _risks(results: Results) -> str:
    """Return the data that planned steps would lose."""
    if results.status != "planned":
        return ""
    risks = [s.at_risk for s in results.steps if not s.at_risk.startswith("nothing")]
    return _in_turn(risks)


def _cost_table(steps: Sequence[Done]) -> Table:
    rows = [
        (
            ("action", s.action),
            ("bytes moved:\npredicted", predicted(s.predicted_bytes, bytes_text)),
            ("\nmeasured", _measured(s, s.nbytes, bytes_text)),
            ("seconds", _measured(s, s.seconds, seconds_text)),
            (PREDICTED_RISE, value_text(s.predicted_peak, bytes_text)),
        )
        for s in steps
    ]
    return compact(rows)


def _measured(step: Done, value: float | None, text: Callable[[float], str]) -> str:
    return NONE if step.status == "planned" else predicted(value, text)


# --- headlines ------------------------------------------------------------------------


def headlines(results: Results) -> list[str]:
    """Return at most six lines: problem, action, cost, remaining, info.

    The last line is the error, because people look there after ^C.
    """
    account = counts.line(results.steps, results.error)
    lines = [
        *_problem_lines(results, account),
        *(f"info: {message}" for message in _about_request(results)),
    ]
    notes = [f"note: {note}" for note in results.notes]
    failure = "; ".join(filter(None, [results.error, account]))
    failed = [f"failed: {failure}"] if results.error else []
    most = max(0, MAX_HEADLINES - len(notes) - len(failed))
    return [printable(line) for line in (*lines[:most], *notes, *failed)]


def _problem_lines(results: Results, account: str) -> Iterator[str]:
    findings = _Findings.of(results)
    first_look = {f.message for f in results.found}
    found = (*findings.problems, *findings.remaining)
    problems = [f for f in found if f.message in first_look]
    first = problems[0].message if problems else ""
    if problems and not (first and first in results.error):
        more = plural(len(problems) - 1, "more problem")
        yield f"problem: {first}{f' (and {more})' if len(problems) > 1 else ''}"
    planned = [f"would {s.summary}" for s in results.steps if s.status == "planned"]
    if planned:
        yield f"action: {_in_turn(planned)}"
    if account and not results.error:
        yield f"action: {account}"
    if risks := _risks(results):
        yield f"cost: would lose {risks}"
    if account:
        yield f"cost: {_total_cost(results)}"
    if problems and results.status == "fine":
        yield f"action: none ({seconds_text(results.seconds)})"
    remaining = findings.remaining
    if remaining and results.status != "failed":
        same = remaining[0].message == first
        names = list(dict.fromkeys(f.check for f in remaining))
        count = f"{plural(len(remaining), 'problem')} ({names_text(names)})"
        yield f"remaining: {count if same else remaining[0].message}"
    unsettled = results.status == "left" and (problems or remaining)
    if not (planned or account or results.error or problems or unsettled):
        nothing = "no problems" if results.status == "checked" else "nothing to do"
        yield f"{nothing} ({seconds_text(results.seconds)})"


def _about_request(results: Results) -> Iterator[str]:
    """Return the last messages about the request itself that are no problem."""
    latest = results.left or results.found
    shown = {f.check: f.message for f in latest if f.severity is Severity.info}
    return (shown[check] for check in ABOUT_REQUEST if check in shown)


def _in_turn(texts: Sequence[str]) -> str:
    """Return the first texts, and the number of the others."""
    more = [f"{len(texts) - MAX_STEPS:,} more"] if len(texts) > MAX_STEPS else []
    return "; then ".join([*texts[:MAX_STEPS], *more])
