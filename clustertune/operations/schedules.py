"""``schedule_restart``: restart workers in the next gap between runs.

The client checks the request: it computes cron times, and refuses restarts that can
never happen. Then the scheduler waits
(``remote/scheduler/schedule_runner.py``). All times follow the scheduler's clock. Its
answers are untrusted, so their text is escaped.

The client sends cron times as numbers, so the scheduler needs neither cronsim nor the
client's time zone. Daylight-saving changes follow Debian's cron. A time in the skipped
hour is due at its end, and a time in the repeated hour is due once. If the minute or
the hour begins with ``*``, times follow the elapsed time.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, tzinfo
from itertools import islice, takewhile
from pathlib import Path
from time import time
from typing import Any
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from distributed import Client

from clustertune.actions import restart as restarting
from clustertune.actions.cluster.live import (
    RESTARTABLE,
    LiveCluster,
    LookOptions,
    ids_of,
)
from clustertune.collections import inputs
from clustertune.core import arguments, decoding
from clustertune.core.model import Goal, Unknown, View, WorkerSnapshot
from clustertune.core.rules import NO_NANNY
from clustertune.core.wording import (
    plural,
    printable,
    seconds_text,
    time_text,
    workers_text,
)
from clustertune.errors import RefusedError, TimedOutError
from clustertune.integrations import libraries
from clustertune.monitor import inquiry, monitor
from clustertune.monitor.connection import sync
from clustertune.operations.call import check_client
from clustertune.operations.journal import change_reason
from clustertune.remote import keys, ship
from clustertune.remote.ending import within
from clustertune.remote.scheduler.schedule import ENDED
from clustertune.remote.scheduler.schedule import Schedule as Waiting
from clustertune.remote.worker import park

MAX_EXPIRES = 366 * 86400.0  # seconds
TIMEOUT = 60.0  # seconds to schedule a restart
IDLE_FOR, EXPIRES = "30s", "12h"
MAX_TIMES = 10_000  # every minute of a week
LOCALTIME = Path("/etc/localtime")
EXAMPLE = '"0 3 * * *" (at 03:00 each day), "30 22 * * 1-5" or "*/15 * * * *"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A restart that waits for a gap between runs, in its state when it was read.

    Attributes
    ----------
    id
        Short; empty for a dry run.
    state
        ``planned`` (a dry run), ``waiting``, ``running``, ``done``, ``failed``,
        ``expired`` or ``cancelled``. A schedule of the scheduler's configuration is
        also ``failed`` while it cannot be scheduled.
    waits
        Why it waits.
    idle_for
        Seconds without a task and without a hold that make a gap.
    is_due
        Whether it restarts in the next gap, and not only after the next time.
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
    is_due: bool = False
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
            many other restarts have ended since. Or only the scheduler's configuration
            has it, because it could not be added.
        TimedOutError
            The scheduler did not answer within a minute.
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
        state = self.state
        if state == "running":
            state += f": {workers_text(self.left or ())} not restarted yet"
        elif state == "waiting":
            state += f": {self.waits}"
        lines.append(f"  {printable(state, longest=500)}")
        if self.last:
            lines.append(f"  last: {printable(self.last, longest=1000)}")
        return "\n".join(lines)

    def _when(self) -> str:
        text = f"once nothing has run for {seconds_text(self.idle_for)}"
        if self.instants:
            more = len(self.instants) - 1
            text += ", now and" if self.is_due else ""
            text += f" after {time_text(self.instants[0])}"
            text += f" and {plural(more, 'later time')}" if more else ""
        text += ", if needed" if self.if_needed else ""
        return f"{text}; until {time_text(self.expires)}"

    def plain(self) -> dict[str, Any]:
        values = asdict(replace(self, client=None))
        del values["client"]
        return values


# --- answers of the scheduler ---------------------------------------------------------


def read(answer: Mapping[str, Any], client: Client | None) -> Schedule:
    """Convert an answer of the scheduler plugin; a plan has no client."""
    return replace(decoding.convert(answer, Schedule), client=client)


async def cancel(client: Client, name: str) -> Schedule:
    """Cancel a scheduled restart by id; raise LookupError if there is none."""
    answer = (await inquiry.request(client, "schedules", cancel=name))["one"]
    if answer is None:
        raise LookupError(
            f"there is no scheduled restart {name!r} to cancel; the list of scheduled "
            "restarts has the ids. Remove one that could not be added from "
            "clustertune.schedules in the scheduler's configuration"
        )
    return read(answer, client)


async def listed(client: Client) -> tuple[Schedule, ...]:
    """List waiting restarts and the last ended ones, oldest first."""
    found = await inquiry.request(client, "schedules")
    return tuple(read(answer, client) for answer in found["all"])


# --- requests ------------------------------------------------------------------------


def schedule_restart(
    client: Client,
    *collections: Any,
    idle_for: str | float = IDLE_FOR,
    cron: str | None = None,
    tz: str | None = None,
    if_needed: bool = False,
    expires: str | float = EXPIRES,
    workers: Sequence[str | int] | None = None,
    dry_run: bool = False,
) -> Schedule:
    """Restart workers in the next gap between runs, without losing data.

    The scheduler waits until no task has run or been queued for a while and no client
    holds the cluster. Then it does what :func:`clustertune.restart_workers` does. This
    process may end meanwhile; unpublished data is freed when its client closes. The
    restart is lost if the scheduler itself restarts. If a fit begins while a worker is
    away, the fit waits for this worker, and the other workers wait for the next gap.
    Lists and Dask's event log have the reason that the setting ``clustertune.reason``
    has now.

    Parameters
    ----------
    client
        A connected client, synchronous or asynchronous (then the call is awaited).
    *collections
        Row-aligned collections whose partitions must stay together. Data of all clients
        is kept and brought back, whether it is given here or not.
    idle_for
        Seconds, or a duration, without any task that make a gap.
    cron
        Earliest times, as five cron fields: ``"0 3 * * *"``. The restart runs once in
        the next gap after each time. None: once, in the next gap.
    tz
        Time zone of ``cron``: ``"Europe/Berlin"``. None: that of this machine. The
        clock is that of the scheduler.
    if_needed
        Restart only the workers that need it then: their process is above a threshold,
        or will be after the next run, and a new process is not. Without ``cron`` the
        scheduler waits until a worker needs it.
    expires
        Seconds, or a duration, after which the scheduler gives up. They begin now, or
        at the first time of ``cron``.
    workers
        Names or addresses. None: all workers at that time.
    dry_run
        Send nothing, and return the plan.

    Returns
    -------
    Schedule
        Printable; its ``cancel()`` cancels the restart, and
        :func:`clustertune.schedules` returns its present state.

    Raises
    ------
    TypeError, ValueError
        An argument is not valid. Nothing was scheduled.
    RefusedError
        A worker has no nanny to restart it, or its manager forbids restarts.
    ConnectionLostError, NoWorkersError, VersionMismatchError
        The cluster cannot do this; the message has the reason and a fix.
    TimedOutError
        The restart was not scheduled within a minute.

    Examples
    --------
    >>> clustertune.schedule_restart(                           # doctest: +SKIP
    ...     client, cron="0 3 * * *", expires="2 days")
    """
    given = inputs.of_rows(collections)
    check_client(client, given)
    options: dict[str, Any] = {
        "idle_for": idle_for,
        "cron": cron,
        "tz": tz,
        "if_needed": if_needed,
        "expires": expires,
        "workers": workers,
    }
    checked_terms(time(), **options)
    arguments.flag("dry_run", dry_run)
    found: Schedule = sync(
        client, send, client, given, options, change_reason(), dry_run=dry_run
    )
    return found


def schedules(client: Client) -> tuple[Schedule, ...]:
    """List waiting restarts and the last ended ones, oldest first.

    Parameters
    ----------
    client
        A connected client, synchronous or asynchronous (then the call is awaited).

    Returns
    -------
    tuple of Schedule
        Those of all clients since the scheduler started.

    Raises
    ------
    ConnectionLostError, VersionMismatchError
        The cluster does not answer; the message has the reason and a fix.
    TimedOutError
        The scheduler did not answer within a minute.

    Examples
    --------
    >>> print(*clustertune.schedules(client))                 # doctest: +SKIP
    """
    check_client(client)
    found: tuple[Schedule, ...] = sync(client, listed, client)
    return found


def checked_terms(
    now: float,
    *,
    idle_for: str | float = IDLE_FOR,
    cron: str | None = None,
    tz: str | None = None,
    if_needed: bool = False,
    expires: str | float = EXPIRES,
    workers: Sequence[str | int] | None = None,
) -> dict[str, Any]:
    """Return the part of a request that needs no facts of the cluster.

    The arguments are those of :func:`schedule_restart`, and ``now`` is in epoch
    seconds. Raise TypeError or ValueError for a wrong one.
    """
    if cron is None and tz is not None:
        raise TypeError("tz is the time zone of cron: give cron, too")
    lifetime = arguments.duration("expires", expires)
    if lifetime > MAX_EXPIRES:
        raise ValueError(f"expires={expires!r} must be at most a year")
    instants: tuple[float, ...] = ()
    if cron is not None:
        instants = cron_times(cron, time_zone(tz), now, lifetime)
    return {
        "idle_for": arguments.duration("idle_for", idle_for),
        "instants": list(instants),
        "expires": (instants[0] if instants else now) + lifetime,
        "if_needed": arguments.flag("if_needed", if_needed),
        "workers": arguments.names("workers", workers),
    }


async def send(
    client: Client,
    given: inputs.Inputs,
    options: Mapping[str, Any],
    reason: str | None,
    *,
    dry_run: bool = False,
) -> Schedule:
    """Send a request to the scheduler; a dry run returns the plan only."""
    work = _send(client, given, options, reason, dry_run=dry_run)
    try:
        return await within(work, TIMEOUT)
    except asyncio.TimeoutError:
        raise TimedOutError(
            f"the restart was not scheduled within {seconds_text(TIMEOUT)}; see what "
            "blocks the scheduler"
        ) from None


async def _send(
    client: Client,
    given: inputs.Inputs,
    options: Mapping[str, Any],
    reason: str | None,
    *,
    dry_run: bool,
) -> Schedule:
    cluster = LiveCluster(
        client,
        given,
        Goal(workload=libraries.choose(None)),
        lambda: TIMEOUT,
        options=LookOptions(least_memory=True, task_seconds=0.0),
    )
    await cluster.open(None, needs=RESTARTABLE)
    view = await cluster.look(lambda *_: None)
    terms = checked_terms(view.now.time, **options)
    if terms["workers"] is not None:
        terms["workers"] = sorted(ids_of(terms["workers"], view), key=str)
    _refuse_impossible(view, terms["workers"])
    layouts = (m.keys for x in view.layouts for m in x.collections if m.loaded)
    terms |= {
        "owner": client.id,
        "reason": reason,
        "fresh": min((x for w in view.now.workers if (x := w.least_memory)), default=0),
        "collections": [keys.pack(names) for names in layouts],
        "thresholds": _thresholds(view.now.workers),
        "parking": ship.pickled(park.act),
        "timeout": restarting.TIMEOUT,
    }
    if dry_run:
        plan = Waiting("", terms, view.now.time, 0.0).describe(view.now.time)
        return read(plan | {"state": "planned", "waits": ""}, None)
    answer = await monitor.ask(client, "schedules", add=terms)
    return read(answer["one"], client)


def _thresholds(
    workers: Iterable[WorkerSnapshot],
) -> list[tuple[str | int, dict[str, float]]]:
    """Return worker ids with the known, enabled thresholds.

    They are pairs, because ids may be numbers, and msgpack's maps need text.
    """
    found = []
    for worker in workers:
        known = worker.thresholds
        if not (worker.parking or isinstance(known, Unknown)):
            both = {"pause": known.pause, "spill": known.spill}
            enabled = {k: v for k, v in both.items() if v is not None}
            found.append((worker.id, enabled))
    return found


def _refuse_impossible(view: View, ids: Sequence[str | int] | None) -> None:
    """Refuse if a named worker, or all workers, can never be restarted."""
    if view.now.can_restart is not None:
        raise RefusedError(view.now.can_restart)
    real = [w for w in view.now.workers if not w.parking]
    wanted = [w for w in real if ids is None or w.id in ids]
    never = [w.id for w in wanted if w.nanny is None]
    if never and (ids is not None or len(never) == len(real)):
        raise RefusedError(f"restart {workers_text(never[:1])}: {NO_NANNY}")


# --- cron times -----------------------------------------------------------------------


def cron_times(
    cron: str, tz: tzinfo, start: float, seconds: float
) -> tuple[float, ...]:
    """Return the distinct times after ``start``, for some seconds from the first one.

    Times are epoch seconds. Raise ValueError if the expression is invalid, or has more
    than 10,000 times.
    """
    fields = cron.split() if isinstance(cron, str) else []
    if len(fields) != 5:
        raise ValueError(
            f"cron={cron!r} must be five fields (minute, hour, day of the month, "
            f"month, day of the week), like {EXAMPLE}"
        )
    try:
        ticks = CronSim(cron, datetime.fromtimestamp(start, tz))
    except (CronSimError, ValueError) as error:
        raise ValueError(
            f"cron={cron!r} cannot be read ({str(error).lower()}); it must be like "
            f"{EXAMPLE}"
        ) from error
    stamps = (t for tick in ticks if (t := tick.timestamp()) > start)
    first = next(stamps, None)
    if first is None:
        raise ValueError(f"cron={cron!r} has no time; it must be like {EXAMPLE}")
    end = first + seconds
    found = [first, *islice(takewhile(lambda t: t < end, stamps), MAX_TIMES)]
    if len(found) > MAX_TIMES:
        raise ValueError(
            f"cron={cron!r} has more than {MAX_TIMES:,} times before it expires; give "
            'fewer times, or a shorter time such as expires="5 days"'
        )
    # several times are the same moment if clocks skip an hour
    return tuple(sorted({*found}))


def time_zone(name: str | None) -> tzinfo:
    """Return a time zone by name. None means this machine's: TZ, or its setting."""
    given, file = f"tz={name!r}", ""
    if name is None:
        # without such a file the C library uses UTC
        local = str(LOCALTIME) if LOCALTIME.exists() else "UTC"
        name = os.environ.get("TZ", "").removeprefix(":") or local
        given = f"the variable TZ={name!r}"
        file = name if name.startswith("/") else ""
    try:
        if file:
            with Path(file).open("rb") as content:
                return ZoneInfo.from_file(content, key="local time")
        return ZoneInfo(name)
    # a name of another type, of a folder, outside the database, or nested too deeply
    except (LookupError, ValueError, OSError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{given} is no time zone of this machine: give a name like "
            "'Europe/Berlin' or 'UTC', or install the package tzdata"
        ) from error
