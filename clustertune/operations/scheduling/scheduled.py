"""A scheduled restart as its caller sees it, and in words.

It is carried out by the scheduler (``remote/schedules.py``). What comes from there is
untrusted: what is shown of it cannot act on a terminal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from distributed import Client

from clustertune.core.wording import (
    bytes_text,
    names_text,
    plural,
    printable,
    seconds_text,
    workers_text,
)
from clustertune.errors import ConnectionLostError
from clustertune.monitor import monitor
from clustertune.operations.scheduling import instants

LOOK = 1.0  # seconds between two questions how one stands
ENDED = ("done", "failed", "expired", "cancelled")
KEPT = (
    "It is kept by the scheduler: this process may end. It is gone when the scheduler "
    "is started again."
)
DATA = (
    "Data in memory is kept, whoever's it is; but what is not published goes when the "
    "client that holds it leaves, as always in Dask."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What became of one gap.

    Attributes
    ----------
    time
        Epoch seconds at which it ended.
    outcome
        ``done``, ``interrupted`` (work came; the rest waits for the next gap),
        ``failed``, ``lost`` (keys were), ``not needed`` (the condition was not met at
        this instant), ``cancelled`` or ``expired``.
    restarted, left
        Ids of workers that were restarted, and that still are to be.
    keys, nbytes
        That were moved away and back.
    lost
        Keys, by the scheduler's own count.
    problem
        What went wrong, or came in between.
    """

    time: float
    outcome: str
    restarted: tuple[str | int, ...] = ()
    left: tuple[str | int, ...] = ()
    keys: int = 0
    nbytes: int = 0
    lost: int = 0
    problem: str = ""

    def __str__(self) -> str:
        text = f"{instants.text(self.time)}: {self.outcome}"
        if self.restarted:
            text += (
                f"; {workers_text(self.restarted)} restarted, "
                f"{plural(self.keys, 'key')} ({bytes_text(self.nbytes)} moved) kept, "
                f"{self.lost:,} lost"
            )
        text += f"; {workers_text(self.left)} still to come" if self.left else ""
        text += f"; {printable(self.problem, longest=300)}" if self.problem else ""
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A restart that waits for a gap between runs, as it was when it was asked for.

    Attributes
    ----------
    id
        Short; empty for a dry run.
    state
        ``planned`` (a dry run), ``waiting``, ``running``, ``done``, ``failed`` (three
        times, or keys were lost), ``expired`` or ``cancelled``.
    waits
        What it waits for: ``for`` is ``instant``, ``held``, ``busy``, ``idle``,
        ``condition`` or ``room``, and what belongs to that.
    idle_for
        Seconds without a task and without a hold that make a gap.
    instants
        Epoch seconds that are still to come; after each it waits for the next gap.
    expires, made
        Epoch seconds.
    condition
        What has to be found, or None.
    workers
        Ids of those that are to be restarted; None: all that are there then.
    left
        Ids of workers whose turn is to come; None: it has not begun.
    attempts
        What became of the gaps so far, oldest first.
    notes
        What is to be known of it now.
    """

    id: str
    state: str
    idle_for: float
    expires: float
    made: float = 0.0
    waits: Mapping[str, Any] = field(default_factory=dict)
    instants: tuple[float, ...] = ()
    condition: str | None = None
    workers: tuple[str | int, ...] | None = None
    reason: str | None = None
    owner: str = ""
    left: tuple[str | int, ...] | None = None
    attempts: tuple[Attempt, ...] = ()
    notes: tuple[str, ...] = ()
    client: Client | None = field(default=None, repr=False, compare=False)

    @property
    def ended(self) -> bool:
        """Whether nothing will come of it any more."""
        return self.state in ENDED

    def cancel(self) -> Any:
        """End it; a worker whose turn it is is finished with first.

        With an asynchronous client the call is awaited.

        Returns
        -------
        Schedule
            As it is then: ``cancelled``, or ``running`` until the worker is back.

        Raises
        ------
        LookupError
            There is no such schedule any more: the scheduler was started again, or
            many others have ended since.
        """
        if self.client is None:
            raise LookupError(
                "this schedule is a plan only: there is nothing to cancel"
            )
        return self.client.sync(cancel, self.client, self.id)

    def __str__(self) -> str:
        what = "all workers" if self.workers is None else workers_text(self.workers)
        name = f"{printable(self.id)}: " if self.id else ""
        lines = [f"{name}restart {what} {self._when()}"]
        if self.reason:
            lines.append(f"  reason: {printable(self.reason, longest=200)}")
        lines += [f"  {self.standing()}"]
        lines += [f"  {attempt}" for attempt in self.attempts]
        lines += [f"  {printable(note)}" for note in self.notes]
        return "\n".join(lines)

    def _when(self) -> str:
        text = f"once nothing has run for {seconds_text(self.idle_for)}"
        if self.instants:
            more = len(self.instants) - 1
            text += f" after {instants.text(self.instants[0])}"
            text += f" and {plural(more, 'later instant')}" if more else ""
        text += f", if {printable(self.condition)}" if self.condition else ""
        return f"{text}; until {instants.text(self.expires)}"

    def standing(self) -> str:
        """What it waits for, or how it ended, on one line."""
        if self.state == "running":
            return f"running: {workers_text(self.left or ())} still away or to come"
        if self.state != "waiting":
            return printable(self.state)
        return f"waiting: {printable(_waits_text(self.waits, self.idle_for))}"

    def plain(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        values = {name: getattr(self, name) for name in self.__slots__}
        del values["client"]
        shown = [
            {name: getattr(a, name) for name in a.__slots__} for a in self.attempts
        ]
        return values | {"attempts": shown, "waiting_for": self.standing()}


def _waits_text(waits: Mapping[str, Any], idle_for: float) -> str:
    kind = waits.get("for")
    if kind == "instant":
        return f"not before {instants.text(waits['until'])}"
    if kind == "held":
        whose = f" (client {waits['client']})" if waits["client"] else ""
        return f"held by {waits['label']}{whose} since {instants.text(waits['since'])}"
    if kind == "busy":
        queued = f", {waits['queued']:,} queued" if waits["queued"] else ""
        return f"not idle: {plural(waits['tasks'], 'task')} running{queued}"
    if kind == "idle":
        return f"idle for {seconds_text(waits['seconds'])} of {seconds_text(idle_for)}"
    return str(waits.get("text", ""))


def read(
    answer: Mapping[str, Any], client: Client, notes: tuple[str, ...] = ()
) -> Schedule:
    """What the resident tells of one."""
    return Schedule(
        id=answer["id"],
        state=answer["state"],
        idle_for=answer["idle_for"],
        expires=answer["expires"],
        made=answer["made"],
        waits=dict(answer["waits"]),
        instants=tuple(answer["instants"]),
        condition=answer["condition"],
        workers=None if answer["workers"] is None else tuple(answer["workers"]),
        left=None if answer["left"] is None else tuple(answer["left"]),
        reason=answer["reason"],
        owner=answer["owner"],
        attempts=tuple(_attempt(result) for result in answer["results"]),
        notes=notes,
        client=client,
    )


def _attempt(result: Mapping[str, Any]) -> Attempt:
    return Attempt(
        time=result["time"],
        outcome=result["outcome"],
        restarted=tuple(result["restarted"]),
        left=tuple(result["left"]),
        keys=result["keys"],
        nbytes=result["nbytes"],
        lost=result["lost"],
        problem=result["problem"],
    )


async def cancel(client: Client, name: str) -> Schedule:
    """End one by its id.

    Raises
    ------
    LookupError
        There is none; the text names those that there are.
    """
    await monitor.open_door(client, await monitor.identify(client))
    answer = await monitor.ask(client, "cancel_schedule", name=name)
    if answer is None:
        known = [s["id"] for s in await _answers(client) if s["state"] not in ENDED]
        there = f"waiting are {names_text(known, most=20)}" if known else "none waits"
        raise LookupError(f"there is no scheduled restart {name!r}; {there}")
    return read(answer, client)


async def listed(client: Client) -> tuple[Schedule, ...]:
    """Those that wait and the last that have ended, oldest first."""
    await monitor.open_door(client, await monitor.identify(client))
    return tuple(read(answer, client) for answer in await _answers(client))


async def follow(
    client: Client, schedule: Schedule, tell: Callable[[Schedule], None]
) -> Schedule:
    """Wait until it is over; ``tell`` is given it when it stands otherwise.

    Raises
    ------
    ConnectionLostError
        It is gone: the scheduler was started again, or does not answer.
    """
    said = _kind(schedule)
    while not schedule.ended:
        await asyncio.sleep(LOOK)
        try:
            answers = await _answers(client)
        except ConnectionLostError as error:
            raise ConnectionLostError(
                f"the scheduled restart {schedule.id} does not outlive its scheduler: "
                f"{error}"
            ) from error
        found = [a for a in answers if a["id"] == schedule.id]
        if not found:
            raise ConnectionLostError(
                f"the scheduled restart {schedule.id} is gone: the scheduler was "
                "started again"
            )
        schedule = read(found[0], client)
        if _kind(schedule) != said:
            said = _kind(schedule)
            tell(schedule)
    return schedule


def _kind(schedule: Schedule) -> tuple[object, ...]:
    """What is worth a new line: not each second that passes, nor each task."""
    waits = schedule.waits
    which = (waits.get(name) for name in ("for", "until", "label", "text"))
    return (schedule.state, schedule.left, *which)


async def _answers(client: Client) -> list[Mapping[str, Any]]:
    answer = await monitor.ask(client, "list_schedules")
    found: list[Mapping[str, Any]] = answer["schedules"]
    return found
