"""Rows and pieces of prepared collections on each worker, beside the even share."""

from __future__ import annotations

from typing import Any

from bokeh.models import (
    FixedTicker,
    HoverTool,
    NumeralTickFormatter,
)

from clustertune.core.wording import plural
from clustertune.dashboard import looks
from clustertune.dashboard.state import UNEVEN, Columns, State, imbalance
from clustertune.dashboard.workers import BAR, FEW

NONE = (
    "<p>No collections are known here yet: rows are shown from the first "
    "<code>clustertune.prepare</code> or <code>check</code> with data on.</p>"
)
GONE = (
    "<p>The collections that were prepared or checked last are in memory no more.</p>"
)
_TOOLTIPS = [
    ("worker", "@name"),
    ("rows", "@rows_text"),
    ("even share", "@due_text"),
    ("pieces", "@pieces"),
    ("", "@said"),
]


class Rows:
    """Bars of the training data, and all collections in a table."""

    def __init__(self, title: str = "Rows of the training data") -> None:
        self.source = looks.source(_described(_nothing()))
        self.marks = looks.source(_marks(self.source.data))
        self.bars = looks.plot(title, height=120, x_range=(0, 1), y_range=(1, 0))
        self.profile = looks.plot(f"{title}, by worker", height=260, y_range=(0, 1))
        self.table = looks.html()
        self.roots = (self.bars, self.profile, self.table)
        self.figures = (self.bars, self.profile)
        self._draw_bars()
        self._draw_profile()
        self.bars.visible = self.profile.visible = False

    def _draw_bars(self) -> None:
        made = self.bars
        bars = made.hbar(
            y="y", height=0.62, right="rows", source=self.source, color="color",
            hatch_pattern="hatch", hatch_color="white",
        )  # fmt: skip
        even = made.segment(
            x0="due", x1="due", y0="low", y1="high", source=self.source, line_width=2,
            line_color=looks.GREY, tags=["ink"],
        )  # fmt: skip
        made.scatter(
            x=0, y="y", marker="triangle", size=11, source=self.marks,
            fill_color=looks.VERMILION, line_color=looks.VERMILION,
        )  # fmt: skip
        made.text(
            x="rows", y="y", text="label", source=self.source, x_offset=12,
            text_baseline="middle", text_font_size="12px", text_color=looks.GREY,
            tags=["ink"],
        )  # fmt: skip
        made.add_tools(HoverTool(tooltips=_TOOLTIPS, renderers=[bars, even]))
        made.xaxis.formatter = NumeralTickFormatter(format="0.[0]a")
        made.ygrid.visible = False
        looks.legend(made, [("even share", [even])])

    def _draw_profile(self) -> None:
        made = self.profile
        bars = made.vbar(
            x="y", width=0.9, top="rows", source=self.source, color="color",
            line_color=None,
        )  # fmt: skip
        even = made.step(
            x="y", y="due", mode="center", source=self.source, line_width=2,
            line_color=looks.GREY, tags=["ink"],
        )  # fmt: skip
        made.scatter(
            x="y", y=0, marker="triangle", size=9, source=self.marks,
            fill_color=looks.VERMILION, line_color=looks.VERMILION,
        )  # fmt: skip
        made.add_tools(HoverTool(tooltips=_TOOLTIPS, renderers=[bars]))
        made.yaxis.formatter = NumeralTickFormatter(format="0.[0]a")
        made.xgrid.visible = False
        made.xaxis.ticker = FixedTicker(ticks=[])
        looks.legend(made, [("even share", [even])])

    def update(self, state: State) -> None:
        """Show another state."""
        known = state["collections"]
        layouts = [x for x in known if not x["missing"] or x["missing"] < x["pieces"]]
        share = layouts[0]["workers"] if layouts else _nothing()
        n = len(share["id"])
        self.bars.visible, self.profile.visible = 0 < n <= FEW, n > FEW
        data = _described(share)
        if any(data[name] != self.source.data[name] for name in ("name", "rows")):
            self.source.data = data
            self.marks.data = _marks(data)
            self._fit(data)
        self.table.text = _table(layouts) if layouts else GONE if known else NONE

    def _fit(self, data: Columns) -> None:
        n = len(data["name"])
        most = max([1, *data["rows"], *data["due"]])
        made = self.bars
        made.yaxis.ticker = FixedTicker(ticks=list(range(n)))
        made.yaxis.major_label_overrides = dict(
            enumerate(looks.names(data["name"], looks.LABEL))
        )
        made.y_range.start, made.y_range.end = n - 0.4, -0.6
        made.x_range.end = most * 1.7  # room for the words beside a bar
        made.height = 75 + BAR * n
        self.profile.y_range.end = most * 1.1


def _nothing() -> Columns:
    return {"id": [], "rows": [], "pieces": [], "due": []}


def _described(share: Columns) -> Columns:
    rows, due, n = share["rows"], share["due"], len(share["id"])
    said = [_said(r, d) for r, d in zip(rows, due, strict=True)]
    return {
        "y": list(range(n)),
        "low": [i - 0.42 for i in range(n)],
        "high": [i + 0.42 for i in range(n)],
        "name": looks.names(share["id"]),
        "rows": list(rows),
        "due": list(due),
        "pieces": list(share["pieces"]),
        "rows_text": [f"{r:,}" for r in rows],
        "due_text": [f"{d:,.0f}" for d in due],
        "said": said,
        "label": [
            ", ".join(filter(None, (f"{r:,}", plural(p, "piece"), s)))
            for r, p, s in zip(rows, share["pieces"], said, strict=True)
        ],
        "color": [looks.VERMILION if s else looks.BLUE for s in said],
        "hatch": ["/" if s else " " for s in said],
    }


def _said(rows: int, due: float) -> str:
    """What is wrong with a worker's share, in a word."""
    if due and not rows:
        return "empty"
    if rows > due * UNEVEN:
        return "too many" if due else "should have none"
    return ""


def _marks(data: Columns) -> Columns:
    empty = [y for y, said in zip(data["y"], data["said"], strict=True) if said]
    return {"y": [y for y in empty if data["said"][y] == "empty"]}


def _table(layouts: list[dict[str, Any]]) -> str:
    rows = []
    for x in layouts:
        fullest = imbalance(x["workers"])
        rows.append(
            (
                looks.text(x["label"]),
                f"{x['rows']:,}" if x["rows"] is not None else "unknown",
                f"{x['pieces']:,}",
                "unknown" if fullest is None else _marked(f"{fullest:.2f}", fullest),
                _marked(f"{x['apart']:,}", x["apart"], 0),
                _marked(f"{x['missing']:,}", x["missing"], 0),
            )
        )
    head = (
        "collection", "rows", "pieces", "fullest, of its share", "pairs apart",
        "not in memory",
    )  # fmt: skip
    return looks.table(head, rows, " nnnnn")


def _marked(words: str, value: float, most: float = UNEVEN) -> str:
    """Figures that are too high, with a sign beside the colour."""
    return f'<span class="bad">&#9650; {words}</span>' if value > most else words
