"""Count what steps do, and summarize their results in one line.

The line contains results only, never the text of a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from clustertune.core.model import (
    Bounds,
    BringBack,
    Drop,
    Load,
    Moves,
    Outcome,
    Plan,
    Rechunk,
    Release,
    Resize,
    Restart,
    Retire,
    Step,
    Trim,
    WorkerEnd,
)
from clustertune.core.results import Done, Loss
from clustertune.core.wording import names_text, plural, printable, workers_text

UNTOUCHED = ("skipped", "not needed")  # statuses of steps that changed nothing
UNFINISHED = ("skipped", "partly", "failed")
MAX_REASONS = 3
MAX_REASON = 200  # characters
VERBS = {
    "merge": "merged",
    "rechunk": "rechunked",
    "replicate": "copied to all workers",
    "retire": "removed",
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
        details=outcome.details,
        count=outcome.count,
        lost=lost,
    )


def _done(step: Step, status: str, **result: Any) -> Done:
    return Done(
        **_unit(step),
        action=step.action,
        summary=step.summary,
        status=status,
        predicted_bytes=step.price.nbytes,
        predicted_peak=step.price.peak,
        at_risk=step.price.at_risk,
        **result,
    )


#: by the type of a step's arguments: verb ("": that of the action), noun, all units
_UNITS: Mapping[type, tuple[str, str, Callable[[Any], int | None]]] = {
    Bounds: ("adjusted", "adaptive cluster", lambda _: 1),
    Drop: ("restarted", "worker", lambda args: len(args.workers)),
    Load: ("loaded", "collection", lambda _: None),
    Moves: ("moved", "key", lambda args: args.count),
    Rechunk: ("", "collection", lambda args: len(args.cuts)),
    Release: ("released", "key", lambda _: None),
    Restart: ("restarted", "worker", lambda _: 1),
    Resize: ("resized", "worker", lambda _: 1),
    Retire: ("", "worker", lambda _: 1),
    BringBack: ("emptied and closed", "parking worker", lambda _: 1),
    Trim: ("trimmed", "worker", lambda args: len(args.workers)),
}


def _unit(step: Step) -> dict[str, Any]:
    """Return the fields of ``Done`` for the unit that a step counts.

    Steps of other packages are units themselves.
    """
    args = step.args
    if step.action == "scale" and isinstance(args, int):
        return {"verb": "scaled to", "noun": "worker", "total": args}
    if type(args) not in _UNITS:
        return {"verb": "carried out", "noun": f"{step.action} step", "total": 1}
    verb, noun, total = _UNITS[type(args)]
    unit = {"verb": verb or VERBS.get(step.action, step.action), "noun": noun}
    workers: tuple[str | int, ...] = ()
    if isinstance(args, Drop | Trim):
        workers = tuple(args.workers.values())
    elif isinstance(args, WorkerEnd):
        workers = (args.id,)
    loses = isinstance(args, Drop | WorkerEnd)
    return {**unit, "total": total(args), "workers": workers, "loses": loses}


# --- the line -------------------------------------------------------------------------


def line(
    steps: Sequence[Done], error: str = "", lost: Sequence[Loss] | None = ()
) -> str:
    """Summarize results: finished and unfinished units, reasons, and lost keys.

    Reasons that ``error`` contains are not repeated. ``lost`` are losses apart from
    steps; None: they are unknown.
    """
    groups = _groups(steps)
    texts = [x for some in groups for x in (_finished(some), *_unfinished(some, error))]
    texts += _lost([step for some in groups for step in some], lost)
    return "; ".join([*texts, *_unfinished(steps, error, ("not needed",))])


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


def _lost(steps: Sequence[Done], losses: Sequence[Loss] | None) -> Iterator[str]:
    losing = [s for s in steps if s.loses]
    lost = None if losses is None else [x for x in losses if x.keys]
    for loss in losses or ():
        if loss.coming:
            keys, worker = plural(loss.coming, "key"), workers_text([loss.worker])
            yield f"{keys} of {worker}, which ended, are not computed again yet"
    if not (losing or lost):
        return
    own, others = sum(s.lost or 0 for s in losing), sum(x.keys for x in lost or ())
    text = f"lost {plural(own + others, 'key')}"
    if lost:
        text += f", {others:,} of them" if own else ""
        text += f" with {workers_text([x.worker for x in lost])}, which ended meanwhile"
    if unknown := [s for s in losing if s.lost is None]:
        which = names_text([w for s in unknown for w in s.workers]) or "some steps"
        text += f", unknown for {which}"
    elif lost is None:
        text += " as far as known"
    yield text


def _unfinished(
    steps: Sequence[Done], error: str, statuses: Collection[str] = UNFINISHED
) -> Iterator[str]:
    reasons: dict[tuple[str, str], list[Done]] = {}
    for step in steps:
        if step.status in statuses:
            reasons.setdefault((step.status, step.reason), []).append(step)
    for (status, reason), some in list(reasons.items())[:MAX_REASONS]:
        names = names_text([w for s in some for w in s.workers])
        text = " ".join(filter(None, [status, names]))
        known = not reason or reason in error
        yield text if known else f"{text}: {printable(reason, longest=MAX_REASON)}"
    if len(reasons) > MAX_REASONS:
        yield f"{len(reasons) - MAX_REASONS} more reasons"
