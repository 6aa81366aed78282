"""Count what steps do, and summarize their results in one line.

The line contains results only, never the text of a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from clustertune.core.model import (
    Bounds,
    Drop,
    Load,
    Moves,
    Outcome,
    Plan,
    Rechunk,
    Release,
    Restart,
    Shuffle,
    Split,
    Step,
    Trim,
)
from clustertune.core.wording import names_text, plural, printable

UNTOUCHED = ("skipped", "not needed")  # statuses of steps that changed nothing
UNFINISHED = ("skipped", "partly", "failed")
EXECUTED = ("done", "partly", "failed")
MAX_REASONS = 3
MAX_REASON = 200  # characters
VERBS = {
    "merge": "merged",
    "rechunk": "rechunked",
    "replicate": "copied to all workers",
    "restart": "restarted",
    "retire": "removed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """One step of a report: the prediction, the measurement, the result."""

    action: str
    summary: str
    gain: str
    status: str  # planned, done, partly, skipped, not needed, failed or refused
    predicted_bytes: int | None  # bytes to transfer; None: unknown
    predicted_seconds: float | None
    at_risk: str
    nbytes: int | None = None  # measured; None: not measured
    seconds: float | None = None
    reason: str = ""
    verb: str = ""  # of the count, as "restarted"; empty in older reports
    noun: str = ""  # of the count, as "worker"
    count: int | None = None  # finished units
    total: int | None = None  # all units
    workers: tuple[str | int, ...] = ()  # ids of the workers that the step is about
    loses: bool = False  # whether such a step can lose keys
    lost: int | None = None  # keys; None: unknown
    predicted_peak: int | None = None  # greatest rise of one worker's memory, in bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """The unit of a step: ``restarted``, ``worker``, 1 of them, named w0."""

    verb: str  # past participle
    noun: str  # singular
    total: int | None = None  # None: not known before the step
    workers: tuple[str | int, ...] = ()  # ids of the workers that the step is about
    loses: bool = False  # whether data can be lost; then the lost keys are shown


# --- counting -------------------------------------------------------------------------


def of(step: Step) -> Count:
    """Return the unit of a step; steps of other packages are their own unit."""
    make = _MAKERS.get(type(step.args))
    if make is not None:
        return make(step.args, VERBS.get(step.action, step.action))
    if step.action == "scale" and isinstance(step.args, int):
        return Count(verb="scaled to", noun="worker", total=step.args)
    return Count(verb="carried out", noun=f"{step.action} step", total=1)


def _of_restart(args: Restart, verb: str) -> Count:
    noun = "worker"
    if args.size is not None:
        verb = "resized"
    elif args.retire and verb == "restarted":
        verb, noun = "emptied and closed", "parking worker"
    return Count(verb=verb, noun=noun, total=1, workers=(args.id,), loses=True)


def _of_all(args: Drop | Trim, _verb: str) -> Count:
    ids, loses = tuple(args.workers.values()), isinstance(args, Drop)
    verb = "restarted" if loses else "trimmed"
    return Count(verb=verb, noun="worker", total=len(ids), workers=ids, loses=loses)


_MAKERS: Mapping[type, Callable[[Any, str], Count]] = {
    Restart: _of_restart,
    Drop: _of_all,
    Trim: _of_all,
    Moves: lambda args, _: Count(verb="moved", noun="key", total=args.count),
    Release: lambda *_: Count(verb="released", noun="key"),
    Load: lambda *_: Count(verb="loaded", noun="collection"),
    Rechunk: lambda args, verb: Count(
        verb=verb, noun="collection", total=len(args.cuts)
    ),
    Shuffle: lambda args, _: Count(
        verb="reordered", noun="collection", total=len(args.sources)
    ),
    Split: lambda args, _: Count(verb="scaled to", noun="worker", total=args.n_workers),
    Bounds: lambda *_: Count(verb="adjusted", noun="adaptive cluster", total=1),
}


# --- steps of a report ----------------------------------------------------------------


def planned(plan: Plan) -> Iterator[Done]:
    """Return the steps of a dry run's plan, and the refused steps."""
    yield from (_done(step, "planned") for step in plan.steps)
    yield from refusals(plan)


def refusals(plan: Plan) -> Iterator[Done]:
    """Return the steps that a guard has refused."""
    for r in plan.refused:
        yield _done(r.step, "refused", reason=f"{r.reason} ({r.guard})")


def carried_out(outcome: Outcome) -> Done:
    """Return a step with its result."""
    # a worker that ended by itself is skipped, and its keys are lost all the same
    lost = outcome.lost or 0 if outcome.status in UNTOUCHED else outcome.lost
    return _done(
        outcome.step,
        outcome.status,
        nbytes=outcome.nbytes,
        seconds=outcome.seconds,
        reason=outcome.reason,
        count=outcome.count,
        lost=lost,
    )


def _done(step: Step, status: str, **result: Any) -> Done:
    return Done(
        **asdict(of(step)),
        action=step.action,
        summary=step.summary,
        gain=step.gain,
        status=status,
        predicted_bytes=step.price.nbytes,
        predicted_seconds=step.price.seconds,
        predicted_peak=step.price.peak,
        at_risk=step.price.at_risk,
        **result,
    )


# --- the line -------------------------------------------------------------------------


def line(steps: Sequence[Done], error: str = "") -> str:
    """Summarize results: finished and unfinished units, reasons, and lost keys.

    Reasons that ``error`` contains are not repeated.
    """
    texts = [
        text
        for group in _groups(steps)
        for text in (_finished(group), *_unfinished(group, error), *_lost(group))
    ]
    return "; ".join([*texts, *_unfinished(steps, error, ("not needed",))])


def totals(steps: Sequence[Done]) -> str:
    """Summarize results as :func:`line`, but without reasons."""
    return "; ".join(
        text for group in _groups(steps) for text in (_finished(group), *_lost(group))
    )


def _groups(steps: Sequence[Done]) -> list[list[Done]]:
    """Return the steps that have a result, by their unit."""
    groups: dict[tuple[str, str], list[Done]] = {}
    for step in steps:
        if step.status in ("done", *UNFINISHED):
            groups.setdefault((step.verb, step.noun), []).append(step)
    return list(groups.values())


def _finished(steps: Sequence[Done]) -> str:
    verb, noun = steps[0].verb or "carried out", steps[0].noun or "step"
    count = sum(_finished_units(s) for s in steps)
    if any(s.total is None for s in steps):
        return f"{verb} {plural(count, noun)}"
    total = sum(s.total or 0 for s in steps)
    return f"{verb} {count:,} of {plural(total, noun)}"


def _finished_units(step: Done) -> int:
    """Return the count of a step; a step without a count has finished all or none."""
    if step.count is not None:
        return step.count
    return (step.total or 1) if step.status == "done" else 0


def _lost(steps: Sequence[Done]) -> Iterator[str]:
    if not any(s.loses for s in steps):
        return
    lost = f"lost {plural(sum(s.lost or 0 for s in steps), 'key')}"
    unknown = [s for s in steps if s.lost is None]
    which = names_text([w for s in unknown for w in s.workers]) or "some steps"
    yield f"{lost}, unknown for {which}" if unknown else lost


def _unfinished(
    steps: Sequence[Done], error: str, statuses: Collection[str] = UNFINISHED
) -> Iterator[str]:
    reasons: dict[tuple[str, str], list[Done]] = {}
    for step in steps:
        if step.status in statuses:
            reasons.setdefault((step.status, _reason(step)), []).append(step)
    for (status, reason), some in list(reasons.items())[:MAX_REASONS]:
        names = names_text([w for s in some for w in s.workers])
        text = " ".join(filter(None, [status, names]))
        known = not reason or reason in error or some[0].reason in error
        yield text if known else f"{text}: {printable(reason, longest=MAX_REASON)}"
    if len(reasons) > MAX_REASONS:
        yield f"{len(reasons) - MAX_REASONS} more reasons"


def _reason(step: Done) -> str:
    """Return the reason without the number of lost keys, which the line ends with."""
    parts = step.reason.split("; ")
    repeated = f"lost {step.lost or 0:,} keys"
    return "; ".join(part for part in parts if not (step.loses and part == repeated))
