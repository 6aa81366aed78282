"""Show the page: on the dashboard of a cluster, or from this process.

``dashboard_page`` adds the page to the dashboard. :func:`serving` is a server for
schedulers that cannot show it. The scheduler then needs no Bokeh. The server refuses
other hosts and the websockets of other origins, and the page without its websocket has
no text of the cluster.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from html import escape
from time import time
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from bokeh.server.server import BaseServer
from bokeh.server.tornado import BokehTornado
from bokeh.server.util import check_allowlist, create_hosts_allowlist
from distributed import Client
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPServerRequest
from tornado.ioloop import IOLoop
from tornado.routing import Matcher, Rule, RuleRouter

from clustertune.core.wording import seconds_text
from clustertune.dashboard import mount, page
from clustertune.dashboard.state import State, make
from clustertune.errors import (
    ClustertuneError,
    ConnectionLostError,
    RefusedError,
    VersionMismatchError,
)
from clustertune.monitor import monitor
from clustertune.monitor.connection import sync
from clustertune.operations.call import check_client
from clustertune.operations.check import check
from clustertune.remote import ship
from clustertune.remote.ending import end_tasks, within

# --- on the dashboard -----------------------------------------------------------------

SERVE = "Run `clustertune dashboard --serve` to show the page from this machine"


@dataclass(frozen=True)
class DashboardPage:
    """The page of a cluster.

    Attributes
    ----------
    url : str
        Its address, from Dask's setting ``distributed.dashboard.link``.
    """

    url: str

    def show(self, height: int = 900) -> Any:
        """Show the live page in a notebook, ``height`` pixels high."""
        from IPython.display import IFrame  # only notebooks have it

        return IFrame(escape(self.url), "100%", height)

    def _repr_html_(self) -> str:
        url = escape(self.url)
        return f'<a href="{url}" target="_blank" rel="noopener">clustertune: {url}</a>'


def dashboard_page(client: Client) -> Any:
    """Add the page ``/clustertune`` to the dashboard of a cluster.

    The call runs all checks once, as :func:`clustertune.check` does, to learn the
    thresholds and the findings. The page shows memory and the places of prepared
    partitions live, and the findings with their age. A second call adds nothing. The
    page is read-only, and costs nothing while no browser shows it.

    Parameters
    ----------
    client
        A connected client, synchronous or asynchronous (then the call is awaited).

    Returns
    -------
    DashboardPage
        Its ``url``, and ``show()`` for a notebook.

    Raises
    ------
    RefusedError
        The scheduler has no dashboard.
    ConnectionLostError, VersionMismatchError
        The cluster cannot be reached, or no code may be sent to it.
    TimedOutError
        The checks took longer than a minute.

    Examples
    --------
    >>> clustertune.dashboard_page(client).show()  # doctest: +SKIP
    """
    check_client(client)
    return sync(client, add_page, client)


def run_checks(client: Client) -> Any:
    """Run all checks in an event loop; they send their findings to the scheduler."""
    return check(client)


async def add_page(client: Client) -> DashboardPage:
    """Carry out :func:`dashboard_page` in an event loop."""
    await run_checks(client)
    try:
        answer = await ship.on_scheduler(client, mount.mount)
    except ModuleNotFoundError as error:  # the page's code cannot be loaded there
        if (error.name or "").partition(".")[0] != "bokeh":
            raise
        answer = {"error": "has no Bokeh"}
    if "error" in answer:
        raise RefusedError(
            f"The scheduler {answer['error']}, so it cannot show the page. {SERVE}"
        )
    return DashboardPage(page_url(client.dashboard_link, answer["path"]))


def page_url(link: str, path: str) -> str:
    """Return the URL of a page of the dashboard.

    ``link`` is the URL of the status page by Dask's setting. It may be that of a proxy,
    with a folder that the scheduler does not have. ``path`` is the page's path on the
    scheduler, with its prefix.
    """
    parts = urlsplit(link)
    folder = parts.path.removesuffix("/").removesuffix("/status")
    prefix, _, name = path.rpartition("/")
    if not folder.endswith(prefix):
        folder += prefix
    return urlunsplit((parts.scheme, parts.netloc, f"{folder}/{name}", "", ""))


# --- a server in this process ---------------------------------------------------------

logger = logging.getLogger("clustertune")

LOOPBACK = "127.0.0.1"
CONNECT = 10.0  # seconds in which the scheduler accepts a connection, or answers
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
                self.state = await self._ask(client)
                self.answered = time()
                await asyncio.sleep(INTERVAL)
        finally:
            await client.close()

    async def _ask(self, client: Client) -> State:
        try:
            state: State = await within(monitor.ask(client, "page"), CONNECT)
        except asyncio.TimeoutError:
            limit = seconds_text(CONNECT)
            raise ConnectionLostError(f"no answer within {limit}") from None
        return state

    async def _check(self, client: Client) -> None:
        try:
            await run_checks(client)
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


class _Hosts(Matcher):
    """Requests to allowed hosts.

    tornado 6.6 accepts an origin that equals the host of its request, so a name that
    an attacker points at this machine would be allowed.
    """

    def __init__(self, allowed: Sequence[str]):
        self.allowed = allowed

    def match(self, request: HTTPServerRequest) -> dict[str, Any] | None:
        return {} if check_allowlist(request.host.lower(), self.allowed) else None


def allowed_hosts(origins: Iterable[str]) -> list[str]:
    """Return the hosts of origins for Bokeh; raise ValueError for a wrong one."""
    return [_allowed_host(origin) for origin in origins]


def _allowed_host(origin: str) -> str:
    try:
        (host,) = create_hosts_allowlist([origin.lower()], None)
    except ValueError as error:
        raise ValueError(
            f"the origin {origin!r} must be HOST or HOST:PORT, such as hub.example:8443"
        ) from error
    return host


@asynccontextmanager
async def serving(
    connect: Connect, *, port: int, origins: Sequence[str]
) -> AsyncIterator[str]:
    """Serve the page on the loopback address during a block; yield its URL.

    The page has no password, so other machines reach it only through a tunnel or a
    proxy of the user. ``port=0`` chooses a free port. ``origins`` are ``HOST:PORT`` of
    other pages and proxies that may show the page. Raise OSError if the port is in use,
    and ValueError for a wrong origin.
    """
    allowed = allowed_hosts(origins)
    listening = socket.create_server((LOOPBACK, port))
    listening.setblocking(False)
    _, port = listening.getsockname()
    allowed += [f"{name}:{port}" for name in (LOOPBACK, "localhost")]
    source = Source(connect)
    application = BokehTornado(
        partial(page.build, read=source.read), extra_websocket_origins=allowed
    )
    http = HTTPServer(RuleRouter([Rule(_Hosts(allowed), application)]))
    http.add_socket(listening)
    server = BaseServer(IOLoop.current(), application, http)
    server.start()
    following = asyncio.ensure_future(source.follow())
    try:
        yield f"http://{LOOPBACK}:{port}/"
    finally:
        await end_tasks(following)
        server.stop()
        server.unlisten()
