"""Where new pieces go, for workloads that need more than even rows (pure)."""

from __future__ import annotations

import numpy as np

from clustertune.core.model import Bools, Int64s
from clustertune.planner.layouts import Held


def in_runs(n_pieces: int, held: Held, may: Bools) -> Int64s:
    """As many neighbours for each worker: run by run where most of its bytes lie.

    What remains at the end goes where the last of them are. Runs are given out largest
    saving first, which is at least half as good as the best way there is.

    Parameters
    ----------
    n_pieces
        How many there are, as many for each worker or a few more.
    held
        Where their bytes lie; copies are more entries.
    may : (workers,)
        Which workers take part.
    """
    workers = np.flatnonzero(may)
    each = max(1, n_pieces // len(workers))
    run = np.minimum(np.arange(n_pieces) // each, len(workers) - 1)
    saved = np.zeros((len(workers), len(may)))
    np.add.at(saved, (run[held.piece], held.worker), held.nbytes)
    saved = saved[:, workers]
    target = np.full(len(workers), -1, dtype=np.int64)
    free = np.ones(len(workers), dtype=bool)
    for code in np.argsort(-saved, axis=None, kind="stable").tolist():
        number, worker = divmod(code, len(workers))
        if target[number] < 0 and free[worker]:
            target[number], free[worker] = workers[worker], False
    result: Int64s = target[run]
    return result
