"""One scheduled restart as plain data: its state, its obstacles and its condition.

``schedule_runner.py`` reads the state of the cluster and carries the restarts out. The
scheduler evaluates conditions about memory and past runs itself. For a check it uses
the last findings of a client, because checks run only where clustertune is installed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clustertune.core.rules import ENOUGH, MemoryAfterRun, alike, step
from clustertune.remote.scheduler.state import id_of, training_workers

MAX_FAILURES = 3  # failures in a row after which a schedule ends
MAX_RESULTS = 20  # of one schedule
ENDED = frozenset(("done", "failed", "expired", "cancelled"))
#: attributes that a schedule hands over to the next plugin; some are deques
STATE_FIELDS = (
    "name", "terms", "made", "state", "waits", "cancelled", "tries", "idle_from",
    "again", "restarted", "left",
)  # fmt: skip
STATE_LISTS = ("instants", "results")
RANKS = {"info": 1, "warning": 2, "critical": 3}  # unknown severities rank lowest
CRITICAL = RANKS["critical"]  # memory at the pause threshold
MAX_NAMES = 3  # of workers in a text


@dataclass(frozen=True)
class Moment:
    """The state of the cluster at one moment. Times are by the scheduler's clock."""

    now: float
    tasks: int  # that run
    queued: int
    idle_since: float  # begin of the time without tasks, holds and plans
    holder: Mapping[str, Any] | None  # of a hold or the lease: client, label, since


class Schedule:
    """A restart of some workers in the next gap, or in the gap after each instant.

    A gap is a time without tasks, holds and plans.

    Parameters
    ----------
    name
        A short name that a user types to cancel it.
    terms
        As ``operations.scheduling.request`` ships them: ``owner``, ``reason``,
        ``idle_for`` (seconds), ``instants`` (epoch seconds, in order; empty: as soon as
        possible),
        ``expires`` (epoch seconds), ``condition`` or None, ``workers`` (ids; None: all
        current workers), ``collections`` (packed keys of row-aligned ones),
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
        self.idle_from = now  # earlier idle time does not count
        self.again = now  # not evaluated again before that time
        self.restarted = 0.0  # time of its last complete restart
        self.left: list[Any] | None = None  # remaining workers of the current restart
        self.results: deque[dict[str, Any]] = deque(maxlen=MAX_RESULTS)

    def to_state(self) -> dict[str, Any]:
        """Return plain data for :meth:`from_state` in the next plugin."""
        kept = {name: getattr(self, name) for name in STATE_FIELDS}
        return kept | {name: list(getattr(self, name)) for name in STATE_LISTS}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Schedule:
        """Return the schedule with this state."""
        schedule = cls(state["name"], state["terms"], state["made"])
        for name in STATE_FIELDS:
            setattr(schedule, name, state[name])
        schedule.instants = deque(state["instants"])
        schedule.results.extend(state["results"])
        return schedule

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    def obstacle(self, moment: Moment) -> dict[str, Any] | None:
        """Return why the restart must wait now, or None."""
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
        """Continue to wait; evaluate the reason again at a given time."""
        self.state, self.waits = "waiting", reason
        self.again = max(self.again, again)

    def wait_for_next_gap(self, now: float) -> None:
        """Ignore the idle time so far."""
        self.idle_from = now
        self.wait({"for": "idle", "seconds": 0.0})

    def end(self, state: str) -> None:
        self.state, self.waits = state, {}

    def end_instant(self, now: float) -> None:
        """End the current instant; if it was the last one, end the schedule."""
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
        """Count a failure; after several in a row the schedule ends."""
        self.tries += 1
        if self.tries >= MAX_FAILURES:
            self.end("failed")
        else:
            self.wait_for_next_gap(now)

    def is_met(
        self,
        scheduler: Any,
        runs: Iterable[Mapping[str, Any]],
        findings: Mapping[str, Any] | None,
    ) -> tuple[bool, str]:
        """Whether the condition is met, and the reason.

        ``runs`` are the last ones, oldest first. ``findings`` are the last ones:
        ``time``, and ``found``, each with check, severity and message.
        """
        condition = self.terms["condition"]
        if condition is None:
            return True, ""
        workers = {id_of(ws): ws for ws in training_workers(scheduler)}
        if condition["kind"] == "leak":
            return _has_leak(condition["least"], workers, list(runs))
        if condition["kind"] == "memory":
            return _has_full_memory(condition["severity"], workers, self.lines)
        return _has_finding(condition, findings, self.restarted)

    def describe(self, now: float) -> dict[str, Any]:
        """Return plain values; ``now`` makes ages independent of the reader's clock."""
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


def _has_leak(
    least: float, workers: Mapping[Any, Any], runs: Sequence[Mapping[str, Any]]
) -> tuple[bool, str]:
    """Apply the rule of the check ``memory_growth``."""
    groups = alike([run.get("ended_by", "gap") for run in runs])
    if not groups:
        return False, (
            f"{len(runs)} runs were seen, {ENOUGH} that ended alike are needed to see "
            "a leak"
        )
    growing: dict[Any, None] = {}
    for group in groups:
        left: dict[Any, list[MemoryAfterRun]] = {}
        for n, run in enumerate(runs[i] for i in group):
            managed = dict(run.get("managed", ()))
            for worker, nbytes in run["floors"]:
                found = MemoryAfterRun(n, nbytes, managed.get(worker, 0))
                left.setdefault(worker, []).append(found)
        for worker, ws in workers.items():
            limit = ws.memory_limit or 0
            if limit and step(left.get(worker, ()), least * limit) is not None:
                growing[worker] = None
    if not growing:
        return False, f"no worker's memory grows over {len(runs)} runs"
    return True, f"memory of {_names(list(growing))} grows from run to run"


def _has_full_memory(
    severity: int,
    workers: Mapping[Any, Any],
    lines: Mapping[Any, Mapping[str, float]],
) -> tuple[bool, str]:
    """Whether unmanaged memory fills a worker; a restart would keep its data."""
    name = "pause" if severity >= CRITICAL else "spill"
    # a worker that joined later is assumed to be like the others
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
        return True, f"{_names(full)} at the {name} threshold, with mostly no data"
    if data:
        return False, (
            f"{_names(data)} at the {name} threshold, but most of it is data, which a "
            "restart would bring back"
        )
    return False, f"no worker is at its {name} threshold"


def _has_finding(
    condition: Mapping[str, Any], findings: Mapping[str, Any] | None, since: float
) -> tuple[bool, str]:
    check = condition["check"]
    if findings is None:
        return False, "no check has run yet: run clustertune check"
    if findings["time"] < since:
        return False, (
            f"{check} was last checked before the last restart: run clustertune check "
            "again"
        )
    for found in findings["found"]:
        rank = RANKS.get(found["severity"], 0)
        if found["check"] == check and rank >= condition["severity"]:
            return True, str(found["message"])
    return False, f"{condition['text']} was not found"


def _names(workers: Sequence[Any]) -> str:
    more = f" and {len(workers) - MAX_NAMES} more" if len(workers) > MAX_NAMES else ""
    return f"worker {', '.join(map(str, workers[:MAX_NAMES]))}{more}"
