"""The runs of a cluster, and the memory that each run left on the workers.

A run is a span of work. It ends with a hold, with the training tasks of a library, or
after a short gap without tasks. The scheduler plugin keeps the last runs, so that a
leak shows even if no client watches. Each worker has an id that survives a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Mapping
from time import time
from typing import Any, NamedTuple

from clustertune.core import rules
from clustertune.remote.scheduler.lease import Holds
from clustertune.remote.scheduler.state import Id, id_of, memory_of, training_workers

logger = logging.getLogger("distributed.clustertune")

MAX_RUNS = 50
MAX_TOTALS = 450  # moments: 15 minutes, and more on a large cluster
#: seconds without tasks after which a run has ended: longer than a client pauses
#: within a fit to build the next graph, shorter than the time between two fits
GAP = 5.0
TICK = 0.5  # seconds between two samples, as between heartbeats
TOTALS = 2.0  # seconds between two moments for the dashboard page
LAG = 0.05  # seconds by which the clocks of workers may seem to differ
RECENT = 3  # runs to which a late heartbeat may belong
POLL_INTERVAL = 0.05  # seconds between two looks for heartbeats after the last run
SETTLE = 3.0  # seconds for which an answer waits for heartbeats after the last run
#: Beginnings of keys. A fit ends with the last such task that runs. XGBoost collects
#: the boosters of all workers in one last task (from 3.0 on; its training tasks are
#: named "fn", as others may be), which Dask fuses with others if one worker trains. It
#: had one training task per worker before, as LightGBM and
#: clustertune.training.run_roles have.
TRAINING = (
    "first_valid-aggregate-",
    "bag-from-delayed-first_valid-aggregate-",
    "dispatched_train-",
    "_train_part-",
    "role-",
)


class SampledMemory(NamedTuple):
    """Memory of one worker as its last heartbeat reported it."""

    process: int  # bytes
    unmanaged: int  # bytes
    sampled: float  # epoch seconds of the measurement, by the scheduler's clock


Memory = Mapping[Id, SampledMemory]
IdleMemory = tuple[int, int]  # unmanaged and managed bytes


class Ended:
    """A run that has ended, while heartbeats may still report the memory after it.

    ``workers`` are the workers of the run. ``left`` is the least unmanaged memory of
    each worker from the end of this run to the end of the next.
    """

    def __init__(
        self, run: dict[str, Any], workers: set[Id], left: dict[Id, IdleMemory]
    ):
        self.run = run
        self.workers = workers
        self.left = left
        self.update_run()

    @property
    def pending(self) -> set[Id]:
        """Workers whose memory after the run is not known yet."""
        return self.workers - self.left.keys()

    def measure(self, worker: Id, now: IdleMemory) -> None:
        if worker in self.workers:
            self.left[worker] = min(now, self.left.get(worker, now))
            self.update_run()

    def update_run(self) -> None:
        """Store the memory in the run as plain data."""
        left = self.left.items()
        self.run["floors"] = [(worker, unmanaged) for worker, (unmanaged, _) in left]
        self.run["managed"] = [(worker, managed) for worker, (_, managed) in left]


class Runs:
    """The last runs as plain values, from samples and from transitions of tasks."""

    def __init__(self) -> None:
        self.gap = GAP
        self.kept: deque[dict[str, Any]] = deque(maxlen=MAX_RUNS)
        #: time, process and managed bytes of all workers together, for the page
        self.totals: deque[tuple[float, int, int]] = deque(maxlen=MAX_TOTALS)
        self.began: float | None = None  # begin of the current run
        self.worked: float = 0.0  # time of the last work
        self.peaks: dict[Id, int] = {}
        #: least unmanaged memory since the last work
        self.floors: dict[Id, IdleMemory] = {}
        self.training: set[str] = set()  # keys of training tasks that run
        self.recent: deque[Ended] = deque(maxlen=RECENT)  # oldest first

    def note(self, now: float, busy: bool, memory: Memory, held: bool = False) -> None:
        """Record the cluster at one moment. A gap within a hold ends no run."""
        if not self.totals or now - self.totals[-1][0] >= TOTALS:
            process = sum(one.process for one in memory.values())
            unmanaged = sum(one.unmanaged for one in memory.values())
            self.totals.append((now, process, max(0, process - unmanaged)))
        if busy:
            self._work(now)
        self.measure(memory)
        if not held and now - self.worked >= self.gap:
            self.end("gap", memory)

    def transition(self, key: Any, start: str, finish: str, now: float) -> bool:
        """Record a task; return whether it was the last training task of a fit."""
        if start != "processing" and finish != "processing":
            return False
        self._work(now)
        if not isinstance(key, str) or not key.startswith(TRAINING):
            return False
        if finish == "processing":
            self.training.add(key)
            return False
        self.training.discard(key)
        return not self.training

    def _work(self, now: float) -> None:
        if self.began is None:
            self.began, self.peaks = now, {}
        self.worked = now
        if self.floors:
            self.floors = {}

    def measure(self, memory: Memory) -> None:
        """Record the memory that heartbeats have reported.

        Each measurement belongs to the last run that had ended at its time. Runs that
        follow each other faster than heartbeats have no value for some workers.
        """
        for worker, (process, unmanaged, sampled) in memory.items():
            self.peaks[worker] = max(process, self.peaks.get(worker, 0))
            now = unmanaged, process - unmanaged
            if self.began is not None and sampled > self.worked + LAG:
                self.floors[worker] = min(now, self.floors.get(worker, now))
            # even if a run has begun since: a few tasks may follow each fit
            for ended in reversed(self.recent):
                if sampled > ended.run["ended"] + LAG:
                    ended.measure(worker, now)
                    break

    def end(self, how: str, memory: Memory) -> None:
        """End the current run, if there is one; ``how`` is one of ``ENDS``."""
        if self.began is None:
            return
        self.measure(memory)
        run = {"began": self.began, "ended": self.worked, "ended_by": how}
        run["peaks"] = list(self.peaks.items())
        self.recent.append(Ended(run, set(memory), dict(self.floors)))
        self.kept.append(run)
        self.began = None

    def forget(self, worker: Id) -> None:
        """Forget the memory after runs of a worker's former process; keep its peaks."""
        self.floors.pop(worker, None)
        for ended in self.recent:
            ended.workers.discard(worker)
            ended.left.pop(worker, None)
        for run in self.kept:
            for name in ("floors", "managed"):
                run[name] = [row for row in run.get(name, ()) if row[0] != worker]


async def watch_runs(scheduler: Any, runs: Runs, holds: Holds) -> None:
    """Record the cluster until cancelled; a failure leaves one gap."""
    while True:
        try:
            held, busy = bool(holds.active()), _is_busy(scheduler)
            runs.note(time(), busy, measured(scheduler), held)
        except Exception:
            logger.exception("clustertune could not record the memory of the workers")
        # a large cluster is sampled less often: below 1 ms of each second
        await asyncio.sleep(max(TICK, len(scheduler.workers) / 500))


async def settled(scheduler: Any, runs: Runs) -> list[dict[str, Any]]:
    """Return the runs once each worker has sent a heartbeat after the last one.

    The wait is short; workers that send none have no value for that run.
    """
    # Dask's heartbeats are rarer on a large cluster
    longest = SETTLE + len(scheduler.workers) / 200
    while runs.recent and time() < runs.recent[-1].run["ended"] + longest:
        memory = measured(scheduler)
        runs.measure(memory)
        if not runs.recent[-1].pending & memory.keys():
            break
        await asyncio.sleep(POLL_INTERVAL)
    return list(runs.kept)


def growth(
    runs: Iterable[Mapping[str, Any]], least: Mapping[Id, float] | None = None
) -> dict[Id, float]:
    """Return by how many bytes each worker's unmanaged memory grows from run to run.

    0: it does not grow by the ``least`` bytes of the worker. A worker without enough
    runs that ended alike is absent.
    """
    kept, found = list(runs), dict[Id, float]()
    for group in rules.alike([run.get("ended_by", "gap") for run in kept]):
        left: dict[Id, list[rules.MemoryAfterRun]] = {}
        for n, run in enumerate(kept[i] for i in group):
            managed = dict(run.get("managed", ()))
            for id, nbytes in run.get("floors", ()):
                after = rules.MemoryAfterRun(n, nbytes, managed.get(id, 0))
                left.setdefault(id, []).append(after)
        for id, memory in left.items():
            if len(memory) >= rules.ENOUGH:
                step = rules.step(memory, (least or {}).get(id, 0.0)) or 0.0
                found[id] = max(step, found.get(id, 0.0))
    return found


def _is_busy(scheduler: Any) -> bool:
    return bool(scheduler.queued) or any(
        ws.processing for ws in scheduler.workers.values()
    )


def measured(scheduler: Any) -> Memory:
    """Return the memory of all workers except parking workers."""
    found = {}
    for ws in training_workers(scheduler):
        now = memory_of(ws)
        # a heartbeat has the last sample of the worker, which may be older
        sampled = ws.metrics.get("time", 0.0) + ws.time_delay
        found[id_of(ws)] = SampledMemory(now.process, now.unmanaged, sampled)
    return found
