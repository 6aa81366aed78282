"""The lease of a cluster (one plan at a time), its jobs, and the graphs it computes.

The scheduler plugin carries the jobs out. However a call ends, its job is stopped
(bytes in flight land, preparations are undone) and the lease is given back.

A graph binds tasks to workers. A binding outlives its task. A task that is computed
again after its worker was lost would wait for that worker indefinitely. So the
scheduler plugin records the bindings, and removes them.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from time import monotonic
from types import MappingProxyType
from typing import Any
from uuid import uuid4

from distributed import Client

from clustertune.collections import graphs
from clustertune.core.model import Key, Notify
from clustertune.core.wording import (
    MAX_PATH,
    names_text,
    printable,
    reading_fix,
    seconds_text,
)
from clustertune.errors import ConnectionLostError, IncompleteError, LeaseHeldError
from clustertune.monitor import connection, inquiry, monitor
from clustertune.remote import keys
from clustertune.remote.ending import end_tasks, within

# --- lease ----------------------------------------------------------------------------

logger = logging.getLogger("clustertune")

WAIT = 0.25  # seconds after which a job that has not ended reports its progress
LANDING = 10.0  # seconds for a cancelled job to land bytes in flight
REFRESH = 3.0  # seconds between two requests that keep a lease
RETRY = 0.5  # seconds between two tries to give something back

_returning: set[asyncio.Task[Any]] = set()  # keeps them alive


async def give_back(client: Client, method: str, **arguments: Any) -> Any:
    """End a lease or a hold; return the answer.

    Both last as long as the client, so the request has to arrive. If the client is
    reconnecting, the request is repeated in the background until the client closes.
    Raises ``ConnectionLostError`` if the request has not arrived yet, or the client is
    closed; ``asyncio.TimeoutError`` if the request is not answered yet.
    """
    task = asyncio.ensure_future(_delivered(client, method, **arguments))
    _returning.add(task)
    task.add_done_callback(_returned)
    end = LANDING
    while not task.done():
        if client.status == "connecting":
            raise ConnectionLostError(
                "the client lost its connection to the scheduler, and tries to connect "
                "again; if the scheduler has ended, the data in memory is lost"
            )
        if end <= 0:
            raise asyncio.TimeoutError
        await asyncio.wait([task], timeout=RETRY)
        end -= RETRY
    return task.result()


async def _delivered(client: Client, method: str, **arguments: Any) -> Any:
    while True:
        try:
            return await monitor.ask(client, method, **arguments)
        except ConnectionLostError as error:
            gone = isinstance(error, monitor.PluginMissingError)
            if gone or client.status not in ("running", "connecting"):
                raise
        await asyncio.sleep(RETRY)


def _returned(task: asyncio.Task[Any]) -> None:
    _returning.discard(task)
    if not task.cancelled() and task.exception() is not None:
        error = task.exception()
        logger.debug("clustertune could not release the lease or hold: %r", error)


def _instead(label: str) -> str:
    """How to avoid that a restart waits for a fit."""
    if label != "restart":
        return ""
    return "; `clustertune schedule restart` waits for the next gap instead"


class Lease:
    """The lease of a call; ``remaining`` returns the seconds left for the call."""

    def __init__(self, client: Client, remaining: Callable[[], float]):
        self.client = client
        self.remaining = remaining
        self.token = ""
        self.opened = False  # whether the scheduler plugin is installed
        self.silent = False  # whether the scheduler did not answer a request
        #: keys that workers lost during the lease, and keys that are not computed again
        #: yet, by address, without those of jobs; None: unknown
        self.lost: dict[str, tuple[int, int]] | None = {}

    @asynccontextmanager
    async def held(
        self,
        label: str,
        notify: Notify,
        patience: float = math.inf,
        despite_holds: bool = False,
    ) -> AsyncIterator[None]:
        """Hold the lease; wait while another plan holds it, or a fit has a hold.

        Raises ``LeaseHeldError`` if another client still holds it after ``patience``
        seconds, or at the end of the time limit.
        """
        # with our own token the lease can be given back before the answer arrives
        self.token, self.lost = uuid4().hex, None
        try:
            await self._acquire(
                notify,
                monotonic() + patience,
                label=label,
                token=self.token,
                despite_holds=despite_holds,
            )
            async with self._refreshed():
                yield
        finally:
            await asyncio.shield(self._give_back())

    @asynccontextmanager
    async def _refreshed(self) -> AsyncIterator[None]:
        """Send regular requests, so that a long call keeps its lease.

        The client's heartbeat may be slower than the time after which a lease ends.
        """
        task = asyncio.ensure_future(self._refresh())
        try:
            yield
        finally:
            await end_tasks(task)

    async def _refresh(self) -> None:
        there = True
        while there:  # else the next request of the call raises
            await asyncio.sleep(REFRESH)
            # requests of the call itself raise
            with suppress(ConnectionLostError):
                there = await monitor.ask(self.client, "is_held", name=self.token)

    async def _give_back(self) -> None:
        if not self.opened or self.client.status in ("closed", "closing"):
            return  # the lease ends with the client
        try:
            answer = await give_back(self.client, "release", token=self.token)
            if answer["held"] and answer["lost"] is not None:
                self.lost = {a: (lost, coming) for a, lost, coming in answer["lost"]}
        except ConnectionLostError as error:
            # the request is repeated, or the scheduler is gone
            logger.info("clustertune could not release its lease yet: %r", error)
        # any error: it must not hide the error of the call
        except Exception as error:  # noqa: BLE001
            logger.warning("clustertune could not release its lease: %r", error)

    async def _acquire(self, notify: Notify, end: float, **asked: Any) -> None:
        label, mine = asked["label"], asked | {"owner": self.client.id}
        while "holder" in (answer := await monitor.ask(self.client, "acquire", **mine)):
            holder = printable(answer["holder"]["label"])
            does = "waits for" if answer["holder"].get("waits") else "runs on"
            if self.remaining() < 1 or monotonic() >= end:
                raise LeaseHeldError(
                    f"another plan {does} this cluster: {holder} "
                    f"(client {printable(answer['holder']['client'])}); try again when "
                    f"it has ended, or give a longer timeout{_instead(label)}"
                )
            notify(f"waiting for another plan to end: {holder}", None)
            await asyncio.sleep(0.5)

    async def ask(self, method: str, **arguments: Any) -> Any:
        """Send a request that only the holder may send."""
        return await monitor.ask(self.client, method, token=self.token, **arguments)

    async def quietly(self, method: str, **arguments: Any) -> None:
        """Send a request that cleans up; ignore a scheduler that has ended."""
        if self.client.status != "running" or self.silent or not self.opened:
            return
        request = monitor.ask(self.client, method, **arguments)
        try:
            await within(request, LANDING)
        except (ConnectionLostError, asyncio.TimeoutError) as error:
            self.silent = True  # later requests would wait as long
            logger.info("clustertune could not %s: %r", method, error)
        # any error: it must not hide the error of the call
        except Exception as error:  # noqa: BLE001
            logger.warning("clustertune could not %s: %r", method, error)

    async def job(
        self,
        method: str,
        tell: Callable[[dict[str, Any]], None],
        ended: list[dict[str, Any]] | None = None,
        **arguments: Any,
    ) -> dict[str, Any]:
        """Have the scheduler plugin carry out a job; return its last state.

        ``tell`` is called with each state. When cancelled, this stops the job, waits
        for its end for a while, and appends the last state to ``ended``.
        """
        begun = asyncio.ensure_future(self.ask(method, **arguments))
        try:
            asked = {"job": await asyncio.shield(begun), "wait": WAIT}
            while not (state := await self.ask("progress", **asked))["finished"]:
                self.refuse_late()
                tell(state)
        except BaseException:
            stop = self._stop(begun, [] if ended is None else ended)
            stopping = asyncio.ensure_future(stop)
            try:
                await asyncio.shield(stopping)
            # the limit of the call may follow the error of `refuse_late` at once
            except asyncio.CancelledError:
                await asyncio.shield(stopping)
            raise
        found: dict[str, Any] = state
        return found

    async def _stop(
        self, begun: asyncio.Future[str], ended: list[dict[str, Any]]
    ) -> None:
        """Stop a job, and append its last state, which may be undoing its work.

        Its name may still be on the way.
        """
        end = monotonic() + LANDING
        try:
            name = await within(begun, LANDING)
        # the caller raises its own error; without an answer, the lease stops the job
        except Exception as error:  # noqa: BLE001
            logger.info("clustertune could not stop a job: %r", error)
            return
        asked = {"job": name, "wait": WAIT, "stop": True}
        while not self.silent and (seconds := end - monotonic()) > 0:
            try:
                work = self.ask("progress", **asked)
                state = await within(work, seconds)
            # the caller reports the unknown end, and raises its own error
            except Exception as error:  # noqa: BLE001
                logger.info("clustertune could not read how a job ended: %r", error)
                return
            ended[:] = [state]
            if state["finished"]:
                return

    def refuse_late(self) -> None:
        """Raise at the time limit: before Python 3.12 ``wait_for`` may miss it."""
        if self.remaining() <= 0:
            raise asyncio.TimeoutError


# --- computing a graph ----------------------------------------------------------------

POLL = 0.05  # seconds between two looks at progress
STUCK_INTERVAL = 0.5  # seconds between two requests to unbind stuck tasks
RELEASE = 0.01  # seconds between two looks for old partitions to release
MEMORY_INTERVAL = 0.2  # least seconds between two requests for bytes in memory
MEMORY_SHARE = 20  # least time between requests, in times of the last request
UNMET_INTERVAL = 2.0  # seconds between two requests for unmet restrictions
RETURN_SECONDS = 30.0  # for lost workers to come back
MAX_KEYS = 1000  # of a request for unmet restrictions

Judge = Callable[[int, int, int], None]
"""Called with the number of partitions, of those in memory, and bytes; may raise."""

Meanwhile = Callable[[], Awaitable[None]]
"""Called repeatedly while partitions are computed."""


class Computing:
    """The computations of a call, under its lease."""

    def __init__(self, lease: Lease):
        self.client = lease.client
        self._lease = lease

    async def partitions(
        self,
        graph: graphs.Graph,
        notify: Notify,
        doing: str,
        judge: Judge | None = None,
    ) -> dict[Key, Any]:
        """Compute a graph, each task on its worker; return the futures by key.

        ``judge`` is called repeatedly, and raises to stop. Raises ``IncompleteError``,
        ``ConnectionLostError`` if :meth:`settle` does; the partitions are released
        then.
        """
        async with self.pinned(graph) as pin:
            futures = await asyncio.to_thread(graphs.submit, self.client, graph)
            try:
                judging = None
                if judge is not None:
                    judging = await self._memory_judge(futures, judge)
                await self.settle(
                    list(futures.values()),
                    notify,
                    doing,
                    graph.partitions,
                    pin,
                    judging,
                    sources=graph.sources,
                )
            except BaseException:
                for future in futures.values():
                    future.release()  # a traceback would keep them
                raise
        return futures

    @asynccontextmanager
    async def pinned(self, graph: graphs.Graph) -> AsyncIterator[str]:
        """Bind tasks to workers during a block; yield the name of the binding."""
        # sorted by name, so that consecutive keys pack into ranges
        ours = sorted(graph.where, key=_name_of)
        names = await asyncio.to_thread(keys.pack, ours)
        pin = await self._lease.ask("pin", keys=names)
        try:
            yield pin
        finally:
            unpin = self._lease.quietly("unpin", token=self._lease.token, name=pin)
            await asyncio.shield(unpin)

    async def settle(
        self,
        futures: list[Any],
        notify: Notify,
        doing: str,
        labels: Mapping[str, Sequence[Key]],
        pin: str = "",
        meanwhile: Meanwhile | None = None,
        pause: float = POLL,
        sources: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> None:
        """Wait until every partition is in memory.

        ``labels`` have the keys of partitions by label, and ``sources`` their files if
        known, for errors. ``pin`` names bound
        tasks; those of a lost or paused worker are unbound. ``meanwhile`` is called
        after each ``pause`` (seconds), and at the end. Raises
        ``IncompleteError`` if a partition was lost, could not be computed, or is bound
        to workers that are gone; ``ConnectionLostError`` if the client was closed.
        """
        patience = _Patience(self.client)
        pending = futures
        asked = monotonic()
        # "lost": the key's worker died, and the key is not computed again yet
        while pending := [f for f in pending if f.status in ("pending", "lost")]:
            await self._refuse_failed(futures, labels, sources)
            connection.refuse_closed(self.client)
            self._lease.refuse_late()
            done = 1 - len(pending) / len(futures)
            unmet = await patience.look([f.key for f in pending[:MAX_KEYS]])
            notify(f"{doing} {len(futures)} partitions{unmet}", done)
            if pin and monotonic() - asked > STUCK_INTERVAL:
                asked = monotonic()
                await self._lease.ask("unpin", name=pin, stuck=True)
            if meanwhile is not None:
                await meanwhile()
            await graphs.wait_for_last(self.client, pending, pause)
        await self._refuse_failed(futures, labels, sources)
        if meanwhile is not None:
            await meanwhile()

    async def _memory_judge(self, names: Iterable[Key], judge: Judge) -> Meanwhile:
        """Return a function that requests the bytes in memory and calls ``judge``."""
        partitions = list(names)
        packed = await asyncio.to_thread(keys.pack, partitions)
        next_time = monotonic() + MEMORY_INTERVAL

        async def judging() -> None:
            nonlocal next_time
            start = monotonic()
            if start < next_time:
                return
            there, nbytes = await inquiry.held(self.client, packed)
            judge(len(partitions), there, nbytes)
            took = monotonic() - start
            next_time = monotonic() + max(MEMORY_INTERVAL, MEMORY_SHARE * took)

        return judging

    async def _refuse_failed(
        self,
        futures: list[Any],
        labels: Mapping[str, Sequence[Key]],
        sources: Mapping[str, Sequence[str]],
    ) -> None:
        for future in futures:
            if future.status in ("pending", "lost", "finished"):
                continue
            partition = _partition_text(future.key, labels, sources)
            if future.status == "error":
                error = await future.exception()
                text = printable(repr(error))
                fix = reading_fix(text)
                raise IncompleteError(
                    f"{partition} could not be computed: {text}{fix and f'. {fix}'}"
                ) from error
            raise IncompleteError(
                f"{partition} is {future.status}: its "
                "data was lost with a worker and cannot be recomputed, or it was "
                "cancelled; load the data again"
            )


class _Patience:
    """Watches partitions whose workers are gone, and raises after a while."""

    def __init__(self, client: Client):
        self.client = client
        self.asked = monotonic()
        self.since: float | None = None  # when the first worker was missed
        self.text = ""

    async def look(self, partitions: list[Key]) -> str:
        """Return what the partitions wait for, as text; raise after a while.

        Missing hosts and resources do not raise: an adaptive cluster may start them.
        """
        now = monotonic()
        if now - self.asked < UNMET_INTERVAL:
            return self.text
        self.asked = now
        found = await inquiry.look_at_keys(self.client, partitions)
        unmet = inquiry.read_unmet(found["unmet"])
        self.text = "".join(f"; {x}" for x in unmet)
        gone = [x for x in unmet if x.kind == "worker"]
        if not gone:
            self.since = None
            return self.text
        self.since = now if self.since is None else self.since
        if now - self.since > RETURN_SECONDS:
            raise IncompleteError(
                f"{gone[0]} and did not come back within "
                f"{seconds_text(now - self.since)}; load the data again without "
                "workers=, or with allow_other_workers=True"
            )
        return self.text


def _partition_text(
    key: Key,
    labels: Mapping[str, Sequence[Key]],
    sources: Mapping[str, Sequence[str]],
) -> str:
    """Return the number of a partition as users count it, and its file; or its key."""
    whose = [label for label, own in labels.items() if key in own]
    if not whose or not isinstance(key, tuple):
        return f"the partition {printable(str(key))}"
    files = sources.get(whose[0], ())
    number = labels[whose[0]].index(key)
    file = printable(files[number], longest=MAX_PATH) if number < len(files) else ""
    return f"partition {key[1]} of {names_text(whose)}{file and f' ({file})'}"


def _name_of(key: Key) -> str:
    return str(key[0]) if isinstance(key, tuple) else str(key)
