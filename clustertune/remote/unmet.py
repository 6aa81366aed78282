"""What tasks wait for and no worker has: a worker that is gone, a host, resources.

Dask has them wait for it without an end, and says nothing. Tasks that may run on other
workers as well, and those of workers that are paused, are not among them. Runs on the
scheduler.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from typing import Any

MOST = 5000  # waiting tasks that are looked at
SHOWN = 20  # different wants that are told, and names of each
YIELD = 2000  # tasks between two yields to the event loop

Want = tuple[str, tuple[str, ...]]
"""``worker``, ``host`` or ``resources``, and their names."""


async def summary(scheduler: Any) -> list[list[Any]]:
    """What is wanted in vain by tasks that wait: kind, names, number of tasks."""
    return await _counted(scheduler, list(islice(scheduler.unrunnable, MOST)))


async def of_keys(scheduler: Any, keys: Iterable[Any]) -> list[list[Any]]:
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
    wants: Counter[Want] = Counter()
    for i, ts in enumerate(tasks):
        if i % YIELD == YIELD - 1:
            await asyncio.sleep(0)
        want = _want(scheduler, ts)
        if want is not None:
            wants[want] += 1
    return [[kind, list(names), n] for (kind, names), n in wants.most_common(SHOWN)]


def _want(scheduler: Any, task: Any) -> Want | None:
    """What a task wants that no worker has, whatever state the workers are in."""
    workers = scheduler.workers
    bound, hosts = task.worker_restrictions or (), task.host_restrictions or ()
    if (bound or hosts) and not task.loose_restrictions:
        known = (scheduler.coerce_hostname(host) for host in hosts)
        there = {a for a in bound if a in workers}
        there.update(*(h["addresses"] for k in known if (h := _host(scheduler, k))))
        if not there:
            names = sorted(map(str, (*bound, *hosts)))[:SHOWN]
            return ("host" if hosts else "worker", tuple(names))
    else:
        there = workers
    wanted = task.resource_restrictions or {}
    if wanted and not any(_has(workers[a].resources, wanted) for a in there):
        names = sorted(f"{name}: {amount:g}" for name, amount in wanted.items())
        return ("resources", tuple(names[:SHOWN]))
    return None


def _host(scheduler: Any, name: Any) -> Any:
    return scheduler.host_info.get(name)


def _has(there: Any, wanted: Any) -> bool:
    return all(there.get(name, 0) >= amount for name, amount in wanted.items())
