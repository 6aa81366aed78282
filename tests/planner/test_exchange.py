"""Exchanges of rows between workers, against the optimum of the linear programme."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from clustertune.planner.chunking import divided
from clustertune.planner.exchange import CELLS, exchanged
from clustertune.planner.layouts import HeldBytes
from clustertune.planner.placement import place


def holdings(density, rows):
    """What workers hold, from the bytes of a row of each partition on each worker."""
    partition, worker = np.nonzero(density)
    return HeldBytes(partition, worker, (density * rows[:, None])[partition, worker])


def amounts(rows, division, n_workers):
    """The rows of each partition on each worker."""
    new, target = division
    amount = np.zeros((len(rows), n_workers), np.int64)
    part = np.searchsorted(np.cumsum(rows), np.cumsum(new))
    np.add.at(amount, (part, target), new)
    return amount


def most_kept(density, rows, limits):
    """The most bytes that can stay, if any row may be on any worker."""
    size = density.shape
    result = linprog(
        -density.ravel().astype(float),
        A_ub=np.kron(np.ones(size[0]), np.eye(size[1])),
        b_ub=limits,
        A_eq=np.kron(np.eye(size[0]), np.ones(size[1])),
        b_eq=rows,
    )
    assert result.status == 0
    return -result.fun


LAYOUTS = st.integers(2, 5).flatmap(
    lambda n: st.lists(
        st.tuples(
            st.integers(1, 100),
            st.lists(st.sampled_from([0, 0, 1, 4, 5]), min_size=n, max_size=n),
        ),
        min_size=1,
        max_size=12,
    )
)


@given(LAYOUTS, st.sampled_from([0.05, 0.2, 0.5]))
def test_exchanges_reach_the_optimum(partitions, slack):
    """No bytes are left to save within the limits; all rows are still there."""
    rows, density = (np.array(x) for x in zip(*partitions, strict=True))
    n_workers = density.shape[1]
    held, weights = holdings(density, rows), np.ones(n_workers)
    share = rows.sum() * weights / n_workers
    first = divided(rows, held, weights, 0.01)
    found = exchanged(rows, held, first, share, slack, 0.0)
    amount, before = (amounts(rows, x, n_workers) for x in (found, first))
    assert amount.sum(axis=1).tolist() == rows.tolist()
    load, limits = amount.sum(axis=0), np.floor(share * (1 + slack))
    limits = np.maximum(limits, before.sum(axis=0))
    assert (load <= limits).all()
    assert (load >= np.floor(np.minimum(share / 2, before.sum(axis=0)))).all()
    kept = (amount * density).sum()
    assert kept >= (before * density).sum()
    if (load > share / 2 + 1).all():  # no worker is at the least rows of this function
        assert kept == pytest.approx(most_kept(density, rows, limits))


@given(LAYOUTS, st.floats(0.05, 0.3))
def test_no_small_part_is_made(partitions, least):
    """A part has the least rows, or is a whole partition or a part of before."""
    rows, density = (np.array(x) for x in zip(*partitions, strict=True))
    n_workers = density.shape[1]
    held, weights = holdings(density, rows), np.ones(n_workers)
    share = rows.sum() * weights / n_workers
    first = divided(rows, held, weights, 0.1)
    found = exchanged(rows, held, first, share, 0.1, least)
    amount, before = (amounts(rows, x, n_workers) for x in (found, first))
    smallest = np.minimum(rows, 1 + int(least * share[0]))[:, None]
    smallest = np.where(before > 0, np.minimum(smallest, before), smallest)
    assert ((amount == 0) | (amount >= smallest)).all()


def test_three_workers_exchange():
    """Each of three partitions goes to the worker that holds it, at once."""
    rows, home = np.array([10, 10, 10]), np.array([1, 2, 0])
    held = HeldBytes(np.arange(3), home, 8 * rows)
    share = np.full(3, 10.0)
    found = exchanged(rows, held, (rows, np.arange(3)), share, 0.0, 0.1)
    assert [x.tolist() for x in found] == [rows.tolist(), home.tolist()]


def test_a_worker_without_a_share_gets_nothing():
    """Although it holds everything."""
    rows = np.array([10, 10])
    held = HeldBytes(np.arange(2), np.zeros(2, np.int64), 8 * rows)
    first = rows, np.array([1, 2])
    found = exchanged(rows, held, first, np.array([0.0, 10, 10]), 0.5, 0.1)
    assert found[1].tolist() == [1, 2]


def test_a_large_division_stays():
    """The search needs too much time for many partitions on many workers."""
    rows = np.full(CELLS // 2 + 1, 1)
    held = HeldBytes(np.arange(len(rows)), np.zeros(len(rows), np.int64), rows)
    division = rows, np.arange(len(rows)) % 2
    assert exchanged(rows, held, division, np.full(2, len(rows) / 2), 0.5, 0.0) is (
        division
    )


def test_the_search_of_whole_parts_uses_the_same_tolerance():
    """Targets beyond the aim stay, although the aim would move only few bytes more."""
    rows, target = np.full(100, 10), np.repeat([0, 1], [52, 48])
    held = np.arange(60), np.zeros(60, int), 10 * rows[:60]
    options = {"nbytes": 10 * rows, "tolerance": 0.05, "aim": 0.2}
    assert place(rows, held, [1, 1], **options).moved == 5000
    assert place(rows, held, [1, 1], first=target, **options).moved == 4800
