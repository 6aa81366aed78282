"""Rounds on workers without memory: full, paused, or with data on disk.

A round fills all workers, makes a call that restarts, resizes or trims them, and lets
one thing happen meanwhile. A restart afterwards has to succeed in any case.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import psutil
from distributed import wait

import clustertune
from clustertune.core.report import headlines
from clustertune.errors import ClustertuneError
from tests.chaos import blows, data
from tests.chaos.acts import Act
from tests.chaos.houses import House, soon
from tests.chaos.live import BLOCK, PATIENCE, Case

MIB = 2**20
FILLED = {"full": 0.75, "paused": 0.86}  # of each worker's limit, by unmanaged memory
SPILLED = 0.75  # of each worker's limit, by keys
STATES = (*FILLED, "spilled")
CALLS = (
    Act(name="restart"),
    Act(name="restart", options={"if_needed": True}),
    Act(name="restart", options={"max_unavailable": 2}),
    Act(name="resize", options={"nthreads": 2}),
    Act(name="resize", options={"memory_limit": "800 MiB"}),
    Act(name="trim"),
    Act(name="prepare", options={"restart": "auto"}),
    Act(name="prepare", options={"restart": True}),
)
FAULTS = (
    *("kill worker", "freeze worker", "lag", "hog", "interrupt", "rival"),
    *("fill", "fill", "kill client", "freeze client"),
)
#: the end of a process loses the keys that only this process has
FATAL = ("kill worker", "kill nanny")
EACH = 4  # values on each worker that no task can compute again


def draw(seed: int) -> Case:
    """The case of that number; every other round has no fault."""
    place, rng = Random(seed // BLOCK), Random(seed + 3 * 10**6)
    outside = place.random() < 0.25
    kinds = (*FAULTS, "kill nanny") if outside else FAULTS
    act = rng.choice(CALLS)
    told = act.name != "trim"
    return Case(
        seed=seed,
        outside=outside,
        n_workers=place.choice((1, 2, 3, 3)),
        spec=data.Spec(
            seed=seed,
            kind="array",
            rows=3000,
            columns=20,
            partitions=12,
            other_partitions=12,
            place=rng.choice(("one", "anywhere")),
        ),
        act=act,
        blow=blows.draw(rng, kinds, told=told) if seed % 2 else None,
        filled=STATES[seed % len(STATES)],
    )


class Rescue:
    """All workers of a cluster, filled, and the values that must survive."""

    def __init__(self, house: House, state: str):
        self.house, self.state = house, state
        self.values: list[Any] = []
        limit = min(house.watch.run_on_scheduler(limits))
        nbytes = int(SPILLED * limit / EACH) if state == "spilled" else MIB
        for address in sorted(house.pids()):
            for _ in range(EACH):
                value = np.full(nbytes, len(self.values), dtype="u1")
                (future,) = house.client.scatter([value], workers=[address], hash=False)
                self.values.append(future)
        wait(self.values)
        if state in FILLED:
            house.watch.run(blows.leak, FILLED[state])
        if not soon(lambda: house.watch.run_on_scheduler(is_filled, state), PATIENCE):
            raise RuntimeError(f"the workers did not become {state}")

    def end(self, call: str, hits: Any, outcome: str) -> Iterator[str]:
        """Restart the workers, and yield what is broken."""
        fatal = any(kind in FATAL for kind, _ in hits)
        there = self.house.n_workers - any(kind == "kill nanny" for kind, _ in hits)
        soon(lambda: self._there() >= there, PATIENCE)
        # a trim cannot give back what leaks
        if outcome == "done" and call != "trim" and not hits:
            yield from self._above("after the call")
        problem, report = "", None
        # a worker that ends as a restart begins is refused, or left
        for _ in range(3 if fatal else 1):
            try:
                report = clustertune.restart_workers(
                    self.house.client, timeout="3 minutes"
                )
            except ClustertuneError as error:
                problem = str(error)
                continue
            if report.status == "done":
                break
        if report is None:
            yield f"the workers could not be rescued: {problem}"
            return
        lost = sum(step.lost or 0 for step in report.steps)
        if report.status != "done" or lost:
            line = headlines(report)[-1]
            yield f"the rescue lost {lost} keys and ended {report.status}: {line}"
        yield from self._above("after the rescue")
        yield from self._values(fatal=fatal)

    def _there(self) -> int:
        """Workers whose processes live, and that the scheduler has."""
        living = [pid for pid in self.house.pids().values() if psutil.pid_exists(pid)]
        known = self.house.watch.run_on_scheduler(limits)
        return min(len(living), len(known))

    def _above(self, when: str) -> Iterator[str]:
        watch = self.house.watch
        if not soon(lambda: not watch.run_on_scheduler(above), PATIENCE):
            yield f"above the spill threshold {when}: {watch.run_on_scheduler(above)}"

    def _values(self, *, fatal: bool) -> Iterator[str]:
        for number, future in enumerate(self.values):
            if future.status != "finished":
                if not fatal:
                    yield f"value {number} is {future.status}"
                continue
            ends = self.house.client.submit(lambda x: (int(x[0]), int(x[-1])), future)
            if ends.result(timeout=PATIENCE) != (number, number):
                yield f"value {number} has changed"


def limits(dask_scheduler: Any) -> list[int]:
    return [ws.memory_limit for ws in dask_scheduler.workers.values()]


def is_filled(state: str, dask_scheduler: Any) -> bool:
    workers = dask_scheduler.workers.values()
    if state == "paused":
        return all(ws.status.name == "paused" for ws in workers)
    if state == "spilled":
        return all(ws.memory.spilled for ws in workers)
    return all(ws.memory.process > 0.72 * ws.memory_limit for ws in workers)


def above(dask_scheduler: Any) -> dict[str, str]:
    """Workers above Dask's default spill threshold, or not running."""
    return {
        str(ws.name): f"{ws.memory.process // MIB} MiB, {ws.status.name}"
        for ws in dask_scheduler.workers.values()
        if ws.memory.process > 0.7 * ws.memory_limit or ws.status.name != "running"
    }
