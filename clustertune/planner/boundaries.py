"""Which rows the new pieces of a layout get, where they are cut or joined (pure).

Those of X where they suit the workers. Else as many as ``granularity``
says, near the old boundaries, so that rows can lie evenly; or up to twice as many, near
them too, which costs a few tasks and spares copies; or even ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

import numpy as np

from clustertune.core.model import Bools, Finding, Int64s, Layout, Member, View
from clustertune.planner import (
    chunking,
    coverage,
    granularity,
    grouping,
    layouts,
    replicas,
    suitability,
)
from clustertune.planner.grouping import Groups

PIECES = frozenset(  # checks
    ("large_pieces", "missing_evals", "too_few_pieces", "too_many_pieces")
)
_ROUNDING = 1e-9


def rows_of(member: Member) -> Int64s:
    """Rows of the pieces of a member that is loaded and counted."""
    assert member.rows is not None
    return member.rows


def new_rows(layout: Layout, view: View, about: Sequence[Finding]) -> Int64s:
    """Rows of the new pieces of a loaded, counted layout: those of X where they suit.

    ``about`` is what was found of it, with the user's settings.
    """
    if view.goal.rechunk is False or replicas.is_copied(layout):
        return rows_of(layout.members[0])  # only what the pieces are made of changes
    groups = grouping.of(layout)
    if groups is not None and view.goal.workload.groups:
        return _at_groups(layout, groups, view, about)
    # before groups that the library knows nothing of: with other rows on a worker than
    # on the others it does not end
    if layout is view.layouts[0] and view.goal.workload.exact_rows:
        return _exact(layout, view, about)
    if any(m.label.rpartition(".")[2] == "qid" for m in layout.members):
        return _of_groups(layout, view, about)
    return _anywhere(layout, view, about)


def fresh(layout: Layout, view: View) -> Int64s:
    """Rows of even pieces for rows that all travel, whatever the old pieces are."""
    total = int(rows_of(layout.members[0]).sum())
    wanted = wanted_pieces(view, total) if layout is view.layouts[0] else None
    n_pieces = _wanted(layout, view) if wanted is None else wanted
    return chunking.even(total, min(max(1, total), n_pieces))


def _anywhere(layout: Layout, view: View, about: Sequence[Finding]) -> Int64s:
    """Rows of pieces that may be cut at any row."""
    old, total = rows_of(layout.members[0]), int(rows_of(layout.members[0]).sum())
    wanted = wanted_pieces(view, total) if layout is view.layouts[0] else None
    if wanted is not None:
        return chunking.even(total, min(total, wanted))
    if _suits(layout, old, view, about):
        return old
    n_pieces = min(total, _wanted(layout, view))
    most = -(-total // n_pieces)
    closest = chunking.near(old, most)
    if layout is not view.layouts[0]:
        return closest  # is scored only, and need not lie evenly
    finer = chunking.near(old, max(1, most // 2))
    return _most_even(layout, [closest, finer, chunking.even(total, n_pieces)], view)


def covering(
    layout: Layout, rows: Int64s, view: View, *, alone: bool
) -> tuple[Int64s, Bools] | None:
    """Rows of pieces that can be shared out so that all have every class, if needed.

    With which classes each piece has. ``alone``: rows of rare classes lie alone, where
    whole pieces with others beside them could not be shared out.
    """
    classes = coverage.needed(layout, view)
    if classes is None:
        return None
    n_workers = len(view.eligible_workers)
    finer = coverage.finer(classes, rows, n_workers, alone=alone)
    return finer, coverage.present_in(classes, finer)


def remainder(layout: Layout, view: View) -> int:
    """Rows of the training data that are set aside, so that all have as many."""
    if layout is not view.layouts[0] or not view.goal.workload.exact_rows:
        return 0
    if view.goal.rechunk is False:  # no piece is cut, so none would be of these rows
        return 0
    total, n_workers = int(rows_of(layout.members[0]).sum()), len(view.eligible_workers)
    return total % n_workers if n_workers <= total else 0  # too few are an error


def _exact(layout: Layout, view: View, about: Sequence[Finding]) -> Int64s:
    """As many rows for each worker, one run of pieces after another; then the rest."""
    old, n_workers = rows_of(layout.members[0]), len(view.eligible_workers)
    left, total = remainder(layout, view), int(old.sum())
    if total < n_workers:
        return old
    even = chunking.fullest(old, layouts.weights(view)) <= 1 + _ROUNDING
    if not left and even and _suits(layout, old, view, about):
        return old
    each = total // n_workers
    parts = max(1, _wanted(layout, view) // n_workers)
    rows = np.tile(chunking.even(each, min(each, parts)), n_workers)
    return np.append(rows, left) if left else rows


def _most_even(
    layout: Layout, tries: list[Int64s], view: View, *, may_stay: bool = True
) -> Int64s:
    """The first rows that can lie evenly enough, else those that can best."""
    weights = layouts.weights(view)
    spread = []
    for rows in tries:
        spread.append(chunking.fullest(rows, weights))
        if spread[-1] <= 1 + view.goal.tolerance + _ROUNDING:
            return rows
    old = rows_of(layout.members[0])
    best = int(np.argmin(spread))
    # what cannot be better stays as it is, if each worker can have some
    enough = bool(np.count_nonzero(old) >= np.count_nonzero(weights))
    stays = enough and chunking.fullest(old, weights) <= spread[best] + _ROUNDING
    return old if stays and may_stay and layout.aligned else tries[best]


def _at_groups(
    layout: Layout, groups: Groups, view: View, about: Sequence[Finding]
) -> Int64s:
    """Pieces that end where groups do: near the old ends if these suit, else even."""
    old, total = rows_of(layout.members[0]), int(groups.counts.sum())
    if not grouping.are_in_order(groups, view.goal.workload.groups):
        return old  # they are put in order first
    ends = np.cumsum(old)[:-1]
    closest = chunking.at_edges(groups.edges, total, ends)
    whole = np.isin(ends, np.concatenate([groups.edges, [0, total]])).all()
    if whole and _suits(layout, old, view, about):
        return old
    # where pieces are empty, their ends may have been moved to others
    if _suits(layout, closest, view, about):
        return closest
    n_pieces = _wanted(layout, view)
    tries = [closest]
    for parts in (1, 2, 4, 8):
        cuts = np.cumsum(chunking.even(total, min(total, n_pieces * parts)))[:-1]
        tries.append(chunking.at_edges(groups.edges, total, cuts))
    # too few pieces, which may lie evenly, are no better than before
    fewest = min(len(layouts.weights(view).nonzero()[0]), len(groups.counts))
    enough = [rows for rows in tries if np.count_nonzero(rows) >= fewest]
    # old pieces that cut through groups may lie more evenly than any whole ones
    return _most_even(layout, enough or tries[-1:], view, may_stay=bool(whole))


def wanted_pieces(view: View, n_rows: int) -> int | None:
    """How many were asked for, or made the model before; None: any number."""
    if not isinstance(view.goal.rechunk, bool):
        return view.goal.rechunk
    rows, pieces = view.goal.kept or (0, 0)
    possible = rows == n_rows and len(view.eligible_workers) <= pieces <= n_rows
    return pieces if possible and view.goal.workload.keeps_pieces else None


def _of_groups(layout: Layout, view: View, about: Sequence[Finding]) -> Int64s:
    """Joined pieces: a group may go through any row that is no boundary of all."""
    ends = [np.cumsum(rows_of(m)) for m in layout.members]
    common = reduce(np.intersect1d, ends)
    old = np.diff(common[common > 0], prepend=0)
    if _suits(layout, old, view, about):
        return old
    total = int(old.sum())
    new = chunking.joined(old, -(-total // _wanted(layout, view)))
    weights = layouts.weights(view)
    crowded = bool(suitability.too_many(_bare(layout, old), view))
    # too few, or too uneven, they become no better by being joined
    better = chunking.fullest(new, weights) < chunking.fullest(old, weights)
    return new if crowded or better else old


def _wanted(layout: Layout, view: View) -> int:
    """How many pieces: so that each thread has some, and none is too large."""
    n_threads = sum(w.nthreads for w in view.eligible_workers)
    return granularity.wanted(layout.nbytes, view, n_threads)


def _suits(layout: Layout, rows: Int64s, view: View, about: Sequence[Finding]) -> bool:
    """Whether pieces of these rows are neither too few, too many nor too large.

    Checks look at aligned layouts only, so they are asked of X alone as well.
    """
    if any(f.check in PIECES for f in about):
        return False
    bare = _bare(layout, rows)
    only = replace(view, layouts=(bare,))
    if layout.members[0].column_blocks > 1:
        n_bytes = layout.nbytes / max(1, len(rows))
        if n_bytes > view.goal.workload.max_piece_bytes:
            return False
    if suitability.too_large(bare, only) or suitability.too_many(bare, only):
        return False
    return layout is not view.layouts[0] or not suitability.too_few(bare, only)


def _bare(layout: Layout, rows: Int64s) -> Layout:
    """The layout as if its pieces had these rows: one member, held by nobody."""
    total = int(rows.sum())
    nbytes = (rows * (layout.nbytes / max(1, total))).astype(np.int64)
    none = np.zeros(0, dtype=np.int64)
    member = replace(
        layout.members[0],
        keys=tuple(range(len(rows))),
        rows=rows,
        nbytes=nbytes,
        holders=(none, none),
        column_blocks=1,
    )
    return Layout(label=layout.label, members=(member,))
