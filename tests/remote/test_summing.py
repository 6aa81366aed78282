from __future__ import annotations

import pickle
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustertune.remote import summing


class Gradient(NamedTuple):
    """What a function may return."""

    weights: Any
    loss: float


def total(*results: Any, reduce: Any = None) -> Any:
    """As a batch adds them up."""
    code = cloudpickle.dumps((lambda result: result, reduce))
    return summing.batch(code, range(len(results)), [list(results)], [])


def test_nests_of_arrays_and_numbers() -> None:
    def result(n: int) -> Any:
        deep = Gradient(np.full((2, 2), n), n / 2)
        return {"a": [deep, (np.float32(n), None)], "n": n > 1}

    found = total(*map(result, range(4)))
    assert list(found) == ["a", "n"]
    gradient, (single, nothing) = found["a"]
    assert type(gradient) is Gradient
    assert np.array_equal(gradient.weights, np.full((2, 2), 6))
    assert (gradient.loss, found["n"], nothing) == (3.0, 2, None)
    assert single == 6
    assert single.dtype == np.float32


@pytest.mark.parametrize("count", [1, 2, 3])
def test_truth_values_count_and_small_integers_have_room(count: int) -> None:
    flags, small = np.array([True, False]), np.array([200], dtype=np.uint8)
    found = total(*[{"flags": flags, "small": small, "one": np.True_}] * count)
    assert found["flags"].tolist() == [count, 0]
    assert found["small"].tolist() == [200 * count]
    assert found["one"] == count


def test_types_widen_as_in_a_sum() -> None:
    whole, half = np.array([1]), np.array([0.5])
    assert total(whole, whole, half, whole).tolist() == [3.5]


def test_what_came_in_is_not_changed() -> None:
    """A result may be the item itself, which others read."""
    parts = [np.ones(3), np.ones(3), np.ones(3)]
    for part in parts:
        part.setflags(write=False)
    assert total(*parts).tolist() == [3, 3, 3]
    code = cloudpickle.dumps((None, None))
    assert summing.join(code, [0, 1, 2], *parts).tolist() == [3, 3, 3]
    assert total(parts[0]) is parts[0]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1))
def test_the_order_is_that_of_the_items(values: list[float]) -> None:
    expected = values[0]
    for value in values[1:]:
        expected += value
    assert total(*values) == expected
    assert total(*map(np.array, values)) == expected


def test_other_monoids() -> None:
    assert total((3, "c"), (9, "a"), (5, "b"), reduce=max) == (9, "a")
    parts = np.array([1, 5]), np.array([4, 2])
    assert total(*parts, reduce=np.maximum).tolist() == [4, 5]


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (np.ones(3), np.ones(4), r"^shape \(4,\) after shape \(3,\)"),
        (np.ones((3, 1)), np.ones(3), r"shape \(3,\) after shape \(3, 1\)"),
        (
            {"a": [1]},
            {"a": [np.ones(2)]},
            r"at \['a'\]\[0\]: shape \(2,\) after .* int",
        ),
        ({"a": 1}, {"b": 1}, r"a dict of \['b'\] after a dict of \['a'\]"),
        ([1, 2], [1], "a list of 1 after a list of 2"),
        ([1], (1,), "a tuple of 1 after a list of 1"),
        (1, None, "type NoneType after .* int"),
        (None, 1, "type int after .* NoneType"),
        (1, "x", "a str cannot be added up"),
        ("x", "x", "a str cannot be added up"),
        (pd.Series([1], ["a"]), pd.Series([1], ["b"]), "other labels"),
    ],
)
def test_what_does_not_fit_is_named(first: Any, second: Any, said: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        total(first, second)
    mark, what, number, error, _ = caught.value.args
    assert (mark, what) == (summing.FAILED, "sum")
    assert number == (0 if isinstance(first, str) else 1)
    with pytest.raises((TypeError, ValueError), match=said):
        raise error


class StubbornError(Exception):
    """Does not come back from being pickled."""

    def __init__(self, one: str, two: str):
        super().__init__(one + two)


def test_an_error_travels_with_its_item() -> None:
    def fail(item: int, shift: int) -> float:
        if item + shift == 5:
            raise StubbornError("no ", "way")
        return 0.0

    code = cloudpickle.dumps((fail, None))
    with pytest.raises(RuntimeError) as caught:
        summing.batch(code, [7, 8], [[3, 4]], [1])
    _, what, number, error, where = pickle.loads(pickle.dumps(caught.value)).args
    assert (what, number, str(error)) == ("func", 8, "StubbornError: no way")
    assert where.endswith("in fail")


def test_rows_of_a_piece_are_those_of_its_labels() -> None:
    code = cloudpickle.dumps((lambda X, y: 0, None))
    with pytest.raises(RuntimeError) as caught:
        summing.batch(code, [4], [[np.ones((3, 2))], [np.ones(2)]], [])
    assert caught.value.args[2] == 4
    assert "3 and 2 rows" in str(caught.value.args[3])
