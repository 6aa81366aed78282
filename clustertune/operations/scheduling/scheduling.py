"""``schedule_restart``: a rolling restart that waits for a gap between runs.

What is asked for is checked here, where clustertune is installed: instants become
numbers, the condition plain values, and what could never be restarted is refused. Then
the scheduler waits (``remote/schedules.py``). All times are by the scheduler's clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import tzinfo
from time import monotonic
from typing import Any

from distributed import Client

from clustertune.actions import restart as restarting
from clustertune.actions.cluster.live import RESTARTABLE, Asked, LiveCluster, ids_of
from clustertune.collections import inputs
from clustertune.core import arguments
from clustertune.core.model import Goal, Refusal, View
from clustertune.core.wording import seconds_text
from clustertune.errors import RefusedError, TimedOutError
from clustertune.integrations import libraries
from clustertune.monitor import monitor
from clustertune.operations import diagnosis, entrance, events
from clustertune.operations.scheduling import conditions, instants, scheduled
from clustertune.operations.scheduling.conditions import Condition
from clustertune.operations.scheduling.scheduled import DATA, KEPT, Schedule
from clustertune.planner import guards
from clustertune.remote import keys, ship
from clustertune.remote.worker import park

LONGEST = 366 * 86400.0  # seconds until it expires
MOST_REASON = 500  # characters


def schedule_restart(
    client: Client,
    *collections: Any,
    idle_for: str | float = "30s",
    cron: str | None = None,
    tz: str | None = None,
    condition: str | None = None,
    expires: str | float = "12h",
    workers: Sequence[str | int] | None = None,
    reason: str | None = None,
    wait: str | float = "10s",
    dry_run: bool = False,
    timeout: str | float = "1 minute",
) -> Schedule:
    """Restart workers in the next gap between runs, without losing what they hold.

    The scheduler waits until nothing has run or been queued for a while and nobody
    holds the cluster, and then does what :func:`clustertune.restart` does. This process
    may end meanwhile. A fit that begins while a worker is away waits for that one; the
    others are left for the next gap.

    Parameters
    ----------
    client
        A connected client, synchronous or asynchronous (then the call is awaited).
    *collections
        Row-aligned collections whose pieces are to stay together meanwhile. What any
        client holds is kept and brought back, whether it is named here or not.
    idle_for
        Seconds, or a duration, without any task that make a gap.
    cron
        When, at the earliest: after each of these instants once, in the next gap then.
        Five fields as of cron: ``"0 3 * * *"``. None: once, in the next gap.
    tz
        Time zone of ``cron``: ``"Europe/Berlin"``. None: that of this machine. The
        clock is that of the scheduler.
    condition
        Only if that is so then: ``"leak"`` (unmanaged memory of a worker grows from run
        to run), ``"memory:critical"`` (a worker is at the line at which it pauses, and
        most of that is no data; ``"memory"``: at which it spills), or a check with or
        without a severity, ``"thread_pools:critical"``, that the last
        :func:`clustertune.check` has found since the last restart.
    expires
        Seconds, or a duration, after which it is given up.
    workers
        Names or addresses; None: all that are there then, also those that came later.
    reason
        Why; it is listed, and goes to Dask's event log.
    wait
        Seconds, or a duration, that tasks are waited for which begin on a worker just
        before its turn.
    dry_run
        Send nothing; the answer says what would be waited for.
    timeout
        Seconds, or a duration, for scheduling it.

    Returns
    -------
    Schedule
        Printable; it can be cancelled (:meth:`~clustertune.Schedule.cancel`).
        :func:`clustertune.schedules` shows how it stands.

    Raises
    ------
    TypeError, ValueError
        An argument is not what it must be; an expression says no instant before it
        expires. Nothing was scheduled.
    RefusedError
        A worker has no nanny that could start it again, or its manager does not allow
        it; or 20 restarts wait already.
    ConnectionLostError, NoWorkersError, VersionMismatchError
        The cluster cannot do what was asked; the text says why and what to do.

    Examples
    --------
    >>> clustertune.schedule_restart(                           # doctest: +SKIP
    ...     client, cron="0 3 * * *", expires="2 days")
    """
    lasting = arguments.duration("expires", expires)
    if lasting > LONGEST:
        raise ValueError(f"expires={expires!r} must be at most a year")
    given = inputs.of_rows(collections)
    entrance.check_client(client, given)
    order = _Order(
        client=client,
        given=given,
        idle_for=arguments.duration("idle_for", idle_for),
        cron=cron,
        zone=_zone(cron, tz),
        condition=conditions.parse(condition),
        lasting=lasting,
        workers=arguments.names("workers", workers),
        reason=_reason(reason),
        wait=arguments.duration("wait", wait),
        dry_run=arguments.flag("dry_run", dry_run),
        timeout=arguments.duration("timeout", timeout),
    )
    found: Schedule = client.sync(_schedule, order)
    return found


def schedules(client: Client) -> tuple[Schedule, ...]:
    """Restarts that wait for a gap, and the last that have ended; oldest first.

    Parameters
    ----------
    client
        A connected client, synchronous or asynchronous (then the call is awaited).

    Returns
    -------
    tuple of Schedule
        Of this scheduler since it was started, whoever has scheduled them.

    Raises
    ------
    ConnectionLostError, VersionMismatchError
        The cluster cannot be asked; the text says why and what to do.

    Examples
    --------
    >>> print(*clustertune.schedules(client))                 # doctest: +SKIP
    """
    entrance.check_client(client)
    found: tuple[Schedule, ...] = client.sync(scheduled.listed, client)
    return found


@dataclass(frozen=True, kw_only=True)
class _Order:
    """A call, its arguments checked."""

    client: Client
    given: inputs.Inputs
    idle_for: float
    cron: str | None
    zone: tzinfo
    condition: Condition | None
    lasting: float  # seconds until it expires
    workers: tuple[str | int, ...] | None
    reason: str | None
    wait: float
    dry_run: bool
    timeout: float


def _zone(cron: str | None, tz: str | None) -> tzinfo:
    """The time zone, after a look at both: the instants themselves come later."""
    if cron is None and tz is not None:
        raise TypeError("tz is the time zone of cron: give cron, too")
    zone = instants.zone(tz)
    if cron is not None:
        instants.between(cron, zone, 0.0, 0.0)
    return zone


def _instants(
    cron: str | None, zone: tzinfo, now: float, until: float
) -> tuple[float, ...]:
    """The instants from now on; times are those of the scheduler."""
    if cron is None:
        return ()
    found = instants.between(cron, zone, now, until)
    if found:
        return found
    later = instants.between(cron, zone, until, until + LONGEST)[:1]
    first = (
        f"it says {instants.text(later[0], zone)} next"
        if later
        else "it says none in a year"
    )
    raise ValueError(
        f"cron={cron!r} says no instant before this expires, at "
        f"{instants.text(until, zone)}: {first}; give a longer expires"
    )


def _reason(reason: object) -> str | None:
    if reason is None:
        reason = events.reason()
    if reason is None:
        return None
    if isinstance(reason, str) and 0 < len(reason) <= MOST_REASON:
        return reason
    raise ValueError(
        f"reason={reason!r} must be a text of at most {MOST_REASON} characters, or None"
    )


async def _schedule(order: _Order) -> Schedule:
    try:
        return await asyncio.wait_for(_sent(order), order.timeout)
    except asyncio.TimeoutError:
        raise TimedOutError(
            f"the restart was not scheduled within {seconds_text(order.timeout)}; see "
            "what keeps the scheduler, or give a longer timeout"
        ) from None


async def _sent(order: _Order) -> Schedule:
    end = monotonic() + order.timeout
    cluster = LiveCluster(
        order.client,
        order.given,
        Goal(workload=libraries.choose(None)),
        lambda: end - monotonic(),
        asked=Asked(burdens=True, least=True, by_task=False),
    )
    await cluster.open(None, needs=RESTARTABLE)
    view = await cluster.look(lambda *_: None)
    now = view.now.time
    expires = now + order.lasting
    found = _instants(order.cron, order.zone, now, expires)
    ids = (
        None if order.workers is None else sorted(ids_of(order.workers, view), key=str)
    )
    notes = (KEPT, DATA, *_hindered(view, ids))
    if order.condition is not None and order.condition.kind == "check":
        notes += (await _looked_for(order),)
    if order.dry_run:
        return Schedule(
            id="",
            state="planned",
            idle_for=order.idle_for,
            expires=expires,
            instants=found,
            condition=None if order.condition is None else str(order.condition),
            workers=None if ids is None else tuple(ids),
            reason=order.reason,
            notes=notes,
        )
    terms = _terms(order, view, ids) | {"instants": list(found), "expires": expires}
    answer = await monitor.ask(order.client, "schedule", terms=terms)
    if "refused" in answer:
        raise RefusedError(answer["refused"])
    return scheduled.read(answer, order.client, notes)


def _terms(order: _Order, view: View, ids: list[str | int] | None) -> dict[str, Any]:
    """The request but for its times: plain values, and code for approved nannies."""
    approved = monitor.known(order.client).addresses
    layouts = (m.keys for x in view.layouts for m in x.members if m.loaded)
    return {
        "owner": order.client.id,
        "reason": order.reason,
        "idle_for": order.idle_for,
        "condition": None if order.condition is None else order.condition.plain(),
        "workers": ids,
        "collections": [keys.pack(names) for names in layouts],
        # ids may be numbers, and msgpack's maps have texts only
        "lines": list(conditions.lines(view.now.workers).items()),
        "nannies": [
            w.nanny for w in view.now.workers if w.nanny and w.address in approved
        ],
        "parking": ship.pickled(park.act),
        "wait": order.wait,
        "timeout": restarting.TIMEOUT,
    }


def _hindered(view: View, ids: list[str | int] | None) -> tuple[str, ...]:
    """What would be in the way of a restart now, but may not be then.

    Raises
    ------
    RefusedError
        A worker can never be restarted.
    """
    wanted = {w.id for w in view.now.workers} if ids is None else set(ids)
    steps = restarting.steps(view, wanted)
    refused = [no for _, no in guards.sort_out(steps, view) if no is not None]
    for no in refused:
        if _lasts(no, view):
            raise RefusedError(f"{no.step.summary}: {no.reason}")
    return tuple(
        f"It waits until this is no longer so: {no.step.summary}: {no.reason}"
        for no in refused[:3]
    )


def _lasts(refusal: Refusal, view: View) -> bool:
    """Whether waiting would not help."""
    if refusal.guard == "manager_allows_restarts":
        return True
    address = getattr(refusal.step.args, "address", None)
    return any(w.address == address and w.nanny is None for w in view.now.workers)


async def _looked_for(order: _Order) -> str:
    """Look now, so that there are findings; what the last ones say of the check."""
    question = diagnosis.Question(
        client=order.client,
        given=order.given,
        goal=Goal(workload=libraries.choose(None)),
        workers=None,
        timeout=order.timeout,
    )
    report = await diagnosis.diagnose(question)
    condition = order.condition
    assert condition is not None
    found = [
        f
        for f in report.found
        if f.check == condition.check and f.severity >= condition.severity
    ]
    now = f"found now: {found[0].message}" if found else "not found now"
    return (
        f"{condition}: {now}. Only the last findings count then: `clustertune check` "
        "renews them"
    )
