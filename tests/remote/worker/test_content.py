"""Summaries of the values of a partition: arrays and frames of any type."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from clustertune.remote.worker import content

FRAME = pd.DataFrame(
    {
        "f": [1.0, np.nan, np.inf],
        "n": pd.array([1, None, 3], dtype="Int64"),
        "c": pd.Categorical(["u", "v", "u"]),
        "t": ["a", None, "b"],
    }
)


def test_features():
    """Missing and infinite values of all columns, and categories."""
    found = content.features(FRAME)
    assert found["nonfinite_values"] == [3, 1]
    assert found["categories"]["c"][0] == 2
    other = FRAME.assign(c=FRAME["c"].cat.reorder_categories(["v", "u"]))
    for frame, same in ((FRAME.iloc[:1], True), (other, False)):
        categories = content.features(frame)["categories"]
        assert (categories == found["categories"]) is same
    array = np.array([[1, np.nan], [np.inf, -np.inf]])
    assert content.features(array) == {"nonfinite_values": [1, 2], "categories": {}}
    assert content.features(np.arange(4))["nonfinite_values"] == [0, 0]
    objects = np.array([[None, "a"], [np.nan, pd.NA], [pd.NaT, 3]], dtype=object)
    assert content.features(objects)["nonfinite_values"] == [4, 0]


def test_a_column_without_a_name():
    """NaN equals no other NaN, and is the same name."""
    frame = pd.DataFrame([[1.0, 2.0]], columns=["a", float("nan")])
    names, kinds = ["a", float("nan")], ["numbers", "numbers"]
    assert content.columns(frame, names, kinds) == {"columns": ""}
    found = content.columns(frame[frame.columns[::-1]], names[:1], kinds[:1])
    assert found == {"columns": "has nan in addition"}


@pytest.mark.parametrize(
    ("partition", "classes"),
    [
        (np.array([1, 0, 1]), [[0, 1], [1, 2]]),
        (pd.Series(["b", "a"]), [["a", 1], ["b", 1]]),
        (np.array([True, True]), [[True, 2]]),
        (np.array([0.5, 1.5]), None),
        (np.arange(2000), None),
        (np.ones((2, 2), dtype=int), None),
        (pd.Series([1, "a"], dtype=object), None),
        (np.array([], dtype=int), []),
    ],
)
def test_classes(partition, classes):
    """Classes of whole numbers and texts, up to a limit."""
    assert content.labels(partition)["classes"] == classes


@pytest.mark.parametrize(
    ("partition", "texts"),
    [
        (pd.Series(["b", None, "a", "b"]), ["a", "b"]),
        (pd.Categorical(["b", "a"]), ["a", "b"]),
        (np.array([["b"], ["a"]]), ["a", "b"]),
        (pd.Series([1, "a"], dtype=object), ["a"]),
        (pd.Series([1.0, np.nan]), []),
        (pd.Series(map(str, range(99))), sorted(map(str, range(99)))[:20]),
    ],
)
def test_texts(partition, texts):
    """Distinct texts in order, up to a limit."""
    assert content.finite(partition)["texts"] == texts
    assert content.labels(partition)["texts"] == texts


@pytest.mark.parametrize(
    ("partition", "moments"),
    [
        (np.array([1.0, np.nan, 3.0]), [2, 4.0, 10.0]),
        (pd.Series([True, False]), [2, 1.0, 1.0]),
        (pd.Series(["a"]), None),
        (np.ones((2, 2)), None),
        (np.array([]), [0, 0.0, 0.0]),
    ],
)
def test_moments(partition, moments):
    """Moments of finite numbers."""
    assert content.labels(partition)["moments"] == moments


@pytest.mark.parametrize(
    ("values", "heads", "counts", "scattered"),
    [
        ([1, 1, 2], [1, 2], [2, 1], False),
        ([2, 10, 10], [2, 10], [1, 2], False),
        ([1, 2, 1], [1, 2], [2, 1], True),
        (["b", "a", "b"], ["a", "b"], [1, 2], True),
        ([], [], [], False),
    ],
)
def test_runs(values, heads, counts, scattered):
    """Each group with its rows; scattered groups once, in the order of groups."""
    objects = np.array(values, dtype=object)
    partitions = [np.array(values), pd.Series(values), objects, pd.Series(objects)]
    if values and isinstance(values[0], int):  # numbers, though of objects
        partitions.append(pd.Series(values, dtype="Int64"))
    for partition in [
        *partitions,
        pd.DataFrame({"q": values}),
        pd.Series(values).astype("category"),
    ]:
        found = content.runs(partition)
        assert found["values"].tolist() == heads
        assert found["counts"].tolist() == counts
        assert found["scattered"] == scattered


@pytest.mark.parametrize(
    "values",
    [
        [1, 0, 1, 1],
        [True, False, True, True],
        [1.0, 0.0, 1.0, 1.0],
        ["b", "a", "b", "b"],
    ],
)
def test_classes_and_where_they_are(values):
    """Classes and their positions: whole numbers, also as floats, and texts."""
    low, high = sorted(set(values))
    series = pd.Series(values)
    partitions = [np.array(values), np.array(values, dtype=object), series]
    partitions += [
        np.array(values)[:, None],
        series.to_frame(),
        series.astype("category"),
    ]
    for partition in partitions:
        found = content.classes(partition, 2)
        assert found["classes"] == [[low, 1], [high, 3]]
        rows = {name: x.tolist() for name, x in found["positions"].items()}
        assert rows == {low: [1], high: [0, 3]}


@pytest.mark.parametrize(
    "partition",
    [
        np.array([0.0, np.nan]),
        np.array([0.0, np.inf]),
        np.array([0.5, 1.0]),
        np.zeros((3, 2)),
        pd.Series([1, None], dtype="Int64"),
        pd.Series(["a", None]),
    ],
    ids=["NaN", "inf", "fractions", "two columns", "NA", "None"],
)
def test_what_are_no_classes(partition):
    """Other values are not reported."""
    found = content.classes(partition, 9)
    assert found["classes"] is None
    assert found["positions"] == {}


def test_types():
    """Categories by column, of frames only."""
    assert set(content.types(FRAME)["categories"]) == {"c"}
    assert content.types(np.ones(3)) == {"categories": {}}


def test_labels_are_sorted_once(monkeypatch):
    """A sort of all rows takes most of the time."""
    calls, unique = [], np.unique
    monkeypatch.setattr(
        np, "unique", lambda *args, **kwargs: calls.append(1) or unique(*args, **kwargs)
    )
    assert content.labels(np.array([1, 0, 1]))["distinct"] == [0, 1]
    assert calls == [1]
