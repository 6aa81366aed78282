"""Decide what a report shows: one line that answers, then sections (pure).

The order is: problems that remain, fixed problems, actions, workers. Details follow
only on request. Each fact has one place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from clustertune.core import counts
from clustertune.core.model import Finding, Severity
from clustertune.core.results import (
    EXECUTED,
    Done,
    LayoutSummary,
    Results,
    WorkerMemory,
    WorkerShare,
    WorkerState,
)
from clustertune.core.tables import (
    MAX_ROWS,
    NONE,
    Cell,
    Item,
    Section,
    Table,
    bars,
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

#: checks about the request itself
ABOUT_REQUEST = ("missing_estimator",)
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
    title = f"{word}: {text}"
    content: dict[str, Sequence[Item | Table]] = {
        "Problems": list(_items(results, findings.problems)),
        "Fixed problems": [
            Item("fixed", f"{f.message} ({f.check})") for f in findings.fixed
        ],
        "Actions": list(_actions(results, details)),
        "Workers": list(_workers(results)),
        "Notes": list(_notes(results, findings, details)),
        "Predicted and measured": list(_costs(results)) if details else [],
    }
    parts = [Section(name, tuple(x)) for name, x in content.items() if x]
    return [Section(title, colour=COLOURS.get(word, NOT_READY)), *parts]


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
    return names_text(list(dict.fromkeys(f.check for f in found)), most=8)


def _notes(results: Results, findings: Findings, details: bool) -> Iterator[Item]:
    if details:
        yield from _items(results, findings.information)
    elif findings.information:
        count = plural(len(findings.information), "finding")
        names = _checks_text(findings.information)
        yield Item("info", f"{count} of no urgency: {names} (see the details)")
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
    latest = [f for f in findings.information if f.check in ABOUT_REQUEST]
    lines = [
        *(f"{f.severity}: {f.message}" for f in findings.problems[1:]),
        *(f"info: {f.message}" for f in latest),
    ]
    notes = [f"note: {note}" for note in results.notes]
    first = ": ".join(verdict(results))
    rest = [*lines[: max(0, MAX_LINES - 1 - len(notes))], *notes]
    return [printable(line) for line in [first, *rest[: MAX_LINES - 1]]]


def verdict(results: Results) -> tuple[str, str]:
    """Return a word, and what the call did and left, as one sentence."""
    if results.error:
        account = counts.line(results.steps, results.error, results.lost)
        return "Failed", "; ".join(filter(None, [results.error, account]))
    if results.status == "planned":
        planned = [s.summary for s in results.steps if s.status == "planned"]
        risks = _risks(results)
        lost = f"; this would lose {risks}" if risks else ""
        text = f"would {_in_turn(planned)}{lost}" if planned else "nothing to do"
        return "Plan", f"{text}; {_problems_text(results)}"
    # the moved bytes stand for the moved keys
    counted = [s for s in results.steps if (s.verb, s.status) != ("moved", "done")]
    account = counts.line(counted, lost=results.lost)
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
    """Return the bytes that the steps transferred, as far as they are known."""
    done = [s.nbytes for s in steps if s.status in EXECUTED]
    known = [n for n in done if n is not None]
    if not any(known):
        return ""
    least = "at least " if len(known) < len(done) else ""
    return f"moved {least}{bytes_text(sum(known))}"


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
    return f"{text}, and {empty:,} none" if empty else text


def _problems_text(results: Results) -> str:
    problems = Findings.of(results).problems
    if not problems:
        return "no problems" if results.status == "checked" else "no problem remains"
    count, message = plural(len(problems), "problem"), problems[0].message
    state = "" if results.status in ("checked", "planned") else " remain"
    state += "s" if state and len(problems) == 1 else ""
    return f"{count}{state}: {message}"


def _risks(results: Results) -> str:
    """Return the data that planned steps would lose."""
    risks = [s.at_risk for s in results.steps if not s.at_risk.startswith("nothing")]
    return _in_turn(risks) if results.status == "planned" else ""


def _in_turn(texts: Sequence[str]) -> str:
    """Return the first texts, and the number of the others."""
    more = [f"{len(texts) - MAX_STEPS:,} more"] if len(texts) > MAX_STEPS else []
    return "; then ".join([*texts[:MAX_STEPS], *more])


# --- steps ----------------------------------------------------------------------------


def _actions(results: Results, details: bool) -> Iterator[Item | Table]:
    by_worker = [s for s in results.steps if _by_worker(s)]
    for step in results.steps:
        # the error of a refused call describes the refused steps
        known = step.status == "refused" and step.summary in results.error
        if step not in by_worker and not known:
            yield Item(step.status, step.summary, tuple(_reasons(step, details)))
    for step in by_worker if details else ():
        if step.details:
            yield Item(step.status, step.details)
    if by_worker:
        yield _steps_table(results, by_worker)


def _by_worker(step: Done) -> bool:
    about_workers = step.action in BY_WORKER and step.noun == "worker"
    return about_workers and step.status not in ("refused", "planned")


def _reasons(step: Done, details: bool) -> Iterator[str]:
    if step.gain and step.status == "planned":
        yield f"Gain: {step.gain}"
    if step.reason:
        yield f"Reason: {step.reason}"
    if details and step.details:
        yield f"Details: {step.details}"


def _steps_table(results: Results, steps: Sequence[Done]) -> Table:
    """Return a table of workers that were restarted or trimmed."""
    memory = {m.worker: m for m in results.memory}
    unmeasured = WorkerMemory(worker="")

    def row(step: Done, worker: str | int) -> list[tuple[str, str | Cell]]:
        m = memory.get(worker, unmeasured)
        trims, alone = step.action == "trim", len(step.workers) == 1
        before = m.before if trims or m.after_trim is None else m.after_trim
        after = m.after_trim if trims else m.after_restart
        process = Cell(
            change(before, after, bytes_text), bars(m.threshold, before, after)
        )
        ran = alone and step.status in EXECUTED
        return [
            ("worker", names_text([worker])),
            ("process memory", process),
            ("keys", value_text(None if trims else m.keys, "{:,}".format)),
            ("bytes moved", value_text(step.nbytes if ran else None, bytes_text)),
            ("seconds", value_text(step.seconds if ran else None, seconds_text)),
            ("outcome", _outcome(step)),
        ]

    pairs = [(step, worker) for step in steps for worker in step.workers]
    pairs.sort(key=lambda pair: natural(pair[1]))
    return table([row(*pair) for pair in pairs])


def _outcome(step: Done) -> str:
    result = step.verb if step.status == "done" else step.status
    if step.lost:
        result += f"; lost {plural(step.lost, 'key')}"
    return f"{result}: {step.reason}" if step.reason else result


def _costs(results: Results) -> Iterator[Table]:
    """Return predicted and measured bytes, and the predicted rise of memory."""
    rows = [
        (
            ("action", s.action),
            ("bytes moved:\npredicted", value_text(s.predicted_bytes, bytes_text)),
            ("\nmeasured", value_text(s.nbytes, bytes_text)),
            ("memory rise of a\nworker, predicted", _peak_text(s)),
            ("seconds", value_text(s.seconds, seconds_text)),
        )
        for s in results.steps
        if s.status in ("planned", *EXECUTED)
    ]
    if rows:
        yield table(rows)


def _peak_text(step: Done) -> str:
    return value_text(step.predicted_peak, bytes_text)


# --- workers --------------------------------------------------------------------------


def _workers(results: Results) -> Iterator[Item | Table]:
    """Return what workers hold before and after the call, one table per layout."""
    states = {w.worker: w for w in results.workers}
    after = results.after or results.before
    pairs = {s.label: s for s in results.before}
    for number, summary in enumerate(after):
        if summary.workers:
            before = pairs.get(summary.label, summary)
            yield _layout_table(before, summary, {} if number else states, results)
    if results.workers and not after and not any(map(_by_worker, results.steps)):
        yield _memory_table(results.workers)


def _layout_table(
    before: LayoutSummary,
    after: LayoutSummary,
    states: dict[str | int, WorkerState],
    results: Results,
) -> Table:
    was = {w.worker: w for w in before.workers or after.workers}
    now = {w.worker: w for w in after.workers}
    known: dict[str | int, WorkerShare] = {**was, **now}
    ids = sorted(known, key=natural)
    if len(ids) > MAX_ROWS:  # show the fullest and the emptiest workers
        ids.sort(key=lambda id: -known[id].share)
    largest = max((w.rows for w in chain(was.values(), now.values())), default=0)
    forecast = results.forecast if states else {}

    def row(id: str | int) -> list[tuple[str, str | Cell]]:
        a, b = was.get(id), now.get(id)
        rows, partitions, nbytes = (
            (getattr(a, name, None), getattr(b, name, None))
            for name in ("rows", "partitions", "nbytes")
        )
        return [
            ("worker", names_text([id])),
            ("partitions", change(*partitions, "{:,}".format)),
            ("rows", Cell(change(*rows, "{:,}".format), bars(largest, *rows))),
            ("bytes", change(*nbytes, bytes_text)),
            ("process memory", _process_cell(states.get(id))),
            ("peak in the fit,\npredicted", value_text(forecast.get(id), bytes_text)),
        ]

    return table([row(id) for id in ids], title=_layout_title(before, after))


def _layout_title(before: LayoutSummary, after: LayoutSummary) -> str:
    was = before if before.loaded else after
    numbers = [
        change(getattr(was, name), getattr(after, name), text, "unknown")
        for name, text in (
            ("partitions", "{:,} partitions".format),
            ("rows", "{:,} rows".format),
            ("nbytes", bytes_text),
        )
    ]
    if was.separated or after.separated:
        pairs = change(was.separated, after.separated, "{:,}".format, "unknown")
        numbers.append(f"{pairs} pairs separated")
    return f"{after.label}: {', '.join(numbers)}"


def _process_cell(state: WorkerState | None) -> Cell:
    if state is None:
        return Cell(NONE)
    memory = (state.process_before, state.process_after)
    return Cell(change(*memory, bytes_text), bars(state.limit, *memory))


def _memory_table(workers: Sequence[WorkerState]) -> Table:
    rows = [
        (
            ("worker", names_text([w.worker])),
            ("data in memory", change(w.data_before, w.data_after, bytes_text)),
            ("process memory", _process_cell(w)),
            ("memory limit", bytes_text(w.limit) if w.limit else "none"),
        )
        for w in sorted(workers, key=lambda w: natural(w.worker))
    ]
    return table(rows)
