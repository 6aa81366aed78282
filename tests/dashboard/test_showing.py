"""``panel``: on the scheduler's own dashboard, once; by itself where it cannot be."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import asynccontextmanager
from functools import partial
from time import time

import pytest
from distributed import Scheduler
from distributed.utils_test import gen_cluster, gen_test
from tornado.httpclient import AsyncHTTPClient

import clustertune
from clustertune.dashboard import mount, serving, showing
from clustertune.dashboard.showing import beside
from clustertune.dashboard.state import verdict
from clustertune.errors import RefusedError, VersionMismatchError
from clustertune.monitor.connection import connected
from tests.processes import soon

BOARD = {"dashboard": True, "dashboard_address": "127.0.0.1:0"}
ONE = [("127.0.0.1", 1)]


async def get(url: str) -> str:
    return (await AsyncHTTPClient().fetch(url)).body.decode()


@gen_cluster(client=True, nthreads=ONE, scheduler_kwargs=BOARD)
async def test_it_is_part_of_the_dashboard_once(c, s, a):
    """Pages, the list that JupyterLab reads, and a link; it uses Dask's insides."""
    panel = await clustertune.panel(c)
    again = await clustertune.panel(c)
    base = f"http://127.0.0.1:{s.http_server.port}"
    assert panel == again
    assert panel.url == f"{base}/clustertune"
    assert len(s.http_application.applications) == 2
    page, status = await get(panel.url), await get(f"{base}/status")
    assert page.count('href="clustertune"') == status.count('href="clustertune"') == 1
    listed = json.loads(await get(f"{base}/individual-plots.json"))
    ours = {name: uri for name, uri in listed.items() if "Clustertune" in name}
    assert ours["Individual Clustertune Memory"] == "/individual-clustertune-memory"
    assert len(ours) == len(mount.INDIVIDUAL)
    for uri in ours.values():
        assert "clustertune" in await get(base + uri)


@gen_cluster(
    client=True, nthreads=ONE, scheduler_kwargs=BOARD | {"http_prefix": "my/proxy"}
)
async def test_a_prefix_is_kept_to(c, s, a):
    panel = await clustertune.panel(c)
    assert panel.url.endswith("/my/proxy/clustertune")
    assert "clustertune" in await get(panel.url)


@gen_cluster(client=True, nthreads=ONE)
async def test_a_scheduler_without_a_dashboard(c, s, a):
    with pytest.raises(RefusedError, match=r"serves no dashboard; .*panel --serve"):
        await clustertune.panel(c)


@gen_cluster(client=True, nthreads=ONE, scheduler_kwargs=BOARD)
async def test_a_scheduler_without_bokeh(c, s, a, monkeypatch):
    monkeypatch.setitem(sys.modules, "bokeh.server.tornado", None)
    with pytest.raises(RefusedError, match="has no Bokeh"):
        await clustertune.panel(c)


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
def test_where_it_is(link: str, path: str, url: str) -> None:
    assert beside(link, path) == url


def test_in_a_notebook_it_is_a_frame() -> None:
    panel = showing.Panel('http://h/"><script>')
    assert "<script" not in panel.show()._repr_html_() + panel._repr_html_()
    assert 'height="500"' in panel.show(height=500)._repr_html_()


# --- served by itself -----------------------------------------------------------------


@asynccontextmanager
async def source_of(address: str):
    source = serving.Source(partial(connected, address, seconds=10))
    try:
        yield source
    finally:
        await source.close()


@gen_cluster(client=False, nthreads=ONE)
async def test_it_serves_a_scheduler_without_a_dashboard(s, a):
    async with source_of(s.address) as source:
        state = await source.read()
        assert state["trouble"] == ""
        assert state["workers"]["pause"][0]  # a check was run before
        assert state["findings"]["command"] == f"clustertune check {s.address}"
        async with serving.serving(
            source, port=0, address="127.0.0.1", origins=["hub.example"]
        ) as url:
            assert "clustertune" in await get(url)


@gen_cluster(client=False, nthreads=ONE)
async def test_where_our_code_must_not_go_it_shows_workers(s, a, monkeypatch):
    async def refuse(client):
        raise VersionMismatchError("another Python")

    monkeypatch.setattr(showing, "tell", refuse)
    async with source_of(s.address) as source:
        state = await source.read()
        assert state["workers"]["threads"] == [1]
        assert state["workers"]["pause"] == [None]
        (found,) = state["findings"]["found"]
        assert found["message"].endswith("looked into: another Python")
        assert verdict(state)[0] == "usable"  # that it is ready nobody knows
        assert not s.plugins.get("clustertune")


@pytest.mark.parametrize("shift", [-3600.0, 3600.0], ids=["slow", "fast"])
@gen_cluster(client=False, nthreads=ONE)
async def test_where_this_machine_has_another_clock(s, a, shift, monkeypatch):
    """Without code of ours, too, ages go by the scheduler's clock."""

    async def refuse(client):
        raise VersionMismatchError("another Python")

    monkeypatch.setattr(showing, "tell", refuse)
    monkeypatch.setattr(serving, "time", lambda: time() + shift)
    async with source_of(s.address) as source:
        state = await source.read()
        assert abs(state["time"] - time()) < 30
        assert state["findings"]["time"] == state["time"]
        assert state["workers"]["silent"][0] < 30


@gen_cluster(client=False, nthreads=ONE)
async def test_closed_while_it_connects(s, a):
    """No client is left, and whoever was asking gets what was known."""
    made = []

    async def connect():
        client = await connected(s.address, seconds=10)
        made.append(client)
        try:
            await asyncio.Event().wait()
        except BaseException:
            await client.close()
            raise

    source = serving.Source(connect)
    reading = asyncio.ensure_future(source.read())
    await soon(lambda: made)
    await source.close()
    assert made[0].status == "closed"
    assert (await reading)["trouble"] == "the cluster has not been looked at yet"
    assert (await source.read())["trouble"]
    assert len(made) == 1


@gen_test()
async def test_a_scheduler_that_goes_and_comes_back(monkeypatch):
    """The last state stays, with the reason, until the same address answers again."""
    monkeypatch.setattr(serving, "AGAIN", 0.0)
    monkeypatch.setattr(serving, "FRESH", 0.0)
    monkeypatch.setattr(serving, "CONNECT", 0.5)
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


def test_it_takes_a_client_and_no_address() -> None:
    with pytest.raises(TypeError, match="client"):
        clustertune.panel("tcp://127.0.0.1:8786")
