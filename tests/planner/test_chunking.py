"""Rows of new partitions, where a workload needs more than even ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustertune import checks
from clustertune.actions import rechunk
from clustertune.core.model import Contents, Profile, View
from clustertune.planner import chunking, layouts
from clustertune.planner.chunking import divided, even, fullest, near, parts
from clustertune.planner.layouts import HeldBytes
from clustertune.remote.worker import content
from tests.builders import layout, view, worker

# --- chunking -------------------------------------------------------------------------


ROWS = st.lists(st.integers(0, 50), min_size=1, max_size=30).filter(any)


def array(*rows):
    return np.array(rows, dtype=np.int64)


def test_even():
    """Rows of partitions differ by one at most."""
    assert even(10, 4).tolist() == [2, 3, 2, 3]
    assert even(8, 2).tolist() == [4, 4]


@given(st.integers(1, 10**15), st.integers(1, 200))
def test_even_for_any_number(n_rows, n_partitions):
    """No row is lost, whatever the numbers."""
    rows = even(n_rows, n_partitions)
    assert rows.sum() == n_rows
    assert len(rows) == n_partitions
    assert np.ptp(rows) <= 1


def test_large_partitions_are_cut_within_themselves():
    """Old boundaries stay: what is not joined need not travel to be."""
    assert near(array(10, 10), 4).tolist() == [3, 3, 4, 3, 3, 4]


def test_small_partitions_are_joined():
    """As many as a partition may have, so that they are few."""
    assert near(array(*[1] * 12), 6).tolist() == [6, 6]
    assert near(array(*[4] * 4), 6).tolist() == [4, 4, 4, 4]


def test_partitions_that_suit_stay():
    """What is neither small nor large is as it was; what is empty is gone."""
    assert near(array(5, 0, 6, 4), 6).tolist() == [5, 6, 4]


def test_a_rest_is_joined_with_the_partition_before_it():
    """No tiny partition remains at the end."""
    assert near(array(6, 6, 1), 6).tolist() == [6, 3, 4]


@given(ROWS, st.integers(1, 60))
def test_near_any_rows(old, most):
    """No row is lost, no partition is empty or too large, few are small."""
    rows = near(array(*old), most)
    assert rows.sum() == sum(old)
    assert rows.min() > 0
    assert rows.max() <= most
    assert sum(2 * rows < most) <= 1


def test_partitions_of_one_worker_are_joined():
    """If both workers have enough rows for a new partition."""
    home = array(0, 0, 0, 0, 1, 1, 1, 1)
    assert near(array(*[2] * 8), 10, home).tolist() == [8, 8]
    assert near(array(*[2] * 8), 10).tolist() == [10, 6]
    assert near(array(2, 2, 2, 2), 8, array(0, 1, 0, 1)).tolist() == [8]


def on(home, nbytes):
    """What workers hold if each partition is on its home (-1: none)."""
    known = np.flatnonzero(home >= 0)
    return HeldBytes(known, home[known], nbytes[known])


def test_rows_go_to_workers_of_the_same_host():
    """Of the worker that has all; only the others' share leaves the host."""
    old, host = array(*[10] * 8), array(0, 0, 1)
    held = on(array(*[0] * 8), old)
    rows, target = divided(old, held, np.array([1.0, 2, 1]), 0.0, host)
    assert np.bincount(target, rows).tolist() == [20, 40, 20]
    rows, target = divided(old, held, np.array([0.0, 2, 2]), 0.0, host)
    assert np.bincount(target, rows).tolist() == [0, 40, 40]


def test_rows_leave_for_the_host_of_their_labels():
    """The partition whose labels are elsewhere leaves, to that host."""
    old, host = array(10, 10, 10, 10), array(0, 1, 2)
    partition, worker = array(0, 1, 2, 3, 0, 1, 2, 3), array(0, 0, 0, 1, 0, 2, 0, 1)
    both = HeldBytes(partition, worker, array(*[80] * 4, *[20] * 4))
    held = layouts.added([both], 3)
    rows, target = divided(old, held, np.array([2.0, 1, 1]), 0.0, host)
    assert rows.tolist() == [10] * 4
    assert target.tolist() == [0, 2, 0, 1]


def test_a_share_ends_within_a_partition():
    """Each of two workers with five partitions keeps two and a half."""
    old, home = array(*[80] * 10), array(*[0, 1] * 5)
    rows, target = divided(old, on(home, old), np.ones(4), 0.01)
    assert sorted(rows.tolist()) == [40] * 4 + [80] * 8
    assert np.bincount(target, rows).tolist() == [200] * 4


@given(
    st.lists(st.tuples(st.integers(1, 10**6), st.integers(-1, 4)), min_size=1),
    st.lists(st.sampled_from([0.0, 1.0, 2.0, 4.0]), min_size=5, max_size=5).filter(any),
    st.sampled_from([0.0, 0.01, 0.05]),
)
def test_shares_of_any_partitions(partitions, claims, slack):
    """Old boundaries stay, workers have their share, and the others keep all rows."""
    old, home = (array(*x) for x in zip(*partitions))
    weights = np.array(claims)
    rows, target = divided(old, on(home, old), weights, slack)
    assert set(np.cumsum(old).tolist()) <= set(np.cumsum(rows).tolist())
    assert rows.sum() == old.sum()
    assert rows.min() > 0
    share = old.sum() * weights / weights.sum()
    load = np.bincount(target, rows, 5)
    assert (load <= np.maximum(share * (1 + slack), np.ceil(share + 1))).all()
    assert len(rows) <= len(old) + 2 * np.count_nonzero(weights) + 1
    held = np.bincount(home[home >= 0], old[home >= 0], 5)
    whole = np.repeat(home, [len(x) for x in _parts_of(old, rows)])
    left = held - np.bincount(target[whole == target], rows[whole == target], 5)
    # a worker gives only the rows above its share; cuts are at whole rows
    assert (left <= np.maximum(0, held - share) + share * slack + 2).all()


def _parts_of(old, rows):
    """Split the new partitions by the old ones of which they are parts."""
    return np.split(rows, np.searchsorted(np.cumsum(rows), np.cumsum(old))[:-1] + 1)


def test_parts():
    """Rows of old partitions, in the order of the new ones."""
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
    partitions = np.split(np.arange(total), np.cumsum(old)[:-1])
    found = parts(array(*old), array(*new.tolist()))
    made = [[] for _ in new]
    for target, partition, start, stop in zip(*(x.tolist() for x in found)):
        assert start <= stop <= len(partitions[partition])
        made[target] += partitions[partition][start:stop].tolist()
    assert [len(m) for m in made] == new.tolist()
    assert [row for m in made for row in m] == list(range(total))
    # even an empty partition has a part: something must make it
    assert set(found.new.tolist()) == set(range(len(new)))


def test_other_numbers_of_rows_are_refused():
    """Rows cannot come from nowhere."""
    with pytest.raises(ValueError, match="10 rows cannot be cut into 9"):
        parts(array(10), array(9))
    with pytest.raises(ValueError, match="0 rows"):
        parts(array(0), array(0))


def test_many_partitions_are_cut_quickly():
    """120,000 tiny partitions are one pass, not one search each."""
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
def test_fullest_gives_each_partition_to_the_least_full(
    rows: list[int], claims: list[float]
) -> None:
    """As it is written: of all workers, for each partition."""
    claim = np.array([c for c in claims if c])
    shares = sum(rows) * claim / claim.sum()
    loads = np.zeros(len(shares))
    for n in sorted(rows, reverse=True):
        loads[((loads + n) / shares).argmin()] += n
    assert fullest(array(*rows), np.array(claims)) == (loads / shares).max()


# --- boundaries -----------------------------------------------------------------------


def seen(data, *, workers=2, needs=None, **goal):
    """A view of data for a workload that needs this."""
    found = view([worker(i) for i in range(workers)], [data], **goal)
    workload = replace(found.goal.workload, **(needs or {}))
    return replace(found, goal=replace(found.goal, workload=workload))


# --- groups and copies ----------------------------------------------------------------


def ranked(*partitions, **how):
    looked = Contents(partitions=tuple(content.runs(np.array(p)) for p in partitions))
    rows = [len(p) for p in partitions]
    data = layout(rows, [0] * len(rows), ("X", "qid"), contents=looked)
    at = seen(data, needs={"groups": "together"}, **how)
    return chunking.divide(data, at, []).rows


def test_partitions_end_where_groups_do():
    """Near the old ends, if the workers can lie evenly so."""
    ones, twos = [1] * 9, [2] * 10
    assert ranked([*ones, 2], twos[1:]).tolist() == [9, 10]
    assert ranked(ones, twos).tolist() == [9, 10]
    assert ranked([1, 2], [1, 2]).tolist() == [2, 2]  # sorted first


def test_a_group_that_all_rows_are_of():
    """There is one partition then, however many there were."""
    assert ranked([1], [1], [1]).tolist() == [3]


def test_copies_are_not_cut():
    """New partitions of one would be rows of nothing."""
    data = layout([7, 7, 0], [0, 1, 1], ("Xv", "yv"), label="eval_set[0]")
    collections = [
        replace(m, keys=tuple((f"copied-{m.label}", i) for i in range(3)))
        for m in data.collections
    ]
    data = replace(data, collections=tuple(collections))
    at = seen(layout([8, 8], [0, 1]))
    at = replace(at, layouts=(*at.layouts, data))
    assert chunking.divide(data, at, []).rows.tolist() == [7, 7, 0]


def test_every_worker_gets_rows_of_an_eval_set():
    """Parts of up to three rows would be three parts, for four workers."""
    valid = layout([9], [0], ("Xv",), label="eval_set[0]")
    at = seen(layout([8] * 4, range(4)), workers=4, needs={"eval_everywhere": True})
    at = replace(at, layouts=(*at.layouts, valid))
    about = [f for f in checks.run(at) if f.check == "eval_sets"]
    assert [f.fixed_by for f in about] == ["rechunk"]
    assert chunking.divide(valid, at, about).rows.tolist() == [2, 2, 2, 3]


# --- classes --------------------------------------------------------------------------


def labelled(*partitions):
    looked = tuple(content.classes(np.array([*p]), 64) for p in partitions)
    rows = [len(p) for p in partitions]
    return layout(rows, [0] * len(rows), contents=Contents(partitions=looked))


def test_partitions_that_can_be_shared_out():
    """With the classes that each surely has."""
    data = labelled("aaaa", "bbbb")
    at = seen(data, needs={"needs_all_classes": True})
    rows, present = chunking.covering(data, data.rows, at, alone=False)
    assert rows.sum() == 8
    assert present.sum(axis=0).tolist() == [2, 2]


def test_partitions_are_cut_for_classes_once():
    """A requested number is requested again in each round, and the cuts stay."""
    labels = np.array([*"a" * 500, *"b" * 500])
    found = array(1000)
    for _ in range(2):
        former = found
        data = labelled(*np.split(labels, np.cumsum(former)[:-1]))
        at = seen(data, workers=3, needs={"needs_all_classes": True}, rechunk=3)
        rows = chunking.divide(data, at, []).rows
        assert rows.tolist() == [333, 333, 334]
        found, present = chunking.covering(data, rows, at, alone=False)
        assert (present.sum(axis=0) >= 3).all()
    assert found.tolist() == former.tolist()


@pytest.mark.parametrize(
    ("data", "needs", "workers"),
    [
        pytest.param(labelled("ab", "ab"), {}, 2, id="not needed"),
        pytest.param(
            labelled("aa", "ab"), {"needs_all_classes": True}, 2, id="too few rows"
        ),
        pytest.param(
            labelled("aa", "ab"), {"needs_all_classes": None}, 2, id="maybe no classes"
        ),
        pytest.param(
            layout([4, 4], [0, 1]), {"needs_all_classes": True}, 2, id="not looked at"
        ),
    ],
)
def test_nothing_to_share_out(data, needs, workers):
    """Where it is not needed, not known, or cannot be."""
    at = seen(data, needs=needs, workers=workers)
    assert chunking.covering(data, data.rows, at, alone=False) is None


# --- granularity ----------------------------------------------------------------------


MIB = 2**20


def on_large_workers(threads: list[int] | None = None, **profile: Any) -> View:
    """Workers of 64 GiB with these threads."""
    workload = Profile(name="p", title="P", memory_multiple={8: 1.0}, **profile)
    some = [
        worker(i, nthreads=n, memory_limit=2**36) for i, n in enumerate(threads or [1])
    ]
    return view(some, workload=workload)


@pytest.mark.parametrize(
    ("gib", "expected"),
    [(0.04, 4), (0.7, 4), (0.8, 8), (1.2, 12), (1.9, 16), (7, 16), (40, 80)],
)
def test_more_partitions_while_they_are_large(gib: float, expected: int) -> None:
    """A partition has 100 MiB, unless each thread has one; and half a GiB at most."""
    assert chunking.partition_count(gib * 2**30, on_large_workers(), 4) == expected


def test_unknown_bytes() -> None:
    """The profile has the number for a thread."""
    assert chunking.partition_count(None, on_large_workers(), 4) == 16
    one = on_large_workers(partitions_per_thread=1)
    assert chunking.partition_count(None, one, 4) == 4
    assert chunking.partition_count(2**40, one, 4) == 2**40 // 2**29


def test_no_partition_is_larger_than_a_tenth_of_a_worker() -> None:
    """Nor than the library can use."""
    one = on_large_workers(partitions_per_thread=1)
    small = [replace(w, memory_limit=1000 * MIB) for w in one.now.workers]
    full = replace(one, snapshots=(replace(one.now, workers=tuple(small)),))
    assert chunking.partition_count(400 * MIB, full, 1) == 4
    assert chunking.partition_count(400 * MIB, one, 1) == 1
    limited = on_large_workers(max_partition_bytes=50 * MIB)
    assert chunking.partition_count(400 * MIB, limited, 1) == 8


@given(st.floats(1, 1e12), st.integers(1, 64), st.integers(1, 8))
def test_the_rule(nbytes: float, threads: int, few: int) -> None:
    """As many for every thread: one, unless partitions are large; none is too large."""
    now = on_large_workers([threads], partitions_per_thread=few)
    n = chunking.partition_count(nbytes, now, threads)
    each = n // threads
    most = chunking.max_partition_bytes(now)
    assert n == each * threads
    assert nbytes / n <= most
    if each > 1 and nbytes / (n - threads) <= most:
        assert nbytes / n >= chunking.SMALL_PARTITION
        assert each <= few


@given(st.floats(1, 1e12), st.floats(1, 10))
def test_more_data_never_makes_fewer_partitions(nbytes: float, times: float) -> None:
    fewer = chunking.partition_count(nbytes, on_large_workers(), 4)
    assert fewer <= chunking.partition_count(nbytes * times, on_large_workers(), 4)


@given(st.lists(st.integers(1, 5), min_size=2, max_size=5), st.integers(10**4, 10**6))
@settings(deadline=None, max_examples=30)
def test_rows_lie_evenly_over_unlike_workers(threads: list[int], rows: int) -> None:
    """With one partition a thread every worker has its share."""
    data = layout([rows], [0])
    start = replace(on_large_workers(threads), layouts=(data,))
    (step,) = rechunk.propose(checks.run(start), start)
    assert len(step.args.rows) == sum(threads)
    assert np.bincount(step.args.targets).tolist() == threads
