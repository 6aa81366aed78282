"""Graphs of tasks that are bound to workers, collections of results, and metadata.

A graph is sent as it is. Dask neither joins nor renames its tasks, so the keys and the
worker of each partition are known beforehand. All task functions are those of
libraries, so no code of this package travels.

The module also takes rows of partitions and joins them, for cuts.
Dask's concatenation chooses the function for the type of the chunks, so masks stay. Two
of its effects are changed: SciPy makes COO of most sparse formats, which become CSR
here, and NumPy changes the byte order to the machine's, which is undone.
"""

from __future__ import annotations

import asyncio
import math
import operator
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from threading import Lock
from typing import Any
from uuid import uuid4

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
from dask._task_spec import Alias, DataNode, List, Task, TaskRef, convert_legacy_graph
from dask.array.core import _concatenate2
from dask.array.utils import meta_from_array
from dask.base import annotate, collections_to_expr
from dask.core import flatten
from dask.dataframe import dispatch
from dask.dataframe.dask_expr import from_graph
from dask.dataframe.dask_expr.io.io import BlockwiseIO
from dask.highlevelgraph import HighLevelGraph
from dask.sizeof import sizeof
from distributed import CancelledError, Client, Future, wait
from tlz import identity  # type: ignore[import-untyped]

from clustertune.core.model import CollectionInfo, Int64s, Key
from clustertune.core.wording import names_text
from clustertune.errors import RefusedError

# --- partitions -----------------------------------------------------------------------


def partitions(collection: Any) -> tuple[list[Key], list[Any] | None]:
    """Return keys and futures of the partitions, in order.

    The futures are None for a collection that is not persisted. The keys of a persisted
    DataFrame are aliases of those of its futures.
    """
    keys = list(flatten(collection.__dask_keys__()))
    if _is_read(collection):
        return keys, None
    graph = collection.__dask_graph__()
    # the first key shows whether an array is lazy, and a copy of its graph is slow
    graph = graph if isinstance(collection, da.Array) else dict(graph)
    futures = []
    for key in keys:
        node = graph.get(key)
        while isinstance(node, Alias):
            node = graph.get(node.target)
        if not isinstance(node, Future):
            return keys, None
        futures.append(node)
    return [f.key for f in futures], futures


def _is_read(collection: Any) -> bool:
    """Return whether a frame is lazy and has only sources, which hold no futures.

    This does not build the graph, which takes seconds for many partitions.
    """
    if isinstance(collection, da.Array):
        return False
    sources = [node for node in collection.expr.walk() if not node.dependencies()]
    return all(isinstance(source, BlockwiseIO) for source in sources)


def missing_rows(collection: Any) -> int:
    """Return how many partitions are missing because Dask has joined them.

    The Parquet readers join small partitions when a frame is persisted. The metadata
    keeps the old number, so every use of the frame fails (dask 2026.8).
    """
    if isinstance(collection, da.Array) or _is_read(collection):
        return 0
    return len(set(collection.__dask_keys__()) - set(collection.__dask_graph__()))


def describe(
    label: str, x: Any, keys: Sequence[Key], loaded: bool, rows: Int64s | None = None
) -> CollectionInfo:
    """Return the metadata of a collection, without cluster data."""
    frame = isinstance(x, dd.DataFrame)
    types = list(x.dtypes) if frame else [x.dtype]
    if isinstance(x, da.Array):
        kind, blocks = "array", math.prod(x.numblocks[1:])
        n_columns = math.prod(x.shape[1:])
        columns = None if math.isnan(n_columns) else int(n_columns)
        # dense numbers in known chunks
        dense = type(meta_from_array(x)) is np.ndarray and x.dtype.kind in "biufcmMSU"
        size = int(x.nbytes) if dense and not math.isnan(x.nbytes) else None
    else:
        kind = "dataframe" if frame else "series"
        columns, blocks = len(types), 1
        value_sizes = [value_bytes(t) for t in types]
        known = [n for n in value_sizes if n is not None]
        size = None
        # the index is not counted; values may have no fixed width
        if rows is not None and len(known) == len(types):
            size = int(rows.sum()) * sum(known)
    widths = [width for t in types if (width := number_bytes(t)) is not None]
    return CollectionInfo(
        label=label,
        kind=kind,
        keys=tuple(keys),
        loaded=loaded,
        rows=rows,
        nbytes=None,
        holders=None,
        columns=columns,
        column_blocks=blocks,
        itemsize=max(widths, default=None),
        fixed=fixed_bytes(x),
        total_bytes=size,
        types=_column_types(x) if frame else {},
    )


def _column_types(x: dd.DataFrame) -> Mapping[str, tuple[str, ...]]:
    """Return the names of the columns of each type."""
    found: dict[str, list[str]] = {}
    for name, dtype in x.dtypes.items():
        text = "category" if str(dtype).startswith("category") else str(dtype)
        found.setdefault(text, []).append(str(name))
    return {text: tuple(names) for text, names in found.items()}


def origin(collection: Any) -> tuple[bool, int]:
    """Return whether a lazy collection depends on futures, and its embedded bytes."""
    graph = dict(collection.__dask_graph__())
    derived, embedded = False, 0
    for node in graph.values():
        # dd.from_delayed has only the keys of futures in its graph
        outside = not graph.keys() >= getattr(node, "dependencies", frozenset())
        derived |= outside or isinstance(node, Future)
        value = node.value if isinstance(node, DataNode) else node
        for data in (value, *getattr(node, "args", ())):
            if isinstance(data, np.ndarray | pd.DataFrame | pd.Series):
                embedded += sizeof(data)
    return derived, embedded


# --- types and bytes ------------------------------------------------------------------


def value_bytes(dtype: Any) -> int | None:
    """Return the bytes of one value of a column; None: no fixed width.

    A nullable type of pandas has one more byte, for its mask. The bytes of categories,
    text, sparse values and Arrow's buffers depend on the values.
    """
    if isinstance(dtype, np.dtype):
        return None if dtype.hasobject else dtype.itemsize
    if isinstance(dtype, pd.DatetimeTZDtype | pd.PeriodDtype):  # 64-bit integers
        return np.dtype(np.int64).itemsize
    if isinstance(dtype, pd.ArrowDtype) or not hasattr(dtype, "numpy_dtype"):
        return None
    return int(dtype.numpy_dtype.itemsize) + 1


def number_bytes(dtype: Any) -> int | None:
    """Return the bytes of one number as libraries read it; None: not numbers."""
    if isinstance(dtype, pd.SparseDtype):
        dtype = np.dtype(dtype.subtype)
    elif not isinstance(dtype, np.dtype):
        dtype = getattr(dtype, "numpy_dtype", np.dtype(object))
    return int(dtype.itemsize) if dtype.kind in "biufc" else None


def meta_of(x: Any) -> Any:
    """Return an empty partition of a collection."""
    if isinstance(x, da.Array):
        return meta_from_array(x)
    return x._meta  # noqa: SLF001 (Dask's name)


def has_arrow(frame: Any) -> bool:
    """Return whether Arrow has values of a frame, whose copies share their memory."""
    meta = meta_of(frame)
    types = [*meta.dtypes] if meta.ndim > 1 else [meta.dtype]
    return any(
        isinstance(dtype, pd.ArrowDtype) or getattr(dtype, "storage", "") == "pyarrow"
        for dtype in (*types, meta.index.dtype)
    )


def fixed_bytes(x: Any) -> int:
    """Return the bytes of each partition apart from its rows, as Dask counts them.

    pandas caches an index of columns that were looked up. A partition that was sent has
    no such cache.
    """
    if isinstance(x, da.Array):
        return 0
    empty = pickle.loads(pickle.dumps(meta_of(x)))  # noqa: S301 (our own bytes)
    return int(sizeof(empty))


# --- graphs ---------------------------------------------------------------------------

THRESHOLD = "distributed.admin.large-graph-warning-threshold"
_threshold = Lock()
SCIPY = "scipy.sparse."  # prefix of the names of its types on the scheduler


@dataclass
class Graph:
    """Tasks, the worker or workers of each, and keys of new partitions, by label.

    ``ends`` are keys by label, one for each partition, of the first and last value of
    its index. ``sources`` are the files of partitions by label, if known, for
    messages. ``sent`` are the names of the keys that travel between workers. Tasks of
    a ``loose`` graph may run on other workers if their own has left.
    """

    tasks: dict[Key, Any] = field(default_factory=dict)
    where: dict[Key, Any] = field(default_factory=dict)
    priority: dict[Key, int] = field(default_factory=dict)
    partitions: dict[str, list[Key]] = field(default_factory=dict)
    ends: dict[str, list[Key]] = field(default_factory=dict)
    sources: dict[str, Sequence[str]] = field(default_factory=dict)
    sent: set[str] = field(default_factory=set)
    loose: bool = False

    def add(self, key: Key, task: Task, worker: str, priority: int) -> None:
        """Add a task under this key, bound to a worker."""
        self.tasks[key] = Task(key, task.func, *task.args, **task.kwargs)
        self.where[key] = worker
        self.priority[key] = priority


def optimized(collections: Sequence[Any]) -> tuple[Mapping[Key, Any], list[list[Key]]]:
    """Return the tasks of collections, optimized together, and the keys of each.

    Raises ``RefusedError`` for tasks that may run on some workers only, because all
    partitions get workers here.
    """
    expression = collections_to_expr(collections).optimize()
    bound = {"resources", "workers"} & expression.__dask_annotations__().keys()
    if bound:
        raise RefusedError(
            f"lazy data has annotations of {names_text(sorted(bound))}, which loading "
            "it here would ignore; persist the data first: `X = X.persist()`"
        )
    keys = [list(flatten(nested)) for nested in expression.__dask_keys__()]
    return convert_legacy_graph(expression.__dask_graph__()), keys


def constants(label: str, values: Sequence[Any], workers: Sequence[str]) -> Graph:
    """Return a graph of small arrays, one on each worker."""
    name = f"constants-{uuid4().hex}"
    keys: list[Key] = [(name, i) for i in range(len(values))]
    pairs = zip(keys, values, strict=True)
    return Graph(
        tasks={key: Task(key, np.array, value) for key, value in pairs},
        where=dict(zip(keys, workers, strict=True)),
        partitions={label: keys},
    )


def copies(targets: Mapping[str, tuple[Sequence[Key], Sequence[str]]]) -> Graph:
    """Return a graph that copies keys to workers, by label.

    A copy on the worker that holds its key shares the memory of it.
    """
    graph = Graph(loose=True)
    for label, (keys, workers) in targets.items():
        name = f"copy-{uuid4().hex}"
        graph.partitions[label] = []
        for number, (key, worker) in enumerate(zip(keys, workers, strict=True)):
            rest = key[2:] if isinstance(key, tuple) else ()
            copy: Key = (name, number, *rest)
            graph.add(copy, Task(None, identity, TaskRef(key)), worker, 0)
            graph.partitions[label].append(copy)
            graph.sent.add(str(key[0]) if isinstance(key, tuple) else str(key))
    return graph


def copied(like: Any, futures: Sequence[Any]) -> Any:
    """Return a collection of copies of all partitions of another one."""
    rows = like.chunks[0] if isinstance(like, da.Array) else ()
    divisions = getattr(like, "divisions", None)
    return collection(like, {f.key: f for f in futures}, rows, divisions)


def submit(client: Client, graph: Graph) -> dict[Key, Any]:
    """Send a graph to the scheduler; return the futures of partitions and ends by key.

    Tasks may name keys that the scheduler knows, so thousands of futures need not
    travel.
    """
    wanted = list(chain(*graph.partitions.values(), *graph.ends.values()))
    # Dask would hash every task of a plain dict
    layers = HighLevelGraph({"clustertune": graph.tasks}, {"clustertune": set()})
    with ExitStack() as around:
        # Dask's warning about large graphs is meant for users' graphs. All threads
        # share the setting, and two that change it at once could restore a wrong value.
        around.enter_context(_threshold)
        around.enter_context(dask.config.set({THRESHOLD: "1 TB"}))
        if graph.where:
            bound = {"workers": _lookup(graph.where, ())}
            around.enter_context(annotate(**bound, allow_other_workers=graph.loose))
        if graph.priority:
            around.enter_context(annotate(priority=_lookup(graph.priority, 0)))
        futures = client.get(layers, wanted, sync=False)
    return dict(zip(wanted, futures, strict=True))


async def wait_for_last(client: Client, futures: Sequence[Any], seconds: float) -> None:
    """Wait until the last of some futures is done, at most some seconds.

    The caller checks all futures afterwards. The wait grows with their number, because
    checking 100,000 futures takes as long as a short pause.
    """
    await asyncio.sleep(len(futures) * 1e-6)
    with client.as_current():
        waiting: Any = wait(futures[-1], timeout=seconds)
    # the caller's check finds cancelled futures
    with suppress(asyncio.TimeoutError, CancelledError):
        await waiting


def _lookup(known: Mapping[Key, Any], rest: Any) -> Callable[[Key], Any]:
    """Return a function, which is sent by value.

    The scheduler could not load an instance of a class of this package, and would close
    the connection.
    """

    def lookup(key: Key) -> Any:
        return known.get(key, rest)

    return lookup


def collection(
    like: Any,
    partitions: Mapping[Key, Any],
    rows: Sequence[float],
    divisions: Sequence[Any] | None = None,
    *,
    joined: bool = False,
) -> Any:
    """Return a collection of these futures, whose values are parts of another one.

    ``rows`` are those of every partition of an array, NaN if unknown, and ``divisions``
    those of a frame; None: unknown. ``joined``: rows were taken and joined, and blocks
    of columns too.
    """
    meta, keys = meta_of(like), list(partitions)
    if joined and type(meta).__module__.startswith(SCIPY):
        meta = meta.tocsr()
    if isinstance(like, da.Array):
        first: Any = keys[0]
        columns = like.chunks[1:]
        if joined:
            columns = tuple((sum(sizes),) for sizes in columns)
        chunks = (tuple(rows), *columns)
        return da.Array(dict(partitions), first[0], chunks, meta=meta)
    unknown = (None,) * (len(keys) + 1)
    return from_graph(dict(partitions), meta, divisions or unknown, keys, "prepared")


def with_rows(x: Any, rows: Int64s | None) -> Any:
    """Return the array with known rows of its partitions."""
    if rows is None or not isinstance(x, da.Array):
        return x
    chunks = (tuple(rows.tolist()), *x.chunks[1:])
    return x if chunks == x.chunks else da.Array(x.dask, x.name, chunks, meta=x._meta)  # noqa: SLF001


# --- rows of partitions ---------------------------------------------------------------


class Partitions:
    """Tasks that cut and join rows of one collection, by functions of libraries.

    ``types`` are the names of the types of its chunks on the scheduler. The metadata of
    an Array of COO matrices is a NumPy array, since Dask cannot slice an empty one.
    """

    def __init__(self, collection: Any, types: Iterable[str]):
        self.array = isinstance(collection, da.Array)
        self.name = "array" if self.array else "frame"
        if not self.array:
            _refuse_repeated(collection)
        self.blocks = collection.numblocks[1:] if self.array else ()
        self.dtype = collection.dtype if self.array else None
        self.is_sparse = self.array and _is_sparse(collection, types)
        # the copy shares no memory with the old partition, which can then be released;
        # `copy` keeps the memory order and masks
        plain = self.array and type(meta_of(collection)) is np.ndarray
        self.copy: Callable[[Any], Any] = (
            copy if plain else operator.methodcaller("copy")
        )
        self.has_arrow = not self.array and has_arrow(collection)

    @property
    def tail(self) -> tuple[int, ...]:
        """The rest of a joined key after the number of the partition."""
        return (0,) * len(self.blocks)

    def take(self, partition: Key, start: int, stop: int, *, stays: bool) -> Task:
        """Return rows of an old partition; ``stays``: on its worker."""
        source: Any = TaskRef(partition)
        rows: Any = slice(start, stop)
        # copies of Arrow's columns would keep all of the old partition in memory
        if stays and self.has_arrow:
            rows = Task(None, np.arange, start, stop)
        if not self.array:
            source = Task(None, getattr, source, "iloc")
        elif self.is_sparse:  # SciPy takes no rows of some formats
            source = Task(None, operator.methodcaller("tocsr"), source)
        return Task(None, operator.getitem, source, rows)

    def join(self, parts: Sequence[Task], *, is_copy: bool) -> Task:
        """Join parts along rows, and blocks of columns.

        ``is_copy``: a single part is a copy already.
        """
        if len(parts) == 1:
            return parts[0] if is_copy else Task(None, self.copy, *parts)
        if not self.array:
            return Task(None, dispatch.concat, List(*parts))
        # a single block needs no nested lists
        blocks = () if math.prod(self.blocks) == 1 else self.blocks
        # Dask finds a type that holds the numbers of all parts
        join = partial(_concatenate2, axes=list(range(1 + len(blocks))))
        joined = Task(None, join, nested(parts, blocks))
        if self.is_sparse:
            return Task(None, operator.methodcaller("tocsr"), joined)
        assert self.dtype is not None
        if self.dtype.newbyteorder("=") == self.dtype:  # in records too
            return joined
        # NumPy uses the machine's byte order for the result
        cast = operator.methodcaller("astype", self.dtype, casting="safe")
        return Task(None, cast, joined)


def _refuse_repeated(frame: Any) -> None:
    """Refuse a frame that Dask cannot join, since it joins categories by name."""
    if not isinstance(frame, dd.DataFrame) or frame.columns.is_unique:
        return
    names = frame.columns
    if any(isinstance(dtype, pd.CategoricalDtype) for dtype in frame.dtypes):
        twice = names[names.duplicated()].unique()
        raise RefusedError(
            f"several columns are named {names_text(list(map(str, twice)))} and there "
            "are columns of categories, so Dask cannot join the partitions; rename "
            "the columns: `X.columns = [f'c{i}' for i in range(len(X.columns))]`"
        )


def nested(parts: Sequence[Any], blocks: Sequence[int]) -> Any:
    """Nest parts in one list per number of blocks, in a list of rows."""
    for size in reversed(blocks):
        parts = [List(*parts[i : i + size]) for i in range(0, len(parts), size)]
    return List(*parts)


def _is_sparse(array: da.Array, types: Iterable[str]) -> bool:
    """Return whether the chunks are SciPy's, which the metadata may not show."""
    if type(meta_from_array(array)).__module__.startswith(SCIPY):
        return True
    names = set(types)
    return bool(names) and all(name.startswith(SCIPY) for name in names)
