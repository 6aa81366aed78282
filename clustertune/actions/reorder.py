"""Put rows in another order: sorted by query group, or shuffled.

Sorting is stable: rows of a group stay in the order that they had. A shuffle of rows is
uniform: every order is as likely as any other. Each old piece is put in order where it
lies, its rows are sent to where they will train, and the new piece is put in order
there, so all rows travel once. A shuffle of whole pieces moves nothing. ``.row_order``
of what ``prepare`` returns has for every row the number that it had.

Nothing is at risk: old pieces stay in memory as long as somebody holds them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clustertune.core.model import (
    Cluster,
    Finding,
    Int64s,
    Layout,
    Member,
    Notify,
    Price,
    Reorder,
    Result,
    Source,
    Step,
    View,
)
from clustertune.core.wording import bytes_text, plural
from clustertune.errors import CapacityError
from clustertune.planner import chunking, grouping, layouts
from clustertune.planner.layouts import held_bytes
from clustertune.planner.memory import room
from clustertune.planner.placement import place

OVERHEAD = 0.2  # seconds that two graphs take
COPYING = 2.5e8  # bytes per second: rows are taken one by one, twice


def propose(findings: tuple[Finding, ...], view: View) -> Iterator[Step]:
    """One step for each layout whose rows are to be in another order.

    Raises
    ------
    CapacityError
        New pieces do not fit beside the old ones.
    """
    wanted = {x for f in findings if f.fixed_by == "reorder" for x in f.subject}
    for layout in view.layouts:
        labels = {m.label for m in layout.members}
        ready = layout.loaded and layout.aligned and view.eligible_workers
        if ready and not wanted.isdisjoint(labels):
            shuffle = view.goal.order if layout is view.layouts[0] else ""
            yield _pieces(layout, view) if shuffle == "pieces" else _rows(layout, view)


def _pieces(layout: Layout, view: View) -> Step:
    order = np.random.default_rng(view.goal.seed).permutation(len(layout.rows))
    home = layouts.homes(layout, len(view.now.workers))
    return Step(
        action="reorder",
        summary=f"shuffle {plural(len(order), 'piece')} of the {layout.label}",
        price=Price(nbytes=0, seconds=OVERHEAD),
        gain="the order of pieces says nothing of their rows",
        args=Reorder(
            layout=layout.label,
            workers=tuple(w.address for w in view.now.workers),
            sources=tuple(_source(m, view) for m in layout.members),
            old=layout.rows,
            rows=layout.rows[order],
            targets=home[order],
            starts=np.zeros((0, 0), dtype=np.int64),
            whole=order.astype(np.int64),
        ),
    )


def _rows(layout: Layout, view: View) -> Step:
    groups = grouping.of(layout)
    # the order of rows that are shuffled is none of groups
    by = "" if groups is None or view.goal.order in ("rows", "pieces") else groups.label
    rows, starts = _sorted(layout, view) if by else _shuffled(layout, view)
    target = _targets(layout, view, rows)
    nbytes, n_workers = layout.nbytes, max(1, len(view.eligible_workers))
    travels = nbytes * (n_workers - 1) // n_workers
    speeds = [w.bandwidth for w in view.now.workers]
    seconds = None
    if all(speeds):
        each = nbytes / n_workers
        seconds = OVERHEAD + each / min(speeds) + 2 * each / COPYING
    what = f"sort {layout.rows.sum():,} rows of the {layout.label} by {by}"
    if not by:
        what = f"shuffle {layout.rows.sum():,} rows of the {layout.label}"
    return Step(
        action="reorder",
        summary=f"{what} into {plural(len(rows), 'piece')}",
        price=Price(
            nbytes=travels,
            seconds=seconds,
            peak=2 * _fullest(layout, view, rows, target),
        ),
        gain="groups are whole and in order"
        if by
        else "the order of rows says nothing of them",
        args=Reorder(
            layout=layout.label,
            workers=tuple(w.address for w in view.now.workers),
            sources=tuple(_source(m, view) for m in layout.members),
            old=layout.rows,
            rows=rows,
            targets=target,
            starts=starts,
            by=by,
            seed=view.goal.seed,
        ),
    )


def _source(member: Member, view: View) -> Source:
    """A worker that runs, if one does, for each key."""
    assert member.holders is not None
    key, worker = member.holders
    running = np.array([w.running for w in view.now.workers], dtype=bool)
    order = np.lexsort((running[worker], key))  # the last of a key is written
    owner = np.zeros(len(member.keys), dtype=np.int64)
    owner[key[order]] = worker[order]
    return Source(label=member.label, keys=member.keys, owner=owner)


def _shuffled(layout: Layout, view: View) -> tuple[Int64s, Int64s]:
    """Even pieces, and how many rows each takes of every old one, as chance has it."""
    old = layout.rows
    rows = chunking.fresh(layout, view)
    rng = np.random.default_rng(view.goal.seed)
    left, taken = rows.copy(), []
    for n in old.tolist():
        some = rng.multivariate_hypergeometric(left, n, method="marginals")
        left -= some
        taken.append(np.concatenate(([0], np.cumsum(some))))
    return rows, np.array(taken, dtype=np.int64)


def _sorted(layout: Layout, view: View) -> tuple[Int64s, Int64s]:
    """Pieces of whole groups, and where each begins in every old one, sorted."""
    member = grouping.member_of(layout)
    assert member is not None
    assert member.contents is not None
    tables = [(p["values"], p["counts"]) for p in member.contents.pieces]
    filled = [(v, n) for v, n in tables if len(n)]
    values, index = np.unique(
        np.concatenate([v for v, _ in filled]), return_inverse=True
    )
    counts = np.concatenate([n for _, n in filled])
    ends = np.cumsum(np.bincount(index.reshape(-1), counts)).astype(np.int64)
    wanted = np.cumsum(chunking.fresh(layout, view))[:-1]
    rows = chunking.at_edges(ends[:-1], int(ends[-1]), wanted)
    heads = values[np.searchsorted(ends, np.cumsum(rows)[:-1], side="right")]
    starts = np.zeros((len(tables), len(rows) + 1), dtype=np.int64)
    for number, (own, n) in enumerate(tables):
        if not len(n):
            continue
        order = np.argsort(own, kind="stable")
        before = np.concatenate(([0], np.cumsum(n[order])))
        starts[number, 1:-1] = before[np.searchsorted(own[order], heads)]
        starts[number, -1] = before[-1]
    return rows, starts


def _targets(layout: Layout, view: View, rows: Int64s) -> Int64s:
    """Even; from where rows come makes no difference: from everywhere.

    Raises
    ------
    CapacityError
        New pieces, and what they are made of on the way, do not fit.
    """
    total = max(1, int(rows.sum()))
    nbytes = (rows * (layout.nbytes / total)).astype(np.int64)
    free = room(view) - held_bytes(view.layouts, len(view.now.workers))
    none = np.zeros(0, dtype=np.int64)
    try:
        found = place(
            rows,
            (none, none, none),
            layouts.weights(view),
            nbytes=2 * nbytes,
            budget=np.maximum(0.0, free),
            tolerance=view.goal.tolerance,
        )
    except CapacityError as error:
        raise CapacityError(
            f"the {layout.label} ({bytes_text(layout.nbytes)}) cannot be put in "
            "another order: that takes twice as much beside it while it goes on, and "
            f"{bytes_text(float(np.maximum(0.0, free).sum()))} are free below the "
            "lines at which workers spill; add workers with n_workers=, or order it "
            "before it is loaded"
        ) from error
    return found.target.astype(np.int64)


def _fullest(layout: Layout, view: View, rows: Int64s, target: Int64s) -> int:
    arriving = np.bincount(target, rows, minlength=len(view.now.workers))
    return int(arriving.max(initial=0) * layout.nbytes / max(1, int(rows.sum())))


async def enact(step: Step, cluster: Cluster, notify: Notify) -> Result:
    """Reorder, as the port does it."""
    assert isinstance(step.args, Reorder)
    return await cluster.reorder(step.args, notify)
