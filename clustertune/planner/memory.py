"""How much memory workers have for the given data (pure).

What a worker holds now is taken apart: the given pieces, Dask's other keys, and the
rest of its process. Only the given pieces can be moved; the others stay.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from clustertune.core.model import Float64s, Unknown, View, WorkerSnapshot
from clustertune.planner.sizes import held_bytes


def limit(worker: WorkerSnapshot, view: View) -> float | Unknown:
    """Bytes that a worker may use: its limit, else its part of what its host has."""
    if worker.memory_limit:
        return float(worker.memory_limit)
    if isinstance(worker.facts, Unknown):
        return worker.facts
    return worker.facts.host_memory / view.now.on_host[worker.host]


def fixed_bytes(view: View) -> Float64s:
    """Bytes of every worker's process that are not the given pieces."""
    return other_bytes(view) + unmanaged_bytes(view)


def other_bytes(view: View) -> Float64s:
    """Bytes of Dask's keys on every worker that are not the given pieces."""
    managed = np.array([w.managed for w in view.now.workers], dtype=np.float64)
    return np.maximum(0.0, managed - _given(view))


def unmanaged_bytes(view: View) -> Float64s:
    """Bytes of each worker's process that are nobody's keys.

    Workers without processes of their own (``processes=False``) share one, and what
    the others manage in it is not lost to them.
    """
    shared: Counter[str] = Counter()
    for w in view.now.workers:
        shared[_process(w)] += w.managed
    rest = [max(0, w.process - shared[_process(w)]) for w in view.now.workers]
    return np.array(rest, dtype=np.float64)


def _process(worker: WorkerSnapshot) -> str:
    """``inproc://HOST/PID/NUMBER``: the last part is the worker's own."""
    address = worker.address
    return address.rpartition("/")[0] if address.startswith("inproc://") else address


def room(view: View) -> Float64s:
    """Bytes of given pieces that every worker can hold without spilling.

    A worker of which the thresholds or the memory are not known gets no more than it
    holds now.
    """
    found = [
        g if isinstance(line, Unknown) else max(0.0, line)
        for line, g in zip(_lines(view), _given(view), strict=True)
    ]
    return np.array(found, dtype=np.float64)


def lines_known(view: View) -> bool:
    """Whether it is known of every worker when it will spill."""
    return not any(isinstance(line, Unknown) for line in _lines(view))


def _lines(view: View) -> list[float | Unknown]:
    fixed = fixed_bytes(view)
    return [_line(w, view, f) for w, f in zip(view.now.workers, fixed, strict=True)]


def _given(view: View) -> Float64s:
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
