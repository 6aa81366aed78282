"""Arguments are converted to plain units; errors list the allowed values."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest

from clustertune.core import arguments


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.05, 0.05), (1, 1.0), (np.float32(0.5), 0.5), (np.int64(1), 1.0)],
)
def test_a_fraction(value: object, expected: float) -> None:
    """Any real number up to 1 becomes a float."""
    found = arguments.fraction("tolerance", value)
    assert found == expected
    assert type(found) is float


@pytest.mark.parametrize(
    "value", [-0.1, 1.01, True, "0.05", None, float("nan"), 0.5j, 10**400]
)
def test_no_fraction(value: object) -> None:
    """The error has the name, the value and the allowed values."""
    with pytest.raises(ValueError, match=r"tolerance=.* must be a number from 0 up to"):
        arguments.fraction("tolerance", value, zero=True)


def test_zero_is_a_fraction_where_it_is_allowed() -> None:
    """A tolerance may be 0, a fraction of memory may not."""
    assert arguments.fraction("tolerance", 0, zero=True) == 0
    with pytest.raises(ValueError, match="memory_fraction=0 must be a number above 0"):
        arguments.fraction("memory_fraction", 0)


@pytest.mark.parametrize(
    ("value", "expected"), [(None, None), (1, 1), (np.int64(3), 3)]
)
def test_a_count(value: object, expected: int | None) -> None:
    """Whole numbers from 1 on are accepted, and so is None."""
    found = arguments.count("n_workers", value)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize("value", [0, -1, True, 2.0, "2", float("nan")])
def test_no_count(value: object) -> None:
    """The error has the name and the value."""
    with pytest.raises(ValueError, match=r"n_workers=.* must be a whole number"):
        arguments.count("n_workers", value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (["tcp://10.0.0.5:1"], ("tcp://10.0.0.5:1",)),
        ((0, "big"), (0, "big")),
        ({3}, (3,)),
        (range(2), (0, 1)),
    ],
)
def test_names(value: object, expected: tuple[object, ...] | None) -> None:
    """Any list of names and addresses is accepted; its order stays."""
    assert arguments.names("workers", value) == expected


@pytest.mark.parametrize("value", ["0", b"01", 0, [], [1.5], [True], [None], {"a": 1}])
def test_no_names(value: object) -> None:
    """A text is not a list of its letters."""
    with pytest.raises(ValueError, match=r"workers=.* must be a list of names"):
        arguments.names("workers", value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("10 minutes", 600.0),
        ("30s", 30.0),
        ("1.5h", 5400.0),
        (".5s", 0.5),
        (" .5 s", 0.5),
        (90, 90.0),
        (0.5, 0.5),
        (timedelta(minutes=2), 120.0),
    ],
)
def test_a_duration(value: object, expected: float) -> None:
    """Numbers are seconds; Dask parses texts, but reads ".5s" as 1.5 seconds."""
    assert arguments.duration("timeout", value) == expected


@pytest.mark.parametrize(
    "value",
    [
        *("", " ", "soon", "5 parsecs", "-3s", "s", " min", b"10s"),
        *(0, -1, None, [], True, float("nan"), float("inf")),
    ],
)
def test_no_duration(value: object) -> None:
    """The error has the name, the value and an example."""
    with pytest.raises(ValueError, match=r'timeout=.* must be a duration, like "10 mi'):
        arguments.duration("timeout", value)


def test_sizes_of_numbers():
    """Any NumPy name of an allowed type is accepted."""
    assert arguments.number_size("dtype", None) == 8
    for value in ("float32", np.float32, "f4", np.dtype("f4")):
        assert arguments.number_size("dtype", value) == 4
    assert arguments.number_size("dtype", int) == 8
    odd = ("x", 3, "02float32", "a", "f4,(", "\0")
    for value in ("float16", "bool", "complex64", "category", object, *odd):
        with pytest.raises(ValueError, match="must be float32, float64, a type of"):
            arguments.number_size("dtype", value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1, 1), ("2", 2), (0.25, 0.25), ("25%", 0.25), ("100%", arguments.LARGEST)],
)
def test_a_part(value: object, expected: float) -> None:
    """A number of at least 1 must be whole; a smaller one is a fraction.

    Commands and playbooks convert it before the call that converts it again.
    """
    found = arguments.part("max_unavailable", value)
    assert found == expected == arguments.part("max_unavailable", found)
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    "value",
    [0, 1.5, True, "x", "0%", "101%", "inf", "nan", "1e999", 10**400, None, [1]],
)
def test_no_part(value: object) -> None:
    """The same holds for values that no float can hold."""
    with pytest.raises(ValueError, match=r"max_unavailable=.* must be a number of at"):
        arguments.part("max_unavailable", value)


@pytest.mark.parametrize("value", [None, True, False])
def test_true_false_or_none(value: object) -> None:
    """None means that the data decides."""
    assert arguments.maybe("persist", value) is value


@pytest.mark.parametrize("value", ["yes", 1, 0, np.True_])
def test_neither_true_nor_false_nor_none(value: object) -> None:
    """Other truthy and falsy values are refused."""
    with pytest.raises(ValueError, match=r"persist=.* must be True or False"):
        arguments.maybe("persist", value)


def test_amounts_without_end() -> None:
    """Dask's parsers raise errors of many kinds for them."""
    with pytest.raises(ValueError, match="must be a duration"):
        arguments.duration("timeout", "9" * 320 + "s")
    with pytest.raises(ValueError, match="must be a size of at least 1 MiB"):
        arguments.nbytes("memory_limit", "1e999GiB")
