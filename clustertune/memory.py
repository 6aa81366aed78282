"""How much memory workers have for the given data (pure).

What a worker holds now is taken apart: the given pieces, Dask's other keys, and the
rest of its process. Only the given pieces can be moved; the others stay.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import numpy.typing as npt

from clustertune.model import Unknown, View, WorkerSnapshot
from clustertune.sizes import data_bytes, held_bytes


def limit(worker: WorkerSnapshot, view: View) -> float | Unknown:
    """Bytes that a worker may use: its limit, else its part of what its host has."""
    if worker.memory_limit:
        return float(worker.memory_limit)
    if isinstance(worker.facts, Unknown):
        return worker.facts
    beside = Counter(w.host for w in view.now.workers)[worker.host]
    return worker.facts.host_memory / beside


def fixed_bytes(view: View) -> npt.NDArray[np.float64]:
    """Bytes of every worker's process that are not the given pieces."""
    workers = view.now.workers
    managed = np.array([w.managed for w in workers], dtype=np.float64)
    return np.maximum(0.0, managed - _given(view)) + _unmanaged(workers)


def _unmanaged(workers: tuple[WorkerSnapshot, ...]) -> npt.NDArray[np.float64]:
    """Bytes of each worker's process that are nobody's keys.

    Workers without processes of their own (``processes=False``) share one, and what
    the others manage in it is not lost to them.
    """
    shared: Counter[str] = Counter()
    for w in workers:
        shared[_process(w)] += w.managed
    rest = [max(0, w.process - shared[_process(w)]) for w in workers]
    return np.array(rest, dtype=np.float64)


def _process(worker: WorkerSnapshot) -> str:
    """``inproc://HOST/PID/NUMBER``: the last part is the worker's own."""
    address = worker.address
    return address.rpartition("/")[0] if address.startswith("inproc://") else address


def wanted_workers(view: View) -> int | None:
    """How many workers were asked for; None: no number, or it is not known yet."""
    wanted = view.goal.n_workers
    if not isinstance(wanted, str):
        return wanted
    enough = workers_needed(view)
    there = len(view.eligible_workers)
    return max(there, enough) if isinstance(enough, int) else None


def workers_needed(view: View) -> int | Unknown | None:
    """The fewest workers on which the fit has the memory that it needs.

    Workers to come are taken to be like the one that has least room now. None: no
    number would do, as the fit may fill nothing of a worker.
    """
    size = data_bytes(view.layouts)
    if isinstance(size, Unknown):
        return size
    if not view.layouts:
        return Unknown("no data is given")
    multiple = view.goal.workload.multiple(view.layouts[0].members[0].itemsize)
    free = []
    for worker, other in zip(view.now.workers, fixed_bytes(view), strict=True):
        most = limit(worker, view)
        if view.eligible(worker) and not isinstance(most, Unknown):
            free.append(most * view.goal.memory_fraction - float(other))
    if not free:
        return Unknown("the memory of no worker is known")
    return max(1, math.ceil(size * multiple / min(free))) if min(free) > 0 else None


def fit_bytes(view: View) -> int | None:
    """Bytes that the fullest worker's process is predicted to have in the fit."""
    layout = view.layouts[0] if view.layouts else None
    if layout is None or not layout.loaded or not view.now.workers:
        return None
    multiple = view.goal.workload.multiple(layout.members[0].itemsize)
    return round(float((_given(view) * multiple + fixed_bytes(view)).max()))


def room(view: View) -> npt.NDArray[np.float64]:
    """Bytes of given pieces that every worker can hold without spilling.

    A worker of which the thresholds or the memory are not known gets no more than it
    holds now.
    """
    given, fixed = _given(view), fixed_bytes(view)
    lines = [_line(w, view, f) for w, f in zip(view.now.workers, fixed, strict=True)]
    found = [
        g if isinstance(line, Unknown) else max(0.0, line)
        for line, g in zip(lines, given, strict=True)
    ]
    return np.array(found, dtype=np.float64)


def _given(view: View) -> npt.NDArray[np.float64]:
    return held_bytes(view.layouts, len(view.now.workers)).astype(np.float64)


def _line(worker: WorkerSnapshot, view: View, fixed: float) -> float | Unknown:
    """What remains below the first threshold that acts.

    The target is of managed memory, the others are of the process.
    """
    total, thresholds = limit(worker, view), worker.thresholds
    if isinstance(total, Unknown) or isinstance(thresholds, Unknown):
        return Unknown("limit or thresholds are not known")
    if not worker.memory_limit:
        return total - fixed  # nothing acts; the host's memory is the line
    process = [x for x in (thresholds.spill, thresholds.pause) if x is not None]
    lines = [total * min([*process, 1.0]) - fixed]
    if thresholds.target is not None:
        lines.append(total * thresholds.target - max(0.0, fixed - worker.unmanaged))
    return min(lines)
