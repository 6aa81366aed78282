"""Make collections of another kind: Arrays of frames, group numbers of group sizes."""

from __future__ import annotations

import operator
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
from dask._task_spec import Task, TaskRef
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

from clustertune.collections.loading import unjoined
from clustertune.core.model import Int64s

MAX_GROUPS = 2**32  # in a partition


def as_collection(x: Any) -> Any:
    """Return a NumPy array or a pandas object as a collection of one partition."""
    if isinstance(x, np.ndarray):
        return da.from_array(x, chunks=-1)
    if isinstance(x, pd.DataFrame | pd.Series):
        return dd.from_pandas(x, npartitions=1, sort=False)
    return x


def as_array(x: Any, rows: Int64s | None) -> da.Array:
    """Return a frame or Series as an Array, by Dask's own conversion.

    Columns are chosen by name, because a partition may list them in another order than
    the metadata. ``rows`` are those of every partition; None: unknown.
    """
    if isinstance(x, dd.DataFrame) and x.columns.is_unique:
        names = list(x.columns)
        x = x.map_partitions(operator.getitem, names, meta=x._meta)  # noqa: SLF001
    # Dask joins small reads, and the Array would lack the keys of the joined partitions
    x = unjoined(x)
    lengths = None if rows is None else tuple(rows.tolist())
    array: da.Array = x.to_dask_array(lengths=lengths)
    return array


def group_numbers(label: str, sizes: Any) -> da.Array:
    """Turn sizes of groups, as LightGBM takes them, into the group of each row.

    The numbers ascend, and the partitions are those of the sizes.
    """
    array = sizes.to_dask_array() if isinstance(sizes, dd.Series) else sizes
    if not isinstance(array, da.Array):
        raise TypeError(
            f"{label} must be a Dask Array or Series of the sizes of groups, in the "
            f"order of rows; it was {type(sizes).__name__}"
        )
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(
            f"{label} must have one whole number for each group, its rows; it has "
            f"{array.ndim} dimensions of {array.dtype}"
        )
    array = array.astype(np.int64)
    name = f"groups-{tokenize(sizes)}"
    tasks: dict[Any, Any] = {}
    for i in range(array.numblocks[0]):
        rows = TaskRef((array.name, i))
        numbers = Task(None, np.arange, Task(None, len, rows))
        numbers = Task(None, np.repeat, numbers, rows)
        tasks[name, i] = Task((name, i), np.add, numbers, i * MAX_GROUPS)
    graph = HighLevelGraph.from_collections(name, tasks, dependencies=[array])
    chunks = ((float("nan"),) * array.numblocks[0],)
    return da.Array(graph, name, chunks, dtype=np.int64)
