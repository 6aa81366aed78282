"""Style of the page: colours, CSS, and helpers for HTML and plots.

Colour-blind readers can distinguish the colours, and a word or a shape accompanies each
colour. Text from the cluster is untrusted: :func:`text` escapes it for HTML. Titles and
legends are HTML, which wraps on narrow screens.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

from bokeh.models import AdaptiveTicker, ColumnDataSource, NumeralTickFormatter
from bokeh.models.widgets import Div
from bokeh.plotting import figure
from bokeh.themes import Theme

from clustertune.core.wording import printable

# Okabe and Ito's palette
BLUE, SKY, GREEN, ORANGE = "#0072B2", "#56B4E9", "#009E73", "#E69F00"
VERMILION, PURPLE = "#D55E00", "#CC79A7"
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
code { font: 13px ui-monospace, Menlo, Consolas, monospace; user-select: all }
"""

PAGE = """
:host { background: #ffffff; padding: 4px 14px; box-sizing: border-box }
@media (prefers-color-scheme: dark) { :host { background: #16191f }}
"""

#: for figures, which have no text of their own but the labels of axes
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


def text(value: object) -> str:
    """Return untrusted text, escaped for HTML."""
    return escape(printable(str(value), longest=MAX_TEXT))


def html() -> Div:
    """Return an empty element for HTML."""
    return Div(stylesheets=[CSS], sizing_mode="stretch_width", disable_math=True)


def caption(title: str, legend: Iterable[tuple[str, str, str]]) -> str:
    """Return a title and a legend: colour, sign and meaning."""
    entries = " ".join(
        f'<span><b style="color:{colour}">{sign}</b> {meaning}</span>'
        for colour, sign, meaning in legend
    )
    return f'<h4>{title}</h4><div class="legend">{entries}</div>'


def plot(**options: Any) -> Any:
    """Return a figure as wide as its column."""
    return figure(
        toolbar_location=None, tools="", sizing_mode="stretch_width", **options
    )


def source(*names: str) -> Any:
    """Return a data source with empty columns."""
    return ColumnDataSource({name: [] for name in names})


def bytes_axis(axis: Any) -> None:
    """Label an axis with binary prefixes."""
    powers = [2**i for i in range(10)]
    axis.ticker = AdaptiveTicker(base=1024, mantissas=powers, desired_num_ticks=4)
    axis.formatter = NumeralTickFormatter(format="0.[0] ib")
