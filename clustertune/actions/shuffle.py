"""Change the order of rows: sort by query group, or shuffle.

Sorting is stable. A shuffle of rows is uniform: all orders are equally likely. Old
partitions are ordered on their workers, and new ones on theirs, so each row is
transferred once. A shuffle of whole partitions moves nothing. ``.row_order`` of the
result of ``prepare`` has the original number of every row. No data is at risk: old
partitions stay in memory while anything holds them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from clustertune.actions import by_port
from clustertune.core.model import (
    Finding,
    Int64s,
    Layout,
    Price,
    Shuffle,
    Source,
    Step,
    View,
)
from clustertune.core.wording import bytes_text, plural
from clustertune.errors import CapacityError
from clustertune.planner import chunking, grouping, layouts, remedies
from clustertune.planner.layouts import held_bytes
from clustertune.planner.memory import free_memory
from clustertune.planner.placement import place

#: most pairs of an old and a new partition that exchange rows: each pair is a task, and
#: takes 5 KB and 0.2 ms of the client
MAX_EXCHANGES = 500_000


def propose(findings: tuple[Finding, ...], view: View) -> Iterator[Step]:
    """Propose one step for each layout whose rows need another order.

    Raises ``CapacityError`` if new partitions do not fit in memory together with the
    old ones, or if more than ``MAX_EXCHANGES`` tasks would exchange rows.
    """
    wanted = {x for f in findings if f.fixed_by == "shuffle" for x in f.subject}
    for layout in view.layouts:
        labels = set(layout.labels)
        ready = layout.loaded and layout.aligned and view.eligible_workers
        if ready and not wanted.isdisjoint(labels):
            whole = layout is view.layouts[0] and view.goal.order == "partitions"
            yield _partitions(layout, view) if whole else _rows(layout, view)


def _partitions(layout: Layout, view: View) -> Step:
    order = np.random.default_rng(view.goal.seed).permutation(len(layout.rows))
    home = layouts.home_workers(layout, len(view.now.workers))
    none = np.zeros((0, 0), dtype=np.int64)
    args = _shuffle(layout, view, layout.rows[order], home[order], none)
    return Step(
        action="shuffle",
        summary=f"shuffle {plural(len(order), 'partition')} of the {layout.label}",
        price=Price(nbytes=0),
        gain="the order of partitions is random",
        args=replace(args, partition_order=order.astype(np.int64)),
    )


def _rows(layout: Layout, view: View) -> Step:
    groups = grouping.of(layout)
    by = ""
    if groups is not None and view.goal.order not in ("rows", "partitions"):
        by = groups.label
    rows, starts = _sorted(layout, view) if by else _shuffled(layout, view)
    target = _targets(layout, view, rows)
    n_workers = max(1, len(view.eligible_workers))
    what = f"{layout.rows.sum():,} rows of the {layout.label}"
    what = f"sort {what} by {by}" if by else f"shuffle {what}"
    args = _shuffle(layout, view, rows, target, starts)
    return Step(
        action="shuffle",
        summary=f"{what} into {plural(len(rows), 'partition')}",
        price=Price(
            nbytes=layout.nbytes * (n_workers - 1) // n_workers,
            peak=2 * _fullest(layout, view, rows, target),
        ),
        gain="groups are whole and in order" if by else "the order of rows is random",
        args=replace(args, sort_by=by, seed=view.goal.seed),
    )


def _shuffle(
    layout: Layout, view: View, rows: Int64s, targets: Int64s, starts: Int64s
) -> Shuffle:
    sources = (
        Source(label=m.label, keys=m.keys, owner=layouts.owners(m, view))
        for m in layout.collections
    )
    return Shuffle(
        layout=layout.label,
        workers=tuple(w.address for w in view.now.workers),
        sources=tuple(sources),
        old_rows=layout.rows,
        rows=rows,
        targets=targets,
        starts=starts,
    )


def _shuffled(layout: Layout, view: View) -> tuple[Int64s, Int64s]:
    """Return even partitions, and the random number of rows from every old one."""
    old = layout.rows
    rows = chunking.fresh(layout, view)
    _refuse_many(layout, len(rows), int(np.minimum(old, len(rows)).sum()))
    rng = np.random.default_rng(view.goal.seed)
    left, taken = rows.copy(), []
    for n in old.tolist():
        some = rng.multivariate_hypergeometric(left, n, method="marginals")
        left -= some
        taken.append(np.concatenate(([0], np.cumsum(some))))
    return rows, np.array(taken, dtype=np.int64)


def _sorted(layout: Layout, view: View) -> tuple[Int64s, Int64s]:
    """Return partitions of whole groups, and their first rows in every old one."""
    collection = grouping.collection_of(layout)
    assert collection is not None
    assert collection.contents is not None
    tables = [(p["values"], p["counts"]) for p in collection.contents.partitions]
    filled = [(v, n) for v, n in tables if len(n)]
    every = np.concatenate([v for v, _ in filled])
    values, index = np.unique(every, return_inverse=True)
    counts = np.concatenate([n for _, n in filled])
    ends = np.cumsum(np.bincount(index.reshape(-1), counts)).astype(np.int64)
    wanted = np.cumsum(chunking.fresh(layout, view))[:-1]
    rows = chunking.at_edges(ends[:-1], int(ends[-1]), wanted)
    heads = values[np.searchsorted(ends, np.cumsum(rows)[:-1], side="right")]
    starts = np.zeros((len(tables), len(rows) + 1), dtype=np.int64)
    exchanges = 0
    for number, (own, n) in enumerate(tables):
        if not len(n):
            continue
        order = np.argsort(own, kind="stable")
        before = np.concatenate(([0], np.cumsum(n[order])))
        starts[number, 1:-1] = before[np.searchsorted(own[order], heads)]
        starts[number, -1] = before[-1]
        exchanges += int(np.count_nonzero(np.diff(starts[number])))
        _refuse_many(layout, len(rows), exchanges)
    return rows, starts


def _refuse_many(layout: Layout, n_new: int, exchanges: int) -> None:
    """Raise ``CapacityError`` if the scheduler would get too many tasks."""
    if exchanges <= MAX_EXCHANGES:
        return
    fewer = remedies.cut_by_hand(layout, max(1, MAX_EXCHANGES // n_new))
    raise CapacityError(
        f"the {layout.label} cannot be sorted or shuffled: its "
        f"{plural(len(layout.rows), 'partition')} and {n_new:,} new ones would "
        f"exchange rows in more than {MAX_EXCHANGES:,} tasks. Join its partitions "
        f"first: `{fewer}`"
    )


def _targets(layout: Layout, view: View, rows: Int64s) -> Int64s:
    """Return the workers of the new partitions, evenly.

    Raises ``CapacityError`` if new partitions and intermediate data do not fit.
    """
    total = max(1, int(rows.sum()))
    nbytes = (rows * (layout.nbytes / total)).astype(np.int64)
    free = free_memory(view) - held_bytes(view.layouts, len(view.now.workers))
    try:
        found = place(
            rows,
            None,
            layouts.weights(view),
            nbytes=2 * nbytes,
            budget=np.maximum(0.0, free),
            tolerance=view.goal.tolerance,
        )
    except CapacityError as error:
        raise CapacityError(
            f"the {layout.label} ({bytes_text(layout.nbytes)}) cannot be sorted or "
            "shuffled: this takes twice its size of additional memory, but only "
            f"{bytes_text(float(np.maximum(0.0, free).sum()))} are free below the "
            "thresholds at which workers spill. Add workers with n_workers=, or order "
            "the data before it is loaded"
        ) from error
    return found.target


def _fullest(layout: Layout, view: View, rows: Int64s, target: Int64s) -> int:
    arriving = np.bincount(target, rows, minlength=len(view.now.workers))
    return int(arriving.max(initial=0) * layout.nbytes / max(1, int(rows.sum())))


enact = by_port("shuffle")
