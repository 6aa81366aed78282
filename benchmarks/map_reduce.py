"""Sums with parameters: ours against what one writes by hand, on 4 workers.

    python benchmarks/map_reduce.py [--rounds 8] [--case middle] [--workers 4]

``--scale 10`` divides the numbers in a result, for a quick try.

A sum has as many items as fill 1.6 GB with their results; parameters are as large as
one result. Each variant has a cluster of its own and is warmed up alike; a figure is
the median of some sums, with parameters that are others in each, as when training.

``plain``: parameters go with each task, results are gathered and added here.
``scatter``: parameters are scattered to all workers, results gathered.
``as_completed``: the same, and results are added as they come.
``delayed``: scattered, and a tree of ``dask.delayed`` adds pairs.
``by_hand``: scattered, a batch for each thread, and a tree of tasks joins them.
``alone``: one process without Dask.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from typing import Any

import dask
import numpy as np
from distributed import Client, LocalCluster, as_completed
from measure import interval, machine, ratios, run
from tabulate import tabulate

from clustertune.training import map_reduce


@dataclass(frozen=True)
class Case:
    """So many items whose results have so many numbers."""

    items: int
    size: int


CASES = {
    "small": Case(4000, 50_000),
    "middle": Case(400, 500_000),
    "large": Case(40, 5_000_000),
}
REPEATS = 3


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


def completed(client: Client, n: int, w: Any) -> Any:
    total = np.zeros_like(w)
    futures = client.map(f, range(n), w=scattered(client, w), pure=False)
    for _, part in as_completed(futures, with_results=True):
        total += part
    return total


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


VARIANTS: dict[str, Callable[[Client, int, Any], Any]] = {
    "plain": plain,
    "scatter": scatter,
    "as_completed": completed,
    "delayed": delayed,
    "by_hand": by_hand,
    "ours": ours,
    "alone": alone,
}


def seconds(name: str, case: Case, n_workers: int) -> float:
    with (
        LocalCluster(
            n_workers=n_workers,
            threads_per_worker=1,
            dashboard_address="127.0.0.1:0",
            memory_limit="4GiB",
        ) as cluster,
        Client(cluster) as client,
    ):
        work, taken = VARIANTS[name], []
        work(client, 2 * n_workers, np.ones(case.size))
        expected = sum(i % 7 for i in range(case.items))
        for i in range(REPEATS):
            w = np.full(case.size, float(i + 1))
            start = perf_counter()
            found = work(client, case.items, w)
            taken.append(perf_counter() - start)
            assert found[0] == found[-1] == expected * (i + 1), "another sum"
        return median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--case", choices=CASES, default="middle")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--scale", type=int, default=1)
    parser.add_argument("--tries", type=int, default=4)
    parser.add_argument("--variant")
    chosen = parser.parse_args()
    case = replace(CASES[chosen.case], size=CASES[chosen.case].size // chosen.scale)
    if chosen.variant:
        taken = seconds(chosen.variant, case, chosen.workers)
        print(json.dumps({"seconds": taken}))
        return
    print(f"{case.items:,} results of {case.size * 8 / 1e6:g} MB, {chosen.workers} "
          f"workers; {machine()}, dask {dask.__version__}")  # fmt: skip
    given = [f"--{k}={getattr(chosen, k)}" for k in ("case", "workers", "scale")]
    names = list(VARIANTS)
    rounds = run(sys.argv[0], names, chosen.rounds, *given, tries=chosen.tries)
    rows = [
        [
            name,
            str(interval([r[f"{name}.seconds"] for r in rounds])),
            str(ratios(rounds, f"{name}.seconds", "ours.seconds")),
        ]
        for name in names
    ]
    head = "variant", "seconds [95 %]", "times ours [95 %]"
    print(tabulate(rows, headers=head, disable_numparse=True))
    for r in rounds:
        hands = ("scatter", "as_completed", "delayed", "by_hand")
        r["best.seconds"] = min(r[f"{name}.seconds"] for name in hands)
    best = ratios(rounds, "ours.seconds", "best.seconds")
    print(f"ours / the best by hand: {best}  aim <= 1.05")
    slow = ratios(rounds, "plain.seconds", "ours.seconds")
    print(f"plain / ours: {slow}  aim >= 10")


if __name__ == "__main__":
    main()
