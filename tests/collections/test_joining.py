"""Kinds of chunks and columns keep values, types and masks in cuts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from distributed import Client, wait
from xgboost.dask import DaskXGBRanker

import clustertune
from clustertune.errors import AlignmentError, RefusedError
from tests.processes import local_workers

ROWS = 120
NUMBERS = np.arange(ROWS * 4, dtype="f8").reshape(ROWS, 4)
CHUNKS = (41, 0, 40, 39)
ENDS = np.cumsum((0, *CHUNKS))
GROUPS = (np.arange(ROWS) * 7) % 11
MASK = NUMBERS % 5 == 0


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A client of two worker processes."""
    with local_workers() as client:
        yield client


def array(values: Any) -> da.Array:
    return da.from_array(values, chunks=(CHUNKS, *values.shape[1:]))


def frame(values: Any) -> Any:
    """A frame with unknown divisions and an empty partition."""
    parts = [values.iloc[i:j] for i, j in pairwise(ENDS)]
    made = [dask.delayed(part) for part in parts]
    return dd.from_delayed(made, meta=values.iloc[:0], verify_meta=False)


def sparse(make: Any) -> da.Array:
    return array(np.where(MASK, NUMBERS, 0)).map_blocks(make, dtype="f8")


def column(values: Any, **others: Any) -> Any:
    return frame(pd.DataFrame({"a": NUMBERS[:, 0], "b": values, **others}))


def repeated_names(**others: Any) -> Any:
    values = pd.DataFrame(NUMBERS, columns=list("abbc"))
    return frame(values.assign(**others))


def nullable() -> Any:
    some = [None if i % 9 == 0 else i % 2 for i in range(ROWS)]
    return column(
        pd.array(some, dtype="Int32"),
        c=pd.array(some, dtype="boolean"),
        d=pd.array(some, dtype="Float32"),
    )


def records() -> da.Array:
    values = np.zeros(ROWS, dtype=[("a", ">f8"), ("b", "i4")])
    values["a"], values["b"] = NUMBERS[:, 0], np.arange(ROWS)
    return array(values)


KINDS = {
    "masked": lambda: array(np.ma.masked_array(NUMBERS, MASK, fill_value=-5)),
    "masks that metadata lacks": lambda: array(NUMBERS).map_blocks(
        np.ma.masked_equal, 8, dtype="f8", meta=np.empty((0, 0))
    ),
    "csr": lambda: sparse(sp.csr_matrix),
    "csc": lambda: sparse(sp.csc_matrix),
    "coo": lambda: sparse(sp.coo_matrix),
    "coo array": lambda: sparse(sp.coo_array),
    "bsr": lambda: sparse(sp.bsr_matrix),
    "lil": lambda: sparse(sp.lil_matrix),
    "big-endian": lambda: array(NUMBERS.astype(">f8")),
    "records": records,
    "sparse columns": lambda: column(
        pd.arrays.SparseArray(np.where(MASK[:, 0], 1.5, 0)),
        c=pd.arrays.SparseArray(np.arange(ROWS) % 3),
    ),
    "sparse series": lambda: column(pd.arrays.SparseArray(np.arange(ROWS) % 3))["b"],
    "repeated names": repeated_names,
    "levels of names": lambda: frame(
        pd.DataFrame(NUMBERS, columns=pd.MultiIndex.from_product([["u", "v"], [1, 2]]))
    ),
    "levels of index": lambda: frame(
        pd.DataFrame(
            NUMBERS,
            index=[np.arange(ROWS) // 10, np.arange(ROWS)],
            columns=list("abcd"),
        )
    ),
    "categories": lambda: column(pd.Categorical(list("xyz") * (ROWS // 3))),
    "arrow": lambda: column(
        pd.array(np.arange(ROWS), dtype="int64[pyarrow]"),
        c=pd.array(list("xyz") * (ROWS // 3), dtype="string[pyarrow]"),
    ),
    "nullable": nullable,
    "time zones": lambda: column(
        pd.date_range("2020", periods=ROWS, freq="h", tz="Europe/Berlin"),
        c=pd.period_range("2020-01", periods=ROWS, freq="D"),
        d=pd.IntervalIndex.from_breaks(np.arange(ROWS + 1)),
    ),
}


def partitions(x: Any) -> list[Any]:
    """Return the partitions."""
    delayed = x.to_delayed()
    return list(
        dask.compute(*(delayed.ravel() if isinstance(x, da.Array) else delayed))
    )


def whole(parts: list[Any]) -> Any:
    """Return all rows in memory, SciPy's as CSR."""
    if isinstance(parts[0], pd.DataFrame | pd.Series):
        return pd.concat(parts)
    if sp.issparse(parts[0]):
        return sp.vstack([p.tocsr() for p in parts], format="csr")
    if any(isinstance(p, np.ma.MaskedArray) for p in parts):
        return np.ma.concatenate(parts)
    return np.concatenate(parts).astype(parts[0].dtype)


def assert_same(found: Any, wanted: Any) -> None:
    if isinstance(wanted, pd.DataFrame):
        pd.testing.assert_frame_equal(found, wanted, check_freq=False)
    elif isinstance(wanted, pd.Series):
        pd.testing.assert_series_equal(found, wanted)
    elif sp.issparse(wanted):
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found.toarray(), wanted.toarray())
    else:
        assert (type(found), found.dtype) == (type(wanted), wanted.dtype)
        np.testing.assert_array_equal(
            np.ma.getmaskarray(found) if found.dtype.names is None else found,
            np.ma.getmaskarray(wanted) if wanted.dtype.names is None else wanted,
        )
        if found.dtype.names is None:
            np.testing.assert_array_equal(np.ma.filled(found), np.ma.filled(wanted))


@pytest.mark.parametrize("kind", KINDS)
def test_kinds(client: Client, kind: str) -> None:
    """Values, order, types and masks stay with their rows and labels."""
    X = client.persist(KINDS[kind]())
    (y,) = client.persist([da.from_array(NUMBERS[:, 0], chunks=50)])
    wait([X, y])
    given = partitions(X)
    prepared = clustertune.prepare(client, X, y, progress=False, rechunk=7)
    np.testing.assert_array_equal(prepared.y.compute(), NUMBERS[:, 0])
    made, rows = partitions(prepared.X), whole(given)
    assert_same(whole(made), rows)
    if sp.issparse(given[0]):
        assert {p.format for p in made} == {"csr"}
    elif isinstance(X, da.Array):
        assert {(type(p), p.dtype) for p in made} == {(type(given[0]), X.dtype)}
    clustertune.check(client, prepared.X, prepared.y, deep=True)


@pytest.mark.parametrize("kind", ["sparse columns", "repeated names", "coo", "masked"])
def test_lazy_kinds(client: Client, kind: str) -> None:
    """Lazy kinds are recognized and loaded."""
    X, y = KINDS[kind](), da.from_array(NUMBERS[:, 0], chunks=50)
    clustertune.check(client, X, y, deep=True)
    prepared = clustertune.prepare(client, X, y, progress=False)
    assert_same(whole(partitions(prepared.X)), whole(partitions(KINDS[kind]())))


def test_divisions_stay_known(client: Client) -> None:
    """The divisions of a cut frame match those of the given frame."""
    values = pd.DataFrame(NUMBERS, columns=list("abcd"), index=np.arange(ROWS) * 2)
    X = client.persist(dd.from_pandas(values, npartitions=5))
    y = da.from_array(NUMBERS[:, 0], chunks=50)
    X2, _ = clustertune.prepare(client, X, y, rechunk=7, progress=False)
    assert (X2.npartitions, X2.known_divisions) == (7, True)
    assert (X2.divisions[0], X2.divisions[-1]) == (0, 2 * ROWS - 2)
    pd.testing.assert_frame_equal(
        (X2 + X[["a"]]).compute(), values + values[["a"]], check_freq=False
    )
    pd.testing.assert_frame_equal(X2.loc[100:140].compute(), values.loc[100:140])


def test_no_division_within_an_index_value(client: Client) -> None:
    """An index value on both sides of a cut is not used as a division."""
    values = pd.DataFrame(NUMBERS, columns=list("abcd"), index=np.arange(ROWS) // 60)
    X = client.persist(dd.from_pandas(values, npartitions=2))
    assert X.known_divisions
    (X2,) = clustertune.prepare(client, X, rechunk=6, progress=False)
    assert (X2.npartitions, X2.known_divisions) == (6, False)
    pd.testing.assert_frame_equal(X2.compute(), values)


def missing_groups(kind: str) -> Any:
    groups = GROUPS.astype("f8")
    if kind == "masked":
        return da.from_array(np.ma.masked_equal(groups, 3), chunks=50)
    groups[groups == 3] = np.nan
    if kind == "array":
        return da.from_array(groups, chunks=50)
    dtype = {"series": "f8", "nullable": "Int64"}[kind]
    return dd.from_pandas(pd.Series(groups, dtype=dtype), npartitions=3)


@pytest.mark.parametrize("kind", ["array", "masked", "series", "nullable"])
def test_rows_without_a_group(client: Client, kind: str) -> None:
    """Missing group ids are refused with code that drops the rows; the code works."""
    X: Any = da.from_array(NUMBERS, chunks=50)
    if kind in ("series", "nullable"):
        X = dd.from_pandas(pd.DataFrame(NUMBERS, columns=list("abcd")), npartitions=3)
    y, qid = X[:, 0] if kind in ("array", "masked") else X["a"], missing_groups(kind)
    count = int((GROUPS == 3).sum())
    lightgbm = {"estimator": "lightgbm_rank", "progress": False}
    if kind == "series":  # XGBoost's ranker would make one group of these rows
        with pytest.raises(AlignmentError, match=f"{count} rows without a group"):
            clustertune.prepare(client, X, y, qid=qid, estimator=DaskXGBRanker())
    with pytest.raises(AlignmentError, match=f"{count} rows without a group") as error:
        clustertune.prepare(client, X, y, qid=qid, **lightgbm)
    code = str(error.value).split("`")[1]
    names = {"X": X, "y": y, "qid": qid, "dask": dask, "numpy": np}
    exec(code, names)
    X, y, qid = (names[name] for name in ("X", "y", "qid"))
    # the groups that remain come back, and the code of that error sorts them
    with pytest.raises(AlignmentError, match="come back") as error:
        clustertune.prepare(client, X, y, qid=qid, **lightgbm)
    names |= {"X": X, "y": y, "qid": qid}
    exec(str(error.value).split("`")[1], names)
    X, y, qid = (names[name] for name in ("X", "y", "qid"))
    p = clustertune.prepare(client, X, y, qid=qid, **lightgbm)
    kept = np.flatnonzero(GROUPS != 3)
    wanted = kept[np.argsort(GROUPS[kept], kind="stable")]
    found = np.asarray(p.y.compute())
    if kind in ("array", "masked"):
        np.testing.assert_array_equal(found, NUMBERS[wanted, 0])
    assert sorted(found) == sorted(NUMBERS[wanted, 0])


def test_repeated_names_beside_categories(client: Client) -> None:
    """Dask joins categories by name and fails; the named fix works."""
    X = repeated_names(d=pd.Categorical(list("xyz") * (ROWS // 3)))
    with pytest.raises(RefusedError, match="named b and there") as error:
        clustertune.prepare(client, X, rechunk=7, progress=False)
    exec(str(error.value).split("`")[1], {"X": X})
    (made,) = clustertune.prepare(client, X, rechunk=7, progress=False)
    assert_same(made.compute(), whole(partitions(X)))
