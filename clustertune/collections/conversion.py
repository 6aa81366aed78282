"""Kinds and number types that were asked for with ``to=`` and ``dtype=``.

What has to change is decided from what a collection says of itself, before anything is
loaded. It is changed while pieces are loaded or cut, by methods of the pieces, which
are called by library functions: nothing of ours travels.
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
from dask._task_spec import Task
from dask.array.utils import meta_from_array
from dask.sizeof import sizeof

from clustertune.core.model import Conversion, Goal
from clustertune.core.wording import names_text


def asked(label: str, x: Any, goal: Goal) -> Conversion | None:
    """What must change of a collection; None: it is as it was asked for.

    ``dtype`` is of features, X and those of eval sets: labels, weights and groups keep
    their numbers.

    Raises
    ------
    ValueError
        It cannot become that without a change of its values.
    """
    features = label.rpartition(".")[2] == "X"
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
    width = math.prod(x.shape[1:])
    known = not math.isnan(width)
    return Conversion(
        kind="array",
        dtype=dtype.name,
        row_bytes=int(width) * dtype.itemsize if known else None,
    )


def _to_array(label: str, x: Any, dtype: np.dtype[Any] | None) -> Conversion:
    types = _types(x)
    other = [str(name) for name, t in types if not _is_number(t)]
    if other:
        raise ValueError(
            f"{label} cannot become an Array, since it is not all numbers: "
            f"{_of_types(x, other)}; encode or drop that first, for example with "
            ".cat.codes or dask_ml.preprocessing"
        )
    # numbers of groups are whole, and not lacking: as floats large ones would be others
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
    """Numbers are cast; other columns (categories, text) stay what they are.

    So are those that are of that type already, as Dask says: pieces may have another
    one, as after a function with a ``meta`` that it does not keep to. Sparse columns
    stay as they are, too: pandas would make them dense.
    """
    types = _types(x)
    cast = [(name, t) for name, t in types if _is_cast(t)]
    changed = [(name, t) for name, t in cast if t != dtype]
    if not changed:
        return None
    _refuse_repeated(label, types)
    _refuse_lossy(label, [_plain(t) for _, t in changed], dtype)
    sizes = [dtype.itemsize if _is_cast(t) else None for _, t in types]
    known = [s for s in sizes if s is not None]
    made = Conversion(
        kind="dataframe" if isinstance(x, dd.DataFrame) else "series",
        dtype=dtype.name,
        columns=tuple(name for name, _ in cast),
        row_bytes=sum(known) if len(known) == len(sizes) else None,
    )
    return replace(made, fixed=fixed_bytes(x, made))


def _is_cast(dtype: Any) -> bool:
    return _is_number(dtype) and not isinstance(dtype, pd.SparseDtype)


def _refuse_repeated(label: str, types: list[tuple[Any, Any]]) -> None:
    """Refuse a name of a number column that a column of another kind has too.

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
    x: Any, types: Mapping[Any, Any], made: Conversion | None
) -> Conversion:
    """A conversion of a frame that gives columns these types of categories, too.

    ``made`` is the conversion that it needs anyway.
    """
    categories = tuple(types.items())
    if made is not None:
        return replace(made, categories=categories, row_bytes=None)
    numbers = [t.name for _, t in _types(x) if isinstance(t, np.dtype)]
    return Conversion(
        kind="dataframe",
        dtype=numbers[0] if numbers else "float64",
        row_bytes=None,
        categories=categories,
    )


def union(lists: Iterable[Any]) -> Any:
    """One type of categories for several; None: they have an order, and none fits all.

    Categories are in the order in which they are met.
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
    """The float type of a frame's widest float column, if it holds all other numbers.

    Parameters
    ----------
    types
        Names of the types of columns.
    largest
        The largest of all whole numbers, without its sign.
    """
    numbers = [np.dtype(t) for t in types if t in _NUMBERS]
    floats = [t for t in numbers if t.kind == "f" and t.itemsize >= 4]
    if not floats or len(set(numbers)) < 2:
        return None
    widest = max(floats, key=lambda t: t.itemsize)
    digits = np.finfo(widest).nmant + 1
    return widest.name if largest <= 2**digits else None


_NUMBERS = frozenset(
    f"{kind}{bits}" for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64)
) - {"float8"} | {"bool"}


def _types(x: Any) -> list[tuple[Any, Any]]:
    """(name, type) of every column."""
    return (
        list(x.dtypes.items()) if isinstance(x, dd.DataFrame) else [(x.name, x.dtype)]
    )


def _of_types(x: Any, names: list[str]) -> str:
    """The columns, each with its type; of a Series its type alone."""
    types = {str(name): t for name, t in _types(x)}
    if not isinstance(x, dd.DataFrame):
        return f"its type is {types[names[0]]}"
    return names_text([f"{name} ({types[name]})" for name in names])


def _is_number(dtype: Any) -> bool:
    """Real numbers and truth values, NumPy's and those that may lack a value."""
    number = pd.api.types.is_numeric_dtype(dtype) or pd.api.types.is_bool_dtype(dtype)
    return number and _plain(dtype).kind in "biuf"


def _plain(dtype: Any) -> np.dtype[Any]:
    """The NumPy type for it: a float where a value may be lacking, which is NaN."""
    inner = _inner(dtype)
    never = isinstance(dtype, np.dtype | pd.SparseDtype)
    return inner if never or inner.kind not in "biu" else np.dtype(np.float64)


def _inner(dtype: Any) -> np.dtype[Any]:
    """The NumPy type of the values that are there."""
    if isinstance(dtype, np.dtype):
        return dtype
    if isinstance(dtype, pd.SparseDtype):
        return np.dtype(dtype.subtype)
    return getattr(dtype, "numpy_dtype", np.dtype(object))


def value_bytes(dtype: Any) -> int | None:
    """Bytes of one value of a column; None where values have no fixed width.

    A nullable type of pandas has one more byte, for its mask. Categories, text, sparse
    values and Arrow's buffers depend on the values.
    """
    if isinstance(dtype, np.dtype):
        return None if dtype.hasobject else dtype.itemsize
    if isinstance(dtype, pd.DatetimeTZDtype | pd.PeriodDtype):  # 64-bit integers
        return np.dtype(np.int64).itemsize
    if isinstance(dtype, pd.ArrowDtype) or not hasattr(dtype, "numpy_dtype"):
        return None
    return int(dtype.numpy_dtype.itemsize) + 1


def number_bytes(dtype: Any) -> int | None:
    """Bytes of one number as libraries read it; None where values are no numbers."""
    inner = _inner(dtype)
    return inner.itemsize if inner.kind in "biufc" else None


def _refuse_lossy(label: str, types: list[np.dtype[Any]], dtype: np.dtype[Any]) -> None:
    """Fewer digits were asked for; cut off or overflown numbers were not."""
    rule: Any = "same_kind" if dtype.kind == "f" else "safe"
    wrong = sorted({t.name for t in types if not np.can_cast(t, dtype, rule)})
    if wrong:
        raise ValueError(
            f'dtype="{dtype.name}": {label} has numbers of type {", ".join(wrong)}, '
            "which do not all fit in it; give a float type, or cast them yourself"
        )


# --- how ------------------------------------------------------------------------------


def converter(x: Any, conversion: Conversion) -> tuple[Callable[[Any], Any], ...]:
    """Functions that are applied to a piece of x, or to some of its rows, in turn.

    The result may be a view. A piece may be of another type than the collection says
    (integers that lack a value in one file are floats there): what would not fit is an
    error then, and never another number.
    """
    dtype = conversion.dtype
    whole = np.dtype(dtype).kind in "biu"
    rule = "safe" if whole else "same_kind"
    cast = operator.methodcaller("astype", dtype, casting=rule)
    if isinstance(x, da.Array):
        return (cast,)
    if conversion.kind == "array":
        if not whole:
            lacking = {"na_value": math.nan} if conversion.nullable else {}
            return (operator.methodcaller("to_numpy", dtype, **lacking),)
        # pandas would cut off what is lacking or no whole number; truth values beside
        # whole numbers would make it objects
        return (*_as_whole(x, dtype), operator.methodcaller("to_numpy"), cast)
    one = isinstance(x, dd.Series)
    types = dict.fromkeys(conversion.columns, dtype) | dict(conversion.categories)
    return (operator.methodcaller("astype", dtype if one else types),)


def _as_whole(x: Any, dtype: str) -> tuple[Callable[[Any], Any], ...]:
    """What makes truth values, and nullable types, plain whole numbers; or raises."""
    types = _types(x)
    odd = {
        name: dtype
        for name, t in types
        if not isinstance(t, np.dtype) or (t.kind == "b" and dtype != "bool")
    }
    if not odd:
        return ()
    one = isinstance(x, dd.Series)
    return (operator.methodcaller("astype", dtype if one else odd),)


def applied(functions: Iterable[Callable[[Any], Any]], to: Any) -> Any:
    """A task that applies them one after the other."""
    for function in functions:
        to = Task(None, function, to)
    return to


def meta(x: Any, conversion: Conversion | None) -> Any:
    """An empty piece of the collection as it will be."""
    if isinstance(x, da.Array):
        own: Any = meta_from_array(x)
        return own if conversion is None else own.astype(conversion.dtype)
    own = x._meta  # noqa: SLF001 (its public name is that of a property)
    if conversion is None:
        return own
    if conversion.kind == "array":
        shape = (0, len(x.columns)) if isinstance(x, dd.DataFrame) else (0,)
        return np.empty(shape, dtype=conversion.dtype)
    for function in converter(x, conversion):
        own = function(own)
    return own


def fixed_bytes(x: Any, conversion: Conversion | None) -> int:
    """Bytes of each piece of a collection besides its rows, as Dask counts them.

    pandas keeps an index of the names of columns that were looked up. A piece has none
    where it was sent, until it is converted.
    """
    if isinstance(x, da.Array):
        return 0
    empty = meta(x, conversion)
    if conversion is None:
        empty = pickle.loads(pickle.dumps(empty))  # noqa: S301 (our own bytes)
    return int(sizeof(empty))


def column_chunks(x: Any, *, joined: bool) -> tuple[tuple[Any, ...], ...]:
    """The chunks of an array with these columns, but for those of its rows."""
    if isinstance(x, da.Array):
        chunks: tuple[tuple[Any, ...], ...] = x.chunks[1:]
        return tuple((sum(sizes),) for sizes in chunks) if joined else chunks
    return ((len(x.columns),),) if isinstance(x, dd.DataFrame) else ()
