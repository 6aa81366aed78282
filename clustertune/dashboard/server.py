"""A server for the page, for schedulers that cannot show it on their dashboard.

The scheduler needs no Bokeh. Bokeh's server refuses the websockets of other origins,
and the page without its websocket has no text of the cluster.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from time import time

from bokeh.server.server import Server
from distributed import Client

from clustertune.core.wording import seconds_text
from clustertune.dashboard import link, page
from clustertune.dashboard.state import State, make
from clustertune.errors import (
    ClustertuneError,
    ConnectionLostError,
    VersionMismatchError,
)
from clustertune.monitor import monitor

logger = logging.getLogger("clustertune")

CONNECT = 10.0  # seconds
RETRY_INTERVAL = 2.0  # seconds between two attempts to reach a lost scheduler
INTERVAL = 0.5  # seconds between two states

Connect = Callable[[], Awaitable[Client]]


class Source:
    """Page states of a cluster, read while a reader looks at the page.

    ``connect`` connects to the cluster. It is called again if the scheduler was lost.
    """

    def __init__(self, connect: Connect) -> None:
        self.connect = connect
        self.state = make(trouble="the cluster has not been read yet")
        self.answered: float | None = None  # epoch seconds of the last state
        self.wanted = asyncio.Event()

    async def read(self) -> State:
        """Return the last page state, and cause the next one."""
        self.wanted.set()
        return self.state

    async def follow(self) -> None:
        """Read page states until cancelled."""
        while True:
            try:
                await self._follow()
            # any error: the page shows its text, and the next attempt may succeed
            except Exception as error:  # noqa: BLE001
                self.state = self.state | {"trouble": self._trouble(error)}
            await asyncio.sleep(RETRY_INTERVAL)

    async def _follow(self) -> None:
        client = await self.connect()
        try:
            await self._check(client)
            while True:
                await self.wanted.wait()
                self.wanted.clear()
                self.state = await monitor.ask(client, "page")
                self.answered = time()
                await asyncio.sleep(INTERVAL)
        finally:
            await client.close()

    async def _check(self, client: Client) -> None:
        try:
            await link.run_checks(client)
        except (ConnectionLostError, VersionMismatchError):
            raise
        # the page of a cluster whose checks fail has no thresholds and no findings
        except ClustertuneError as error:
            logger.warning("clustertune's checks failed: %s", error)

    def _trouble(self, error: BaseException) -> str:
        reason = str(error) or type(error).__name__
        if self.answered is None:
            return reason
        duration = seconds_text(time() - self.answered)
        return f"the scheduler has not answered for {duration} ({reason})"


@asynccontextmanager
async def serving(
    connect: Connect, *, port: int, address: str, origins: Sequence[str]
) -> AsyncIterator[str]:
    """Serve the page during a block; yield its URL.

    ``port=0`` chooses a free port. ``address`` is the address of this machine to listen
    on. ``origins`` are ``HOST:PORT`` of other pages and proxies that may show the page.
    Raise OSError if the port is in use.
    """
    # Bokeh needs the number of the port before it listens
    with socket.create_server((address, port)) as free:
        port = free.getsockname()[1]
    source = Source(connect)
    server = Server(
        partial(page.build, read=source.read),
        port=port,
        address=address,
        allow_websocket_origin=[f"{address}:{port}", f"localhost:{port}", *origins],
    )
    server.start()
    following = asyncio.ensure_future(source.follow())
    try:
        yield f"http://{address}:{port}/"
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
        server.stop()
        server.unlisten()
