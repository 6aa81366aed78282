"""What the scheduler says of clients, tasks and names when a diagnosis asks for it.

From its own counts: the time that it takes grows with workers, clients, names and task
prefixes, of which it reads a bounded number, and not with keys.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from time import time
from typing import Any

from distributed.core import Status

from clustertune.remote.keys import Run, unpack
from clustertune.remote.scheduler.bindings import unmet_summary
from clustertune.remote.scheduler.published import shared
from clustertune.remote.scheduler.workers import (
    COMING,
    WAITING,
    is_gone,
)
from clustertune.remote.worker.probe import installed

MOST = 5000  # clients, names and prefixes of which each is read
MOST_KEYS = 10_000  # of a published data set that are looked up
PREFIXES_PER_TURN = 500
MOST_GROUPS = 20  # of a prefix whose inputs are looked up
YIELD = 2000  # tasks between two yields to the event loop
MAX_PREFIXES = 5  # prefixes of a worker
CHUNKS_PER_TURN = 5000  # keys between two yields to the event loop


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
        "unmet": await unmet_summary(scheduler),
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


async def _published(scheduler: Any, datasets: Any) -> list[list[Any]]:
    """(name, keys, keys that are gone) of every published data set."""
    found = []
    for name, entry in list(islice(datasets.items(), MOST)):
        keys = entry["keys"]
        missing = sum(is_gone(scheduler, key) for key in islice(keys, MOST_KEYS))
        found.append([str(name), len(keys), missing])
        await asyncio.sleep(0)
    return found


async def _prefixes(scheduler: Any) -> list[list[Any]]:
    found = []
    for i, tp in enumerate(list(islice(scheduler.task_prefixes.values(), MOST))):
        if i % PREFIXES_PER_TURN == PREFIXES_PER_TURN - 1:
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


async def running(
    scheduler: Any, addresses: Sequence[str]
) -> list[tuple[str, list[tuple[str, int]]]]:
    """By worker the tasks that it has begun: prefixes and numbers.

    A worker tells which these are with its heartbeats. Before the next one all its
    tasks count, unless it is paused and begins none.
    """
    found, seen = [], 0
    for address in addresses:
        worker = scheduler.workers.get(address)
        if worker is None:
            continue
        counts = Counter[str]()
        begun = [ts for ts in list(worker.executing) if ts in worker.processing]
        if not begun and worker.status is not Status.paused:
            begun = list(worker.processing)
        for ts in begun:
            seen += 1
            if seen % YIELD == 0:
                await asyncio.sleep(0)
            counts[str(ts.prefix.name)] += 1
        found.append((address, counts.most_common(MAX_PREFIXES)))
    return found


async def chunk_types(
    dask_scheduler: Any, chunks: Mapping[str, Sequence[Run]]
) -> dict[str, list[str]]:
    """Names of the types that the chunks of each label have; unknown keys are skipped.

    Parameters
    ----------
    chunks
        Packed keys, by label.
    """
    found: dict[str, list[str]] = {}
    for label, packed in chunks.items():
        names: set[str] = set()
        for number, key in enumerate(unpack(packed), 1):
            task = dask_scheduler.tasks.get(key)
            if task is not None and task.type:
                names.add(task.type)
            if number % CHUNKS_PER_TURN == 0:
                await asyncio.sleep(0)
        found[label] = sorted(names)
    return found


async def burdens(scheduler: Any, addresses: Sequence[str]) -> dict[str, list[int]]:
    """By worker: keys, and those that no other running worker holds; actors.

    Of the second: keys, bytes, scattered.

    Grows with the keys on these workers, in short turns.
    """
    found, seen = {}, 0
    for address in addresses:
        worker = scheduler.workers.get(address)
        if worker is None:
            continue
        keys = unique = nbytes = scattered = 0
        for ts in list(worker.has_what):
            seen += 1
            if seen % YIELD == 0:
                await asyncio.sleep(0)
            keys += 1
            # a copy on a paused worker is at risk, as its nanny may kill that one
            others = (ws for ws in ts.who_has or () if ws is not worker)
            if not any(ws.status is Status.running for ws in others):
                unique += 1
                nbytes += ts.nbytes
                scattered += ts.run_spec is None
        found[address] = [keys, unique, nbytes, scattered, len(worker.actors)]
    return found
