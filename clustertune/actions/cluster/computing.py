"""Tasks of ours on their way to pieces: bound to workers, sent, and waited for.

What goes wrong with a piece is raised. A binding outlives its task: computed again
after its worker was lost, the task would wait for that worker for ever. So the resident
knows what is bound, and lets it go.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from time import monotonic
from typing import Any

from distributed import CancelledError, Client, Future, wait

from clustertune.actions.cluster.lease import Lease
from clustertune.collections import graphs
from clustertune.core.model import Key, Notify
from clustertune.core.wording import printable, seconds_text
from clustertune.errors import IncompleteError
from clustertune.monitor import connection, inquiry, monitor
from clustertune.remote import keys

POLL = 0.05  # seconds between two questions how far something is
STUCK = 0.5  # seconds between two questions whether a task waits for a worker
RELEASE = 0.01  # seconds between two looks which old pieces can go
GLANCE = 0.2  # seconds between two questions what is in memory
RARELY = 20  # times as long as the question took, at least
VAIN = 2.0  # seconds between two questions whether pieces wait for who is gone
PATIENCE = 30.0  # seconds that are given to who is gone to come back
SOME = 1000  # pieces that are asked for

Judge = Callable[[int, int, int], None]
"""Given the number of all pieces, of those in memory, and of their bytes; may raise."""

Meanwhile = Callable[[], Awaitable[None]]
"""What is done now and then while pieces are on their way."""


class Computing:
    """What a call has the workers compute, under its lease."""

    def __init__(self, lease: Lease):
        self.client = lease.client
        self._lease = lease

    async def pieces(
        self,
        graph: graphs.Graph,
        notify: Notify,
        doing: str,
        judge: Judge | None = None,
    ) -> dict[Key, Any]:
        """Have a graph computed, each task on its worker; the futures of all pieces.

        ``judge`` is asked now and then whether to go on.

        Raises
        ------
        IncompleteError, ConnectionLostError
            As :meth:`settle`; the pieces are let go then.
        """
        async with self.pinned(graph) as pin:
            futures = await asyncio.to_thread(graphs.submit, self.client, graph)
            try:
                glance = None if judge is None else await self._glance(futures, judge)
                await self.settle(list(futures.values()), notify, doing, pin, glance)
            except BaseException:
                for future in futures.values():
                    future.release()  # a traceback would keep them
                raise
        return futures

    @asynccontextmanager
    async def pinned(self, graph: graphs.Graph) -> AsyncIterator[str]:
        """Tasks that are bound to workers for the time of a block, by a name."""
        # sorted by name, so that ranges are ranges
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
        """Wait until every piece is in memory.

        ``pin`` names tasks that are bound to workers: those of a worker that is gone
        or paused are let go. ``meanwhile`` is called after each ``pause`` (seconds),
        and at the end.

        Raises
        ------
        IncompleteError
            A piece could not be computed, or was lost; or it waits for workers to
            which the user has bound it, and they are gone.
        ConnectionLostError
            The client was closed.
        """
        patience = _Patience(self.client)
        pending = futures
        asked = monotonic()
        # "lost" is what a client calls a key whose worker died until it is there again
        while pending := [f for f in pending if f.status in ("pending", "lost")]:
            await self._refuse_failed(futures)
            connection.refuse_closed(self.client)
            self._lease.refuse_late()
            done = 1 - len(pending) / len(futures)
            vain = await patience.look([f.key for f in pending[:SOME]])
            notify(f"{doing} {len(futures)} pieces{vain}", done)
            if pin and monotonic() - asked > STUCK:
                asked = monotonic()
                await self._lease.ask("free_stuck", name=pin)
            if meanwhile is not None:
                await meanwhile()
            # looking at 100,000 states takes as long as the pause should
            await asyncio.sleep(len(futures) * 1e-6)
            await self._done_soon(pending[-1], pause)
        await self._refuse_failed(futures)
        if meanwhile is not None:
            await meanwhile()

    async def _glance(self, names: Iterable[Key], judge: Judge) -> Meanwhile:
        """What asks for the bytes in memory, not all the time, and has them judged."""
        pieces = list(names)
        packed = await asyncio.to_thread(keys.pack, pieces)
        next_time = monotonic() + GLANCE

        async def glance() -> None:
            nonlocal next_time
            start = monotonic()
            if start < next_time:
                return
            there, nbytes = await inquiry.held(self.client, packed)
            judge(len(pieces), there, nbytes)
            next_time = monotonic() + max(GLANCE, RARELY * (monotonic() - start))

        return glance

    async def _done_soon(self, future: Future[Any], seconds: float) -> None:
        """Wait for one of many, which are then looked at again, or so long."""
        with self.client.as_current():
            done: Any = wait(future, timeout=seconds)
        # one that is cancelled is no surprise to whoever looks at it next
        with suppress(asyncio.TimeoutError, CancelledError):
            await done

    async def _refuse_failed(self, futures: list[Any]) -> None:
        for future in futures:
            if future.status in ("pending", "lost", "finished"):
                continue
            if future.status == "error":
                error = await future.exception()
                raise IncompleteError(
                    f"the piece {printable(str(future.key))} could not be computed: "
                    f"{printable(repr(error))}"
                ) from error
            raise IncompleteError(
                f"the piece {printable(str(future.key))} is {future.status}: its data "
                "was lost with a worker and cannot be recomputed, or it was cancelled; "
                "load the data again"
            )


class _Patience:
    """With what is waited for, and may run on workers only that are gone."""

    def __init__(self, client: Client):
        self.client = client
        self.asked = monotonic()
        self.since: float | None = None  # when the first such worker was missed
        self.text = ""

    async def look(self, pieces: list[Key]) -> str:
        """What they wait for in vain, asked now and then; refused after a while.

        Hosts and resources may still come, as where a cluster scales by itself.
        """
        now = monotonic()
        if now - self.asked < VAIN:
            return self.text
        self.asked = now
        packed = await asyncio.to_thread(keys.pack, pieces)
        answer = await monitor.ask(self.client, "in_vain", keys=packed)
        unmet = inquiry.read_unmet(answer)
        self.text = "".join(f"; {x}" for x in unmet)
        gone = [x for x in unmet if x.kind == "worker"]
        if not gone:
            self.since = None
            return self.text
        self.since = now if self.since is None else self.since
        if now - self.since > PATIENCE:
            raise IncompleteError(
                f"{gone[0]} and did not come back within "
                f"{seconds_text(now - self.since)}; load the data again without "
                "workers=, or with allow_other_workers=True"
            )
        return self.text


def _name_of(key: Key) -> str:
    return str(key[0]) if isinstance(key, tuple) else str(key)
