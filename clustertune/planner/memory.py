"""Worker memory: thresholds, free memory, leaks, and the need for a restart (pure).

A worker's memory consists of the given data, Dask's other keys, and unmanaged memory.
Only the given data can be moved.

- :func:`process_limit`: the process memory at which Dask first acts.
- :func:`free_below`: the free bytes below that limit, for any keys. The scheduler
  plugin applies the same rule, ``core.rules.free_bytes``.
- :func:`free_memory`: the free bytes for the given data.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import numpy as np

from clustertune.core import rules
from clustertune.core.model import (
    Bools,
    Finding,
    Float64s,
    Run,
    Severity,
    Unknown,
    View,
    WorkerSize,
    WorkerSnapshot,
)
from clustertune.core.rules import MemoryAfterRun, free_bytes, step
from clustertune.core.wording import bytes_text, names_text, plural, verb
from clustertune.errors import CapacityError
from clustertune.planner.layouts import held_bytes

ACTS = {  # worst first: the memory that is measured, and the effect
    "terminate": ("process", "its nanny kills it with all it holds"),
    "pause": ("process", "it starts no more tasks"),
    "spill": ("process", "it writes keys to disk until it is below its target"),
    "target": ("managed", "it writes a key to disk for each new one"),
}

GROWTH = "memory_growth"
#: checks of memory; after a trim, the memory itself decides
MEMORY = ("unmanaged_memory", "memory_pressure", "paused_workers", GROWTH)


# --- thresholds -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A worker's memory compared with one of its thresholds."""

    worker: WorkerSnapshot
    name: str  # of the threshold
    fraction: float  # of the memory limit, at which it acts

    @property
    def measure(self) -> str:
        """The memory that the threshold applies to: process or managed."""
        return ACTS[self.name][0]

    @property
    def used(self) -> int:
        """Bytes of that memory."""
        process = self.measure == "process"
        return self.worker.process if process else self.worker.counted

    @property
    def headroom(self) -> float:
        """Fraction of the limit that is left below the threshold; <= 0: reached."""
        return self.fraction - self.used / self.worker.memory_limit

    def __str__(self) -> str:
        limit = self.worker.memory_limit
        return (
            f"{self.measure} memory is {bytes_text(self.used)}, "
            f"{self.used / limit:.0%} of the limit of {bytes_text(limit)}; "
            f"at {self.fraction:.0%} {ACTS[self.name][1]}"
        )


def levels(worker: WorkerSnapshot) -> tuple[Level, ...]:
    """Return the known, enabled thresholds, worst first; none without a limit."""
    fractions = _fractions(worker) if worker.memory_limit else {}
    return tuple(Level(worker=worker, name=n, fraction=x) for n, x in fractions.items())


def _fractions(worker: WorkerSnapshot) -> dict[str, float]:
    """Return the known, enabled thresholds by name, worst first."""
    values = {name: getattr(worker.thresholds, name, None) for name in ACTS}
    return {n: x for n, x in values.items() if isinstance(x, int | float)}


def _lowest(worker: WorkerSnapshot, names: Sequence[str], limit: int) -> int:
    """Return the bytes of the lowest of these thresholds; 0 means that none is on."""
    known = [x for name, x in _fractions(worker).items() if name in names]
    return int(min(known, default=0) * limit)


# --- free memory ----------------------------------------------------------------------


def process_limit(worker: WorkerSnapshot, limit: int | None = None) -> int:
    """Return the process memory at which a worker spills or pauses; 0 means never.

    ``limit`` is another memory limit than the worker's own.
    """
    limit = worker.memory_limit if limit is None else limit
    return _lowest(worker, ("spill", "pause"), limit)


def free_below(worker: WorkerSnapshot, most: int) -> float:
    """Return the free bytes below a limit of the process; infinite if it is 0."""
    return free_bytes(most, worker.process, worker.counted)


def limit(worker: WorkerSnapshot, view: View) -> float | Unknown:
    """Return the bytes that a worker may use: its limit, or its share of the host."""
    if worker.memory_limit:
        return float(worker.memory_limit)
    if isinstance(worker.facts, Unknown):
        return worker.facts
    sharing, host = view.now.workers_per_memory, worker.host
    return min(n / sharing[host, name] for name, n in worker.facts.memory_levels)


def fixed_bytes(view: View) -> Float64s:
    """Return the bytes of every worker's process that are not given data."""
    return other_bytes(view) + unmanaged_bytes(view)


def other_bytes(view: View) -> Float64s:
    """Return the bytes of Dask's keys on every worker that are not given data."""
    managed = np.array([w.managed for w in view.now.workers], dtype=np.float64)
    return np.maximum(0.0, managed - _given_bytes(view))


def unmanaged_bytes(view: View) -> Float64s:
    """Return the unmanaged memory of each worker.

    Workers with ``processes=False`` share one process. The managed memory of all of
    them is subtracted from it.
    """
    managed: Counter[str] = Counter()
    for w in view.now.workers:
        managed[_process(w)] += w.managed
    rest = [max(0, w.process - managed[_process(w)]) for w in view.now.workers]
    return np.array(rest, dtype=np.float64)


def _process(worker: WorkerSnapshot) -> str:
    """Return the common part of ``inproc://HOST/PID/NUMBER``, or the address."""
    address = worker.address
    return address.rpartition("/")[0] if address.startswith("inproc://") else address


def free_memory(view: View) -> Float64s:
    """Return the bytes of given data that every worker can hold without spilling.

    A worker whose thresholds or memory are unknown gets what it already holds.
    """
    pairs = zip(_free(view), _given_bytes(view), strict=True)
    found = [
        held if isinstance(free, Unknown) else max(0.0, free) for free, held in pairs
    ]
    return np.array(found, dtype=np.float64)


def thresholds_known(view: View) -> Bools:
    """Return for each worker whether its spill threshold is known."""
    return np.array([not isinstance(f, Unknown) for f in _free(view)], dtype=np.bool_)


def _given_bytes(view: View) -> Float64s:
    return held_bytes(view.layouts, len(view.now.workers)).astype(np.float64)


def _free(view: View) -> list[float | Unknown]:
    pairs = zip(view.now.workers, fixed_bytes(view), strict=True)
    return [_free_of(worker, view, fixed) for worker, fixed in pairs]


def _free_of(worker: WorkerSnapshot, view: View, fixed: float) -> float | Unknown:
    """Return the bytes for given data below the first threshold that acts."""
    total, thresholds = limit(worker, view), worker.thresholds
    if isinstance(total, Unknown) or isinstance(thresholds, Unknown):
        return Unknown("limit or thresholds are not known")
    if not worker.memory_limit:
        return total - fixed  # without a limit no threshold acts
    free = min(total, process_limit(worker) or total) - fixed
    if thresholds.target is None:
        return free
    managed = max(0.0, fixed - worker.unmanaged)
    return min(free, total * thresholds.target - managed)


# --- data that is too large -----------------------------------------------------------


def refuse_too_much(labels: Sequence[str], size: int, free: Float64s) -> None:
    """Refuse to load ``size`` bytes that exceed the free memory of the workers."""
    if not len(free) or size <= free.sum():
        return
    raise CapacityError(
        f"{names_text(labels)} ({bytes_text(size)}) cannot be loaded before workers "
        f"spill: {too_little(free, size, free.mean())}"
    )


def refuse_overfull(
    labels: Sequence[str], free: Float64s, n_partitions: int, n_loaded: int, nbytes: int
) -> None:
    """Refuse data of unknown size once its loaded partitions exceed the free memory.

    ``nbytes`` are the bytes of the loaded partitions. The error estimates how many
    workers are enough if the other partitions have the same size.
    """
    if nbytes <= free.sum() or n_loaded >= n_partitions:
        return
    size = nbytes / n_loaded * n_partitions
    raise CapacityError(
        f"{names_text(labels)} cannot be loaded: {n_loaded:,} of "
        f"{plural(n_partitions, 'partition')} took {bytes_text(nbytes)}, so all take "
        f"about {bytes_text(size)}; workers would spill. The loaded partitions are "
        f"released; {too_little(free, size, free.mean())}"
    )


def too_little(rooms: Float64s, nbytes: float, each: float) -> str:
    """Describe the free memory, and how many workers are enough for these bytes.

    ``rooms`` are the free bytes of the present workers, ``each`` those of a new one.
    """
    have = verb(range(len(rooms)), "has")
    text = f"{plural(len(rooms), 'worker')} {have} {bytes_text(rooms.sum())} free"
    if not rooms.any():
        return f"{text}; free memory there, or add workers with n_workers="
    enough = len(rooms) + max(1, math.ceil((nbytes - rooms.sum()) / each))
    return (
        f"{text}; about {enough} workers of this size would suffice: n_workers={enough}"
    )


# --- lower memory limits --------------------------------------------------------------


def lower_limit(worker: WorkerSnapshot, size: WorkerSize) -> int | None:
    """Return the memory limit that a size gives a worker, if that lowers its limit."""
    new, old = size.memory_limit, worker.memory_limit
    return new if new is not None and (new < old or not old) else None


def lowered_limits(worker: WorkerSnapshot, limit: int) -> tuple[int, int]:
    """Return the process bytes allowed with a lower limit; 0 means any.

    The first number applies once the worker has all its keys. The second one applies
    while keys return: spilling then begins too late to stop a key in flight.
    """
    most = _lowest(worker, ("pause", "terminate"), limit)
    return process_limit(worker, limit) or most, most


# --- leaks ----------------------------------------------------------------------------


class Leak(NamedTuple):
    """Memory that one worker keeps with every run."""

    worker: WorkerSnapshot
    step: float  # bytes per run
    seen: int  # runs
    #: runs until the worker reaches each threshold; 0 means that it has reached it
    reached: Mapping[str, int]

    @property
    def first(self) -> int:
        return min(self.reached.values())


def leak(worker: WorkerSnapshot, groups: Sequence[Sequence[Run]]) -> Leak | None:
    """Return how fast a worker's memory grows, or None if it does not.

    Each group has runs that ended alike, oldest first. The first group in which memory
    grows counts.
    """
    lines = {
        level.name: level.fraction * worker.memory_limit
        for level in reversed(levels(worker))
        if level.measure == "process"
    }
    for group in groups if lines else ():
        runs = [run for run in group if worker.id in run.floors]
        memory = [
            MemoryAfterRun(n, run.floors[worker.id], run.managed.get(worker.id, 0))
            for n, run in enumerate(group)
            if worker.id in run.floors
        ]
        growth = step(memory, rules.LEAST_GROWTH * worker.memory_limit)
        if growth is not None:
            peak = worker.managed + memory[-1].unmanaged + _peak_bytes(worker.id, runs)
            reached = {
                name: max(0, math.ceil((line - peak) / growth))
                for name, line in lines.items()
            }
            return Leak(worker, growth, len(runs), reached)
    return None


def _peak_bytes(worker: str | int, runs: Sequence[Run]) -> float:
    """Return the median of the bytes that the process needs only during a run."""
    return median(
        max(0, run.peaks[worker] - run.floors[worker] - run.managed[worker])
        if worker in run.peaks and worker in run.managed
        else 0
        for run in runs
    )


# --- need for a restart ---------------------------------------------------------------


def warned(findings: Sequence[Finding]) -> set[str | int]:
    """Return the workers that warnings about memory name."""
    found = [f for f in findings if f.check in MEMORY]
    return {id for f in found if f.severity >= Severity.warning for id in f.subject}


def expected_growth(findings: Sequence[Finding], worker: WorkerSnapshot) -> int:
    """Return the bytes that a leak is expected to add to the process per run."""
    for f in findings:
        if f.check == GROWTH and worker.id in f.subject:
            step = f.evidence.get("bytes_per_run")
            if f.severity >= Severity.warning and isinstance(step, int | float):
                return int(step)
    return 0


def restart_reason(worker: WorkerSnapshot, growth: int = 0) -> str:
    """Return why a restart helps a worker, or ""; see ``core.rules``."""
    limit = worker.memory_limit
    lines = {x.name: int(x.fraction * limit) for x in levels(worker)}
    return rules.restart_reason(
        {name: line for name, line in lines.items() if ACTS[name][0] == "process"},
        worker.process,
        worker.managed,
        paused=worker.status == "paused",
        growth=growth,
        # the memory of a process without keys is known for the first hour only
        fresh=worker.least_memory or 0,
    )
