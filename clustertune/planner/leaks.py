"""When a worker whose memory grows from run to run reaches its thresholds (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from statistics import median
from typing import NamedTuple

from clustertune.core.model import Run, WorkerSnapshot
from clustertune.core.rules import Left, step
from clustertune.planner.thresholds import levels


class Leak(NamedTuple):
    """Memory that one worker keeps with every run."""

    worker: WorkerSnapshot
    step: float  # bytes per run
    seen: int  # runs
    #: by threshold the run from now in which the worker reaches it; 0: it did already
    reached: Mapping[str, int]

    @property
    def first(self) -> int:
        return min(self.reached.values())


def leak(
    worker: WorkerSnapshot, groups: Sequence[Sequence[Run]], least: float
) -> Leak | None:
    """Return how fast memory of a worker grows, or None if it does not.

    Parameters
    ----------
    worker
        The worker now.
    groups
        Runs that ended alike, oldest first. The first group in which memory grows
        counts.
    least
        Growth in a run that counts, as a fraction of the memory limit.
    """
    lines = {
        level.name: level.fraction * worker.memory_limit
        for level in reversed(levels(worker))
        if level.measure == "process"
    }
    for group in groups if lines else ():
        runs = [run for run in group if worker.id in run.floors]
        left = [
            Left(n, run.floors[worker.id], run.managed.get(worker.id, 0))
            for n, run in enumerate(group)
            if worker.id in run.floors
        ]
        found = step(left, least * worker.memory_limit)
        if found is not None:
            peak = worker.managed + left[-1].unmanaged + _extra(worker.id, runs)
            reached = {
                name: max(0, ceil((line - peak) / found))
                for name, line in lines.items()
            }
            return Leak(worker, found, len(runs), reached)
    return None


def _extra(worker: str | int, runs: Sequence[Run]) -> float:
    """Bytes by which its process is usually larger in a run than after it."""
    return median(
        max(0, run.peaks[worker] - run.floors[worker] - run.managed[worker])
        if worker in run.peaks and worker in run.managed
        else 0
        for run in runs
    )
