"""Decide what a report shows: one line that answers, then sections (pure).

The order is: problems that remain, fixed problems, actions, workers. By default a
report has only what the reader still has to do or to know; the rest is in its details.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from clustertune.core.model import Finding, LayoutSummary, Severity, WorkerShare
from clustertune.core.results import EXECUTED, Done, Results, WorkerState, summary_line
from clustertune.core.tables import (
    MAX_ROWS,
    NONE,
    Item,
    Row,
    Section,
    Table,
    change,
    table,
    value_text,
)
from clustertune.core.wording import (
    bytes_text,
    names_text,
    natural,
    plural,
    printable,
    seconds_text,
)

MAX_STEPS = 8  # in one line
MAX_LINES = 6  # of headlines
SEE = "more: print(report.details), or option -v"

#: calls that are about data and training, so that all findings are relevant
ABOUT_TRAINING = ("", "check", "prepare", "fit")
#: actions whose steps are rows of a table of workers
BY_WORKER = ("restart", "trim")
COLOURS = {"Ready": "#2e7d32", "Done": "#2e7d32", "Plan": "#1565c0"}
NOT_READY = "#c62828"


def sections(results: Results, *, details: bool = False) -> list[Section]:
    """Return the sections of a report, without empty ones."""
    findings = Findings.of(results)
    word, text = verdict(results)
    fixed = findings.fixed if details else ()
    content: dict[str, Sequence[Item | Table]] = {
        "Problems": list(_items(results, findings.problems)),
        "Fixed problems": [Item("fixed", f"{f.message} ({f.check})") for f in fixed],
        "Actions": list(_actions(results, details)),
        "Workers": list(_workers(results, details)),
        "Notes": list(_notes(results, findings, details)),
    }
    parts = [Section(name, tuple(x)) for name, x in content.items() if x]
    return [Section(f"{word}: {text}", colour=COLOURS.get(word, NOT_READY)), *parts]


def of_findings(title: str, found: Sequence[Finding]) -> Section:
    """Return a section with findings and their remedies."""
    return Section(title, tuple(_items(None, found)))


# --- findings -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Findings:
    """The findings of a report by their place; a finding has one place."""

    problems: tuple[Finding, ...]  # of the last look, worst first
    fixed: tuple[Finding, ...]
    information: tuple[Finding, ...]
    unrelated: tuple[Finding, ...]  # the call does not change them

    @classmethod
    def of(cls, results: Results) -> Findings:
        """Sort the findings of a report."""
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
            return f.severity > Severity.info or unsure

        gone = [f for f in before if not any(_same(f, g) for g in after)]
        mine = [f for f in latest if related(f)]
        worst = sorted(filter(problem, mine), key=lambda f: -f.severity)
        return cls(
            problems=tuple(worst),
            fixed=tuple(f for f in gone if compared and related(f) and problem(f)),
            information=tuple(f for f in mine if not problem(f)),
            unrelated=tuple(f for f in latest if not related(f)),
        )


def _identity(finding: Finding) -> tuple[object, ...]:
    """Return what stays the same when the numbers in a message change."""
    return finding.check, finding.subject


def _same(a: Finding, b: Finding) -> bool:
    """Whether two findings are of one check, and about one thing at least."""
    common = a.subject == b.subject or not {*a.subject}.isdisjoint(b.subject)
    return a.check == b.check and common


def _items(results: Results | None, found: Sequence[Finding]) -> Iterator[Item]:
    """Return findings, and each remedy once: at the last finding that has it."""
    remedies = [_useful_remedy(results, f) for f in found]
    for number, (finding, remedy) in enumerate(zip(found, remedies, strict=True)):
        sharing = [f for f, r in zip(found, remedies, strict=True) if r == remedy]
        last = remedy and remedy not in remedies[number + 1 :]
        of = f" of {_checks_text(sharing)}" if len(sharing) > 1 else ""
        check = f" ({finding.check})" if finding.check else ""
        detail = (f"Remedy{of}: {remedy}",) if last else ()
        yield Item(str(finding.severity), f"{finding.message}{check}", detail)


def _useful_remedy(results: Results | None, finding: Finding) -> str:
    """Return the remedy, unless it is the call that the report is about."""
    if results is None or results.status == "checked":
        return finding.remedy
    ours = finding.remedy.count("clustertune.")
    same = ours == finding.remedy.count(f"clustertune.{results.call}_") == 1
    return "" if finding.fixed_by or same else finding.remedy


def _checks_text(found: Sequence[Finding]) -> str:
    number = Counter(f.check for f in found)
    names = [f"{name} ({n})" if n > 1 else name for name, n in number.items()]
    return names_text(names, most=8)


def _notes(results: Results, findings: Findings, details: bool) -> Iterator[Item]:
    if details:
        yield from _items(results, findings.information)
    else:
        if findings.fixed:
            yield Item("fixed", f"{_checks_text(findings.fixed)} ({SEE})")
        unsure = [f for f in findings.information if f.severity is Severity.unknown]
        hints = [f for f in findings.information if f not in unsure]
        if hints:
            count, names = plural(len(hints), "hint"), _checks_text(hints)
            yield Item("info", f"{count}, not urgent: {names} ({SEE})")
        if unsure:
            yield Item("unknown", f"{_checks_text(unsure)} ({SEE})")
    if findings.unrelated:
        count = plural(len(findings.unrelated), "finding")
        names = _checks_text(findings.unrelated)
        yield Item("unrelated", f"{count} that this call does not change: {names}")
    for need in results.needs:
        yield Item("unknown yet", need)
    yield from (Item("note", note) for note in results.notes)


# --- the answer -----------------------------------------------------------------------


def headlines(results: Results) -> list[str]:
    """Return the answer in one line, then other problems and notes: six lines."""
    findings = Findings.of(results)
    problems = [f"{f.severity}: {f.message}" for f in findings.problems[1:]]
    notes = [f"note: {note}" for note in results.notes][: MAX_LINES - 1]
    shown = problems[: MAX_LINES - 1 - len(notes)]
    return [printable(line) for line in [": ".join(verdict(results)), *shown, *notes]]


def verdict(results: Results) -> tuple[str, str]:
    """Return a word, and what the call did and left, as one sentence."""
    if results.error:
        account = summary_line(results.steps, results.error, results.lost)
        return "Failed", "; ".join(filter(None, [results.error, account]))
    if results.status == "planned":
        planned = [s.summary for s in results.steps if s.status == "planned"]
        risks = [s.at_risk for s in results.steps if s.at_risk]
        lost = f"; this would lose {_in_turn(risks)}" if risks else ""
        text = f"would {_in_turn(planned)}{lost}" if planned else "nothing to do"
        return "Plan", f"{text}; {_problems_text(results)}"
    # the moved bytes stand for the moved keys
    counted = [s for s in results.steps if (s.verb, s.status) != ("moved", "done")]
    account = summary_line(counted, lost=results.lost)
    parts = (account, _effect(results), _problems_text(results))
    return _word(results), "; ".join(filter(None, parts))


def _word(results: Results) -> str:
    problems = Findings.of(results).problems
    critical = any(f.severity is Severity.critical for f in problems)
    if results.call in ABOUT_TRAINING:
        return "Not ready" if critical or results.status == "left" else "Ready"
    return "Partly done" if results.status == "left" else "Done"


def _effect(results: Results) -> str:
    """Return the moved bytes, the duration, and the rows that workers hold then."""
    took = seconds_text(results.seconds)
    if results.status == "checked":
        return f"checked {plural(len(results.workers), 'worker')} in {took}"
    rows = _rows_text(results)
    if not results.changed:
        idle = "nothing was done" if results.status == "left" else "nothing to do"
        return f"{idle} ({took}){f'; {rows}' if rows else ''}"
    moved = moved_text(results.steps)
    text = f"{moved} in {took}" if moved else f"took {took}"
    return f"{text}, so {rows}" if rows else text


def moved_text(steps: Sequence[Done]) -> str:
    """Return the bytes that the steps transferred, and name steps without a count."""
    done = [s for s in steps if s.status in EXECUTED]
    uncounted = [s for s in done if s.nbytes is None and s.action != "load"]
    total = sum(s.nbytes or 0 for s in done)
    if not total or not uncounted:
        return f"moved {bytes_text(total)}" if total else ""
    return f"moved {bytes_text(total)} ({plural(len(uncounted), 'step')} not counted)"


def _rows_text(results: Results) -> str:
    """Return the rows of the training data that each worker holds."""
    summary = next(iter(results.after or results.before), None)
    if summary is None or not summary.workers or not summary.loaded:
        return ""
    held = [w.rows for w in summary.workers if w.rows]
    empty = len(summary.workers) - len(held)
    all_of_them = "all " if not empty and len(held) > 1 else ""
    few, many = f"{min(held, default=0):,}", f"{max(held, default=0):,}"
    rows = f"{few} rows" if few == many else f"{few} to {many} rows"
    holds = "holds" if len(held) == 1 else "hold"
    text = f"{all_of_them}{plural(len(held), 'worker')} {holds} {rows}"
    if results.host_threads is not None:
        trains = "trains" if len(held) == 1 else "train"
        return f"{text} and {trains} with {plural(results.host_threads, 'thread')}"
    return f"{text}, and {empty:,} none" if empty else text


def _problems_text(results: Results) -> str:
    problems = Findings.of(results).problems
    if not problems:
        return "no problems" if results.status == "checked" else "no problem remains"
    count, message = plural(len(problems), "problem"), problems[0].message
    state = "" if results.status in ("checked", "planned") else " remain"
    state += "s" if state and len(problems) == 1 else ""
    return f"{count}{state}: {message}"


def _in_turn(texts: Sequence[str]) -> str:
    """Return the first texts, and the number of the others."""
    more = [f"{len(texts) - MAX_STEPS:,} more"] if len(texts) > MAX_STEPS else []
    return "; then ".join([*texts[:MAX_STEPS], *more])


# --- steps ----------------------------------------------------------------------------


def _actions(results: Results, details: bool) -> Iterator[Item | Table]:
    """Return steps that are planned or not done; with details all steps."""
    for step in results.steps:
        # the error of a refused call describes the refused steps
        known = step.status == "refused" and step.summary in results.error
        done = step.status == "done" or _by_worker(step)
        if not known and (details or not done):
            yield Item(step.status, step.summary, tuple(_reasons(step, details)))
    if details:
        yield from _costs(results)


def _by_worker(step: Done) -> bool:
    """Whether the table of workers has the step."""
    about_workers = step.action in BY_WORKER and step.noun == "worker"
    return about_workers and step.status not in ("refused", "planned")


def _reasons(step: Done, details: bool) -> Iterator[str]:
    if step.reason:
        yield f"Reason: {step.reason}"
    if details and step.details:
        yield f"Details: {step.details}"


def _costs(results: Results) -> Iterator[Table]:
    """Return predicted and measured bytes, and the predicted rise of memory."""
    rows = [
        (
            ("action", s.action),
            ("bytes moved:\npredicted", value_text(s.predicted_bytes, bytes_text)),
            ("\nmeasured", value_text(s.nbytes, bytes_text)),
            (
                "memory rise of a\nworker, predicted",
                value_text(s.predicted_peak, bytes_text),
            ),
            ("seconds", value_text(s.seconds, seconds_text)),
        )
        for s in results.steps
        if s.status in ("planned", *EXECUTED)
    ]
    if rows:
        yield table(rows, title="predicted and measured:")


# --- workers --------------------------------------------------------------------------


def _workers(results: Results, details: bool) -> Iterator[Table]:
    """Return one table of all workers, and with details one for each eval set."""
    steps: dict[str | int, list[Done]] = {}
    for step in filter(_by_worker, results.steps):
        for worker in step.workers:
            steps.setdefault(worker, []).append(step)
    states = {w.worker: w for w in results.workers}
    after = [x for x in results.after or results.before if x.workers]
    if not after and (ids := sorted(steps or states, key=natural)):
        yield table([_row(x, states.get(x), steps.get(x, ()), None) for x in ids])
    was = {s.label: s for s in results.before}
    for now in after if details else after[:1]:
        before = was.get(now.label, now)
        new = {w.worker: w for w in now.workers}
        old = {w.worker: w for w in before.workers} or new
        ids = sorted({**old, **new, **steps}, key=natural)
        if len(ids) > MAX_ROWS:  # show the fullest and the emptiest workers
            shares = {id: w.share for id, w in {**old, **new}.items()}
            ids.sort(key=lambda id: -shares.get(id, 0.0))
        rows = [
            _row(x, states.get(x), steps.get(x, ()), (old.get(x), new.get(x)))
            for x in ids
        ]
        yield table(rows, title=_layout_title(before, now))
        states, steps = {}, {}


def _row(
    id: str | int,
    state: WorkerState | None,
    steps: Sequence[Done],
    held: tuple[WorkerShare | None, WorkerShare | None] | None,
) -> Row:
    """Return all that is known of a worker, before and after the call."""
    plain = state if held is None and not steps else None
    limit = bytes_text(plain.limit) if plain and plain.limit else "none"
    return [
        ("worker", names_text([id])),
        ("partitions", change(*_both(held, "partitions"), "{:,}".format)),
        ("rows", change(*_both(held, "rows"), "{:,}".format)),
        ("bytes", change(*_both(held, "nbytes"), bytes_text)),
        ("data in memory", _state_change(plain, "data")),
        ("process memory", _state_change(state, "process")),
        ("memory limit", limit if plain else NONE),
        ("outcome", "; ".join(map(_outcome, steps)) or NONE),
        (
            "peak in the fit,\npredicted",
            value_text(state.peak if state else None, bytes_text),
        ),
    ]


def _both(pair: tuple[object, object] | None, name: str) -> tuple[Any, Any]:
    """Return a field of two values, before and after."""
    before, after = pair or (None, None)
    return getattr(before, name, None), getattr(after, name, None)


def _state_change(state: WorkerState | None, name: str) -> str:
    before, after = (getattr(state, f"{name}_{x}", None) for x in ("before", "after"))
    return change(before, after, bytes_text)


def _outcome(step: Done) -> str:
    result = step.verb if step.status == "done" else step.status
    if step.lost:
        result += f"; lost {plural(step.lost, 'key')}"
    return f"{result}: {step.reason}" if step.reason else result


def _layout_title(before: LayoutSummary, after: LayoutSummary) -> str:
    pair = (before if before.loaded else after, after)
    numbers = [
        change(*_both(pair, "partitions"), partial(plural, noun="partition")),
        change(*_both(pair, "rows"), partial(plural, noun="row"), "unknown rows"),
        change(*_both(pair, "nbytes"), bytes_text, "unknown bytes"),
    ]
    if any(x.separated for x in pair):
        pairs = change(*_both(pair, "separated"), "{:,}".format, "unknown")
        numbers.append(f"{pairs} pairs separated")
    return f"{after.label}: {', '.join(numbers)}"
