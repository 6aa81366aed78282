"""Partitions: their rows and files while lazy, and graphs that load, or cut and join.

A file is named only if the expression of a lazy frame proves it: a single reader, and
after it only operations that make each partition of the partition with the same number.

Dask's own ``persist`` joins small reads of Parquet data, so a frame then has fewer
partitions than its metadata. It also chooses the workers itself. Here, graphs are
optimized together, so X and y of one source are read at once. They are sent as they
are, with each partition bound to its worker.

A rechunk cuts on the old worker and joins on the new one. Parts that leave a worker are
views there. They are bundled by new partition and travel as one key. The target joins
the new partition. Parts that stay are copied, because a view would keep its old
partition in memory. All task functions are those of libraries, so no code of this
package travels. Dask can recompute new partitions from old ones.
"""

from __future__ import annotations

import logging
import math
import operator
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import Any, TypeAlias
from uuid import uuid4

import dask.array as da
import numpy as np
from dask._task_spec import List, Task, TaskRef
from dask.core import toposort
from dask.dataframe.dask_expr import from_graph
from dask.dataframe.dask_expr._expr import Blockwise, Lengths, Literal, MapOverlap
from dask.dataframe.dask_expr._expr import Partitions as Selected
from dask.dataframe.dask_expr.io.io import FromMap
from dask.dataframe.dask_expr.io.parquet import (
    ReadParquet,
    ReadParquetFSSpec,
    ReadParquetPyarrowFS,
)
from fsspec.core import OpenFile

from clustertune.collections.graphs import Graph, Partitions, collection, optimized
from clustertune.core.model import COPIED, PARTS, Cut, Int64s, Key, Rechunk

logger = logging.getLogger("clustertune")


@dataclass(frozen=True)
class Lazy:
    """A collection to load."""

    label: str
    collection: Any
    workers: Sequence[str] | None  # by key; None: Dask chooses
    rows: Int64s | None = None  # of every partition; None: unknown
    sources: Sequence[str] = ()  # files of the partitions; empty: unknown


# --- rows before loading --------------------------------------------------------------


def lengths(x: Any, *, asynchronous: bool) -> Int64s | None:
    """Return the rows of every partition if known without loading; else None.

    They come from the chunks of an array, or from the footers of Parquet files if no
    filter follows. An asynchronous client cannot wait for the tasks with which Dask
    reads remote footers.
    """
    if isinstance(x, da.Array):
        known = not any(map(math.isnan, x.chunks[0]))
        return np.array(x.chunks[0], dtype=np.int64) if known else None
    nodes = list(x.expr.walk())
    if any(map(_selects, nodes)) or (asynchronous and any(map(_reads_by_tasks, nodes))):
        return None
    try:
        lengths = Lengths(x.expr).simplify()
    # readers of other packages may raise anything; rows are then counted after loading
    except Exception as error:  # noqa: BLE001
        logger.info("rows are not known before loading: %r", error)
        return None
    known = isinstance(lengths, Literal)
    found = lengths.operand("value") if known else ()
    return np.array(found, dtype=np.int64) if len(found) == x.npartitions else None


def _selects(node: Any) -> bool:
    """Return whether it selects partitions: Dask 2026.8 returns rows of wrong ones."""
    if isinstance(node, Selected):
        return True
    has_partitions = "_partitions" in getattr(node, "_parameters", ())
    return has_partitions and node.operand("_partitions") is not None


def _reads_by_tasks(node: Any) -> bool:
    if isinstance(node, ReadParquetPyarrowFS):
        return True
    return isinstance(node, ReadParquet) and "://" in str(node.operand("path"))


# --- files before loading -------------------------------------------------------------


def files_of(collection: Any) -> tuple[str, ...]:
    """Return the file of each partition, in order; empty: not known.

    A partition with an unknown file has an empty text. The names are not escaped.
    """
    if isinstance(collection, da.Array):
        return ()
    try:
        found = _sources(collection.expr)
    # readers of other packages, and other releases of Dask, may raise anything
    except Exception as error:  # noqa: BLE001
        logger.info("the files of partitions are not known: %r", error)
        return ()
    return tuple(found) if len(found) == collection.npartitions else ()


def _sources(expression: Any) -> list[str]:
    nodes = list(expression.walk())
    if not all(
        isinstance(node, Blockwise)
        and not isinstance(node, MapOverlap)
        and node.npartitions == expression.npartitions
        for node in nodes
    ):
        return []
    readers = {node._name: node for node in nodes if not node.dependencies()}  # noqa: SLF001
    if len(readers) != 1:
        return []
    (reader,) = readers.values()
    return [] if reader.operand("_partitions") is not None else _of_reader(reader)


def _of_reader(reader: Any) -> list[str]:
    if isinstance(reader, FromMap):
        return [_of_argument(x) for x in reader.iterables[0]]
    if isinstance(reader, ReadParquetPyarrowFS):
        return [_without_secrets(x.path) for x in reader.fragments]
    if isinstance(reader, ReadParquetFSSpec):
        return [_of_parts(part) for part in reader._plan["parts"]]  # noqa: SLF001
    return []


def _of_argument(value: Any) -> str:
    """Return the file that an argument of ``from_map`` names."""
    if isinstance(value, str | os.PathLike):
        return _without_secrets(os.fspath(value))
    # Dask's task that reads a block of a file: the file is first
    file, *_ = getattr(value, "args", None) or (None,)
    return _without_secrets(file.path) if isinstance(file, OpenFile) else ""


def _of_parts(part: Any) -> str:
    """Return the file of a partition of Parquet data, if it is one file."""
    pieces: Iterable[Any] = part if isinstance(part, list) else [part]
    found = {piece["piece"][0] for piece in pieces}
    return _without_secrets(found.pop()) if len(found) == 1 else ""


def _without_secrets(path: Any) -> str:
    """Return a path or address without passwords and signatures."""
    text = str(path)
    if "://" not in text:
        return text
    return re.sub(r"(?<=://)[^/@]*@", "", re.split("[?#]", text, maxsplit=1)[0])


# --- the graph ------------------------------------------------------------------------


def loading_graph(lazy: Sequence[Lazy]) -> Graph:
    """Return the graph that loads all partitions, each on its worker."""
    graph = Graph()
    where: dict[Key, str] = {}
    for is_array in (True, False):
        alike = [x for x in lazy if isinstance(x.collection, da.Array) is is_array]
        tasks, keys_of_each = optimized_apart([x.collection for x in alike])
        graph.tasks |= tasks
        for x, keys in zip(alike, keys_of_each, strict=True):
            graph.partitions[x.label] = keys
            graph.sources[x.label] = x.sources
            if x.workers is not None:
                where |= zip(keys, x.workers, strict=True)
    graph.where = _with_ancestors(graph.tasks, where)
    return graph


def loaded_collections(
    lazy: Sequence[Lazy], graph: Graph, futures: Mapping[Key, Any]
) -> dict[str, Any]:
    """Return the loaded collections by label."""
    return {
        x.label: collection(
            x.collection,
            {key: futures[key] for key in graph.partitions[x.label]},
            _rows(x, len(graph.partitions[x.label])),
            getattr(x.collection, "divisions", None),
        )
        for x in lazy
    }


def _rows(x: Lazy, n_partitions: int) -> list[float]:
    """Return the rows of every partition, NaN if unknown."""
    if isinstance(x.collection, da.Array):
        return list(x.collection.chunks[0])
    return [math.nan] * n_partitions if x.rows is None else list(map(float, x.rows))


def optimized_apart(
    collections: Sequence[Any],
) -> tuple[Mapping[Key, Any], list[list[Key]]]:
    """Return tasks for all collections, and the keys of each; joins no partitions."""
    if not collections:
        return {}, []
    tasks, keys = optimized(collections)
    expected = [
        math.prod(x.numblocks) if isinstance(x, da.Array) else x.npartitions
        for x in collections
    ]
    if [len(k) for k in keys] != expected:  # Dask has joined partitions
        return optimized([unjoined(x) for x in collections])
    return tasks, keys


def unjoined(collection: Any) -> Any:
    """Return a lazy frame whose partitions Dask does not join."""
    expression = collection.expr.simplify().lower_completely()
    return from_graph(
        expression.__dask_graph__(),
        collection._meta,  # noqa: SLF001 (its public name is that of a property)
        collection.divisions,
        expression.__dask_keys__(),
        "loaded",
    )


def _with_ancestors(
    tasks: Mapping[Key, Any], where: Mapping[Key, str]
) -> dict[Key, str]:
    """Return the worker of each partition, and of tasks that only one worker needs."""
    if not where:
        return {}
    needs = {key: tasks[key].dependencies & tasks.keys() for key in tasks}
    users: dict[Key, set[str | None]] = defaultdict(set)  # workers of dependents
    bound: dict[Key, str] = {}
    for key in reversed(toposort(needs, dependencies=needs)):
        worker = where.get(key)
        if worker is None and len(users[key]) == 1:
            (worker,) = users[key]
        if worker is not None:
            bound[key] = worker
        for need in needs[key]:
            users[need].add(worker)
    return bound


# --- cuts -----------------------------------------------------------------------------

Ends: TypeAlias = tuple[bool, Any, Any]
"""Whether the index of a partition is sorted; its first and last value, if any."""

LEAVING, ARRIVING, STAYING = 2, 1, 0  # priorities: leaving parts free memory first


def cutting_graph(
    recut: Rechunk,
    collections: Mapping[str, Any],
    types: Mapping[str, Iterable[str]] = MappingProxyType({}),
) -> Graph:
    """Return the graph of the new partitions of the collections that are cut.

    ``types`` are the names of the types of chunks, by label. If old partitions are
    released, copies of staying parts wait until the leaving parts have arrived. So the
    memory of a worker hardly rises.
    """
    graph = Graph()
    for cut in recut.cuts:
        kind = Partitions(collections[cut.label], types.get(cut.label, ()))
        _cut(graph, cut, recut, kind)
    if recut.released:
        _delay_copies(graph)
    for cut in recut.cuts if recut.copies == 1 else ():
        if getattr(collections[cut.label], "known_divisions", False):
            _ends(graph, cut)
    return graph


def recut_collections(
    recut: Rechunk,
    given: Mapping[str, Any],
    graph: Graph,
    futures: Mapping[Key, Any],
    ends: Mapping[str, Sequence[Ends]] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the collections of new partitions by label.

    ``ends`` are the results of ``graph.ends``.
    """
    return {
        cut.label: collection(
            given[cut.label],
            {key: futures[key] for key in graph.partitions[cut.label]},
            recut.rows.tolist(),
            divisions(ends[cut.label]) if cut.label in ends else None,
            joined=True,
        )
        for cut in recut.cuts
    }


def divisions(ends: Sequence[Ends]) -> list[Any] | None:
    """Return divisions; None: unsorted, or an index value is in two partitions."""
    if not all(is_sorted and len(first) for is_sorted, first, _ in ends):
        return None
    firsts, lasts = [first[0] for _, first, _ in ends], [last[0] for _, _, last in ends]
    if any(last >= first for last, first in zip(lasts, firsts[1:], strict=False)):
        return None
    return [*firsts, lasts[-1]]


def _ends(graph: Graph, cut: Cut) -> None:
    """Add tasks that read the first and last value of each new index."""
    name = f"ends-{uuid4().hex}"
    graph.ends[cut.label] = []
    for number, partition in enumerate(graph.partitions[cut.label]):
        index = Task(None, getattr, TaskRef(partition), "index")
        is_sorted = Task(None, getattr, index, "is_monotonic_increasing")
        first = Task(None, operator.getitem, index, slice(0, 1))
        last = Task(None, operator.getitem, index, slice(-1, None))
        key: Key = (name, number)
        ends = Task(None, list, List(is_sorted, first, last))
        graph.add(key, ends, graph.where[partition], ARRIVING)
        graph.ends[cut.label].append(key)


def _delay_copies(graph: Graph) -> None:
    """Make the copies on each worker depend on the arrival of what it sends.

    Tasks on the targets count arrived keys, so only a number travels back.
    """
    arrived: dict[tuple[str, str], list[Key]] = {}
    for key, task in graph.tasks.items():
        if graph.priority[key] == ARRIVING:
            sources = {graph.where[d] for d in task.dependencies if d in graph.where}
            for source in sources:
                arrived.setdefault((source, graph.where[key]), []).append(key)
    name = f"arrived-{uuid4().hex}"
    counts: dict[str, list[TaskRef]] = {}
    for number, ((source, target), keys) in enumerate(arrived.items()):
        count: Key = (name, number)
        graph.add(count, Task(None, len, List(*map(TaskRef, keys))), target, ARRIVING)
        counts.setdefault(source, []).append(TaskRef(count))
    all_arrived: dict[str, TaskRef] = {}
    for number, (source, references) in enumerate(counts.items(), len(arrived)):
        key = (name, number)
        graph.add(key, Task(None, len, List(*references)), source, ARRIVING)
        all_arrived[source] = TaskRef(key)
    for key, task in list(graph.tasks.items()):
        if graph.priority[key] == STAYING and graph.where[key] in all_arrived:
            copied = Task(None, task.func, *task.args)
            after = all_arrived[graph.where[key]]
            graph.tasks[key] = Task(key, operator.getitem, List(copied, after), 0)


# --- one collection -------------------------------------------------------------------


def _cut(graph: Graph, cut: Cut, recut: Rechunk, kind: Partitions) -> None:
    # a later call recognizes replicas by the name of their keys
    prefix = f"{COPIED}-" if recut.copies > 1 else ""
    name = f"{prefix}{kind.name}-{uuid4().hex}"
    graph.partitions[cut.label] = []
    rows = np.stack((cut.new, cut.key, cut.start, cut.stop, cut.owner), axis=1)
    for partition, parts in groupby(rows.tolist(), key=operator.itemgetter(0)):
        target = int(recut.targets[partition])
        position = (partition, *kind.tail)
        key: Key = (name, *position)
        sent: dict[int, list[Any]] = {}  # views by sender
        joined: list[Any] = []  # in the order of rows and blocks
        for _, old, start, stop, owner in parts:
            view = kind.take(cut.keys[old], start, stop, stays=owner == target)
            if owner != target:
                views = sent.setdefault(owner, [])
                views.append(view)
                bundle = TaskRef((f"{PARTS}-{name}", *position, owner))
                view = Task(None, operator.getitem, bundle, len(views) - 1)
            joined.append(view)
        for owner, views in sent.items():
            bundle_key: Key = (f"{PARTS}-{name}", *position, owner)
            task = Task(None, list, List(*views))
            graph.add(bundle_key, task, recut.workers[owner], LEAVING)
            graph.sent.add(f"{PARTS}-{name}")
        # a sent array may begin anywhere in a message, and XGBoost refuses labels of an
        # eval set that are not aligned; a copy is
        is_copy = recut.copies == 1 if sent else kind.has_arrow
        task = kind.join(joined, is_copy=is_copy)
        graph.add(key, task, recut.workers[target], ARRIVING if sent else STAYING)
        graph.partitions[cut.label].append(key)
