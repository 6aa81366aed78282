"""A server for the page, for schedulers that cannot show it on their dashboard.

The scheduler needs neither Bokeh nor code of clustertune. If such code must not be sent
to it, the page shows the scheduler's own data about its workers.

The page is read-only, and pages of other origins cannot read it. Bokeh refuses the
websockets of other origins. A server on a loopback address also refuses requests under
foreign host names, because an attacker can point a host name at 127.0.0.1. A content
security policy limits what injected markup could load or send. It must allow scripts in
the page, because BokehJS starts from one.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from ipaddress import ip_address
from time import monotonic, time
from typing import Any
from urllib.parse import urlsplit

from bokeh.application import Application
from bokeh.application.handlers.function import FunctionHandler
from bokeh.server.server import BaseServer
from bokeh.server.tornado import BokehTornado
from bokeh.server.util import create_hosts_allowlist
from distributed import Client
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPHeaders
from tornado.ioloop import IOLoop
from tornado.web import OutputTransform, RequestHandler

from clustertune.core.wording import printable, seconds_text
from clustertune.dashboard import link, page
from clustertune.dashboard.state import State, make, of_identity
from clustertune.errors import ClustertuneError, ConnectionLostError
from clustertune.monitor import monitor

CONNECT = 10.0  # seconds
RETRY_INTERVAL = 2.0  # seconds between two attempts to reach a lost scheduler
MAX_AGE = 0.5  # seconds during which all readers get the same state
LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))
ANY = "*"


# --- page states ----------------------------------------------------------------------


class Source:
    """Page states of a cluster, read while a reader looks at the page.

    ``connect`` connects to the cluster. It is called again if the scheduler was lost.
    """

    def __init__(self, connect: Callable[[], Awaitable[Client]]) -> None:
        self._connect = connect
        self._client: Client | None = None
        self._objection = ""  # why no code may be sent to this cluster
        self._state: State = make(trouble="the cluster has not been read yet")
        self._last_answer: float | None = None  # epoch seconds
        #: seconds by which this clock is ahead of the scheduler's
        self._clock_lead = 0.0
        self._last_read = self._last_attempt = -RETRY_INTERVAL  # monotonic
        self._lock = asyncio.Lock()
        self._looking: asyncio.Task[None] | None = None
        self._closed = False

    async def read(self) -> State:
        """Return the current page state, or the last one if the scheduler is lost."""
        async with self._lock:
            if monotonic() - self._last_read >= MAX_AGE and not self._closed:
                self._looking = asyncio.ensure_future(self._look())
                await asyncio.wait([self._looking])
                if not self._looking.cancelled():
                    self._looking.result()
                self._last_read = monotonic()
        return self._state

    async def close(self) -> None:
        self._closed = True
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        if self._client is not None:
            await self._client.close()

    async def _look(self) -> None:
        try:
            state = await self._ask(await self._connected())
        except (ClustertuneError, OSError, asyncio.TimeoutError) as error:
            self._state = self._state | {"trouble": self._lost(error)}
        else:
            self._state, self._last_answer = state, time()

    async def _ask(self, client: Client) -> State:
        if not self._objection:
            state: State = await monitor.ask(client, "page")
            return state
        scheduler: Any = client.scheduler
        now = time() - self._clock_lead
        state = of_identity(await scheduler.identity(n_workers=-1), now)
        finding = {
            "severity": "warning",  # such a cluster is never shown as ready
            "check": "dashboard",
            "message": f"workers and data cannot be inspected: {self._objection}",
            "evidence": "",
            "remedy": "",
        }
        found = {"time": now, "command": "clustertune check", "found": [finding]}
        return state | {"findings": found}

    def _lost(self, error: BaseException) -> str:
        duration = ""
        if self._last_answer is not None:
            duration = f" for {seconds_text(time() - self._last_answer)}"
        reason = str(error) or type(error).__name__
        return f"the scheduler has not answered{duration} ({reason})"

    async def _connected(self) -> Client:
        client = self._client
        if client is not None and client.status == "running":
            return client
        if monotonic() - self._last_attempt < RETRY_INTERVAL:
            raise ConnectionLostError(
                f"the next attempt is within {RETRY_INTERVAL:.0f} s"
            )
        self._last_attempt = monotonic()
        if client is not None:
            await client.close()
        self._client = client = await self._connect()
        self._clock_lead = await _clock_difference(client)
        try:
            await link.run_checks(client)
            self._objection = ""
        except ConnectionLostError:
            raise
        # an error of the checks must not hide the cluster
        except ClustertuneError as error:
            self._objection = str(error)
        return client


async def _clock_difference(client: Client) -> float:
    """Return the seconds by which this machine's clock is ahead of the scheduler's.

    The scheduler has just logged this client's connection by its own clock. Reading
    that event sends no code. Without the event the difference counts as zero.
    """
    now = time()
    logged = await client.get_events(client.id)
    return next((now - at for at, _ in reversed(logged)), 0.0)


# --- the server -----------------------------------------------------------------------


@asynccontextmanager
async def serving(
    source: Source, *, port: int, address: str, origins: Sequence[str]
) -> AsyncIterator[str]:
    """Serve the page during a block; yield its URL, and close the source afterwards.

    ``port=0`` chooses a free port. ``address`` is the address of this machine to listen
    on. ``origins`` are ``HOST:PORT`` of other pages and proxies that may show the page.
    Raise OSError if the port is in use.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # tornado's own function leaves a socket open if the port is in use
    listening = socket.create_server((address, port), family=family)
    listening.setblocking(False)
    port = listening.getsockname()[1]
    application = Application(FunctionHandler(partial(page.build, read=source.read)))
    own = [f"{host}:{port}" for host in {address, "localhost"}]
    tornado = ProtectedTornado(
        application,
        hosts=allowed_hosts(address, origins),
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


def content_security_policy(origins: Iterable[str]) -> str:
    """Return the header that limits what a page may load and connect to.

    Scripts and styles may come from the server itself and from ``origins``.
    """
    sources = " ".join(("'self'", *origins, "'unsafe-inline'"))
    parts = (
        "default-src 'none'",
        "connect-src 'self'",
        # BokehJS makes functions from text
        f"script-src {sources} 'unsafe-eval'",
        f"style-src {sources}",
        "img-src 'self' data:",
        "font-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
    )
    return "; ".join(parts)


def allowed_hosts(address: str, origins: Iterable[str]) -> frozenset[str] | None:
    """Return the host names that requests may use; None allows all.

    The server listens on ``address``. ``origins`` are ``HOST`` or ``HOST:PORT`` of
    pages and proxies that may show the page.
    """
    hosts = {_host(origin) for origin in origins}
    if ANY in hosts or not _is_loopback(address):
        return None  # anyone who reaches the machine may see the page
    return LOOPBACK | {address.lower()} | hosts


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return address.lower() in LOOPBACK


def _host(place: str) -> str:
    """Return the host of ``HOST:PORT``, or an empty text if there is none."""
    try:
        return urlsplit(f"//{place}").hostname or ""
    except ValueError:
        return ""


class ProtectedTornado(BokehTornado):
    """Bokeh's application, with security headers and a list of allowed host names.

    ``hosts`` are the host names that requests may use; None allows all.
    """

    def __init__(
        self, applications: Any, *, hosts: frozenset[str] | None, **options: Any
    ) -> None:
        super().__init__(applications, **options)
        self._hosts = hosts
        # Bokeh's settings may load scripts from other servers
        links = (urlsplit(link) for link in self.resources().js_files)
        others = {f"{link.scheme}://{link.netloc}" for link in links if link.netloc}
        policy = content_security_policy(sorted(others))
        transform: Any = partial(_Headers, policy)
        self.add_transform(transform)

    def find_handler(self, request: Any, **options: Any) -> Any:
        if self._hosts is None or _host(request.host) in self._hosts:
            return super().find_handler(request, **options)
        return self.get_handler_delegate(request, _Refused)


class _Headers(OutputTransform):
    """Adds the security headers to every answer."""

    def __init__(self, policy: str, request: Any) -> None:
        super().__init__(request)
        self._policy = policy

    def transform_first_chunk(
        self,
        status_code: int,
        headers: HTTPHeaders,
        chunk: bytes,
        finishing: bool,  # noqa: ARG002 - tornado passes it
    ) -> tuple[int, HTTPHeaders, bytes]:
        headers["Content-Security-Policy"] = self._policy
        headers["Referrer-Policy"] = "no-referrer"
        headers["X-Content-Type-Options"] = "nosniff"
        return status_code, headers, chunk


class _Refused(RequestHandler):
    """The answer to a request under a foreign host name."""

    def prepare(self) -> None:
        self.set_status(403)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        name = printable(self.request.host, longest=100)
        self.finish(
            f"This server does not show the page under the name {name}. If {name} is "
            "your proxy, run: clustertune dashboard --serve --allow-websocket-origin "
            "HOST[:PORT]\n"
        )
