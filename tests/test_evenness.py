"""How even rows can lie without cutting a piece."""

import pytest

from clustertune.evenness import attainable
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
    assert attainable(layout([1] * 1000, [0] * 1000), view()) <= 1.05


def test_a_whole_piece_too_many_cannot_be_avoided():
    """Three equal pieces on two workers leave one with two of them."""
    lazy = layout([10] * 3, None)
    assert attainable(lazy, view()) == pytest.approx(4 / 3)


def test_shares_are_by_threads():
    """Three equal pieces are even on workers of two threads and one."""
    workers = [worker(0, nthreads=2), worker(1, nthreads=1)]
    assert attainable(layout([10] * 3, [0] * 3), view(workers=workers)) == (
        pytest.approx(1.0)
    )
