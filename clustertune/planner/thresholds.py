"""How far a worker's memory is from the thresholds at which Dask acts on it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from clustertune.core.model import Unknown, WorkerSnapshot
from clustertune.core.wording import bytes_text

ACTS = {  # worst first: of which measure, and what a worker does there
    "terminate": ("process", "its nanny kills it with all it holds"),
    "pause": ("process", "it starts no more tasks"),
    "spill": ("process", "it writes keys to disk until it is below its target"),
    "target": ("managed", "it writes a key to disk for each new one"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A worker's memory beside one of its thresholds."""

    worker: WorkerSnapshot
    name: str  # of the threshold
    fraction: float  # of the memory limit, at which it acts

    @property
    def measure(self) -> str:
        """Which memory the threshold is for: process or managed."""
        return ACTS[self.name][0]

    @property
    def used(self) -> int:
        """Bytes of that memory."""
        process = self.measure == "process"
        return self.worker.process if process else self.worker.counted

    @property
    def room(self) -> float:
        """Fraction of the limit that is left below the threshold; 0 or less: at it."""
        return self.fraction - self.used / self.worker.memory_limit

    def __str__(self) -> str:
        limit = self.worker.memory_limit
        return (
            f"{self.measure} memory is {bytes_text(self.used)}, "
            f"{self.used / limit:.0%} of the limit of {bytes_text(limit)}; "
            f"at {self.fraction:.0%} {ACTS[self.name][1]}"
        )


def levels(worker: WorkerSnapshot) -> tuple[Level, ...]:
    """The thresholds that are known and on, worst first; none without a limit."""
    thresholds = worker.thresholds
    if isinstance(thresholds, Unknown) or not worker.memory_limit:
        return ()
    fractions = {name: getattr(thresholds, name) for name in ACTS}
    return tuple(
        Level(worker=worker, name=name, fraction=fraction)
        for name, fraction in fractions.items()
        if fraction is not None and not isinstance(fraction, Unknown)
    )


def ceiling(worker: WorkerSnapshot, limit: int | None = None) -> int:
    """Bytes of its process up to which it neither spills nor pauses; 0: any.

    With its own limit, or another one.
    """
    limit = worker.memory_limit if limit is None else limit
    thresholds = worker.thresholds
    if isinstance(thresholds, Unknown) or not limit:
        return 0
    lines = (thresholds.spill, thresholds.pause)
    return int(min((x for x in lines if x is not None), default=0) * limit)


def space(worker: WorkerSnapshot, most: int) -> float:
    """Bytes below a ceiling of its process, 0 of which is none.

    The process's memory is that of its last heartbeat, the keys are those of now.
    """
    if not most:
        return math.inf
    return max(0.0, most - max(worker.process, worker.counted))
