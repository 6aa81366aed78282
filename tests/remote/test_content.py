"""What values of a piece are like: arrays and frames, of any type."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from clustertune.remote import content

FRAME = pd.DataFrame(
    {
        "f": [1.0, np.nan, np.inf],
        "n": pd.array([1, None, 3], dtype="Int64"),
        "c": pd.Categorical(["u", "v", "u"]),
        "t": ["a", None, "b"],
    }
)


def test_features():
    """Lacking and infinite values of all columns, and lists of categories."""
    found = content.features(FRAME)
    assert found["not_finite"] == [3, 1]
    assert found["categories"] == {"c": "['u', 'v']"}
    array = np.array([[1, np.nan], [np.inf, -np.inf]])
    assert content.features(array) == {"not_finite": [1, 2], "categories": {}}
    assert content.features(np.arange(4))["not_finite"] == [0, 0]
    objects = np.array([[None, "a"], [np.nan, pd.NA], [pd.NaT, 3]], dtype=object)
    assert content.features(objects)["not_finite"] == [4, 0]


@pytest.mark.parametrize(
    ("piece", "classes"),
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
def test_classes(piece, classes):
    """Of whole numbers and texts, if they are not too many."""
    assert content.labels(piece)["classes"] == classes


@pytest.mark.parametrize(
    ("piece", "moments"),
    [
        (np.array([1.0, np.nan, 3.0]), [2, 4.0, 10.0]),
        (pd.Series([True, False]), [2, 1.0, 1.0]),
        (pd.Series(["a"]), None),
        (np.ones((2, 2)), None),
        (np.array([]), [0, 0.0, 0.0]),
    ],
)
def test_moments(piece, moments):
    """Of finite numbers."""
    assert content.labels(piece)["moments"] == moments


@pytest.mark.parametrize(
    ("values", "ends", "ordered", "scattered"),
    [
        ([1, 1, 2], [1, 2], True, False),
        ([2, 2, 1], [2, 1], False, False),
        ([1, 2, 1], [1, 1], False, True),
        ([], None, True, False),
        ([5], [5, 5], True, False),
    ],
)
def test_groups(values, ends, ordered, scattered):
    """Where they begin and end, and whether one comes back."""
    for piece in (np.array(values), pd.Series(values)):
        found = content.groups(piece)
        assert found == {"ends": ends, "sorted": ordered, "scattered": scattered}
