"""One plan at a time: a cluster's lease, and the jobs that need it.

The resident carries the jobs out. Whichever way a call ends, a job that it began is
stopped (what is in flight lands, what was prepared is undone) and the lease given back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from time import monotonic
from typing import Any
from uuid import uuid4

from distributed import Client

from clustertune.core.model import Notify
from clustertune.core.wording import printable
from clustertune.errors import ConnectionLostError, LeaseHeldError
from clustertune.monitor import monitor

logger = logging.getLogger("clustertune")

WAIT = 0.25  # seconds in which it is told how far a job is, if it has not ended
LANDING = 10.0  # seconds that a cancelled job is given to land what is in flight
REFRESH = 3.0  # seconds between two signs for the scheduler that a call goes on
AGAIN = 0.5  # seconds between two tries to give something back

_returning: set[asyncio.Task[Any]] = set()  # keeps them alive


async def give_back(client: Client, method: str, **arguments: Any) -> Any:
    """End a lease or a hold; its answer.

    The client keeps both while it lives, so the request has to arrive: where the client
    is reconnecting, it is repeated in the background until the client closes.

    Raises
    ------
    ConnectionLostError
        It has not arrived yet, or never will, since the client is closed.
    asyncio.TimeoutError
        It was not answered yet.
    """
    task = asyncio.ensure_future(_delivered(client, method, **arguments))
    _returning.add(task)
    task.add_done_callback(_returned)
    end = LANDING
    while not task.done():
        if client.status == "connecting":
            raise ConnectionLostError("the client is reconnecting")
        if end <= 0:
            raise asyncio.TimeoutError
        await asyncio.wait([task], timeout=AGAIN)
        end -= AGAIN
    return task.result()


async def _delivered(client: Client, method: str, **arguments: Any) -> Any:
    while True:
        try:
            return await monitor.ask(client, method, **arguments)
        except ConnectionLostError as error:
            gone = isinstance(error, monitor.ResidentGoneError)
            if gone or client.status not in ("running", "connecting"):
                raise
        await asyncio.sleep(AGAIN)


def _returned(task: asyncio.Task[Any]) -> None:
    _returning.discard(task)
    if not task.cancelled() and task.exception() is not None:
        logger.debug("clustertune could not give back: %r", task.exception())


def _instead(label: str) -> str:
    """How a restart need not wait for a fit."""
    if label != "restart":
        return ""
    return "; `clustertune restart --between-runs` waits for the next gap instead"


class Lease:
    """The lease of one client's cluster, as far as this call has it.

    Parameters
    ----------
    client
        A connected client.
    remaining
        Seconds that are left for everything.
    """

    def __init__(self, client: Client, remaining: Callable[[], float]):
        self.client = client
        self.remaining = remaining
        self.token = ""
        self.opened = False  # whether the resident is there

    @asynccontextmanager
    async def held(self, label: str, notify: Notify) -> AsyncIterator[None]:
        """Hold it; waits while another plan holds it.

        Raises
        ------
        LeaseHeldError
            Somebody else still holds it when the time is up.
        """
        # our own token: what was asked for can be given back, whenever we are stopped
        self.token = uuid4().hex
        try:
            await self._acquire(label, notify)
            async with self._refreshed():
                yield
        finally:
            await asyncio.shield(self._give_back())

    @asynccontextmanager
    async def _refreshed(self) -> AsyncIterator[None]:
        """Give the scheduler signs of life also where the call asks nothing for long.

        The client's own heartbeat may be slower than the scheduler's patience.
        """
        task = asyncio.ensure_future(self._refresh())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _refresh(self) -> None:
        there = True
        while there:  # otherwise the next request of the call raises
            await asyncio.sleep(REFRESH)
            # what the call itself asks raises: this is only a sign
            with suppress(ConnectionLostError):
                there = await monitor.ask(self.client, "is_held", name=self.token)

    async def _give_back(self) -> None:
        if not self.opened or self.client.status in ("closed", "closing"):
            return  # it ends with the client
        try:
            await give_back(self.client, "release", token=self.token)
        except ConnectionLostError as error:
            # the request is repeated while the client lives, or the scheduler is gone
            logger.info("clustertune could not release its lease yet: %r", error)
        # whatever it is, it must not hide what the caller has to say
        except Exception as error:  # noqa: BLE001
            logger.warning("clustertune could not release its lease: %r", error)

    async def _acquire(self, label: str, notify: Notify) -> None:
        mine = {"owner": self.client.id, "label": label, "token": self.token}
        while "holder" in (answer := await monitor.ask(self.client, "acquire", **mine)):
            holder = printable(answer["holder"]["label"])
            if self.remaining() < 1:
                raise LeaseHeldError(
                    f"another plan is being carried out on this cluster: {holder} "
                    f"(client {printable(answer['holder']['client'])}); try again when "
                    f"it has ended, or give a longer timeout{_instead(label)}"
                )
            notify(f"waiting for another plan to end: {holder}", None)
            await asyncio.sleep(0.5)

    async def ask(self, method: str, **arguments: Any) -> Any:
        """A request of the resident that only the holder may make."""
        return await monitor.ask(self.client, method, token=self.token, **arguments)

    async def quietly(self, method: str, **arguments: Any) -> None:
        """A request that tidies up: where the scheduler is gone, so is the mess."""
        if self.client.status != "running" or not self.opened:
            return
        request = monitor.ask(self.client, method, **arguments)
        try:
            await asyncio.wait_for(request, LANDING)
        except (ConnectionLostError, asyncio.TimeoutError) as error:
            self.opened = False  # later requests would only wait as long again
            logger.info("clustertune could not %s: %r", method, error)
        # whatever it is, it must not hide what the caller has to say
        except Exception as error:  # noqa: BLE001
            logger.warning("clustertune could not %s: %r", method, error)

    async def job(
        self,
        method: str,
        tell: Callable[[dict[str, Any]], None],
        ended: list[dict[str, Any]] | None = None,
        **arguments: Any,
    ) -> dict[str, Any]:
        """Have the resident carry a job out; its state at the end.

        ``tell`` is given its state meanwhile. Cancelled, it stops the job, waits a
        while for its end, and appends the last state to ``ended``.
        """
        name = await self.ask(method, **arguments)
        asked = {"job": name, "wait": WAIT}
        try:
            while not (state := await self.ask("progress", **asked))["finished"]:
                self.refuse_late()
                tell(state)
        except BaseException:
            await asyncio.shield(self._stop(name, [] if ended is None else ended))
            raise
        found: dict[str, Any] = state
        return found

    async def _stop(self, name: str, ended: list[dict[str, Any]]) -> None:
        """Stop a job, and append its last state, which may be that of its undoing."""
        await self.quietly("stop", job=name)
        asked, end = {"job": name, "wait": WAIT}, monotonic() + LANDING
        while self.opened and (seconds := end - monotonic()) > 0:
            try:
                work = self.ask("progress", **asked)
                state = await asyncio.wait_for(work, seconds)
            # the caller reports that nothing is known, and raises its own error
            except Exception as error:  # noqa: BLE001
                logger.info("clustertune could not learn how a job ended: %r", error)
                return
            ended[:] = [state]
            if state["finished"]:
                return

    def refuse_late(self) -> None:
        """Before Python 3.12 a cancelled ``wait_for`` may go on: see for ourselves."""
        if self.remaining() <= 0:
            raise asyncio.TimeoutError
