"""Read the metadata of collections: partitions, types and bytes."""

from __future__ import annotations

import math
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
from dask._task_spec import Alias, DataNode
from dask.array.utils import meta_from_array
from dask.core import flatten
from dask.dataframe.dask_expr.io.io import BlockwiseIO
from dask.sizeof import sizeof
from distributed import Future

from clustertune.core.model import CollectionInfo, Int64s, Key

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


def missing(collection: Any) -> int:
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
        kind, columns = "array", n_columns(x)
        blocks, size = math.prod(x.numblocks[1:]), _total_bytes(x)
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


def without_rows(x: da.Array) -> bool:
    """Return whether the rows of an array's partitions are unknown."""
    return any(math.isnan(n) for n in x.chunks[0])


def origin(collection: Any) -> tuple[bool, int]:
    """Return whether a lazy collection depends on futures, and its embedded bytes."""
    nodes = dict(collection.__dask_graph__()).values()
    derived, embedded = False, 0
    for node in nodes:
        derived |= isinstance(node, Future)
        value = node.value if isinstance(node, DataNode) else node
        for data in (value, *getattr(node, "args", ())):
            if isinstance(data, np.ndarray | pd.DataFrame | pd.Series):
                embedded += sizeof(data)
    return derived, embedded


def _total_bytes(x: da.Array) -> int | None:
    """Return the bytes of dense numbers in known chunks; None: unknown."""
    dense = type(meta_from_array(x)) is np.ndarray and x.dtype.kind in "biufcmMSU"
    return int(x.nbytes) if dense and not math.isnan(x.nbytes) else None


# --- types and bytes ------------------------------------------------------------------


def n_columns(x: da.Array) -> int | None:
    """Return the numbers in a row of an array; None: unknown."""
    width = math.prod(x.shape[1:])
    return None if math.isnan(width) else int(width)


def _inner(dtype: Any) -> np.dtype[Any]:
    """Return the NumPy type of the values."""
    if isinstance(dtype, np.dtype):
        return dtype
    if isinstance(dtype, pd.SparseDtype):
        return np.dtype(dtype.subtype)
    return getattr(dtype, "numpy_dtype", np.dtype(object))


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
    inner = _inner(dtype)
    return inner.itemsize if inner.kind in "biufc" else None


def meta(x: Any) -> Any:
    """Return an empty partition of a collection."""
    if isinstance(x, da.Array):
        return meta_from_array(x)
    return x._meta  # noqa: SLF001 (Dask's name)


def fixed_bytes(x: Any) -> int:
    """Return the bytes of each partition apart from its rows, as Dask counts them.

    pandas caches an index of columns that were looked up. A partition that was sent has
    no such cache.
    """
    if isinstance(x, da.Array):
        return 0
    empty = pickle.loads(pickle.dumps(meta(x)))  # noqa: S301 (our own bytes)
    return int(sizeof(empty))


def column_chunks(x: da.Array, *, joined: bool) -> tuple[tuple[Any, ...], ...]:
    """Return the chunks of an array, without those of its rows."""
    chunks: tuple[tuple[Any, ...], ...] = x.chunks[1:]
    return tuple((sum(sizes),) for sizes in chunks) if joined else chunks
