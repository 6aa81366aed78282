"""Where partitions go: nothing without need, never above a budget, nearly the fewest
bytes.

The expected numbers come from trying all placements, from SciPy, or from a pencil.
"""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, brentq, milp

from clustertune.errors import CapacityError
from clustertune.planner import placement
from clustertune.planner.placement import place, placed


def on(workers, nbytes):
    """Every partition whole on one worker."""
    return np.arange(len(workers)), np.array(workers, int), np.array(nbytes, int)


def lay(workers, rows, weights, *, nbytes=None, **options):
    """Place partitions of 10 bytes a row, each whole on one worker."""
    nbytes = 10 * np.array(rows, int) if nbytes is None else nbytes
    return place(rows, on(workers, nbytes), weights, nbytes=nbytes, **options)


# --- very even rows, or few bytes -----------------------------------------------------


def test_very_even_rows_are_not_worth_many_bytes():
    """The smallest partition makes rows even within the tolerance, by itself."""
    workers, rows = [0, 0, 0, 1, 1], [104, 100, 26, 100, 70]
    very_even = lay(workers, rows, [1, 1], tolerance=0.01)
    assert (very_even.moved, very_even.rows.tolist()) == (1700, [200, 200])
    found = lay(workers, rows, [1, 1], tolerance=0.05, aim=0.2)
    assert (found.moved, found.rows.tolist()) == (260, [204, 196])


def test_rows_are_very_even_if_no_partition_is_exchanged():
    """The moved bytes are the fewest for these rows, so no others are tried."""
    found = lay([0] * 120 + [1] * 80, [1] * 200, [1, 1], tolerance=0.05, aim=0.2)
    assert found.rows.tolist() == [101, 99]


@pytest.mark.parametrize("start", [[0, 2] * 20, [2, 0, 0, 2] * 10, [0] * 40])
def test_the_search_begins_with_given_targets(start):
    """They stay if they are even, and no others move fewer bytes."""
    first = np.array(start)
    found = lay([0] * 40, [5] * 40, [1, 0, 1], tolerance=0.0, first=first)
    assert found.rows.tolist() == [100, 0, 100]
    assert found.moved == 1000
    assert (found.target.tolist() == start) == (2 in start)


# --- nothing may move -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "rows", "weights", "options"),
    [
        ([0, 1, 0, 1], [5, 5, 5, 5], [1, 1], {}),
        ([0, 1, 2], [100, 100, 104], [1, 1, 1], {}),
        ([0, 0, 0, 1], [5, 5, 5, 5], [3, 1], {}),
        ([2, 1, 1, 2], [5, 5, 5, 5], [0, 1, 1], {}),
        ([0, 0, 1], [5, 5, 5], [1, 1], {}),
        ([0, 0], [5, 5], [16, 1], {}),
        ([0, 1, 1], [8, 1, 1], [1, 1], {}),
        ([0, 0, 0, 1], [5, 5, 5, 5], [1, 1], {"budget": [150, 50]}),
        ([0, 0, 0, 1], [5, 5, 5, 5], [1, 1], {"tolerance": 0.5}),
        ([0, 1, 0, 0], [5, 5, 0, 0], [1, 1], {}),
        ([0], [5], [1, 1, 1], {}),
        ([1, 0], [0, 0], [1, 1], {"nbytes": [10, 10]}),
        ([], [], [1, 1], {}),
    ],
    ids=[
        "even",
        "within the tolerance",
        "by weight",
        "none where it may not be",
        "no better with whole partitions",
        "idle, but even the smallest partition is far above its share",
        "one partition is most of all",
        "budgets say so",
        "wide tolerance",
        "partitions without rows",
        "one partition",
        "no rows at all",
        "no partitions",
    ],
)
def test_fine_layout_stays(workers, rows, weights, options):
    """A layout that is as even as allowed or possible is left as it is."""
    placement = lay(workers, rows, weights, **options)
    assert placement.moved == 0
    assert placement.target.tolist() == workers


def test_fine_layout_of_many_partitions_stays():
    """A thousand partitions within the tolerance are left where they are."""
    generator = np.random.default_rng(0)
    rows = generator.integers(90, 110, 1000)
    workers = np.arange(1000) % 10
    placement = lay(workers, rows, np.ones(10))
    assert placement.moved == 0
    assert placement.target.tolist() == workers.tolist()
    assert placement.imbalance <= placement.limit == 1.05


def test_replica_elsewhere_moves_nothing():
    """With a copy of every partition on all workers, evenness costs no bytes."""
    held = (np.repeat(np.arange(40), 4), np.tile(np.arange(4), 40), np.full(160, 7))
    placement = place([3] * 40, held, [1] * 4, nbytes=[7] * 40)
    assert placement.moved == 0
    assert placement.rows.tolist() == [30] * 4


def test_copy_that_nobody_needs_changes_nothing():
    """A partition with a second copy stays on the first if the layout is fine so."""
    held = (np.array([0, 1, 1, 2, 3]), np.array([0, 0, 1, 1, 1]), np.full(5, 10))
    placement = place([5] * 4, held, [1, 1], nbytes=[10] * 4, tolerance=1.0)
    assert placement.moved == 0


# --- what must move -------------------------------------------------------------------


def test_all_on_one_worker_are_shared_out():
    """After 1 -> 4 workers each has a quarter, and the first keeps its own."""
    placement = lay([0] * 8, [5] * 8, [1] * 4)
    assert placement.rows.tolist() == [10, 10, 10, 10]
    assert placement.moved == 300


def test_only_the_surplus_leaves():
    """A worker gives away no more than what it has above the allowed share."""
    placement = lay([0] * 60 + [1] * 40, [1] * 100, [1, 1])
    assert placement.rows.tolist() == [52, 48]
    assert placement.moved == 80


def test_shares_follow_the_weights():
    """A worker with twice the threads gets twice the rows."""
    placement = lay([0] * 12, [5] * 12, [2, 1, 1], tolerance=0)
    assert placement.rows.tolist() == [30, 15, 15]
    assert placement.imbalance == 1.0


def test_worker_that_is_not_eligible_is_left():
    """With weight 0 a worker gives up everything and gets nothing."""
    placement = lay([0, 0, 1, 2], [5] * 4, [0, 1, 1])
    assert placement.rows.tolist() == [0, 10, 10]
    assert placement.moved == 100
    assert placement.target[2:].tolist() == [1, 2]


def test_copy_on_a_leaving_worker_saves_nothing():
    """Bytes on a worker that may not train are not at home there."""
    held = ([0, 0], [0, 1], [10, 4])
    placement = place([5], held, [0, 1], nbytes=[10])
    assert placement.target.tolist() == [1]
    assert placement.moved == 6


def test_pairs_meet_where_most_bytes_lie():
    """With X here and y there, y travels: it is smaller."""
    held = ([0, 0, 1, 1], [0, 1, 1, 0], [90, 10, 90, 10])
    placement = place([5, 5], held, [1, 1], nbytes=[100, 100])
    assert placement.target.tolist() == [0, 1]
    assert placement.moved == 20


def test_entries_of_one_partition_on_one_worker_add_up():
    """X and y of a partition on one worker are one whole partition there."""
    held = ([0, 0, 0], [0, 1, 1], [50, 45, 45])
    placement = place([5], held, [1, 1], nbytes=[90])
    assert placement.target.tolist() == [1]
    assert placement.moved == 0


def test_partition_that_nobody_holds_travels_whole():
    """A partition that is on no worker gets a place, at the price of all its bytes."""
    placement = place([5, 5], ([0], [1], [10]), [1, 1], nbytes=[10, 30])
    assert placement.target.tolist() == [1, 0]
    assert placement.moved == 30


@pytest.mark.parametrize("count", [8, 300])
def test_idle_worker_is_wrong_even_within_the_tolerance(count):
    """One of many workers without rows gets a partition, though no limit needs it."""
    workers = [*np.arange(count), *np.arange(count)]
    placement = lay(workers, [5] * (2 * count), [1] * (count + 1), tolerance=0.5)
    assert (placement.rows > 0).all()
    assert placement.moved == 50


def test_idle_worker_takes_the_copy_that_it_has():
    """Of what an idle worker could get, it gets a partition of which it has a copy."""
    count = 300
    partition, worker, nbytes = on([*np.arange(count)] * 2, [50] * (2 * count))
    held = np.append(partition, 7), np.append(worker, count), np.append(nbytes, 50)
    placement = place([5] * 600, held, [1] * 301, nbytes=[50] * 600, tolerance=0.5)
    assert placement.target[7] == count
    assert placement.moved == 0


def test_idle_worker_is_filled_although_one_partition_is_huge():
    """The limit that one huge partition sets leaves no other worker without rows."""
    placement = lay([0] + [1] * 29, [1000] + [1] * 29, [1] * 10)
    assert (placement.rows > 0).all()
    assert placement.imbalance == placement.limit == pytest.approx(1000 / 102.9)


# --- budgets --------------------------------------------------------------------------


def test_budget_comes_before_balance():
    """A worker with little room gets little, the others share the rest by weight."""
    placement = lay([0] * 10, [5] * 10, [1] * 3, budget=[1000, 1000, 100], tolerance=0)
    assert placement.rows.tolist() == [20, 20, 10]
    assert placement.imbalance == 1.0


def test_budget_moves_what_balance_would_leave():
    """What is above a worker's budget leaves, even if rows are even."""
    placement = lay([0, 0, 1, 1], [5] * 4, [1, 1], budget=[50, 1000])
    assert placement.rows.tolist() == [5, 15]
    assert placement.moved == 50


def test_budget_of_nothing_takes_nothing():
    """A worker that may hold no bytes gets no partition."""
    placement = lay([0, 0, 0], [5] * 3, [1, 1], budget=[0, 150])
    assert placement.target.tolist() == [1, 1, 1]


def test_tight_budgets_are_packed():
    """Partitions that fill all budgets to the last byte find their places."""
    rows = [7, 6, 5, 5, 4, 3]
    placement = lay([0] * 6, rows, [1] * 3, budget=[100, 100, 100])
    assert placement.rows.tolist() == [10, 10, 10]


@pytest.mark.parametrize("count", [3, 60])
def test_too_much_is_refused(count):
    """What the budgets cannot hold is an error that names both numbers."""
    with pytest.raises(CapacityError, match=rf"{count * 50:,} bytes.* 140 bytes"):
        lay([0] * count, [5] * count, [1, 1], budget=[70, 70])


def test_partitions_too_big_for_any_worker_are_refused():
    """Budgets that hold all bytes, but no partition, are too small."""
    with pytest.raises(CapacityError, match=r"largest partition 100.*largest 70"):
        lay([0, 0], [10, 10], [1, 1, 1], budget=[70, 70, 70])


# --- properties -----------------------------------------------------------------------


@st.composite
def layouts(draw, most_partitions=30, most_workers=6):
    """Arguments of `place`: partitions, replicas, weights, some budgets."""
    size = draw(st.integers(0, most_partitions))
    count = draw(st.integers(1, most_workers))
    many = st.lists(st.integers(0, 40), min_size=size, max_size=size)
    rows, extra = draw(many), draw(many)
    nbytes = [8 * row + more for row, more in zip(rows, extra)]
    held = []
    for partition in range(size):
        where = draw(st.lists(st.integers(0, count - 1), max_size=3, unique=True))
        for worker in where:
            whole = draw(st.booleans())
            part = (
                nbytes[partition] if whole else draw(st.integers(0, nbytes[partition]))
            )
            held.append((partition, worker, part))
    weights = draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))
    weights[draw(st.integers(0, count - 1))] = 1
    budget = None
    if draw(st.booleans()):
        room = st.integers(0, 2 * sum(nbytes) // count + 60)
        budget = draw(st.lists(room, min_size=count, max_size=count))
    columns = np.array(held, int).reshape(-1, 3).T
    tolerance = draw(st.sampled_from([0.0, 0.05, 0.3]))
    options = {"nbytes": nbytes, "budget": budget, "tolerance": tolerance}
    return rows, tuple(columns), weights, options


def shares(rows, weights, nbytes, budget):
    """Rows by weight below the budgets: the level is found by SciPy."""
    weights, total = np.array(weights, float), sum(rows)
    most = np.full(weights.size, np.inf)
    if budget is not None and sum(nbytes) and total:
        most = np.array(budget) * total / sum(nbytes)
    most[weights == 0] = 0

    def missing(level):
        return np.minimum(level * weights, most).sum() - total

    high = 2 * total / weights[weights > 0].min() + most[np.isfinite(most)].sum() + 1
    while missing(high) < 0 and high < 1e15:
        high *= 10
    level = brentq(missing, 0, high, xtol=1e-12) if missing(high) > 0 else high
    return np.minimum(level * weights, most)


def imbalance(target, rows, share):
    """Rows of the fullest worker over its share."""
    load = np.bincount(np.asarray(target, int), rows, share.size)
    ratios = [
        have / due if due > 1e-9 else np.inf for have, due in zip(load, share) if have
    ]
    return max([1.0, *ratios])


def cost(target, held, nbytes):
    """Bytes that are not on their target."""
    there = sum(
        part for partition, worker, part in zip(*held) if target[partition] == worker
    )
    return sum(nbytes) - there


def try_place(case):
    rows, held, weights, options = case
    try:
        return place(rows, held, weights, **options)
    except CapacityError:
        return None


@given(layouts())
@settings(deadline=None, max_examples=40)
def test_placement_is_what_it_says(case):
    """Every partition has one eligible target, budgets hold, figures are true.

    Planning twice gives the same, and a placement that was carried out needs no other.
    """
    rows, held, weights, options = case
    placement, same = try_place(case), try_place(case)
    if placement is None:
        assert same is None
        return
    assert same.target.tolist() == placement.target.tolist()
    again = place(rows, on(placement.target, options["nbytes"]), weights, **options)
    assert again.moved == 0
    assert again.limit <= placement.limit
    target, nbytes, budget = placement.target, options["nbytes"], options["budget"]
    assert target.shape == (len(rows),)
    assert all(weights[worker] > 0 for worker in target)
    used = np.bincount(target, nbytes, len(weights))
    assert budget is None or (used <= budget).all()
    load = np.bincount(target, rows, len(weights))
    assert placement.rows.tolist() == load.tolist()
    assert placement.moved == cost(target, held, nbytes)
    share = shares(rows, weights, nbytes, budget)
    found = imbalance(target, rows, share)
    assert placement.imbalance == pytest.approx(found, rel=1e-6)
    assert placement.imbalance <= placement.limit


@pytest.mark.parametrize("seed", [146, 254])
def test_a_placement_that_was_carried_out_needs_no_other(seed):
    """Also where only the search for even rows, without holders, finds it."""
    random = np.random.default_rng(seed)
    weights = random.integers(0, 5, random.integers(3, 7)).tolist()
    count = int(random.integers(10, 26))
    rows = random.integers(0, 100, count).tolist()
    nbytes = [int(n * random.integers(1, 20)) for n in rows]
    homes = random.integers(0, len(weights), count)
    replicas = int(random.integers(0, count))
    partition = np.r_[np.arange(count), random.integers(0, count, replicas)]
    worker = np.r_[homes, random.integers(0, len(weights), replicas)]
    pairs = np.array(sorted(set(zip(partition.tolist(), worker.tolist())))).T
    held = (*pairs, np.array(nbytes)[pairs[0]])
    first = place(rows, held, weights, nbytes=nbytes, tolerance=0.0)
    done = on(first.target, nbytes)
    assert place(rows, done, weights, nbytes=nbytes, tolerance=0.0).moved == 0


@given(layouts(), st.data())
@settings(deadline=None, max_examples=40)
def test_rows_are_never_less_even_than_before(case, data):
    """Where whole partitions lay within the budgets, they lie no worse afterwards."""
    rows, _, weights, options = case
    eligible = np.flatnonzero(weights)
    choice = st.lists(st.sampled_from(eligible), min_size=len(rows), max_size=len(rows))
    workers, nbytes = data.draw(choice), options["nbytes"]
    budget = options["budget"]
    if budget is not None:
        used = np.bincount(np.array(workers, int), nbytes, len(weights))
        budget = options["budget"] = np.maximum(budget, used).tolist()
    placement = place(rows, on(workers, nbytes), weights, **options)
    before = imbalance(workers, rows, shares(rows, weights, nbytes, budget))
    allowed = max(before, 1 + options["tolerance"])
    assert placement.imbalance <= allowed * (1 + 1e-6)


def test_a_second_search_finds_no_more():
    """As it once did: from where the first had led to."""
    rows = [0, 0, 2, 3, 7, 9, 12, 14, 17, 31, 32, 34, 34, 35, 35, 38, 40]
    held = (
        [1, 2, 2, 2, 3, 3, 4, 4, 4, 7],
        [0, 0, 1, 2, 0, 4, 0, 1, 2, 2],
        [0, 0, 16, 0, 24, 24, 56, 0, 0, 112],
    )
    options = {"nbytes": [8 * n for n in rows], "tolerance": 0.0}
    placement = place(rows, held, [1, 0, 1, 1, 2, 3], **options)
    assert placement.imbalance < 1.003
    there = on(placement.target, options["nbytes"])
    assert place(rows, there, [1, 0, 1, 1, 2, 3], **options).moved == 0


# --- against the best -----------------------------------------------------------------


def best_of_all(rows, held, weights, options):
    """Least (imbalance above the tolerance, idle workers, bytes) by trying all ways."""
    nbytes, budget = np.array(options["nbytes"]), options["budget"]
    share = shares(rows, weights, nbytes, budget)
    floor, best = 1 + options["tolerance"], None
    for target in itertools.product(np.flatnonzero(weights), repeat=len(rows)):
        where = np.array(target, int)
        used = np.bincount(where, nbytes, share.size)
        if budget is not None and (used > budget).any():
            continue
        load = np.bincount(where, rows, share.size)
        idle = int(((load == 0) & (share > 1e-9)).sum())
        worst = round(imbalance(target, rows, share), 6)
        score = max(round(floor, 6), worst), idle, cost(target, held, nbytes)
        best = score if best is None else min(best, score)
    return best


@given(layouts(most_partitions=6, most_workers=3))
@settings(deadline=None, max_examples=100)
def test_few_partitions_are_placed_in_the_best_way(case):
    """Up to 6 partitions on 3 workers, no placement has fewer bytes: the ratio is 1."""
    best, placement = best_of_all(*case), try_place(case)
    if best is None or best[0] == np.inf:
        assert placement is None
        return
    rows, _, weights, options = case
    share = shares(rows, weights, options["nbytes"], options["budget"])
    idle = int(((placement.rows == 0) & (share > 1e-9)).sum())
    assert placement.limit == pytest.approx(best[0], rel=1e-5)
    assert (idle, placement.moved) == best[1:]


@given(layouts(most_partitions=7, most_workers=3))
@settings(deadline=None, max_examples=12)
def test_the_search_ends_where_nothing_better_exists(case):
    """As much stays as if it went on and on."""
    rows, held, weights, options = case
    found = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(placement, "ALL", 1)  # as if there were too many ways
        for bound in (placement._most_kept, lambda *_: math.inf):
            patched.setattr(placement, "_most_kept", bound)
            try:
                found.append(place(rows, held, weights, **options))
            except CapacityError:
                found.append(None)
    early, late = found
    assert (early is None) == (late is None)
    if early is not None and late is not None:
        assert early.limit == late.limit
        assert early.moved <= late.moved + placement.NEAR * late.moved


@pytest.mark.parametrize(
    ("size", "last", "workers", "on", "imbalance"),
    [
        (300, 1000, 4, 2, 1.0),
        (40, 976, 4, 1, 1.001),
        (500, 999, 16, 1, 1.024003),  # 4 workers need 32 partitions, and 3 have 32,000
    ],
)
def test_partitions_alike_are_placed_at_once(
    monkeypatch, size, last, workers, on, imbalance
):
    """No search where as much stays as can, although the last one has fewer rows."""
    searched = []

    def search(*_, **options):
        searched.append(1)
        return np.array([]), np.array([])

    monkeypatch.setattr(placement, "_neighbours", search)
    rows = [1000] * (size - 1) + [last]
    found = lay([i % on for i in range(size)], rows, [1] * workers, tolerance=0.01)
    kept = on * int(np.ceil(size / workers))
    assert found.moved == pytest.approx((size - kept) * 10_000, rel=1e-3)
    assert found.imbalance <= imbalance
    assert not searched


def test_what_rounding_sets_apart_is_as_good():
    """45 rows of 42.6 are as uneven as 15 of 14.2, whatever their last digits are."""
    held = (np.array([0, 0]), np.array([0, 1]), np.array([24, 24]))
    nbytes = [24, 96, 112, 120, 216]
    placement = place([3, 12, 14, 15, 27], held, [1, 1, 3], nbytes=nbytes, tolerance=0)
    assert placement.moved == sum(nbytes) - 24


@pytest.mark.parametrize("seed", range(12))
def test_some_partitions_are_placed_in_nearly_the_best_way(seed):
    """12 to 24 partitions on 5 workers move at most a tenth more than the best way."""
    generator = np.random.default_rng(seed)
    size, count = 12 + seed, 5
    rows = generator.integers(10, 100, size)
    nbytes, workers = rows * 10, generator.integers(0, 3, size)
    placement = lay(workers, rows, np.ones(count))
    kept = np.zeros((size, count))
    kept[np.arange(size), workers] = nbytes
    most = placement.limit * (1 + 1e-9) * rows.sum() / count
    best = milp(
        (nbytes[:, None] - kept).ravel(),
        constraints=[
            LinearConstraint(np.kron(np.eye(size), np.ones(count)), 1, 1),
            LinearConstraint(np.kron(rows, np.eye(count)), 1, most),
        ],
        integrality=np.ones(size * count),
        bounds=Bounds(0, 1),
    )
    assert placement.moved <= 1.1 * best.fun


@pytest.mark.parametrize("workers", [4, 40])
def test_many_partitions_come_near_the_bound(workers):
    """100 uneven partitions per worker need hardly more moves than the surplus."""
    generator = np.random.default_rng(1)
    rows = generator.integers(50, 150, 100 * workers)
    where = generator.integers(0, workers, rows.size) ** 2 // workers
    placement = lay(where, rows, np.ones(workers))
    load = np.bincount(where, rows, workers)
    surplus = np.maximum(0, load - placement.limit * rows.sum() / workers).sum()
    assert placement.limit == 1.05
    assert placement.moved <= 1.02 * 10 * surplus


def test_more_partitions_than_are_polished_are_placed():
    """25,000 partitions are even after the first pass already, and few bytes moved."""
    where = np.arange(25_000) % 50
    placement = lay(where, [100] * 25_000, np.ones(100))
    assert placement.imbalance <= 1.05
    assert placement.moved <= 1.01 * 1000 * (25_000 - 1.05 * 250 * 50)


# --- wrong input ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "held", [([0], [0], [11]), ([0, 0], [0, 0], [6, 6])], ids=["one", "two"]
)
def test_more_bytes_than_a_partition_has(held):
    """A worker cannot hold more of a partition than its bytes."""
    with pytest.raises(ValueError, match="more of a partition"):
        place([1, 1], held, [1, 1], nbytes=[10, 10])


# --- a place that others have chosen --------------------------------------------------


def test_partitions_with_many_bytes_are_searched_again():
    """A search that begins at any partition ends at 13,838,200 bytes here."""
    generator = np.random.default_rng(0)
    size, n_workers = int(generator.integers(20, 60)), int(generator.integers(5, 12))
    rows = np.ceil(generator.lognormal(9, 0.8, size)).astype(int)
    workers = generator.integers(0, n_workers, size)
    found = lay(workers, rows, np.ones(n_workers), nbytes=rows * 100)
    assert found.moved <= 13_735_100


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(1, 3))
def test_the_least_by_count_is_no_more_than_the_best(rows, workers):
    """Whatever the partitions and the ways to place them."""
    rows, share = np.array(rows), np.full(workers, max(1, sum(rows)) / workers)
    ways = itertools.product(range(workers), repeat=len(rows))
    best = min(np.bincount(way, rows, workers).max() / share[0] for way in ways)
    assert placement._least_by_count(rows, share) <= max(1.0, best) * (1 + 1e-9)


def test_the_least_of_like_partitions_is_the_best():
    """Ten partitions on four workers: three on the fullest."""
    assert placement._least_by_count(np.full(10, 7), np.full(4, 17.5)) == 3 / 2.5


def test_the_least_by_count_of_partitions_that_differ_little():
    """Of 13 partitions one of three workers has five, however their rows divide."""
    rows = np.array([46] * 6 + [47] * 7)
    share = np.full(3, rows.sum() / 3)
    assert placement._least_by_count(rows, share) == pytest.approx(5 * 46 / share[0])


def test_what_a_place_takes():
    """Bytes that travel, rows and evenness; workers of no weight are left out."""
    workers, rows = [0, 0, 2, 1], [5, 5, 5, 5]
    nbytes = 10 * np.array(rows)
    target = np.array([0, 2, 2, 0])
    found = placed(rows, on(workers, nbytes), [1, 0, 3], nbytes=nbytes, target=target)
    assert found.target.tolist() == [0, 2, 2, 0]
    assert found.moved == 100
    assert found.rows.tolist() == [10, 0, 10]
    assert found.imbalance == 2.0


@given(st.data())
def test_the_best_place_is_priced_alike(data):
    """What is found and what is priced agree."""
    n_workers = data.draw(st.integers(1, 4))
    size = data.draw(st.integers(1, 8))
    rows = data.draw(st.lists(st.integers(1, 9), min_size=size, max_size=size))
    some = st.lists(st.integers(0, n_workers - 1), min_size=size, max_size=size)
    held, nbytes = on(data.draw(some), 10 * np.array(rows)), 10 * np.array(rows)
    weights = [1] * n_workers
    best = place(rows, held, weights, nbytes=nbytes)
    found = placed(rows, held, weights, nbytes=nbytes, target=best.target)
    assert (found.moved, found.imbalance) == (best.moved, best.imbalance)
    assert found.rows.tolist() == best.rows.tolist()
