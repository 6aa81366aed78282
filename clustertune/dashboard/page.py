"""The page: all parts in one column, brought up to date from a page state.

``build`` fills a Bokeh document; whoever serves it says where states come from.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from bokeh.core.properties import without_property_validation
from bokeh.models import Column, Row

from clustertune.dashboard import looks, words
from clustertune.dashboard.rows import Rows
from clustertune.dashboard.state import State
from clustertune.dashboard.timeline import Timeline
from clustertune.dashboard.workers import Memory

TITLE = "clustertune"
INTERVAL = 1000  # milliseconds between two states
Read = Callable[[], Awaitable[State]]

PARTS: dict[str, Callable[[], Any]] = {
    "verdict": lambda: words.Said(words.verdict_line),
    "memory": Memory,
    "rows": Rows,
    "findings": lambda: words.Said(words.findings),
    "timeline": Timeline,
    "hosts": lambda: words.Said(words.hosts),
    "prepared": lambda: words.Said(words.prepared),
}
#: on the page two stand beside each other where they are in the same row
ROWS = (("verdict",), ("memory", "rows"), ("findings",), ("timeline",),
        ("prepared", "hosts"))  # fmt: skip

STYLE = """<meta name="color-scheme" content="light dark"><style>
:root { color-scheme: light dark }
html, body { background: #ffffff }
@media (prefers-color-scheme: dark) {
  html, body { background: #16191f }
  .navbar ul, .dropdown-content { background-color: #262b34 !important }
  .navbar li a { color: #e8eaee !important }
}
</style>"""
ALONE = "{% block preamble %}" + STYLE + "{% endblock %}"
#: of Dask's dashboard, whose pages are light only
TEMPLATE = (
    '{% extends "simple.html" %}{% block extra_resources %}' + STYLE + "{% endblock %}"
)


class Page:
    """Some parts, or all of them.

    Parameters
    ----------
    rows
        Names of :data:`PARTS`; those in the same row stand beside each other.
    """

    def __init__(self, rows: Sequence[Sequence[str]] = ROWS) -> None:
        self.parts = {name: PARTS[name]() for row in rows for name in row}
        columns: list[list[Any]] = [
            [self._column(name) for name in row] for row in rows
        ]
        self.root = Column(
            children=[
                row[0] if len(row) == 1 else Row(children=row, **_WIDE, spacing=28)
                for row in columns
            ],
            stylesheets=[looks.GROUND],
            **_WIDE,
        )

    def _column(self, name: str) -> Column:
        return Column(children=list(self.parts[name].roots), **_WIDE)

    def update(self, shown: State) -> None:
        """Show another state."""
        _unchecked(self._update)(shown)

    def _update(self, shown: State) -> None:
        for part in self.parts.values():
            part.update(shown)

    def add_to(self, document: Any, title: str = TITLE) -> None:
        """Be what a document shows, in the colours of its reader."""
        figures = [f for part in self.parts.values() for f in part.figures]
        if figures:
            document.js_on_event("document_ready", looks.theme(figures))
        document.add_root(self.root)
        document.title = title
        document.template = ALONE


# a good part of the cost, and all values are ours
_unchecked: Callable[..., Callable[..., None]] = without_property_validation
_WIDE: dict[str, Any] = {"sizing_mode": "stretch_width"}


def build(document: Any, read: Read, rows: Sequence[Sequence[str]] = ROWS) -> None:
    """Fill a document, and keep it up to date for as long as somebody looks at it.

    Parameters
    ----------
    read
        Gives a page state; called in the event loop of the server.
    """
    page = Page(rows)
    page.add_to(document)

    async def refresh() -> None:
        page.update(await read())

    document.add_next_tick_callback(refresh)
    document.add_periodic_callback(refresh, INTERVAL)
