"""Where to cut rows, and which rows of the old pieces make up each new one (pure).

Rows are counted from the first row of the first piece; they keep their order. A new
boundary lies on an old one where that can be: a join costs a copy, and a transfer where
its parts lie on two workers.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from clustertune.core.model import Float64s, Int64s


class Parts(NamedTuple):
    """Row ranges of old pieces that make up new ones, in the order of rows."""

    new: Int64s  # index of the new piece
    old: Int64s  # index of the old piece
    start: Int64s  # first row in the old piece
    stop: Int64s  # one past the last


def even(n_rows: int, n_pieces: int) -> Int64s:
    """Rows of ``n_pieces`` pieces that differ by one row at most."""
    edges = np.arange(n_pieces + 1, dtype=np.int64) * n_rows // n_pieces
    return np.diff(edges)


def near(rows: Int64s, most: int) -> Int64s:
    """Rows of new pieces of up to ``most`` rows, cut near the old boundaries.

    Pieces are joined with the next ones as long as that is not too much, or as they
    have less than half of it together; what is larger is cut into equal parts. Empty
    pieces are gone.

    Parameters
    ----------
    rows : (pieces,)
        Rows of the old pieces.
    most
        Rows that a new piece has at most, 1 or more.
    """
    runs: list[int] = []
    run = 0
    for n in rows.tolist():
        if run + n > most and 2 * run >= most:
            runs.append(run)
            run = 0
        run += n
    if runs and 2 * run < most:
        runs[-1] += run
    elif run:
        runs.append(run)
    cut = [even(n, -(-n // most)) for n in runs]
    return np.concatenate(cut) if cut else np.zeros(0, dtype=np.int64)


def joined(rows: Int64s, most: int) -> Int64s:
    """Rows of runs of whole old pieces, of up to ``most`` rows each where they can be.

    For data that may not be cut: no old boundary that remains is moved.
    """
    runs: list[int] = []
    for n in rows[rows > 0].tolist():
        if runs and runs[-1] + n <= most:
            runs[-1] += n
        else:
            runs.append(n)
    return np.array(runs, dtype=np.int64)


def at_edges(edges: Int64s, n_rows: int, cuts: Int64s) -> Int64s:
    """Rows of pieces that are cut only at edges, each as near a wanted cut as can be.

    Parameters
    ----------
    edges : (edges,)
        Rows at which may be cut, ascending.
    n_rows
        All rows.
    cuts : (cuts,)
        Rows at which cuts are wanted; two that come to lie on one edge are one.
    """
    near = np.zeros(0, dtype=np.int64)
    if len(edges) and len(cuts):
        after = np.minimum(np.searchsorted(edges, cuts), len(edges) - 1)
        before = np.maximum(after - 1, 0)
        closer = cuts - edges[before] < edges[after] - cuts
        near = np.unique(edges[np.where(closer, before, after)])
    return np.diff(np.concatenate(([0], near, [n_rows]))).astype(np.int64)


def fullest(rows: Int64s, weights: Float64s) -> float:
    """Rows of the fullest worker over its share, largest pieces given out first.

    Each goes to the worker that is least full with it: no search, so a little more than
    the least that there is (by at most a third where workers are alike: R. L. Graham,
    Bounds on multiprocessing timing anomalies, 1969).
    """
    claim = weights[weights > 0]
    shares = rows.sum() * claim / claim.sum()
    # of workers with the same share only the emptiest is ever in question
    heaps = [[(0, i) for i in np.flatnonzero(shares == s)] for s in np.unique(shares)]
    for n in np.sort(rows)[::-1].tolist():
        heap = min(heaps, key=lambda h: ((h[0][0] + n) / shares[h[0][1]], h[0][1]))
        load, worker = heap[0]
        heapq.heapreplace(heap, (load + n, worker))
    return float(max(load / shares[worker] for heap in heaps for load, worker in heap))


def parts(old: Int64s, new: Int64s) -> Parts:
    """Which rows of old pieces make up the new ones.

    An empty new piece has one part without rows, of a piece that is near.

    Parameters
    ----------
    old : (pieces,)
        Rows of the old pieces, one row or more in all.
    new : (new pieces,)
        Rows of the new ones, as many in all.

    Raises
    ------
    ValueError
        The numbers of rows differ, or there are none.
    """
    if old.sum() != new.sum() or not old.sum():
        raise ValueError(f"{old.sum():,} rows cannot be cut into {new.sum():,}")
    ends, new_ends = np.cumsum(old), np.cumsum(new)
    # np.unique would look for them in a table, which takes fifty times as long
    edges = np.sort(np.concatenate(([0], ends, new_ends)))
    edges = edges[np.diff(edges, prepend=-1) > 0]
    first, last = edges[:-1], edges[1:]
    # the piece in which a row is: the first that ends behind it, so never an empty one
    piece = np.searchsorted(ends, first, side="right")
    target = np.searchsorted(new_ends, first, side="right")
    start = first - (ends - old)[piece]
    stop = start + (last - first)
    empty = np.flatnonzero(new == 0)
    if len(empty):
        beside = np.searchsorted(ends, new_ends[empty], side="right")
        beside = np.minimum(beside, len(old) - 1)
        nothing = np.zeros_like(empty)
        target = np.concatenate((target, empty))
        piece = np.concatenate((piece, beside))
        start = np.concatenate((start, nothing))
        stop = np.concatenate((stop, nothing))
    order = np.argsort(target, kind="stable")
    return Parts(*(x[order].astype(np.int64) for x in (target, piece, start, stop)))
