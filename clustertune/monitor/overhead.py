"""Measure the overhead of a task on this cluster, in addition to its work.

Scheduler, transport and workers each take a part; clusters differ by a factor of ten.
Graphs of empty tasks are run in two sizes. The difference of their times is divided by
the number of additional tasks, so the constant time of any graph does not count.

Each task is bound to a worker, as tasks on partitions are. The scheduler would queue
unbound tasks until a thread is free, and each would take two to three times as long.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Sequence
from itertools import cycle
from statistics import median
from time import perf_counter
from typing import Any
from uuid import uuid4

from dask._task_spec import Task
from distributed import Client, wait

from clustertune.collections import graphs
from clustertune.core.model import Key, Snapshot
from clustertune.monitor import monitor

PREFIX = "clustertune-overhead"
TASKS = 40  # additional tasks of the large graph
MAX_SECONDS = 0.2  # after which no other pair of graphs is started
MAX_ROUNDS = 5
MIN_ROUNDS = 3  # rounds that must agree
TOLERANCE = 0.2  # of the median
PATIENCE = 5.0  # seconds to wait for a graph


async def per_task(client: Client, snapshot: Snapshot) -> float | None:
    """Return the seconds per task; None: unknown.

    The value is measured once, and again if other workers run.
    """
    cached = monitor.known(client)
    workers = frozenset(w.address for w in snapshot.workers if w.running)
    if cached.overhead is None or cached.overhead[1] != workers:
        seconds = await _measure(client, snapshot)
        cached.overhead = None if seconds is None else (seconds, workers)
    return None if cached.overhead is None else cached.overhead[0]


async def _measure(client: Client, snapshot: Snapshot) -> float | None:
    """Return the seconds per task; None: no worker runs, or some have work."""
    busy = any(w.processing for w in snapshot.workers)
    workers = [w.address for w in snapshot.workers if w.running]
    if busy or not workers:
        return None
    found: list[float] = []
    try:
        await _seconds(client, workers, 1)  # the first graph is slower, so not counted
        end = perf_counter() + MAX_SECONDS
        # at least one pair of graphs, even on a slow cluster
        while not found or (len(found) < MAX_ROUNDS and perf_counter() < end):
            small = await _seconds(client, workers, 1)
            large = await _seconds(client, workers, 1 + TASKS)
            found.append((large - small) / TASKS)
            if agree(found):
                break
    except asyncio.TimeoutError:  # other work has come meanwhile
        return None
    middle = median(found)
    return middle if middle > 0 else None


def agree(found: list[float]) -> bool:
    """Return whether more measurements would hardly change the median."""
    middle = median(found)
    deviation = max(abs(seconds - middle) for seconds in found)
    return len(found) >= MIN_ROUNDS and deviation <= TOLERANCE * middle


async def _seconds(client: Client, workers: Sequence[str], n_tasks: int) -> float:
    """Return the seconds that a graph takes; its tasks run on these workers in turn."""
    name = f"{PREFIX}-{uuid4().hex}"
    tasks: dict[Key, Task] = {
        (name, i): Task((name, i), operator.not_, i) for i in range(n_tasks)
    }
    graph = graphs.Graph(
        tasks=dict(tasks),
        where=dict(zip(tasks, cycle(workers))),
        partitions={PREFIX: list(tasks)},
    )
    start = perf_counter()
    futures = (await asyncio.to_thread(graphs.submit, client, graph)).values()
    try:
        with client.as_current():
            done: Any = wait(list(futures))
        await asyncio.wait_for(done, PATIENCE)
        return perf_counter() - start
    finally:
        for future in futures:
            future.release()
