"""The server of the page: page states, headers, host names, and connections."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from time import time
from typing import Any

import dask
import pytest
from distributed import Scheduler, Worker
from distributed.utils_test import gen_cluster, gen_test
from tornado.httpclient import (
    AsyncHTTPClient,
    HTTPClientError,
    HTTPRequest,
    HTTPResponse,
)
from tornado.websocket import WebSocketClientConnection, websocket_connect

import clustertune
from clustertune.dashboard import link as links
from clustertune.dashboard import server
from clustertune.dashboard.state import verdict
from clustertune.errors import VersionMismatchError
from clustertune.monitor.connection import connected
from tests.processes import soon

EVIL = "<script>alert(1)</script>"
PROXY = "hub.example:8443"
ONE = [("127.0.0.1", 1)]


async def asked(url: str, **headers: str) -> HTTPResponse:
    request = HTTPRequest(url, headers=headers)
    return await AsyncHTTPClient().fetch(request, raise_error=False)


async def websocket(page: str, origin: str) -> WebSocketClientConnection:
    """Open a websocket of the page, as a page of the origin would."""
    (token,) = re.findall(r'"token":"([^"]+)"', (await asked(page)).body.decode())
    url = page.rstrip("/").replace("http://", "ws://") + "/ws"
    request = HTTPRequest(url, headers={"Origin": origin})
    return await websocket_connect(request, subprotocols=["bokeh", token])


@asynccontextmanager
async def served(address: str) -> AsyncIterator[str]:
    source = server.Source(partial(connected, address, seconds=10))
    options: dict[str, Any] = {"port": 0, "address": "127.0.0.1", "origins": [PROXY]}
    async with server.serving(source, **options) as url:
        yield url


# --- page states ----------------------------------------------------------------------


@asynccontextmanager
async def source_of(address: str):
    source = server.Source(partial(connected, address, seconds=10))
    try:
        yield source
    finally:
        await source.close()


@gen_cluster(client=False, nthreads=ONE)
async def test_it_serves_a_scheduler_without_a_dashboard(s, a):
    async with source_of(s.address) as source:
        state = await source.read()
        assert state["trouble"] == ""
        assert state["workers"]["pause"][0]  # the source has run the checks
        assert state["findings"]["command"] == f"clustertune check {s.address}"
        async with server.serving(
            source, port=0, address="127.0.0.1", origins=["hub.example"]
        ) as url:
            assert "clustertune" in (await asked(url)).body.decode()


@gen_cluster(client=False, nthreads=ONE)
async def test_it_shows_workers_without_sending_code(s, a, monkeypatch):
    async def refuse(client):
        raise VersionMismatchError("another Python")

    monkeypatch.setattr(links, "run_checks", refuse)
    async with source_of(s.address) as source:
        state = await source.read()
        assert state["workers"]["threads"] == [1]
        assert state["workers"]["pause"] == [None]
        (found,) = state["findings"]["found"]
        assert found["message"].endswith("inspected: another Python")
        assert verdict(state)[0] == "usable"
        assert not s.plugins.get("clustertune")


@pytest.mark.parametrize("shift", [-3600.0, 3600.0], ids=["slow", "fast"])
@gen_cluster(client=False, nthreads=ONE)
async def test_another_clock_than_the_scheduler(s, a, shift, monkeypatch):
    """Ages follow the scheduler's clock, also without code on the scheduler."""

    async def refuse(client):
        raise VersionMismatchError("another Python")

    monkeypatch.setattr(links, "run_checks", refuse)
    monkeypatch.setattr(server, "time", lambda: time() + shift)
    async with source_of(s.address) as source:
        state = await source.read()
        assert abs(state["time"] - time()) < 30
        assert state["findings"]["time"] == state["time"]
        assert state["workers"]["silent"][0] < 30


@gen_cluster(client=False, nthreads=ONE)
async def test_closed_while_it_connects(s, a):
    """No client is left, and readers get the last state."""
    made = []

    async def connect():
        client = await connected(s.address, seconds=10)
        made.append(client)
        try:
            await asyncio.Event().wait()
        except BaseException:
            await client.close()
            raise

    source = server.Source(connect)
    reading = asyncio.ensure_future(source.read())
    await soon(lambda: made)
    await source.close()
    assert made[0].status == "closed"
    assert (await reading)["trouble"] == "the cluster has not been read yet"
    assert (await source.read())["trouble"]
    assert len(made) == 1


@gen_test()
async def test_a_lost_scheduler_that_returns(monkeypatch):
    """The last state stays, with the reason, until the scheduler is back."""
    monkeypatch.setattr(server, "RETRY_INTERVAL", 0.0)
    monkeypatch.setattr(server, "MAX_AGE", 0.0)
    monkeypatch.setattr(server, "CONNECT", 0.5)
    options = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    async with Scheduler(port=0, **options) as s:
        address, port = s.address, s.port
        async with source_of(address) as source:
            assert (await source.read())["trouble"] == ""
            await s.close()
            lost = await source.read()
            while not lost["trouble"]:
                lost = await source.read()
            assert lost["trouble"].startswith("the scheduler has not answered for")
            assert lost["scheduler"] == address
            async with Scheduler(port=port, **options):
                back = await source.read()
                while back["trouble"]:
                    back = await source.read()


# --- the server -----------------------------------------------------------------------


def test_the_policy() -> None:
    """A page connects to its own server only."""
    policy = server.content_security_policy(())
    assert policy.startswith("default-src 'none'; connect-src 'self'; ")
    assert policy.endswith("base-uri 'none'; form-action 'none'")
    assert "http" not in policy
    assert "*" not in policy


@pytest.mark.parametrize(
    ("address", "origins", "allowed", "refused"),
    [
        ("127.0.0.1", [], ["127.0.0.1", "localhost", "::1"], ["evil.example", ""]),
        ("::1", ["Hub.example:443"], ["hub.example", "::1"], ["evil.example"]),
        ("localhost", ["[fe80::1]:80"], ["fe80::1"], ["fe80::2"]),
    ],
)
def test_names(
    address: str, origins: list[str], allowed: list[str], refused: list[str]
) -> None:
    """A server on a loopback address allows its own names, with any port."""
    found = server.allowed_hosts(address, origins)
    assert found is not None
    assert found.issuperset(allowed)
    assert found.isdisjoint(refused)


@pytest.mark.parametrize(
    ("address", "origins"), [("0.0.0.0", []), ("::", []), ("127.0.0.1", ["*"])]
)
def test_any_name(address: str, origins: list[str]) -> None:
    """Servers that others can reach allow all names."""
    assert server.allowed_hosts(address, origins) is None


@gen_cluster(client=False, nthreads=[])
async def test_every_answer_has_the_headers(s: Any) -> None:
    """The page, its resources and errors have the headers."""
    async with served(s.address) as url:
        for path in ("", "static/js/bokeh.min.js", "no-such-page"):
            answer = await asked(url + path)
            assert answer.code == (404 if path == "no-such-page" else 200)
            policy = answer.headers["Content-Security-Policy"]
            assert policy == server.content_security_policy(())
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Referrer-Policy"] == "no-referrer"


@gen_cluster(client=False, nthreads=[])
async def test_the_page_has_its_own_names(s: Any) -> None:
    """The server refuses foreign names that point to this machine."""
    async with served(s.address) as url:
        port = url.rstrip("/").rpartition(":")[2]
        for name in (f"127.0.0.1:{port}", f"localhost:{port}", "[::1]:9", PROXY):
            assert (await asked(url, Host=name)).code == 200
        for name in (f"evil.example:{port}", "127.0.0.1.evil.example", "[", EVIL):
            answer = await asked(url, Host=name)
            assert answer.code in (400, 403), name
            assert b"token" not in answer.body
        answer = await asked(url, Host=f"evil.example:{port}")
        assert "--allow-websocket-origin" in answer.body.decode()
        assert answer.headers["Content-Type"].startswith("text/plain")


@gen_cluster(client=False, nthreads=[])
async def test_pages_of_other_origins_cannot_connect(s: Any) -> None:
    """The server refuses them, even with a token of the page."""
    async with served(s.address) as url:
        for origin in (
            "http://evil.example",
            "null",
            f"{url.rstrip('/')}.evil.example",
        ):
            with pytest.raises(HTTPClientError, match="403"):
                await websocket(url, origin)
        for origin in (url.rstrip("/"), f"https://{PROXY}"):
            connection = await websocket(url, origin)
            connection.close()


@gen_cluster(client=False, nthreads=[])
async def test_the_page_source_has_no_cluster_data(s: Any) -> None:
    """The HTML has no text of the cluster, which comes over the websocket."""
    async with Worker(s.address, name=EVIL, nthreads=1), served(s.address) as url:
        answer = await asked(url)
        assert answer.code == 200
        for text in (EVIL, "alert", s.address):
            assert text not in answer.body.decode()


ORIGINS = "distributed.scheduler.dashboard.bokeh-application.allow_websocket_origin"
BOARD = {"dashboard": True, "dashboard_address": "127.0.0.1:0"}


@gen_cluster(
    client=True,
    nthreads=[("127.0.0.1", 1)],
    scheduler_kwargs=BOARD,
    config={ORIGINS: ["good.example"]},
)
async def test_the_dashboard_uses_dask_origins(c: Any, s: Any, a: Any) -> None:
    """The page and Dask's pages refuse the same origins."""
    page = (await clustertune.dashboard_page(c)).url
    for url in (page, page.replace("/clustertune", "/status")):
        with pytest.raises(HTTPClientError, match="403"):
            await websocket(url, "http://evil.example")
        connection = await websocket(url, "http://good.example:80")
        connection.close()


def test_origins_are_set_by_dask_settings() -> None:
    """The test above can fail."""
    assert dask.config.get(ORIGINS) == ["*"]
