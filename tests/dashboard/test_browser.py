"""The page in a real browser: its text, and no errors in its console."""

from __future__ import annotations

import asyncio
import os
from contextlib import contextmanager
from functools import partial
from itertools import combinations, product
from pathlib import Path
from time import monotonic

import dask
import dask.array as da
from bokeh.server.server import Server
from distributed import Scheduler, Worker, wait
from distributed.core import Status

import clustertune
from clustertune.dashboard import page, show
from clustertune.monitor.connection import connected
from tests.browser import chromium, needs_browser
from tests.dashboard.states import GIB, finding, of
from tests.in_process import gen_cluster, gen_test
from tests.pages import DOCS
from tests.processes import soon

EVIL = "<script>document.title='seized'</script>"
WIDTHS = (1600, 900, 480)  # pixels
BOARD = {"dashboard": True, "dashboard_address": "127.0.0.1:0"}


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


#: the boxes of all elements with a text of their own, of figures, and of the page
_BOXES = """() => {
  const found = []
  const walk = node => {
    if (["STYLE", "SCRIPT", "HEAD"].includes(node.nodeName)) return
    const texts = [...node.childNodes].filter(n => n.nodeType === 3 && n.data.trim())
    for (const text of texts) {
      const range = document.createRange()
      range.selectNodeContents(text)
      for (const box of range.getClientRects())
        found.push([text.data.trim(), box.left, box.top, box.right, box.bottom])
    }
    if (node.nodeName === "CANVAS" && node.getClientRects().length) {
      const box = node.getBoundingClientRect()
      found.push(["<canvas>", box.left, box.top, box.right, box.bottom])
    }
    if (node.shadowRoot) [...node.shadowRoot.children].forEach(walk)
    for (const child of node.children) walk(child)
  }
  walk(document.body)
  return [found, document.documentElement.scrollWidth]
}"""


#: background of the page, and colour of the first text
_COLOURS = """() => {
  const first = node => node.querySelector(".verdict")
    || [...node.querySelectorAll("*")].filter(n => n.shadowRoot)
      .map(n => first(n.shadowRoot)).find(Boolean)
  const style = node => getComputedStyle(node)
  return [style(document.body).backgroundColor, style(first(document)).color]
}"""
LIGHT = ["rgb(255, 255, 255)", "rgb(29, 33, 41)"]
DARK = ["rgb(22, 25, 31)", "rgb(232, 234, 238)"]
LEADING = 2  # pixels by which the boxes of two lines may overlap
WORDS = {
    "busy": ("Training: round 1,200 of 4,000", "worker-2: silent for 44 s", "Events"),
    "many": ("40 of 100 workers", "emptiest of 100 workers", "Events"),
    "empty": ("the cluster has no workers", "No collections are known", "Events"),
}
NOW = 1_924_000_000.0  # in December 2030


def busy(n):
    """Return a state with problems, long names, events and a running fit."""
    state = of(n, rows=[24_000 * (i % 3 == 0) for i in range(n)], time=NOW)
    workers, (data,) = state["workers"], state["collections"]
    workers[0]["id"] = data["workers"][0]["id"] = "tcp://192.168.100.200:34567-" * 3
    # a text of this length is not wrapped in other tables
    workers[3]["id"] = data["workers"][3]["id"] = "tcp://10.20.30.40:40123"
    workers[1] |= {"status": "paused", "process": 14 * GIB // 4}
    workers[2] |= {"silent": 44.0, "spilled": GIB}
    data |= {"apart": 3, "missing": 2}
    remedy = "Run `X, y = clustertune.prepare(client, X, y, estimator=XGBClassifier())`"
    found = [
        finding(severity="critical", message="a sentence about it " * 12),
        finding(check="empty_workers", message="Worker 1 has no rows", remedy=remedy),
    ]
    fit = {"round": 1200, "rounds": 4000, "metric": "logloss 0.1", "rate": 12.3}
    at = {"done": -600, "failed": -300, "held": -60, "scheduled": 86_400 * 40}
    return state | {
        "collections": [data, data | {"label": "eval_set 1"}],
        "findings": {"time": NOW - 130, "command": "clustertune check", "found": found},
        "fits": [fit | {"seconds": 100.0}],
        "events": [
            {"time": NOW + seconds, "kind": kind, "text": "prepare: it took long " * 9}
            for kind, seconds in at.items()
        ],
    }


@contextmanager
def serving(read):
    """Serve the page of a state; yield its URL."""
    served = Server(partial(page.build, read=read), port=0)
    served.start()
    try:
        yield f"http://localhost:{served.port}/"
    finally:
        served.stop()
        served.unlisten()


async def laid_out(tab, width):
    """Wait until no text or figure is outside the page, or covers another."""
    end = monotonic() + 60
    while wrong := misplaced(width, *await tab.page.evaluate(_BOXES)):
        assert monotonic() < end, wrong
        await asyncio.sleep(0.2)


def misplaced(width, boxes, wide):
    """Return texts and figures that are outside the page, or that cover others."""
    found = [name for name, left, _, right, _ in boxes if left < 0 or right > width]
    found += ["the page"] if wide > width else []
    for (one, *a), (other, *b) in combinations(boxes, 2):
        across = min(a[2], b[2]) - max(a[0], b[0])
        down = min(a[3], b[3]) - max(a[1], b[1])
        layers = one == other == "<canvas>"  # Bokeh draws a figure in layers
        if not layers and across > 1 and down > LEADING:
            found.append((one, other))
    return found


def test_overlaps_are_found():
    box = ["a", 0, 0, 10, 10]
    assert misplaced(20, [box, ["b", 0, 10, 10, 20]], 20) == []
    assert misplaced(20, [box, ["b", 5, 5, 15, 15]], 20) == [("a", "b")]
    assert misplaced(20, [["b", 15, 5, 25, 15]], 25) == ["b", "the page"]


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
    url = (await clustertune.dashboard_page(c)).url
    await clustertune.check(c, X, y)
    async with chromium() as tab:
        await tab.look_at(url)
        text = await tab.shows("Not ready", EVIL, "is paused", "uneven_rows")
        assert "tcp://" in text
        assert await tab.page.title() == "clustertune"
        memory = await source(tab, "managed", "name")
        assert memory["name"] == ["0", "1", "2", EVIL]
        ticks = await source(tab, "y0", "x")
        assert len(ticks["x"]) == 4 * 3  # without a nanny, none to terminate
        await tab.shows("900 rows in 9 partitions", "3 times its share")
        await tab.picture(out / "before-light.png")
        await evil.close()
        await tab.shows("Usable, but", "workers 1 and 2 hold no rows of training data")
        X, y = await clustertune.prepare(c, X, y)
        await tab.shows("9 partitions; evenly distributed", "prepare: Ready")
        for width in WIDTHS:  # the dashboard's links take two lines at 900
            await tab.set(dark=False, width=width)
            await laid_out(tab, width)
        await tab.set(dark=True, width=1920)
        await tab.picture(out / "after-dark.png")
        await x.close()
        await tab.shows("2 workers on 1 host")
        assert tab.complaints == []


def test_the_docs_have_pictures_of_all_widths_and_schemes():
    """The next test makes them: ``CLUSTERTUNE_SCREENSHOTS=docs/pictures``."""
    for name, width, scheme in product(WORDS, WIDTHS, ("light", "dark")):
        file = DOCS / "pictures" / f"{name}-{width}-{scheme}.png"
        header = file.read_bytes()[:24]
        assert header.startswith(b"\x89PNG")
        assert int.from_bytes(header[16:20], "big") == width


@needs_browser
@gen_test(timeout=240)
async def test_no_text_is_covered_or_cut(tmp_path):
    """On wide and narrow screens, light and dark, with long names and many rows."""
    states = {"busy": busy(4), "many": busy(100), "empty": of(0)}

    async def read():
        return states[name]

    with serving(read) as url:
        async with chromium() as tab:
            for name in states:
                await tab.look_at(url)
                text = await tab.shows(*WORDS[name])
                assert "2031" in text or name == "empty"  # a scheduled restart
                for width, dark in product(WIDTHS, (False, True)):
                    await tab.set(width=width, dark=dark)
                    if not dark:  # colours move no text
                        await laid_out(tab, width)
                    colours = await tab.page.evaluate(_COLOURS)
                    assert colours == (DARK if dark else LIGHT)
                    scheme = "dark" if dark else "light"
                    await tab.picture(
                        pictures(tmp_path) / f"{name}-{width}-{scheme}.png"
                    )
            assert tab.complaints == []


@needs_browser
@gen_test(timeout=120)
async def test_a_restarted_scheduler(tmp_path, monkeypatch):
    """The served page shows that the scheduler is lost, and then reconnects."""
    monkeypatch.setattr(show, "RETRY_INTERVAL", 0.2)
    board = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    async with Scheduler(port=0, **board) as first:
        address, port = first.address, first.port

        connect = partial(connected, address, seconds=1)
        async with (
            show.serving(connect, port=0, origins=[]) as url,
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
        status="checked",
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
