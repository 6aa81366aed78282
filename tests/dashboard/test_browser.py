"""The page in a real browser: its text, and no errors in its console."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path

import dask
import dask.array as da
from distributed import Scheduler, Worker, wait
from distributed.core import Status
from distributed.utils_test import gen_cluster, gen_test

import clustertune
from clustertune.dashboard import server
from clustertune.monitor.connection import connected
from tests.browser import chromium, needs_browser
from tests.processes import soon

EVIL = "<script>document.title='seized'</script>"
BOARD = {"dashboard": True, "dashboard_address": "127.0.0.1:0"}
#: rows of the training data, as a figure's source has them
ROWS = "due"


def pictures(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("CLUSTERTUNE_SCREENSHOTS", tmp_path / "pictures"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


async def source(tab, *names):
    """Return the first data source that has these columns and a row."""

    async def found():
        for columns in await tab.columns():
            if set(names) <= set(columns) and columns[names[0]]:
                return columns
        return None

    for _ in range(100):
        if columns := await found():
            return columns
        await asyncio.sleep(0.1)
    raise AssertionError(f"no figure has {names}")


async def settled(tab, name, values):
    """Wait until a figure's column has these values."""
    for _ in range(200):
        columns = await source(tab, name, ROWS)
        if columns[name] == values:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{name} is {columns[name]}, not {values}")


@needs_browser
@gen_cluster(
    client=True, nthreads=[("127.0.0.1", 1)] * 3, scheduler_kwargs=BOARD, timeout=120
)
async def test_the_page_in_a_browser(c, s, a, b, x, tmp_path):
    """Skewed data, a paused worker, a hostile name; then prepare; then one leaves."""
    out = pictures(tmp_path)
    X = c.persist(da.ones((900, 4), chunks=(100, 4)), workers=[a.address])
    y = c.persist(da.ones(900, chunks=100), workers=[a.address])
    await wait([X, y])
    evil = await Worker(s.address, name=EVIL, nthreads=1)
    evil.memory_manager.memory_pause_fraction = 1e-6  # lower than its memory
    await soon(lambda: s.workers[evil.address].status == Status.paused)
    page = await clustertune.dashboard_page(c)
    await clustertune.check(c, X, y)
    async with chromium() as tab:
        await tab.look_at(page.url)
        text = await tab.shows("Not ready", EVIL, "is paused", "uneven_rows")
        assert "tcp://" in text
        assert await tab.page.title() == "clustertune"
        memory = await source(tab, "managed_end", "name")
        assert memory["name"] == ["0", "1", "2", EVIL]
        ticks = await source(tab, "y0", "x")
        assert len(ticks["x"]) == 4  # the first threshold of each worker
        await settled(tab, "rows", [900, 0, 0, 0])
        await tab.picture(out / "before-light.png")
        await evil.close()
        await tab.shows("Usable, but", "rows of training data are uneven")
        X, y = await clustertune.prepare(c, X, y)
        await settled(tab, "rows", [300, 300, 300])
        await tab.shows("before", "after", "done: move")
        await tab.set(dark=True, width=1920)
        await tab.picture(out / "after-dark.png")
        await x.close()
        await tab.shows("2 workers on 1 host")
        assert tab.complaints == []
        parts = f"{page.url.rpartition('/')[0]}/individual-clustertune-findings"
        await tab.look_at(parts)
        await tab.shows("Findings")
        assert tab.complaints == []


@needs_browser
@gen_test(timeout=120)
async def test_a_restarted_scheduler(tmp_path, monkeypatch):
    """The served page shows that the scheduler is lost, and then reconnects."""
    monkeypatch.setattr(server, "RETRY_INTERVAL", 0.2)
    monkeypatch.setattr(server, "CONNECT", 1.0)
    board = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    async with Scheduler(port=0, **board) as first:
        address, port = first.address, first.port

        source = server.Source(partial(connected, address, seconds=10))
        async with (
            server.serving(source, port=0, address="127.0.0.1", origins=[]) as url,
            chromium() as tab,
        ):
            await tab.look_at(url, dark=True)
            await tab.shows("Not ready: the cluster has no workers")
            await tab.picture(pictures(tmp_path) / "empty-dark.png")
            await first.close()
            await tab.shows("Unknown: the scheduler has not answered")
            await tab.picture(pictures(tmp_path) / "lost-dark.png")
            async with (
                Scheduler(port=port, **board),
                Worker(address, name="new", nthreads=1),
            ):
                # this test blocks the event loop of the worker
                with dask.config.set(
                    {"clustertune.checks.blocked_event_loops.max_seconds": 60}
                ):
                    await tab.shows("1 worker on 1 host", "Ready")
                assert tab.complaints == []


@needs_browser
@gen_test(timeout=60)
async def test_a_saved_report_needs_no_network(tmp_path):
    """The file shows its tables, and the browser loads nothing for it."""
    from clustertune.core.model import Finding, Severity
    from clustertune.core.report import Report
    from clustertune.planner.layouts import summarize
    from tests.builders import layout, view, worker

    seen = view([worker(0), worker(1)], [layout([50, 50], [0, 0])])
    bad = Finding(severity=Severity.warning, message=EVIL, check="uneven_rows")
    report = Report(
        status="done",
        seconds=1.0,
        found=(bad,),
        before=(summarize(seen.layouts[0], seen),),
    )
    file = tmp_path / "report.html"
    report.save(file)
    async with chromium(offline=True) as tab:
        await tab.look_at(file.as_uri())
        await tab.shows(
            f"warning {EVIL}", "Problems", "training data: 2 partitions, 100 rows"
        )
        assert tab.complaints == []
        await tab.picture(pictures(tmp_path) / "report-light.png")
