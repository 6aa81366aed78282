"""The figure of the page: memory of workers.

A problem of a worker shows as a shape next to its bar, and as words below the figure.
"""

from __future__ import annotations

from html import escape
from typing import Any

from bokeh.models import (
    AdaptiveTicker,
    ColumnDataSource,
    FixedTicker,
    HoverTool,
    NumeralTickFormatter,
)
from bokeh.models.widgets import Div
from bokeh.plotting import figure
from bokeh.themes import Theme

from clustertune.core.wording import natural, printable
from clustertune.dashboard.state import Items, State, condition

# --- style ----------------------------------------------------------------------------

# Okabe and Ito's palette
BLUE, ORANGE, PURPLE = "#0072B2", "#E69F00", "#CC79A7"
GREY = "#7a7a7a"  # readable on a light and on a dark background

MAX_TEXT = 1000  # characters of a text from the cluster

CSS = """
:host { --ink: #1d2129; --soft: #5a6270; --line: #d5d9e0;
  --bad: #b34700; --good: #00714f; --fair: #7a5600;
  color: var(--ink); font: 14px/1.45 system-ui, "Helvetica Neue", Arial, sans-serif; }
@media (prefers-color-scheme: dark) { :host { --ink: #e8eaee;
  --soft: #a6adba; --line: #3a404b; --bad: #ff9d5c; --good: #4fd3a8; --fair: #f0c24b; }}
.bk-clearfix { display: block !important; width: 100%; overflow-wrap: anywhere }
.verdict { font-size: 19px; padding: 6px 12px; border-left: 6px solid }
.verdict small { display: block; font-size: 13px; color: var(--soft) }
.verdict div { font-size: 15px }
.ready { border-color: var(--good) } .ready b { color: var(--good) }
.usable { border-color: var(--fair) } .usable b { color: var(--fair) }
.not { border-color: var(--bad) } .not b { color: var(--bad) }
.unknown { border-color: var(--soft) } .unknown b { color: var(--soft) }
h4 { font-size: 15px; margin: 10px 0 4px }
.legend span { margin-right: 14px; white-space: nowrap }
table { border-collapse: collapse; width: 100% }
th { text-align: left; font-weight: 600; color: var(--soft); white-space: nowrap }
td, th { padding: 3px 12px 3px 0; border-bottom: 1px solid var(--line);
  vertical-align: top }
@media (max-width: 600px) { td, th { padding-right: 6px; font-size: 12px }
  th { white-space: normal; overflow-wrap: normal }}
code { font: 13px ui-monospace, Menlo, Consolas, monospace; user-select: all }
"""

PAGE = """
:host { background: #ffffff; padding: 4px 14px; box-sizing: border-box }
@media (prefers-color-scheme: dark) { :host { background: #16191f }}
"""

#: for the figure, whose only text is the labels of axes
THEME = Theme(
    json={
        "attrs": {
            "Plot": {
                "background_fill_color": None,
                "border_fill_color": None,
                "outline_line_color": None,
            },
            "Axis": {
                "axis_line_color": GREY,
                "major_tick_line_color": GREY,
                "minor_tick_line_color": None,
                "major_label_text_color": GREY,
                "major_label_text_font_size": "12px",
                "axis_label_text_color": GREY,
            },
            "Grid": {"grid_line_color": GREY, "grid_line_alpha": 0.35},
        }
    }
)


def escaped(value: object) -> str:
    """Return untrusted text, escaped for HTML."""
    return escape(printable(str(value), longest=MAX_TEXT))


def html() -> Div:
    """Return an empty element for HTML."""
    return Div(stylesheets=[CSS], sizing_mode="stretch_width", disable_math=True)


def source(*names: str) -> Any:
    """Return a data source with empty columns."""
    return ColumnDataSource({name: [] for name in names})


# --- the figure -----------------------------------------------------------------------

MAX_BARS = 40
BAR_HEIGHT = 22  # pixels
MAX_LABEL = 18  # characters of a name at an axis

PARTS = (
    ("managed", BLUE),
    ("unmanaged", ORANGE),
    ("spilled", PURPLE),
)
LEGEND = " ".join(
    f'<span><b style="color:{colour}">{sign}</b> {meaning}</span>'
    for colour, sign, meaning in (
        *((colour, "&#9632;", name) for name, colour in PARTS),
        (GREY, "|", "thresholds: target, spill, pause, terminate"),
    )
)
CAPTION = f'<h4>Memory of workers</h4><div class="legend">{LEGEND}</div>'
NO_THRESHOLDS = (
    "<p>The memory thresholds of some workers are unknown. Run "
    "<code>clustertune check</code> to read them.</p>"
)


class Memory:
    """One bar for each worker, with the worker's own thresholds as ticks.

    With many workers, the bars are those with problems, and the fullest.
    """

    def __init__(self) -> None:
        names = [name for name, _ in PARTS]
        self.source = source("y", "name", "label", "status", *names)
        self.ticks = source(*_TICK)
        self.caption, self.notes = html(), html()
        self.caption.text = CAPTION
        untyped: Any = figure  # Bokeh's types lack pairs as ranges
        self.chart = untyped(
            height=120, x_range=(0, 1), y_range=(1, 0), toolbar_location=None, tools="",
            sizing_mode="stretch_width",
        )  # fmt: skip
        self.roots = (self.caption, self.chart, self.notes)
        bars = self.chart.hbar_stack(
            names, y="y", height=0.62, source=self.source, line_color=None,
            color=[colour for _, colour in PARTS],
            hatch_pattern=[" ", " ", "/"], hatch_color="white",
        )  # fmt: skip
        self.chart.segment(
            x0="x", x1="x", y0="y0", y1="y1", source=self.ticks, line_width=2,
            line_color=GREY,
        )  # fmt: skip
        tooltips = [("worker", "@name"), ("status", "@status")]
        tooltips += [(name, f"@{name}{{0.[0] ib}}") for name in names]
        self.chart.add_tools(HoverTool(tooltips=tooltips, renderers=bars))
        self.chart.ygrid.visible = False
        # a new ticker for each update would cost more than all else
        self.chart.yaxis.ticker = FixedTicker(ticks=list(range(MAX_BARS)))
        powers = [2**i for i in range(10)]
        self.chart.xaxis.ticker = AdaptiveTicker(
            base=1024, mantissas=powers, desired_num_ticks=4
        )
        self.chart.xaxis.formatter = NumeralTickFormatter(format="0.[0] ib")

    def update(self, state: State) -> None:
        shown = _most_important(state["workers"])
        self.chart.visible = bool(shown)
        self.notes.text = _notes(state["workers"], shown)
        data = _bars(shown)
        if data["label"] != self.source.data["label"]:
            self._label(data["label"])
        self.source.data = data
        ticks = [
            (x, i - 0.42, i + 0.42)
            for i, worker in enumerate(shown)
            for x in worker["thresholds"]
            if x is not None
        ]
        self.ticks.data = {n: [t[i] for t in ticks] for i, n in enumerate(_TICK)}
        ends = [max(w["limit"], w["process"] + w["spilled"]) for w in shown]
        self.chart.x_range.end = max([1, *ends]) * 1.03

    def _label(self, labels: list[str]) -> None:
        self.chart.yaxis.major_label_overrides = dict(enumerate(labels))
        self.chart.y_range.start = len(labels) - 0.4
        self.chart.y_range.end = -0.6
        self.chart.height = 40 + BAR_HEIGHT * len(labels)


_TICK = ("x", "y0", "y1")


def _most_important(workers: Items) -> Items:
    """Return the workers with problems and the fullest ones, in natural order."""
    fullness = [w["process"] / (w["limit"] or 2**63) for w in workers]
    order = sorted(
        range(len(workers)), key=lambda i: (not condition(workers[i]), -fullness[i])
    )
    shown = [workers[i] for i in order[:MAX_BARS]]
    return sorted(shown, key=lambda w: natural(w["id"]))


def _bars(workers: Items) -> dict[str, list[Any]]:
    conditions = [condition(w) for w in workers]
    names = [printable(w["id"], longest=MAX_LABEL) for w in workers]
    return {
        "y": list(range(len(workers))),
        "name": [printable(w["id"], longest=60) for w in workers],
        "label": [
            f"\u25b2 {name}" if problem else name
            for name, problem in zip(names, conditions, strict=True)
        ],
        "status": [problem or "running" for problem in conditions],
        "managed": [w["managed"] for w in workers],
        "unmanaged": [max(0, w["process"] - w["managed"]) for w in workers],
        "spilled": [w["spilled"] for w in workers],
    }


def _notes(workers: Items, shown: Items) -> str:
    """Return problems of workers in words."""
    lines = [
        f"&#9650; {escaped(w['id'])}: {escaped(condition(w))}"
        for w in shown
        if condition(w)
    ]
    if len(shown) < len(workers):
        numbers = f"{len(shown)} of {len(workers):,} workers"
        lines.append(f"{numbers}: those with problems, then the fullest.")
    unknown = any(w["limit"] and not any(w["thresholds"]) for w in shown)
    return "<br>".join(lines) + (NO_THRESHOLDS if unknown else "")
