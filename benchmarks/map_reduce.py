"""Sums over many items with `map_reduce`, on four workers.

Each item returns an array as large as the parameters, which change at every call as in
training. `plain` sends the parameters with each task and adds the gathered results.
`scatter` scatters the parameters to all workers. `delayed` adds pairs in a tree of
`dask.delayed`. `by_hand` runs one batch for each thread and joins the results in a tree
of tasks. `alone` is one process without Dask. All variants run in three rounds on one
cluster. Ours and the fastest of the hand-written variants then alternate. `tiny` has
almost no work, so it measures the overhead of a call.

Options: `--size middle large tiny` (also `small`), `--pairs 8`, `--scale 10` (divides
the size of results).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from statistics import median
from time import perf_counter
from typing import Any

import dask
import numpy as np
from distributed import Client
from measure import alternate, cluster, compare, interval, machine, ratios
from tabulate import tabulate

from clustertune.training import map_reduce


@dataclass(frozen=True)
class Case:
    """Number of items, size of a result, and calls in a loop."""

    items: int
    size: int
    calls: int


CASES = {
    "small": Case(4000, 50_000, calls=3),
    "middle": Case(400, 500_000, calls=2),
    "large": Case(40, 5_000_000, calls=1),
    "tiny": Case(8, 8, calls=20),
}
ROUNDS = 3  # of all variants
FIRST = 6  # new clients
HAND_WRITTEN = ("scatter", "delayed", "by_hand")

Work = Callable[[Client, int, Any], Any]


def f(item: int, w: Any) -> Any:
    return w * (item % 7)


def add(parts: list[Any]) -> Any:
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total


def batch(items: range, w: Any) -> Any:
    total = f(items[0], w)
    for item in items[1:]:
        total += f(item, w)
    return total


# --- the variants ---------------------------------------------------------------------


def plain(client: Client, n: int, w: Any) -> Any:
    return add(client.gather(client.map(f, range(n), [w] * n, pure=False)))


def scattered(client: Client, w: Any) -> Any:
    return client.scatter(w, broadcast=True, hash=False)


def scatter(client: Client, n: int, w: Any) -> Any:
    futures = client.map(f, range(n), w=scattered(client, w), pure=False)
    return add(client.gather(futures))


def delayed(client: Client, n: int, w: Any) -> Any:
    there = scattered(client, w)
    parts = [dask.delayed(f, pure=False)(i, there) for i in range(n)]
    while len(parts) > 1:
        pairs = [parts[i : i + 2] for i in range(0, len(parts), 2)]
        parts = [dask.delayed(add, pure=False)(pair) for pair in pairs]
    return client.compute(parts[0]).result()


def by_hand(client: Client, n: int, w: Any) -> Any:
    there, tasks = scattered(client, w), min(n, sum(client.nthreads().values()))
    ranges = [range(n * i // tasks, n * (i + 1) // tasks) for i in range(tasks)]
    parts = client.map(batch, ranges, w=there, pure=False)
    while len(parts) > 1:
        pairs = [parts[i : i + 2] for i in range(0, len(parts), 2)]
        parts = [client.submit(add, pair, pure=False) for pair in pairs]
    return parts[0].result()


def ours(client: Client, n: int, w: Any) -> Any:
    return map_reduce(client, f, range(n), broadcast=(w,))


def alone(client: Client, n: int, w: Any) -> Any:
    return batch(range(n), w)


VARIANTS: dict[str, Work] = {
    "plain": plain,
    "scatter": scatter,
    "delayed": delayed,
    "by_hand": by_hand,
    "ours": ours,
    "alone": alone,
}


# --- measurements ---------------------------------------------------------------------

_numbers = count(1)


def loop(client: Client, case: Case, name: str, calls: int) -> float:
    """Mean seconds of a call."""
    taken = 0.0
    for _ in range(calls):
        number = float(next(_numbers))
        w = np.full(case.size, number)
        start = perf_counter()
        found = VARIANTS[name](client, case.items, w)
        taken += perf_counter() - start
        expected = number * sum(i % 7 for i in range(case.items))
        assert found[0] == found[-1] == expected, "wrong sum"
    return taken / calls


def first(started: Any, case: Case, name: str) -> float:
    """Seconds of the first call of a client."""
    with Client(started) as client:
        return loop(client, case, name, 1)


def measure_case(name: str, case: Case, n_workers: int, n_pairs: int) -> None:
    with cluster(n_workers) as client:
        for work in VARIANTS.values():
            work(client, 2 * n_workers, np.ones(case.size))
        run = partial(loop, client, case)
        # slow variants: one call for each round
        every = {v: partial(run, v, 1) for v in VARIANTS}
        rounds = alternate(every, ROUNDS, tries=1)
        best = min(HAND_WRITTEN, key=lambda v: median([r[v] for r in rounds]))
        two = ("ours", best)
        loops = {v: partial(run, v, case.calls) for v in two}
        pairs = alternate(loops, n_pairs, tries=2)
        firsts = {v: partial(first, client.cluster, case, v) for v in two}
        begun = alternate(firsts, FIRST, tries=2)
    show(name, rounds, pairs, begun, best)


Rounds = Sequence[Mapping[str, float]]


def show(name: str, rounds: Rounds, pairs: Rounds, begun: Rounds, best: str) -> None:
    rows = [
        [v, str(interval([r[v] for r in rounds])), str(ratios(rounds, v, "ours"))]
        for v in VARIANTS
    ]
    head = "variant", "seconds [95 %]", "times ours [95 %]"
    print(tabulate(rows, headers=head, disable_numparse=True))
    calls = {"call in a loop": pairs, "first call of a client": begun}
    for title, found in calls.items():
        print(f"{title}: {interval([r['ours'] for r in found])} s")
        what = f"{name}, {title}: ours / {best}, the fastest by hand"
        ratio = ratios(found, "ours", best)
        compare(what, ratio, at_most=1.05, headline=found is pairs and name == "middle")
    if name != "tiny":
        ratio = ratios(rounds, "plain", "ours")
        compare(f"{name}: parameters with each task / ours", ratio, at_least=10)
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--size", choices=CASES, nargs="+", default=["middle", "large", "tiny"]
    )
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--scale", type=int, default=1)
    chosen = parser.parse_args()
    print(f"{machine()}, dask {dask.__version__}, {chosen.workers} workers")
    for name in chosen.size:
        case = replace(CASES[name], size=max(1, CASES[name].size // chosen.scale))
        print(f"{name}: {case.items:,} results of {case.size * 8 / 1e6:g} MB")
        measure_case(name, case, chosen.workers, chosen.pairs)


if __name__ == "__main__":
    main()
