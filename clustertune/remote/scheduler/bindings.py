"""Tasks that annotations have bound to workers, and how they are let go.

A binding outlives its task: computed again after its worker was lost, the task would
wait for that worker for ever. Even one that may run elsewhere can: Dask looks for other
workers in the moment in which the task is ready to run, and if none runs in that moment
it is given to none of those that come. Runs on the scheduler.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from time import time
from typing import Any
from uuid import uuid4

from clustertune.remote.keys import unpack

YIELD = 2000  # keys between two yields to the event loop, and tasks of one search
TICK = 1.0  # seconds between two looks for tasks that wait in vain
logger = logging.getLogger(__name__)
MAX_TASKS = 5000  # waiting tasks that are looked at
MAX_SHOWN = 20  # different wants that are told, and names of each
YIELD = 2000  # tasks between two yields to the event loop


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


Want = tuple[str, tuple[str, ...]]
"""``worker``, ``host`` or ``resources``, and their names."""


async def unmet_summary(scheduler: Any) -> list[list[Any]]:
    """What is wanted in vain by tasks that wait: kind, names, number of tasks."""
    return await _counted(scheduler, list(islice(scheduler.unrunnable, MAX_TASKS)))


async def unmet_of_keys(scheduler: Any, keys: Iterable[Any]) -> list[list[Any]]:
    """The same of these keys and what they are made of."""
    if not scheduler.unrunnable:
        return []
    todo = [scheduler.tasks[key] for key in keys if key in scheduler.tasks]
    seen = set(todo)
    for i, ts in enumerate(todo):  # which grows meanwhile
        if i % YIELD == YIELD - 1:
            await asyncio.sleep(0)
        new = set(ts.waiting_on or ()) - seen
        seen |= new
        todo += new
    return await _counted(scheduler, [ts for ts in todo if ts in scheduler.unrunnable])


async def _counted(scheduler: Any, tasks: list[Any]) -> list[list[Any]]:
    alike: Counter[Any] = Counter()  # a million tasks may want the same
    for i, ts in enumerate(tasks):
        if i % YIELD == YIELD - 1:
            await asyncio.sleep(0)
        alike[_limits(ts)] += 1
    wants: Counter[Want] = Counter()
    for limits, count in alike.items():
        want = _want(scheduler, *limits)
        if want is not None:
            wants[want] += count
        await asyncio.sleep(0)
    return [[kind, list(names), n] for (kind, names), n in wants.most_common(MAX_SHOWN)]


def _limits(task: Any) -> tuple[frozenset[str], frozenset[str], frozenset[Any]]:
    """Addresses and hosts to which a task is bound, and resources that it needs."""
    strict = not task.loose_restrictions
    return (
        frozenset((strict and task.worker_restrictions) or ()),
        frozenset((strict and task.host_restrictions) or ()),
        frozenset((task.resource_restrictions or {}).items()),
    )


def _want(
    scheduler: Any, bound: frozenset[str], hosts: frozenset[str], needs: frozenset[Any]
) -> Want | None:
    """What is wanted that no worker has, whatever state the workers are in."""
    workers = scheduler.workers
    there = workers.keys()
    if bound or hosts:
        there = there & {*bound, *_on(scheduler, hosts)}
        if not there:
            names = sorted(map(str, bound | hosts))
            return ("host" if hosts else "worker", tuple(names[:MAX_SHOWN]))
    if needs and not any(_has(workers[a].resources, needs) for a in there):
        names = sorted(f"{name}: {amount}" for name, amount in needs)
        return ("resources", tuple(names[:MAX_SHOWN]))
    return None


def _on(scheduler: Any, hosts: Iterable[Any]) -> Iterator[str]:
    """Addresses of the workers on these hosts."""
    for host in hosts:
        found = scheduler.host_info.get(scheduler.coerce_hostname(host))
        yield from () if found is None else found["addresses"]


def _has(there: Any, needs: Iterable[tuple[Any, Any]]) -> bool:
    """Whether all is there; Dask looks at amounts, which may be text, no earlier."""
    return all(
        isinstance(amount, int | float) and there.get(name, 0) >= amount
        for name, amount in needs
    )
