from __future__ import annotations

import pickle
import weakref
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from clustertune.training import remote_sums


class Gradient(NamedTuple):
    """A possible result of a function."""

    weights: Any
    loss: float


def total(*results: Any, reduce: Any = None) -> Any:
    """Add up results in a batch."""
    return batch(
        lambda result: result, range(len(results)), list(results), reduce=reduce
    )


def batch(
    function: Any, numbers: Any, *columns: Any, broadcast: Any = (), reduce: Any = None
) -> Any:
    codes = cloudpickle.dumps(function), cloudpickle.dumps(reduce)
    return remote_sums.sum_batch(*codes, numbers, columns, broadcast)


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
def test_booleans_count_and_small_integers_are_widened(count: int) -> None:
    flags, small = np.array([True, False]), np.array([200], dtype=np.uint8)
    found = total(*[{"flags": flags, "small": small, "one": np.True_}] * count)
    assert found["flags"].tolist() == [count, 0]
    assert found["small"].tolist() == [200 * count]
    assert found["one"] == count


def test_types_widen_as_in_a_sum() -> None:
    whole, half = np.array([1]), np.array([0.5])
    assert total(whole, whole, half, whole).tolist() == [3.5]


def test_items_are_not_changed() -> None:
    """A result may be the item, which other tasks read."""
    parts = [np.ones(3), np.ones(3), np.ones(3)]
    for part in parts:
        part.setflags(write=False)
    assert total(*parts).tolist() == [3, 3, 3]
    nothing = cloudpickle.dumps(None)
    assert remote_sums.join_sums(nothing, [0, 1, 2], parts).tolist() == [3, 3, 3]
    assert total(parts[0]) is parts[0]


_made: list[weakref.ref[Any]] = []


def make(size: int) -> Any:
    """Pickled by reference, so a batch runs this function and sees ``_made``."""
    there = [result for result in _made if result() is not None]
    assert len(there) <= 1  # the total
    result = np.ones(size)
    _made.append(weakref.ref(result))
    return result


def test_one_result_is_in_memory_at_a_time() -> None:
    """Each result is released before the next one is made."""
    _made.clear()
    assert batch(make, range(4), [3] * 4).tolist() == [4, 4, 4]
    assert len(_made) == 4


_kept: list[Any] = [np.ones(3)]
KEPT = {
    "the item": lambda item: item,
    "a view of it": lambda item: item[:2],
    "a stored array": lambda item: _kept[0],
    "a new array that is stored": lambda item: _kept.append(item + 1) or _kept[-1],
    "a view of a stored array": lambda item: _kept[0].view(),
    "a nest of it": lambda item: [item],
}


@pytest.mark.parametrize("returned", KEPT)
def test_arrays_with_other_references_are_not_changed(returned: str) -> None:
    items = [np.ones(3) for _ in range(4)]
    total = remote_sums._Total(pickle.dumps(None))
    for number, item in enumerate(items):
        total.add(KEPT[returned](item), number)
    assert all(item.tolist() == [1, 1, 1] for item in items)
    assert _kept.pop(0).tolist() == [1, 1, 1]
    assert all(kept.tolist() == [2, 2, 2] for kept in _kept)
    _kept[:] = [np.ones(3)]


def test_sums_are_changed_in_place() -> None:
    """It saves a new array, whose memory the kernel would clear."""
    total, where = remote_sums._Total(pickle.dumps(None)), []
    for number in range(4):
        total.add(np.ones(3), number)
        where.append(total.value.ctypes.data)
    assert total.value.tolist() == [4, 4, 4]
    assert len(set(where[1:])) == 1


@given(st.lists(st.floats(-1e6, 1e6), min_size=1))
def test_results_are_added_in_the_order_of_items(values: list[float]) -> None:
    expected = values[0]
    for value in values[1:]:
        expected += value
    assert total(*values) == expected
    assert total(*map(np.array, values)) == expected


def test_other_reductions() -> None:
    assert total((3, "c"), (9, "a"), (5, "b"), reduce=max) == (9, "a")
    parts = np.array([1, 5]), np.array([4, 2])
    assert total(*parts, reduce=np.maximum).tolist() == [4, 5]


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (np.ones(3), np.ones(4), r"^shape \(4,\) after shape \(3,\)"),
        (np.ones((3, 1)), np.ones(3), r"shape \(3,\) after shape \(3, 1\)"),
        ({"a": [1]}, {"a": [np.ones(2)]}, r"^shape \(2,\) after .* int"),
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
def test_results_that_do_not_fit_are_named(first: Any, second: Any, said: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        total(first, second)
    mark, what, number, error, _ = caught.value.args
    assert (mark, what) == (remote_sums.FAILED, "sum")
    assert number == (0 if isinstance(first, str) else 1)
    with pytest.raises((TypeError, ValueError), match=said):
        raise error


class StubbornError(Exception):
    """An error that cannot be unpickled."""

    def __init__(self, one: str, two: str):
        super().__init__(one + two)


def test_an_error_travels_with_its_item() -> None:
    def fail(item: int, shift: int) -> float:
        if item + shift == 5:
            raise StubbornError("no ", "way")
        return 0.0

    with pytest.raises(RuntimeError) as caught:
        batch(fail, [7, 8], [3, 4], broadcast=[1])
    _, what, number, error, where = pickle.loads(pickle.dumps(caught.value)).args
    assert (what, number, str(error)) == ("func", 8, "StubbornError: no way")
    assert where.endswith("in fail")


def test_a_partition_has_as_many_rows_as_labels() -> None:
    with pytest.raises(RuntimeError) as caught:
        batch(lambda X, y: 0, [4], [np.ones((3, 2))], [np.ones(2)])
    assert caught.value.args[2] == 4
    assert "3 and 2 rows" in str(caught.value.args[3])


def test_sparse_rows_are_counted() -> None:
    """A sparse matrix has no len()."""
    X = sparse.csr_matrix(np.eye(3))
    assert batch(lambda X, y: (X.T @ y).sum(), [0], [X], [np.ones(3)]) == 3
    with pytest.raises(RuntimeError) as caught:
        batch(lambda X, y: 0, [0], [X], [np.ones(2)])
    assert "3 and 2 rows" in str(caught.value.args[3])
