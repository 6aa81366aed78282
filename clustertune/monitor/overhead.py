"""How long this cluster takes for a task beside its work, measured on it.

Scheduler, transport and workers each take a part, and it differs tenfold between
clusters: tasks that do nothing are sent, and timed until the last is done. Graphs of
two sizes are compared, since what any graph takes is no cost of a task.

Each is bound to a worker, as a task on a piece runs where that is: tasks that may run
anywhere the scheduler would hold back until a thread is free, and each would cost two
to three times as much.
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

PREFIX = "clustertune-overhead"
TASKS = 40  # more in the large graph than in the small one
MOST = 0.2  # seconds after which no other pair of graphs is begun
ROUNDS = 5
FEWEST = 3  # rounds that have to agree for the others to be spared,
ALIKE = 0.2  # of the median
PATIENCE = 5.0  # seconds in which a graph is done, or nothing is learned


async def measure(client: Client, snapshot: Snapshot) -> float | None:
    """Seconds for a task; None: not now, since no worker runs or some have work."""
    # what workers say that they run is as old as their last heartbeat
    busy = any(w.processing for w in snapshot.workers)
    workers = [w.address for w in snapshot.workers if w.running]
    if busy or not workers:
        return None
    found: list[float] = []
    try:
        # the first one is slower, and is not counted
        await _seconds(client, workers, 1)
        end = perf_counter() + MOST
        # one pair of graphs at least, however slow the cluster is at this moment
        while not found or (len(found) < ROUNDS and perf_counter() < end):
            small = await _seconds(client, workers, 1)
            large = await _seconds(client, workers, 1 + TASKS)
            found.append((large - small) / TASKS)
            if agree(found):
                break
    except asyncio.TimeoutError:  # somebody else's work has come meanwhile
        return None
    middle = median(found)
    return middle if middle > 0 else None


def agree(found: list[float]) -> bool:
    """Whether more measurements would hardly change the median."""
    middle = median(found)
    off = max(abs(seconds - middle) for seconds in found)
    return len(found) >= FEWEST and off <= ALIKE * middle


async def _seconds(client: Client, workers: Sequence[str], n_tasks: int) -> float:
    """Until so many tasks are done, on these workers in turn."""
    name = f"{PREFIX}-{uuid4().hex}"
    tasks: dict[Key, Task] = {
        (name, i): Task((name, i), operator.not_, i) for i in range(n_tasks)
    }
    graph = graphs.Graph(
        tasks=dict(tasks),
        where=dict(zip(tasks, cycle(workers))),
        pieces={PREFIX: list(tasks)},
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
