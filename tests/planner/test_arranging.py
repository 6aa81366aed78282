"""Runs of neighbouring pieces for each worker."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from clustertune.planner.arranging import in_runs
from clustertune.planner.layouts import Held


def held(*entries):
    """From (piece, worker, bytes)."""
    piece, worker, nbytes = np.array(entries, dtype=np.int64).reshape(-1, 3).T
    return Held(piece=piece, worker=worker, nbytes=nbytes)


def test_each_run_goes_where_most_of_it_is():
    """Neighbours together; what lies there does not travel."""
    there = held((0, 1, 5), (1, 1, 5), (2, 0, 5), (3, 1, 5))
    may = np.array([True, True])
    assert in_runs(4, there, may).tolist() == [1, 1, 0, 0]


def test_the_largest_saving_comes_first():
    """A run that has less on a worker leaves it to one that has more."""
    there = held((0, 0, 3), (1, 0, 9), (2, 2, 1))
    may = np.array([True, False, True, True])
    assert in_runs(3, there, may).tolist()[1] == 0
    assert in_runs(3, there, may).tolist()[2] == 2


def test_a_rest_is_with_the_last_run():
    """Rows that are left over go nowhere else."""
    there = held((4, 0, 100))
    target = in_runs(5, there, np.array([True, True]))
    assert target[0] == target[1]
    assert target[2] == target[3] == target[4]


def test_fewer_pieces_than_workers():
    """One each, and some get none; which is an error of others to say."""
    assert len(set(in_runs(2, held(), np.ones(3, dtype=bool)).tolist())) == 2


@given(st.data())
def test_any_bytes(data):
    """Each worker that may gets a run of as many pieces, at least half the best."""
    n_workers = data.draw(st.integers(1, 4))
    each, rest = data.draw(st.integers(1, 3)), data.draw(st.integers(0, 1))
    n_pieces = n_workers * each + rest * (n_workers > 1)
    entries = st.tuples(
        st.integers(0, n_pieces - 1), st.integers(0, n_workers), st.integers(1, 9)
    )
    there = held(*data.draw(st.lists(entries, max_size=12)))
    may = np.ones(n_workers + 1, dtype=bool)
    may[data.draw(st.integers(0, n_workers))] = False
    target = in_runs(n_pieces, there, may)
    assert set(target.tolist()) == set(np.flatnonzero(may).tolist())
    changes = np.flatnonzero(np.diff(target)) + 1
    assert changes.tolist() == [each * i for i in range(1, n_workers)]
