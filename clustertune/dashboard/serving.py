"""The panel as a server of its own, for schedulers that cannot show it themselves.

It needs no Bokeh on the scheduler, and none of our code there: where that must not be
sent, it shows what the scheduler says of its workers anyway.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from time import monotonic, time
from typing import Any

from bokeh.application import Application
from bokeh.application.handlers.function import FunctionHandler
from bokeh.server.server import BaseServer
from bokeh.server.util import create_hosts_allowlist
from distributed import Client
from tornado.httpserver import HTTPServer
from tornado.ioloop import IOLoop

from clustertune.core.wording import seconds_text
from clustertune.dashboard import page, showing
from clustertune.dashboard.shielding import Shielded, names
from clustertune.dashboard.state import State, make, of_identity
from clustertune.errors import (
    ClustertuneError,
    ConnectionLostError,
)
from clustertune.monitor import monitor

CONNECT = 10.0  # seconds
AGAIN = 2.0  # seconds between two tries to reach a scheduler that is gone
FRESH = 0.5  # seconds for which several readers are given the same state


class Source:
    """Page states of a cluster, asked for while somebody looks.

    Parameters
    ----------
    connect
        Connects to the cluster; called again where its scheduler was gone.
    """

    def __init__(self, connect: Callable[[], Awaitable[Client]]) -> None:
        self._connect = connect
        self._client: Client | None = None
        self._objection = ""  # why our code must not go to this cluster
        self._state: State = make(trouble="the cluster has not been looked at yet")
        self._seen: float | None = None  # epoch seconds
        self._ahead = 0.0  # seconds by which this clock is ahead of the scheduler's
        self._asked = self._tried = -AGAIN  # monotonic
        self._turn = asyncio.Lock()
        self._looking: asyncio.Task[None] | None = None
        self._closed = False

    async def read(self) -> State:
        """The page state of now; the last one where the scheduler is gone."""
        async with self._turn:
            if monotonic() - self._asked >= FRESH and not self._closed:
                self._looking = asyncio.ensure_future(self._look())
                await asyncio.wait([self._looking])
                if not self._looking.cancelled():
                    self._looking.result()
                self._asked = monotonic()
        return self._state

    async def close(self) -> None:
        """Let the cluster go, also where it is just being connected to."""
        self._closed = True
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        if self._client is not None:
            await self._client.close()

    async def _look(self) -> None:
        try:
            client = await self._connected()
            state = await self._ask(client)
        except (ClustertuneError, OSError, asyncio.TimeoutError) as error:
            self._state = self._state | {"trouble": self._lost(error)}
        else:
            self._state, self._seen = state, time()

    async def _ask(self, client: Client) -> State:
        if not self._objection:
            state: State = await monitor.ask(client, "page")
            return state
        scheduler: Any = client.scheduler
        now = time() - self._ahead
        state = of_identity(await scheduler.identity(n_workers=-1), now)
        note = {
            "severity": "warning",  # nobody can say that such a cluster is ready
            "check": "panel",
            "message": f"workers and data cannot be looked into: {self._objection}",
            "evidence": "",
            "remedy": "",
        }
        found = [note]
        command = "clustertune doctor"
        return state | {"findings": {"time": now, "command": command, "found": found}}

    def _lost(self, error: BaseException) -> str:
        since = (
            "" if self._seen is None else f" for {seconds_text(time() - self._seen)}"
        )
        why = str(error) or type(error).__name__
        return f"the scheduler has not answered{since} ({why})"

    async def _connected(self) -> Client:
        client = self._client
        if client is not None and client.status == "running":
            return client
        if monotonic() - self._tried < AGAIN:
            raise ConnectionLostError("it is asked again every few seconds")
        self._tried = monotonic()
        if client is not None:
            await client.close()
        self._client = client = await self._connect()
        self._ahead = await _ahead(client)
        try:
            await showing.tell(client)
            self._objection = ""
        except ConnectionLostError:
            raise
        # what is found on the way must not hide the cluster
        except ClustertuneError as error:
            self._objection = str(error)
        return client


async def _ahead(client: Client) -> float:
    """Seconds by which this machine's clock is ahead of the scheduler's.

    The scheduler has logged, by its own clock, when this client connected a moment ago.
    No code is sent for that. Without that event the clocks are taken to agree.
    """
    now = time()
    logged = await client.get_events(client.id)
    return next((now - at for at, _ in reversed(logged)), 0.0)


@asynccontextmanager
async def serving(
    source: Source, *, port: int, address: str, origins: Sequence[str]
) -> AsyncIterator[str]:
    """Serve the page for as long as a block lasts; yields where.

    Parameters
    ----------
    port
        0: any that is free.
    address
        Of this machine, on which it listens.
    origins
        ``HOST:PORT`` of pages and proxies that may show it, besides the address itself.

    Raises
    ------
    OSError
        The port is taken.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # unlike tornado's own it leaves none open where the port is taken
    listening = socket.create_server((address, port), family=family)
    listening.setblocking(False)
    port = listening.getsockname()[1]
    application = Application(FunctionHandler(partial(page.build, read=source.read)))
    own = [f"{host}:{port}" for host in {address, "localhost"}]
    tornado = Shielded(
        application,
        hosts=names(address, origins),
        extra_websocket_origins=create_hosts_allowlist([*own, *origins], port),
    )
    http = HTTPServer(tornado)
    http.add_socket(listening)
    server = BaseServer(IOLoop.current(), tornado, http)
    server.start()
    try:
        yield f"http://{address}:{port}/"
    finally:
        server.stop()
        http.stop()
        await source.close()
