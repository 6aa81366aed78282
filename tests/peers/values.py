"""Read the values of Dask collections, and compare those of two fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import cloudpickle
import dask
import dask.array as da
import numpy as np
import pandas as pd
import scipy.sparse
from dask.core import flatten
from distributed import futures_of

from clustertune.collections import graphs


class ValuesChangedError(AssertionError):
    """The prepared collections differ from the given ones."""


@dataclass(frozen=True)
class Values:
    """What a collection holds, and how many rows each of its partitions has."""

    whole: Any
    rows: tuple[int, ...] | None = None  # None: of data that is not loaded


async def read(client: Any, collection: Any) -> Values:
    """Read a collection; one in memory is read without moving it between workers."""
    futures = {future.key: future for future in futures_of(collection)}
    keys = list(flatten(collection.__dask_keys__()))
    is_loaded = futures.keys() >= set(keys)
    is_split_by_rows = (
        not isinstance(collection, da.Array)
        or collection.numblocks[0] == collection.npartitions
    )
    if not is_split_by_rows:
        return Values(*await _computed(client, collection, [collection]))
    if not is_loaded:
        # Dask may know another shape than its chunks have: do not let it join them
        delayed = np.ravel(np.asarray(collection.to_delayed(), dtype=object)).tolist()
        return Values(_join(await _computed(client, collection, delayed)))
    partitions = await client.gather([futures[key] for key in keys], asynchronous=True)
    rows = tuple(int(p.shape[0]) for p in partitions)
    return Values(_join(partitions), rows)


async def _computed(client: Any, collection: Any, parts: list[Any]) -> list[Any]:
    """Compute parts of a collection without keys that the fit uses in another graph.

    Dask optimises the graph of each computation, and mixes up tasks of one key.
    """
    if not graphs.origin(collection)[0]:
        # from copies, as on workers: a random generator in a function must not advance
        (own,) = zip(*map(dask.optimize, parts), strict=True)
        copies = (cloudpickle.loads(cloudpickle.dumps(part)) for part in own)
        return [part.compute(scheduler="sync") for part in copies]
    computed = client.compute(parts)
    return list(await client.gather(computed, asynchronous=True))


def _join(partitions: list[Any]) -> Any:
    first = partitions[0]
    if isinstance(first, pd.DataFrame | pd.Series):
        return pd.concat(partitions) if len(partitions) > 1 else first
    if scipy.sparse.issparse(first):
        return scipy.sparse.vstack(partitions)
    if isinstance(first, np.ma.MaskedArray):
        return np.ma.concatenate(partitions)
    return np.concatenate(partitions)


def compare(
    before: Mapping[str, Values],
    after: Mapping[str, Values],
    *,
    takes_arrays: bool = False,
) -> None:
    """Compare every collection by its label.

    Parameters
    ----------
    before, after
        By label what was given to ``prepare`` and what goes to the fit.
    takes_arrays
        The library takes Arrays only, so ``prepare`` may convert frames.

    Raises
    ------
    ValuesChangedError
        A collection is missing, has other values or another order of rows, or its
        partitions do not have the rows of those of X.
    """
    if before.keys() != after.keys():
        missing, extra = before.keys() - after.keys(), after.keys() - before.keys()
        raise ValuesChangedError(
            f"the fit gets no {sorted(missing)}, and gets {sorted(extra)} in addition"
        )
    for label, given in before.items():
        expected, got = given.whole, after[label].whole
        if label.endswith("group"):  # LightGBM converts any type to an array
            expected, got = np.asarray(expected), np.asarray(got)
        if takes_arrays and isinstance(got, np.ndarray):
            expected = np.asarray(expected)
        problem = _difference(expected, got, copies="eval_set" in label)
        if problem:
            raise ValuesChangedError(f"{label}: {problem}")
        _compare_partitions(label, after)


def _compare_partitions(label: str, after: Mapping[str, Values]) -> None:
    prefix, dot, name = label.rpartition(".")
    X, rows = after[f"{prefix}{dot}X"].rows, after[label].rows
    if name == "group" or X is None or rows is None:
        return
    if rows != X:
        raise ValuesChangedError(
            f"{label}: partitions have {rows} rows, those of X {X}"
        )


def _difference(before: Any, after: Any, *, copies: bool) -> str:
    """What differs, in words; "" if nothing does."""
    n, m = before.shape[0], after.shape[0]
    times = m // n if copies and n and m % n == 0 else 1
    if m != n * times:
        return f"{n} rows before, {m} after"
    if type(before) is not type(after) and not (
        scipy.sparse.issparse(before) and scipy.sparse.issparse(after)
    ):
        return f"{type(before).__name__} before, {type(after).__name__} after"
    for copy in range(times):
        rows = slice(copy * n, (copy + 1) * n)
        part = after.iloc[rows] if hasattr(after, "iloc") else after[rows]
        try:
            _assert_equal(before, part)
        except AssertionError as error:
            return str(error)
    return ""


def _assert_equal(before: Any, after: Any) -> None:
    """Compare values, names and order, but not the types that hold them."""
    if isinstance(before, pd.DataFrame):
        pd.testing.assert_index_equal(before.columns, after.columns)
        pd.testing.assert_index_equal(before.index, after.index, exact=False)
        for i in range(before.shape[1]):
            _assert_equal_columns(before.iloc[:, i], after.iloc[:, i])
    elif isinstance(before, pd.Series):
        assert before.name == after.name, f"name {before.name!r}, then {after.name!r}"
        _assert_equal(before.to_frame(), after.to_frame())
    elif scipy.sparse.issparse(before):
        np.testing.assert_array_equal(before.toarray(), after.toarray())
    elif isinstance(before, np.ma.MaskedArray):
        np.testing.assert_array_equal(
            np.ma.getmaskarray(before), np.ma.getmaskarray(after)
        )
        np.testing.assert_array_equal(before.filled(0), after.filled(0))
    else:
        np.testing.assert_array_equal(before, after)


def _assert_equal_columns(before: pd.Series, after: pd.Series) -> None:
    """Compare what is missing, and the values of the rest."""
    np.testing.assert_array_equal(before.isna(), after.isna())
    both = (column[column.notna()].to_numpy(object) for column in (before, after))
    np.testing.assert_array_equal(*both)
