"""``dashboard_page``: the page on the dashboard of a scheduler."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client, Scheduler, Worker
from tornado.httpclient import (
    AsyncHTTPClient,
    HTTPClientError,
    HTTPRequest,
    HTTPResponse,
)
from tornado.websocket import WebSocketClientConnection, websocket_connect

import clustertune
from clustertune.dashboard import show
from clustertune.dashboard.show import page_url
from clustertune.dashboard.state import State, verdict
from clustertune.errors import RefusedError, TimedOutError, VersionMismatchError
from clustertune.monitor import monitor
from clustertune.monitor.connection import connected
from clustertune.remote import ending
from tests.in_process import ONE, gen_cluster, gen_test
from tests.processes import BLOCK, cluster, soon

BOARD = {"dashboard": True, "dashboard_address": "127.0.0.1:0"}


async def get(url: str) -> str:
    return (await AsyncHTTPClient().fetch(url)).body.decode()


@gen_cluster(client=True, nthreads=ONE, scheduler_kwargs=BOARD)
async def test_it_is_part_of_the_dashboard_once(c, s, a):
    """The page, and the link in the navigation."""
    page = await clustertune.dashboard_page(c)
    again = await clustertune.dashboard_page(c)
    base = f"http://127.0.0.1:{s.http_server.port}"
    assert page == again
    assert page.url == f"{base}/clustertune"
    assert len(s.http_application.applications) == 2
    page, status = await get(page.url), await get(f"{base}/status")
    assert page.count('href="clustertune"') == status.count('href="clustertune"') == 1


@gen_cluster(
    client=True, nthreads=ONE, scheduler_kwargs=BOARD | {"http_prefix": "my/proxy"}
)
async def test_a_dashboard_prefix_is_used(c, s, a):
    page = await clustertune.dashboard_page(c)
    assert page.url.endswith("/my/proxy/clustertune")
    assert "clustertune" in await get(page.url)


@gen_cluster(client=True, nthreads=ONE)
async def test_a_scheduler_without_a_dashboard(c, s, a):
    with pytest.raises(RefusedError, match=r"serves no dashboard.*dashboard --serve"):
        await clustertune.dashboard_page(c)


@gen_cluster(client=True, nthreads=ONE, scheduler_kwargs=BOARD)
async def test_a_scheduler_with_another_python(c, s, a, monkeypatch):
    """``dashboard --serve`` would show the same error."""

    async def refuse(client: Client) -> None:
        raise VersionMismatchError("another Python")

    monkeypatch.setattr(show, "run_checks", refuse)
    with pytest.raises(VersionMismatchError, match=r"^another Python$"):
        await clustertune.dashboard_page(c)


def test_a_scheduler_process_that_cannot_import_bokeh(tmp_path: Path) -> None:
    """The code of the page cannot be loaded there."""
    code = BLOCK.replace('"clustertune"', '"bokeh"')
    (tmp_path / "sitecustomize.py").write_text(code)
    with (
        cluster(tmp_path, 1, options=("--no-nanny",), PYTHONPATH=str(tmp_path)) as file,
        Client(scheduler_file=file) as client,
        pytest.raises(RefusedError, match="has no Bokeh"),
    ):
        clustertune.dashboard_page(client)


@pytest.mark.parametrize(
    ("link", "path", "url"),
    [
        ("http://h:1/status", "/clustertune", "http://h:1/clustertune"),
        ("http://h:1/p/status", "/p/clustertune", "http://h:1/p/clustertune"),
        ("http://h:1/status", "/p/clustertune", "http://h:1/p/clustertune"),
        ("/user/a/proxy/8787/status", "/clustertune", "/user/a/proxy/8787/clustertune"),
        ("https://hub/x/", "/clustertune", "https://hub/x/clustertune"),
        ("https://hub", "/clustertune", "https://hub/clustertune"),
    ],
)
def test_the_url_of_the_page(link: str, path: str, url: str) -> None:
    assert page_url(link, path) == url


def test_in_a_notebook_it_is_a_frame() -> None:
    page = show.DashboardPage('http://h/"><script>')
    assert "<script" not in page.show()._repr_html_() + page._repr_html_()
    assert 'height="500"' in page.show(height=500)._repr_html_()


def test_it_takes_a_client_and_no_address() -> None:
    with pytest.raises(TypeError, match="client"):
        clustertune.dashboard_page("tcp://127.0.0.1:8786")


# --- a server in this process ---------------------------------------------------------

EVIL = "<script>alert(1)</script>"
PROXY = "hub.example:8443"


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
    connect = partial(connected, address, seconds=60)
    async with show.serving(connect, port=0, origins=[PROXY]) as url:
        assert url.startswith("http://127.0.0.1:")
        yield url


# --- page states ----------------------------------------------------------------------


@asynccontextmanager
async def source_of(connect: show.Connect) -> AsyncIterator[show.Source]:
    source = show.Source(connect)
    following = asyncio.ensure_future(source.follow())
    try:
        yield source
    finally:
        await ending.end_tasks(following)


async def trouble(source: show.Source, words: str) -> State:
    """Read states until the trouble begins with these words; "" is no trouble."""

    def is_there() -> bool:
        source.wanted.set()
        found = str(source.state["trouble"])
        return found.startswith(words) if words else not found

    await soon(is_there)
    return await source.read()


@gen_cluster(client=False, nthreads=ONE)
async def test_it_reads_a_scheduler_without_a_dashboard(s, a):
    async with source_of(partial(connected, s.address, seconds=60)) as source:
        assert (await source.read())["trouble"] == "the cluster has not been read yet"
        state = await trouble(source, "")
        assert state["workers"][0]["thresholds"][2]  # the source has run the checks
        assert state["findings"]["command"] == f"clustertune check {s.address}"


@gen_cluster(client=False, nthreads=ONE)
async def test_a_cluster_to_which_no_code_is_sent(s, a, monkeypatch):
    """The page shows the reason, and nothing that it does not know."""

    async def refuse(client):
        raise VersionMismatchError("another Python")

    monkeypatch.setattr(show, "run_checks", refuse)
    async with source_of(partial(connected, s.address, seconds=60)) as source:
        state = await trouble(source, "another Python")
        assert verdict(state) == ("Unknown", "another Python")
        assert not s.plugins.get("clustertune")


@gen_cluster(client=False, nthreads=ONE)
async def test_checks_that_fail(s, a, monkeypatch):
    """The page shows the cluster without findings."""

    async def fail(client):
        await monitor.install_plugin(client, await monitor.identify(client))
        raise TimedOutError("a worker hangs")

    monkeypatch.setattr(show, "run_checks", fail)
    async with source_of(partial(connected, s.address, seconds=60)) as source:
        state = await trouble(source, "")
        assert state["findings"] is None
        assert state["workers"][0]["id"] == a.name


@gen_cluster(client=False, nthreads=ONE)
async def test_no_reader_no_request(s, a):
    async with source_of(partial(connected, s.address, seconds=60)) as source:
        await trouble(source, "")
        await soon(lambda: not source.wanted.is_set())
        latest = source.state
        await source.read()
        await soon(lambda: source.state is not latest)


@gen_test()
async def test_a_lost_scheduler_that_returns(monkeypatch):
    """The last state stays, with the reason, until the scheduler is back."""
    monkeypatch.setattr(show, "RETRY_INTERVAL", 0.0)
    monkeypatch.setattr(show, "INTERVAL", 0.0)
    options = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    async with Scheduler(port=0, **options) as s:
        address, port = s.address, s.port
        async with source_of(partial(connected, address, seconds=1)) as source:
            await trouble(source, "")
            await s.close()
            lost = await trouble(source, "the scheduler has not answered for")
            assert lost["scheduler"] == address
            async with Scheduler(port=port, **options):
                await trouble(source, "")


@gen_cluster(client=False, nthreads=ONE)
async def test_a_scheduler_that_hangs(s, a, monkeypatch):
    """The page shows since when it has no answer, until the scheduler answers."""
    monkeypatch.setattr(show, "RETRY_INTERVAL", 0.0)
    released = asyncio.Event()

    async def hang(**_):
        await released.wait()

    async with source_of(partial(connected, s.address, seconds=60)) as source:
        await trouble(source, "")
        monkeypatch.setattr(show, "CONNECT", 0.2)
        with monkeypatch.context() as patch:
            patch.setitem(s.handlers, "clustertune", hang)
            state = await trouble(source, "the scheduler has not answered for")
            assert "(no answer within 0.2 s)" in state["trouble"]
            assert verdict(state)[0] == "Unknown"
            monkeypatch.setattr(show, "CONNECT", 60.0)
        released.set()
        await trouble(source, "")


# --- the server -----------------------------------------------------------------------


@gen_cluster(client=False, nthreads=[])
async def test_the_page_loads_nothing_from_others(s: Any) -> None:
    """Its policy names its own server only."""
    async with served(s.address) as url:
        text = (await asked(url)).body.decode()
    (policy,) = re.findall(r"Content-Security-Policy' content=\"([^\"]*)\"", text)
    assert policy.startswith("default-src 'none'; connect-src 'self'; ")
    assert policy.endswith("base-uri 'none'; form-action 'none'")
    assert "http" not in policy
    assert "*" not in policy


@gen_cluster(client=False, nthreads=[])
async def test_the_server_ends_while_it_connects(
    s: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancellation that comes with the answer of the scheduler may get lost."""
    monkeypatch.setattr(ending, "AGAIN", 0.5)
    for turns in range(40):
        async with served(s.address):
            for _ in range(turns):
                await asyncio.sleep(0)


@gen_cluster(client=False, nthreads=[])
async def test_pages_of_other_origins_cannot_connect(s: Any) -> None:
    """The server refuses them, even with a token of the page.

    A host name that an attacker points at this machine is another origin, too.
    """
    async with served(s.address) as url:
        port = url.rstrip("/").rpartition(":")[2]
        for origin in (
            "http://evil.example",
            f"http://evil.example:{port}",
            "null",
            f"{url.rstrip('/')}.evil.example",
        ):
            with pytest.raises(HTTPClientError, match="403"):
                await websocket(url, origin)
        assert (await asked(url, Host=PROXY)).code == 200
        for path in (url, f"{url}ws"):
            host = f"evil.example:{port}"
            answer = await asked(path, Host=host, Origin=f"http://{host}")
            assert answer.code == 404
        for origin in (url.rstrip("/"), f"https://{PROXY}"):
            connection = await websocket(url, origin)
            connection.close()


@pytest.mark.parametrize("origin", ["http://proxy:80", "proxy:http", ""])
def test_wrong_origins(origin: str) -> None:
    with pytest.raises(ValueError, match=r"must be HOST or HOST:PORT"):
        show.allowed_hosts([PROXY, origin])


@gen_cluster(client=False, nthreads=[])
async def test_the_page_source_has_no_cluster_data(s: Any) -> None:
    """The HTML has no text of the cluster, which comes over the websocket."""
    async with Worker(s.address, name=EVIL, nthreads=1), served(s.address) as url:
        answer = await asked(url)
        assert answer.code == 200
        for text in (EVIL, "alert", s.address):
            assert text not in answer.body.decode()


ORIGINS = "distributed.scheduler.dashboard.bokeh-application.allow_websocket_origin"


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
