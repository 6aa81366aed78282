"""Read partitions on their workers: numbers of rows, properties of values, digests.

Metadata of collections may be wrong, so every look counts the rows of partitions in
memory. One call per worker counts all its partitions. For 2,000 partitions that took
0.22 s, and one task per partition took 0.82 s.

Properties of values need one computation that reads all data. So it runs only for
``deep=True``, and if the workload depends on the values. Each partition is read on its
worker, or where Dask loads it, and returns a few numbers.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from time import monotonic
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import uuid4

import dask.array as da
import dask.dataframe as dd
import numpy as np
from dask._task_spec import List, TaskRef
from distributed import Client, Future

from clustertune.collections import graphs
from clustertune.collections.inputs import Inputs
from clustertune.collections.partitions import optimized_apart
from clustertune.core.model import CollectionInfo, Contents, Goal, Key, Layout, View
from clustertune.core.wording import message, printable, variable
from clustertune.errors import IncompleteError, NoWorkersError
from clustertune.remote import ship
from clustertune.remote.worker import content, probe

Look = Callable[[Any], dict[str, Any]]
"""Reads a partition; a function of :mod:`clustertune.remote.worker.content`."""

Home = tuple[int, int]
"""The number of a worker, or -1, and that of one of its bundles of partitions."""

DEEP: Mapping[str, Look] = {
    "X": content.features,
    "y": content.labels,
    "qid": content.groups,
}
PATIENCE = 10.0  # seconds to wait for a worker that counts
CHECK = 1.0  # seconds between two checks whether any worker runs tasks that count
POLL = 0.05  # seconds between two looks at progress
# Dask loads all spilled inputs of a task at once, so a task reads few bytes.
BUNDLE = 2**24  # bytes of partitions that one task reads, unless one has more
ROWS = 64  # row positions of each class, one for each worker
SPARE = 8  # other workers that may read a partition


# --- rows and digests -----------------------------------------------------------------


async def count_rows(
    client: Client,
    collections: Sequence[CollectionInfo],
    addresses: Sequence[tuple[str, bool]],
    *,
    task_seconds: float,
) -> tuple[CollectionInfo, ...]:
    """Count the rows of partitions in memory.

    Every snapshot counts again, since a key may get other data: a file may change, and
    Dask may recompute a partition.

    ``addresses`` has every worker with whether code may be sent to it. Tasks count
    spilled partitions, which they read into memory, for at most ``task_seconds``.
    Otherwise the rows of their collections are unknown.
    """
    wanted: dict[tuple[str, bool], list[Key]] = {}  # by the first holder of each key
    for m in collections:
        if m.holders is not None:
            partition, index = np.unique(m.holders[0], return_index=True)
            holder = m.holders[1][index].tolist()
            for p, h in zip(partition.tolist(), holder, strict=True):
                wanted.setdefault(addresses[h], []).append(m.keys[p])
    counter = ship.function(probe.row_counts)
    counts = await asyncio.gather(
        *(
            _rows_on_worker(client, counter, *where, partitions, task_seconds)
            for where, partitions in wanted.items()
        )
    )
    rows = {key: n for answer in counts for key, n in answer.items()}
    result = []
    for m in collections:
        # all column blocks of a partition have the same rows
        found = [rows.get(key, -1) for key in m.keys[:: m.column_blocks]]
        is_known = min(found, default=-1) >= 0
        result.append(replace(m, rows=np.array(found, np.int64) if is_known else None))
    return tuple(result)


async def digests(
    client: Client, partitions: Sequence[Key], approved: Collection[str]
) -> dict[Key, str]:
    """Return a digest of each partition on workers that may get code, by key.

    A partition that was lost and computed again has the same digest, unless its source
    gives other values each time.
    """
    return await _on_holders(client, probe.digests, partitions, approved)


async def row_digests(
    client: Client, rows: Mapping[Key, list[int]], approved: Collection[str]
) -> dict[Key, list[str]]:
    """Return digests of some rows of each partition, as far as :func:`digests`.

    ``rows`` has their numbers within the partition. The digest of a row does not depend
    on the partition that has it.
    """
    return await _on_holders(client, probe.row_digests, list(rows), approved, rows=rows)


async def _on_holders(
    client: Client,
    function: Callable[..., list[Any]],
    partitions: Sequence[Key],
    approved: Collection[str],
    **arguments: Mapping[Key, Any],
) -> dict[Key, Any]:
    """Call a function where partitions are; return its answers that are not empty.

    It gets ``keys``, and of each argument the values of these keys.
    """
    scheduler: Any = client.scheduler
    holders = await scheduler.who_has(keys=list(partitions))
    wanted: dict[str, list[Key]] = {}
    for key, addresses in holders.items():
        if there := [a for a in addresses if a in approved]:
            wanted.setdefault(there[0], []).append(key)
    shipped = ship.function(function)

    async def call(address: str, own: list[Key]) -> Mapping[str, Any]:
        values: Any = {n: [x[key] for key in own] for n, x in arguments.items()}
        return await ship.on_workers(
            client, shipped, [address], timeout=PATIENCE, keys=own, **values
        )

    answers = await asyncio.gather(*(call(*there) for there in wanted.items()))
    found: dict[Key, Any] = {}
    for (address, own), answer in zip(wanted.items(), answers, strict=True):
        digests = answer.get(address)
        if isinstance(digests, list):
            found |= {k: d for k, d in zip(own, digests, strict=True) if d}
    return found


async def _rows_on_worker(
    client: Client,
    counter: Any,
    address: str,
    approved: bool,
    wanted: list[Key],
    task_seconds: float,
) -> dict[Key, int]:
    """Count the rows of partitions on one worker.

    Tasks count spilled partitions, since Dask reads them into memory. They also count
    for workers that did not answer: a task with NumPy's function ships no code.
    """
    found: dict[Key, int] = {}
    if approved:
        answers = await ship.on_workers(
            client, counter, [address], timeout=PATIENCE, keys=wanted
        )
        if isinstance(counts := answers.get(address), list):
            found = {k: n for k, n in zip(wanted, counts, strict=True) if n >= 0}
    rest = [k for k in wanted if k not in found]
    if task_seconds and rest:
        found |= await _rows_by_task(client, address, rest, task_seconds)
    return found


async def _rows_by_task(
    client: Client, address: str, wanted: Sequence[Key], seconds: float
) -> dict[Key, int]:
    loaded = [key for key in wanted if key in client.futures]
    futures: list[Any] = [Future(key, client=client) for key in loaded]
    bound = {"workers": [address], "allow_other_workers": True}
    shapes = [client.submit(np.shape, f, pure=False, **bound) for f in futures]
    waiting = [asyncio.ensure_future(_shape(future)) for future in shapes]
    pending: Any = waiting
    end = monotonic() + seconds
    try:
        while pending and monotonic() < end:
            _, pending = await asyncio.wait(waiting, timeout=CHECK)
            if pending and not await _any_runs(client):
                break
        found = [task.result() if task.done() else () for task in waiting]
    finally:
        for task in waiting:
            task.cancel()
        for future in (*futures, *shapes):
            future.release()  # a traceback would keep them
    return {key: shape[0] for key, shape in zip(loaded, found, strict=True) if shape}


async def _shape(future: Any) -> tuple[int, ...]:
    """Return the shape of a partition; () if its task failed or was cancelled."""
    answers = await asyncio.gather(future, return_exceptions=True)
    return answers[0] if isinstance(answers[0], tuple) else ()


async def _any_runs(client: Client) -> bool:
    """Return whether any worker starts tasks; paused workers do not."""
    scheduler: Any = client.scheduler
    identity = await scheduler.identity(n_workers=-1)
    return any(w["status"] == "running" for w in identity["workers"].values())


# --- values ---------------------------------------------------------------------------


def of_everything(given: Inputs) -> dict[str, Look]:
    """Return how a diagnosis reads the partitions, by label."""
    roles = {x.label: variable(x.label) for x in given}
    wanted = {label: DEEP[role] for label, role in roles.items() if role in DEEP}
    return with_metadata(given, wanted, [x.label for x in given])


def with_metadata(
    given: Inputs, wanted: Mapping[str, Look], labels: Collection[str]
) -> dict[str, Look]:
    """Add to looks what shows that partitions differ from the metadata.

    Columns of DataFrames are compared with it, and indexes of the frames of a group
    with each other.
    """
    found = {}
    for group in given.groups:
        frames = [x for x in group.given if not isinstance(x.collection, da.Array)]
        for x in group.given:
            if x.label not in labels:
                continue
            looks: list[Look] = [wanted[x.label]] if x.label in wanted else []
            if isinstance(x.collection, dd.DataFrame):
                types = x.collection.dtypes
                names, kinds = list(types.index), list(map(content.kind, types))
                looks.append(partial(content.columns, names=names, kinds=kinds))
            if x in frames and len(frames) > 1:
                looks.append(content.index)
            if len(looks) == 1:
                found[x.label] = looks[0]
            elif looks:
                found[x.label] = partial(content.all_of, looks=looks)
    return found


def of_need(
    info: CollectionInfo, goal: Goal, n_workers: int, *, training: bool
) -> Look | None:
    """Return how to read a collection for what the goal needs; None: not at all."""
    profile, role = goal.workload, variable(info.label)
    if role == "qid" and goal.workload.whole_groups:
        return content.runs
    if role == "y" and training and profile.needs_all_classes is not False:
        return partial(content.classes, most=max(ROWS, n_workers))
    if role == "y" and training and profile.random_order:
        return content.moments
    if role == "y":
        return content.distinct if profile.numbered_classes else content.finite
    if role == "X" and profile.categories and "category" in info.types:
        return content.types
    return None


def _bundled(
    given: Inputs,
    futures: Mapping[str, Sequence[Any]],
    looks: Mapping[str, Look],
    homes: Mapping[str, Sequence[Home]],
) -> tuple[graphs.Graph, dict[str, dict[Key, list[int]]]]:
    """Return tasks that read all partitions of ``looks``, and the partitions of each.

    One task reads the partitions with the same home, on their worker: separate tasks
    take longer than the reading. ``futures`` are those of loaded data, by label.
    """
    graph, partitions = graphs.Graph(), dict[str, dict[Key, list[int]]]()
    for x in given:
        if x.label not in looks:
            continue
        loaded = futures.get(x.label)
        if loaded is not None:
            keys = [f.key for f in loaded]
        else:  # the graph loads the partitions
            tasks, (keys,) = optimized_apart([x.collection])
            graph.tasks |= tasks
        look = ship.Tasks(partial(content.each, looks[x.label]))
        name = f"contents-{uuid4().hex}"
        bundles: dict[Home, list[int]] = {}
        apart = [(-1, i) for i in range(len(keys))]
        for partition, home in enumerate(homes.get(x.label, apart)):
            bundles.setdefault(home, []).append(partition)
        partitions[x.label] = {(name, i): b for i, b in enumerate(bundles.values())}
        graph.partitions[x.label] = list(partitions[x.label])
        for task, bundle in partitions[x.label].items():
            graph.tasks[task] = look(task, List(*(TaskRef(keys[i]) for i in bundle)))
    return graph, partitions


def _bind(
    graph: graphs.Graph,
    partitions: Mapping[str, Mapping[Key, Sequence[int]]],
    homes: Mapping[str, Sequence[Home]],
    workers: Sequence[str],
    known: Sequence[str],
) -> None:
    """Bind each task to a few workers that may get code, its own among them.

    Dask prefers the worker with the data. If that is paused or lost, another one reads.
    """
    turns, may = cycle(known), set(known)
    for label, bundles in partitions.items():
        for task, (first, *_) in bundles.items():
            worker = homes[label][first][0] if label in homes else -1
            own = may.intersection([workers[worker]] if worker >= 0 else ())
            graph.where[task] = [*own.union(islice(turns, SPARE))]


async def read(
    client: Client,
    given: Inputs,
    futures: Mapping[str, Sequence[Any]],
    looks: Mapping[str, Look],
    workers: Sequence[str],
    *,
    approved: Collection[str],
    homes: Mapping[str, Sequence[Home]] = MappingProxyType({}),
    failures: dict[str, Mapping[int, str]] | None = None,
) -> dict[str, Contents]:
    """Read the partitions; return the results by label, in order.

    ``futures`` of loaded data, ``looks`` and ``homes`` are by label. One task reads all
    partitions with the same home; without homes, each has its own task. Code may be
    sent to ``approved`` workers. ``failures`` gets, for each label that cannot be read,
    the problem of each partition; None: any error is raised. Raises ``IncompleteError``
    if a partition cannot be loaded or read, ``NoWorkersError`` if no worker may get
    code.
    """
    if not looks:
        return {}
    graph, partitions = await asyncio.to_thread(_bundled, given, futures, looks, homes)
    known = [address for address in workers if address in approved]
    if not known:
        raise NoWorkersError(
            "the versions of no worker are known, so no code can be sent that reads "
            f"the values of {', '.join(looks)}"
        )
    if len(known) < len(workers):
        _bind(graph, partitions, homes, workers, known)
    reading: Mapping[Any, Future[Any]] = await asyncio.to_thread(
        graphs.submit, client, graph
    )
    try:
        while pending := _pending(reading.values()):
            await graphs.wait_for_last(client, pending, POLL)
        answers = await client.gather(reading, errors="skip", asynchronous=True)
        for label, bundles in partitions.items():
            failed = {
                bundle[0]: await reading[key].exception()
                for key, bundle in bundles.items()
                if answers.get(key) is None
            }
            if failed:
                _note_failures(label, failed, failures)
    finally:
        for future in reading.values():
            future.release()  # a traceback would keep them
    found = {}
    for label, bundles in partitions.items():
        if failures and label in failures:
            continue
        results = {
            partition: answer
            for key, bundle in bundles.items()
            for partition, answer in zip(bundle, answers[key], strict=True)
        }
        in_order = tuple(answer for _, answer in sorted(results.items()))
        found[label] = Contents(partitions=in_order)
    return found


def _note_failures(
    label: str, failed: Mapping[int, Any], failures: dict[str, Mapping[int, str]] | None
) -> None:
    """Record why partitions could not be read; or raise."""
    if failures is None:
        error = next(iter(failed.values()))
        raise IncompleteError(
            f"the data could not be read: {_problem(error)}"
        ) from error
    failures[label] = {number: _problem(error) for number, error in failed.items()}


def _problem(error: Any) -> str:
    if error is None:
        return "it was lost with a worker, or cancelled"
    # Dask's errors about types have tables
    words = re.sub(r"\+[-+]+\+", "", f"{type(error).__name__}: {message(error)}")
    return printable(" ".join(words.split()), longest=500)


def _pending(futures: Iterable[Any]) -> Sequence[Any]:
    """Return the futures that have no result yet."""
    return [f for f in futures if f.status in ("pending", "lost")]


def with_contents(
    layout: Layout,
    found: Mapping[str, Contents],
    failures: Mapping[str, Mapping[int, str]] = MappingProxyType({}),
) -> Layout:
    """Return the layout with the contents of its collections, or why they lack."""
    infos = tuple(
        replace(
            m,
            contents=found.get(m.label, m.contents),
            unreadable=failures.get(m.label, {}),
        )
        for m in layout.collections
    )
    return replace(layout, collections=infos)


def _homes(info: CollectionInfo, threads: Sequence[int]) -> Sequence[Home]:
    """Return the home of each key, the same for keys that one task reads.

    ``threads`` are the threads of each worker. Keys without a holder share a home.
    """
    worker = np.full(len(info.keys), -1, dtype=np.int64)
    if info.holders is not None:
        worker[info.holders[0]] = info.holders[1]
    nbytes = np.zeros(len(worker), np.int64) if info.nbytes is None else info.nbytes
    order = np.argsort(worker, kind="stable")
    first = np.searchsorted(worker[order], worker[order])  # of the same worker
    turn, before = np.empty_like(worker), np.empty_like(worker)
    turn[order] = np.arange(len(worker)) - first
    ends = np.append(0, np.cumsum(nbytes[order]))
    before[order] = ends[:-1] - ends[first]
    n_threads = np.array([*threads, 1])[worker]  # no holder: index -1, the last entry
    bundle = before // (BUNDLE * n_threads) * n_threads + turn % n_threads
    return list(zip(worker.tolist(), bundle.tolist(), strict=True))


class _Read(NamedTuple):
    """The contents of a collection, and the partitions that they were read from."""

    keys: tuple[Key, ...]
    n_workers: int  # for which positions of classes are known
    contents: Contents


class Values:
    """The contents of the given data.

    Partitions are read once, as long as their keys stay the same.
    """

    def __init__(self) -> None:
        self._read: dict[str, _Read] = {}  # by label

    async def look(
        self,
        client: Client,
        given: Inputs,
        futures: Mapping[str, Sequence[Any]],
        view: View,
        *,
        approved: Collection[str],
    ) -> tuple[Layout, ...]:
        """Read the values that the workload depends on; return layouts with them."""
        workers = [w.address for w in view.now.workers]
        infos = [
            (m, layout is view.layouts[0])
            for layout in view.layouts
            for m in layout.collections
            if m.loaded
        ]
        wanted: dict[str, Look] = {}
        unread = []
        for m, training in infos:
            look = of_need(m, view.goal, len(workers), training=training)
            before = self._read.get(m.label)
            same = before if before and before.keys == m.keys else None
            if same and len(workers) <= max(same.n_workers, ROWS):
                continue
            unread.append(m.label)
            if look is not None:
                wanted[m.label] = look
        looks = with_metadata(given, wanted, unread)
        threads = [w.nthreads for w in view.now.workers]
        homes = {m.label: _homes(m, threads) for m, _ in infos if m.label in looks}
        found = await read(
            client, given, futures, looks, workers, approved=approved, homes=homes
        )
        keys = {m.label: m.keys for m, _ in infos}
        self._read |= {k: _Read(keys[k], len(workers), c) for k, c in found.items()}
        known = {k: x.contents for k, x in self._read.items() if keys.get(k) == x.keys}
        return tuple(with_contents(x, known) for x in view.layouts)
