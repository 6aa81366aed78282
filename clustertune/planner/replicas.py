"""Eval sets of which every worker has all rows (pure).

Their pieces are those of the training data: the first of each worker has all rows of
the eval set, the others have none.
"""

from __future__ import annotations

import numpy as np

from clustertune.core.model import COPIED, Int64s, Layout, View
from clustertune.planner import layouts


def is_copied(layout: Layout) -> bool:
    """Whether its collections are copies that were made before."""
    return all(
        isinstance(key, tuple) and str(key[0]).startswith(f"{COPIED}-")
        for m in layout.members
        for key in m.keys
    )


def copies(layout: Layout) -> int:
    """How often each row is in it."""
    if not is_copied(layout) or layout.members[0].rows is None:
        return 1
    return max(1, int((layout.members[0].rows > 0).sum()))


def original(layout: Layout) -> tuple[tuple[int, int, int], ...]:
    """All rows once: (piece, first row, one past the last), in order."""
    rows = layout.rows.tolist()
    pieces = [i for i, n in enumerate(rows) if n] or [0]
    if is_copied(layout):
        pieces = pieces[:1]
    return tuple((i, 0, rows[i]) for i in pieces)


def first_pieces(view: View) -> Int64s:
    """Of the training data the first piece with rows of each worker."""
    training = view.layouts[0]
    home = layouts.homes(training, len(view.now.workers))
    real = np.flatnonzero((training.rows > 0) & (home >= 0))
    _, index = np.unique(home[real], return_index=True)
    return np.sort(real[index]).astype(np.int64)


def are_in_place(layout: Layout, view: View) -> bool:
    """Whether an eval set lies as is needed beside the training data."""
    training = view.layouts[0]
    if len(layout.rows) != len(training.rows):
        return False
    n_workers = len(view.now.workers)
    real = np.flatnonzero(layout.rows > 0)
    full = np.unique(layout.rows[real])
    home, own = layouts.homes(training, n_workers), layouts.homes(layout, n_workers)
    return (
        np.array_equal(real, first_pieces(view))
        and len(full) == 1
        and (is_copied(layout) or len(real) == 1)
        # one without rows would draw the training data beside it to another worker
        and np.array_equal(home, own)
        and not layouts.apart(layout, n_workers).any()
    )
