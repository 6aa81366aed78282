"""``hold``: a block in which a fit has the cluster to itself, as far as that can be.

Adaptive scaling takes no workers away, and no plan of clustertune's by another client
begins. What nobody can veto (an explicit ``retire_workers``, ``scale`` or ``restart``,
a lifetime, a crash) is noticed and said at once, as are workers that pause or fall
silent: a library that waits for them says nothing itself. What the run took is
measured.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from time import monotonic, time
from typing import Any
from uuid import uuid4

from distributed import Client, performance_report

from clustertune.actions.cluster.lease import REFRESH, give_back
from clustertune.core.model import Finding, Snapshot
from clustertune.core.wording import names_text, printable, seconds_text
from clustertune.errors import ClustertuneError, ConnectionLostError, LeaseHeldError
from clustertune.monitor import monitor
from clustertune.operations.blocks import Block
from clustertune.operations.history import noting
from clustertune.operations.history.record import Measures, Record
from clustertune.operations.watcher import Monitor

logger = logging.getLogger("clustertune")

SAID = ("paused_workers", "silent_workers", "memory_pressure", "abandoned_tasks")
PATIENCE = 60.0  # seconds for which another client's plan is waited for
UNNAMED = "a hold"


class Hold(Block):
    """A hold, as a context manager for both kinds of clients.

    Attributes
    ----------
    measures : Measures or None
        Of the run, once the block has ended.
    monitor : Monitor
        What watches meanwhile: its snapshots, findings and events.
    """

    def __init__(
        self,
        client: Client,
        *,
        label: str = UNNAMED,
        profile: str | None = None,
        predicted: int | None = None,
        about: Callable[[], Record] | None = None,
    ):
        self._client = client
        self.monitor = Monitor(client, window="1 minute")
        self.measures: Measures | None = None
        self._label = label
        self._profile = profile
        self._predicted = predicted
        self._about = about  # makes a record of the data and the cluster
        self._name = uuid4().hex
        self._held = False
        self._confirmed = 0.0  # monotonic: when the scheduler had the hold last
        self._unheld = 0.0  # seconds
        self._noted = _Noted()
        self._around = AsyncExitStack()

    def __repr__(self) -> str:
        state = repr(self.monitor) if self.measures is None else str(self.measures)
        return f"<Hold: {state}>"

    @property
    def client(self) -> Client:
        return self._client

    async def _begin(self) -> None:
        await self._around.__aenter__()
        try:
            await self._around.enter_async_context(self.monitor)
            self._around.push_async_callback(self._give_back)
            await self._take()
            if self._profile is not None:
                report: Any = performance_report(filename=self._profile)
                await self._around.enter_async_context(report)
            task = asyncio.ensure_future(self._listen())
            self._around.push_async_callback(_cancelled, task)
            task = asyncio.ensure_future(self._keep())
            self._around.push_async_callback(_cancelled, task)
            self._noted.start = monotonic()  # from here on it is the run's
        except BaseException:
            await self._around.aclose()
            raise

    async def _end(self) -> None:
        seconds = monotonic() - self._noted.start
        began = time() - seconds
        for snapshot in self.monitor.snapshots[-1:]:
            for text in self._noted.take(snapshot):
                _tell(text)
        await self._around.aclose()
        self.measures = measures = replace(
            self._noted.measures(seconds, self._predicted), unheld=self._unheld
        )
        _tell(str(measures))
        label = "" if self._label == UNNAMED else self._label
        hindered = await noting.note(
            lambda: noting.of_hold(
                self._about and self._about(),
                label,
                began,
                measures,
                self.monitor,
                self._error,
            )
        )
        if hindered:
            _tell(hindered)

    async def _take(self) -> None:
        """Waits while a plan of another client's is being carried out."""
        end = monotonic() + PATIENCE
        while (holder := await self._ask_for_it()) is not None:
            if monotonic() > end:
                raise LeaseHeldError(
                    f"another plan is being carried out on this cluster: {holder}; try "
                    "again when it has ended"
                )
            await asyncio.sleep(0.2)

    async def _ask_for_it(self) -> str | None:
        """Take the hold; the label of another client's plan that is in the way."""
        mine = {"owner": self.client.id, "label": self._label, "name": self._name}
        answer = await monitor.ask(self.client, "begin_hold", **mine)
        if answer:
            return printable(answer["holder"]["label"])
        self._held, self._confirmed = True, monotonic()
        return None

    async def _keep(self) -> None:
        """Give the scheduler signs of life, and take a lost hold again."""
        try:
            while True:
                await asyncio.sleep(REFRESH)
                # the monitor reports it, and the hold is looked for when it is over
                with suppress(ConnectionLostError):
                    await self._refresh()
        except Exception as error:  # noqa: BLE001, it must be told while the fit runs
            _tell(
                "the hold is no longer kept up, so adaptive scaling and other clients "
                f"may change workers: {printable(repr(error), longest=200)}. Stop the "
                "fit if a worker goes"
            )

    async def _refresh(self) -> None:
        if await monitor.ask(self.client, "is_held", name=self._name):
            self._confirmed = monotonic()
            return
        lost = self._confirmed
        if self._held:
            self._held = False
            _tell(
                "the scheduler ended this hold: it was started again, or had no sign "
                "of this client for a while. Adaptive scaling and plans of other "
                f"clients may have changed workers in the last {_since(lost)}. If a "
                "worker is gone, stop the fit, and prepare and fit again"
            )
        if await self._ask_for_it() is None:
            self._unheld += self._confirmed - lost
            _tell(f"the hold was taken again after {_since(lost)}")

    async def _give_back(self) -> None:
        # also where the answer to the request for it did not come
        try:
            there = await give_back(self.client, "end_hold", name=self._name)
        except (ClustertuneError, asyncio.TimeoutError) as error:
            _tell(f"the hold could not be given back: {printable(repr(error))}")
        else:
            if self._confirmed and not there:
                self._unheld += monotonic() - self._confirmed
            if self._held and not there:
                _tell(
                    "the hold had ended before: the scheduler was started again, or "
                    "had no sign of this client for a while"
                )

    async def _listen(self) -> None:
        try:
            await self._say_what_happens()
        except Exception as error:  # noqa: BLE001, whoever trains must hear of it
            text = printable(repr(error), longest=200)
            _tell(f"the cluster is watched no more: {text}")

    async def _say_what_happens(self) -> None:
        """Say at once what a library that waits will not say."""
        said: set[tuple[str, tuple[str | int, ...]]] = set()
        async for snapshot in self.monitor:
            for text in self._noted.take(snapshot):
                _tell(text)
            for event in self.monitor.take_events():
                found: Finding = event.finding
                subject = (event.kind + found.check, found.subject)
                if found.check in SAID and subject not in said:
                    said.add(subject)
                    began = event.kind == "began" and found.remedy
                    advice = f". {found.remedy}" if began else ""
                    _tell(f"{event}{advice}")


class _Noted:
    """What was seen of a run so far."""

    def __init__(self) -> None:
        self.start = 0.0
        self.last: Snapshot | None = None
        self.there: set[str | int] | None = None
        self.peaks: dict[str | int, int] = {}
        self.limits: dict[str | int, int] = {}
        self.idle: dict[str | int, int] = {}
        self.spilled = 0
        self.cpu: dict[str | int, list[float]] = {}
        self.gone: list[str | int] = []

    def take(self, snapshot: Snapshot) -> list[str]:
        """Take notice of a look; what there is to say of it."""
        if snapshot is self.last:
            return []
        now = {w.id for w in snapshot.workers}
        for w in snapshot.workers:
            self.peaks[w.id] = max(w.process, self.peaks.get(w.id, 0))
            self.limits[w.id] = w.memory_limit
            self.idle.setdefault(w.id, w.unmanaged)
            if self.last is not None:  # the first look is of what was before
                self.cpu.setdefault(w.id, []).append(w.cpu)
        self.last = snapshot
        self.spilled = max(self.spilled, sum(w.spilled for w in snapshot.workers))
        went = sorted((self.there or set()) - now, key=str)
        self.gone += [id for id in went if id not in self.gone]
        self.there = now
        return [
            f"worker {names_text([id])} is gone: a fit that runs on it fails or hangs; "
            "stop it, and prepare and fit again"
            for id in went
        ]

    def measures(self, seconds: float, predicted: int | None) -> Measures:
        return Measures(
            seconds=seconds,
            peaks=self.peaks,
            limits=self.limits,
            spilled=self.spilled,
            busy={id: sum(n) / len(n) for id, n in self.cpu.items()},
            gone=tuple(self.gone),
            predicted=predicted,
            idle=self.idle,
        )


def _since(moment: float) -> str:
    """The time since a monotonic moment, in words."""
    return seconds_text(monotonic() - moment)


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _tell(text: str) -> None:
    """To whoever watches, and to the log."""
    logger.warning("%s", printable(text))
    if sys.stderr is not None and sys.stderr.isatty():
        sys.stderr.write(f"clustertune: {printable(text)}\n")
        sys.stderr.flush()


def hold(
    client: Client,
    *,
    label: str = UNNAMED,
    profile: str | None = None,
) -> Hold:
    """Hold adaptive scaling and other plans off the cluster, for a block.

    Parameters
    ----------
    client
        A connected client, synchronous (``with``) or asynchronous (``async with``).
    label
        What others are told of it, and the job under which the history notes the run:
        ``"training of the week"``.
    profile
        A file, for Dask's performance report of the block.

    Returns
    -------
    Hold
        A context manager. What happens to workers meanwhile is said at once, to the
        log ``clustertune`` and in a terminal; ``measures`` says what the run took.

    Raises
    ------
    ConnectionLostError, VersionMismatchError
        The cluster cannot be watched.
    LeaseHeldError
        A plan of another client's has not ended within a minute.

    Examples
    --------
    >>> with clustertune.hold(client) as held:                  # doctest: +SKIP
    ...     model.fit(X, y)
    >>> held.measures                                           # doctest: +SKIP
    """
    return Hold(client, label=label, profile=profile)
