"""The layout of data: partitions of row-aligned collections, as plain frozen data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Key = str | int | float | tuple[Any, ...]
"""A Dask key."""

ORDER = "row_order"
"""Label of the original row numbers after rows were reordered."""

COPIED = "copied"
"""Prefix of the names of collections with a replica on every worker."""

PARTS = "parts"
"""Prefix of the names of keys that cuts send to other workers."""

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """The requested type of a collection, if it has another one."""

    kind: str  # "array", "dataframe" or "series"
    dtype: str  # of its numbers
    row_bytes: int | None  # bytes of a converted row; None: unknown
    columns: tuple[Any, ...] = ()  # columns of a frame that change
    categories: tuple[tuple[Any, Any], ...] = ()  # and (column, type) of categories
    nullable: bool = False  # missing values become NaN
    fixed: int = 0  # bytes of a frame's partition in addition to its rows

    def __str__(self) -> str:
        kinds = {
            "array": f"an Array of {self.dtype}",
            "dataframe": f"a DataFrame with {self.dtype} for numbers",
            "series": f"a Series of {self.dtype}",
        }
        if not self.categories:
            return kinds[self.kind]
        lists = "one list of categories for each column"
        return f"{kinds[self.kind]} and {lists}" if self.columns else f"with {lists}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Facts about the values of a collection, by partition.

    ``deep=True`` or the workload selects them. Names and values are those of the
    functions in :mod:`clustertune.remote.worker.content`.
    """

    partitions: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollectionInfo:
    """One of the row-aligned collections of a layout: X, or y, or a weight.

    Arrays have one entry per partition, in row order. ``rows`` is None if unknown.
    ``nbytes`` and ``holders`` are None for data that is not in memory. ``holders`` is a
    pair of arrays (partition index, worker index into ``Snapshot.workers``) with one
    entry per replica.
    """

    label: str  # "X", "y", "sample_weight", "eval_set[0].X", ...
    kind: str  # "array", "dataframe" or "series"
    keys: tuple[Key, ...]
    loaded: bool
    rows: Int64s | None
    nbytes: Int64s | None
    holders: tuple[Int64s, Int64s] | None
    columns: int | None  # columns of a row; None: unknown
    column_blocks: int = 1  # 1: every partition has all columns
    itemsize: int | None = None  # bytes of the widest number in a row; None: no number
    fixed: int = 0  # bytes of a frame's partition in addition to rows: index, names
    total_bytes: int | None = None  # by the metadata of a lazy collection
    conversion: Conversion | None = None
    derived: bool = False  # lazy, but made of data in memory
    embedded: int | None = None  # bytes of data in the graph of a lazy collection
    scattered: int = 0  # partitions in memory that cannot be computed again
    #: of a frame: number of columns, and name of the first, by type
    types: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    contents: Contents | None = None  # None: not read
    made_here: bool = False  # made by this call, which releases its keys
    shared: bool = False  # made by this call, but others hold keys of it, too
    remainder: int = 0  # rows in the remainder

    @property
    def n_partitions(self) -> int:
        return len(self.keys) // self.column_blocks


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """Partitions of row-aligned collections: rows, bytes, holders."""

    label: str  # "training data" or "eval_set[0]"
    collections: tuple[CollectionInfo, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(m.label for m in self.collections)

    @property
    def loaded(self) -> bool:
        return all(m.loaded for m in self.collections)

    @property
    def aligned(self) -> bool:
        """Whether all collections have the same known rows in every partition."""
        first = self.collections[0].rows
        return first is not None and all(
            m.column_blocks == 1
            and m.rows is not None
            and np.array_equal(m.rows, first)
            for m in self.collections
        )

    @property
    def rows(self) -> Int64s:
        """Rows per partition of an aligned layout."""
        rows = self.collections[0].rows
        if rows is None or not self.aligned:
            raise ValueError(f"{self.label} has no common row boundaries")
        return rows

    @property
    def nbytes(self) -> int:
        """Bytes of all collections of a loaded layout."""
        known = (m.nbytes for m in self.collections if m.nbytes is not None)
        return sum(int(nbytes.sum()) for nbytes in known)
