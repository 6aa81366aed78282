"""``dashboard_page``: the page on the dashboard of a scheduler."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from distributed import Client
from tornado.httpclient import AsyncHTTPClient

import clustertune
from clustertune.dashboard import link as links
from clustertune.dashboard.link import page_url
from clustertune.errors import RefusedError
from tests.in_process import gen_cluster
from tests.processes import BLOCK, cluster

BOARD = {"dashboard": True, "dashboard_address": "127.0.0.1:0"}
ONE = [("127.0.0.1", 1)]


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
async def test_a_scheduler_without_bokeh(c, s, a, monkeypatch):
    monkeypatch.setitem(sys.modules, "bokeh.server.tornado", None)
    with pytest.raises(RefusedError, match="has no Bokeh"):
        await clustertune.dashboard_page(c)


def test_a_scheduler_process_that_cannot_import_bokeh(tmp_path: Path) -> None:
    """The code of the page cannot be loaded there."""
    code = BLOCK.replace('"clustertune"', '"bokeh"')
    (tmp_path / "sitecustomize.py").write_text(code)
    with (
        cluster(tmp_path, 1, PYTHONPATH=str(tmp_path)) as file,
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
    page = links.DashboardPage('http://h/"><script>')
    assert "<script" not in page.show()._repr_html_() + page._repr_html_()
    assert 'height="500"' in page.show(height=500)._repr_html_()


def test_it_takes_a_client_and_no_address() -> None:
    with pytest.raises(TypeError, match="client"):
        clustertune.dashboard_page("tcp://127.0.0.1:8786")
