"""Load lazy collections in one graph, each partition on the worker that will use it.

This needs known rows of partitions: arrays of known chunks, or Parquet files by their
footers. Companions are placed with X. Dask places other data, and ``rebalance`` moves
it afterwards. No data is at risk: it can be loaded again.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clustertune.core.model import (
    CollectionInfo,
    Finding,
    Float64s,
    Int64s,
    Layout,
    Load,
    Price,
    Step,
    Unknown,
    View,
)
from clustertune.core.wording import bytes_text
from clustertune.errors import CapacityError
from clustertune.planner import chunking, layouts, memory
from clustertune.planner.placement import AIM, place


def propose(findings: tuple[Finding, ...], view: View) -> Iterator[Step]:
    """Propose one step for all lazy collections.

    Raises ``CapacityError`` if the data is, by its metadata, larger than the free
    memory of the workers.
    """
    lazy = [m for m in view.collections if not m.loaded]
    if not lazy or not view.loads_data:
        return
    labels = [m.label for m in lazy]
    size = layouts.sum_bytes(lazy)
    amount, most = _amount(size, labels, view)
    targets: dict[str, Int64s] = {}
    room, loaded = _room(view), np.zeros(len(view.now.workers))
    for layout in view.layouts:
        found = _targets(layout, view, np.maximum(0.0, room - loaded))
        for collection in layout.collections:
            sized = isinstance(layouts.collection_bytes(collection), int)
            if collection.label in found and sized:
                np.add.at(loaded, found[collection.label], _key_bytes(collection))
        targets |= found
    placed = [m.label for m in lazy if m.label in targets]
    peak = None if isinstance(size, Unknown) else size
    if peak is not None and len(placed) == len(lazy):
        peak = int(loaded.max())
    yield Step(
        action="load",
        summary=f"load {', '.join(labels)} ({amount}) in one call",
        price=Price(nbytes=None, peak=peak),
        args=Load(
            workers=tuple(w.address for w in view.now.workers),
            targets=targets,
            free_memory=most,
        ),
    )


def _amount(
    size: int | Unknown, labels: list[str], view: View
) -> tuple[str, Float64s | None]:
    """Return the size of the data as text, and the free memory if it is unknown."""
    free, may = _room(view), layouts.weights(view) > 0
    free = free[may] if may.any() else free  # paused workers may run again
    if not isinstance(size, Unknown):
        memory.refuse_too_much(labels, size, free)
        return bytes_text(size), None
    if not len(free) or not memory.thresholds_known(view):
        return "of unknown size", None
    return f"of unknown size; no more than {bytes_text(free.sum())}", free


def _key_bytes(collection: CollectionInfo) -> Int64s:
    """Return the bytes of every key, in proportion to its rows."""
    total = layouts.collection_bytes(collection)
    assert collection.rows is not None
    assert isinstance(total, int)
    blocks = collection.column_blocks
    rows = np.repeat(collection.rows, blocks)
    return (rows * (total / max(1, int(rows.sum())))).astype(np.int64)


def _room(view: View) -> Float64s:
    """Return the free bytes of every worker, minus loaded data that may move there."""
    held = layouts.held_bytes(view.layouts, len(view.now.workers))
    return np.maximum(0.0, memory.free_memory(view) - held)


# --- placement ------------------------------------------------------------------------


def _targets(layout: Layout, view: View, free: Float64s) -> dict[str, Int64s]:
    """Return by label the worker of every key of collections with known rows."""
    open_ = {
        m: m.rows
        for m in layout.collections
        if m.rows is not None and m.rows.sum() and not m.loaded and not m.derived
    }
    if not open_ or not view.eligible_workers:
        return {}
    rows, home = _anchor(layout, next(iter(open_.values())), view, free)
    return {
        m.label: np.repeat(_follow(rows, home, own), m.column_blocks)
        for m, own in open_.items()
        if own.sum() == rows.sum()
    }


def _anchor(
    layout: Layout, first: Int64s, view: View, free: Float64s
) -> tuple[Int64s, Int64s]:
    """Rows and workers of partitions: of loaded data, otherwise as placed here."""
    for collection in layout.collections:
        rows = collection.rows
        if collection.loaded and rows is not None and collection.column_blocks == 1:
            home = layouts.homes(layouts.held_of(collection), len(rows))
            if (home >= 0).all():
                may = layouts.weights(view) > 0
                if not may[home].all():  # these partitions will be moved
                    placed = _placed(layout, rows, view, free)
                    home = np.where(may[home], home, placed)
                return rows, home
    return first, _placed(layout, first, view, free)


def _placed(layout: Layout, rows: Int64s, view: View, free: Float64s) -> Int64s:
    size = layouts.layout_bytes(layout)
    total = 0 if isinstance(size, Unknown) else size
    nbytes = (rows * (total / int(rows.sum()))).astype(np.int64)
    for budget in (free, None):
        try:
            found = place(
                rows,
                None,
                layouts.weights(view),
                nbytes=nbytes,
                budget=budget,
                tolerance=AIM * view.goal.tolerance,
            )
        except CapacityError:
            continue  # partitions that are too large fit after they are cut
        return found.target
    raise AssertionError("without budgets all data can be placed")


def _follow(rows: Int64s, home: Int64s, own: Int64s) -> Int64s:
    """Return for each partition the worker with most of the matching rows."""
    parts = chunking.parts(rows, own)
    n_workers = int(home.max()) + 1
    code, part = np.unique(parts.new * n_workers + home[parts.old], return_inverse=True)
    # a partition without rows goes to the worker of its neighbour
    shared = np.bincount(part.reshape(-1), np.maximum(1, parts.stop - parts.start))
    order = np.lexsort((-code, shared))  # the last entry of a partition has most
    result = np.zeros(len(own), dtype=np.int64)
    result[code[order] // n_workers] = code[order] % n_workers
    return result
