"""One scheduled restart as plain data: its state, and why it waits.

``schedule_runner.py`` reads the state of the cluster and carries the restarts out.
"""

from __future__ import annotations

from asyncio import Event
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clustertune.core.wording import (
    bytes_text,
    plural,
    seconds_text,
    utc_text,
    workers_text,
)

ENDED = frozenset(("done", "failed", "expired", "cancelled"))


@dataclass(frozen=True)
class Moment:
    """The state of the cluster at one moment. Times are by the scheduler's clocks."""

    now: float  # epoch seconds
    clock: float  # monotonic, because the wall clock may be set
    busy: str  # the tasks, hold or lease that prevent a restart; "": none
    idle_since: float  # monotonic begin of the time without tasks, holds and plans


def busy_text(tasks: int, queued: int, holder: Mapping[str, Any] | None) -> str:
    """Describe running and queued tasks, or the holder of a hold or lease; "": none."""
    if holder is not None:
        return f"held by {holder['label']} since {utc_text(holder['since'])}"
    if not (tasks or queued):
        return ""
    more = f", {queued:,} queued" if queued else ""
    return f"not idle: {plural(tasks, 'task')} running{more}"


class Schedule:
    """A restart of some workers in the next gap, or in the gap after each instant.

    A gap is a time without tasks, holds and plans.

    Parameters
    ----------
    name
        A short name that a user types to cancel it.
    terms
        As ``operations.schedules`` sends them: ``owner``, ``reason``,
        ``idle_for`` (seconds), ``instants`` (epoch seconds, in order; empty: as soon as
        possible), ``expires`` (epoch seconds), ``if_needed`` (whether to restart only
        workers that need it), ``fresh`` (bytes of a process without keys),
        ``workers`` (ids; None: all current workers), ``collections`` (packed keys of
        row-aligned ones), ``thresholds`` (pairs of an id and the thresholds of its
        process by name, as fractions of the limit), ``parking`` (pickled code for
        nannies) and ``timeout`` (seconds, for one worker).
    now
        Epoch seconds.
    clock
        The same moment in monotonic seconds.
    """

    def __init__(self, name: str, terms: Mapping[str, Any], now: float, clock: float):
        self.name = name
        self.terms = terms
        self.made = now
        self.instants = deque(terms["instants"])  # future ones
        self.is_due = not self.instants  # whether it waits for a gap
        self.state = "waiting"
        self.failed_at = 0.0  # time of the last failure
        self.is_over = Event()  # set when it has ended
        self.waits = self._for_gap(0.0) if self.is_due else self._for_instant()
        self.cancelled = False
        self.idle_from = clock  # monotonic; earlier idle time does not count
        self.again = clock  # monotonic; not evaluated again before that time
        self.left: list[Any] | None = None  # remaining workers of the current restart
        self.last = ""  # the result of the last gap

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    def obstacle(self, moment: Moment) -> str:
        """Return why the restart must wait now, or ""."""
        if self._reach(moment.now):
            # all workers are due again, also if the last restart has not ended
            self.is_due, self.left = True, None
        if not self.is_due:
            return self._for_instant()
        if moment.busy:
            return moment.busy
        idle = moment.clock - max(moment.idle_since, self.idle_from)
        if idle < self.terms["idle_for"]:
            return self._for_gap(max(0.0, idle))
        return self.waits if moment.clock < self.again else ""

    def _for_instant(self) -> str:
        return f"not before {utc_text(self.instants[0])}"

    def _for_gap(self, idle: float) -> str:
        whole = seconds_text(self.terms["idle_for"])
        return f"idle for {seconds_text(idle)} of {whole}"

    def _reach(self, now: float) -> bool:
        """Remove the instants that have come; return whether there were any."""
        before = len(self.instants)
        while self.instants and self.instants[0] <= now:
            self.instants.popleft()
        return len(self.instants) < before

    def wait(self, reason: str, again: float = 0.0) -> None:
        """Continue to wait; evaluate the reason again at a monotonic time."""
        self.state, self.waits = "waiting", reason
        self.again = max(self.again, again)

    def end(self, state: str) -> None:
        self.state, self.waits = state, ""
        self.is_over.set()

    def must_end(self, now: float) -> str:
        """Return the state in which it has to end now, or ""."""
        if self.cancelled:
            return "cancelled"
        return "expired" if now >= self.terms["expires"] else ""

    def settle(self, outcome: str, now: float, clock: float) -> None:
        """Change the state after an attempt."""
        if outcome not in ("done", "interrupted", "cancelled", "expired"):
            self.failed_at = now
        if outcome == "interrupted":
            self.idle_from = clock  # the next gap begins now
            self.wait(self._for_gap(0.0))
        elif outcome in ("done", "failed"):
            self._reach(now)  # one gap is enough for instants that came meanwhile
            self.is_due, self.left = False, None
            if self.instants:
                self.wait(self._for_instant())
            else:
                self.end(outcome)
        else:  # keys were lost, or it could not be added
            self.end(outcome if outcome in ENDED else "failed")

    def describe(self, now: float) -> dict[str, Any]:
        """Return plain values; ``now`` makes ages independent of the reader's clock."""
        given = ("owner", "reason", "idle_for", "expires", "if_needed", "workers")
        return {name: self.terms[name] for name in given} | {
            "id": self.name,
            "now": now,
            "made": self.made,
            "state": self.state,
            "waits": self.waits,
            "is_due": self.is_due,
            "instants": list(self.instants),
            "left": self.left,
            "last": self.last,
        }


def result_text(result: Mapping[str, Any]) -> str:
    """Describe the result of one gap in a line."""
    text: str = result["outcome"]
    if result["restarted"]:
        lost = "an unknown number" if result["lost"] is None else f"{result['lost']:,}"
        text += (
            f"; {workers_text(result['restarted'])} restarted, "
            f"{plural(result['keys'], 'key')} ({bytes_text(result['nbytes'])} moved) "
            f"kept, {lost} lost"
        )
    left, problem = result["left"], result["problem"]
    text += f"; {workers_text(left)} not restarted" if left else ""
    return text + (f"; {problem}" if problem else "")
