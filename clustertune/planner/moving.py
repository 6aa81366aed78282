"""Which keys go where, so that every piece lies on its worker alone (pure)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from clustertune.core.model import (
    Int64s,
    Layout,
    Move,
    Moves,
    Unknown,
    View,
    WorkerSnapshot,
)
from clustertune.planner import layouts

Targets = npt.NDArray[np.intp] | Int64s
"""Per piece: index of a worker of the snapshot."""


def of(layout: Layout, view: View, target: Targets) -> Moves:
    """The moves that bring the pieces of a loaded, aligned layout to their targets."""
    return Moves(
        workers=tuple(w.address for w in view.now.workers),
        ceilings=tuple(_ceiling(w) for w in view.now.workers),
        moves=tuple(_moves(layout, target)),
    )


def _moves(layout: Layout, target: Targets) -> Iterator[Move]:
    """The keys that are not on their target, or not on it alone."""
    for member in layout.members:
        if member.holders is None:
            continue
        piece, holder = member.holders
        stray = np.ones(len(target), dtype=bool)
        alone = np.bincount(piece, minlength=len(target)) == 1
        stray[piece[(holder == target[piece]) & alone[piece]]] = False
        which = np.flatnonzero(stray)
        if len(which):
            yield Move(
                label=member.label,
                keys=tuple(member.keys[i] for i in which),
                targets=target[which].astype(np.int64),
            )


def _ceiling(worker: WorkerSnapshot) -> int:
    """Process memory at which the worker would pause; transfers stay below."""
    thresholds = worker.thresholds
    if isinstance(thresholds, Unknown) or thresholds.pause is None:
        return 0
    return int(thresholds.pause * worker.memory_limit)


def travelling(layout: Layout, view: View, target: Targets) -> tuple[Int64s, Int64s]:
    """Bytes that every worker receives, and that every worker sends."""
    n_workers = len(view.now.workers)
    total = layouts.piece_bytes(layout)
    there = layouts.held(layout, n_workers)
    present = np.zeros(len(target), dtype=np.int64)
    stays = there.worker == target[there.piece]
    present[there.piece[stays]] = there.nbytes[stays]
    travels = total - present
    home = layouts.homes(layout, n_workers)
    known = home >= 0
    into = np.bincount(target, travels, minlength=n_workers)
    out = np.bincount(home[known], travels[known], minlength=n_workers)
    return into.astype(np.int64), out.astype(np.int64)
