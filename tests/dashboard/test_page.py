"""The page: its HTML for a page state."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import pytest
from bokeh.document import Document

import clustertune.dashboard
from clustertune.dashboard import page as pages
from clustertune.dashboard import style
from clustertune.dashboard.figures import (
    Memory,
)
from clustertune.dashboard.page import PARTS, ROWS, Page
from tests.dashboard.states import finding, layout, of

EVIL = "<script>alert(1)</script>"


def shown(page: Page) -> str:
    """Return all HTML of a page."""
    found = page.root.select({"type": style.Div})
    return " ".join(div.text for div in found)


#: modules that draw nothing; tests/actions/test_registry.py tests the imports of mount
NOT_DRAWN = {"mount", "link", "server"}
DRAWN = [
    path
    for path in Path(clustertune.dashboard.__path__[0]).glob("*.py")
    if path.stem not in NOT_DRAWN
]


@pytest.mark.parametrize("path", DRAWN, ids=lambda p: p.stem)
def test_it_imports_only_what_schedulers_have(path: Path) -> None:
    """Schedulers without clustertune get these modules."""
    own = ("clustertune.dashboard", "clustertune.core.wording")
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [getattr(node, "module", None) or node.names[0].name]
            for name in names:
                standard = name.split(".")[0] in sys.stdlib_module_names
                assert standard or name.split(".")[0] == "bokeh" or name.startswith(own)


def test_every_part_is_on_the_page() -> None:
    assert {name for row in ROWS for name in row} == set(PARTS)


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
    found = {
        "time": 100.0,
        "command": "clustertune check tcp://x",
        "found": [finding()],
    }
    text = pages.findings(of(findings=found) | {"time": 220.0})
    assert "2 min old" in text
    assert "<code>clustertune check tcp://x</code>" in text
    assert "<code>clustertune check</code>" in text  # the remedy
    assert "&#9670; warning" in text  # a shape in addition to the colour


def test_threads_and_cpus() -> None:
    text = pages.hosts(of(4))
    assert "more threads than CPUs" in text
    unknown = of(4)
    unknown["hosts"]["cpus"] = [None]
    assert "unknown" in pages.hosts(unknown)


def test_before_and_after() -> None:
    share = of()["collections"][0]["workers"]
    told = {"label": "training data", "partitions": 40, "rows": 400, "separated": 7}
    told |= {"imbalance": 2.1, "workers": share}
    last = {"status": "done", "lines": ["moved it"], "before": [told], "after": [told]}
    text = pages.prepared(of(prepared=last))
    assert "moved it" in text
    assert text.count("2.10") == 2


@pytest.mark.parametrize("n", [0, 1, 4, 100])
def test_the_page_draws_any_number_of_workers(n: int) -> None:
    page, document = Page(), Document()
    page.add_to(document)
    page.update(of(n))
    page.update(of(max(0, n - 1)))  # one worker has left
    document.validate()
    assert f"{max(0, n - 1)} worker" in shown(page)


def hostile() -> Any:
    state = of(4, scheduler=EVIL)
    for name in ("id", "host", "address", "status"):
        state["workers"][name] = [EVIL] * 4
    state["hosts"]["host"] = [EVIL]
    share = state["collections"][0]["workers"] | {"id": [EVIL] * 4}
    state["collections"] = [layout(share, label=EVIL, apart=1)]
    told = {"label": EVIL, "partitions": 1, "rows": 1, "separated": 1, "imbalance": 1.0}
    told |= {"workers": share}
    state["prepared"] = {"lines": [EVIL], "before": [told], "after": [told]}
    found = finding(**dict.fromkeys(finding(), EVIL))
    state["findings"] = {"time": 0.0, "command": EVIL, "found": [found]}
    state["events"] = [{"time": 1.0, "kind": "did", "text": EVIL}]
    return state


def test_text_of_the_cluster_is_escaped() -> None:
    """HTML in names, findings and events shows as text."""
    page = Page()
    page.update(hostile())
    text = shown(page)
    assert "<script" not in text
    assert text.count("&lt;script&gt;") > 10
    many = Memory()
    state = of(100)
    state["workers"]["id"] = [EVIL] * 100
    many.update(state)
    assert "<script" not in many.list.text


def test_control_characters_do_nothing() -> None:
    assert style.text("a\x1b[31m\nb") == r"a\x1b[31m\nb"
