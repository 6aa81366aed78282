"""Load lazy collections in one graph, each partition on the worker that will use it.

This needs known rows of partitions: arrays of known chunks, or Parquet files by their
footers. Companions are placed with X. Dask places other data, and ``rebalance`` moves
it afterwards. No data is at risk: it can be loaded again.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clustertune.core.model import (
    Cluster,
    CollectionInfo,
    Finding,
    Float64s,
    Int64s,
    Layout,
    Load,
    Notify,
    Price,
    Result,
    Step,
    Unknown,
    View,
)
from clustertune.core.wording import bytes_text, names_text
from clustertune.errors import CapacityError
from clustertune.planner import chunking, layouts, memory
from clustertune.planner.layouts import (
    collection_bytes,
    held_bytes,
    layout_bytes,
    sum_bytes,
)
from clustertune.planner.memory import free_memory, thresholds_known
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
    amount, most = _amount(lazy, labels, view)
    targets: dict[str, Int64s] = {}
    free = np.maximum(0.0, _room(view))
    for layout in view.layouts:
        found = _targets(layout, view, free)
        for collection in layout.collections:
            sized = isinstance(collection_bytes(collection), int)
            if collection.label in found and sized:
                taken = np.zeros(len(free))
                np.add.at(taken, found[collection.label], _key_bytes(collection))
                free = np.maximum(0.0, free - taken)
        targets |= found
    placed = [m.label for m in lazy if m.label in targets]
    yield Step(
        action="load",
        summary=f"load {', '.join(labels)} ({amount}) in one call",
        price=Price(nbytes=None, seconds=None, peak=_peak(lazy, targets, view)),
        gain="partitions and row counts of all collections are known and match"
        + (f"; {names_text(placed)} on the workers that train" if placed else ""),
        args=Load(
            workers=tuple(w.address for w in view.now.workers),
            targets=targets,
            free_memory=most,
        ),
    )


def _amount(
    lazy: list[CollectionInfo], labels: list[str], view: View
) -> tuple[str, Float64s | None]:
    """Return the size of the data as text, and the free memory if it is unknown."""
    size, free = sum_bytes(lazy), _free(view)
    if not isinstance(size, Unknown):
        memory.refuse_too_much(labels, size, free)
        return bytes_text(size), None
    if not len(free) or not thresholds_known(view):
        return "of unknown size", None
    return f"of unknown size; no more than {bytes_text(free.sum())}", free


def _peak(
    lazy: list[CollectionInfo], targets: dict[str, Int64s], view: View
) -> int | None:
    """Return the bytes that the fullest worker receives; all if Dask places them."""
    size = sum_bytes(lazy)
    if isinstance(size, Unknown):
        return None
    if any(m.label not in targets for m in lazy):
        return size
    loaded = np.zeros(len(view.now.workers))
    for collection in lazy:
        np.add.at(loaded, targets[collection.label], _key_bytes(collection))
    return int(loaded.max())


def _key_bytes(collection: CollectionInfo) -> Int64s:
    """Return the bytes of every key, in proportion to its rows."""
    total = collection_bytes(collection)
    assert collection.rows is not None
    assert isinstance(total, int)
    blocks = collection.column_blocks
    rows = np.repeat(collection.rows, blocks)
    return (rows * (total / max(1, int(rows.sum())))).astype(np.int64)


def _free(view: View) -> Float64s:
    """Return the free bytes of each worker that may hold some of the data."""
    free, may = np.maximum(0.0, _room(view)), layouts.weights(view) > 0
    return free[may] if may.any() else free  # paused workers may run again


def _room(view: View) -> Float64s:
    """Return the free bytes of every worker, minus loaded data that may move there."""
    return free_memory(view) - held_bytes(view.layouts, len(view.now.workers))


# --- placement ------------------------------------------------------------------------


def _targets(layout: Layout, view: View, free: Float64s) -> dict[str, Int64s]:
    """Return by label the worker of every key of collections with known rows."""
    open_ = [m for m in layout.collections if _can_be_bound(m)]
    if not open_ or not view.eligible_workers:
        return {}
    rows, home = _anchor(layout, open_[0], view, free)
    total = int(rows.sum())
    return {
        m.label: np.repeat(_follow(rows, home, m.rows), m.column_blocks)
        for m in open_
        if m.rows is not None and int(m.rows.sum()) == total
    }


def _can_be_bound(collection: CollectionInfo) -> bool:
    known = collection.rows is not None and bool(collection.rows.sum())
    return known and not collection.loaded and not collection.derived


def _anchor(
    layout: Layout, first: CollectionInfo, view: View, free: Float64s
) -> tuple[Int64s, Int64s]:
    """Rows and workers of partitions: of loaded data, otherwise as placed here."""
    n_workers = len(view.now.workers)
    for collection in layout.collections:
        rows = collection.rows
        if collection.loaded and rows is not None and collection.column_blocks == 1:
            only = Layout(label=layout.label, collections=(collection,))
            home = layouts.home_workers(only, n_workers)
            if (home >= 0).all():
                may = layouts.weights(view) > 0
                if not may[home].all():  # these partitions will be moved
                    placed = _placed(layout, rows, view, free)
                    home = np.where(may[home], home, placed)
                return rows, home
    assert first.rows is not None
    return first.rows, _placed(layout, first.rows, view, free)


def _placed(layout: Layout, rows: Int64s, view: View, free: Float64s) -> Int64s:
    none = np.zeros(0, dtype=np.int64)
    size = layout_bytes(layout)
    total = 0 if isinstance(size, Unknown) else size
    nbytes = (rows * (total / int(rows.sum()))).astype(np.int64)
    for budget in (free, None):
        try:
            found = place(
                rows,
                (none, none, none),
                layouts.weights(view),
                nbytes=nbytes,
                budget=budget,
                tolerance=AIM * view.goal.tolerance,
            )
        except CapacityError:
            continue  # partitions that are too large fit after they are cut
        return found.target.astype(np.int64)
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


async def enact(step: Step, cluster: Cluster, notify: Notify) -> Result:
    """Load the collections and wait."""
    assert isinstance(step.args, Load)
    return await cluster.load(step.args, notify)
