"""Reports about keys, tasks, clients and workers, from the scheduler's state.

Reports about given keys or workers take time that grows with those keys or workers. The
survey for a diagnosis reads running tasks and the scheduler's own counts: its time
grows with workers, not with keys.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterable, Mapping, Sequence
from time import time
from typing import Any

from distributed.core import Status

from clustertune.remote.keys import KeyRange, in_turns, unpack
from clustertune.remote.scheduler.bindings import unmet_of_keys, unmet_summary
from clustertune.remote.scheduler.fits import is_training
from clustertune.remote.scheduler.state import (
    is_computable,
    is_gone,
    memory_of,
    waits_for_gone,
)
from clustertune.remote.worker.probe import installed

MAX_RUNNING = 50  # tasks


# --- given keys -----------------------------------------------------------------------


async def look(
    scheduler: Any, collections: Sequence[Sequence[KeyRange]]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Memory of all workers; holders and bytes of packed keys.

    Numbers are bytes of int64 arrays. ``time`` is by the scheduler's clock. Keys may
    vanish between two yields; a key that is not in memory has no holder.
    """
    workers = dict(scheduler.workers)
    index = {ws: i for i, ws in enumerate(workers.values())}
    numbers = array("q")
    for ws in workers.values():
        numbers.extend((*memory_of(ws), len(ws.processing)))
    found = [await _holders(scheduler, packed, index) for packed in collections]
    memory = {"time": time(), "workers": list(workers), "memory": numbers.tobytes()}
    return memory, found


async def _holders(
    scheduler: Any, packed: Sequence[KeyRange], index: dict[Any, int]
) -> dict[str, Any]:
    nbytes, partitions, holders = array("q"), array("q"), array("q")
    scattered = 0
    async for position, key in in_turns(enumerate(unpack(packed))):
        ts = scheduler.tasks.get(key)
        here = () if ts is None or ts.state != "memory" else ts.who_has
        nbytes.append(ts.nbytes if here else 0)
        scattered += bool(here) and not is_computable(ts)
        for ws in here:
            if ws in index:
                partitions.append(position)
                holders.append(index[ws])
    return {
        "nbytes": nbytes.tobytes(),
        "partitions": partitions.tobytes(),
        "holders": holders.tobytes(),
        "scattered": scattered,
    }


async def look_at_keys(
    scheduler: Any, owner: str, keys: Sequence[KeyRange]
) -> dict[str, Any]:
    """Return packed keys that are gone, and which clients and restrictions they have.

    ``gone`` are positions of keys, as bytes of an int64 array, that will not be in
    memory: nothing computes a released key unless a graph names it again. ``others`` is
    how many keys other clients want; a published data set counts as a client. ``unmet``
    are the restrictions of tasks that no worker meets, and task counts. ``heartbeat``
    is the time of the last message of the owner's heartbeat, and ``reading`` whether
    graphs arrived that are not read yet.
    """
    gone, others = array("q"), 0
    client = scheduler.clients.get(owner)
    async for position, key in in_turns(enumerate(unpack(keys))):
        ts = scheduler.tasks.get(key)
        wanting = () if ts is None else ts.who_wants or ()
        if is_gone(scheduler, key):
            gone.append(position)
        others += any(c is not client for c in wanting)
    return {
        "gone": gone.tobytes(),
        "others": others,
        "unmet": await unmet_of_keys(scheduler, unpack(keys)),
        "heartbeat": 0.0 if client is None else client.last_seen,
        "reading": scheduler._active_graph_updates > 0,
    }


async def chunk_types(
    dask_scheduler: Any, chunks: Mapping[str, Sequence[KeyRange]]
) -> dict[str, list[str]]:
    """Types of packed chunks, by label, as workers have reported them.

    Unknown keys are skipped.
    """
    found: dict[str, list[str]] = {}
    for label, packed in chunks.items():
        names: set[str] = set()
        async for key in in_turns(unpack(packed)):
            task = dask_scheduler.tasks.get(key)
            if task is not None and task.type:
                names.add(task.type)
        found[label] = sorted(names)
    return found


# --- given workers --------------------------------------------------------------------


async def held_data(scheduler: Any, workers: Sequence[str]) -> dict[str, list[int]]:
    """By worker: keys; unique keys, their bytes, scattered ones; actors; other bytes.

    A key is unique if no other running worker holds it.
    """
    found: dict[str, list[int]] = {}
    tasks = (
        (worker, ts)
        for address in workers
        if (worker := scheduler.workers.get(address)) is not None
        for ts in (None, *worker.has_what)
    )
    async for worker, ts in in_turns(tasks):
        row = found.setdefault(worker.address, [0, 0, 0, 0, len(worker.actors), 0])
        if ts is None:
            continue
        row[0] += 1
        # a replica on a paused worker is at risk, as its nanny may kill that worker
        others = (ws for ws in ts.who_has or () if ws is not worker)
        if not any(ws.status is Status.running for ws in others):
            row[1] += 1
            row[2] += ts.nbytes
            row[3] += not is_computable(ts)
        else:
            row[5] += ts.nbytes
    return found


# --- for a diagnosis ------------------------------------------------------------------


async def survey(scheduler: Any, packages: Iterable[str]) -> dict[str, Any]:
    """Running tasks, and restrictions that no worker meets; plain types."""
    return {
        "worker_ttl": scheduler.worker_ttl,
        "loop_delay": scheduler._tick_interval_observed,
        "unmet": await unmet_summary(scheduler),
        "running": await _running(scheduler),
        "packages": installed(packages),
    }


async def _running(scheduler: Any) -> list[list[Any]]:
    """The longest running tasks: worker, prefix, seconds, and those of its kind.

    The last values are whether it trains in a fit, and whether that fit has lost a
    member.
    """
    found = [
        (seconds, ts, ws.address)
        for ws in scheduler.workers.values()
        for ts, seconds in ws.executing.items()
        if ts in ws.processing
    ]
    found = heapq.nlargest(MAX_RUNNING, found, key=lambda row: row[0])
    training = [ts for _, ts, _ in found if is_training(ts)]
    broken = set()  # clients and prefixes of their fits
    for client in {client for ts in training for client in ts.who_wants or ()}:
        async for ts in in_turns(list(client.wants_what)):
            if is_training(ts) and waits_for_gone(scheduler, ts):
                broken.add((client, ts.prefix))
    return [
        [
            address,
            str(ts.prefix.name),
            seconds,
            _usual(ts.prefix),
            is_training(ts),
            any((client, ts.prefix) in broken for client in ts.who_wants or ()),
        ]
        for seconds, ts, address in found
    ]


def _usual(prefix: Any) -> float | None:
    """Mean seconds of the tasks of a prefix; None: no task has ended."""
    ended: int = prefix.state_counts["memory"]
    seconds: float = prefix.all_durations.get("compute", 0.0)
    return seconds / ended if ended else None
