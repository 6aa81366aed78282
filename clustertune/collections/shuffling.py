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
from clustertune.core.model import ORDER, Key, Shuffle

SENDING, JOINING = 2, 1  # priorities
# Seeds for the orders of old and new partitions. They are not 0, which NumPy ignores at
# the end of a seed: the order would equal the one that decides how many rows go where.
OLD, NEW = 1, 2
NUMBERS = Partitions(da.empty(0, dtype=np.int64))  # joins row numbers


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
    kinds = {
        s.label: Partitions(collections[s.label], types.get(s.label, ()))
        for s in shuffle.sources
    }
    name = f"shuffle-{uuid4().hex}"
    for i in np.flatnonzero(shuffle.old_rows).tolist():
        _send(graph, shuffle, kinds, name, i)
    for j in range(len(shuffle.rows)):
        _receive(graph, shuffle, kinds, name, j)
    return graph


def _order(shuffle: Shuffle, rows: Any, n: int, seed: Sequence[int]) -> Task:
    """Return an order of ``n`` rows: by their values, or random."""
    if not shuffle.sort_by:
        # the seed makes the order reproducible on any worker
        draw = operator.methodcaller("permutation", n)
        return Task(None, draw, Task(None, np.random.default_rng, [*seed]))
    flat = Task(None, np.ravel, rows)
    return Task(None, np.argsort, flat, kind="stable")


def _send(
    graph: Graph, shuffle: Shuffle, kinds: Mapping[str, Partitions], name: str, i: int
) -> None:
    """Add what old partition i sends to each new one: rows, then row numbers."""
    keys = {s.label: TaskRef(s.keys[i]) for s in shuffle.sources}
    # the holder of X, if its collections are separated
    worker = shuffle.workers[int(shuffle.sources[0].owner[i])]
    order: Key = (f"{name}-order", i)
    n, start = int(shuffle.old_rows[i]), int(shuffle.old_rows[:i].sum())
    task = _order(shuffle, keys.get(shuffle.sort_by), n, (shuffle.seed, OLD, i))
    graph.add(order, task, worker, SENDING)
    for j, (first, last) in enumerate(pairwise(shuffle.starts[i].tolist())):
        if first == last:
            continue
        rows = Task(None, operator.getitem, TaskRef(order), slice(first, last))
        parts = [kind.take(keys[label], rows) for label, kind in kinds.items()]
        numbers = Task(None, np.add, rows, start)
        bundle = Task(None, list, List(*parts, numbers))
        graph.add((f"{name}-parts", i, j), bundle, worker, SENDING)
        graph.sent.add(f"{name}-parts")


def _receive(
    graph: Graph, shuffle: Shuffle, kinds: Mapping[str, Partitions], name: str, j: int
) -> None:
    """Add new partition j of every collection, and its row numbers."""
    worker = shuffle.workers[int(shuffle.targets[j])]
    counts = shuffle.starts[:, j + 1] - shuffle.starts[:, j]
    bundles = [
        TaskRef((f"{name}-parts", i, j)) for i in np.flatnonzero(counts).tolist()
    ]
    if not _is_numbered(shuffle):
        kinds = {**kinds, ORDER: NUMBERS}
    joined = {
        label: kind.join([Task(None, operator.getitem, b, number) for b in bundles])
        for number, (label, kind) in enumerate(kinds.items())
    }
    order: Key = (f"{name}-new-order", j)
    n, seed = int(shuffle.rows[j]), (shuffle.seed, NEW, j)
    task = _order(shuffle, joined.get(shuffle.sort_by), n, seed)
    graph.add(order, task, worker, JOINING)
    for number, (label, kind) in enumerate(kinds.items()):
        key: Key = (f"{name}-{number}", j, *kind.tail)
        graph.add(key, kind.take(joined[label], TaskRef(order)), worker, JOINING)
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
        graph.add(key, numbers, shuffle.workers[int(shuffle.targets[j])], JOINING)
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
    order, rows = shuffle.partition_order, shuffle.rows.tolist()
    for label in (source.label for source in shuffle.sources):
        x = given[label]
        if order is None:
            partitions = {key: futures[key] for key in graph.partitions[label]}
        else:  # the old partitions get the keys of a new collection
            name = f"shuffled-{uuid4().hex}"
            tail = (0,) * (x.ndim - 1) if isinstance(x, da.Array) else ()
            partitions = {(name, j, *tail): old[label][i] for j, i in enumerate(order)}
        made[label] = collection(x, partitions, rows, joined=order is None)
    if not _is_numbered(shuffle):
        numbers = {key: futures[key] for key in graph.partitions[ORDER]}
        chunks = (tuple(shuffle.rows.tolist()),)
        first: Any = graph.partitions[ORDER][0]
        made[ORDER] = da.Array(numbers, first[0], chunks, dtype=np.int64)
    return made
