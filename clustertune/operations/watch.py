"""``Monitor``: watch a cluster, and turn findings and changes of workers into events.

Each look reads the scheduler's identity and asks the scheduler plugin once; only new
workers are asked themselves. Looks are as frequent as heartbeats. If the scheduler is
gone, the monitor tries again, at growing intervals, until it is back or the monitor is
closed. Dask closes the client if the scheduler is gone for longer than
``distributed.comm.timeouts.connect`` (30 seconds). The monitor then fails.

A condition begins when it has held for a while, so a value that crosses a threshold for
a second makes no event. It ends when it has been gone for longer, so a value close to a
threshold seldom begins and ends repeatedly.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic, time
from typing import Any

from distributed import Client
from distributed.scheduler import heartbeat_interval

from clustertune import checks
from clustertune.core import arguments
from clustertune.core.model import Finding, Goal, Run, Severity, Snapshot, View
from clustertune.core.sections import of_findings
from clustertune.core.tables import to_html
from clustertune.core.wording import plural, printable, seconds_text
from clustertune.errors import ClustertuneError, ConnectionLostError
from clustertune.integrations import libraries
from clustertune.monitor import inquiry, monitor
from clustertune.monitor.connection import ClientContext
from clustertune.operations import worker_changes
from clustertune.operations.worker_changes import WorkerChange
from clustertune.remote.ending import end_tasks, within

logger = logging.getLogger("clustertune")

LONGEST = 300.0  # seconds between two looks: half the time that changes are kept
MAX_SNAPSHOTS = 3600
MAX_EVENTS = 1000
LOOK_SECONDS = 60.0  # time limit of a look
MAX_INTERVAL = 60.0  # seconds between two tries to reach a scheduler that is gone
RUNS_INTERVAL = 30.0  # seconds between two reads of past runs
HOLD_SECONDS = 3.0  # for which a condition must hold before it begins
GONE_SECONDS = 10.0  # for which it must be gone before it ends

Member = tuple[str, str | int | None, int]
"""A check, one of the workers of its finding (None: it names none), and a number.

The number tells findings of one check about the same worker apart.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A finding that has begun or ended, or a worker that joined, left, ..."""

    time: float  # epoch seconds at which it was first, or last, seen
    kind: str  # "began", "ended"; "joined", "left", "restarted" or "died"
    finding: Finding
    worker: WorkerChange | None = None  # None: a finding of a check

    def __str__(self) -> str:
        if self.worker is not None:
            return f"{self.finding.message}. {self.finding.remedy}".rstrip(". ")
        return f"{self.kind}: {self.finding.severity} {self.finding.message}"


@dataclass
class _Seen:
    finding: Finding
    first: float
    last: float
    members: Sequence[Member]  # all of the finding
    begun: bool = False


class Watch:
    """Turns the findings of each look into events.

    A finding may be about several workers, and about others at the next look. So each
    of its workers begins and ends a condition, and the last of them ends the finding.
    """

    def __init__(self) -> None:
        self._seen: dict[Member, _Seen] = {}

    def events(self, now: float, found: Iterable[Finding]) -> list[Event]:
        """Return the events of one look, at epoch seconds."""
        for finding, members in _with_members(found):
            for member in members:
                seen = self._seen.setdefault(member, _Seen(finding, now, now, members))
                seen.finding, seen.last, seen.members = finding, now, members
        began: dict[int, Event] = {}  # by the id of the finding
        gone: dict[int, _Seen] = {}
        for member, seen in list(self._seen.items()):
            if not seen.begun and seen.last < now:
                del self._seen[member]  # it did not hold
            elif not seen.begun and now - seen.first >= HOLD_SECONDS:
                seen.begun = True
                event = Event(time=seen.first, kind="began", finding=seen.finding)
                began.setdefault(id(seen.finding), event)
            elif seen.begun and now - seen.last >= GONE_SECONDS:
                gone[id(seen.finding)] = self._seen.pop(member)
        ended = [
            Event(time=seen.last, kind="ended", finding=seen.finding)
            for seen in gone.values()
            if not any(self._has_begun(m) for m in seen.members)
        ]
        return [*began.values(), *ended]

    def _has_begun(self, member: Member) -> bool:
        return member in self._seen and self._seen[member].begun

    @property
    def current(self) -> tuple[Finding, ...]:
        """Findings that have begun and not ended, worst first."""
        held = {id(s.finding): s.finding for s in self._seen.values() if s.begun}
        return tuple(sorted(held.values(), key=lambda f: -f.severity))


def _with_members(
    found: Iterable[Finding],
) -> Iterator[tuple[Finding, Sequence[Member]]]:
    """Warnings and critical findings, with what each is about."""
    counts = Counter[tuple[str, str | int | None]]()
    for finding in found:
        if finding.severity in (Severity.warning, Severity.critical):
            named = [(finding.check, one) for one in finding.subject or (None,)]
            yield finding, [(*one, counts[one]) for one in named]
            counts.update(named)


class Monitor(ClientContext):
    """Watch a cluster in the background during a block.

    Parameters
    ----------
    client
        A connected client, synchronous or asynchronous.
    interval
        Seconds between two looks, or a duration; at most 5 minutes. By default the
        interval of heartbeats, and at least one second.
    window
        Seconds, or a duration: for how long snapshots are kept.
    estimator
        The model that trains on the cluster.

    Attributes
    ----------
    snapshots : tuple of Snapshot
        Snapshots within the window, oldest first.
    findings : tuple of Finding
        Current findings, worst first.
    events : tuple of Event
        Findings that have begun or ended, and workers that joined, left, restarted or
        died, in the order of reports.
    fits : tuple of dict
        Progress of running fits at the last look: ``round``, ``rounds`` (None:
        unknown), ``metric``, ``rate`` (rounds per second), ``seconds``.
    unknown_since : float or None
        Epoch seconds since which the cluster could not be reached.
    failure : Exception or None
        The error that ended the monitor before it was closed, such as a wrong setting,
        or a scheduler that was gone until Dask closed the client.

    Examples
    --------
    >>> with clustertune.Monitor(client) as monitor:            # doctest: +SKIP
    ...     model.fit(X, y)
    >>> monitor.events                                          # doctest: +SKIP

    >>> async with clustertune.Monitor(client) as monitor:      # doctest: +SKIP
    ...     async for snapshot in monitor:
    ...         print(monitor.findings)
    """

    def __init__(
        self,
        client: Client,
        *,
        interval: str | float | None = None,
        window: str | float = "5 minutes",
        estimator: object = None,
    ):
        if not isinstance(client, Client):
            kind = type(client).__name__
            raise TypeError(f"client must be a dask.distributed.Client; it was {kind}")
        super().__init__(client)
        self.interval: float | None = None
        if interval is not None:
            self.interval = arguments.duration("interval", interval)
            if self.interval > LONGEST:
                raise ValueError(
                    f"interval={interval!r} must be at most {seconds_text(LONGEST)}: "
                    "the scheduler keeps changes of workers for twice as long"
                )
        self.window = arguments.duration("window", window)
        self.goal = Goal(workload=libraries.choose(estimator))
        self.unknown_since: float | None = None
        self.failure: Exception | None = None
        self.fits: tuple[Mapping[str, Any], ...] = ()
        self._snapshots: deque[Snapshot] = deque(maxlen=MAX_SNAPSHOTS)
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self._new_events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self._watch = Watch()
        self._runs: tuple[Run, ...] = ()
        self._runs_read = -math.inf  # when, monotonic
        self._last_change: int | None = None  # number of a change of workers
        self._task: asyncio.Task[None] | None = None
        self._looked = asyncio.Event()  # set and replaced at each look
        self._closed = False

    def __repr__(self) -> str:
        if self.failure is not None:
            state = f"failed ({printable(repr(self.failure), longest=200)})"
        elif self._closed:
            state = "closed"
        elif self.unknown_since is not None:
            state = f"unknown for {seconds_text(time() - self.unknown_since)}"
        else:
            state = "watching" if self._task else "not started"
        return (
            f"<Monitor: {state}, {plural(len(self._snapshots), 'snapshot')}, "
            f"{plural(len(self.findings), 'finding')}>"
        )

    def _repr_html_(self) -> str:
        return to_html([of_findings(repr(self), self.findings)])

    @property
    def snapshots(self) -> tuple[Snapshot, ...]:
        return tuple(self._snapshots)

    @property
    def events(self) -> tuple[Event, ...]:
        return tuple(self._events)

    def take_events(self) -> tuple[Event, ...]:
        """Return the events since the last call of this method."""
        taken = tuple(self._new_events)
        self._new_events.clear()
        return taken

    @property
    def view(self) -> View:
        """The view of checks: the window of snapshots, and past runs."""
        return View(snapshots=self.snapshots, goal=self.goal, runs=self._runs)

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self._watch.current

    # --- begin and end ----------------------------------------------------------------

    async def _begin(self) -> None:
        """Look once; an error of this first look is raised to the caller."""
        if self._task is not None:
            raise RuntimeError(
                "this monitor or hold has watched a block already: make a new one for "
                "each block"
            )
        checks.configured()
        identity = await monitor.identify(self.client)
        await monitor.install_plugin(self.client, identity)
        await self._look()
        self._task = asyncio.ensure_future(self._run())

    async def _end(self) -> None:
        self._closed = True  # at once, if the task misses its cancellation
        if self._task is not None:
            await end_tasks(self._task)

    # --- look -------------------------------------------------------------------------

    async def _run(self) -> None:
        """Watch until cancelled, or until the client is closed."""
        try:
            await self._look_repeatedly()
        except Exception as error:
            self.failure = error  # raised to the iterating code
            logger.exception("the monitor stopped")
        finally:
            self._closed = True
            self._wake()

    async def _look_repeatedly(self) -> None:
        pause = 0.0
        while not self._closed and self.client.status not in ("closed", "closing"):
            await asyncio.sleep(max(pause, self._interval()))
            start = time()
            try:
                await within(self._look(), LOOK_SECONDS)
            except (ClustertuneError, asyncio.TimeoutError) as error:
                if self.unknown_since is None:
                    self.unknown_since = start
                    limit = seconds_text(LOOK_SECONDS)
                    text = str(error) or f"no answer within {limit}"
                    logger.warning("the monitor cannot reach the cluster: %s", text)
                pause = min(MAX_INTERVAL, 2 * max(pause, self._interval()))
                self._wake()
            else:
                pause = 0.0
        # Dask sets it to None when the connection is lost, not when a client is closed
        if not self._closed and self.client.scheduler_comm is None:
            self.failure = ConnectionLostError(
                "the client lost its connection to the scheduler, could not connect "
                "again, and was closed. Connect again when the scheduler is back"
            )

    def _interval(self) -> float:
        if self.interval is not None:
            return self.interval
        n_workers = len(self._snapshots[-1].workers) if self._snapshots else 0
        return max(1.0, heartbeat_interval(n_workers))

    async def _look(self) -> None:
        if self.unknown_since is not None:  # the scheduler may be another one
            self._runs_read = -math.inf
            await monitor.install_plugin(
                self.client, await monitor.identify(self.client)
            )
        snapshot, _ = await monitor.look(self.client, [])
        self.unknown_since = None
        self._snapshots.append(snapshot)
        while snapshot.time - self._snapshots[0].time > self.window:
            self._snapshots.popleft()
        # past runs are many numbers on a large cluster
        if monotonic() - self._runs_read >= RUNS_INTERVAL:
            self._runs = await inquiry.past_runs(self.client)
            self._runs_read = monotonic()
        view, settings = self.view, checks.configured()
        found = checks.run(view, settings)
        changes = await self._worker_events()  # may fail, and then no event is lost
        events = [*self._watch.events(snapshot.time, found), *changes]
        self._events += events
        self._new_events += events
        self._wake()

    async def _worker_events(self) -> list[Event]:
        """Return an event for each worker that joined, left, restarted or died."""
        after = self._last_change
        answer = await monitor.ask(self.client, "worker_changes", after=after)
        self._last_change = answer["last"]
        self.fits = tuple(answer["fits"])
        events = []
        for at, kind, change in worker_changes.read(answer):
            found = worker_changes.finding(kind, change, leased=answer["leased"])
            events.append(Event(time=at, kind=kind, finding=found, worker=change))
        return events

    def _wake(self) -> None:
        """Wake the iterating code."""
        self._looked.set()
        self._looked = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[Snapshot]:
        """Yield snapshots, from the latest on, until the monitor closes.

        Raises
        ------
        RuntimeError
            The monitor has not begun, or this is not the event loop of its client.
        Exception
            The error that ended the monitor before it was closed.
        """
        if self._task is None or not self.client.asynchronous:
            raise RuntimeError("iterate in a block of this monitor: async with monitor")
        last: Snapshot | None = None
        while not self._closed:
            if self._snapshots and self._snapshots[-1] is not last:
                last = self._snapshots[-1]
                yield last
            else:
                await self._looked.wait()
        if self.failure is not None:
            raise self.failure
