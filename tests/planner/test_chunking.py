from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustertune.planner.chunking import even, fullest, joined, near, parts

ROWS = st.lists(st.integers(0, 50), min_size=1, max_size=30).filter(any)


def array(*rows):
    return np.array(rows, dtype=np.int64)


def test_even():
    """Rows of pieces differ by one at most."""
    assert even(10, 4).tolist() == [2, 3, 2, 3]
    assert even(8, 2).tolist() == [4, 4]


@given(st.integers(1, 10**15), st.integers(1, 200))
def test_even_for_any_number(n_rows, n_pieces):
    """No row is lost, whatever the numbers."""
    rows = even(n_rows, n_pieces)
    assert rows.sum() == n_rows
    assert len(rows) == n_pieces
    assert np.ptp(rows) <= 1


def test_large_pieces_are_cut_within_themselves():
    """Old boundaries stay: what is not joined need not travel to be."""
    assert near(array(10, 10), 4).tolist() == [3, 3, 4, 3, 3, 4]


def test_small_pieces_are_joined():
    """As many as a piece may have, so that they are few."""
    assert near(array(*[1] * 12), 6).tolist() == [6, 6]
    assert near(array(*[4] * 4), 6).tolist() == [4, 4, 4, 4]


def test_pieces_that_suit_stay():
    """What is neither small nor large is as it was; what is empty is gone."""
    assert near(array(5, 0, 6, 4), 6).tolist() == [5, 6, 4]


def test_a_rest_is_joined_with_the_piece_before_it():
    """No tiny piece remains at the end."""
    assert near(array(6, 6, 1), 6).tolist() == [6, 3, 4]


@given(ROWS, st.integers(1, 60))
def test_near_any_rows(old, most):
    """No row is lost, no piece is empty or too large, few are small."""
    rows = near(array(*old), most)
    assert rows.sum() == sum(old)
    assert rows.min() > 0
    assert rows.max() <= most
    assert sum(2 * rows < most) <= 1


@given(ROWS, st.integers(1, 60))
def test_joined_rows_are_not_cut(old, most):
    """Every boundary that remains was one before."""
    rows = joined(array(*old), most)
    assert set(np.cumsum(rows).tolist()) <= set(np.cumsum(old).tolist())
    assert rows.min() > 0
    single = max(old)
    assert rows.max() <= max(most, single)


def test_parts():
    """Rows of old pieces, in the order of the new ones."""
    found = parts(array(1500, 1000, 500, 1000), array(*[1000] * 4))
    columns = [x.tolist() for x in found]
    assert list(zip(*columns)) == [
        (0, 0, 0, 1000),
        (1, 0, 1000, 1500),
        (1, 1, 0, 500),
        (2, 1, 500, 1000),
        (2, 2, 0, 500),
        (3, 3, 0, 1000),
    ]


@given(ROWS, st.data())
def test_parts_are_the_rows_in_order(old, data):
    """Whatever is cut into whatever: taking the parts gives the same rows in order."""
    total = sum(old)
    inner = st.lists(st.integers(0, total), max_size=20).map(sorted)
    edges = [0, *data.draw(inner), total]
    new = np.diff(edges)
    pieces = np.split(np.arange(total), np.cumsum(old)[:-1])
    found = parts(array(*old), array(*new.tolist()))
    made = [[] for _ in new]
    for target, piece, start, stop in zip(*(x.tolist() for x in found)):
        assert start <= stop <= len(pieces[piece])
        made[target] += pieces[piece][start:stop].tolist()
    assert [len(m) for m in made] == new.tolist()
    assert [row for m in made for row in m] == list(range(total))
    # even an empty piece has a part: something must make it
    assert set(found.new.tolist()) == set(range(len(new)))


def test_other_numbers_of_rows_are_refused():
    """Rows cannot come from nowhere."""
    with pytest.raises(ValueError, match="10 rows cannot be cut into 9"):
        parts(array(10), array(9))
    with pytest.raises(ValueError, match="0 rows"):
        parts(array(0), array(0))


def test_many_pieces_are_cut_quickly():
    """120,000 tiny pieces are one pass, not one search each."""
    old = np.full(120_000, 3, dtype=np.int64)
    new = near(old, 22_500)
    assert len(new) == 16
    assert len(parts(old, new).new) == 120_000


def test_fullest():
    """By shares: a worker with three threads may have three times the rows."""
    assert fullest(array(5, 5, 5, 5), np.array([1.0, 3.0])) == 1.0
    assert fullest(array(5, 5, 5), np.array([1.0, 1.0, 0.0])) == pytest.approx(4 / 3)


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=40).filter(any),
    st.lists(st.sampled_from([0.0, 1.0, 2.0, 4.0]), min_size=1, max_size=8).filter(any),
)
def test_fullest_gives_each_piece_to_the_least_full(
    rows: list[int], claims: list[float]
) -> None:
    """As it is written: of all workers, for each piece."""
    claim = np.array([c for c in claims if c])
    shares = sum(rows) * claim / claim.sum()
    loads = np.zeros(len(shares))
    for n in sorted(rows, reverse=True):
        loads[((loads + n) / shares).argmin()] += n
    assert fullest(array(*rows), np.array(claims)) == (loads / shares).max()
