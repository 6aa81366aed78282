"""How much memory a worker may use with a lower memory limit (pure)."""

from __future__ import annotations

import math

from clustertune.core.model import Size, Unknown, WorkerSnapshot
from clustertune.planner.thresholds import ceiling


def lowered(worker: WorkerSnapshot, size: Size | None) -> int | None:
    """The memory limit that a size gives it, if that is lower than its own."""
    limit = None if size is None else size.memory_limit
    own = worker.memory_limit or math.inf
    return None if limit is None or limit >= own else limit


def lines(worker: WorkerSnapshot, limit: int) -> tuple[int, int]:
    """Bytes of its process that it may have with a lower limit; 0: any.

    With all its keys, and while they return: then it may begin to spill, which is seen
    too late to stop a key that is on its way.
    """
    thresholds = worker.thresholds
    if isinstance(thresholds, Unknown):
        return 0, 0
    kill = thresholds.terminate
    last = _first(thresholds.pause, None if isinstance(kill, Unknown) else kill)
    most = int(min(last, default=0) * limit)
    return ceiling(worker, limit) or most, most


def _first(*fractions: float | None) -> list[float]:
    return [x for x in fractions if x is not None]
