"""One scheduled restart: what it waits for, and what became of it. Plain data.

It says what is in the way at a moment that it is told of; what that moment is like is
seen, and what is to be done is done, in ``schedules.py``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clustertune.core.growth import ENOUGH, Left, alike, step
from clustertune.remote.scheduler.workers import is_parking, worker_id

TRIES = 3  # failures one after the other, after which it stops
MOST_RESULTS = 20  # of one schedule that are kept
ENDED = frozenset(("done", "failed", "expired", "cancelled"))
#: attributes that a schedule hands over to the next resident; the second are deques
KEPT = (
    "name", "terms", "made", "state", "waits", "cancelled", "tries", "idle_from",
    "again", "restarted", "left",
)  # fmt: skip
LISTS = ("instants", "results")
RANKS = {"info": 1, "warning": 2, "critical": 3}  # what is unknown is below all
CRITICAL = RANKS["critical"]  # of memory: at the line at which a worker pauses
MAX_NAMED = 3  # workers that are named


@dataclass(frozen=True)
class Moment:
    """What the cluster is doing. Times are epoch seconds of the scheduler's clock."""

    now: float
    tasks: int  # that are processed
    queued: int
    idle_since: float  # since when there was nothing to do, and no hold or plan
    holder: Mapping[str, Any] | None  # of a hold or the lease: client, label, since


class Schedule:
    """A restart of some workers in the next gap, or in the gap after each instant.

    Parameters
    ----------
    name
        A short name that is typed to cancel it.
    terms
        As ``timetable.scheduling`` ships them: ``owner``, ``reason``, ``idle_for``
        (seconds), ``instants`` (epoch seconds, in order; empty: as soon as may be),
        ``expires`` (epoch seconds), ``condition`` or None, ``workers`` (ids; None: all
        that are there then), ``collections`` (packed keys of row-aligned ones),
        ``lines`` (thresholds by id), ``nannies`` (to which code may be sent),
        ``parking`` (pickled code), ``wait`` and ``timeout`` (seconds, for one worker).
    now
        Epoch seconds.
    """

    def __init__(self, name: str, terms: Mapping[str, Any], now: float):
        self.name = name
        self.terms = terms
        self.made = now
        self.lines = {worker: dict(at) for worker, at in terms["lines"]}
        self.instants = deque(terms["instants"])
        self.state = "waiting"
        self.waits: dict[str, Any] = {"for": "idle", "seconds": 0.0}
        if self.instants:
            self.waits = {"for": "instant", "until": self.instants[0]}
        self.cancelled = False
        self.tries = 0
        self.idle_from = now  # what was before does not count
        self.again = now  # not looked at more closely before that
        self.restarted = 0.0  # when all its workers were restarted last
        self.left: list[Any] | None = None  # workers of a restart that has begun
        self.results: deque[dict[str, Any]] = deque(maxlen=MOST_RESULTS)

    def state_of(self) -> dict[str, Any]:
        """Plain data, for :meth:`restored` in the next resident."""
        kept = {name: getattr(self, name) for name in KEPT}
        return kept | {name: list(getattr(self, name)) for name in LISTS}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Schedule:
        """The schedule with this state."""
        schedule = cls(state["name"], state["terms"], state["made"])
        for name in KEPT:
            setattr(schedule, name, state[name])
        schedule.instants = deque(state["instants"])
        schedule.results.extend(state["results"])
        return schedule

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    def in_the_way(self, moment: Moment) -> dict[str, Any] | None:
        """Why it may not begin or go on at this moment; None: it may."""
        if self.left is None and self.instants and moment.now < self.instants[0]:
            return {"for": "instant", "until": self.instants[0]}
        if moment.holder is not None:
            return {"for": "held", **moment.holder}
        if moment.tasks or moment.queued:
            return {"for": "busy", "tasks": moment.tasks, "queued": moment.queued}
        idle = moment.now - max(moment.idle_since, self.idle_from)
        if idle < self.terms["idle_for"]:
            return {"for": "idle", "seconds": max(0.0, idle)}
        if moment.now < self.again:
            return self.waits
        return None

    def wait(self, reason: dict[str, Any], again: float = 0.0) -> None:
        """Wait on, for this reason; with a time before which it is not asked again."""
        self.state, self.waits = "waiting", reason
        self.again = max(self.again, again)

    def wait_for_the_next_gap(self, now: float) -> None:
        """What was idle so far does not count any more."""
        self.idle_from = now
        self.wait({"for": "idle", "seconds": 0.0})

    def end(self, state: str) -> None:
        self.state, self.waits = state, {}

    def over(self, now: float) -> None:
        """No more of this instant; and of the schedule, if that was the last one."""
        self.left = None
        self.tries = 0
        had = bool(self.terms["instants"])
        while self.instants and self.instants[0] <= now:
            self.instants.popleft()
        if self.instants:
            self.wait({"for": "instant", "until": self.instants[0]})
        elif had or self.restarted:
            self.end("done")

    def failed(self, now: float) -> None:
        """One more failure; after some it stops."""
        self.tries += 1
        if self.tries >= TRIES:
            self.end("failed")
        else:
            self.wait_for_the_next_gap(now)

    def describe(self, now: float) -> dict[str, Any]:
        """Plain values, for whoever asks; ``now`` so that ages need no common clock."""
        terms = self.terms
        return {
            "id": self.name,
            "now": now,
            "made": self.made,
            "owner": terms["owner"],
            "reason": terms["reason"],
            "state": self.state,
            "waits": self.waits,
            "cancelled": self.cancelled,
            "idle_for": terms["idle_for"],
            "instants": list(self.instants),
            "expires": terms["expires"],
            "condition": (terms["condition"] or {}).get("text"),
            "workers": terms["workers"],
            "left": self.left,
            "tries": self.tries,
            "results": list(self.results),
        }


def met(
    condition: Mapping[str, Any],
    scheduler: Any,
    runs: Iterable[Mapping[str, Any]],
    lines: Mapping[Any, Mapping[str, float]],
    findings: Mapping[str, Any] | None,
    since: float,
) -> tuple[bool, str]:
    """Whether it is, and what was seen.

    Parameters
    ----------
    condition
        ``kind``, and what belongs to it, as ``timetable.conditions`` ships it.
    scheduler
        Whose workers are looked at.
    runs
        The last ones, oldest first.
    lines
        By id of worker the fractions of its limit at which it spills and pauses.
    findings
        The last ones: ``time``, and ``found``, each with check, severity and message.
    since
        Epoch seconds: what was found before is no longer so, as all was restarted then.
    """
    workers = {
        worker_id(ws.address, ws.name, ws.nanny): ws
        for ws in scheduler.workers.values()
        if not is_parking(ws.name)
    }
    if condition["kind"] == "leak":
        return _leak(condition["least"], workers, list(runs))
    if condition["kind"] == "memory":
        return _memory(condition["severity"], workers, lines)
    return _found(condition, findings, since)


def _leak(
    least: float, workers: Mapping[Any, Any], runs: Sequence[Mapping[str, Any]]
) -> tuple[bool, str]:
    """The rule of the check ``memory_growth``."""
    groups = alike([run.get("ended_by", "gap") for run in runs])
    if not groups:
        return False, (
            f"{len(runs)} runs were seen, {ENOUGH} that ended alike are needed to see "
            "a leak"
        )
    growing: dict[Any, None] = {}
    for group in groups:
        left: dict[Any, list[Left]] = {}
        for n, run in enumerate(runs[i] for i in group):
            managed = dict(run.get("managed", ()))
            for worker, nbytes in run["floors"]:
                found = Left(n, nbytes, managed.get(worker, 0))
                left.setdefault(worker, []).append(found)
        for worker, ws in workers.items():
            limit = ws.memory_limit or 0
            if limit and step(left.get(worker, ()), least * limit) is not None:
                growing[worker] = None
    if not growing:
        return False, f"no worker's memory grows over {len(runs)} runs"
    return True, f"memory of {_named(list(growing))} grows from run to run"


def _memory(
    severity: int,
    workers: Mapping[Any, Any],
    lines: Mapping[Any, Mapping[str, float]],
) -> tuple[bool, str]:
    """A restart brings data back: what counts is memory that is mostly no data."""
    name = "pause" if severity >= CRITICAL else "spill"
    # one that came later is taken for one like the others
    lowest = min((at[name] for at in lines.values() if name in at), default=1.0)
    full: list[Any] = []
    data: list[Any] = []
    for worker, ws in workers.items():
        line = lines[worker].get(name) if worker in lines else lowest
        memory = ws.memory
        at = line is not None and memory.process >= line * (
            ws.memory_limit or float("inf")
        )
        if at or ws.status.name == "paused":
            mostly = memory.unmanaged > memory.managed
            (full if mostly else data).append(worker)
    if full:
        return True, f"{_named(full)} at the {name} threshold, with mostly no data"
    if data:
        return False, (
            f"{_named(data)} at the {name} threshold, but most of it is data, which a "
            "restart would bring back"
        )
    return False, f"no worker is at its {name} threshold"


def _found(
    condition: Mapping[str, Any], findings: Mapping[str, Any] | None, since: float
) -> tuple[bool, str]:
    check = condition["check"]
    if findings is None:
        return False, "nothing was looked for yet: clustertune check does"
    if findings["time"] < since:
        return False, (
            f"{check} was looked for before the last restart; clustertune check looks "
            "again"
        )
    for found in findings["found"]:
        rank = RANKS.get(found["severity"], 0)
        if found["check"] == check and rank >= condition["severity"]:
            return True, str(found["message"])
    return False, f"{condition['text']} was not found"


def _named(workers: Sequence[Any]) -> str:
    more = f" and {len(workers) - MAX_NAMED} more" if len(workers) > MAX_NAMED else ""
    return f"worker {', '.join(map(str, workers[:MAX_NAMED]))}{more}"
