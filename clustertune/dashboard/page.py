"""The page: figures and tables in one column, updated from a page state.

``build`` fills a Bokeh document. The server that shows it passes a function that reads
page states.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from bokeh.core.properties import without_property_validation
from bokeh.models import Column, Row

from clustertune.core.wording import plural, rounds_text, seconds_text
from clustertune.dashboard import style
from clustertune.dashboard.figures import Memory, Rows, Timeline
from clustertune.dashboard.state import State, has_ended, imbalance, total, verdict

TITLE = "clustertune"
INTERVAL = 1000  # milliseconds between two states
MAX_HOSTS = 12  # of more hosts, those with the most threads for a CPU
MAX_FINDINGS = 50
SIGNS = {"critical": "&#9650;", "warning": "&#9670;", "info": "&#9679;"}
Read = Callable[[], Awaitable[State]]

STYLE = """<meta name="color-scheme" content="light dark"><style>
:root { color-scheme: light dark }
html, body { background: #ffffff }
@media (prefers-color-scheme: dark) {
  html, body { background: #16191f }
  .navbar ul, .dropdown-content { background-color: #262b34 !important }
  .navbar li a { color: #e8eaee !important }
}
</style>"""
OWN_TEMPLATE = "{% block preamble %}" + STYLE + "{% endblock %}"
#: for Dask's dashboard, whose own pages are light only
DASK_TEMPLATE = (
    '{% extends "simple.html" %}{% block extra_resources %}' + STYLE + "{% endblock %}"
)


# --- tables ---------------------------------------------------------------------------


class Text:
    """HTML that a function makes of the state."""

    figures: tuple[Any, ...] = ()

    def __init__(self, make: Callable[[State], str]) -> None:
        self.make = make
        self.root = style.html()
        self.roots = (self.root,)

    def update(self, state: State) -> None:
        self.root.text = self.make(state)


def verdict_line(state: State) -> str:
    """Return whether a fit can begin, why not, and a summary of the cluster."""
    level, words = verdict(state)
    head, colon, rest = words.partition(":")
    where = style.text(f"{state['scheduler']}: {total(state['workers'])}")
    return (
        f'<div class="verdict {level.replace(" ", "-")}"><b>{style.text(head)}</b>'
        f"{colon}{style.text(rest)}<small>{where}</small></div>"
    )


def fits(state: State) -> str:
    """Return the progress of running fits, one line for each."""
    lines = [style.text(f"Training: {rounds_text(fit)}") for fit in state["fits"]]
    return "".join(f"<p>{line}</p>" for line in lines)


def findings(state: State) -> str:
    """Return the last findings, their age, and the command that checks again."""
    found = state["findings"]
    if found is None:
        return (
            "<h2>Findings</h2><p>No check has run here yet. Run "
            "<code>clustertune check</code>.</p>"
        )
    age = seconds_text(max(0.0, state["time"] - found["time"]))
    head = (
        f"<h2>Findings <span class='soft'>{age} old; check again with "
        f"<code>{style.text(found['command'])}</code></span></h2>"
    )
    if not found["found"]:
        return f"{head}<p>The checks found no problems.</p>"
    return head + _findings_table(found["found"], set(state["workers"]["address"]))


def _findings_table(
    found: Sequence[Mapping[str, Any]], addresses: Collection[str]
) -> str:
    rows = [
        (
            _severity(f["severity"]),
            style.text(f["check"]),
            style.text(f["message"], 1000) + _ended(f, addresses),
            style.text(f["evidence"], 1000),
            style.with_code(f["remedy"]),
        )
        for f in found[:MAX_FINDINGS]
    ]
    head = ("severity", "check", "finding", "evidence", "remedy")
    more = len(found) - MAX_FINDINGS
    rest = f"<p class='soft'>and {plural(more, 'more finding')}</p>" if more > 0 else ""
    return style.table(head, rows, "kkwww") + rest


def _ended(finding: Mapping[str, Any], addresses: Collection[str]) -> str:
    if not has_ended(finding, addresses):
        return ""
    ended = "process has" if len(finding["processes"]) == 1 else "processes have"
    return f" <span class='soft'>(the {ended} ended since)</span>"


def _severity(name: str) -> str:
    known = name if name in SIGNS else "unknown"
    return f'<span class="{known}">{SIGNS.get(known, "?")} {style.text(name)}</span>'


def hosts(state: State) -> str:
    """Return the threads of workers and the usable CPUs, by host."""
    found = state["hosts"]
    columns = (found[name] for name in ("host", "workers", "threads", "cpus"))
    rows = sorted(zip(*columns, strict=True), key=_load, reverse=True)
    if not rows:
        return ""
    cells = [
        (
            style.text(host, style.MAX_NAME),
            f"{workers:,}",
            f"{threads:,}",
            "unknown" if cpus is None else f"{cpus:.3g}",
            _threads_per_cpu(threads, cpus),
        )
        for host, workers, threads, cpus in rows[:MAX_HOSTS]
    ]
    more = len(rows) - MAX_HOSTS
    rest = f"<p class='soft'>and {plural(more, 'more host')}</p>" if more > 0 else ""
    head = ("host", "workers", "threads", "usable CPUs", "")
    title = "<h2>Threads and CPUs of hosts</h2>"
    return title + style.table(head, cells, " nnn ") + rest


def _load(row: tuple[Any, ...]) -> float:
    _, _, threads, cpus = row
    return float(threads) / cpus if cpus else 0.0


def _threads_per_cpu(threads: int, cpus: float | None) -> str:
    if cpus is None:
        return ""
    if threads > cpus * 1.05:
        return '<span class="warning">&#9670; more threads than CPUs</span>'
    if threads < cpus * 0.95:
        return '<span class="soft">CPUs without a thread</span>'
    return "one each"


def prepared(state: State) -> str:
    """Return the last change, with the layouts before and after it."""
    last = state["prepared"]
    if last is None:
        return (
            "<h2>Last change</h2><p class='soft'>clustertune has changed nothing since "
            "the scheduler started.</p>"
        )
    lines = "".join(f"<p>{style.text(line, 1000)}</p>" for line in last["lines"])
    rows = [*_summaries("before", last["before"]), *_summaries("after", last["after"])]
    head = (
        "", "collection", "rows", "partitions", "separated pairs",
        "fullest, of its share", "empty workers",
    )  # fmt: skip
    tables = style.table(head, rows, "k nnnnn") if rows else ""
    return f"<h2>Last change</h2>{lines}{tables}"


def _summaries(when: str, layouts: Iterable[Any]) -> Iterable[tuple[str, ...]]:
    for x in layouts:
        fullest = x["imbalance"] or imbalance(x["workers"])
        empty = sum(r == 0 for r in x["workers"]["rows"])
        counts = (x["rows"], x["partitions"], x["separated"])
        yield (
            when,
            style.text(x["label"]),
            *("unknown" if n is None else f"{n:,}" for n in counts),
            "unknown" if fullest is None else f"{fullest:.2f}",
            f"{empty:,}",
        )


# --- the page -------------------------------------------------------------------------

PARTS: dict[str, Callable[[], Any]] = {
    "verdict": lambda: Text(verdict_line),
    "fits": lambda: Text(fits),
    "memory": Memory,
    "rows": Rows,
    "findings": lambda: Text(findings),
    "timeline": Timeline,
    "hosts": lambda: Text(hosts),
    "prepared": lambda: Text(prepared),
}
#: parts of one row are next to each other
ROWS = (("verdict",), ("fits",), ("memory", "rows"), ("findings",), ("timeline",),
        ("prepared", "hosts"))  # fmt: skip

# validation takes a large part of an update, and all values come from this package
_unchecked: Callable[..., Callable[..., None]] = without_property_validation
_WIDE: dict[str, Any] = {"sizing_mode": "stretch_width"}


class Page:
    """Some parts of the page, or all; ``rows`` has names of :data:`PARTS` by row."""

    def __init__(self, rows: Sequence[Sequence[str]] = ROWS) -> None:
        self.parts = {name: PARTS[name]() for row in rows for name in row}
        children: list[Any] = []
        for row in rows:
            columns: list[Any] = [
                Column(children=list(self.parts[name].roots), **_WIDE) for name in row
            ]
            one = len(columns) == 1
            children.append(
                columns[0] if one else Row(children=columns, **_WIDE, spacing=28)
            )
        self.root = Column(children=children, stylesheets=[style.BACKGROUND], **_WIDE)

    @_unchecked
    def update(self, state: State) -> None:
        for part in self.parts.values():
            part.update(state)

    def add_to(self, document: Any, title: str = TITLE) -> None:
        figures = [f for part in self.parts.values() for f in part.figures]
        if figures:
            document.js_on_event("document_ready", style.theme(figures))
        document.add_root(self.root)
        document.title = title
        document.template = OWN_TEMPLATE


def build(document: Any, read: Read, rows: Sequence[Sequence[str]] = ROWS) -> None:
    """Fill a Bokeh document, and update it while a reader looks at it.

    ``read`` returns a page state in the event loop of the server.
    """
    page = Page(rows)
    page.add_to(document)

    async def refresh() -> None:
        page.update(await read())

    document.add_next_tick_callback(refresh)
    document.add_periodic_callback(refresh, INTERVAL)
