"""The runs of a cluster: spans of work between two gaps, and what they left behind.

Kept by the resident, so that memory that is never given back shows without anybody
watching. Every worker is told by an id that survives a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from time import time
from typing import Any

from clustertune.remote.memory import of as memory_of
from clustertune.remote.park import is_parking

logger = logging.getLogger("distributed.clustertune")

MOST = 50
MOST_TOTALS = 450  # moments: 15 minutes, and more on a large cluster
GAP = 30.0  # seconds without any task after which a run has ended
TICK = 2.0  # seconds between two looks

Id = str | int
Memory = Mapping[Id, tuple[int, int]]  # process and unmanaged bytes by worker


class Runs:
    """Told of the cluster every few seconds; keeps the last runs as plain values."""

    def __init__(self, gap: float = GAP) -> None:
        self.gap = gap
        self.kept: deque[dict[str, Any]] = deque(maxlen=MOST)
        #: time, process and managed bytes of all workers together, for the panel
        self.totals: deque[tuple[float, int, int]] = deque(maxlen=MOST_TOTALS)
        self.began: float | None = None  # of the run that is going on
        self.worked: float = 0.0  # when there was work last
        self.peaks: dict[Id, int] = {}
        self.floors: dict[Id, int] = {}  # since there was work last

    def state(self) -> dict[str, Any]:
        """Plain data, for :meth:`restore` of the next resident."""
        kept = {name: getattr(self, name) for name in ("began", "worked")}
        return kept | {
            "kept": list(self.kept),
            "totals": list(self.totals),
            "peaks": list(self.peaks.items()),
            "floors": list(self.floors.items()),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where the resident before this one stopped."""
        self.began, self.worked = state["began"], state["worked"]
        self.kept.extend(state["kept"])
        self.totals.extend(state["totals"])
        self.peaks, self.floors = dict(state["peaks"]), dict(state["floors"])

    def tell(self, now: float, busy: bool, memory: Memory) -> None:
        """Take notice of one moment."""
        process = sum(both[0] for both in memory.values())
        unmanaged = sum(both[1] for both in memory.values())
        self.totals.append((now, process, max(0, process - unmanaged)))
        if busy:
            if self.began is None:
                self.began, self.peaks = now, {}
            self.worked, self.floors = now, {}
        for worker, (process, unmanaged) in memory.items():
            self.peaks[worker] = max(process, self.peaks.get(worker, 0))
            if not busy:
                least = self.floors.get(worker, unmanaged)
                self.floors[worker] = min(unmanaged, least)
        if self.began is not None and now - self.worked >= self.gap:
            self.kept.append(
                {
                    "began": self.began,
                    "ended": self.worked,
                    "floors": list(self.floors.items()),
                    "peaks": list(self.peaks.items()),
                }
            )
            self.began = None

    def forget(self, worker: Id) -> None:
        """What a process that is gone has left says nothing of the one that came.

        What a run took at most it has taken, whatever became of the process.
        """
        self.floors.pop(worker, None)
        for run in self.kept:
            run["floors"] = [row for row in run["floors"] if row[0] != worker]


async def watch(scheduler: Any, runs: Runs) -> None:
    """Tell of the scheduler's workers until cancelled; a failure is one gap in it."""
    seen = scheduler.transition_counter
    while True:
        try:
            # what has begun and ended between two looks was work as well
            worked = _is_busy(scheduler) or scheduler.transition_counter != seen
            seen = scheduler.transition_counter
            runs.tell(time(), worked, _memory(scheduler))
        except Exception:
            logger.exception("clustertune could not note what the workers do")
        # a large cluster is looked at less often: below 1 ms of each second
        await asyncio.sleep(max(TICK, len(scheduler.workers) / 500))


def _is_busy(scheduler: Any) -> bool:
    return bool(scheduler.queued) or any(
        ws.processing for ws in scheduler.workers.values()
    )


def _memory(scheduler: Any) -> Memory:
    found = {}
    for ws in scheduler.workers.values():
        if not is_parking(ws.name):  # its process is that of a nanny
            now = memory_of(ws)
            found[worker_id(ws.address, ws.name, ws.nanny)] = now.process, now.unmanaged
    return found


def worker_id(address: str, name: Any, nanny: str | None) -> Id:
    """What survives a restart: the name that was given, else the nanny's address."""
    if isinstance(name, str | int) and name not in ("", address):
        return name
    return nanny or address
