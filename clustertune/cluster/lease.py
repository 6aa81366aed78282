"""One plan at a time: a cluster's lease, and the jobs that need it.

The resident carries the jobs out. Whichever way a call ends, a job that it began is
stopped (what is in flight lands, what was prepared is undone) and the lease given back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from distributed import Client

from clustertune.cluster import monitor
from clustertune.errors import LeaseHeldError
from clustertune.model import Notify
from clustertune.wording import printable

logger = logging.getLogger("clustertune")

WAIT = 0.25  # seconds in which it is told how far a job is, if it has not ended
LANDING = 10.0  # seconds that a cancelled job is given to land what is in flight


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
            yield
        finally:
            await asyncio.shield(self.quietly("release", token=self.token))

    async def _acquire(self, label: str, notify: Notify) -> None:
        mine = {"owner": self.client.id, "label": label, "token": self.token}
        while "holder" in (answer := await monitor.ask(self.client, "acquire", **mine)):
            holder = printable(answer["holder"]["label"])
            if self.remaining() < 1:
                raise LeaseHeldError(
                    f"another plan is being carried out on this cluster: {holder} "
                    f"(client {printable(answer['holder']['client'])}); try again when "
                    "it has ended, or give a longer timeout"
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
        # whatever it is, it must not hide what the caller has to say
        except Exception as error:  # noqa: BLE001
            logger.warning("clustertune could not %s: %r", method, error)

    async def job(
        self, method: str, tell: Callable[[dict[str, Any]], None], **arguments: Any
    ) -> dict[str, Any]:
        """Have the resident carry a job out; its state at the end.

        ``tell`` is given its state meanwhile. Cancelled, it stops the job.
        """
        name = await self.ask(method, **arguments)
        asked = {"job": name, "wait": WAIT}
        try:
            while not (state := await self.ask("progress", **asked))["finished"]:
                self.refuse_late()
                tell(state)
        except BaseException:
            await asyncio.shield(self.quietly("stop", job=name))
            raise
        found: dict[str, Any] = state
        return found

    def refuse_late(self) -> None:
        """Before Python 3.12 a cancelled ``wait_for`` may go on: see for ourselves."""
        if self.remaining() <= 0:
            raise asyncio.TimeoutError
