"""Read partitions on their workers: numbers of rows, properties of values, digests.

Metadata of collections may be wrong, so every look counts the rows of partitions in
memory. One call per worker counts all its partitions. For 2,000 partitions that took
0.22 s, and one task per partition took 0.82 s.

Properties of values need all data, so they are read only for ``deep=True``, and if the
workload depends on the values. The call that counts rows also reads partitions in
memory, for a second. Tasks read the rest, each partition where it is or where Dask
loads it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from operator import itemgetter
from time import monotonic
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import uuid4

import dask.array as da
import dask.dataframe as dd
import numpy as np
from dask._task_spec import TaskRef
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

Partition = tuple[str, int]
"""The label of a collection, and the number of a partition."""

DEEP: Mapping[str, Look] = {
    "X": content.features,
    "y": content.labels,
    "qid": content.runs,
}
PATIENCE = 10.0  # seconds to wait for a worker that counts
CHECK = 1.0  # seconds between two checks whether any worker runs tasks that count
POLL = 0.05  # seconds between two looks at progress
ROWS = 64  # row positions of each class, one for each worker
SPARE = 8  # other workers that may read a partition


# --- rows and digests -----------------------------------------------------------------


async def in_memory(
    client: Client,
    collections: Sequence[CollectionInfo],
    workers: Sequence[str],
    *,
    approved: Collection[str],
    looks: Mapping[str, Look] = MappingProxyType({}),
    task_seconds: float,
) -> tuple[tuple[CollectionInfo, ...], dict[Partition, Any]]:
    """Count the rows of partitions in memory, and read the values of some.

    Every snapshot counts again, since a key may get other data: a file may change, and
    Dask may recompute a partition.

    ``workers`` are those of the holders; code may be sent to ``approved`` ones. Tasks
    count spilled partitions, which they read into memory, for at most ``task_seconds``.
    Otherwise the rows of their collections are unknown. ``looks`` are by label; returns
    also their answers, as far as partitions are in memory.
    """
    wanted: dict[str, dict[Partition, Key]] = {}  # by one holder of each partition
    for partition, (address, key) in _homes(collections, workers, approved).items():
        wanted.setdefault(address, {})[partition] = key
    code = content.in_memory
    shipped = ship.function(partial(code, looks=dict(looks)) if looks else code)
    answers = await asyncio.gather(
        *(
            _on_worker(client, shipped if a in approved else None, a, own, task_seconds)
            for a, own in wanted.items()
        )
    )
    found = {partition: x for own in answers for partition, x in own.items()}
    result = []
    for m in collections:
        # all column blocks of a partition have the same rows
        numbers = range(0, len(m.keys), m.column_blocks)
        rows = [found[m.label, i][0] for i in numbers if (m.label, i) in found]
        if m.holders is not None:
            known = len(rows) == len(numbers) > 0
            m = replace(m, rows=np.array(rows, np.int64) if known else None)  # noqa: PLW2901
        result.append(m)
    return tuple(result), {p: x for p, (_, x) in found.items() if x is not None}


def _homes(
    collections: Iterable[CollectionInfo],
    workers: Sequence[str],
    approved: Collection[str],
) -> dict[Partition, tuple[str, Key]]:
    """Return a holder of each partition, if possible one that may get code; its key."""
    found: dict[Partition, tuple[str, Key]] = {}
    for m in collections:
        partitions, holders = m.holders or (np.array([], int), np.array([], int))
        for number, holder in zip(partitions.tolist(), holders.tolist(), strict=True):
            home = workers[holder], m.keys[number]
            if found.setdefault((m.label, number), home)[0] not in approved:
                found[m.label, number] = home
    return found


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


async def _on_worker(
    client: Client,
    code: Any,
    address: str,
    wanted: Mapping[Partition, Key],
    task_seconds: float,
) -> dict[Partition, Sequence[Any]]:
    """Return rows and values of partitions on one worker; values may be None.

    Tasks count spilled partitions, since Dask reads them into memory. They also count
    for workers that did not answer: a task with NumPy's function ships no code.
    """
    found: dict[Partition, Sequence[Any]] = {}
    if code is not None:
        labels = [label for label, _ in wanted]
        answers = await ship.on_workers(
            client,
            code,
            [address],
            timeout=PATIENCE,
            keys=list(wanted.values()),
            labels=labels,
        )
        if isinstance(answer := answers.get(address), list):
            both = zip(wanted, answer, strict=True)
            found = {partition: x for partition, x in both if x[0] >= 0}
    rest = {key: p for p, key in wanted.items() if p not in found}
    if task_seconds and rest:
        rows = await _rows_by_task(client, address, list(rest), task_seconds)
        found |= {p: (rows[key], None) for p, key in wanted.items() if key in rows}
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


def of_everything(given: Inputs, *, whole_groups: bool) -> dict[str, Look]:
    """Return how a diagnosis reads the partitions, by label.

    Groups of ``qid`` are sent only if they have to be whole: there may be as many as
    rows.
    """
    deep = DEEP if whole_groups else {**DEEP, "qid": content.without_group}
    roles = {x.label: variable(x.label) for x in given}
    wanted = {label: deep[role] for label, role in roles.items() if role in deep}
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
    if role == "qid" and profile.groups:
        return content.runs if profile.whole_groups else content.without_group
    if role == "y" and training and profile.needs_all_classes is not False:
        return partial(content.classes, most=max(ROWS, n_workers))
    if role == "y" and training and profile.random_order:
        return content.moments
    if role == "y":
        return content.distinct if profile.numbered_classes else content.finite
    if role == "X" and profile.categories and "category" in info.types:
        return content.types
    return None


async def read(
    client: Client,
    given: Inputs,
    futures: Mapping[str, Sequence[Any]],
    looks: Mapping[str, Look],
    view: View,
    *,
    approved: Collection[str],
    answers: Mapping[Partition, Any] = MappingProxyType({}),
    failures: dict[str, Mapping[int, str]] | None = None,
) -> dict[str, Contents]:
    """Read the partitions; return the results by label, in order.

    ``futures`` of loaded data and ``looks`` are by label. Tasks read the partitions
    that are not in ``answers``, on ``approved`` workers, which may get code.
    ``failures`` gets, for each label that cannot be read, the problem of each
    partition; None: any error is raised. Raises ``IncompleteError`` if a partition
    cannot be loaded or read, ``NoWorkersError`` if no worker may get code.
    """
    if not looks:
        return {}
    workers = [w.address for w in view.now.workers]
    known = [address for address in workers if address in approved]
    if not known:
        raise NoWorkersError(
            "the versions of no worker are known, so no code can be sent that reads "
            f"the values of {', '.join(looks)}"
        )
    graph, tasks = await asyncio.to_thread(_tasks, given, futures, looks, answers)
    if len(known) < len(workers):
        # Dask prefers the worker with the data; others read if that is paused or lost
        infos = [m for x in view.layouts for m in x.collections]
        homes, turns = _homes(infos, workers, approved), cycle(known)
        for key, partition in tasks.items():
            own = {homes[partition][0]} if partition in homes else set()
            graph.where[key] = [*own.intersection(known).union(islice(turns, SPARE))]
    read, errors = await _by_task(client, graph, tasks)
    for label in {label for label, _ in errors}:
        failed = {i: error for (of, i), error in errors.items() if of == label}
        _note_failures(label, failed, failures)
    found: dict[str, list[Any]] = {x: [] for x in looks if x not in (failures or ())}
    for (label, _), answer in sorted({**answers, **read}.items(), key=itemgetter(0)):
        if label in found:
            found[label].append(answer)
    return {label: Contents(partitions=tuple(x)) for label, x in found.items()}


def _tasks(
    given: Inputs,
    futures: Mapping[str, Sequence[Any]],
    looks: Mapping[str, Look],
    answers: Collection[Partition],
) -> tuple[graphs.Graph, dict[Key, Partition]]:
    """Return one task for each partition that is not in ``answers``.

    Dask loads all spilled inputs of a task at once, so a task reads one partition.
    ``futures`` are those of loaded data, by label.
    """
    graph, tasks = graphs.Graph(), dict[Key, Partition]()
    for x in given:
        if x.label not in looks:
            continue
        loaded = futures.get(x.label)
        if loaded is not None:
            keys = [f.key for f in loaded]
        else:  # the graph loads the partitions
            loading, (keys,) = optimized_apart([x.collection])
            graph.tasks |= loading
        look, name = ship.Tasks(looks[x.label]), f"contents-{uuid4().hex}"
        for i, key in enumerate(keys):
            if (x.label, i) not in answers:
                tasks[name, i] = x.label, i
                graph.tasks[name, i] = look((name, i), TaskRef(key))
                graph.partitions.setdefault(x.label, []).append((name, i))
    return graph, tasks


async def _by_task(
    client: Client, graph: graphs.Graph, tasks: Mapping[Key, Partition]
) -> tuple[dict[Partition, Any], dict[Partition, Any]]:
    """Return the answers of tasks, and the errors of others."""
    if not tasks:
        return {}, {}
    reading: Mapping[Any, Future[Any]] = await asyncio.to_thread(
        graphs.submit, client, graph
    )
    try:
        while pending := _pending(reading.values()):
            await graphs.wait_for_last(client, pending, POLL)
        results = await client.gather(reading, errors="skip", asynchronous=True)
        answers = {tasks[key]: x for key, x in results.items() if x is not None}
        failed = [key for key in tasks if tasks[key] not in answers]
        return answers, {tasks[key]: await reading[key].exception() for key in failed}
    finally:
        for future in reading.values():
            future.release()  # a traceback would keep them


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

    def unread(
        self, given: Inputs, layouts: Sequence[Layout], goal: Goal, n_workers: int
    ) -> dict[str, Look]:
        """Return how to read the values that the workload needs, by label."""
        wanted: dict[str, Look] = {}
        unread = []
        for layout in layouts:
            for m in (m for m in layout.collections if m.loaded):
                training = layout is layouts[0]
                look = of_need(m, goal, n_workers, training=training)
                before = self._read.get(m.label)
                same = before if before and before.keys == m.keys else None
                if same and n_workers <= max(same.n_workers, ROWS):
                    continue
                unread.append(m.label)
                if look is not None:
                    wanted[m.label] = look
        return with_metadata(given, wanted, unread)

    def complete(self, view: View, found: Mapping[str, Contents]) -> View:
        """Return the view with these contents, and with earlier ones."""
        infos = [m for layout in view.layouts for m in layout.collections if m.loaded]
        keys, n_workers = {m.label: m.keys for m in infos}, len(view.now.workers)
        self._read |= {k: _Read(keys[k], n_workers, c) for k, c in found.items()}
        known = {k: x.contents for k, x in self._read.items() if keys.get(k) == x.keys}
        return replace(
            view, layouts=tuple(with_contents(x, known) for x in view.layouts)
        )
