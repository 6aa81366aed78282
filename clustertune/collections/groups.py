"""Query groups that are given as sizes, LightGBM's way, as the group of each row.

Library functions make the numbers, so nothing of ours travels to workers.
"""

from __future__ import annotations

from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
from dask._task_spec import Task, TaskRef
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

MOST = 2**32  # groups in a partition


def numbers(label: str, sizes: Any) -> da.Array:
    """The number of the group of each row, ascending, in partitions like the sizes.

    Raises
    ------
    TypeError, ValueError
        It is no Dask Array or Series of whole numbers.
    """
    if isinstance(sizes, dd.Series):
        array = sizes.to_dask_array()
    elif isinstance(sizes, da.Array):
        array = sizes
    else:
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
    tasks: dict[Any, Any] = {
        (name, i): _numbers((name, i), (array.name, i), i * MOST)
        for i in range(array.numblocks[0])
    }
    graph = HighLevelGraph.from_collections(name, tasks, dependencies=[array])
    chunks = ((float("nan"),) * array.numblocks[0],)
    return da.Array(graph, name, chunks, dtype=np.int64)


def _numbers(key: Any, sizes: Any, first: int) -> Task:
    count = Task(None, len, TaskRef(sizes))
    rows = Task(None, np.repeat, Task(None, np.arange, count), TaskRef(sizes))
    return Task(key, np.add, rows, first)
