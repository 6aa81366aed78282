"""Render sections of labelled lines and tables as text and as HTML.

All text may come from a cluster, so it is untrusted. Both renderers replace control
characters, and the HTML is escaped. There are no colours in text.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import zip_longest

from clustertune.core.wording import printable

MAX_WIDTH = 100  # columns of text
MIN_WIDTH = 40  # narrower terminals wrap the lines themselves
MAX_LABEL = 12  # characters
MIN_COLUMN = 4  # characters of a table's column
MAX_UNBROKEN = 24  # characters of a cell that HTML does not wrap
GAP = 2  # columns between the columns of a table, and of indentation

BAR_COLOURS = ("#a0a0a0", "#4c78a8")  # before, after
LEGEND = (
    '<div style="opacity:0.75;font-size:smaller">Bars: grey before, blue after.</div>'
)
#: a page that loads nothing, whatever text is in it
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
      content="default-src 'none'; style-src 'unsafe-inline'">
<title>clustertune</title>
<style>
body {{ font-family: sans-serif; margin: 2em; max-width: 75em; }}
td, th {{ padding: 0.2em 0.8em; text-align: left; vertical-align: top; }}
h4 {{ margin-bottom: 0.3em; }}
</style>
</head>
<body>
{body}
</body>
</html>"""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table; HTML shows each fraction as a bar."""

    text: str
    bars: tuple[float, ...] = ()  # fractions of the width: before, after


@dataclass(frozen=True, slots=True)
class Item:
    """A labelled line, and further lines below it."""

    label: str
    text: str
    details: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """A table with a title; a line break in a header is a space in HTML."""

    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """Items and tables with a title."""

    title: str
    content: tuple[Item | Table, ...]


# --- text -----------------------------------------------------------------------------


def to_text(sections: Sequence[Section], width: int | None = None) -> str:
    """Render sections as text of at most ``width`` columns; None: of the terminal."""
    width = _terminal_width() if width is None else width
    return "\n\n".join("\n".join(_section_lines(s, width)) for s in sections)


def _terminal_width() -> int:
    terminal = sys.stdout is not None and sys.stdout.isatty()
    if not (terminal or os.environ.get("COLUMNS", "").isdecimal()):
        return MAX_WIDTH
    return max(MIN_WIDTH, min(MAX_WIDTH, shutil.get_terminal_size().columns))


def _section_lines(section: Section, width: int) -> Iterator[str]:
    yield section.title
    items = [x for x in section.content if isinstance(x, Item)]
    labels = [printable(x.label, longest=MAX_LABEL) for x in items]
    indent = GAP + max(map(len, labels), default=0) + GAP
    for number, part in enumerate(section.content):
        if isinstance(part, Item):
            label = printable(part.label, longest=MAX_LABEL)
            yield from _item_lines(part, label, indent, width)
        else:
            if number:
                yield ""
            yield from _table_lines(part, width)


def _item_lines(item: Item, label: str, indent: int, width: int) -> Iterator[str]:
    first, rest = f"{'':{GAP}}{label}".ljust(indent), " " * indent
    yield from _wrapped(item.text, width, first, rest) or [first.rstrip()]
    for text in item.details:
        yield from _wrapped(text, width, rest, rest)


def _wrapped(text: str, width: int, first: str, rest: str) -> list[str]:
    return textwrap.wrap(
        printable(text),
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_on_hyphens=False,
    )


def _table_lines(table: Table, width: int) -> Iterator[str]:
    indent = " " * GAP
    if table.title:
        yield from _wrapped(table.title, width, indent, indent)
    rows = [[printable(cell.text) for cell in row] for row in table.rows]
    # tabulate does not limit the width of a table, and pads headers
    widths = _column_widths([table.header, *rows], width - GAP)
    for row in (table.header, ["-" * n for n in widths], *rows):
        yield from (f"{indent}{line}".rstrip() for line in _row_lines(row, widths))


def _row_lines(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    """Wrap the cells of a row and put them side by side."""
    cells = [
        [part for line in text.split("\n") for part in _lines(line, width)]
        for text, width in zip(row, widths, strict=True)
    ]
    for parts in zip_longest(*cells, fillvalue=""):
        padded = (part.ljust(n) for part, n in zip(parts, widths, strict=True))
        yield (" " * GAP).join(padded)


def _lines(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False) or [""]


def _column_widths(rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Narrow the widest columns until the table fits."""
    lengths = [
        max(len(line) for cell in column for line in [*cell.split("\n"), ""])
        for column in zip(*rows, strict=True)
    ]
    widths = [max(MIN_COLUMN, min(n, width)) for n in lengths]
    while sum(widths) + GAP * (len(widths) - 1) > width and max(widths) > MIN_COLUMN:
        widths[widths.index(max(widths))] -= 1
    return widths


# --- HTML -----------------------------------------------------------------------------


def to_html(sections: Sequence[Section]) -> str:
    """Render sections as HTML for a notebook; all text is escaped."""
    return f'<div class="clustertune">{"".join(map(_section_html, sections))}</div>'


def to_page(body: str) -> str:
    """Return a complete HTML page that needs no network."""
    return PAGE.format(body=body)


def _section_html(section: Section) -> str:
    parts = [
        _item_html(x) if isinstance(x, Item) else _table_html(x)
        for x in section.content
    ]
    return f"<h4>{escape(section.title)}</h4>{''.join(parts)}"


def _item_html(item: Item) -> str:
    details = "".join(
        f'<div style="opacity:0.75;margin-left:1.5em">{_prose(text)}</div>'
        for text in item.details
    )
    return (
        f'<div style="margin:0.3em 0"><strong>{_prose(item.label)}</strong> '
        f"{_prose(item.text)}{details}</div>"
    )


def _prose(text: str) -> str:
    """Escape text, and mark the code in it."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(printable(text)))


def _table_html(table: Table) -> str:
    head = "".join(f"<th>{escape(x)}</th>" for x in table.header).replace("\n", " ")
    rows = "".join(f"<tr>{''.join(map(_cell_html, row))}</tr>" for row in table.rows)
    title = f'<div style="margin:0.6em 0 0.2em">{_prose(table.title)}</div>'
    legend = LEGEND if any(len(c.bars) > 1 for row in table.rows for c in row) else ""
    title = title if table.title else ""
    return f"{title}<table><tr>{head}</tr>{rows}</table>{legend}"


def _cell_html(cell: Cell) -> str:
    colours = BAR_COLOURS[len(BAR_COLOURS) - len(cell.bars) :]
    bars = "".join(
        f'<div style="background:{colour};height:4px;margin-top:2px;'
        f'width:{100 * min(1.0, max(0.0, bar)):.0f}%"></div>'
        for bar, colour in zip(cell.bars, colours, strict=True)
    )
    style = ' style="white-space:nowrap"' if len(cell.text) <= MAX_UNBROKEN else ""
    return f"<td{style}>{_prose(cell.text)}{bars}</td>"
