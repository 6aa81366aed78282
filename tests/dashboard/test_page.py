"""The page: its HTML for a page state."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import pytest
from bokeh.document import Document

import clustertune.dashboard
from clustertune.dashboard import figures
from clustertune.dashboard import page as pages
from clustertune.dashboard.page import Page
from tests.dashboard.states import finding, layout, of

EVIL = "<script>alert(1)</script>"


def shown(page: Page) -> str:
    """Return all HTML of a page."""
    found = page.root.select({"type": figures.Div})
    return " ".join(div.text for div in found)


#: modules that draw nothing; tests/actions/test_init.py tests the imports of mount
NOT_DRAWN = {"mount", "show"}
DRAWN = [
    path
    for path in Path(clustertune.dashboard.__path__[0]).glob("*.py")
    if path.stem not in NOT_DRAWN
]


@pytest.mark.parametrize("path", DRAWN, ids=lambda p: p.stem)
def test_it_imports_only_what_schedulers_have(path: Path) -> None:
    """Schedulers without clustertune get these modules."""
    own = ("clustertune.dashboard", "clustertune.core.tables")
    own = (*own, "clustertune.core.wording")
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [getattr(node, "module", None) or node.names[0].name]
            for name in names:
                standard = name.split(".")[0] in sys.stdlib_module_names
                assert standard or name.split(".")[0] == "bokeh" or name.startswith(own)


def test_a_running_fit_has_a_line() -> None:
    fit = {"round": 1200, "rounds": 4000, "metric": EVIL, "rate": 12.345, "seconds": 9}
    page = Page()
    page.update(of(fits=[fit]))
    text = shown(page)
    assert "Training: round 1,200 of 4,000, " in text
    assert "12.3 rounds/s" in text
    assert EVIL not in text
    page.update(of())
    assert "Training:" not in shown(page)


def test_findings_have_an_age_and_a_command() -> None:
    found = {"time": 100.0, "command": "clustertune check x", "found": [finding()]}
    text = pages.findings(of(findings=found) | {"time": 220.0})
    assert "2 min old" in text
    assert "<code>clustertune check x</code>" in text
    assert "Remedy: <code>clustertune check</code>" in text
    assert "<strong>warning</strong> too few (thread_count)" in text


def test_findings_end_with_their_processes() -> None:
    gone = finding(message="leaks", processes=["tcp://10.0.0.0:9"])
    found = {"time": 0.0, "command": "c", "found": [gone]}
    text = pages.findings(of(findings=found))
    assert "leaks (thread_count) (the process has ended since)" in text


def test_rows_of_each_worker() -> None:
    """Empty and overfull workers have a sign and a word."""
    state = of(rows=[100, 300, 0, 0])
    state["collections"][0]["apart"] = 2
    text = pages.rows(state)
    assert "400 rows in 40 partitions" in text
    assert "&#9650; the fullest worker has 3 times its share" in html(text)
    assert "&#9650; 2 separated pairs" in html(text)
    assert html(text).count("&#9650; empty") == 2
    assert html(text).count("&#9650; too many") == 1


def html(text: str) -> str:
    return text.replace("\u25b2", "&#9650;")


def test_rows_of_many_workers() -> None:
    """The table has the fullest and the emptiest workers."""
    rows = [100] * 40
    rows[7], rows[30] = 900, 0
    text = pages.rows(of(40, rows=rows))
    assert "The fullest and the emptiest of 40 workers" in text
    assert text.count("worker-") == 12
    assert 0 < text.index("worker-7<") < text.index("worker-30<")


def test_no_collections_and_released_collections() -> None:
    assert "No collections are known" in pages.rows(of(collections=[]))
    shares = of(1)["collections"][0]["workers"]
    released = layout(shares, missing=10)
    assert "have been released" in pages.rows(of(1, collections=[released]))


def test_events_have_a_day_unless_it_is_today() -> None:
    """The newest is first."""
    events = [
        {"time": 1e6, "kind": "done", "text": "prepare: it"},
        {"time": 1e6 + 86400, "kind": "scheduled", "text": "a restart"},
    ]
    text = pages.events(of(events=events, time=1e6))
    first, second = text.index("1970-01-13 13:46"), text.index(">13:46:40<")
    assert first < text.index("scheduled") < second < text.index("done")


@pytest.mark.parametrize("n", [0, 1, 4, 100])
def test_the_page_draws_any_number_of_workers(n: int) -> None:
    page, document = Page(), Document()
    document.add_root(page.root)
    page.update(of(n))
    page.update(of(max(0, n - 1)))  # one worker has left
    document.validate()
    assert f"{max(0, n - 1)} worker" in shown(page)


def hostile() -> Any:
    state = of(4, scheduler=EVIL)
    for worker in state["workers"]:
        worker.update(dict.fromkeys(("id", "host", "address", "status"), EVIL))
    shares = [w | {"id": EVIL} for w in state["collections"][0]["workers"]]
    state["collections"] = [layout(shares, label=EVIL, apart=1)]
    found = finding(**dict.fromkeys(("severity", "check", "message", "remedy"), EVIL))
    state["findings"] = {"time": 0.0, "command": EVIL, "found": [found]}
    state["events"] = [{"time": 1.0, "kind": "done", "text": EVIL}]
    fit = {"round": 1, "rounds": None, "metric": EVIL, "rate": None, "seconds": 9}
    return state | {"fits": [fit]}


def test_text_of_the_cluster_is_escaped() -> None:
    """HTML in names, findings and events shows as text."""
    page = Page()
    page.update(hostile())
    text = shown(page)
    assert "<script" not in text
    assert text.count("&lt;script&gt;") > 10
    for div in page.root.select({"type": figures.Div}):
        assert div.disable_math  # dollar signs load no library


def test_control_characters_do_nothing() -> None:
    assert figures.escaped("a\x1b[31m\nb") == r"a\x1b[31m\nb"
