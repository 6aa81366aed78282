"""How even rows can lie without cutting a piece."""

import pytest

from clustertune.planner.evenness import attainable
from clustertune.testing import layout, view, worker


def test_no_rows_or_no_workers_are_even():
    """Where there is nothing to share out nothing is uneven."""
    nobody = [worker(0, status="paused")]
    assert attainable(layout([0, 0], [0, 0]), view()) == 1.0
    assert attainable(layout([5], [0]), view(workers=nobody)) == 1.0


def test_pieces_that_divide_evenly_reach_the_tolerance():
    """Four equal pieces on two workers can lie evenly wherever they are now."""
    assert attainable(layout([10] * 4, [0] * 4), view()) == pytest.approx(1.0)


def test_many_small_pieces_are_known_to_reach_the_tolerance():
    """A piece smaller than the tolerance can never make a worker too full."""
    many = layout([1] * 1000, [0] * 1000)
    assert attainable(many, view()) == pytest.approx(1.002)
    workers = [worker(0, nthreads=3), worker(1)]
    assert attainable(many, view(workers=workers)) == pytest.approx(1.004)


def test_a_whole_piece_too_many_cannot_be_avoided():
    """Three equal pieces on two workers leave one with two of them."""
    lazy = layout([10] * 3, None)
    assert attainable(lazy, view()) == pytest.approx(4 / 3)


def test_the_larger_piece_decides():
    """A piece of more than a share exceeds the tolerance if all else is small."""
    data = layout([900] + [1] * 100, [0] * 101)
    assert attainable(data, view()) == pytest.approx(1.8)


def test_shares_are_by_threads():
    """Three equal pieces are even on workers of two threads and one."""
    workers = [worker(0, nthreads=2), worker(1, nthreads=1)]
    assert attainable(layout([10] * 3, [0] * 3), view(workers=workers)) == (
        pytest.approx(1.0)
    )
