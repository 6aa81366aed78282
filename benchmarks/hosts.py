"""Bytes that cross between hosts, as placement and cuts plan them.

Random layouts of X and y have 2 to 8 hosts with 1 to 4 workers each. Rows are on one
host, on some hosts or workers, or anywhere; X and y may be on different workers, or
have different partitions. The bytes of the plan are divided by lower bounds. These keep
the most bytes where they are, with rows that are as even as those of the plan.
If X is cut, any row may stay or leave, in a linear programme. Otherwise partitions stay
or leave whole, and branch and bound gives the bound. The first ratio counts bytes
between hosts; no host has more rows, for each of its workers, than the plan's fullest
host. The second ratio counts all bytes; no worker has more rows than the plan's fullest
worker.

Options: `--layouts 200`.
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import numpy as np
from measure import compare, machine
from placement import ratio, spread
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp
from tabulate import tabulate

from clustertune import checks
from clustertune.actions import ACTIONS
from clustertune.core.model import Rechunk
from clustertune.planner import plan as planner
from clustertune.planner.chunking import held_parts, parts_of
from clustertune.planner.layouts import home_workers, part_bytes
from tests import builders

KINDS = (
    "one host",
    "some hosts",
    "some workers",
    "anywhere",
    "separated",
    "misaligned",
)
SECONDS = 3  # of branch and bound


def view_of(kind, generator):
    """X and y on workers of several hosts, as `prepare` sees them."""
    n_hosts = int(generator.integers(2, 9))
    host = np.repeat(np.arange(n_hosts), generator.integers(1, 5, n_hosts))
    n_workers = host.size
    size = int(n_workers * np.exp(generator.uniform(0, np.log(30)))) + 2
    unevenness = generator.choice([0.0, 0.3, 0.8])
    rows = np.ceil(generator.lognormal(11, unevenness, size)).astype(int)
    on = np.arange(n_workers)
    if kind == "one host":
        on = np.flatnonzero(host == 0)
    elif kind == "some hosts":
        on = np.flatnonzero(host < generator.integers(1, n_hosts + 1))
    elif kind == "some workers":
        on = generator.permutation(n_workers)[: generator.integers(1, n_workers + 1)]

    def homes(size):
        return on[generator.integers(0, on.size, size)]

    where, y_rows = homes(size), rows
    y_where = homes(size) if kind == "separated" else where
    if kind == "misaligned":
        others = max(2, int(size * generator.uniform(0.5, 2)))
        edges = np.sort(generator.integers(0, rows.sum(), others - 1))
        y_rows = np.diff(edges, prepend=0, append=rows.sum())
        y_where = homes(others)
    row_bytes = 8 * int(generator.integers(2, 100))
    X = builders.collection("X", rows.tolist(), where.tolist(), row_bytes)
    y = builders.collection("y", y_rows.tolist(), y_where.tolist())
    training = replace(builders.layout([1], [0]), collections=(X, y))
    threads = int(generator.integers(1, 5))
    some = [
        builders.worker(i, nthreads=threads, memory_limit=2**38, host=f"10.0.0.{h}")
        for i, h in enumerate(host.tolist())
    ]
    return builders.view(some, layouts=[training])


def measure(kind, number):
    """Ratios of bytes between hosts and of all bytes; None if nothing is planned."""
    view = view_of(kind, np.random.default_rng(number))
    plan = planner.make_plan(checks.run(view), view, ACTIONS)
    if not plan.steps:
        return None
    (step,), (layout,) = plan.steps, view.layouts
    n_workers = len(view.now.workers)
    host = np.unique([w.host for w in view.now.workers], return_inverse=True)[1]
    if isinstance(step.args, Rechunk):
        rows, target = step.args.rows, step.args.targets
    else:
        rows, target = layout.collections[0].rows, targets(layout, step.args, n_workers)
    apart, cuts = rows, not np.array_equal(rows, layout.collections[0].rows)
    if cuts:  # any row may be anywhere
        edges = [np.cumsum(m.rows) for m in layout.collections] + [np.cumsum(rows)]
        apart = np.diff(np.unique(np.concatenate(edges)), prepend=0)
        apart = apart[apart > 0]
    final = target[np.searchsorted(np.cumsum(rows), np.cumsum(apart))]
    held, nbytes = holdings(layout, apart, n_workers)
    limit = np.bincount(final, apart, n_workers).max()
    between = on_hosts(held, host)
    crossed = nbytes.sum() - between[np.arange(apart.size), host[final]].sum()
    moved = nbytes.sum() - held.tocsr()[np.arange(apart.size), final].sum()
    count = np.bincount(host)
    fullest = (np.bincount(host[final], apart, count.size) / count).max()
    rooms = fullest * count, np.full(n_workers, limit)
    least = [
        fewest(places, apart, nbytes, room, whole=not cuts)
        for places, room in zip((between, held), rooms, strict=True)
    ]
    found = ratio(crossed, least[0]), ratio(moved, least[1])
    return "cut" if cuts else "move", *found, moved, crossed


def targets(layout, moves, n_workers):
    """The worker of each partition after the moves."""
    target = home_workers(layout, n_workers)
    numbers = {key: i for m in layout.collections for i, key in enumerate(m.keys)}
    for move in moves.moves:
        target[[numbers[key] for key in move.keys]] = move.targets
    return target


def holdings(layout, rows, n_workers):
    """Bytes that each worker holds of parts with these rows, and their bytes."""
    held, nbytes = sparse.csr_matrix((rows.size, n_workers)), np.zeros(rows.size)
    for collection in layout.collections:
        cut = parts_of(collection, rows)
        amount = part_bytes(collection, cut.key, cut.stop - cut.start)
        nbytes += np.bincount(cut.new, amount, rows.size)
        part, worker, kept = held_parts(cut, collection, amount)
        held = held + sparse.csr_matrix((kept, (part, worker)), held.shape)
    return held, nbytes


def on_hosts(held, host):
    """Bytes that each host holds."""
    shape = host.size, host.max() + 1
    return (
        held
        @ sparse.csr_matrix((np.ones(host.size), (np.arange(host.size), host)), shape)
    ).tocsr()


def fewest(held, rows, nbytes, rooms, *, whole):
    """A lower bound of the bytes that move if no place gets more rows than its room.

    Each variable is the fraction of a part that stays on one of its holders. No part
    stays more than once, and the rows that stay on a place fit its room. Every plan
    keeps to both, so no plan keeps more bytes. If parts stay ``whole``, fractions are 0
    or 1. Parts that leave may go anywhere, and be divided. The result is then the dual
    bound of branch and bound, which is a lower bound at any time.
    """
    joined = held.tocoo()
    each = np.arange(joined.nnz)
    stays = sparse.csr_matrix(
        (np.ones(joined.nnz), (joined.row, each)), (rows.size, joined.nnz)
    )
    load = sparse.csr_matrix(
        (rows[joined.row].astype(float), (joined.col, each)), (rooms.size, joined.nnz)
    )
    most = np.concatenate([np.ones(rows.size), rooms * (1 + 1e-9)])
    result = milp(
        -joined.data / nbytes.sum(),
        constraints=LinearConstraint(sparse.vstack([stays, load]), -np.inf, most),
        integrality=np.full(joined.nnz, int(whole)),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": 1e-3, "time_limit": SECONDS},
    )
    least = result.mip_dual_bound if whole else result.fun
    return max(0.0, (1 + least) * nbytes.sum())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layouts", type=int, default=200)
    options = parser.parse_args()
    machine()
    numbers = range(options.layouts)
    kinds = [KINDS[n % len(KINDS)] for n in numbers]
    with ProcessPoolExecutor() as pool:
        found = list(zip(kinds, pool.map(measure, kinds, numbers), strict=True))
    table = []
    for kind in (*KINDS, "cut", "move", "all"):
        some = np.array(
            [f[1:] for k, f in found if f is not None and kind in (k, f[0], "all")]
        )
        table.append([kind, len(some), *spread(some[:, 0]), *spread(some[:, 1])])
    headers = [
        "rows",
        "n",
        "between hosts/bound",
        "p95",
        "max",
        "all/bound",
        "p95",
        "max",
    ]
    print(tabulate(table, headers=headers, disable_numparse=True), end="\n\n")
    some = np.array([f[1:] for _, f in found if f is not None])
    between, everywhere = some[:, 0], some[:, 1]
    compare(
        "bytes between hosts / bound, median", float(np.median(between)), at_most=1.005
    )
    percentile = float(np.percentile(between, 95))
    what = "bytes between hosts / bound, 95th percentile"
    compare(what, percentile, at_most=1.05, headline=True)
    compare("all bytes / bound, median", float(np.median(everywhere)))
    compare("all bytes / bound, 95th percentile", float(np.percentile(everywhere, 95)))
    moved, crossed = some[:, 2:].sum(axis=0)
    compare("bytes between hosts / all bytes, of all plans", float(crossed / moved))


if __name__ == "__main__":
    main()
