"""Rounds on workers with little free memory: full, paused, or with spilled keys.

A round fills all workers, calls a function that restarts, resizes or trims them, and
injects one fault. A restart afterwards has to succeed in any case.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import psutil
from distributed import wait

import clustertune
from clustertune.core.sections import headlines
from clustertune.errors import ClustertuneError
from tests.chaos import data, faults
from tests.chaos.clusters import LocalWorkers, becomes_true
from tests.chaos.live import BLOCK, WAIT, Case
from tests.chaos.operations import Operation

MIB = 2**20
FILLED = {"full": 0.75, "paused": 0.86}  # of each worker's limit, by unmanaged memory
SPILLED = 0.75  # of each worker's limit, by keys
STATES = (*FILLED, "spilled")
CALLS = (
    Operation(name="restart"),
    Operation(name="restart", options={"if_needed": True}),
    Operation(name="restart", options={"max_unavailable": 2}),
    Operation(name="resize", options={"nthreads": 2}),
    Operation(name="resize", options={"memory_limit": "800 MiB"}),
    Operation(name="trim"),
    Operation(name="prepare", options={"restart": "auto"}),
    Operation(name="prepare", options={"restart": True}),
)
FAULTS = (
    *("kill worker", "freeze worker", "slow transfers", "busy CPU", "interrupt"),
    *("other client", "fill memory", "fill memory", "kill client", "freeze client"),
)
#: these faults lose the keys that only the killed process has
FATAL = ("kill worker", "kill nanny")
VALUES = 4  # scattered values on each worker


def draw(seed: int) -> Case:
    """Draw the case of a seed; every other case has no fault."""
    cluster_rng, rng = Random(seed // BLOCK), Random(seed + 3 * 10**6)
    outside = cluster_rng.random() < 0.25
    kinds = (*FAULTS, "kill nanny") if outside else FAULTS
    operation = rng.choice(CALLS)
    reports_progress = operation.name != "trim"
    return Case(
        seed=seed,
        outside=outside,
        n_workers=cluster_rng.choice((1, 2, 3, 3)),
        spec=data.Spec(
            seed=seed,
            kind="array",
            rows=3000,
            columns=20,
            partitions=12,
            other_partitions=12,
            place=rng.choice(("one", "anywhere")),
        ),
        operation=operation,
        fault=faults.draw(rng, kinds, reports_progress=reports_progress)
        if seed % 2
        else None,
        filled=STATES[seed % len(STATES)],
    )


class FilledWorkers:
    """Filled workers, and the scattered values that must survive."""

    def __init__(self, cluster: LocalWorkers, state: str):
        self.cluster, self.state = cluster, state
        self.values: list[Any] = []
        limit = min(cluster.watch.run_on_scheduler(limits))
        nbytes = int(SPILLED * limit / VALUES) if state == "spilled" else MIB
        for address in sorted(cluster.pids()):
            for _ in range(VALUES):
                value = np.full(nbytes, len(self.values), dtype="u1")
                (future,) = cluster.client.scatter(
                    [value], workers=[address], hash=False
                )
                self.values.append(future)
        wait(self.values)
        if state in FILLED:
            cluster.watch.run(faults.leak, FILLED[state])
        if not becomes_true(
            lambda: cluster.watch.run_on_scheduler(is_filled, state), WAIT
        ):
            raise RuntimeError(f"the workers did not become {state}")

    def end(self, call: str, injected: Any, outcome: str) -> Iterator[str]:
        """Restart the workers, and yield the problems found."""
        fatal = any(kind in FATAL for kind, _ in injected)
        expected = self.cluster.n_workers - any(
            kind == "kill nanny" for kind, _ in injected
        )
        becomes_true(lambda: self._n_live() >= expected, WAIT)
        # a trim cannot free leaked memory
        if outcome == "done" and call != "trim" and not injected:
            yield from self._above("after the call")
        problem, report = "", None
        # a restart is refused or partial if a worker ends as it begins
        for _ in range(3 if fatal else 1):
            try:
                report = clustertune.restart_workers(
                    self.cluster.client, timeout="3 minutes"
                )
            except ClustertuneError as error:
                problem = str(error)
                continue
            if report.status == "done":
                break
        if report is None:
            yield f"the workers could not be restarted: {problem}"
            return
        lost = sum(step.lost or 0 for step in report.steps)
        if report.status != "done" or lost:
            line = headlines(report)[0]
            yield f"the restart lost {lost} keys and ended {report.status}: {line}"
        yield from self._above("after the restart")
        yield from self._values(fatal=fatal)

    def _n_live(self) -> int:
        """Number of live workers that the scheduler has."""
        living = [pid for pid in self.cluster.pids().values() if psutil.pid_exists(pid)]
        known = self.cluster.watch.run_on_scheduler(limits)
        return min(len(living), len(known))

    def _above(self, when: str) -> Iterator[str]:
        watch = self.cluster.watch
        if not becomes_true(lambda: not watch.run_on_scheduler(above), WAIT):
            yield f"above the spill threshold {when}: {watch.run_on_scheduler(above)}"

    def _values(self, *, fatal: bool) -> Iterator[str]:
        for number, future in enumerate(self.values):
            if future.status != "finished":
                if not fatal:
                    yield f"value {number} is {future.status}"
                continue
            ends = self.cluster.client.submit(lambda x: (int(x[0]), int(x[-1])), future)
            if ends.result(timeout=WAIT) != (number, number):
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
