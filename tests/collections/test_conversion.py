"""``to=`` and ``dtype=``: which data they change, and which they refuse."""

from __future__ import annotations

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from clustertune.collections.conversion import (
    converter,
    exact_float,
    meta,
    requested,
    union,
    with_categories,
)
from clustertune.core.model import Goal
from clustertune.integrations.libraries import GENERIC

FRAME = pd.DataFrame(
    {
        "f": np.arange(6, dtype="f8") / 4,
        "g": np.arange(6, dtype="f4"),
        "i": np.arange(6),
        "b": [True, False] * 3,
        "n": pd.array([1, 2, None, 4, 5, 6], dtype="Int64"),
        "c": pd.Categorical(list("abcabc")),
        "t": list("uvwuvw"),
        "d": pd.date_range("2024", periods=6),
    }
)
X = dd.from_pandas(FRAME, npartitions=2)


def converted(x, conversion, partition):
    for function in converter(x, conversion):
        partition = function(partition)
    return partition


def goal(**wanted):
    return Goal(workload=GENERIC.profile, **wanted)


def test_nothing_was_asked_for():
    """Without ``to`` and ``dtype`` kinds and types stay, also mixed ones."""
    for x in (X, X["t"], da.ones((4, 2))):
        assert requested("X", x, goal()) is None


def test_what_is_so_already():
    """An array that has the type stays the same array, and a frame the same frame."""
    assert requested("X", da.ones((4, 2)), goal(to="array")) is None
    assert requested("X", da.ones((4, 2)), goal(to="array", dtype="float64")) is None
    assert requested("X", X[["f"]], goal(dtype="float64")) is None


def test_only_features_are_cast():
    """Labels and weights keep their numbers; features of eval sets are cast."""
    array = da.ones((4, 2))
    for label in ("y", "sample_weight", "others[0]", "eval_set[0].y"):
        assert requested(label, array, goal(dtype="float32")) is None
    for label in ("X", "eval_set[0].X"):
        found = requested(label, array, goal(dtype="float32"))
        assert (found.kind, found.dtype, found.row_bytes) == ("array", "float32", 8)
        assert str(found) == "an Array of float32"


@pytest.mark.parametrize(
    ("columns", "dtype"),
    [
        (["f", "g", "i", "b"], "float64"),
        (["g"], "float32"),
        (["i"], "int64"),
        (["b"], "bool"),
        (["n"], "float64"),
        (["i", "n"], "float64"),
    ],
)
def test_frames_become_arrays(columns, dtype):
    """The array has the type that holds all columns; a missing value becomes NaN."""
    found = requested("X", X[columns], goal(to="array"))
    assert (found.kind, found.dtype) == ("array", dtype)
    assert found.row_bytes == len(columns) * np.dtype(dtype).itemsize
    made = converted(X[columns], found, FRAME[columns])
    assert type(made) is np.ndarray
    assert (made.dtype, made.shape) == (dtype, (6, len(columns)))
    expected = FRAME[columns].astype(dtype if "n" not in columns else "float64")
    np.testing.assert_array_equal(made, expected)
    empty = meta(X[columns], found)
    assert (empty.dtype, empty.shape) == (dtype, (0, len(columns)))


def test_a_series_becomes_an_array():
    """A series becomes an array with one dimension."""
    found = requested("y", X["n"], goal(to="array", dtype="float32"))
    assert (found.kind, found.dtype, found.row_bytes) == ("array", "float64", 8)
    made = converted(X["n"], found, FRAME["n"])
    np.testing.assert_array_equal(made, [1, 2, np.nan, 4, 5, 6])
    assert meta(X["n"], found).shape == (0,)


def test_features_as_an_array_of_one_type():
    """Kind and type change in one step."""
    found = requested("X", X[["f", "n"]], goal(to="array", dtype="float32"))
    made = converted(X[["f", "n"]], found, FRAME[["f", "n"]])
    assert made.dtype == "float32"
    assert np.isnan(made[2, 1])


def test_numbers_in_a_frame_are_cast():
    """Other columns stay; booleans count as numbers."""
    found = requested("X", X, goal(dtype="float32"))
    assert found.kind == "dataframe"
    assert found.columns == ("f", "g", "i", "b", "n")
    assert found.row_bytes is None
    made = converted(X, found, FRAME)
    assert made.dtypes["f"] == made.dtypes["n"] == "float32"
    assert made["c"].equals(FRAME["c"])
    assert str(found) == "a DataFrame with float32 for numbers"
    assert meta(X, found).dtypes["i"] == "float32"
    assert requested("X", X[["f", "i"]], goal(dtype="float32")).row_bytes == 8


@pytest.mark.parametrize("column", ["c", "t", "d"])
def test_what_is_no_number_is_refused(column):
    """The error names columns and types, and has a fix."""
    with pytest.raises(
        ValueError, match=rf"X cannot become an Array, .* all numbers: {column} \("
    ) as caught:
        requested("X", X[["f", column]], goal(to="array"))
    assert "encode or drop that first" in str(caught.value)
    with pytest.raises(ValueError, match=r"y cannot become an Array, .*: its type is"):
        requested("y", X[column], goal(to="array"))


@pytest.mark.parametrize(
    ("x", "dtype"),
    [
        (da.ones(3), "int64"),
        (da.ones(3, dtype="i8"), "int32"),
        (da.ones(3, dtype="i4"), "uint32"),
        (da.ones(3, dtype="c16"), "float64"),
        (da.ones(3, dtype=object, chunks=3), "float64"),
        (X[["f"]], "int64"),
        (X[["n"]], "int64"),
    ],
)
def test_numbers_that_would_not_fit_are_refused(x, dtype):
    """Lost digits are allowed; overflow, wraparound and missing values are not."""
    with pytest.raises(ValueError, match="which do not all fit in it"):
        requested("X", x, goal(dtype=dtype))
    if isinstance(x, dd.DataFrame):
        with pytest.raises(ValueError, match="which do not all fit in it"):
            requested("X", x, goal(to="array", dtype=dtype))


def test_partitions_of_another_type_than_they_say():
    """A float in a partition whose metadata promises integers is an error."""
    ints = X[["i"]]
    found = requested("X", ints, goal(to="array"))
    for odd in ([2.5, 1.0], [np.nan, 1.0]):
        with pytest.raises((TypeError, ValueError)):
            converted(ints, found, pd.DataFrame({"i": odd}))
    both = X[["i", "b"]]
    found = requested("X", both, goal(to="array"))
    with pytest.raises((TypeError, ValueError)):
        converted(both, found, pd.DataFrame({"i": [1.5], "b": [True]}))
    floats = X[["f"]]
    found = requested("X", floats, goal(to="array"))
    made = converted(floats, found, pd.DataFrame({"f": [1, 2]}))
    assert made.dtype == "float64"
    mixed = X[["f", "g"]]  # only one of them has another type, as Dask says
    found = requested("X", mixed, goal(dtype="float64"))
    partition = pd.DataFrame(
        {"f": [1.5, None], "g": [1.0, 2.0]}, dtype="double[pyarrow]"
    )
    made = converted(mixed, found, partition)
    assert made.dtypes.tolist() == ["float64", "float64"]
    assert made["f"].isna().tolist() == [False, True]
    array = da.ones(3, dtype="i4", chunks=3)
    found = requested("X", array, goal(dtype="int64"))
    with pytest.raises(TypeError, match="Cannot cast"):
        converted(array, found, np.array([1.5]))


def test_truth_values_beside_whole_numbers():
    """Booleans next to whole numbers become whole numbers; alone they stay."""
    found = requested("X", X[["i", "b"]], goal(to="array"))
    made = converted(X[["i", "b"]], found, FRAME[["i", "b"]])
    assert made.dtype == "int64"
    assert made[:, 1].tolist() == [1, 0] * 3


def test_numbers_of_groups_stay_whole():
    """Large group ids would change as floats; a missing one is an error."""
    large = pd.DataFrame({"q": pd.array([2**60 + 1, 2**60 + 3], dtype="Int64")})
    q = dd.from_pandas(large, npartitions=1)["q"]
    found = requested("qid", q, goal(to="array"))
    assert found.dtype == "int64"
    assert converted(q, found, large["q"]).tolist() == [2**60 + 1, 2**60 + 3]
    with pytest.raises((TypeError, ValueError)):
        converted(q, found, pd.Series(pd.array([1, None], dtype="Int64")))


# --- what a workload needs ------------------------------------------------------------


def categories(*values, **how):
    return pd.CategoricalDtype([*values], **how)


def test_one_list_of_categories():
    """Categories are in the order of their first use; equal lists do not change."""
    assert union([categories("a", "b"), categories("a", "b")]) == categories("a", "b")
    merged = union([categories("b"), categories("a", "b"), categories("c", "a")])
    assert merged.categories.tolist() == ["b", "a", "c"]
    assert not merged.ordered


def test_categories_that_have_an_order():
    """Ordered categories are refused, because new ones have no place in the order."""
    first = categories("low", "high", ordered=True)
    assert union([first, first]) == first
    assert union([first, categories("middle", ordered=True)]) is None


@pytest.mark.parametrize(
    ("types", "largest", "expected"),
    [
        (["float32", "int64"], 2**24, "float32"),
        (["float32", "int64"], 2**24 + 1, None),
        (["float32", "float64", "int64"], 2**53, "float64"),
        (["float64", "int64"], 2**53 + 1, None),
        (["float32", "bool", "category", "object"], 0, "float32"),
        (["float32", "category"], 0, None),
        (["int64", "uint8"], 9, None),
        (["float16", "int8"], 9, None),
        (["float32", "Int64"], 9, None),
    ],
)
def test_one_type_of_numbers(types, largest, expected):
    """The float type is used if it holds every number; no column changes needlessly."""
    assert exact_float(types, largest) == expected


def test_categories_are_changed_alone():
    """Categories and numbers change in one pass."""
    frame = dd.from_pandas(FRAME[["f", "g", "c"]], npartitions=2)
    types = {"c": categories("c", "b", "a", "z")}
    alone = with_categories(frame, types, None)
    assert str(alone) == "with one list of categories for each column"
    made = converted(frame, alone, FRAME[["f", "g", "c"]])
    assert made["c"].cat.categories.tolist() == ["c", "b", "a", "z"]
    assert made["c"].tolist() == FRAME["c"].tolist()
    assert made.dtypes[["f", "g"]].tolist() == ["float64", "float32"]
    assert meta(frame, alone)["c"].dtype == types["c"]
    numbers = requested("X", frame, goal(dtype="float32"))
    both = with_categories(frame, types, numbers)
    assert str(both).endswith(" and one list of categories for each column")
    made = converted(frame, both, FRAME[["f", "g", "c"]])
    assert made.dtypes[["f", "g"]].tolist() == ["float32", "float32"]
    assert made["c"].cat.categories.tolist() == ["c", "b", "a", "z"]
