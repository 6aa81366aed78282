"""Take rows of partitions and join them: the one way for cuts and for reordering.

All task functions are those of libraries, so no code of this package travels. Dask's
own concatenation chooses the function for the type of the chunks, so masks stay. What
it changes is put back: SciPy makes COO matrices of most formats, and NumPy makes
numbers of the machine's byte order.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
from dask._task_spec import List, Task
from dask.array.core import _concatenate2
from dask.array.utils import meta_from_array
from dask.dataframe import dispatch

from clustertune.core.wording import names_text
from clustertune.errors import RefusedError

SLICEABLE = frozenset(("csr", "csc", "dok", "lil"))  # formats of which SciPy takes rows
SCIPY = "scipy.sparse."  # how the names of its types begin, as schedulers know them


class Partitions:
    """How rows of the partitions of one collection are taken and joined.

    Parameters
    ----------
    collection
        A Dask Array, DataFrame or Series.
    types
        Names of the types of its chunks as the scheduler knows them. The metadata of an
        Array of COO matrices is a NumPy array, since Dask cannot slice an empty one.
    """

    def __init__(self, collection: Any, types: Iterable[str] = ()):
        self.array = isinstance(collection, da.Array)
        if not self.array:
            _refuse_repeated(collection)
        self.blocks = collection.numblocks[1:] if self.array else ()
        self.dtype = collection.dtype if self.array else None
        self.format = _sparse_format(collection, types) if self.array else ""

    @property
    def tail(self) -> tuple[int, ...]:
        """The rest of a key after the number of the partition, once joined."""
        return (0,) * len(self.blocks)

    def take(self, partition: Any, rows: Any) -> Task:
        """A task that takes these rows, a slice or numbers, of a partition."""
        if not self.array:
            partition = Task(None, getattr, partition, "iloc")
        elif self.format and self.format not in SLICEABLE:
            partition = Task(None, operator.methodcaller("tocsr"), partition)
        return Task(None, operator.getitem, partition, rows)

    def join(self, parts: Sequence[Any], blocks: Sequence[int] | None = None) -> Task:
        """A task that joins parts below each other, blocks of columns side by side.

        ``blocks`` are the numbers of blocks in the dimensions after the rows.
        """
        if not self.array:
            return Task(None, dispatch.concat, List(*parts))
        blocks = self.blocks if blocks is None else blocks
        # one block: the rest of the dimensions need no lists of their own
        blocks = () if math.prod(blocks) == 1 else blocks
        # Dask finds a type that holds the numbers of all parts, whatever they say
        join = partial(_concatenate2, axes=list(range(1 + len(blocks))))
        return self._as_before(Task(None, join, nested(parts, blocks)))

    def _as_before(self, joined: Task) -> Task:
        """The format and the byte order that the parts have."""
        if self.format:
            wanted = operator.methodcaller("asformat", self._wanted_format)
            return Task(None, wanted, joined)
        assert self.dtype is not None
        if _is_native(self.dtype):
            return joined
        cast = operator.methodcaller("astype", self.dtype, casting="safe")
        return Task(None, cast, joined)

    @property
    def _wanted_format(self) -> str:
        return self.format if self.format in SLICEABLE else "csr"


def joined_meta(meta: Any) -> Any:
    """The metadata after rows were taken: COO matrices become CSR ones, for example."""
    is_sparse = type(meta).__module__.startswith(SCIPY)
    return meta.tocsr() if is_sparse and meta.format not in SLICEABLE else meta


def _refuse_repeated(frame: Any) -> None:
    """Refuse what Dask's concatenation fails at, before a task runs.

    Raises
    ------
    RefusedError
        A frame has a name twice, and categories: Dask joins these by name.
    """
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
    """Lists in lists, one for each number of blocks, in a list of rows."""
    for size in reversed(blocks):
        parts = [List(*parts[i : i + size]) for i in range(0, len(parts), size)]
    return List(*parts)


def _sparse_format(array: da.Array, types: Iterable[str]) -> str:
    """The format of SciPy's sparse chunks, such as ``"csr"``; else nothing."""
    meta = meta_from_array(array)
    if type(meta).__module__.startswith(SCIPY):
        return str(meta.format)
    names = set(types)
    if not names or not all(name.startswith(SCIPY) for name in names):
        return ""
    # scipy.sparse._coo.coo_matrix, scipy.sparse._csr.csr_array
    found = {name.rpartition(".")[2].partition("_")[0] for name in names}
    return found.pop() if len(found) == 1 else "mixed"


def _is_native(dtype: np.dtype[Any]) -> bool:
    """Whether numbers have the machine's byte order, also those in records."""
    return dtype.newbyteorder("=") == dtype
