"""What tasks wait for and no worker has: a worker that is gone, a host, resources.

Dask has them wait for it without an end, and says nothing. Tasks that may run on other
workers as well, and those of workers that are paused, are not among them. Runs on the
scheduler.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
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
    return [[kind, list(names), n] for (kind, names), n in wants.most_common(SHOWN)]


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
            return ("host" if hosts else "worker", tuple(names[:SHOWN]))
    if needs and not any(_has(workers[a].resources, needs) for a in there):
        names = sorted(f"{name}: {amount}" for name, amount in needs)
        return ("resources", tuple(names[:SHOWN]))
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
