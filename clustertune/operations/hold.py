"""``hold``: protect workers during a fit, report what happens to them, and measure.

Adaptive scaling removes no workers, and plans of other clients wait. Some events cannot
be prevented: an explicit ``retire_workers``, ``scale`` or ``restart``, a lifetime, a
crash. The hold reports them at once. It also reports workers that pause or stop
responding, because a training library that waits for them reports nothing.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from time import monotonic, time
from uuid import uuid4

from distributed import Client

from clustertune.actions.cluster.lease import REFRESH, give_back
from clustertune.core import arguments
from clustertune.core.model import Finding, Snapshot
from clustertune.core.wording import (
    bytes_text,
    names_text,
    plural,
    printable,
    seconds_text,
    workers_text,
)
from clustertune.errors import ClustertuneError, ConnectionLostError, LeaseHeldError
from clustertune.monitor import monitor
from clustertune.monitor.connection import ClientContext
from clustertune.operations import history
from clustertune.operations.history import Record
from clustertune.operations.surviving import FitWatch
from clustertune.operations.watch import Monitor
from clustertune.remote.ending import end_tasks

logger = logging.getLogger("clustertune")

REPORTED_CHECKS = ("paused_workers", "unresponsive_workers", "memory_pressure")
WAIT_SECONDS = 60.0  # for the end of another client's plan
UNNAMED = "a hold"


@dataclass(kw_only=True)
class Measures:
    """Resources that a run used, by worker where possible.

    The values are sampled, so short peaks between two samples may be missing.
    """

    predicted: int | None = None  # process bytes of the fullest worker; None: unknown
    start: float = 0.0  # monotonic
    seconds: float = 0.0
    peaks: dict[str | int, int] = field(default_factory=dict)  # bytes of process
    limits: dict[str | int, int] = field(default_factory=dict)
    spilled: int = 0  # largest number of bytes on disk, of all workers together
    cpu: dict[str | int, list[float]] = field(default_factory=dict)  # samples
    gone: list[str | int] = field(default_factory=list)  # left during the run
    unheld: float = 0.0  # seconds, at most, for which the hold was lost
    last: Snapshot | None = None
    #: of the last snapshot; a worker that comes back soon has another address
    _addresses: dict[str | int, str] = field(default_factory=dict)

    @property
    def fullest(self) -> str | int | None:
        """The worker with the largest process."""
        return max(self.peaks, key=lambda id: self.peaks[id], default=None)

    @property
    def busy(self) -> float | None:
        """CPUs on average, of all workers; None: there is no sample."""
        return sum(sum(n) / len(n) for n in self.cpu.values()) if self.cpu else None

    def take(self, snapshot: Snapshot) -> list[str]:
        """Add a snapshot; return the messages about it.

        A parking worker only exists during a restart, and no fit runs on it.
        """
        if snapshot is self.last:
            return []
        workers = [w for w in snapshot.workers if not w.parking]
        for w in workers:
            self.peaks[w.id] = max(w.process, self.peaks.get(w.id, 0))
            self.limits[w.id] = w.memory_limit
            if self.last is not None:  # the first snapshot shows CPU use before the run
                self.cpu.setdefault(w.id, []).append(w.cpu)
        self.spilled = max(self.spilled, sum(w.spilled for w in workers))
        now = {w.id: w.address for w in workers}
        went = [id for id, was in self._addresses.items() if now.get(id) != was]
        self.gone += [id for id in went if id not in self.gone]
        self._addresses, self.last = now, snapshot
        return [
            f"worker {names_text([id])} is gone: a fit that uses it fails or hangs; "
            "stop that fit, then prepare and fit again"
            for id in sorted(went, key=str)
        ]

    def __str__(self) -> str:
        text = f"held for {seconds_text(self.seconds)}"
        if (fullest := self.fullest) is not None:
            peak = bytes_text(self.peaks[fullest])
            text += f"; peak memory {peak}"
            if self.limits.get(fullest):
                text += f" of {bytes_text(self.limits[fullest])}"
            text += f" on {workers_text([fullest])}"
            if self.predicted is not None:
                text += f" (predicted {bytes_text(self.predicted)})"
        text += f"; {bytes_text(self.spilled)} spilled" if self.spilled else ""
        if self.busy is not None:
            text += f"; {plural(round(self.busy, 1), 'CPU')} busy"
        text += f"; {workers_text(self.gone)} left meanwhile" if self.gone else ""
        if self.unheld:
            text += f"; the hold was lost for up to {seconds_text(self.unheld)}"
        return text


class Hold(ClientContext):
    """A hold, as a context manager for both kinds of clients.

    Attributes
    ----------
    measures : Measures or None
        Measures of the run, after the block.
    monitor : Monitor
        The monitor of the block: its snapshots, findings and events.
    """

    def __init__(
        self,
        client: Client,
        *,
        label: str = UNNAMED,
        predicted: int | None = None,
        about: Callable[[], Record] | None = None,
        watch: FitWatch | None = None,
    ):
        super().__init__(client)
        self.monitor = Monitor(client, window="1 minute")
        self.measures: Measures | None = None
        self._label = label
        self._about = about  # returns a record of the data and the cluster
        self._watch = watch
        self._name = uuid4().hex if watch is None else watch.name
        self._held = False
        self._confirmed = 0.0  # monotonic: when the scheduler last confirmed the hold
        self._observed = Measures(predicted=predicted)
        self._around = AsyncExitStack()

    def __repr__(self) -> str:
        state = repr(self.monitor) if self.measures is None else str(self.measures)
        return f"<Hold: {state}>"

    async def _begin(self) -> None:
        try:
            await self._around.enter_async_context(self.monitor)
            self._around.push_async_callback(self._give_back)
            await self._take()
            watching = () if self._watch is None else (self._watch.run(),)
            for work in (self._report_events(), self._keep(), *watching):
                task = asyncio.ensure_future(work)
                self._around.push_async_callback(end_tasks, task)
            if self._watch is not None:
                self._around.push_async_callback(self._watch.close)
            self._observed.start = monotonic()  # the run begins here
        except BaseException:
            await self._around.aclose()
            raise

    async def _end(self) -> None:
        measures = self._observed
        measures.seconds = monotonic() - measures.start
        began = time() - measures.seconds
        for snapshot in self.monitor.snapshots[-1:]:
            self._observe(snapshot)
        await self._around.aclose()
        self.measures = measures
        _report(str(measures))
        if hindered := await history.note(lambda: self._record(measures, began)):
            _report(hindered)

    def _record(self, measures: Measures, began: float) -> Record:
        """Return the record of the block.

        A single snapshot shows only the state before the block.
        """
        snapshots, error = self.monitor.snapshots, self._error
        if self._about is not None:
            record = self._about()
        else:
            label = "" if self._label == UNNAMED else self._label
            record = Record(call="hold", label=label, began=began, seconds=0.0)
            if snapshots:
                running = tuple(w for w in snapshots[0].workers if w.running)
                record = history.on(record, snapshots[0], running)
        text = "" if error is None else f"{type(error).__name__}: {error}"
        if measures.gone and not text:
            text = f"{workers_text(measures.gone)} left meanwhile"
        fullest = measures.fullest if len(snapshots) > 1 else None
        return replace(
            record,
            began=began,
            seconds=measures.seconds,
            status="failed" if error else "left" if measures.gone else "done",
            predicted_peak=measures.predicted,
            peak=None if fullest is None else measures.peaks[fullest],
            limit=None if fullest is None else measures.limits.get(fullest) or None,
            spilled=measures.spilled if len(snapshots) > 1 else None,
            busy=measures.busy,
            error=printable(text, longest=history.MAX_TEXT),
        )

    async def _take(self) -> None:
        """Take the hold; wait while another client's plan runs."""
        end = monotonic() + WAIT_SECONDS
        while (holder := await self._request()) is not None:
            if monotonic() > end:
                raise LeaseHeldError(
                    f"another plan runs on this cluster: {holder}; try again when it "
                    "has ended"
                )
            await asyncio.sleep(0.2)

    async def _request(self) -> str | None:
        """Request the hold; return the label of another client's plan, if one runs."""
        mine = {"owner": self.client.id, "label": self._label, "token": self._name}
        fit = None if self._watch is None else self._watch.request
        answer = await monitor.ask(self.client, "acquire", **mine, hold=True, fit=fit)
        if "holder" in answer:
            return printable(answer["holder"]["label"])
        self._held, self._confirmed = True, monotonic()
        return None

    async def _keep(self) -> None:
        """Confirm the hold regularly, and take a lost hold again."""
        try:
            while self.client.status not in ("closing", "closed"):
                await asyncio.sleep(REFRESH)
                # the monitor reports the lost connection
                with suppress(ConnectionLostError):
                    await self._refresh()
        except Exception as error:  # noqa: BLE001, must be reported during the fit
            _report(
                "the hold can no longer be confirmed, so adaptive scaling and other "
                "clients may change workers: "
                f"{printable(repr(error), longest=200)}. Stop the fit if a worker "
                "leaves"
            )

    async def _refresh(self) -> None:
        if await monitor.ask(self.client, "is_held", name=self._name):
            self._confirmed = monotonic()
            return
        lost = self._confirmed
        since = seconds_text(monotonic() - lost)
        if self._held:
            self._held = False
            _report(
                "the scheduler ended this hold: it was restarted, or it got no request "
                "of this client for a while. Adaptive scaling and plans of other "
                f"clients may have changed workers in the last {since}. If a "
                "worker is gone, stop the fit, then prepare and fit again"
            )
        if await self._request() is None:
            self._observed.unheld += self._confirmed - lost
            _report(f"the hold was taken again after {since}")

    async def _give_back(self) -> None:
        # also if the answer to the request never arrived
        try:
            answer = await give_back(self.client, "release", token=self._name)
        except (ClustertuneError, asyncio.TimeoutError) as error:
            _report(f"the hold could not be given back: {printable(repr(error))}")
        else:
            there = answer["held"]
            if self._confirmed and not there:
                self._observed.unheld += monotonic() - self._confirmed
            if self._held and not there:
                _report(
                    "the hold had ended before: the scheduler was restarted, or it got "
                    "no request of this client for a while"
                )

    def _observe(self, snapshot: Snapshot) -> None:
        texts = self._observed.take(snapshot)
        # the watch of a fit says itself what becomes of it
        if self._watch is None or not self._watch.workers:
            for text in texts:
                _report(text)

    async def _report_events(self) -> None:
        """Report at once what a waiting library does not report."""
        try:
            async for snapshot in self.monitor:
                self._observe(snapshot)
                for event in self.monitor.take_events():
                    found: Finding = event.finding
                    if found.check in REPORTED_CHECKS:
                        began = event.kind == "began" and found.remedy
                        _report(f"{event}. {found.remedy}" if began else str(event))
        except Exception as error:  # noqa: BLE001, must be reported during the fit
            text = printable(repr(error), longest=200)
            _report(f"the hold stopped watching the cluster: {text}")


def _report(text: str) -> None:
    """Write to a terminal, or else to the log, like the progress of other calls."""
    # a terminal may be gone, and stderr closed: the fit goes on
    with suppress(OSError, ValueError):
        if sys.stderr is not None and sys.stderr.isatty():
            sys.stderr.write(f"clustertune: {printable(text)}\n")
            sys.stderr.flush()
            return
    logger.warning("%s", printable(text))


def hold(
    client: Client,
    *,
    label: str = UNNAMED,
    on_lost_worker: str = "report",
) -> Hold:
    """Keep workers during a block: no adaptive scaling down, no other plans.

    Parameters
    ----------
    client
        A connected client, synchronous (``with``) or asynchronous (``async with``).
    label
        Name that other clients see, and the label of the run in the history:
        ``"weekly training"``.
    on_lost_worker
        What to do if a worker leaves during its training task: ``"report"`` it, or
        ``"cancel"`` the training too. The fit then ends with an error, and training
        tasks that do not end are ended; all workers keep their data. Plans of other
        clients may begin then, before the block ends.

    Returns
    -------
    Hold
        A context manager. It reports events of workers at once, to the log
        ``clustertune`` and a terminal. ``measures`` has time, memory and CPU use of the
        run.

    Raises
    ------
    ValueError
        ``label`` is not a text, or ``on_lost_worker`` has another value.
    ConnectionLostError, VersionMismatchError
        The cluster cannot be monitored.
    LeaseHeldError
        Another client's plan has not ended within a minute.

    Examples
    --------
    >>> with clustertune.hold(client) as held:                  # doctest: +SKIP
    ...     model.fit(X, y)
    >>> held.measures                                           # doctest: +SKIP
    """
    cancels = arguments.more_than_report("on_lost_worker", on_lost_worker, "cancel")
    return Hold(
        client,
        label=arguments.text("label", label),
        watch=FitWatch(client) if cancels else None,
    )
