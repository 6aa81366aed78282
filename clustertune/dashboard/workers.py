"""Memory of workers: a bar for each, or where they are many a cell for each.

A bar has the worker's own thresholds as ticks; what is unusual about a worker stands
beside it as a shape and in words.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, sqrt
from typing import Any

from bokeh.models import (
    AdaptiveTicker,
    FixedTicker,
    HoverTool,
    LinearColorMapper,
    NumeralTickFormatter,
)
from bokeh.models.annotations import ColorBar
from bokeh.palettes import Cividis256

from clustertune.core.wording import bytes_text, plural
from clustertune.dashboard import looks
from clustertune.dashboard.state import THRESHOLDS, Columns, State, conditions, make

FEW = 60  # workers up to which each has a bar
LISTED = 5  # of more, so many fullest and emptiest ones are named
BAR = 22  # pixels
TICKS = dict(zip(THRESHOLDS, ("dotted", "dashed", "solid", "dotdash"), strict=True))

_BARS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("managed", looks.BLUE, {}),
    ("unmanaged", looks.ORANGE, {}),
    ("spilled", looks.PURPLE, {"hatch_pattern": "/", "hatch_color": "white"}),
)
_BYTES = ("managed", "unmanaged", "spilled to disk")
_TOOLTIPS = [
    ("worker", "@name"),
    ("address", "@address"),
    ("status", "@said"),
    ("managed", "@managed_text"),
    ("unmanaged", "@unmanaged_text"),
    ("spilled to disk", "@spilled_text"),
    ("memory limit", "@limit_text"),
    ("target, spill, pause, terminate", "@thresholds_text"),
    ("threads", "@threads"),
]
_CELL_TOOLTIPS = [
    (label, field.replace("_text", "{0.[0] ib}") if label in _BYTES else field)
    for label, field in _TOOLTIPS
]


NONE = "<p>The cluster has no workers.</p>"
UNKNOWN = (
    "<p class='soft'>Thresholds of some workers are not known here; "
    "<code>clustertune check</code> asks for them.</p>"
)


class Bars:
    """One bar a worker; also ``figures``, which follow the reader's light or dark."""

    def __init__(self) -> None:
        self.source = looks.source(_described(make(), ()))
        self.ticks = {name: looks.source(_no_ticks()) for name in THRESHOLDS}
        self._names: list[str] = []
        self.root = looks.plot(
            "Memory of workers", height=120, x_range=(0, 1), y_range=(1, 0)
        )
        self.figures = (self.root,)
        made = self.root
        left: list[str] = []
        parts = []
        for name, color, pattern in _BARS:
            ends = [*left, name]
            bar = made.hbar(
                y="y",
                height=0.62,
                left=f"{left[-1]}_end" if left else 0,
                right=f"{name}_end",
                source=self.source,
                color=color,
                line_color=None,
                **pattern,
            )
            parts.append((name, [bar]))
            left = ends
        for name, dash in TICKS.items():
            tick = made.segment(
                x0="x", x1="x", y0="y0", y1="y1", source=self.ticks[name],
                line_width=2, line_dash=dash, line_color=looks.GREY, tags=["ink"],
            )  # fmt: skip
            parts.append((name, [tick]))
        self.marks = looks.source(_marks(self.source.data))
        made.scatter(
            x="beside", y="y", marker="mark", size=11, source=self.marks,
            fill_color=looks.VERMILION, line_color=looks.VERMILION,
        )  # fmt: skip
        made.text(
            x="beside", y="y", text="said", source=self.marks, x_offset=10,
            text_baseline="middle", text_font_size="12px", text_color=looks.GREY,
            tags=["ink"],
        )  # fmt: skip
        made.add_tools(
            HoverTool(
                tooltips=_TOOLTIPS, renderers=[r for _, rs in parts[:3] for r in rs]
            )
        )
        made.xaxis.ticker = AdaptiveTicker(
            base=1024, mantissas=[1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
        )
        made.xaxis.formatter = NumeralTickFormatter(format="0.[0] ib")
        made.ygrid.visible = False
        looks.legend(made, parts)

    def update(self, state: State) -> None:
        """Show another state."""
        workers = state["workers"]
        said = conditions(workers)
        data = _described(state, said)
        n = len(workers["id"])
        self.source.data = data
        self.marks.data = _marks(data)
        for name, source in self.ticks.items():
            known = [(i, x) for i, x in enumerate(workers[name]) if x is not None]
            ticks = {
                "x": [x for _, x in known],
                "y0": [i - 0.42 for i, _ in known],
                "y1": [i + 0.42 for i, _ in known],
            }
            if ticks != source.data:
                source.data = ticks
        made = self.root
        if data["name"] != self._names:  # a new axis costs more than all the rest
            self._names = data["name"]
            made.yaxis.ticker = FixedTicker(ticks=list(range(n)))
            made.yaxis.major_label_overrides = dict(
                enumerate(looks.names(data["name"], looks.LABEL))
            )
            made.y_range.start, made.y_range.end = n - 0.4, -0.6
            made.height = 75 + BAR * n
        # words need room beside the bars
        made.x_range.end = _widest(data) * (1.3 if self.marks.data["y"] else 1.05)


class Cells:
    """A cell a worker, coloured by memory; the fullest and the emptiest by name."""

    def __init__(self) -> None:
        self.source = looks.source(_fixed(make()["workers"]) | _cells(make(), ()))
        self._seen: tuple[Any, ...] = ()
        self.root = looks.plot("Memory of workers", height=260)
        self.figures = (self.root,)
        made = self.root
        colors = LinearColorMapper(palette=Cividis256, low=0, high=1)
        cells = made.rect(
            x="column", y="row", width=0.92, height=0.92, source=self.source,
            fill_color={"field": "fraction", "transform": colors}, line_color=None,
        )  # fmt: skip
        self.marks = looks.source(_marks(self.source.data))
        made.scatter(
            x="column", y="row", marker="mark", size=12, source=self.marks,
            fill_color="white", line_color=looks.VERMILION, line_width=3,
        )  # fmt: skip
        made.add_tools(HoverTool(tooltips=_CELL_TOOLTIPS, renderers=[cells]))
        made.axis.visible = made.grid.visible = False
        made.add_layout(
            ColorBar(
                color_mapper=colors,
                title="memory in use, of the limit",
                formatter=NumeralTickFormatter(format="0%"),
                background_fill_color=None,
                major_label_text_color=looks.GREY,
                title_text_color=looks.GREY,
                width=14,
                title_standoff=8,
            ),
            "right",
        )

    def update(self, state: State) -> None:
        """Show another state; a cell that is as it was is not sent again."""
        workers = state["workers"]
        data = _cells(state, conditions(workers))
        seen = tuple(map(list, (workers[name] for name in _FIXED)))
        if seen == self._seen:
            _patch(self.source, data)
        else:
            self._seen = seen
            self.source.data = _fixed(workers) | data
        marks = _marks(self.source.data)
        if marks != self.marks.data:
            self.marks.data = marks


class Memory:
    """Bars or cells, and who is fullest and emptiest where they are cells."""

    def __init__(self) -> None:
        self.bars, self.cells = Bars(), Cells()
        self.list = looks.html()
        self.roots = (self.bars.root, self.cells.root, self.list)
        self.figures = (*self.bars.figures, *self.cells.figures)
        self.cells.root.visible = self.list.visible = False

    def update(self, state: State) -> None:
        """Show another state."""
        n = len(state["workers"]["id"])
        many = n > FEW
        self.bars.root.visible = 0 < n <= FEW
        self.cells.root.visible = many
        self.list.visible = many or not n or not _known(state)
        if many:
            self.cells.update(state)
            self.list.text = _extremes(state)
        else:
            self.bars.update(state)
            self.list.text = NONE if not n else "" if _known(state) else UNKNOWN


def _known(state: State) -> bool:
    """Whether something is known of the thresholds of each worker that has a limit."""
    w = state["workers"]
    own = zip(w["limit"], *(w[name] for name in THRESHOLDS), strict=True)
    return all(not limit or any(four) for limit, *four in own)


def _extremes(state: State) -> str:
    """The fullest and the emptiest workers, and all that are unusual in some way."""
    workers = state["workers"]
    said = conditions(workers)
    used = _fractions(workers)
    order = sorted(range(len(used)), key=lambda i: -used[i])
    odd = [i for i in order if said[i]]
    rows = [("fullest", i) for i in order[:LISTED]]
    rows += [("emptiest", i) for i in order[-LISTED:]]
    rows += [("marked", i) for i in odd[:LISTED]]
    cells = [
        (
            why,
            looks.text(workers["id"][i], looks.NAME),
            f"{used[i]:.0%}",
            bytes_text(workers["process"][i]),
            bytes_text(workers["spilled"][i]),
            looks.text(said[i] or "running"),
        )
        for why, i in rows
    ]
    head = ("", "worker", "of its limit", "process", "spilled", "status")
    more = len(odd) - LISTED
    rest = f"<p>{plural(more, 'more worker')} marked.</p>" if more > 0 else ""
    return looks.table(head, cells, "kknnn ") + rest


def _fractions(workers: Columns) -> list[float]:
    """Process memory of the limit; of the largest process where there is no limit."""
    most = max([1, *workers["process"]])
    pairs = zip(workers["process"], workers["limit"], strict=True)
    return [p / (limit or most) for p, limit in pairs]


def _described(state: State, said: Sequence[str]) -> Columns:
    """What bars and their tooltips show of each worker."""
    w = state["workers"]
    managed, unmanaged = w["managed"], _unmanaged(w)
    inside = [m + u for m, u in zip(managed, unmanaged, strict=True)]
    return _fixed(w) | {
        "said": [text or "running" for text in said],
        "managed_end": list(managed),
        "unmanaged_end": inside,
        "spilled_end": [x + s for x, s in zip(inside, w["spilled"], strict=True)],
        "managed_text": [bytes_text(x) for x in managed],
        "unmanaged_text": [bytes_text(x) for x in unmanaged],
        "spilled_text": [bytes_text(x) for x in w["spilled"]],
    }


def _cells(state: State, said: Sequence[str]) -> Columns:
    """What changes of a cell; the browser puts numbers into words."""
    w = state["workers"]
    return {
        "fraction": [round(x, 2) for x in _fractions(w)],
        "said": [text or "running" for text in said],
        "managed": list(w["managed"]),
        "unmanaged": _unmanaged(w),
        "spilled": list(w["spilled"]),
    }


_FIXED = ("address", "id", "limit", "threads", *THRESHOLDS)


def _fixed(workers: Columns) -> Columns:
    """What stays as it is for as long as the workers are the same."""
    n = len(workers["id"])
    wide = max(1, ceil(sqrt(n * 4)))
    own = zip(*(workers[name] for name in THRESHOLDS), strict=True)
    return {
        "y": list(range(n)),
        "column": [i % wide for i in range(n)],
        "row": [-(i // wide) for i in range(n)],
        "name": looks.names(workers["id"]),
        "address": looks.names(workers["address"]),
        "limit": list(workers["limit"]),
        "limit_text": [bytes_text(x) if x else "none" for x in workers["limit"]],
        "thresholds_text": [", ".join(map(_threshold, four)) for four in own],
        "threads": list(workers["threads"]),
    }


def _unmanaged(w: Columns) -> list[int]:
    return [max(0, p - m) for p, m in zip(w["process"], w["managed"], strict=True)]


def _marks(data: Columns) -> Columns:
    """A shape and words for each worker that is unusual in some way."""
    odd = [i for i, said in enumerate(data["said"]) if said != "running"]
    names = {"y": "y", "column": "column", "row": "row"}
    beside = _widest(data) * 1.03 if "spilled_end" in data else 0.0
    said = [data["said"][i] for i in odd]
    return {name: [data[of][i] for i in odd] for name, of in names.items()} | {
        "said": said,
        "beside": [beside] * len(odd),
        "mark": ["square_x" if "paus" in text else "triangle" for text in said],
    }


def _widest(data: Columns) -> float:
    """Bytes to which bars and thresholds go."""
    return float(max([1, *data["limit"], *data["spilled_end"]]))


def _threshold(nbytes: int | None) -> str:
    return "unknown" if nbytes is None else bytes_text(nbytes)


def _no_ticks() -> Columns:
    return {"x": [], "y0": [], "y1": []}


def _patch(source: Any, data: Columns) -> None:
    """Send what has changed."""
    old = source.data
    patches = {
        name: [
            (i, new)
            for i, (was, new) in enumerate(zip(old[name], column, strict=True))
            if was != new
        ]
        for name, column in data.items()
    }
    changed = {name: cells for name, cells in patches.items() if cells}
    if changed:
        source.patch(changed)
