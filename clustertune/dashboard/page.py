"""The page: a figure and texts in one column, updated from a page state.

``build`` fills a Bokeh document. The server that shows it passes a function that reads
page states.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import datetime, timezone
from typing import Any

from bokeh.models import Column, Row

from clustertune.core.tables import MAX_ROWS, NONE, Item, Section, Table, table, to_html
from clustertune.core.wording import (
    natural,
    plural,
    printable,
    rounds_text,
    seconds_text,
    times_text,
)
from clustertune.dashboard import figures
from clustertune.dashboard.figures import Memory
from clustertune.dashboard.state import (
    MAX_IMBALANCE,
    Items,
    State,
    has_ended,
    imbalance,
    in_memory,
    row_problem,
    total,
    verdict,
)

INTERVAL = 1000  # milliseconds between two states
MAX_NAME = 40  # characters
SIGN = "\u25b2"
NO_ROWS = (
    "No collections are known here yet. Run `clustertune.prepare`, or "
    "`clustertune.check` with data, to see their rows."
)
RELEASED = (
    "The collections of the last `prepare` or `check` have been released. Run "
    "`clustertune.check` with data to see the rows of other ones."
)
Read = Callable[[], Awaitable[State]]

STYLE = """<meta name="color-scheme" content="light dark">
<meta name="viewport" content="width=device-width"><style>
:root { color-scheme: light dark }
html, body { background: #ffffff }
@media (prefers-color-scheme: dark) {
  html, body { background: #16191f }
  .navbar ul, .dropdown-content { background-color: #262b34 !important }
  .navbar li a { color: #e8eaee !important }
}
</style>"""
#: the page of the own server loads nothing from others, whatever text is in it;
#: BokehJS makes functions from text
POLICY = (
    "default-src 'none'; connect-src 'self'; img-src 'self' data:; font-src 'self' "
    "data:; style-src 'self' 'unsafe-inline'; script-src 'self' 'unsafe-inline' "
    "'unsafe-eval'; base-uri 'none'; form-action 'none'"
)
OWN_TEMPLATE = (
    "{% block preamble %}<meta http-equiv='Content-Security-Policy' content=\""
    f'{POLICY}">{STYLE}{{% endblock %}}'
)
#: for Dask's dashboard, whose own pages are light only; its bar of links would cover
#: the page if it has two lines
DASK_TEMPLATE = (
    '{% extends "simple.html" %}{% block extra_resources %}'
    + STYLE
    + """<style>
  body { padding-top: 0 }
  .navbar { position: sticky; margin: 0 -10px }
</style>{% endblock %}"""
)


# --- texts ----------------------------------------------------------------------------


def headline(state: State) -> str:
    """Return whether a fit can begin, the reasons, the cluster, and running fits."""
    word, reasons = verdict(state)
    where = f"{state['scheduler']}: {total(state['workers'])}"
    rounds = (figures.escaped(rounds_text(fit)) for fit in state["fits"])
    fits = "".join(f"<div>Training: {text}</div>" for text in rounds)
    level = word.split()[0].strip(",").lower()
    return (
        f'<div class="verdict {level}"><b>{word}:</b> {figures.escaped(reasons)}'
        f"<small>{figures.escaped(where)}</small>{fits}</div>"
    )


def rows(state: State) -> str:
    """Return the rows of all layouts, and those of the training data by worker."""
    layouts = in_memory(state["collections"])
    if not layouts:
        nothing = RELEASED if state["collections"] else NO_ROWS
        return _html("Rows", Item("", nothing))
    items = [Item(x["label"], _layout_text(x)) for x in layouts]
    return _html("Rows", *items, _by_worker(layouts[0]))


def _layout_text(layout: Mapping[str, Any]) -> str:
    rows, partitions = plural(layout["rows"], "row"), layout["partitions"]
    texts = [f"{rows} in {plural(partitions, 'partition')}"]
    fullest = imbalance(layout) or 0
    if fullest > MAX_IMBALANCE:
        share = f"{times_text(fullest)} its share"
        texts.append(f"{SIGN} the fullest worker has {share}")
    if layout["apart"]:
        texts.append(f"{SIGN} {plural(layout['apart'], 'separated pair')}")
    if layout["missing"]:
        missing = plural(layout["missing"], "partition")
        texts.append(f"{SIGN} {missing} not in memory")
    return "; ".join(texts if len(texts) > 1 else [*texts, "evenly distributed"])


def _by_worker(layout: Mapping[str, Any]) -> Table:
    """Return a row for each worker; of many workers, the fullest and emptiest."""
    shares, title = sorted(layout["workers"], key=lambda w: -w["rows"]), ""
    if len(shares) > MAX_ROWS:
        title = f"The fullest and the emptiest of {len(shares):,} workers:"
        shares = [*shares[: MAX_ROWS // 2], *shares[-MAX_ROWS // 2 :]]
    else:
        shares.sort(key=lambda w: natural(w["id"]))
    return table(
        [
            [
                ("worker", printable(w["id"], longest=MAX_NAME)),
                ("rows", f"{w['rows']:,}"),
                ("even share", f"{w['due']:,.0f}"),
                ("partitions", f"{w['partitions']:,}"),
                ("problem", f"{SIGN} {row_problem(w)}" if row_problem(w) else NONE),
            ]
            for w in shares
        ],
        title,
    )


def findings(state: State) -> str:
    """Return the last findings, their age, and the command that checks again."""
    found = state["findings"]
    if found is None:
        return _html("Findings", Item("", "No check has run. Run `clustertune check`."))
    age = seconds_text(max(0.0, state["time"] - found["time"]))
    items = [*_finding_items(found["found"], {w["address"] for w in state["workers"]})]
    count = "" if items else "The checks found no problems. "
    again = f"{count}{age} old; check again with `{found['command']}`"
    return _html("Findings", Item("", again), *items)


def _finding_items(found: Items, addresses: set[str]) -> Iterator[Item]:
    for f in found:
        ended = "process has" if len(f["processes"]) == 1 else "processes have"
        since = f" (the {ended} ended since)" if has_ended(f, addresses) else ""
        remedy = (f"Remedy: {f['remedy']}",) if f["remedy"] else ()
        yield Item(f["severity"], f"{f['message']} ({f['check']}){since}", remedy)


def events(state: State) -> str:
    """Return the last events, newest first."""
    last = state["events"][: -MAX_ROWS - 1 : -1]
    if not last:
        return _html("Events", Item("", "clustertune has logged no events here yet."))
    listed = [
        [
            ("time (UTC)", _clock(e["time"], state["time"])),
            ("", e["kind"]),
            ("event", printable(e["text"], longest=figures.MAX_TEXT)),
        ]
        for e in last
    ]
    return _html("Events", table(listed))


def _clock(when: float, now: float) -> str:
    """Return a time in UTC, because reader and scheduler may have other time zones."""
    at, today = (datetime.fromtimestamp(t, timezone.utc) for t in (when, now))
    return f"{at:%H:%M:%S}" if at.date() == today.date() else f"{at:%Y-%m-%d %H:%M}"


TEXTS = (headline, rows, findings, events)


def _html(title: str, *content: Item | Table) -> str:
    return to_html([Section(title, content)])


# --- the page -------------------------------------------------------------------------

_WIDE: dict[str, Any] = {"sizing_mode": "stretch_width"}


class Page:
    """All parts of the page; on narrow screens, they are one below the other."""

    def __init__(self) -> None:
        self.memory = Memory()
        self.texts = [figures.html() for _ in TEXTS]
        head, held, found, log = self.texts
        columns: list[Any] = [
            Column(children=list(roots), stylesheets=[_HALF], **_WIDE)
            for roots in (self.memory.roots, [held])
        ]
        pair = Row(children=columns, stylesheets=[_WRAP], **_WIDE)
        children: list[Any] = [head, pair, found, log]
        self.root = Column(children=children, stylesheets=[figures.PAGE], **_WIDE)

    def update(self, state: State) -> None:
        self.memory.update(state)
        for element, make in zip(self.texts, TEXTS, strict=True):
            element.text = make(state)


_WRAP = ":host { flex-wrap: wrap; gap: 0 28px }"
_HALF = ":host { flex: 1 1 420px !important; min-width: 0 }"


def build(document: Any, read: Read) -> None:
    """Fill a Bokeh document, and update it while a reader looks at it.

    ``read`` returns a page state in the event loop of the server.
    """
    page = Page()
    document.add_root(page.root)
    document.title = "clustertune"
    document.template = OWN_TEMPLATE
    document.theme = figures.THEME

    async def refresh() -> None:
        page.update(await read())

    document.add_next_tick_callback(refresh)
    document.add_periodic_callback(refresh, INTERVAL)
