"""Scheduled restarts in the client: their state, listing, cancellation, progress.

The scheduler carries them out (``remote/scheduler/schedule_runner.py``). Its answers
are untrusted, so their text is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from distributed import Client

from clustertune.core import decoding
from clustertune.core.wording import (
    names_text,
    plural,
    printable,
    seconds_text,
    time_text,
    workers_text,
)
from clustertune.monitor import monitor
from clustertune.monitor.connection import sync

ENDED = ("done", "failed", "expired", "cancelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A restart that waits for a gap between runs, in its state when it was read.

    Attributes
    ----------
    id
        Short; empty for a dry run.
    state
        ``planned`` (a dry run), ``waiting``, ``running``, ``done``, ``failed`` (three
        times, or keys were lost), ``expired`` or ``cancelled``. ``refused``: the
        scheduler's configuration has it, and it could not be scheduled yet.
    waits
        Why it waits, or why it was refused.
    idle_for
        Seconds without a task and without a hold that make a gap.
    instants
        Future times in epoch seconds; after each one it waits for the next gap.
    expires, made
        Epoch seconds.
    if_needed
        Whether only workers are restarted that need it then.
    workers
        Ids of the workers to restart. None: all workers at that time.
    left
        Ids of workers that are not restarted yet. None: it has not begun.
    last
        The result of the last gap: restarted workers, moved and lost keys, problems.
    """

    id: str
    state: str
    idle_for: float
    expires: float
    made: float = 0.0
    waits: str = ""
    instants: tuple[float, ...] = field(default=(), repr=False)  # may be thousands
    if_needed: bool = False
    workers: tuple[str | int, ...] | None = None
    reason: str | None = None
    owner: str = ""
    left: tuple[str | int, ...] | None = None
    last: str = ""
    client: Client | None = field(default=None, repr=False, compare=False)

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    def cancel(self) -> Any:
        """Cancel it. A worker that is restarting comes back first.

        With an asynchronous client the call is awaited.

        Returns
        -------
        Schedule
            Its new state: ``cancelled``, or ``running`` until the worker is back.

        Raises
        ------
        LookupError
            The scheduler does not have it: it is a plan, the scheduler restarted, or
            many other restarts have ended since.
        """
        if self.client is None:
            raise LookupError(
                "this schedule is a plan only: there is nothing to cancel"
            )
        return sync(self.client, cancel, self.client, self.id)

    def __str__(self) -> str:
        what = "all workers" if self.workers is None else workers_text(self.workers)
        name = f"{printable(self.id)}: " if self.id else ""
        lines = [f"{name}restart {what} {self._when()}"]
        if self.reason:
            lines.append(f"  reason: {printable(self.reason, longest=200)}")
        lines += [f"  {self.standing()}"]
        if self.last:
            lines.append(f"  last: {printable(self.last, longest=1000)}")
        return "\n".join(lines)

    def _when(self) -> str:
        text = f"once nothing has run for {seconds_text(self.idle_for)}"
        if self.instants:
            more = len(self.instants) - 1
            text += f" after {time_text(self.instants[0])}"
            text += f" and {plural(more, 'later time')}" if more else ""
        text += ", if needed" if self.if_needed else ""
        return f"{text}; until {time_text(self.expires)}"

    def standing(self) -> str:
        """Describe its state in one line."""
        if self.state == "running":
            return f"running: {workers_text(self.left or ())} not restarted yet"
        if self.state not in ("waiting", "refused"):
            return printable(self.state)
        return f"{self.state}: {printable(self.waits, longest=500)}"

    def plain(self) -> dict[str, Any]:
        values = asdict(replace(self, client=None))
        del values["client"]
        return values


# --- answers of the scheduler ---------------------------------------------------------


def read(answer: Mapping[str, Any], client: Client | None) -> Schedule:
    """Convert an answer of the scheduler plugin; a plan has no client."""
    return replace(decoding.convert(answer, Schedule), client=client)


async def _ask(client: Client, **request: Any) -> Mapping[str, Any]:
    await monitor.install_plugin(client, await monitor.identify(client))
    found: Mapping[str, Any] = await monitor.ask(client, "schedules", **request)
    return found


async def cancel(client: Client, name: str) -> Schedule:
    """Cancel a scheduled restart by id; raise LookupError if there is none."""
    found = await _ask(client, cancel=name)
    answer = found["one"]
    if answer is None:
        known = [s["id"] for s in found["all"] if s["state"] not in ENDED]
        there = f"waiting are {names_text(known, most=20)}" if known else "none waits"
        raise LookupError(f"there is no scheduled restart {name!r}; {there}")
    return read(answer, client)


async def listed(client: Client) -> tuple[Schedule, ...]:
    """List waiting restarts and the last ended ones, oldest first."""
    found = await _ask(client)
    return tuple(read(answer, client) for answer in found["all"])
