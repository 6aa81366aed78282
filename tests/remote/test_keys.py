"""Keys come back from their packed form as they were; ranges are small."""

from __future__ import annotations

import asyncio
import pickle

from hypothesis import example, given
from hypothesis import strategies as st

from clustertune.remote.keys import (
    KeyMap,
    KeySet,
    Places,
    count,
    drained,
    pack,
    unpack,
)

names = st.sampled_from(["x", "y", "", "random-é"])
keys = st.one_of(
    names,
    st.integers(),
    st.floats(allow_nan=False),
    st.tuples(names, st.integers(-3, 30)),
    st.tuples(names, st.integers(0, 30), st.just(0)),
    st.tuples(names, st.booleans(), st.just(0)),
    st.tuples(names, st.tuples(names, st.integers())),
)


@given(st.lists(keys, max_size=60))
@example([("x", 0, 0), ("x", True, 0)])  # which are (x, 0, 0) and (x, 1, 0) to Python
def test_round_trip(given_keys: list[object]) -> None:
    """Any keys come back equal, of the same types, and in the same order."""
    found = list(unpack(pack(given_keys)))
    assert repr(found) == repr(given_keys)
    assert count(pack(given_keys)) == len(given_keys)


def test_a_collection_is_one_range() -> None:
    """100,000 keys of a collection are packed in under 200 bytes."""
    many = [("random-abc", i, 0) for i in range(100_000)]
    assert len(pickle.dumps(pack(many))) < 200


def test_a_gap_begins_another_range() -> None:
    """A missing key divides a range in two."""
    assert pack([("x", 0), ("x", 1), ("x", 5), ("x", 6)]) == [
        ("range", "x", 0, 2, ()),
        ("range", "x", 5, 2, ()),
    ]


def test_foreign_keys_are_listed_together() -> None:
    """Keys of no collection are not packed."""
    assert pack(["a", "b", ("c", "d")]) == [("list", ["a", "b", ("c", "d")])]


@given(st.lists(st.lists(keys, max_size=30, unique_by=repr), max_size=3))
def test_places(collections: list[list[object]]) -> None:
    """Keys of the same rows have the same place; others have none."""
    places = asyncio.run(Places.of([pack(names) for names in collections]))
    known = {repr(key) for names in collections for key in names}
    for key in ("no such key", ("x", 31), ("x", "y"), ("x",), ()):
        assert (places.get(key) is not None) == (repr(key) in known)
    for names in collections:
        for key in names:
            # the same key in two of them has the place of either
            allowed = {i for n in collections for i, k in enumerate(n) if k == key}
            assert places.get(key) in allowed


def test_places_of_a_collection_are_not_unpacked() -> None:
    """The size does not depend on the number of keys."""
    packed = [[("range", "X", 0, 10**12, (0,))], [("range", "y", 0, 10**12, ())]]
    places = asyncio.run(Places.of(packed))
    assert places.get(("X", 10**11, 0)) == places.get(("y", 10**11)) == 10**11
    assert places.get(("X", 10**12, 0)) is None


@given(st.lists(keys, max_size=60), st.lists(keys, max_size=60))
def test_a_set_in_parts(some: list[object], others: list[object]) -> None:
    """It has the keys of a set, and gives them back one by one."""
    expected = {*some}
    found = asyncio.run(KeySet.of(some))
    assert [key in found for key in others] == [key in expected for key in others]
    given_back = [*drained(found)]
    assert {*given_back} == expected
    assert len(given_back) == len(expected)
    assert not any(found.parts)


@given(st.lists(keys, max_size=60), st.lists(keys, max_size=60))
def test_a_dictionary_in_parts(some: list[object], others: list[object]) -> None:
    """It has the keys and the last values of a dictionary."""
    expected, found = {}, KeyMap[int]()
    for number, key in enumerate(some):
        expected[key] = found[key] = number
    for key in others:
        assert found.get(key) == expected.get(key)
        if key in expected:
            del expected[key], found[key]
        assert found.get(key) is None
    assert len(found) == len(expected)
