"""Tasks that annotations have bound to workers, and how they are let go.

A binding outlives its task: computed again after its worker was lost, the task would
wait for that worker for ever. Even one that may run elsewhere can: Dask looks for other
workers in the moment in which the task is ready to run, and if none runs in that moment
it is given to none of those that come. Runs on the scheduler.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter
from time import time
from typing import Any
from uuid import uuid4

from clustertune.remote.keys import unpack

YIELD = 2000  # keys between two yields to the event loop, and tasks of one search
TICK = 1.0  # seconds between two looks for tasks that wait in vain

logger = logging.getLogger(__name__)


class Bindings:
    """Of one scheduler, by name."""

    def __init__(self, scheduler: Any):
        self.scheduler = scheduler
        self.kept: dict[str, set[Any]] = {}  # keys
        self.ending: set[asyncio.Task[int]] = set()

    async def unknown(self, runs: Sequence[Any]) -> set[Any]:
        """The packed keys that the scheduler does not know, in short turns.

        A graph binds only tasks that are new. Known ones, and what they are bound to,
        belong to an earlier graph.
        """
        keys = set()
        for i, key in enumerate(unpack(runs)):
            if i % YIELD == YIELD - 1:
                await asyncio.sleep(0)
            if key not in self.scheduler.tasks:
                keys.add(key)
        return keys

    def keep(self, keys: set[Any]) -> str:
        """Remember keys of tasks that are going to be bound; the name of the set."""
        name = uuid4().hex
        self.kept[name] = keys
        return name

    async def free_stuck(self, name: str) -> int:
        """Let those run anywhere whose worker is gone or paused; how many there were.

        What a paused worker was given stays with it, and it will not begin it: nor what
        is not bound, since Dask takes no short tasks from it. That includes what they
        are made of.
        """
        ours = self.kept.get(name, set())
        stuck = [ts.key for ts in self.scheduler.unrunnable if ts.key in ours]
        for ws in list(self.scheduler.workers.values()):
            if ws.status.name != "running":
                waiting = [ts for ts in ws.processing if ts not in ws.executing]
                stuck += [ts.key for ts in waiting if _is_for(ts, ours)]
        return await self._loosen(stuck)

    async def end(self, name: str) -> None:
        """Let all of them run anywhere from now on."""
        await self._loosen(self.kept.pop(name, set()))

    def end_all(self) -> None:
        """The same for every set, a little later."""
        for keys in self.kept.values():
            task = asyncio.ensure_future(self._loosen(keys))
            self.ending.add(task)
            task.add_done_callback(self.ending.discard)
        self.kept.clear()

    async def watch(self) -> None:
        """Have no task wait in vain, until cancelled; a failure is one gap in it."""
        while True:
            try:
                await self.wake()
            except Exception:
                logger.exception("clustertune could not let tasks run elsewhere")
            await asyncio.sleep(TICK)

    async def wake(self) -> None:
        """Run what may run elsewhere, and waits for workers that are gone."""
        if not self.scheduler.running:
            return
        waiting = []
        for i, ts in enumerate(list(self.scheduler.unrunnable)):
            if i % YIELD == YIELD - 1:
                await asyncio.sleep(0)
            if ts.loose_restrictions and self._is_for_nobody(ts):
                waiting.append(ts)
        run(self.scheduler, waiting)

    def _is_for_nobody(self, task: Any) -> bool:
        """Whether all workers that a task is bound to are gone."""
        bound = task.worker_restrictions
        return bool(bound) and not bound & self.scheduler.workers.keys()

    async def _loosen(self, keys: Iterable[Any]) -> int:
        """Undo what annotations have bound; returns how many tasks waited for that."""
        waiting = {}
        for i, key in enumerate(list(keys)):
            if i % YIELD == YIELD - 1:
                await asyncio.sleep(0)
            ts = self.scheduler.tasks.get(key)
            if ts is None:
                continue
            if ts.worker_restrictions:
                unbind(ts)
            if ts in self.scheduler.unrunnable:
                waiting[key] = "processing"
            elif ts.processing_on is not None and (
                ts.processing_on.status.name != "running"
            ):
                waiting[key] = "released"  # and given to another, as it is wanted
        if waiting:
            self.scheduler.transitions(waiting, f"clustertune-{time()}")
        return len(waiting)


async def bound_to(scheduler: Any, address: str) -> set[Any]:
    """Keys of the tasks that are bound to a worker's address."""
    found = set()
    for i, ts in enumerate(list(scheduler.tasks.values())):
        if i % YIELD == YIELD - 1:
            await asyncio.sleep(0)
        if ts.worker_restrictions and address in ts.worker_restrictions:
            found.add(ts.key)
    return found


async def follow(
    scheduler: Any, keys: Collection[Any], former: set[str], address: str
) -> None:
    """Bind tasks to a worker's new address that are bound to those it had before.

    What it does not hold any more could never be computed again otherwise. ``keys``
    are tasks that were bound to it before its restart. Other tasks that are bound to a
    former address mean this worker only if no other one has that address by now.
    """
    if not former:
        return
    free = former - scheduler.workers.keys()
    waiting = []
    for i, ts in enumerate(list(scheduler.tasks.values())):
        if i % YIELD == YIELD - 1:
            await asyncio.sleep(0)
        bound = ts.worker_restrictions
        gone = former if ts.key in keys else free
        if bound and not gone.isdisjoint(bound):
            ts.worker_restrictions = (bound - gone) | {address}
            waiting.append(ts)
    run(scheduler, waiting)


def run(scheduler: Any, tasks: Collection[Any]) -> None:
    """Have those of the tasks run that wait for a worker."""
    # the last recommendation is carried out first
    order = sorted(tasks, key=attrgetter("priority"), reverse=True)
    there = [ts.key for ts in order if ts in scheduler.unrunnable]
    if there:
        found = dict.fromkeys(there, "processing")
        scheduler.transitions(found, f"clustertune-{time()}")


def unbind(task: Any) -> None:
    """Let a task run on any worker."""
    task.worker_restrictions = None
    task.loose_restrictions = False
    task.annotations = {
        k: v
        for k, v in (task.annotations or {}).items()
        if k not in ("workers", "allow_other_workers")
    }


def _is_for(task: Any, keys: set[Any]) -> bool:
    """Whether it is one of these tasks, or one of them waits for what it makes."""
    seen, todo = {task}, [task]
    while todo and len(seen) <= YIELD:
        ts = todo.pop()
        if ts.key in keys:
            return True
        new = {d for d in ts.waiters or () if d not in seen}
        seen |= new
        todo += new
    return False
