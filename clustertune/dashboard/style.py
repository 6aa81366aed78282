"""Style of the page: colours, CSS, and helpers that make HTML tables and plots.

Colour-blind readers can distinguish the colours, and a word or a shape accompanies each
colour. Text from the cluster is untrusted: :func:`text` escapes it for HTML.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from bokeh.models import (
    AdaptiveTicker,
    ColumnDataSource,
    CustomJS,
    FixedTicker,
    NumeralTickFormatter,
)
from bokeh.models.annotations import Legend, LegendItem
from bokeh.models.widgets import Div
from bokeh.plotting import figure

from clustertune.core.wording import printable

# Okabe and Ito's palette
BLUE, SKY, GREEN, ORANGE = "#0072B2", "#56B4E9", "#009E73", "#E69F00"
VERMILION, PURPLE = "#D55E00", "#CC79A7"
GREY = "#7f7f7f"  # readable on a light and on a dark background

MAX_TEXT = 300  # characters of a text from the cluster
MAX_NAME = 40  # characters of a name
BAR_HEIGHT = 22  # pixels
MAX_LABEL = 22  # characters of a name at an axis

CSS = """
:host { --ink: #1d2129; --soft: #5a6270; --line: #d5d9e0;
  --bad: #b34700; --good: #00714f; --fair: #7a5600;
  color: var(--ink); font: 14px/1.45 system-ui, "Helvetica Neue", Arial, sans-serif; }
@media (prefers-color-scheme: dark) { :host { --ink: #e8eaee;
  --soft: #a6adba; --line: #3a404b; --bad: #ff9d5c; --good: #4fd3a8; --fair: #f0c24b; }}
.verdict { font-size: 19px; font-weight: 600; padding: 6px 12px;
  border-left: 6px solid }
.verdict small { display: block; font-size: 13px; font-weight: 400;
  color: var(--soft) }
.ready { border-color: var(--good) } .ready b { color: var(--good) }
.usable { border-color: var(--fair) } .usable b { color: var(--fair) }
.not-ready { border-color: var(--bad) } .not-ready b { color: var(--bad) }
.unknown { border-color: var(--soft) } .unknown b { color: var(--soft) }
h2 { font-size: 15px; margin: 10px 0 4px; font-weight: 600 }
p { margin: 3px 0; max-width: 72em } .soft { color: var(--soft) }
table { border-collapse: collapse; width: 100% }
th { text-align: left; font-weight: 600; color: var(--soft) }
td, th { padding: 3px 14px 3px 0; border-bottom: 1px solid var(--line);
  vertical-align: top; overflow-wrap: break-word }
.bk-clearfix { display: block !important; width: 100% }
td.w { overflow-wrap: anywhere }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
td.n { white-space: nowrap }
td.k { white-space: nowrap; width: 1% }
code { font: 13px ui-monospace, Menlo, Consolas, monospace; user-select: all }
.critical, .bad { color: var(--bad); font-weight: 600 }
.warning { color: var(--fair); font-weight: 600 }
"""

BACKGROUND = """
:host { background: #ffffff; padding: 4px 14px; box-sizing: border-box }
@media (prefers-color-scheme: dark) { :host { background: #16191f }}
"""

# CSS does not reach a canvas, so this script applies the colour scheme of the browser.
_THEME = """
const dark = window.matchMedia("(prefers-color-scheme: dark)")
// sync: false keeps the colours of this reader out of the document on the server
const put = (model, values) => model.setv(
  Object.fromEntries(Object.entries(values).filter(([k]) => k in model.properties)),
  {sync: false})
const set = () => {
  const [ink, line, background] = dark.matches
    ? ["#e8eaee", "#3a404b", "#16191f"] : ["#1d2129", "#d5d9e0", "#ffffff"]
  for (const f of figures) {
    put(f, {border_fill_color: background, background_fill_color: background})
    put(f.title, {text_color: ink})
    for (const part of [...f.left, ...f.below, ...f.right, ...f.above, ...f.center])
      put(part, {
        axis_label_text_color: ink, major_label_text_color: ink, label_text_color: ink,
        title_text_color: ink, axis_line_color: line, major_tick_line_color: line,
        grid_line_color: line,
      })
    for (const {glyph} of f.renderers)
      if (glyph.tags.includes("ink"))
        put(glyph, "text_color" in glyph.properties
          ? {text_color: ink} : {line_color: ink})
  }
}
dark.addEventListener("change", set)
set()
"""


def theme(figures: Sequence[Any]) -> CustomJS:
    """Return the script that gives figures the reader's light or dark colours."""
    return CustomJS(args={"figures": list(figures)}, code=_THEME)


def text(value: object, longest: int = MAX_TEXT) -> str:
    """Return untrusted text, escaped for HTML."""
    return escape(printable(str(value), longest=longest))


def with_code(value: str) -> str:
    """Return untrusted text, escaped for HTML, with text in backticks as code."""
    parts = text(value, 1000).split("`")
    return "".join(
        f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts)
    )


def names(ids: Iterable[object], longest: int = MAX_NAME) -> list[str]:
    """Return names of workers for labels and tooltips."""
    return [printable(str(id), longest=longest) for id in ids]


def html() -> Div:
    """Return an empty element for HTML."""
    return Div(stylesheets=[CSS], sizing_mode="stretch_width")


def table(header: Sequence[str], rows: Iterable[Sequence[str]], kinds: str = "") -> str:
    """Return a table whose cells are HTML.

    ``kinds`` has a letter for each column: ``n`` aligns numbers to the right, ``k``
    keeps lines whole, ``w`` breaks long words, a space does nothing.
    """
    columns = kinds.ljust(len(header))
    classes = [f' class="{k}"' if k != " " else "" for k in columns]
    head = "".join(
        f"<th{c}>{name}</th>" for c, name in zip(classes, header, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(f"<td{c}>{cell}</td>" for c, cell in zip(classes, row, strict=True))
        + "</tr>"
        for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def plot(title: str, **options: Any) -> Any:
    """Return a figure with a transparent background."""
    chart: Any = figure(
        title=title,
        toolbar_location=None,
        tools="",
        sizing_mode="stretch_width",
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
        **options,
    )
    chart.title.text_color = GREY
    chart.title.text_font_size = "15px"
    for axis in chart.axis:
        axis.axis_line_color = axis.major_tick_line_color = GREY
        axis.minor_tick_line_color = None
        axis.major_label_text_color = axis.axis_label_text_color = GREY
        axis.major_label_text_font_size = "12px"
    for grid in chart.grid:
        grid.grid_line_color = GREY
        grid.grid_line_alpha = 0.35
    return chart


def source(columns: Mapping[str, list[Any]]) -> Any:
    """Return a data source with these columns."""
    data: Any = dict(columns)
    return ColumnDataSource(data)


def legend(chart: Any, renderers: Mapping[str, Any]) -> None:
    """Add a legend above a figure, with a name for each renderer."""
    chart.add_layout(
        Legend(
            items=[LegendItem(label=n, renderers=[r]) for n, r in renderers.items()],
            orientation="horizontal",
            background_fill_color=None,
            border_line_color=None,
            label_text_color=GREY,
            label_text_font_size="11px",
            location="top_left",
            glyph_width=14,
            label_standoff=2,
            spacing=5,
            margin=2,
        ),
        "above",
    )


def add_marks(chart: Any, source: Any, **options: Any) -> None:
    """Mark problems with shapes."""
    colors = {"fill_color": VERMILION, "line_color": VERMILION}
    chart.scatter(source=source, **(colors | options))


def add_words(chart: Any, source: Any, **options: Any) -> None:
    """Write words next to bars."""
    chart.text(
        y="y", source=source, text_baseline="middle", text_font_size="12px",
        text_color=GREY, tags=["ink"], **options,
    )  # fmt: skip


def bytes_axis(axis: Any) -> None:
    """Label an axis with binary prefixes."""
    powers = [2**i for i in range(10)]
    axis.ticker = AdaptiveTicker(base=1024, mantissas=powers)
    axis.formatter = NumeralTickFormatter(format="0.[0] ib")


def label_bars(chart: Any, labels: Sequence[str]) -> None:
    """Make room for one bar for each label, and label the bars."""
    short = names(labels, MAX_LABEL)
    chart.yaxis.ticker = FixedTicker(ticks=list(range(len(labels))))
    chart.yaxis.major_label_overrides = dict(enumerate(short))
    chart.y_range.start, chart.y_range.end = len(labels) - 0.4, -0.6
    chart.height = 75 + BAR_HEIGHT * len(labels)
