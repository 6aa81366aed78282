"""Keys come back from their packed form as they were; ranges are small."""

from __future__ import annotations

import pickle

from hypothesis import given
from hypothesis import strategies as st

from clustertune.remote.keys import pack, unpack

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
def test_round_trip(given_keys: list[object]) -> None:
    """Any keys come back equal, of the same types, and in the same order."""
    found = list(unpack(pack(given_keys)))
    assert repr(found) == repr(given_keys)


def test_a_collection_is_one_range() -> None:
    """The 100,000 keys of a collection travel in under 200 bytes."""
    many = [("random-abc", i, 0) for i in range(100_000)]
    assert len(pickle.dumps(pack(many))) < 200


def test_a_gap_begins_another_range() -> None:
    """Keys that are left out divide a range, they do not make it a list."""
    assert pack([("x", 0), ("x", 1), ("x", 5), ("x", 6)]) == [
        ("range", "x", 0, 2, ()),
        ("range", "x", 5, 2, ()),
    ]


def test_foreign_keys_are_listed_together() -> None:
    """Keys of no collection travel as they are."""
    assert pack(["a", "b", ("c", "d")]) == [("list", ["a", "b", ("c", "d")])]
