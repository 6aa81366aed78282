"""The results of a call: the data of a report, and one line that counts them.

The line contains results only, never the text of a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clustertune.core.model import (
    Bounds,
    BringBack,
    Drop,
    Finding,
    LayoutSummary,
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
from clustertune.core.wording import names_text, plural, printable, workers_text

UNFINISHED = ("skipped", "partly", "failed")
MAX_REASONS = 3
MAX_REASON = 200  # characters
VERBS = {
    "merge": "merged",
    "rechunk": "rechunked",
    "replicate": "copied to all workers",
    "retire": "removed",
}
EXECUTED = ("done", "partly", "failed")  # statuses of steps that have begun


# --- the data of a report -------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """One step of a report: the prediction, the measurement, the result."""

    action: str
    summary: str
    status: str  # planned, done, partly, skipped, failed or refused
    predicted_bytes: int | None  # bytes to transfer; None: unknown
    at_risk: str
    nbytes: int | None = None  # measured; None: not measured
    seconds: float | None = None
    reason: str = ""  # why it was not done, or only in part
    details: str = ""  # how it was done
    verb: str = "carried out"  # of the count, as "restarted"
    noun: str = "step"  # of the count, as "worker"
    count: int | None = None  # finished units
    total: int | None = None  # all units
    workers: tuple[str | int, ...] = ()  # ids of the workers that the step is about
    loses: bool = False  # whether such a step can lose keys
    lost: int | None = None  # keys; None: unknown
    predicted_peak: int | None = None  # greatest rise of one worker's memory, in bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """Memory of a worker in the first and in the last snapshot of a call.

    All values are in bytes. None: the worker was not in that snapshot.
    """

    worker: str | int
    data_before: int | None = None  # managed memory
    data_after: int | None = None
    process_before: int | None = None
    process_after: int | None = None
    limit: int  # memory limit; 0: none is set
    peak: int | None = None  # predicted, of its process in the fit; None: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Keys that were lost with a worker that ended meanwhile, apart from steps.

    ``coming`` keys are not lost: Dask had not computed them again yet.
    """

    worker: str | int
    keys: int
    coming: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Findings, steps, layouts and workers of one call: see ``Report``."""

    status: str
    seconds: float
    call: str = ""
    workload: str = ""
    found: tuple[Finding, ...] = ()
    left: tuple[Finding, ...] = ()
    before: tuple[LayoutSummary, ...] = ()
    after: tuple[LayoutSummary, ...] = ()
    steps: tuple[Done, ...] = ()
    needs: tuple[str, ...] = ()
    error: str = ""
    notes: tuple[str, ...] = ()
    workers: tuple[WorkerState, ...] = ()
    lost: tuple[Loss, ...] | None = ()
    #: threads of each training task, if one worker of each host trains for its host
    host_threads: int | None = None

    @property
    def predicted_peak(self) -> int | None:
        """The greatest predicted peak of a worker's process in the fit, in bytes."""
        return max((w.peak for w in self.workers if w.peak is not None), default=None)

    @property
    def changed(self) -> bool:
        """Whether a step was carried out, at least in part."""
        return any(step.status in EXECUTED for step in self.steps)


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
    lost = outcome.lost or 0 if outcome.status == "skipped" else outcome.lost
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


def summary_line(
    steps: Sequence[Done], error: str = "", lost: Sequence[Loss] | None = ()
) -> str:
    """Summarize results: finished and unfinished units, reasons, and lost keys.

    Reasons that ``error`` contains are not repeated. ``lost`` are losses apart from
    steps; None: they are unknown.
    """
    groups = _groups(steps)
    texts = [x for some in groups for x in (_finished(some), *_unfinished(some, error))]
    texts += _lost([step for some in groups for step in some], lost)
    return "; ".join(texts)


def _groups(steps: Sequence[Done]) -> list[list[Done]]:
    """Return the steps that have a result, by their unit."""
    groups: dict[tuple[str, str], list[Done]] = {}
    for step in steps:
        if step.status in ("done", *UNFINISHED):
            groups.setdefault((step.verb, step.noun), []).append(step)
    return list(groups.values())


def _finished(steps: Sequence[Done]) -> str:
    verb, noun = steps[0].verb, steps[0].noun
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


def _unfinished(steps: Sequence[Done], error: str) -> Iterator[str]:
    reasons: dict[tuple[str, str], list[Done]] = {}
    for step in steps:
        if step.status in UNFINISHED:
            reasons.setdefault((step.status, step.reason), []).append(step)
    for (status, reason), some in list(reasons.items())[:MAX_REASONS]:
        names = names_text([w for s in some for w in s.workers])
        text = " ".join(filter(None, [status, names]))
        known = not reason or reason in error
        yield text if known else f"{text}: {printable(reason, longest=MAX_REASON)}"
    if len(reasons) > MAX_REASONS:
        yield f"{len(reasons) - MAX_REASONS} more reasons"
