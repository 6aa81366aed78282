"""Memory of workers that grows from run to run.

After each run (a span of work between gaps of 30 s) the resident on the scheduler notes
the least unmanaged memory of each worker. Where that rises from run to run something
leaks, or fragments the heap. The median of the steps between runs says by how much, and
so after how many more runs the worker would pause, with what it holds now.

Remedy: ``clustertune.restart(client)`` before that, between two runs: it loses nothing.
Until then ``clustertune.trim(client)`` gives some of it back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from clustertune.model import (
    Finding,
    Run,
    Severity,
    Unknown,
    View,
    WorkerSnapshot,
)
from clustertune.wording import bytes_text, plural, workers_text

ENOUGH = 3  # runs: two steps


class _Growth(NamedTuple):
    runs: float  # until it would pause
    step: float  # bytes a run
    worker: WorkerSnapshot


def find(view: View, *, least: float = 0.01, soon: int = 10) -> Iterator[Finding]:
    """Find workers that lose memory with every run.

    Parameters
    ----------
    view
        What is seen.
    least
        Growth in a run that counts, as a fraction of the memory limit.
    soon
        Runs within which a worker would pause for it to be a warning.
    """
    if view.runs is None:
        return
    if len(view.runs) < ENOUGH:
        seen = "no run was seen yet" if not view.runs else plural(len(view.runs), "run")
        yield Finding(
            severity=Severity.unknown,
            message=f"whether memory grows from run to run is unknown: {seen}, "
            f"{ENOUGH} are needed",
            remedy="nothing yet: after so many fits on these workers it is known",
        )
        return
    growing = [g for w in view.now.workers if (g := _growth(w, view.runs, least))]
    if not growing:
        return
    first = min(growing, key=lambda g: g.runs)
    ids = tuple(g.worker.id for g in growing)
    severity = Severity.warning if first.runs <= soon else Severity.info
    yield Finding(
        severity=severity,
        message=f"unmanaged memory of {workers_text(ids)} grows from run to run; "
        f"{workers_text([first.worker.id])} by {bytes_text(first.step)} a run: it "
        f"would pause after about {plural(max(0, round(first.runs)), 'more run')}",
        subject=ids,
        evidence={"bytes_per_run": round(first.step), "runs_left": round(first.runs)},
    )


def _growth(
    worker: WorkerSnapshot, runs: Sequence[Run], least: float
) -> _Growth | None:
    """How fast it grows, if it does so in nearly every run."""
    floors = [run.floors[worker.id] for run in runs if worker.id in run.floors]
    steps = [b - a for a, b in pairwise(floors)]
    if len(floors) < ENOUGH or not worker.memory_limit:
        return None
    step = median(steps)
    if step < least * worker.memory_limit or sum(s > 0 for s in steps) < 0.8 * len(
        steps
    ):
        return None
    thresholds = worker.thresholds
    if isinstance(thresholds, Unknown) or thresholds.pause is None:
        return None
    room = thresholds.pause * worker.memory_limit - worker.managed - floors[-1]
    return _Growth(max(0.0, room / step), step, worker)
