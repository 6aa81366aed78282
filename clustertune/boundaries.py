"""Which rows the new pieces of a layout get, where they are cut or joined (pure).

Those of X where they suit the workers. Else as many as :mod:`clustertune.granularity`
says, near the old boundaries, so that rows can lie evenly; or up to twice as many, near
them too, which costs a few tasks and spares copies; or even ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

import numpy as np

from clustertune import chunking, granularity, layouts
from clustertune.checks import large_pieces, too_few_pieces, too_many_pieces
from clustertune.model import Finding, Int64s, Layout, Member, View

PIECES = frozenset(("large_pieces", "too_few_pieces", "too_many_pieces"))  # checks
_ROUNDING = 1e-9


def rows_of(member: Member) -> Int64s:
    """Rows of the pieces of a member that is loaded and counted."""
    assert member.rows is not None
    return member.rows


def new_rows(layout: Layout, view: View, about: Sequence[Finding]) -> Int64s:
    """Rows of the new pieces of a loaded, counted layout: those of X where they suit.

    ``about`` is what was found of it, with the user's settings.
    """
    old, total = rows_of(layout.members[0]), int(rows_of(layout.members[0]).sum())
    if view.goal.rechunk is False:
        return old  # only what the pieces are made of changes
    if any(m.label == "qid" for m in layout.members):
        return _of_groups(layout, view, about)
    if not isinstance(view.goal.rechunk, bool) and layout is view.layouts[0]:
        return chunking.even(total, min(total, view.goal.rechunk))
    if _suits(layout, old, view, about):
        return old
    n_pieces = min(total, _wanted(layout, view))
    most = -(-total // n_pieces)
    closest = chunking.near(old, most)
    if layout is not view.layouts[0]:
        return closest  # is scored only, and need not lie evenly
    finer = chunking.near(old, max(1, most // 2))
    return _most_even(layout, [closest, finer, chunking.even(total, n_pieces)], view)


def _most_even(layout: Layout, tries: list[Int64s], view: View) -> Int64s:
    """The first rows that can lie evenly enough, else those that can best."""
    weights = layouts.weights(view)
    spread = []
    for rows in tries:
        spread.append(chunking.fullest(rows, weights))
        if spread[-1] <= 1 + view.goal.tolerance + _ROUNDING:
            return rows
    old = rows_of(layout.members[0])
    best = int(np.argmin(spread))
    # what cannot be better stays as it is
    stays = chunking.fullest(old, weights) <= spread[best] + _ROUNDING
    return old if stays and layout.aligned else tries[best]


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
    crowded = any(too_many_pieces.find(replace(view, layouts=(_bare(layout, old),))))
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
    if any(large_pieces.find(only)) or any(too_many_pieces.find(only)):
        return False
    return layout is not view.layouts[0] or not any(too_few_pieces.find(only))


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
