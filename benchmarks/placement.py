"""Bytes that placement moves, and the seconds of planning.

Random layouts have 2 to 16 workers and 4 to 400 partitions. The moved bytes are divided
by a lower bound: the linear programme in which partitions may be divided. For up to 12
partitions they are also divided by the optimum for whole partitions. Planning is timed
for 100,000 partitions on 1,000 workers.

Plans have 2 to 64 workers. `prepare` cuts partitions there, or moves them. The bytes of
its plan are divided by the fewest bytes with which each worker has as many rows as in
this plan. Any row may stay on any of its holders then, and X and y of a row meet. If
partitions are joined, the rows of each new partition meet, too.

Options: `--layouts 500`, `--plans 300`, `--repeats 15`.
"""

import argparse
import time
from collections import defaultdict
from dataclasses import replace

import numpy as np
from measure import compare, interval, machine
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, brentq, linprog, milp
from tabulate import tabulate

from clustertune import checks
from clustertune.actions import ACTIONS
from clustertune.core.model import Rechunk
from clustertune.errors import CapacityError
from clustertune.planner import plan as planner
from clustertune.planner.chunking import held_parts, parts_of
from clustertune.planner.layouts import home_workers, part_bytes
from clustertune.planner.placement import place
from tests import builders as testing

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
WAYS = ("alternating", "blocked", "skewed")  # to place partitions on their holders
PLANNED = (*WAYS, "misaligned", "few partitions", "many partitions")


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


def view_of(kind, generator):
    """What `prepare` sees: X and y on some of the workers."""
    workers = int(np.exp(generator.uniform(np.log(2), np.log(65))))
    on = generator.permutation(workers)[: generator.integers(1, workers + 1)]
    limits = {"few partitions": (0.5, 3), "many partitions": (20, 400)}
    low, high = np.log(limits.get(kind, (1, 12)))
    size = max(2, int(workers * np.exp(generator.uniform(low, high))))

    def homes(way, size):
        numbers = {
            "alternating": np.arange(size) % on.size,
            "blocked": np.arange(size) * on.size // size,
            "skewed": generator.choice(
                on.size, size, p=generator.dirichlet(np.ones(on.size))
            ),
        }
        return on[numbers[way]].tolist()

    mean = 1e3 if kind == "many partitions" else 1e5
    unevenness = generator.choice([0.0, 0.3, 0.8])
    rows = np.ceil(generator.lognormal(np.log(mean), unevenness, size)).astype(int)
    where = homes(kind if kind in WAYS else generator.choice(WAYS), size)
    row_bytes = 8 * int(generator.integers(2, 100))
    X = testing.collection("X", rows.tolist(), where, row_bytes)
    y = testing.collection("y", rows.tolist(), where)
    if kind == "misaligned":
        others = max(2, int(size * generator.uniform(0.5, 2)))
        edges = np.sort(generator.integers(0, rows.sum(), others - 1))
        cut = np.diff(edges, prepend=0, append=rows.sum())
        where = homes(generator.choice(WAYS), others)
        y = testing.collection("y", cut.tolist(), where)
    training = replace(testing.layout([1], [0]), collections=(X, y))
    same = generator.random() < 0.7
    threads = [1] * workers if same else generator.choice([1, 2, 4], workers).tolist()
    some = [
        testing.worker(i, nthreads=n, memory_limit=2**36) for i, n in enumerate(threads)
    ]
    return testing.view(some, layouts=[training])


def planned(kind, number):
    """Whether partitions are cut, and the figures of the plan; None if none is due."""
    view = view_of(kind, np.random.default_rng(number))
    found = checks.run(view)
    start = time.process_time()
    plan = planner.make_plan(found, view, ACTIONS)
    seconds = time.process_time() - start
    if not plan.steps:
        return None
    (step,), (layout,) = plan.steps, view.layouts
    old, weights = layout.collections[0].rows, [w.nthreads for w in view.now.workers]
    cuts = isinstance(step.args, Rechunk)
    if cuts:
        rows, target = step.args.rows, step.args.targets
    else:
        rows, target = old, home_workers(layout, len(weights))
        numbers = {key: i for i, key in enumerate(layout.collections[0].keys)}
        for move in step.args.moves:
            moved = [numbers[key] for key in move.keys if key in numbers]
            target[moved] = move.targets[: len(moved)]
    final = np.bincount(target, rows, len(weights))
    joins = not np.isin(np.cumsum(old), np.cumsum(rows)).all()
    ratios = ratio(step.price.nbytes, fewest(layout, final, rows if joins else None))
    share = rows.sum() * np.array(weights) / sum(weights)
    figures = ratios, (final / share).max(), rows.size / old.size, seconds
    return "join" if joins else "cut" if cuts else "move", figures


def fewest(layout, final, together):
    """Fewest bytes with which workers have their final rows, by a linear programme.

    Rows may be apart from each other, unless `together` has the rows of partitions.
    """
    edges = [np.cumsum(m.rows) for m in layout.collections]
    rows = together
    if rows is None:
        rows = np.diff(np.unique(np.concatenate(edges)), prepend=0)
    held, nbytes = [], np.zeros(rows.size)
    for collection in layout.collections:
        cut = parts_of(collection, rows)
        amount = part_bytes(collection, cut.key, cut.stop - cut.start)
        nbytes += np.bincount(cut.new, amount, rows.size)
        held.append(held_parts(cut, collection, amount))
    partition, worker, kept = (
        np.concatenate(arrays) for arrays in zip(*held, strict=True)
    )
    shape = rows.size, final.size
    joined = sparse.csr_matrix((kept, (partition, worker)), shape).tocoo()
    each = np.arange(joined.nnz)
    stays = sparse.csr_matrix((np.ones(joined.nnz), (joined.row, each)))
    load = sparse.csr_matrix(
        (rows[joined.row].astype(float), (joined.col, each)), (final.size, joined.nnz)
    )
    result = linprog(
        -joined.data / nbytes.sum(),
        A_ub=sparse.vstack([stays, load]),
        b_ub=np.concatenate([np.ones(stays.shape[0]), final]),
        bounds=(0, 1),
        method="highs",
    )
    return max(0.0, (1 + result.fun) * nbytes.sum())


def plan_all(count):
    """Print the figures of plans; return the ratios of bytes, by what is done."""
    by_kind, ratios = defaultdict(list), defaultdict(list)
    for number in range(count):
        kind = PLANNED[number % len(PLANNED)]
        found = planned(kind, number)
        if found is not None:
            done, figures = found
            by_kind[kind, done].append(figures)
            by_kind["all", done].append(figures)
            ratios[done].append(figures[0])
    table = [
        [kind, done, len(figures), *spread(np.array(figures)[:, 0]),
         *spread(np.array(figures)[:, 1]), *np.median(figures, 0)[2:].round(3)]
        for (kind, done), figures in sorted(by_kind.items())
    ]  # fmt: skip
    headers = ["plans", "", "n", "bytes/bound", "p95", "max", "rows/share", "p95"]
    headers += ["max", "new/old partitions", "CPU s"]
    print(tabulate(table, headers=headers, disable_numparse=True), end="\n\n")
    return ratios


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
    parser.add_argument("--plans", type=int, default=300)
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
    ratios = plan_all(chosen.plans)
    times = list(time_many(chosen.repeats))
    rows = [[kind, str(found)] for kind, found in times]
    headers = ["100,000 partitions, 1,000 workers", "seconds, median [95 %]"]
    print(tabulate(rows, headers=headers, disable_numparse=True), end="\n\n")
    judge(np.array(every).T, max(found.high for _, found in times))
    for done, found in sorted(ratios.items()):
        what = f"bytes / bound of the same rows on each worker, {done}"
        compare(f"{what}, median", float(np.median(found)), at_most=1.02)
        p95 = float(np.percentile(found, 95))
        compare(f"{what}, 95th percentile", p95, at_most=1.1)


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
