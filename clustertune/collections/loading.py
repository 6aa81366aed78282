"""Build graphs that load data, each partition on a chosen worker.

Dask's own ``persist`` joins small reads of Parquet data, so a frame then has fewer
partitions than its metadata. It also chooses the workers itself. Here, graphs are
optimized together, so X and y of one source are read at once. They are sent as they
are, with each partition bound to its worker.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
from dask.core import toposort
from dask.dataframe.dask_expr import from_graph
from dask.dataframe.dask_expr._expr import Lengths, Literal, Partitions
from dask.dataframe.dask_expr.io.parquet import ReadParquet, ReadParquetPyarrowFS

from clustertune.collections.graphs import Graph, collection, optimized
from clustertune.collections.metadata import without_rows
from clustertune.core.model import Int64s, Key

logger = logging.getLogger("clustertune")


@dataclass(frozen=True)
class Lazy:
    """A collection to load."""

    label: str
    collection: Any
    workers: Sequence[str] | None  # by key; None: Dask chooses
    rows: Int64s | None = None  # of every partition; None: unknown


# --- rows before loading --------------------------------------------------------------


def lengths(x: Any, *, asynchronous: bool) -> Int64s | None:
    """Return the rows of every partition if known without loading; else None.

    They come from the chunks of an array, or from the footers of Parquet files if no
    filter follows. An asynchronous client cannot wait for the tasks with which Dask
    reads remote footers.
    """
    if isinstance(x, da.Array):
        return None if without_rows(x) else np.array(x.chunks[0], dtype=np.int64)
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
    if isinstance(node, Partitions):
        return True
    has_partitions = "_partitions" in getattr(node, "_parameters", ())
    return has_partitions and node.operand("_partitions") is not None


def _reads_by_tasks(node: Any) -> bool:
    if isinstance(node, ReadParquetPyarrowFS):
        return True
    return isinstance(node, ReadParquet) and "://" in str(node.operand("path"))


# --- the graph ------------------------------------------------------------------------


def build(lazy: Sequence[Lazy]) -> Graph:
    """Return the graph that loads all partitions, each on its worker."""
    graph = Graph()
    where: dict[Key, str] = {}
    for is_array in (True, False):
        alike = [x for x in lazy if isinstance(x.collection, da.Array) is is_array]
        tasks, keys_of_each = _optimized([x.collection for x in alike])
        graph.tasks |= tasks
        for x, keys in zip(alike, keys_of_each, strict=True):
            graph.partitions[x.label] = keys
            if x.workers is not None:
                where |= zip(keys, x.workers, strict=True)
    graph.where = _with_ancestors(graph.tasks, where)
    return graph


def collections(
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


def _optimized(collections: Sequence[Any]) -> tuple[Mapping[Key, Any], list[list[Key]]]:
    """Return tasks for all collections, and the keys of each."""
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
