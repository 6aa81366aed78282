"""Compute a graph: bind tasks to workers, submit them, and wait for the partitions.

A binding outlives its task. A task that is computed again after its worker was lost
would wait for that worker indefinitely. So the scheduler plugin records the bindings,
and removes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

from distributed import Client

from clustertune.actions.cluster.lease import Lease
from clustertune.collections import graphs
from clustertune.core.model import Key, Notify
from clustertune.core.wording import printable, seconds_text
from clustertune.errors import IncompleteError
from clustertune.monitor import connection, inquiry, monitor
from clustertune.remote import keys

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
                await self.settle(list(futures.values()), notify, doing, pin, judging)
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
        pin: str = "",
        meanwhile: Meanwhile | None = None,
        pause: float = POLL,
    ) -> None:
        """Wait until every partition is in memory.

        ``pin`` names bound tasks; those of a lost or paused worker are unbound.
        ``meanwhile`` is called after each ``pause`` (seconds), and at the end. Raises
        ``IncompleteError`` if a partition was lost, could not be computed, or is bound
        to workers that are gone; ``ConnectionLostError`` if the client was closed.
        """
        patience = _Patience(self.client)
        pending = futures
        asked = monotonic()
        # "lost": the key's worker died, and the key is not computed again yet
        while pending := [f for f in pending if f.status in ("pending", "lost")]:
            await self._refuse_failed(futures)
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
        await self._refuse_failed(futures)
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

    async def _refuse_failed(self, futures: list[Any]) -> None:
        for future in futures:
            if future.status in ("pending", "lost", "finished"):
                continue
            if future.status == "error":
                error = await future.exception()
                raise IncompleteError(
                    f"the partition {printable(str(future.key))} could not be "
                    f"computed: {printable(repr(error))}"
                ) from error
            raise IncompleteError(
                f"the partition {printable(str(future.key))} is {future.status}: its "
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
        packed = await asyncio.to_thread(keys.pack, partitions)
        mine = {"owner": self.client.id, "keys": packed}
        found = await monitor.ask(self.client, "look_at_keys", **mine)
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


def _name_of(key: Key) -> str:
    return str(key[0]) if isinstance(key, tuple) else str(key)
