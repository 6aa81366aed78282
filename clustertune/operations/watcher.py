"""``Monitor``: looks at a cluster again and again, and says what begins and ends.

Each look is the scheduler's identity and one read by the resident; workers are asked
only when they are new. It looks no faster than workers tell the scheduler of
themselves. A scheduler that is gone is asked again, less and less often, until it is
back or the monitor is closed.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import AsyncIterator
from time import monotonic, time

from distributed import Client

from clustertune import checks
from clustertune.core import arguments
from clustertune.core.model import Finding, Goal, Run, Snapshot, View
from clustertune.core.report import findings_html
from clustertune.core.wording import plural, printable, seconds_text
from clustertune.errors import ClustertuneError
from clustertune.integrations import libraries
from clustertune.monitor import inquiry, monitor
from clustertune.operations.blocks import Block
from clustertune.operations.watching import Event, Watch, worse

logger = logging.getLogger("clustertune")

MOST = 3600  # snapshots
MOST_EVENTS = 1000
PATIENCE = 60.0  # seconds in which a look must have ended
SLOWEST = 60.0  # seconds between two tries to reach a scheduler that is gone
RUNS = 30.0  # seconds between two questions for past runs


class Monitor(Block):
    """Watch a cluster, in the background, for as long as a block lasts.

    Parameters
    ----------
    client
        A connected client, synchronous or asynchronous.
    interval
        Seconds between two looks, or a duration; by default as often as workers tell
        of themselves, and at least one second.
    window
        Seconds, or a duration: how far back snapshots are kept.
    estimator, workload
        What trains there.

    Attributes
    ----------
    snapshots : tuple of Snapshot
        What was seen within the window, oldest first.
    findings : tuple of Finding
        What holds now, worst first.
    events : tuple of Event
        What has begun and ended, oldest first.
    unknown_since : float or None
        Epoch seconds since which the cluster could not be looked at.
    failure : Exception or None
        What ended the watch before it was closed: a setting that is wrong, say.

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
        workload: str | None = None,
    ):
        if not isinstance(client, Client):
            kind = type(client).__name__
            raise TypeError(f"client must be a dask.distributed.Client; it was {kind}")
        self._client = client
        self.interval = (
            None if interval is None else arguments.duration("interval", interval)
        )
        self.window = arguments.duration("window", window)
        self.goal = Goal(workload=libraries.choose(workload, estimator))
        self.unknown_since: float | None = None
        self.failure: Exception | None = None
        self._snapshots: deque[Snapshot] = deque(maxlen=MOST)
        self._events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self._fresh: deque[Event] = deque(maxlen=MOST_EVENTS)
        self._watch = Watch()
        self._runs: tuple[Run, ...] = ()
        self._runs_asked = -math.inf  # when, monotonic
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
        return findings_html(repr(self), self.findings)

    @property
    def snapshots(self) -> tuple[Snapshot, ...]:
        return tuple(self._snapshots)

    @property
    def events(self) -> tuple[Event, ...]:
        return tuple(self._events)

    def take_events(self) -> tuple[Event, ...]:
        """The events since this was last called."""
        taken = tuple(self._fresh)
        self._fresh.clear()
        return taken

    @property
    def client(self) -> Client:
        return self._client

    @property
    def view(self) -> View:
        """What checks see now: the window of snapshots, and past runs."""
        return View(snapshots=self.snapshots, goal=self.goal, runs=self._runs)

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self._watch.current

    # --- begin and end ----------------------------------------------------------------

    async def _begin(self) -> None:
        """The first look fails aloud: whoever asks learns that nothing can be seen."""
        checks.configured()
        identity = await monitor.identify(self.client)
        await monitor.open_door(self.client, identity)
        await self._look()
        self._task = asyncio.ensure_future(self._go_on())

    async def _end(self) -> None:
        self._closed = True  # before Python 3.12 ``wait_for`` may swallow the other
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # --- look -------------------------------------------------------------------------

    async def _go_on(self) -> None:
        """Watch until cancelled, or until the client is closed."""
        try:
            await self._look_on()
        except Exception as error:
            self.failure = error  # raised for whoever iterates
            logger.exception("clustertune watches no more")
        finally:
            self._closed = True
            self._tell_all()

    async def _look_on(self) -> None:
        pause = 0.0
        while not self._closed and self.client.status not in ("closed", "closing"):
            await asyncio.sleep(max(pause, self._interval()))
            start = time()
            try:
                await asyncio.wait_for(self._look(), PATIENCE)
            except (ClustertuneError, asyncio.TimeoutError) as error:
                if self.unknown_since is None:
                    self.unknown_since = start
                    text = str(error) or f"no answer within {seconds_text(PATIENCE)}"
                    logger.warning("the cluster cannot be seen: %s", text)
                pause = min(SLOWEST, 2 * max(pause, self._interval()))
                self._tell_all()
            else:
                pause = 0.0

    def _interval(self) -> float:
        """As often as workers tell of themselves: distributed's rule."""
        if self.interval is not None:
            return self.interval
        n_workers = len(self._snapshots[-1].workers) if self._snapshots else 0
        return max(
            1.0, 2.0 * (n_workers >= 50), n_workers / 200 + 1 if n_workers >= 200 else 0
        )

    async def _look(self) -> None:
        if self.unknown_since is not None:  # the scheduler may be another one
            self._runs_asked = -math.inf
            await monitor.open_door(self.client, await monitor.identify(self.client))
        snapshot, _ = await monitor.look(self.client, [])
        self.unknown_since = None
        self._snapshots.append(snapshot)
        while snapshot.time - self._snapshots[0].time > self.window:
            self._snapshots.popleft()
        await self._ask_for_runs()
        view, settings = self.view, checks.configured()
        found = checks.run(view, settings)
        nearly = checks.run(worse(view), settings)
        events = self._watch.tell(snapshot.time, found, nearly)
        self._events += events
        self._fresh += events
        self._tell_all()

    async def _ask_for_runs(self) -> None:
        """They change once in a while, and are many numbers on a large cluster."""
        if monotonic() - self._runs_asked >= RUNS:
            self._runs = await inquiry.past_runs(self.client)
            self._runs_asked = monotonic()

    def _tell_all(self) -> None:
        """Wake whoever iterates."""
        self._looked.set()
        self._looked = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[Snapshot]:
        """Snapshots as they come, from the latest on; ends when the monitor closes.

        Raises
        ------
        Exception
            What ended the watch, if it was not closed.
        """
        last: Snapshot | None = None
        while not self._closed:
            if self._snapshots and self._snapshots[-1] is not last:
                last = self._snapshots[-1]
                yield last
            else:
                await self._looked.wait()
        if self.failure is not None:
            raise self.failure
