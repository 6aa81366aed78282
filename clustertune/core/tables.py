"""Labelled lines and tables, as text and as HTML.

All text may come from a cluster, so it is untrusted. Both renderers replace control
characters, and the HTML is escaped. There are no colours in text.
"""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import zip_longest

from clustertune.core.wording import printable

MAX_WIDTH = 100  # columns of text
MIN_WIDTH = 40  # narrower terminals wrap the lines themselves
MAX_LABEL = 12  # characters
MIN_COLUMN = 4  # characters of a table's column
MAX_UNBROKEN = 20  # characters of a cell that HTML does not wrap; addresses have more
MAX_ROWS = 12  # of a table: the first and the last
GAP = 2  # columns between the columns of a table, and of indentation
NONE = "-"  # in a cell

Row = Sequence[tuple[str, str]]
"""The cells of a row, each with the header of its column."""


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
    rows: tuple[tuple[str, ...], ...]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """Items and tables with a title; a section without content is one line."""

    title: str
    content: tuple[Item | Table, ...] = ()
    colour: str = ""  # of the title in HTML


# --- making tables --------------------------------------------------------------------


def table(rows: Sequence[Row], title: str = "") -> Table:
    """Make a table without empty columns, and with a part of the rows of a long one."""
    columns = zip(*rows, strict=True)
    shown = [x for x in columns if any(text != NONE for _, text in x)]
    kept = list(zip(*([text for _, text in x] for x in shown), strict=True))
    if len(kept) > MAX_ROWS:
        half = MAX_ROWS // 2
        gap = (f"... {len(kept) - 2 * half:,} more", *[""] * (len(shown) - 1))
        kept = [*kept[:half], gap, *kept[-half:]]
    return Table(tuple(x[0][0] for x in shown), tuple(kept), title)


def value_text(value: float | None, text: Callable[[float], str]) -> str:
    """Format a value; a dash for None."""
    return NONE if value is None else text(value)


def change(
    before: float | None,
    after: float | None,
    text: Callable[[float], str],
    unknown: str = NONE,
) -> str:
    """Return ``50.4 -> 16.8 MiB``, or one value if both are the same as text."""
    was, now = (unknown if n is None else text(n) for n in (before, after))
    if was == now:
        return now
    number, _, unit = was.partition(" ")
    return f"{number if now.endswith(f' {unit}') else was} -> {now}"


# --- text -----------------------------------------------------------------------------


def to_text(sections: Sequence[Section]) -> str:
    """Render sections as text of at most 100 columns, or those of the terminal."""
    terminal = shutil.get_terminal_size((MAX_WIDTH, 0)).columns
    width = max(MIN_WIDTH, min(MAX_WIDTH, terminal))
    return "\n\n".join("\n".join(_section_lines(s, width)) for s in sections)


def _section_lines(section: Section, width: int) -> Iterator[str]:
    yield from _wrapped(section.title, width)
    items = [x for x in section.content if isinstance(x, Item)]
    labels = [printable(x.label, longest=MAX_LABEL) for x in items]
    indent = GAP + max(map(len, labels), default=0) + GAP
    for part in section.content:
        if isinstance(part, Item):
            first = f"{'':{GAP}}{printable(part.label, longest=MAX_LABEL)}"
            rest = " " * indent
            yield from _wrapped(part.text, width, first.ljust(indent), rest) or [first]
            for text in part.details:
                yield from _wrapped(text, width, rest, rest)
        else:
            yield from _table_lines(part, width)


def _wrapped(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    return textwrap.wrap(
        printable(text),
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_on_hyphens=False,
    )


def _table_lines(table: Table, width: int) -> Iterator[str]:
    indent = " " * GAP
    yield from _wrapped(table.title, width, indent, indent)
    rows = [[printable(text) for text in row] for row in table.rows]
    # tabulate does not limit the width of a table, and pads headers
    widths = _column_widths([table.header, *rows], width - GAP)
    for row in (table.header, ["-" * n for n in widths], *rows):
        yield from (f"{indent}{line}".rstrip() for line in _row_lines(row, widths))


def _row_lines(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    """Wrap the cells of a row and put them side by side."""
    cells = [
        [part for line in text.split("\n") for part in _wrapped(line, width) or [""]]
        for text, width in zip(row, widths, strict=True)
    ]
    for parts in zip_longest(*cells, fillvalue=""):
        padded = (part.ljust(n) for part, n in zip(parts, widths, strict=True))
        yield (" " * GAP).join(padded)


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


def _section_html(section: Section) -> str:
    parts = [
        _item_html(x) if isinstance(x, Item) else _table_html(x)
        for x in section.content
    ]
    colour = f' style="color:{section.colour}"' if section.colour else ""
    return f"<h4{colour}>{_prose(section.title)}</h4>{''.join(parts)}"


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
    return f"{title if table.title else ''}<table><tr>{head}</tr>{rows}</table>"


def _cell_html(text: str) -> str:
    style = ' style="white-space:nowrap"' if len(text) <= MAX_UNBROKEN else ""
    return f"<td{style}>{_prose(text)}</td>"
