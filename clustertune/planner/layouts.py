"""What follows from a layout: who holds what, how even it is, which pairs are apart.

Pure NumPy over :class:`~clustertune.core.model.Layout`; workers are indices into
``Snapshot.workers``. A piece *counts* where a training library will take it: on the
worker that holds most of its bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clustertune.core.model import Bools, Float64s, Int64s, Layout, View
from clustertune.core.report import LayoutSummary, WorkerShare


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Held:
    """Bytes of pieces on the workers that hold some of them, in coordinate form."""

    piece: Int64s
    worker: Int64s
    nbytes: Int64s


def piece_bytes(layout: Layout) -> Int64s:
    """Bytes of every piece, all members together; the layout is loaded and aligned."""
    total = np.zeros(layout.members[0].n_pieces, dtype=np.int64)
    for member in layout.members:
        if member.nbytes is not None:
            total += member.nbytes
    return total


def held(layout: Layout, n_workers: int) -> Held:
    """Sum over the members what each worker holds of each piece."""
    codes, amounts = [], []
    for member in layout.members:
        if member.holders is None or member.nbytes is None:
            continue
        piece, worker = member.holders
        codes.append(piece * n_workers + worker)
        amounts.append(member.nbytes[piece])
    if not codes:
        empty = np.zeros(0, dtype=np.int64)
        return Held(piece=empty, worker=empty, nbytes=empty)
    code, index = np.unique(np.concatenate(codes), return_inverse=True)
    nbytes = np.zeros(len(code), dtype=np.int64)
    np.add.at(nbytes, index.reshape(-1), np.concatenate(amounts))
    return Held(piece=code // n_workers, worker=code % n_workers, nbytes=nbytes)


def copied(layout: Layout) -> Bools:
    """For every piece, whether more than one worker holds a copy of any member."""
    n_pieces = layout.members[0].n_pieces
    result = np.zeros(n_pieces, dtype=np.bool_)
    for member in layout.members:
        if member.holders is not None:
            result |= np.bincount(member.holders[0], minlength=n_pieces) > 1
    return result


def homes(layout: Layout, n_workers: int) -> Int64s:
    """For every piece the worker that holds most of it; -1 where nobody does."""
    spread = held(layout, n_workers)
    home = np.full(layout.members[0].n_pieces, -1, dtype=np.int64)
    # the last write of a repeated index wins: sort so that it is the largest amount,
    # and among equals the first worker
    order = np.lexsort((-spread.worker, spread.nbytes))
    home[spread.piece[order]] = spread.worker[order]
    return home


def apart(layout: Layout, n_workers: int) -> Bools:
    """For every piece with rows, whether no single worker holds all members of it."""
    codes = [
        member.holders[0] * n_workers + member.holders[1]  # each but once
        for member in layout.members
        if member.holders is not None
    ]
    result = np.ones(layout.members[0].n_pieces, dtype=np.bool_)
    if len(codes) == len(layout.members):
        code, count = np.unique(np.concatenate(codes), return_counts=True)
        result[code[count == len(codes)] // n_workers] = False
    rows = layout.members[0].rows  # where there are none, nothing has to come together
    return result if rows is None else result & (rows > 0)


def weights(view: View) -> Float64s:
    """A worker's claim on rows: its threads if it may hold training data, else 0.

    Where a workload needs as many rows on each, all claim alike.
    """
    alike = view.goal.workload.exact_rows
    claims = [1 if alike else w.nthreads for w in view.now.workers]
    may = [view.eligible(w) for w in view.now.workers]
    return np.array(claims, dtype=np.float64) * np.array(may, dtype=np.float64)


def shares(layout: Layout, view: View) -> tuple[WorkerShare, ...]:
    """What every worker holds of an aligned, loaded layout, beside what it should."""
    n_workers = len(view.now.workers)
    home = homes(layout, n_workers)
    known = home >= 0
    rows = np.bincount(home[known], layout.rows[known], minlength=n_workers)
    nbytes = np.bincount(home[known], piece_bytes(layout)[known], minlength=n_workers)
    pieces = np.bincount(home[known], minlength=n_workers)
    claim = weights(view)
    due = layout.rows.sum() * claim / max(claim.sum(), 1.0)
    return tuple(
        WorkerShare(
            worker=w.id,
            pieces=int(pieces[i]),
            rows=int(rows[i]),
            nbytes=int(nbytes[i]),
            share=float(rows[i] / due[i]) if due[i] > 0 else 0.0,
        )
        for i, w in enumerate(view.now.workers)
    )


def imbalance(layout: Layout, view: View) -> float:
    """Rows of the fullest worker over its share by threads; 1.0 is even."""
    found = [s.share for s in shares(layout, view)]
    return max(found, default=1.0) if layout.rows.sum() else 1.0


def summarize(layout: Layout, view: View) -> LayoutSummary:
    """A layout in a few numbers; what is not known stays None."""
    n_workers = len(view.now.workers)
    known = layout.loaded and layout.aligned
    return LayoutSummary(
        label=layout.label,
        members=tuple(m.label for m in layout.members),
        pieces=layout.members[0].n_pieces,
        loaded=layout.loaded,
        rows=int(layout.rows.sum()) if layout.aligned else None,
        nbytes=layout.nbytes if layout.loaded else None,
        separated=int(apart(layout, n_workers).sum()) if known else None,
        imbalance=imbalance(layout, view) if known else None,
        workers=shares(layout, view) if known else (),
    )
