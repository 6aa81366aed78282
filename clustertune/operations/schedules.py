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
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone, tzinfo
from itertools import islice, takewhile
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar
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
from clustertune.core.model import Goal, Refusal, Unknown, View, WorkerSnapshot
from clustertune.core.wording import (
    names_text,
    plural,
    printable,
    seconds_text,
    time_text,
    workers_text,
)
from clustertune.errors import RefusedError, TimedOutError
from clustertune.integrations import libraries
from clustertune.monitor import monitor
from clustertune.monitor.connection import sync
from clustertune.operations.call import check_client
from clustertune.operations.journal import change_reason
from clustertune.planner import guards
from clustertune.remote import keys, ship
from clustertune.remote.ending import within
from clustertune.remote.scheduler.schedule import Schedule as Waiting
from clustertune.remote.worker import park

ENDED = ("done", "failed", "expired", "cancelled")
MAX_EXPIRES = 366 * 86400.0  # seconds
TIMEOUT = 60.0  # seconds for a request
IDLE_FOR = "30s"
MAX_TIMES = 10_000  # every minute of a week
LOCALTIME = Path("/etc/localtime")
T = TypeVar("T")
EXAMPLE = '"0 3 * * *" (at 03:00 each day), "30 22 * * 1-5" or "*/15 * * * *"'


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
            many other restarts have ended since. Or it is refused: only the scheduler's
            configuration has it.
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
    problem = "the scheduler did not answer"
    return await _within_limit(_answer(client, **request), problem)


async def _answer(client: Client, **request: Any) -> Mapping[str, Any]:
    await monitor.install_plugin(client, await monitor.identify(client))
    found: Mapping[str, Any] = await monitor.ask(client, "schedules", **request)
    return found


async def cancel(client: Client, name: str) -> Schedule:
    """Cancel a scheduled restart by id; raise LookupError if there is none."""
    found = await _ask(client, cancel=name)
    answer = found["one"]
    if answer is None:
        states = {s["id"]: s["state"] for s in found["all"]}
        if states.get(name) == "refused":
            raise LookupError(
                f"the schedule {name!r} cannot be cancelled: it is in "
                "clustertune.schedules of the scheduler's configuration. Remove it "
                "there, and start the scheduler again"
            )
        over = (*ENDED, "refused")
        known = [id for id, state in states.items() if state not in over]
        there = f"waiting are {names_text(known, most=20)}" if known else "none waits"
        raise LookupError(f"there is no scheduled restart {name!r}; {there}")
    return read(answer, client)


async def listed(client: Client) -> tuple[Schedule, ...]:
    """List waiting restarts and the last ended ones, oldest first."""
    found = await _ask(client)
    return tuple(read(answer, client) for answer in found["all"])


async def _within_limit(work: Awaitable[T], problem: str) -> T:
    try:
        return await within(work, TIMEOUT)
    except asyncio.TimeoutError:
        raise TimedOutError(
            f"{problem} within {seconds_text(TIMEOUT)}; see what blocks the scheduler"
        ) from None


# --- requests ------------------------------------------------------------------------


def schedule_restart(
    client: Client,
    *collections: Any,
    idle_for: str | float = IDLE_FOR,
    cron: str | None = None,
    tz: str | None = None,
    if_needed: bool = False,
    expires: str | float = "12h",
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
        Seconds, or a duration, after which the scheduler gives up.
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
        An argument is not valid, or ``cron`` has no time before the restart expires.
        Nothing was scheduled.
    RefusedError
        A worker has no nanny to restart it, or its manager forbids restarts, or 20
        restarts already wait.
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
    options = Options.of(
        idle_for=idle_for,
        cron=cron,
        tz=tz,
        if_needed=if_needed,
        expires=expires,
        workers=workers,
    )
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


@dataclass(frozen=True, kw_only=True)
class Options:
    """Checked arguments of :func:`schedule_restart`."""

    idle_for: float
    cron: str | None
    zone: tzinfo
    if_needed: bool
    lifetime: float  # seconds until it expires
    workers: tuple[str | int, ...] | None

    @classmethod
    def of(
        cls,
        *,
        idle_for: str | float = IDLE_FOR,
        cron: str | None = None,
        tz: str | None = None,
        if_needed: bool = False,
        expires: str | float,
        workers: Sequence[str | int] | None = None,
    ) -> Options:
        """Check arguments of :func:`schedule_restart`.

        Raise TypeError or ValueError for a wrong one. The times of ``cron`` follow when
        the scheduler's clock is known.
        """
        if cron is None and tz is not None:
            raise TypeError("tz is the time zone of cron: give cron, too")
        zone: tzinfo = timezone.utc  # without cron, no time is computed in it
        if cron is not None:
            zone = time_zone(tz)
            cron_times(cron, zone, 0.0, 0.0)
        if (lifetime := arguments.duration("expires", expires)) > MAX_EXPIRES:
            raise ValueError(f"expires={expires!r} must be at most a year")
        return cls(
            idle_for=arguments.duration("idle_for", idle_for),
            cron=cron,
            zone=zone,
            if_needed=arguments.flag("if_needed", if_needed),
            lifetime=lifetime,
            workers=arguments.names("workers", workers),
        )

    def terms(self, now: float, owner: str, reason: str | None) -> dict[str, Any]:
        """Return the part of a request that needs no facts of the workers.

        Raise ValueError if ``cron`` has no times.
        """
        expires = now + self.lifetime
        instants: tuple[float, ...] = ()
        if self.cron is not None:
            instants = cron_times(self.cron, self.zone, now, expires)
            if not instants:
                raise ValueError(
                    f"cron={self.cron!r} has no time before the restart expires, at "
                    f"{time_text(expires, self.zone)}: give a longer expires"
                )
        return {
            "owner": owner,
            "reason": reason,
            "idle_for": self.idle_for,
            "instants": list(instants),
            "expires": expires,
            "if_needed": self.if_needed,
            "workers": self.workers,
        }


async def send(
    client: Client,
    given: inputs.Inputs,
    options: Options,
    reason: str | None,
    *,
    dry_run: bool = False,
) -> Schedule:
    """Send a request to the scheduler; a dry run returns the plan only."""
    work = _send(client, given, options, reason, dry_run=dry_run)
    return await _within_limit(work, "the restart was not scheduled")


async def _send(
    client: Client,
    given: inputs.Inputs,
    options: Options,
    reason: str | None,
    *,
    dry_run: bool,
) -> Schedule:
    end = monotonic() + TIMEOUT
    cluster = LiveCluster(
        client,
        given,
        Goal(workload=libraries.choose(None)),
        lambda: end - monotonic(),
        options=LookOptions(held_data=True, least_memory=True, task_seconds=0.0),
    )
    await cluster.open(None, needs=RESTARTABLE)
    view = await cluster.look(lambda *_: None)
    terms = options.terms(view.now.time, client.id, reason)
    ids = None
    if options.workers is not None:
        ids = sorted(ids_of(options.workers, view), key=str)
    _refuse_impossible(view, ids)
    layouts = (m.keys for x in view.layouts for m in x.collections if m.loaded)
    terms |= {
        "workers": ids,
        "fresh": min((x for w in view.now.workers if (x := w.least_memory)), default=0),
        "collections": [keys.pack(names) for names in layouts],
        "thresholds": _thresholds(view.now.workers),
        "parking": ship.pickled(park.act),
        "timeout": restarting.TIMEOUT,
    }
    if dry_run:
        plan = Waiting("", terms, view.now.time, 0.0).describe(view.now.time)
        return read(plan | {"state": "planned", "waits": ""}, None)
    answer = (await monitor.ask(client, "schedules", add=terms))["one"]
    if "refused" in answer:
        raise RefusedError(answer["refused"])
    return read(answer, client)


def _thresholds(
    workers: Iterable[WorkerSnapshot],
) -> list[tuple[str | int, dict[str, float]]]:
    """Return worker ids with the known, enabled thresholds, the worst first.

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


def _refuse_impossible(view: View, ids: list[str | int] | None) -> None:
    """Refuse if a named worker, or all workers, can never be restarted."""
    real = [w.id for w in view.now.workers if not w.parking]
    steps = restarting.steps(view, set(real if ids is None else ids))
    refused = (no for _, no in guards.sort_out(steps, view))
    never = [no for no in refused if no is not None and _is_permanent(no, view)]
    if never and (ids is not None or len(never) == len(real)):
        raise RefusedError(f"{never[0].step.summary}: {never[0].reason}")


def _is_permanent(refusal: Refusal, view: View) -> bool:
    if refusal.guard == "manager_allows_restarts":
        return True
    address = getattr(refusal.step.args, "address", None)
    return any(w.address == address and w.nanny is None for w in view.now.workers)


# --- cron times -----------------------------------------------------------------------


def cron_times(cron: str, tz: tzinfo, start: float, end: float) -> tuple[float, ...]:
    """Return the distinct times of a cron expression after ``start``, until ``end``.

    Times are epoch seconds. Raise ValueError if the expression is invalid, or has more
    than 10,000 times.
    """
    stamps = takewhile(lambda t: t <= end, _stamps(cron, tz, start))
    # several times are the same moment if clocks skip an hour
    found = sorted({t for t in islice(stamps, MAX_TIMES + 1) if t > start})
    if len(found) > MAX_TIMES:
        raise ValueError(
            f"cron={cron!r} has more than {MAX_TIMES:,} times before it expires; give "
            'fewer times, or a shorter time such as expires="5 days"'
        )
    return tuple(found)


def next_time(cron: str, tz: tzinfo, start: float, seconds: float) -> float | None:
    """Return the first time within some seconds after ``start``, or None."""
    first = next((t for t in _stamps(cron, tz, start) if t > start), None)
    return first if first is not None and first <= start + seconds else None


def _stamps(cron: str, tz: tzinfo, start: float) -> Iterator[float]:
    """Return the times after ``start``, without an end; a time may come twice."""
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
    return (tick.timestamp() for tick in ticks)


def time_zone(name: str | None) -> tzinfo:
    """Return a time zone by name. None means this machine's: TZ, or its setting."""
    given, is_file = f"tz={name!r}", False
    if name is None:
        name = os.environ.get("TZ", "").removeprefix(":")
        given = f"the variable TZ={name!r}"
        if not name:
            return _local_zone()
        is_file = name.startswith("/")
    try:
        return _read_zone(Path(name)) if is_file else ZoneInfo(name)
    # a name of another type, of a folder, outside the database, or nested too deeply
    except (LookupError, ValueError, OSError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{given} is no time zone of this machine: give a name like "
            "'Europe/Berlin' or 'UTC', or install the package tzdata"
        ) from error


def _local_zone() -> tzinfo:
    if not LOCALTIME.exists():  # the C library uses UTC then
        return time_zone("UTC")
    return _read_zone(LOCALTIME)


def _read_zone(file: Path) -> tzinfo:
    with file.open("rb") as content:
        return ZoneInfo.from_file(content, key="local time")
