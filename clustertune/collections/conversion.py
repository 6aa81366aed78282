"""Convert collections to the kinds and number types of ``to=`` and ``dtype=``.

A conversion is decided from the metadata of a collection, before it is loaded. It is
applied while partitions are loaded or cut, by methods of the partitions that library
functions call, so no code of this package travels.
"""

from __future__ import annotations

import math
import operator
import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
from dask._task_spec import Task, TaskRef
from dask.array.utils import meta_from_array
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph
from dask.sizeof import sizeof

from clustertune.core.model import Conversion, Goal
from clustertune.core.wording import names_text, variable

MAX_GROUPS = 2**32  # in a partition
_NUMBERS = {np.dtype(code).name for code in "?bBhHiIlLqQefd"}  # without long double


def requested(label: str, x: Any, goal: Goal) -> Conversion | None:
    """Return the conversion that the goal needs; None: the collection stays.

    ``dtype`` applies to features, also those of eval sets. Labels, weights and groups
    keep their numbers. A conversion that would change values raises a ``ValueError``.
    """
    features = variable(label) == "X"
    dtype = np.dtype(goal.dtype) if goal.dtype and features else None
    if isinstance(x, da.Array):
        return None if dtype is None else _of_array(label, x, dtype)
    if goal.to == "array":
        return _to_array(label, x, dtype)
    return None if dtype is None else _of_frame(label, x, dtype)


def _of_array(label: str, x: da.Array, dtype: np.dtype[Any]) -> Conversion | None:
    if x.dtype == dtype:
        return None
    _refuse_lossy(label, [x.dtype], dtype)
    width = n_columns(x)
    row_bytes = None if width is None else width * dtype.itemsize
    return Conversion(kind="array", dtype=dtype.name, row_bytes=row_bytes)


def n_columns(x: da.Array) -> int | None:
    """Return the numbers in a row of an array; None: unknown."""
    width = math.prod(x.shape[1:])
    return None if math.isnan(width) else int(width)


def _to_array(label: str, x: Any, dtype: np.dtype[Any] | None) -> Conversion:
    types = _types(x)
    other = [str(name) for name, t in types if not _is_number(t)]
    if other:
        raise ValueError(
            f"{label} cannot become an Array, since it is not all numbers: "
            f"{_of_types(x, other)}; encode or drop that first, for example with "
            ".cat.codes or dask_ml.preprocessing"
        )
    # group numbers stay integers: floats would change large ones
    whole = label == "qid"
    plain = [_inner(t) if whole else _plain(t) for _, t in types]
    if dtype is None:
        dtype = np.result_type(*plain)
    else:
        _refuse_lossy(label, plain, dtype)
    nullable = not whole and any(not isinstance(t, np.dtype) for _, t in types)
    return Conversion(
        kind="array",
        dtype=dtype.name,
        row_bytes=len(types) * dtype.itemsize,
        nullable=nullable,
    )


def _of_frame(label: str, x: Any, dtype: np.dtype[Any]) -> Conversion | None:
    """Cast columns of numbers; categories and text stay.

    Columns that have the type in the metadata are cast too, because partitions may
    differ from the metadata. Sparse columns stay: pandas would make them dense.
    """
    types = _types(x)
    cast = [(name, t) for name, t in types if _is_cast(t)]
    changed = [(name, t) for name, t in cast if t != dtype]
    if not changed:
        return None
    _refuse_repeated(label, types)
    _refuse_lossy(label, [_plain(t) for _, t in changed], dtype)
    known = len(cast) == len(types)
    made = Conversion(
        kind="dataframe" if isinstance(x, dd.DataFrame) else "series",
        dtype=dtype.name,
        columns=tuple(name for name, _ in cast),
        row_bytes=len(types) * dtype.itemsize if known else None,
    )
    return replace(made, fixed=fixed_bytes(x, made))


def _is_cast(dtype: Any) -> bool:
    return _is_number(dtype) and not isinstance(dtype, pd.SparseDtype)


def _refuse_repeated(label: str, types: list[tuple[Any, Any]]) -> None:
    """Refuse columns of numbers that share a name with another column.

    pandas casts columns by name, so it would cast both.
    """
    cast = {name for name, t in types if _is_cast(t)}
    both = sorted({str(name) for name, t in types if name in cast and not _is_cast(t)})
    if both:
        raise ValueError(
            f"dtype=: {label} has several columns named {names_text(both)}, of which "
            "some are numbers and some are not, so they cannot be cast by name; "
            "rename them"
        )


def with_categories(
    x: Any, types: Mapping[Any, Any], conversion: Conversion | None
) -> Conversion:
    """Extend a conversion by types of categories, by column."""
    categories = tuple(types.items())
    if conversion is not None:
        return replace(conversion, categories=categories, row_bytes=None)
    numbers = [t.name for _, t in _types(x) if isinstance(t, np.dtype)]
    return Conversion(
        kind="dataframe",
        dtype=numbers[0] if numbers else "float64",
        row_bytes=None,
        categories=categories,
    )


def union(lists: Iterable[Any]) -> Any:
    """Return one type of categories for several; None: ordered ones that differ.

    Categories are in the order in which they first occur.
    """
    known = list(lists)
    first = known[0]
    if all(t == first for t in known):
        return first
    if any(t.ordered for t in known):
        return None
    merged = first.categories
    for t in known[1:]:
        merged = merged.append(t.categories.difference(merged, sort=False))
    return pd.CategoricalDtype(merged)


def exact_float(types: Iterable[str], largest: int) -> str | None:
    """Return the type of the widest float column, if it represents all numbers.

    ``largest`` is the largest absolute value of all integers.
    """
    numbers = [np.dtype(t) for t in types if t in _NUMBERS]
    floats = [t for t in numbers if t.kind == "f" and t.itemsize >= 4]
    if not floats or len(set(numbers)) < 2:
        return None
    widest = max(floats, key=lambda t: t.itemsize)
    # a float represents all integers up to 2 ** (bits of its significand)
    return widest.name if largest <= 2 ** (np.finfo(widest).nmant + 1) else None


def _types(x: Any) -> list[tuple[Any, Any]]:
    """Return (name, type) of every column."""
    is_frame = isinstance(x, dd.DataFrame)
    return list(x.dtypes.items()) if is_frame else [(x.name, x.dtype)]


def _of_types(x: Any, names: list[str]) -> str:
    """Describe columns with their types, or the type of a Series."""
    types = {str(name): t for name, t in _types(x)}
    if not isinstance(x, dd.DataFrame):
        return f"its type is {types[names[0]]}"
    return names_text([f"{name} ({types[name]})" for name in names])


def _is_number(dtype: Any) -> bool:
    """Return whether values are real numbers or booleans, nullable or not."""
    number = pd.api.types.is_numeric_dtype(dtype) or pd.api.types.is_bool_dtype(dtype)
    return number and _plain(dtype).kind in "biuf"


def _plain(dtype: Any) -> np.dtype[Any]:
    """Return the NumPy type: a float if values may be missing, as NaN."""
    inner = _inner(dtype)
    nullable = not isinstance(dtype, np.dtype | pd.SparseDtype)
    return np.dtype(np.float64) if nullable and inner.kind in "biu" else inner


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


def _refuse_lossy(label: str, types: list[np.dtype[Any]], dtype: np.dtype[Any]) -> None:
    """Refuse truncation and overflow; fewer digits are allowed."""
    rule: Any = "same_kind" if dtype.kind == "f" else "safe"
    wrong = sorted({t.name for t in types if not np.can_cast(t, dtype, rule)})
    if wrong:
        raise ValueError(
            f'dtype="{dtype.name}": {label} has numbers of type {", ".join(wrong)}, '
            "which do not all fit in it; use a float type, or cast them yourself"
        )


# --- apply ----------------------------------------------------------------------------


def converter(
    x: Any, conversion: Conversion | None
) -> tuple[Callable[[Any], Any], ...]:
    """Return functions to apply in turn to a partition of x, or to some of its rows.

    The result may be a view. A partition may differ from the metadata: integers with a
    missing value in one file are floats there. A value that does not fit then raises an
    error and never becomes another number.
    """
    if conversion is None:
        return ()
    dtype = conversion.dtype
    whole = np.dtype(dtype).kind in "biu"
    rule = "safe" if whole else "same_kind"
    cast = operator.methodcaller("astype", dtype, casting=rule)
    if isinstance(x, da.Array):
        return (cast,)
    if conversion.kind == "array":
        if not whole:
            missing = {"na_value": math.nan} if conversion.nullable else {}
            return (operator.methodcaller("to_numpy", dtype, **missing),)
        # `cast` raises an error for missing or fractional values, which pandas would
        # truncate; booleans next to integers would become objects
        types = {
            name: dtype
            for name, t in _types(x)
            if not isinstance(t, np.dtype) or (t.kind == "b" and dtype != "bool")
        }
        functions = (operator.methodcaller("to_numpy"), cast)
        return (_as_types(x, types, dtype), *functions) if types else functions
    types = dict.fromkeys(conversion.columns, dtype) | dict(conversion.categories)
    return (_as_types(x, types, dtype),)


def _as_types(x: Any, types: Mapping[Any, Any], dtype: str) -> Callable[[Any], Any]:
    """Return a function that casts columns, or a Series to ``dtype``."""
    return operator.methodcaller("astype", dtype if isinstance(x, dd.Series) else types)


def meta(x: Any, conversion: Conversion | None) -> Any:
    """Return an empty partition of the converted collection."""
    is_array = isinstance(x, da.Array)
    empty: Any = meta_from_array(x) if is_array else x._meta  # noqa: SLF001 (Dask's name)
    if is_array:
        return empty if conversion is None else empty.astype(conversion.dtype)
    if conversion is not None and conversion.kind == "array":
        shape = (0, len(x.columns)) if isinstance(x, dd.DataFrame) else (0,)
        return np.empty(shape, dtype=conversion.dtype)
    for function in converter(x, conversion):
        empty = function(empty)
    return empty


def fixed_bytes(x: Any, conversion: Conversion | None) -> int:
    """Return the bytes of each partition apart from its rows, as Dask counts them.

    pandas caches an index of columns that were looked up. A partition that was sent has
    no such cache until it is converted.
    """
    if isinstance(x, da.Array):
        return 0
    empty = meta(x, conversion)
    if conversion is None:
        empty = pickle.loads(pickle.dumps(empty))  # noqa: S301 (our own bytes)
    return int(sizeof(empty))


def column_chunks(x: Any, *, joined: bool) -> tuple[tuple[Any, ...], ...]:
    """Return the chunks of an array with these columns, without those of its rows."""
    if isinstance(x, da.Array):
        chunks: tuple[tuple[Any, ...], ...] = x.chunks[1:]
        return tuple((sum(sizes),) for sizes in chunks) if joined else chunks
    return ((len(x.columns),),) if isinstance(x, dd.DataFrame) else ()


# --- groups ---------------------------------------------------------------------------


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
