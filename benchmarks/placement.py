"""Bytes that placement moves, and the seconds that it plans.

Random layouts have 2 to 16 workers and 4 to 400 partitions. The moved bytes are divided
by a lower bound: the linear programme in which partitions may be divided. For up to 12
partitions they are also divided by the optimum for whole partitions. Planning is timed
for 100,000 partitions on 1,000 workers.

Options: `--layouts 500`, `--repeats 15`.
"""

import argparse
import time
from collections import defaultdict

import numpy as np
from measure import compare, interval, machine
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, brentq, linprog, milp
from tabulate import tabulate

from clustertune.errors import CapacityError
from clustertune.planner.placement import place

KINDS = (
    "all on one worker",
    "after scale-up",
    "random",
    "separated pairs",
    "replicas",
    "threads differ",
    "tight budgets",
)
FEW = 12  # largest number of partitions whose optimum is computed


def layout(kind, generator):
    """Arguments of `place`: uneven partitions of X and y on workers."""
    workers = int(generator.integers(2, 17))
    size = int(np.exp(generator.uniform(np.log(4), np.log(401))))
    unevenness = generator.choice([0.0, 0.2, 0.6, 1.0])
    rows = np.ceil(generator.lognormal(9, unevenness, size)).astype(int)
    x_bytes, y_bytes = rows * int(generator.integers(8, 800)), rows * 8
    partition, everything = np.arange(size), x_bytes + y_bytes
    where = generator.integers(0, workers, size)
    if kind == "all on one worker":
        where[:] = 0
    elif kind == "after scale-up":
        where = partition * max(1, int(workers * generator.uniform(0.2, 0.95))) // size
    held = (partition, where, everything)
    if kind == "separated pairs":
        other = generator.integers(0, workers, size)
        other = np.where(generator.random(size) < 0.5, where, other)
        held = (partition, where, x_bytes), (partition, other, y_bytes)
        held = tuple(np.concatenate(arrays) for arrays in zip(*held, strict=True))
    elif kind == "replicas":
        twice = generator.random(size) < 0.4
        second = (where + generator.integers(1, workers, size)) % workers
        copies = partition[twice], second[twice], everything[twice]
        held = tuple(
            np.concatenate(arrays) for arrays in zip(held, copies, strict=True)
        )
    weights = np.ones(workers)
    if kind == "threads differ":
        weights = generator.choice([1.0, 2.0, 4.0, 8.0], workers)
    budget = np.full(workers, np.inf)
    if kind == "tight budgets":
        budget = generator.uniform(0.5, 2, workers)
        budget *= 1.2 * everything.sum() / budget.sum()
        budget = np.maximum(budget, everything.max())
    return rows, held, weights, {"nbytes": everything, "budget": budget}


def shares(rows, weights, nbytes, budget):
    """Rows by weight, limited by the budgets."""
    total = rows.sum()
    most = budget * total / nbytes.sum()
    if np.minimum(total * weights / weights.sum(), most).sum() >= total * (1 - 1e-12):
        return total * weights / weights.sum()
    level = brentq(
        lambda rise: np.minimum(rise * weights, most).sum() - total,
        0,
        most.sum() / weights.min(),
        xtol=1e-9,
    )
    return np.minimum(level * weights, most)


def divisible(rows, held, weights, nbytes, budget, limit):
    """Fewest bytes if partitions could be divided: a linear programme.

    One variable for each holding is the fraction of the partition that stays there.
    Arriving rows and bytes are two variables for each worker. So the size grows with
    the holdings, not with partitions times workers.
    """
    joined = sparse.csr_matrix((held[2], held[:2])).tocoo()  # X and y of one partition
    partition, worker, kept = joined.row, joined.col, joined.data
    count, each = weights.size, np.arange(partition.size)
    stays = sparse.csr_matrix((np.ones(partition.size), (partition, each)))
    loads = [
        sparse.csr_matrix((values[partition], (worker, each)), (count, partition.size))
        for values in (rows, nbytes)
    ]
    bounded = np.isfinite(budget)
    arrive = sparse.eye(2 * count).tocsr()
    result = linprog(
        np.concatenate([-kept, np.zeros(2 * count)]),
        A_ub=sparse.vstack(
            [
                sparse.hstack([stays, sparse.csr_matrix((stays.shape[0], 2 * count))]),
                sparse.hstack([loads[0], arrive[:count]]),
                sparse.hstack([loads[1], arrive[count:]]).tocsr()[bounded],
            ]
        ),
        b_ub=np.concatenate(
            [
                np.ones(stays.shape[0]),
                limit * shares(rows, weights, nbytes, budget),
                budget[bounded],
            ]
        ),
        A_eq=np.array(
            [
                np.concatenate([rows[partition], np.ones(count), np.zeros(count)]),
                np.concatenate([nbytes[partition], np.zeros(count), np.ones(count)]),
            ]
        ),
        b_eq=[rows.sum(), nbytes.sum()],
        method="highs",
    )
    return max(0.0, nbytes.sum() + result.fun)


def whole(rows, held, weights, nbytes, budget, limit, idle):
    """Fewest bytes with whole partitions and no more idle workers."""
    size, count = rows.size, weights.size
    kept = np.zeros((size, count))
    np.add.at(kept, held[:2], held[2])
    cost = (nbytes[:, None] - kept).ravel()
    most = np.floor(limit * (1 + 1e-9) * shares(rows, weights, nbytes, budget))
    on, every = sparse.eye(count), np.ones((1, count))
    pick = [  # variables: partition is on worker, then worker is busy
        sparse.hstack([sparse.kron(matrix, other), unused])
        for matrix, other, unused in (
            (sparse.eye(size), every, sparse.csr_matrix((size, count))),
            (rows[None], on, sparse.csr_matrix((count, count))),
            (nbytes[None], on, sparse.csr_matrix((count, count))),
            ((rows > 0)[None].astype(float), on, -on),
        )
    ]
    busy = np.concatenate([np.zeros(size * count), np.ones(count)])
    result = milp(
        np.concatenate([cost / nbytes.sum(), np.zeros(count)]),
        constraints=[
            LinearConstraint(pick[0].tocsr(), 1, 1),
            LinearConstraint(pick[1].tocsr(), -np.inf, most),
            LinearConstraint(pick[2].tocsr(), -np.inf, budget),
            LinearConstraint(pick[3].tocsr(), 0, np.inf),
            LinearConstraint(busy[None], count - idle, count),
        ],
        integrality=np.ones(busy.size),
        bounds=Bounds(0, 1),
        options={"time_limit": 20, "mip_rel_gap": 1e-6},
    )
    return result.fun * nbytes.sum() if result.status == 0 else np.nan


def ratio(moved, least):
    """Moved bytes over the least; infinite if only the least is zero."""
    if least < 0.5:
        return np.inf if moved else 1.0
    return moved / least


def can_fit(nbytes, budget):
    """Whether a placement of whole partitions fits the budgets."""
    size, count = nbytes.size, budget.size
    result = milp(
        np.zeros(size * count),
        constraints=[
            LinearConstraint(sparse.kron(sparse.eye(size), np.ones((1, count))), 1, 1),
            LinearConstraint(sparse.kron(nbytes[None], sparse.eye(count)), 0, budget),
        ],
        integrality=np.ones(size * count),
        bounds=Bounds(0, 1),
    )
    return result.status != 2


def measure(kind, number):
    """Figures of one layout, and its partitions per worker; None if nothing fits."""
    generator = np.random.default_rng(number)
    rows, held, weights, sizes = layout(kind, generator)
    start = time.perf_counter()
    try:
        found = place(rows, held, weights, **sizes)
    except CapacityError:
        if can_fit(**sizes):
            raise
        return None
    seconds = time.perf_counter() - start
    parts = (rows, held, weights, sizes["nbytes"], sizes["budget"], found.limit)
    best = np.nan
    if rows.size <= FEW:
        idle = int((found.rows == 0).sum())
        best = ratio(found.moved, whole(*parts, idle))
    bound = ratio(found.moved, divisible(*parts))
    return (bound, best, found.imbalance, found.imbalance / found.limit, seconds), (
        rows.size / weights.size
    )


def spread(values):
    """Median, 95th percentile and maximum of the finite values."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return ["-"] * 3
    return [f"{value:.3f}" for value in np.percentile(finite, [50, 95, 100])]


def summary(title, results):
    bound, best, imbalance, _, _ = np.array(results).T
    return [
        title,
        len(results),
        *spread(bound),
        int(np.isinf(bound).sum()),
        *spread(best),
        *spread(imbalance),
    ]


def show(groups):
    headers = ["layouts", "n", "moved/bound", "p95", "max", "0 bound"]
    headers += ["moved/best", "p95", "max", "rows/share", "p95", "max"]
    rows = [summary(*group) for group in groups]
    print(tabulate(rows, headers=headers, disable_numparse=True), end="\n\n")


def plan_many(kind, partitions=100_000, workers=1_000):
    """Arguments of `place` for many partitions on many workers."""
    generator = np.random.default_rng(1)
    rows = np.ceil(generator.lognormal(9, 0.5, partitions)).astype(int)
    partition, nbytes = np.arange(partitions), rows * 100
    where = generator.integers(0, workers, partitions)
    if kind == "after scale-up":
        where = partition * (workers // 2) // partitions
    held = (partition, where, nbytes)
    if kind == "separated pairs":
        held = (
            np.tile(partition, 2),
            generator.integers(0, workers, 2 * partitions),
            None,
        )
        held = (*held[:2], np.concatenate([rows * 92, rows * 8]))
    budget = np.full(workers, np.inf)
    if kind == "tight budgets":
        budget = generator.uniform(0.5, 2, workers)
        budget *= 1.1 * nbytes.sum() / budget.sum()
    return rows, held, np.ones(workers), {"nbytes": nbytes, "budget": budget}


def time_many(repeats):
    """Seconds to plan 100,000 partitions on 1,000 workers, as an interval by layout."""
    for kind in ("after scale-up", "random", "separated pairs", "tight budgets"):
        rows, held, weights, sizes = plan_many(kind)
        seconds = []
        for _ in range(repeats):
            start = time.perf_counter()
            place(rows, held, weights, **sizes)
            seconds.append(time.perf_counter() - start)
        yield kind, interval(seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layouts", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=15)
    chosen = parser.parse_args()
    by_kind, by_size, refused = defaultdict(list), defaultdict(list), 0
    for number in range(chosen.layouts):
        kind = KINDS[number % len(KINDS)]
        measured = measure(kind, number)
        if measured is None:
            refused += 1
            continue
        result, partitions = measured
        by_kind[kind].append(result)
        sizes = ["up to 3", "3 to 10", "over 10"]
        by_size[
            f"{sizes[np.digitize(partitions, [3, 10])]} partitions a worker"
        ].append(result)
    every = [result for results in by_kind.values() for result in results]
    print(
        f"{chosen.layouts} layouts, 2 to 16 workers, 4 to 400 partitions; {machine()}"
    )
    print(f"{refused} refused: no placement fits their budgets", end="\n\n")
    show([*by_kind.items(), *sorted(by_size.items()), ("all", every)])
    times = list(time_many(chosen.repeats))
    rows = [[kind, str(found)] for kind, found in times]
    headers = ["100,000 partitions, 1,000 workers", "seconds, median [95 %]"]
    print(tabulate(rows, headers=headers, disable_numparse=True), end="\n\n")
    judge(np.array(every).T, max(found.high for _, found in times))


def judge(results, slowest):
    bound, best, _, limited, seconds = results
    best = best[np.isfinite(best)]
    compare(
        "moved bytes / lower bound, median",
        float(np.median(bound)),
        at_most=1.05,
        headline=True,
    )
    compare(
        "moved bytes / optimum for whole partitions, 95th percentile",
        float(np.percentile(best, 95)),
        at_most=1.01,
    )
    compare("rows / allowed rows, maximum", float(limited.max()), at_most=1)
    compare(
        "planning 100,000 partitions on 1,000 workers", slowest, at_most=1, unit=" s"
    )
    compare(
        "planning up to 400 partitions, 95th percentile",
        float(np.percentile(seconds, 95)),
        at_most=1,
        unit=" s",
    )


if __name__ == "__main__":
    main()
