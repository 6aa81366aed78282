"""Sums with parameters: ours against what one writes by hand, on 4 workers.

    python benchmarks/map_reduce.py [--size middle large] [--pairs 16]

Each size has a cluster, on which all variants take turns; a round is repeated if others
used the machine meanwhile. A figure is the mean over the calls of a short loop, with
parameters that are others in each, as when training. All variants run in a few rounds;
then the best of those that are written by hand and ours run alternately, in ``--pairs``
short ones. What a client's first call takes is measured with new clients.

A sum has as many items as fill 1.6 GB with their results, and parameters are as large
as one result; ``tiny`` shows what a call takes beside its work. All take 6 minutes
on 2 CPUs. ``--scale 10`` divides the numbers in a result, for a quick try.

``plain``: parameters go with each task, results are gathered and added here.
``scatter``: parameters are scattered to all workers, results gathered.
``as_completed``: the same, and results are added as they come.
``delayed``: scattered, and a tree of ``dask.delayed`` adds pairs.
``by_hand``: scattered, a batch for each thread, and a tree of tasks joins them.
``alone``: one process without Dask.
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
from distributed import Client, as_completed
from measure import (
    MOST_FOREIGN,
    Interval,
    alternate,
    cluster,
    interval,
    machine,
    ratios,
)
from tabulate import tabulate

from clustertune.training import map_reduce


@dataclass(frozen=True)
class Case:
    """So many items whose results have so many numbers; calls in a loop."""

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
HANDS = ("scatter", "as_completed", "delayed", "by_hand")

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


VARIANTS: dict[str, Work] = {
    "plain": plain,
    "scatter": scatter,
    "as_completed": completed,
    "delayed": delayed,
    "by_hand": by_hand,
    "ours": ours,
    "alone": alone,
}


# --- what is measured -----------------------------------------------------------------

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
        assert found[0] == found[-1] == expected, "another sum"
    return taken / calls


def first(started: Any, case: Case, name: str) -> float:
    """Seconds of the first call of a client."""
    with Client(started) as client:
        return loop(client, case, name, 1)


def measured(case: Case, n_workers: int, n_pairs: int) -> None:
    with cluster(n_workers) as client:
        for work in VARIANTS.values():
            work(client, 2 * n_workers, np.ones(case.size))
        run = partial(loop, client, case)
        # the slow ones take most of the time: once is enough
        every = {name: partial(run, name, 1) for name in VARIANTS}
        rounds = alternate(every, ROUNDS, tries=1)
        best = min(HANDS, key=lambda name: median([r[name] for r in rounds]))
        two = ("ours", best)
        loops = {name: partial(run, name, case.calls) for name in two}
        pairs = alternate(loops, n_pairs, tries=2)
        firsts = {name: partial(first, client.cluster, case, name) for name in two}
        begun = alternate(firsts, FIRST, tries=2)
    show(rounds, pairs, begun, best, sized=case != CASES["tiny"])


Rounds = Sequence[Mapping[str, float]]


def show(
    rounds: Rounds, pairs: Rounds, begun: Rounds, best: str, *, sized: bool
) -> None:
    rows = [
        [
            name,
            str(interval([r[name] for r in rounds])),
            str(ratios(rounds, name, "ours")),
        ]
        for name in VARIANTS
    ]
    head = "variant", "seconds [95 %]", "times ours [95 %]"
    print(tabulate(rows, headers=head, disable_numparse=True))
    for title, found in {"a call of a loop": pairs, "a first call": begun}.items():
        print(f"{title}: ours {interval([r['ours'] for r in found])} s")
        said(f"ours / {best}", ratios(found, "ours", best), found, most=1.05)
    if sized:
        said("plain / ours", ratios(rounds, "plain", "ours"), rounds, least=10)
    print(flush=True)


def said(
    title: str,
    found: Interval,
    rounds: Rounds,
    *,
    most: float | None = None,
    least: float | None = None,
) -> None:
    """Print a ratio, whether the whole interval meets the aim, and the conditions."""
    good = found.low >= least if most is None else found.high <= most
    aim = f"aim >= {least}" if most is None else f"aim <= {most}"
    met = "met" if good else "NOT met"
    print(f"  {title}: {found}  {aim}: {met} ({conditions(rounds)})")


def conditions(rounds: Rounds) -> str:
    """What others did meanwhile."""
    disturbed = sum(r["foreign"] > MOST_FOREIGN for r in rounds)
    idle = median([r["idle"] for r in rounds])
    return f"idle {idle:.0%}, {disturbed} of {len(rounds)} disturbed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=CASES, nargs="+", default=list(CASES))
    parser.add_argument("--pairs", type=int, default=16)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--scale", type=int, default=1)
    chosen = parser.parse_args()
    print(f"{machine()}, dask {dask.__version__}, {chosen.workers} workers")
    for name in chosen.size:
        case = replace(CASES[name], size=max(1, CASES[name].size // chosen.scale))
        print(f"{name}: {case.items:,} results of {case.size * 8 / 1e6:g} MB")
        measured(case, chosen.workers, chosen.pairs)


if __name__ == "__main__":
    main()
