"""Make tables of workers for a report, and the cells of tables (pure)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain

from clustertune.core.rendering import Cell, Item, Table
from clustertune.core.results import LayoutSummary, Results, WorkerShare, WorkerState
from clustertune.core.wording import bytes_text, names_text, plural

MAX_ROWS = 12  # of a table of workers: the first and the last
NONE = "-"  # in a cell

Row = Sequence[tuple[str, str | Cell]]
"""The cells of a row, each with the header of its column; text alone has no bars."""


# --- workers --------------------------------------------------------------------------


def of_workers(results: Results, *, memory: bool) -> Iterator[Item | Table]:
    """Return what workers hold before and after the call, one table per layout.

    Without layouts, and with ``memory``, return their memory: a table after changes.
    """
    states = {w.worker: w for w in results.workers}
    after = results.after or results.before
    pairs = {s.label: s for s in results.before}
    for number, summary in enumerate(after):
        if summary.workers:
            before = pairs.get(summary.label, summary)
            yield _layout_table(
                before,
                summary,
                {} if number else states,
                {} if number else results.forecast,
            )
    if memory and results.workers and not after:
        changed = results.changed
        yield (_memory_table if changed else _memory_item)(results.workers)


def _layout_table(
    before: LayoutSummary,
    after: LayoutSummary,
    states: Mapping[str | int, WorkerState],
    forecast: Mapping[str | int, int],
) -> Table:
    was = {w.worker: w for w in before.workers or after.workers}
    now = {w.worker: w for w in after.workers}
    known: dict[str | int, WorkerShare] = {**was, **now}
    ids = list(known)
    if len(ids) > MAX_ROWS:  # show the fullest and the emptiest workers
        ids.sort(key=lambda id: -known[id].share)
    largest = max((w.rows for w in chain(was.values(), now.values())), default=0)

    def row(id: str | int) -> Row:
        a, b = was.get(id), now.get(id)
        rows, partitions, nbytes = (
            (getattr(a, name, None), getattr(b, name, None))
            for name in ("rows", "partitions", "nbytes")
        )
        peak = value_text(forecast.get(id), bytes_text)
        return (
            ("worker", names_text([id])),
            ("partitions", change(*partitions, "{:,}".format)),
            ("rows", Cell(change(*rows, "{:,}".format), bars(largest, *rows))),
            ("bytes", change(*nbytes, bytes_text)),
            ("process memory", _process_cell(states.get(id))),
            ("peak in the fit,\npredicted", peak),
        )

    return compact([row(id) for id in ids], title=_layout_title(before, after))


def _layout_title(before: LayoutSummary, after: LayoutSummary) -> str:
    was = before if before.loaded else after

    def changed(name: str, text: Callable[[float], str]) -> str:
        return change(getattr(was, name), getattr(after, name), text, "unknown")

    parts = [
        f"{changed('partitions', '{:,}'.format)} partitions",
        f"{changed('rows', '{:,}'.format)} rows",
        changed("nbytes", bytes_text),
    ]
    if was.imbalance is not None and after.imbalance is not None:
        share = changed("imbalance", "{:.2f}".format)
        parts.append(f"fullest worker {share} times its share of rows")
    if was.separated or after.separated:
        parts.append(f"{changed('separated', '{:,}'.format)} pairs separated")
    return f"{after.label}: {', '.join(parts)}"


def _process_cell(state: WorkerState | None) -> Cell:
    if state is None:
        return Cell(NONE)
    memory = (state.process_before, state.process_after)
    return Cell(change(*memory, bytes_text), bars(state.limit, *memory))


def _memory_item(workers: Sequence[WorkerState]) -> Item:
    seen = [w.process_after or w.process_before for w in workers]
    known = [n for n in seen if n is not None]
    limits = [w.limit for w in workers]
    used = _range_text(known) if known else "unknown"
    of = f" of {_range_text(limits)} each" if all(limits) else ""
    processes = plural(len(workers), "process", "processes")
    return Item("memory", f"{used}{of} in {processes}")


def _range_text(sizes: Sequence[int]) -> str:
    ends = (bytes_text(n) for n in (min(sizes), max(sizes)))
    return " to ".join(dict.fromkeys(ends))


def _memory_table(workers: Sequence[WorkerState]) -> Table:
    rows = [
        (
            ("worker", names_text([w.worker])),
            ("data in memory", change(w.data_before, w.data_after, bytes_text)),
            ("process memory", _process_cell(w)),
            ("memory limit", bytes_text(w.limit) if w.limit else "none"),
        )
        for w in workers
    ]
    return compact(rows)


# --- cells ----------------------------------------------------------------------------


def value_text(value: float | None, text: Callable[[float], str]) -> str:
    """Format a value; a dash for None."""
    return NONE if value is None else text(value)


def predicted(value: float | None, text: Callable[[float], str]) -> str:
    """Format a value; ``unknown`` for None."""
    return "unknown" if value is None else text(value)


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


def bars(most: float | None, *values: float | None) -> tuple[float, ...]:
    """Return the known values as fractions of ``most``; none if that is unknown."""
    known = [v for v in values if v is not None]
    return tuple(v / most for v in known) if most else ()


def compact(
    rows: Sequence[Row], hidden: Collection[str] = (), title: str = ""
) -> Table:
    """Make a table without hidden and empty columns; leave out rows of a long one."""
    header: list[str] = []
    columns: list[list[Cell]] = []
    for column in zip(*rows, strict=True):
        name = column[0][0]
        cells = [c if isinstance(c, Cell) else Cell(c) for _, c in column]
        if name not in hidden and any(cell.text != NONE for cell in cells):
            header.append(name)
            columns.append(cells)
    kept = list(zip(*columns, strict=True))
    if len(kept) > MAX_ROWS:
        half = MAX_ROWS // 2
        more = Cell(f"... {len(kept) - 2 * half:,} more")
        gap = (more, *[Cell("")] * (len(header) - 1))
        kept = [*kept[:half], gap, *kept[-half:]]
    return Table(tuple(header), tuple(kept), title)
