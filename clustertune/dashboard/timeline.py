"""Memory of the whole cluster over time, and what was done to it when."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from bokeh.models import (
    AdaptiveTicker,
    HoverTool,
    NumeralTickFormatter,
)

from clustertune.core.wording import printable
from clustertune.dashboard import looks
from clustertune.dashboard.state import Columns, State

SHAPES = {  # by kind of event: shape, colour
    "did": ("circle", looks.GREEN),
    "failed": ("x", looks.VERMILION),
    "held": ("square", looks.PURPLE),
    "scheduled": ("inverted_triangle", looks.SKY),
}
LISTED = 12  # events, the latest


class Timeline:
    """Two lines and a mark for each event; the latest events in a table."""

    def __init__(self) -> None:
        self.source = looks.source(_lines({"time": [], "process": [], "managed": []}))
        self.marks = looks.source(_marks([], [], []))
        self.root = looks.plot(
            "Memory of all workers, and what was done",
            height=210,
            x_axis_type="datetime",
            y_range=(0, 1),
        )
        self.list = looks.html()
        self.roots = (self.root, self.list)
        self.figures = (self.root,)
        made = self.root
        whole = made.varea(
            x="time", y1="managed", y2="process", source=self.source,
            fill_color=looks.ORANGE, fill_alpha=0.8,
        )  # fmt: skip
        data = made.varea(
            x="time", y1=0, y2="managed", source=self.source, fill_color=looks.BLUE,
            fill_alpha=0.8,
        )  # fmt: skip
        over = made.line(
            x="time", y="process", source=self.source, line_color=looks.GREY
        )
        marks = made.scatter(
            x="time", y="at", marker="mark", size=12, source=self.marks,
            fill_color="color", line_color="color", line_width=2,
        )  # fmt: skip
        tips = [("time", "@time{%T} UTC"), ("process", "@process{0.[0] ib}")]
        made.add_tools(
            HoverTool(
                tooltips=[*tips, ("managed", "@managed{0.[0] ib}")],
                formatters={"@time": "datetime"},
                renderers=[over],
                mode="vline",
            ),
            HoverTool(tooltips=[("", "@said")], renderers=[marks]),
        )
        made.yaxis.ticker = AdaptiveTicker(
            base=1024, mantissas=[1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
        )
        made.yaxis.formatter = NumeralTickFormatter(format="0.[0] ib")
        made.xaxis.axis_label = "UTC"
        looks.legend(made, [("managed", [data]), ("unmanaged", [whole])])

    def update(self, state: State) -> None:
        """Show another state."""
        history, events = state["history"], state["events"]
        self.root.visible = any(history["process"])
        self._follow(history)
        marks = _marks(events, history["time"], history["process"])
        if marks != self.marks.data:
            self.marks.data = marks
        self.list.text = _table(events)

    def _follow(self, history: Columns) -> None:
        """Send what is new of a history that goes on, or all of another one."""
        lines, shown = _lines(history), self.source.data["time"]
        times = lines["time"]
        start = bisect_right(times, shown[-1]) if len(shown) else 0
        if start and times[start - 1] == shown[-1]:
            new = {name: values[start:] for name, values in lines.items()}
            if new["time"]:
                self.source.stream(new, rollover=len(times))
                self.root.y_range.end = max([1, *history["process"]]) * 1.15
        elif times or len(shown):
            self.source.data = lines
            self.root.y_range.end = max([1, *history["process"]]) * 1.15


def _lines(history: Columns) -> Columns:
    return {
        "time": [t * 1000 for t in history["time"]],
        "process": list(history["process"]),
        "managed": list(history["managed"]),
    }


def _marks(
    events: Sequence[Any], times: Sequence[float], process: Sequence[int]
) -> Columns:
    """Events within the time that is shown, on the line of memory."""
    shown = [e for e in events if times and times[0] <= e["time"]]
    at = [min(bisect_left(times, e["time"]), len(times) - 1) for e in shown]
    return {
        "time": [e["time"] * 1000 for e in shown],
        "at": [process[i] for i in at],
        "said": [
            printable(f"{_clock(e['time'])} {e['text']}", longest=looks.LONGEST)
            for e in shown
        ],
        "mark": [SHAPES[e["kind"]][0] for e in shown],
        "color": [SHAPES[e["kind"]][1] for e in shown],
    }


def _clock(seconds: float) -> str:
    """In universal time, and it says so: reader and scheduler may be far apart."""
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%H:%M:%S} UTC"


def _table(events: Sequence[Any]) -> str:
    if not events:
        return "<p class='soft'>Nothing was done by clustertune here so far.</p>"
    rows = [
        (_clock(e["time"]), looks.text(e["kind"]), looks.text(e["text"]))
        for e in reversed(events[-LISTED:])
    ]
    return looks.table(("time", "", "what was done"), rows, "kk ")
