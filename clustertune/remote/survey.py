"""What the scheduler says of clients, tasks and names when a diagnosis asks for it.

From its own counts: the time that it takes grows with workers, clients, names and task
prefixes, of which it reads a bounded number, and not with keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import islice
from time import time
from typing import Any

from dask.utils import stringify

from clustertune.remote import unmet
from clustertune.remote.details import installed

MOST = 5000  # clients, names and prefixes of which each is read
MOST_KEYS = 10_000  # of a published data set that are looked up
YIELD = 500
MOST_GROUPS = 20  # of a prefix whose inputs are looked up
WAITING = ("waiting", "no-worker", "queued")
COMING = (*WAITING, "processing")  # states of tasks that are still to be done


async def survey(scheduler: Any, owner: str, packages: Iterable[str]) -> dict[str, Any]:
    """Clients, published names, task prefixes and queues; plain types."""
    publisher = scheduler.extensions.get("publish")
    datasets = {} if publisher is None else publisher.datasets
    tables = (scheduler.clients, datasets, scheduler.task_prefixes)
    return {
        "me": owner,
        "worker_ttl": scheduler.worker_ttl,
        "loop_delay": scheduler._tick_interval_observed,
        "queued": len(scheduler.queued),
        "unrunnable": len(scheduler.unrunnable),
        "unmet": await unmet.summary(scheduler),
        "actors": sum(len(ws.actors) for ws in scheduler.workers.values()),
        "clients": _clients(scheduler),
        "published": await _published(scheduler, datasets),
        "prefixes": await _prefixes(scheduler),
        "complete": all(len(table) <= MOST for table in tables),
        "packages": installed(packages),
    }


def _clients(scheduler: Any) -> list[list[Any]]:
    """(id, keys, seconds of silence) of every client that is a process."""
    now, names = time(), shared(scheduler)
    return [
        [str(name), len(cs.wants_what), max(0.0, now - cs.last_seen)]
        for name, cs in islice(scheduler.clients.items(), MOST)
        if name not in names
    ]


def shared(scheduler: Any) -> dict[str, tuple[str, str]]:
    """Kind and name of what is shared by name, by the client that holds it for all."""
    extensions = scheduler.extensions
    found = {}
    for extension, table, kind in (
        ("publish", "datasets", "published"),
        ("variables", "variables", "variable"),
        ("queues", "queues", "queue"),
    ):
        for name in getattr(extensions.get(extension), table, ()):
            found[f"{kind}-{stringify(name)}"] = (kind, str(name))
    return found


async def _published(scheduler: Any, datasets: Any) -> list[list[Any]]:
    """(name, keys, keys that are gone) of every published data set."""
    found = []
    for name, entry in list(islice(datasets.items(), MOST)):
        keys = entry["keys"]
        missing = sum(is_gone(scheduler, key) for key in islice(keys, MOST_KEYS))
        found.append([str(name), len(keys), missing])
        await asyncio.sleep(0)
    return found


def is_gone(scheduler: Any, key: Any) -> bool:
    """Whether a key is neither in memory nor on its way there."""
    ts = scheduler.tasks.get(key)
    return ts is None or ts.state in ("released", "forgotten")


async def _prefixes(scheduler: Any) -> list[list[Any]]:
    found = []
    for i, tp in enumerate(list(islice(scheduler.task_prefixes.values(), MOST))):
        if i % YIELD == YIELD - 1:
            await asyncio.sleep(0)
        states, durations = tp.states, tp.all_durations
        found.append(
            [
                str(tp.name),
                states["memory"],
                sum(states.get(state, 0) for state in WAITING),
                states["processing"],
                states["erred"],
                tp.state_counts["memory"],
                durations.get("compute", 0.0),
                _held(tp),
                _inputs(tp),
            ]
        )
    return found


def _held(prefix: Any) -> int:
    """Bytes in memory; the total counts results that are gone as well."""
    there, gone = prefix.states["memory"], prefix.states["released"]
    held: int = prefix.nbytes_total * there // max(1, there + gone)
    return held


def _inputs(prefix: Any) -> int:
    """Bytes of what tasks that are still to run depend on, by groups of tasks.

    What is not computed yet counts like what is.
    """
    groups = islice(prefix.groups, MOST_GROUPS)
    coming = [g for g in groups if any(g.states[s] for s in COMING)]
    return sum(_expected(d) for d in {d for g in coming for d in g.dependencies})


def _expected(group: Any) -> int:
    known = group.states["memory"] + group.states["released"]
    expected: int = group.nbytes_total * sum(group.states.values()) // max(1, known)
    return expected
