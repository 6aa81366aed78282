"""Figures of the page: memory of workers, rows of workers, and memory over time.

Each figure has ``roots`` (the Bokeh elements of a column), ``figures`` (the plots that
follow the reader's colour scheme) and ``update``. A problem of a worker shows as a
shape and a word next to its bar.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from math import ceil, sqrt
from typing import Any

from bokeh.models import (
    FixedTicker,
    HoverTool,
    LinearColorMapper,
    NumeralTickFormatter,
)
from bokeh.models.annotations import ColorBar
from bokeh.palettes import Cividis256

from clustertune.core.wording import bytes_text, plural, printable
from clustertune.dashboard import style
from clustertune.dashboard.state import (
    MAX_IMBALANCE,
    SHARE,
    THRESHOLDS,
    Columns,
    State,
    columns,
    conditions,
    imbalance,
    make,
)

MAX_BARS = 60  # with more workers, the figures show cells and a profile
MAX_EXTREMES = 5  # the fullest, emptiest and marked workers listed under the cells
MAX_EVENTS = 12

_DASHES = dict(zip(THRESHOLDS, ("dotted", "dashed", "solid", "dotdash"), strict=True))
_PARTS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("managed", style.BLUE, {}),
    ("unmanaged", style.ORANGE, {}),
    ("spilled", style.PURPLE, {"hatch_pattern": "/", "hatch_color": "white"}),
)
_SIZES = tuple(name for name, _, _ in _PARTS)
_BAR_TOOLTIPS = [
    ("worker", "@name"),
    ("address", "@address"),
    ("status", "@status"),
    *((f"{name} memory", f"@{name}_text") for name in _SIZES),
    ("memory limit", "@limit_text"),
    (", ".join(THRESHOLDS), "@thresholds_text"),
    ("threads", "@threads"),
]
_CELL_TOOLTIPS = [
    (label, f"@{name}{{0.[0] ib}}" if (name := label.split()[0]) in _SIZES else field)
    for label, field in _BAR_TOOLTIPS
]
_ROW_TOOLTIPS = [
    ("worker", "@name"),
    ("rows", "@rows_text"),
    ("even share", "@due_text"),
    ("partitions", "@partitions"),
    ("", "@problem"),
]
#: by kind of event
_EVENT_SHAPES = {
    "did": ("circle", style.GREEN),
    "failed": ("x", style.VERMILION),
    "held": ("square", style.PURPLE),
    "scheduled": ("inverted_triangle", style.SKY),
}

NO_WORKERS = "<p>The cluster has no workers.</p>"
NO_THRESHOLDS = (
    "<p class='soft'>The memory thresholds of some workers are unknown. Run "
    "<code>clustertune check</code> to read them.</p>"
)
NO_COLLECTIONS = (
    "<p>No collections are known here yet. Run <code>clustertune.prepare</code>, or "
    "<code>clustertune.check</code> with data, to see their rows.</p>"
)
RELEASED = (
    "<p>The collections of the last <code>prepare</code> or <code>check</code> have "
    "been released.</p>"
)


# --- memory of workers ----------------------------------------------------------------


class MemoryBars:
    """One bar for each worker, with the worker's own thresholds as ticks."""

    def __init__(self) -> None:
        self.source = style.source(_bar_columns(make()))
        self.ticks = {
            name: style.source({"x": [], "y0": [], "y1": []}) for name in THRESHOLDS
        }
        self.marks = style.source(_memory_marks(self.source.data))
        self.root = style.plot(
            "Memory of workers", height=120, x_range=(0, 1), y_range=(1, 0)
        )
        chart = self.root
        bars: dict[str, Any] = {}
        left: str | int = 0
        for name, color, pattern in _PARTS:
            bars[name] = chart.hbar(
                y="y", height=0.62, left=left, right=f"{name}_end", source=self.source,
                color=color, line_color=None, **pattern,
            )  # fmt: skip
            left = f"{name}_end"
        ticks = {
            name: chart.segment(
                x0="x", x1="x", y0="y0", y1="y1", source=self.ticks[name], line_width=2,
                line_dash=dash, line_color=style.GREY, tags=["ink"],
            )
            for name, dash in _DASHES.items()
        }  # fmt: skip
        style.add_marks(chart, self.marks, x="end", y="y", marker="mark", size=11)
        style.add_words(chart, self.marks, x="end", text="status", x_offset=10)
        chart.add_tools(HoverTool(tooltips=_BAR_TOOLTIPS, renderers=[*bars.values()]))
        style.bytes_axis(chart.xaxis)
        chart.ygrid.visible = False
        style.legend(chart, bars | ticks)

    def update(self, state: State) -> None:
        workers, data = state["workers"], _bar_columns(state)
        # a new axis costs more than all other changes
        if data["name"] != self.source.data["name"]:
            style.label_bars(self.root, data["name"])
        self.source.data = data
        self.marks.data = _memory_marks(data)
        for name, source in self.ticks.items():
            known = [(i, x) for i, x in enumerate(workers[name]) if x is not None]
            ticks = {
                "x": [x for _, x in known],
                "y0": [i - 0.42 for i, _ in known],
                "y1": [i + 0.42 for i, _ in known],
            }
            if ticks != source.data:
                source.data = ticks
        # words need room to the right of the bars
        room = 1.3 if self.marks.data["y"] else 1.05
        self.root.x_range.end = _widest(data) * room


class MemoryCells:
    """One cell for each worker, coloured by memory."""

    def __init__(self) -> None:
        self.source = style.source(_fixed_columns(make()) | _cell_columns(make()))
        self.marks = style.source(_memory_marks(self.source.data))
        self.root = style.plot("Memory of workers", height=260)
        self._fixed: list[Any] = []
        chart = self.root
        colors = LinearColorMapper(palette=Cividis256, low=0, high=1)
        cells = chart.rect(
            x="column", y="row", width=0.92, height=0.92, source=self.source,
            fill_color={"field": "fraction", "transform": colors}, line_color=None,
        )  # fmt: skip
        style.add_marks(
            chart, self.marks, x="column", y="row", marker="mark", size=12,
            fill_color="white", line_width=3,
        )  # fmt: skip
        chart.add_tools(HoverTool(tooltips=_CELL_TOOLTIPS, renderers=[cells]))
        chart.axis.visible = chart.grid.visible = False
        bar = ColorBar(
            color_mapper=colors,
            title="memory, of the limit",
            formatter=NumeralTickFormatter(format="0%"),
            background_fill_color=None,
            major_label_text_color=style.GREY,
            title_text_color=style.GREY,
            width=14,
            title_standoff=8,
        )
        chart.add_layout(bar, "right")

    def update(self, state: State) -> None:
        """Show another state; send only the cells that have changed."""
        data = _cell_columns(state)
        fixed = [list(state["workers"][name]) for name in _FIXED]
        if fixed == self._fixed:
            _patch(self.source, data)
        else:
            self._fixed = fixed
            self.source.data = _fixed_columns(state) | data
        marks = _memory_marks(self.source.data)
        if marks != self.marks.data:
            self.marks.data = marks


class Memory:
    """Bars, or cells with a list of the fullest and the emptiest workers."""

    def __init__(self) -> None:
        self.bars, self.cells, self.list = MemoryBars(), MemoryCells(), style.html()
        self.figures = (self.bars.root, self.cells.root)
        self.roots = (*self.figures, self.list)
        self.cells.root.visible = self.list.visible = False

    def update(self, state: State) -> None:
        n = len(state["workers"]["id"])
        many = n > MAX_BARS
        self.bars.root.visible = 0 < n <= MAX_BARS
        self.cells.root.visible = many
        if many:
            self.cells.update(state)
            self.list.text = _extremes(state)
        else:
            self.bars.update(state)
            known = "" if _has_thresholds(state) else NO_THRESHOLDS
            self.list.text = known if n else NO_WORKERS
        self.list.visible = bool(self.list.text)


def _has_thresholds(state: State) -> bool:
    w = state["workers"]
    own = zip(w["limit"], *(w[name] for name in THRESHOLDS), strict=True)
    return all(not limit or any(four) for limit, *four in own)


def _extremes(state: State) -> str:
    """Return a table of the fullest, the emptiest and the marked workers."""
    workers = state["workers"]
    problems, used = conditions(workers), _fractions(workers)
    order = sorted(range(len(used)), key=lambda i: -used[i])
    marked = [i for i in order if problems[i]]
    rows = [("fullest", i) for i in order[:MAX_EXTREMES]]
    rows += [("emptiest", i) for i in order[-MAX_EXTREMES:]]
    rows += [("marked", i) for i in marked[:MAX_EXTREMES]]
    cells = [
        (
            why,
            style.text(workers["id"][i], style.MAX_NAME),
            f"{used[i]:.0%}",
            bytes_text(workers["process"][i]),
            bytes_text(workers["spilled"][i]),
            style.text(problems[i] or "running"),
        )
        for why, i in rows
    ]
    head = ("", "worker", "of its limit", "process", "spilled", "status")
    more = len(marked) - MAX_EXTREMES
    rest = f"<p>{plural(more, 'more worker')} marked.</p>" if more > 0 else ""
    return style.table(head, cells, "kknnn ") + rest


def _fractions(workers: Columns) -> list[float]:
    """Return process memory over the limit, or over the largest process without one."""
    most = max([1, *workers["process"]])
    pairs = zip(workers["process"], workers["limit"], strict=True)
    return [p / (limit or most) for p, limit in pairs]


_FIXED = ("address", "id", "limit", "threads", *THRESHOLDS)


def _fixed_columns(state: State) -> Columns:
    """Return the columns that stay the same while the workers do."""
    workers = state["workers"]
    n = len(workers["id"])
    wide = max(1, ceil(sqrt(n * 4)))
    own = zip(*(workers[name] for name in THRESHOLDS), strict=True)
    return {
        "y": list(range(n)),
        "column": [i % wide for i in range(n)],
        "row": [-(i // wide) for i in range(n)],
        "name": style.names(workers["id"]),
        "address": style.names(workers["address"]),
        "limit": list(workers["limit"]),
        "limit_text": [bytes_text(x) if x else "none" for x in workers["limit"]],
        "thresholds_text": [
            ", ".join("unknown" if x is None else bytes_text(x) for x in four)
            for four in own
        ],
        "threads": list(workers["threads"]),
    }


def _cell_columns(state: State) -> Columns:
    """Return the columns of cells that change; the browser formats the numbers."""
    w = state["workers"]
    unmanaged = zip(w["process"], w["managed"], strict=True)
    return {
        "fraction": [round(x, 2) for x in _fractions(w)],
        "status": [problem or "running" for problem in conditions(w)],
        "managed": list(w["managed"]),
        "unmanaged": [max(0, p - m) for p, m in unmanaged],
        "spilled": list(w["spilled"]),
    }


def _bar_columns(state: State) -> Columns:
    cells, ends = _cell_columns(state), [0] * len(state["workers"]["id"])
    data = _fixed_columns(state) | {"status": cells["status"]}
    for name in _SIZES:
        ends = [end + n for end, n in zip(ends, cells[name], strict=True)]
        data[f"{name}_end"] = ends
        data[f"{name}_text"] = [bytes_text(n) for n in cells[name]]
    return data


def _memory_marks(data: Columns) -> Columns:
    """Return a shape and words for each worker that has a problem."""
    odd = [i for i, status in enumerate(data["status"]) if status != "running"]
    end = _widest(data) * 1.03 if "spilled_end" in data else 0.0
    marks = {name: [data[name][i] for i in odd] for name in ("y", "column", "row")}
    status = [data["status"][i] for i in odd]
    shapes = ["square_x" if "paus" in text else "triangle" for text in status]
    return marks | {"status": status, "end": [end] * len(odd), "mark": shapes}


def _widest(data: Columns) -> float:
    return float(max([1, *data["limit"], *data["spilled_end"]]))


def _patch(source: Any, data: Columns) -> None:
    changed = {}
    for name, column in data.items():
        pairs = enumerate(zip(source.data[name], column, strict=True))
        cells = [(i, new) for i, (old, new) in pairs if old != new]
        if cells:
            changed[name] = cells
    if changed:
        source.patch(changed)


# --- rows of workers ------------------------------------------------------------------


class Rows:
    """Bars of the training data, and a table of all collections."""

    def __init__(self) -> None:
        title = "Rows of the training data"
        self.source = style.source(_row_columns(columns(SHARE, ())))
        self.marks = style.source(_row_marks(self.source.data))
        self.bars = style.plot(title, height=120, x_range=(0, 1), y_range=(1, 0))
        self.profile = style.plot(f"{title}, by worker", height=260, y_range=(0, 1))
        self.table = style.html()
        self.figures = (self.bars, self.profile)
        self.roots = (*self.figures, self.table)
        self._draw_bars()
        self._draw_profile()
        self.bars.visible = self.profile.visible = False

    def _draw_bars(self) -> None:
        chart = self.bars
        bars = chart.hbar(
            y="y", height=0.62, right="rows", source=self.source, color="color",
            hatch_pattern="hatch", hatch_color="white",
        )  # fmt: skip
        even = chart.segment(
            x0="due", x1="due", y0="low", y1="high", source=self.source, line_width=2,
            line_color=style.GREY, tags=["ink"],
        )  # fmt: skip
        style.add_marks(chart, self.marks, x=0, y="y", marker="triangle", size=11)
        style.add_words(chart, self.source, x="rows", text="label", x_offset=12)
        chart.add_tools(HoverTool(tooltips=_ROW_TOOLTIPS, renderers=[bars, even]))
        chart.xaxis.formatter = NumeralTickFormatter(format="0.[0]a")
        chart.ygrid.visible = False
        style.legend(chart, {"even share": even})

    def _draw_profile(self) -> None:
        chart = self.profile
        bars = chart.vbar(
            x="y", width=0.9, top="rows", source=self.source, color="color",
            line_color=None,
        )  # fmt: skip
        even = chart.step(
            x="y", y="due", mode="center", source=self.source, line_width=2,
            line_color=style.GREY, tags=["ink"],
        )  # fmt: skip
        style.add_marks(chart, self.marks, x="y", y=0, marker="triangle", size=9)
        chart.add_tools(HoverTool(tooltips=_ROW_TOOLTIPS, renderers=[bars]))
        chart.yaxis.formatter = NumeralTickFormatter(format="0.[0]a")
        chart.xgrid.visible = False
        chart.xaxis.ticker = FixedTicker(ticks=[])
        style.legend(chart, {"even share": even})

    def update(self, state: State) -> None:
        known = state["collections"]
        layouts = [
            x for x in known if not x["missing"] or x["missing"] < x["partitions"]
        ]
        share = layouts[0]["workers"] if layouts else columns(SHARE, ())
        n = len(share["id"])
        self.bars.visible, self.profile.visible = 0 < n <= MAX_BARS, n > MAX_BARS
        data = _row_columns(share)
        if any(data[name] != self.source.data[name] for name in ("name", "rows")):
            self.source.data = data
            self.marks.data = _row_marks(data)
            most = max([1, *data["rows"], *data["due"]])
            style.label_bars(self.bars, data["name"])
            self.bars.x_range.end = most * 1.7  # room for the words next to a bar
            self.profile.y_range.end = most * 1.1
        nothing = RELEASED if known else NO_COLLECTIONS
        self.table.text = _layout_table(layouts) if layouts else nothing


def _row_columns(share: Columns) -> Columns:
    rows, due, n = share["rows"], share["due"], len(share["id"])
    problems = [_row_problem(r, d) for r, d in zip(rows, due, strict=True)]
    labels = [
        (f"{r:,}", plural(p, "partition"), problem)
        for r, p, problem in zip(rows, share["partitions"], problems, strict=True)
    ]
    return {
        "y": list(range(n)),
        "low": [i - 0.42 for i in range(n)],
        "high": [i + 0.42 for i in range(n)],
        "name": style.names(share["id"]),
        "rows": list(rows),
        "due": list(due),
        "partitions": list(share["partitions"]),
        "rows_text": [f"{r:,}" for r in rows],
        "due_text": [f"{d:,.0f}" for d in due],
        "problem": problems,
        "label": [", ".join(filter(None, words)) for words in labels],
        "color": [style.VERMILION if p else style.BLUE for p in problems],
        "hatch": ["/" if p else " " for p in problems],
    }


def _row_problem(rows: int, due: float) -> str:
    if due and not rows:
        return "empty"
    if rows > due * MAX_IMBALANCE:
        return "too many" if due else "should have none"
    return ""


def _row_marks(data: Columns) -> Columns:
    return {"y": [y for y in data["y"] if data["problem"][y] == "empty"]}


def _layout_table(layouts: list[dict[str, Any]]) -> str:
    rows = []
    for x in layouts:
        fullest = imbalance(x["workers"])
        row = (
            style.text(x["label"]),
            "unknown" if x["rows"] is None else f"{x['rows']:,}",
            f"{x['partitions']:,}",
            "unknown" if fullest is None else _marked(f"{fullest:.2f}", fullest),
            _marked(f"{x['apart']:,}", x["apart"], 0),
            _marked(f"{x['missing']:,}", x["missing"], 0),
        )
        rows.append(row)
    head = (
        "collection", "rows", "partitions", "fullest, of its share",
        "separated pairs", "not in memory",
    )  # fmt: skip
    return style.table(head, rows, " nnnnn")


def _marked(words: str, value: float, most: float = MAX_IMBALANCE) -> str:
    """Mark a number that is too high with a sign and a colour."""
    return f'<span class="bad">&#9650; {words}</span>' if value > most else words


# --- memory over time -----------------------------------------------------------------


class Timeline:
    """Memory of all workers over time, with a mark for each event and an event list."""

    def __init__(self) -> None:
        empty: Columns = {"time": [], "process": [], "managed": []}
        self.source = style.source(_history_columns(empty))
        self.marks = style.source(_event_marks([], empty))
        self.list = style.html()
        self.root = style.plot(
            "Memory of all workers, and events",
            height=210,
            x_axis_type="datetime",
            y_range=(0, 1),
        )
        self.figures = (self.root,)
        self.roots = (self.root, self.list)
        chart = self.root
        whole = chart.varea(
            x="time", y1="managed", y2="process", source=self.source,
            fill_color=style.ORANGE, fill_alpha=0.8,
        )  # fmt: skip
        data = chart.varea(
            x="time", y1=0, y2="managed", source=self.source, fill_color=style.BLUE,
            fill_alpha=0.8,
        )  # fmt: skip
        line = chart.line(
            x="time", y="process", source=self.source, line_color=style.GREY
        )
        marks = chart.scatter(
            x="time", y="at", marker="mark", size=12, source=self.marks,
            fill_color="color", line_color="color", line_width=2,
        )  # fmt: skip
        hover = HoverTool(
            tooltips=[
                ("time", "@time{%T} UTC"),
                ("process", "@process{0.[0] ib}"),
                ("managed", "@managed{0.[0] ib}"),
            ],
            formatters={"@time": "datetime"},
            renderers=[line],
            mode="vline",
        )
        chart.add_tools(hover, HoverTool(tooltips=[("", "@text")], renderers=[marks]))
        style.bytes_axis(chart.yaxis)
        chart.xaxis.axis_label = "UTC"
        style.legend(chart, {"managed": data, "unmanaged": whole})

    def update(self, state: State) -> None:
        history, events = state["history"], state["events"]
        self.root.visible = any(history["process"])
        self._follow(history)
        marks = _event_marks(events, history)
        if marks != self.marks.data:
            self.marks.data = marks
        self.list.text = _event_table(events)

    def _follow(self, history: Columns) -> None:
        """Send the new values of a history, or all values of a different one."""
        lines, shown = _history_columns(history), self.source.data["time"]
        times = lines["time"]
        start = bisect_right(times, shown[-1]) if len(shown) else 0
        if start and times[start - 1] == shown[-1]:
            if start == len(times):
                return
            new = {name: values[start:] for name, values in lines.items()}
            self.source.stream(new, rollover=len(times))
        elif times or len(shown):
            self.source.data = lines
        self.root.y_range.end = max([1, *history["process"]]) * 1.15


def _history_columns(history: Columns) -> Columns:
    return {
        "time": [t * 1000 for t in history["time"]],
        "process": list(history["process"]),
        "managed": list(history["managed"]),
    }


def _event_marks(events: Sequence[Mapping[str, Any]], history: Columns) -> Columns:
    """Return the events of the time shown, placed on the line of memory."""
    times, process = history["time"], history["process"]
    shown = [e for e in events if times and times[0] <= e["time"]]
    at = [min(bisect_left(times, e["time"]), len(times) - 1) for e in shown]
    texts = [f"{_clock(e['time'])} {e['text']}" for e in shown]
    return {
        "time": [e["time"] * 1000 for e in shown],
        "at": [process[i] for i in at],
        "text": [printable(text, longest=style.MAX_TEXT) for text in texts],
        "mark": [_EVENT_SHAPES[e["kind"]][0] for e in shown],
        "color": [_EVENT_SHAPES[e["kind"]][1] for e in shown],
    }


def _clock(seconds: float) -> str:
    """Return a time in UTC, because reader and scheduler may have other time zones."""
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%H:%M:%S} UTC"


def _event_table(events: Sequence[Mapping[str, Any]]) -> str:
    if not events:
        return "<p class='soft'>clustertune has logged no events here yet.</p>"
    rows = [
        (_clock(e["time"]), style.text(e["kind"]), style.text(e["text"]))
        for e in reversed(events[-MAX_EVENTS:])
    ]
    return style.table(("time", "kind", "event"), rows, "kk ")
