"""What steps count, and what became of them in one line.

A headline is made of outcomes: of what was measured, never of the text of a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clustertune.core.model import (
    Bounds,
    Drop,
    Load,
    Moves,
    Rechunk,
    Release,
    Restart,
    Shuffle,
    Step,
    Trim,
)
from clustertune.core.wording import names_text, plural, printable

UNFINISHED = ("skipped", "partly", "failed")
NOT_NEEDED = ("not needed",)
MOST_REASONS = 3
VERBS = {
    "rechunk": "rechunked",
    "replicate": "copied to all workers",
    "restart": "restarted",
    "retire": "removed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """One step: what was predicted, what it took, what became of it."""

    action: str
    summary: str
    gain: str
    status: str  # planned, done, partly, skipped, not needed, failed, refused
    predicted_bytes: int | None
    predicted_seconds: float | None
    at_risk: str
    nbytes: int | None = None
    seconds: float | None = None
    reason: str = ""
    verb: str = ""  # what is counted: "restarted", "worker"; empty in older reports
    noun: str = ""
    count: int | None = None  # how many of them were finished
    total: int | None = None  # of how many
    workers: tuple[str | int, ...] = ()  # that the step is about
    loses: bool = False  # whether such a step may lose keys
    lost: int | None = None  # keys; None: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """The unit of a step: ``restarted``, ``worker``, 1 of them, named w0.

    Attributes
    ----------
    verb
        In the past tense.
    noun
        Singular.
    total
        How many there are to be done; None: not known beforehand.
    workers
        Ids of the workers that the step is about.
    loses
        Whether data may be lost, so that lost keys are always stated.
    """

    verb: str
    noun: str
    total: int | None = None
    workers: tuple[str | int, ...] = ()
    loses: bool = False


def of(step: Step) -> Count:
    """What a step counts; steps of other packages count themselves."""
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
    Bounds: lambda *_: Count(verb="adjusted", noun="adaptive cluster", total=1),
}


def line(steps: Sequence[Done], error: str = "") -> str:
    """What became of steps: finished, not finished and why, and lost keys.

    Reasons that ``error`` states are not repeated.
    """
    groups: dict[tuple[str, str], list[Done]] = {}
    for step in steps:
        if step.status in ("done", *UNFINISHED):
            groups.setdefault((step.verb, step.noun), []).append(step)
    texts = [text for some in groups.values() for text in _texts(some, error)]
    return "; ".join([*texts, *_unfinished(steps, error, NOT_NEEDED)])


def _texts(steps: Sequence[Done], error: str) -> Iterator[str]:
    verb, noun = steps[0].verb or "carried out", steps[0].noun or "step"
    done = sum(_done(s) for s in steps)
    if any(s.total is None for s in steps):
        yield f"{verb} {plural(done, noun)}"
    else:
        total = sum(s.total or 0 for s in steps)
        yield f"{verb} {done:,} of {plural(total, noun)}"
    yield from _unfinished(steps, error)
    if any(s.loses for s in steps):
        lost = f"lost {plural(sum(s.lost or 0 for s in steps), 'key')}"
        unknown = [s for s in steps if s.lost is None]
        which = names_text([w for s in unknown for w in s.workers]) or "some steps"
        yield f"{lost}, unknown for {which}" if unknown else lost


def _done(step: Done) -> int:
    """How many a step has finished; one that counts nothing has done all or none."""
    if step.count is not None:
        return step.count
    return (step.total or 1) if step.status == "done" else 0


def _unfinished(
    steps: Sequence[Done], error: str, statuses: Collection[str] = UNFINISHED
) -> Iterator[str]:
    reasons: dict[tuple[str, str], list[Done]] = {}
    for step in steps:
        if step.status in statuses:
            reasons.setdefault((step.status, step.reason), []).append(step)
    for (status, reason), some in list(reasons.items())[:MOST_REASONS]:
        names = names_text([w for s in some for w in s.workers])
        what = " ".join(filter(None, [status, names]))
        known = not reason or reason in error
        yield what if known else f"{what}: {printable(reason, longest=200)}"
    if len(reasons) > MOST_REASONS:
        yield f"{len(reasons) - MOST_REASONS} more reasons"
