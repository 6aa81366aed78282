"""One scheduled restart: what it waits for, and what became of it. Plain data.

It says what is in the way at a moment that it is told of; what that moment is like is
seen, and what is to be done is done, in ``schedules.py``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TRIES = 3  # failures one after the other, after which it stops
MOST_RESULTS = 20  # of one schedule that are kept
ENDED = frozenset(("done", "failed", "expired", "cancelled"))
#: attributes that a schedule hands over to the next resident; the second are deques
KEPT = (
    "name", "terms", "made", "state", "waits", "cancelled", "tries", "idle_from",
    "again", "restarted", "left",
)  # fmt: skip
LISTS = ("instants", "results")


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
