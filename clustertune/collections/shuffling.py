"""Build graphs that shuffle or sort rows, on the old and on the new worker.

An order is an array of row numbers within a partition. Rows of all collections travel
together with their row numbers, one key for each pair of an old and a new partition.
All task functions are those of libraries, so no code of this package travels.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any
from uuid import uuid4

import dask.array as da
import numpy as np
from dask._task_spec import List, Task, TaskRef

from clustertune.collections.graphs import Graph, Partitions, collection
from clustertune.core.model import ORDER, Key, Shuffle, Source

SENDING, JOINING = 2, 1  # priorities
# seeds for orders of old and new partitions; NumPy ignores a 0 at the end of a seed,
# and the order would equal the one that decides how many rows go where
OLD, NEW = 1, 2
NUMBERS = Partitions(da.empty(0, dtype=np.int64))  # joins row numbers
PARTS = 3  # length of a key that travels: name, old and new partition


def build(
    shuffle: Shuffle,
    collections: Mapping[str, Any],
    types: Mapping[str, Iterable[str]] = MappingProxyType({}),
) -> Graph:
    """Return the graph of all collections in their new order, with the row numbers.

    ``types`` are the names of the types of chunks, by label.
    """
    graph = Graph()
    if shuffle.partition_order is not None:
        _number_whole(graph, shuffle)
        return graph
    kinds = [
        Partitions(collections[s.label], types.get(s.label, ()))
        for s in shuffle.sources
    ]
    name = f"shuffle-{uuid4().hex}"
    by = next(
        (i for i, s in enumerate(shuffle.sources) if s.label == shuffle.sort_by), -1
    )
    starts = np.cumsum(shuffle.old_rows) - shuffle.old_rows
    for i, n in enumerate(shuffle.old_rows.tolist()):
        if n:
            _send(graph, shuffle, kinds, by, (name, i, int(starts[i])))
    for j in range(len(shuffle.rows)):
        _receive(graph, shuffle, kinds, by, (name, j))
    return graph


def _add(graph: Graph, key: Key, task: Task, worker: str, priority: int) -> None:
    """Add a task under this key."""
    graph.add(Task(key, task.func, *task.args, **task.kwargs), worker, priority)


def _order(shuffle: Shuffle, rows: Any, n: int, seed: Sequence[int]) -> Task:
    """Return an order of ``n`` rows: by their values, or random."""
    if not shuffle.sort_by:
        # the seed makes the order reproducible on any worker
        draw = operator.methodcaller("permutation", n)
        return Task(None, draw, Task(None, np.random.default_rng, [*seed]))
    flat = Task(None, np.ravel, rows)
    return Task(None, np.argsort, flat, kind="stable")


def _send(
    graph: Graph,
    shuffle: Shuffle,
    kinds: Sequence[Partitions],
    by: int,
    partition: tuple[str, int, int],
) -> None:
    """Add what one old partition sends to each new one; row numbers come last."""
    name, i, start = partition
    keys = [s.keys[i] for s in shuffle.sources]
    worker = shuffle.workers[_owner(shuffle.sources, i)]
    order: Key = (f"{name}-order", i)
    n = int(shuffle.old_rows[i])
    task = _order(shuffle, TaskRef(keys[by]), n, (shuffle.seed, OLD, i))
    _add(graph, order, task, worker, SENDING)
    edges = shuffle.starts[i].tolist()
    for j, (first, last) in enumerate(pairwise(edges)):
        if first == last:
            continue
        mine = Task(None, operator.getitem, TaskRef(order), slice(first, last))
        parts = [k.take(TaskRef(key), mine) for k, key in zip(kinds, keys, strict=True)]
        numbers = Task(None, np.add, mine, start)
        bundle = Task(None, list, List(*parts, numbers))
        _add(graph, (f"{name}-parts", i, j), bundle, worker, SENDING)


def _owner(sources: Sequence[Source], i: int) -> int:
    """Return the holder of a partition, or of X if its collections are separated."""
    return int(sources[0].owner[i])


def _receive(
    graph: Graph,
    shuffle: Shuffle,
    kinds: Sequence[Partitions],
    by: int,
    partition: tuple[str, int],
) -> None:
    """Add one new partition of every collection, and its row numbers."""
    name, j = partition
    worker = shuffle.workers[int(shuffle.targets[j])]
    senders = [
        (f"{name}-parts", i, j)
        for i, n in enumerate(shuffle.starts[:, j + 1] - shuffle.starts[:, j])
        if n
    ]

    def parts(number: int) -> list[Task]:
        return [Task(None, operator.getitem, TaskRef(k), number) for k in senders]

    order: Key = (f"{name}-new-order", j)
    n = int(shuffle.rows[j])
    joined = kinds[by].join(parts(by)) if shuffle.sort_by else None
    _add(
        graph,
        order,
        _order(shuffle, joined, n, (shuffle.seed, NEW, j)),
        worker,
        JOINING,
    )
    labels = [source.label for source in shuffle.sources]
    if not _is_numbered(shuffle):
        labels, kinds = [*labels, ORDER], [*kinds, NUMBERS]
    for number, (label, kind) in enumerate(zip(labels, kinds, strict=True)):
        key: Key = (f"{name}-{number}", j, *kind.tail)
        made = kind.take(kind.join(parts(number)), TaskRef(order))
        _add(graph, key, made, worker, JOINING)
        graph.partitions.setdefault(label, []).append(key)


def _is_numbered(shuffle: Shuffle) -> bool:
    """Return whether rows carry numbers from an earlier shuffle."""
    return any(s.label == ORDER for s in shuffle.sources)


def _number_whole(graph: Graph, shuffle: Shuffle) -> None:
    """Add the row numbers of whole partitions in their new order."""
    assert shuffle.partition_order is not None
    if _is_numbered(shuffle):
        return
    starts = (np.cumsum(shuffle.old_rows) - shuffle.old_rows).tolist()
    name = f"{ORDER}-{uuid4().hex}"
    graph.partitions[ORDER] = []
    for j, i in enumerate(shuffle.partition_order.tolist()):
        key: Key = (name, j)
        numbers = Task(None, np.arange, starts[i], starts[i] + int(shuffle.old_rows[i]))
        _add(graph, key, numbers, shuffle.workers[int(shuffle.targets[j])], JOINING)
        graph.partitions[ORDER].append(key)


def collections(
    shuffle: Shuffle,
    given: Mapping[str, Any],
    old: Mapping[str, Sequence[Any]],
    graph: Graph,
    futures: Mapping[Key, Any],
) -> dict[str, Any]:
    """Return the collections in their new order and the row numbers, by label.

    ``old`` are the futures of the old partitions by label.
    """
    made = {}
    for source in shuffle.sources:
        label = source.label
        if shuffle.partition_order is None:
            partitions = {key: futures[key] for key in graph.partitions[label]}
        else:
            partitions = _renamed(
                given[label], [old[label][i] for i in shuffle.partition_order]
            )
        rows, joined = shuffle.rows.tolist(), shuffle.partition_order is None
        made[label] = collection(given[label], partitions, rows, joined=joined)
    if not _is_numbered(shuffle):
        numbers = {key: futures[key] for key in graph.partitions[ORDER]}
        chunks = (tuple(shuffle.rows.tolist()),)
        first: Any = graph.partitions[ORDER][0]
        made[ORDER] = da.Array(numbers, first[0], chunks, dtype=np.int64)
    return made


def sent(graph: Graph) -> list[str]:
    """Return the names of the keys that travel."""
    found = {k[0] for k in graph.tasks if isinstance(k, tuple) and len(k) == PARTS}
    return sorted(map(str, found))


def _renamed(x: Any, futures: Sequence[Any]) -> dict[Key, Any]:
    """Return the partitions by keys of a new collection."""
    name = f"shuffled-{uuid4().hex}"
    tail = (0,) * (x.ndim - 1) if isinstance(x, da.Array) else ()
    return {(name, j, *tail): future for j, future in enumerate(futures)}
