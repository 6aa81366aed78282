"""A soak: repeat training, a leak and a restart; memory must stay flat."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import dask.array as da
import numpy as np
import psutil
from distributed import Client

import clustertune
from clustertune import training
from tests.chaos.data import Spec, make, wrong
from tests.chaos.faults import leak
from tests.processes import local_workers

LEAK = 0.5  # of each worker's limit, to which its memory leaks
WARM_UP = 5  # rounds that are not compared
NOISE = 24 * 2**20  # bytes by which the last rounds may exceed the first


@dataclass(frozen=True, kw_only=True)
class SoakRound:
    """Measurements after one round."""

    number: int
    client: int  # bytes of this process
    workers: int  # bytes of all workers together
    leaked: int  # bytes of all workers before the restart
    open_files: int  # of this process
    threads: int
    wrong: tuple[str, ...]

    def __str__(self) -> str:
        text = (
            f"round {self.number}: client {self.client >> 20} MiB, workers "
            f"{self.workers >> 20} MiB ({self.leaked >> 20} before the restart), "
            f"{self.open_files} files, {self.threads} threads"
        )
        return text + "".join(f"\n  WRONG: {line}" for line in self.wrong)


def soak(rounds: int, echo: Callable[[str], Any]) -> tuple[list[SoakRound], list[str]]:
    """Train and restart repeatedly; return the rounds and the problems."""
    spec = Spec(
        seed=1, kind="array", rows=20_000, columns=20, partitions=8, other_partitions=8,
        place="anywhere",
    )  # fmt: skip
    with local_workers(memory_limit="1 GiB") as client:
        data = make(spec, client)
        X, y, rows = clustertune.prepare(client, *data, progress=False)
        del data
        rounds_done = []
        for number in range(rounds):
            rounds_done.append(_soak_round(number, client, spec, (X, y, rows)))
            echo(str(rounds_done[-1]))
    return rounds_done, problems(rounds_done)


def _soak_round(number: int, client: Client, spec: Spec, collections: Any) -> SoakRound:
    X, y, rows = collections
    weights = _train(client, X, y)
    client.run(leak, LEAK)
    leaked = _workers(client)
    report = clustertune.restart_workers(client, X, y, rows, progress=False)
    values = client.gather(client.compute([X, y, rows]))
    found = wrong(spec, tuple(values))
    del values
    if report.status != "done":
        found.append(f"the restart is {report.status}: {report}")
    if _workers(client) > 0.7 * leaked:
        found.append("the restart has not freed the leaked memory")
    again = _train(client, X, y)
    if not np.array_equal(weights, again):
        found.append("training on the same data gives another model after the restart")
    gc.collect()
    own = psutil.Process()
    return SoakRound(
        number=number,
        client=own.memory_info().rss,
        workers=_workers(client),
        leaked=leaked,
        open_files=own.num_fds(),
        threads=own.num_threads(),
        wrong=tuple(found),
    )


def _train(client: Client, X: da.Array, y: da.Array) -> Any:
    """Fit least squares; integer sums are exact, so equal data gives equal weights."""

    def moments(x: Any, t: Any) -> tuple[Any, Any]:
        return x.T @ x, x.T @ t

    squares, products = training.map_reduce(client, moments, (X, y))
    return np.linalg.lstsq(squares, products, rcond=None)[0]


def _workers(client: Client) -> int:
    def resident() -> int:
        import psutil

        return int(psutil.Process().memory_info().rss)

    return sum(client.run(resident).values())


def problems(rounds_done: list[SoakRound]) -> list[str]:
    """Wrong data, and memory, files or threads that grow."""
    found = [f"round {one.number}: {text}" for one in rounds_done for text in one.wrong]
    steady = rounds_done[WARM_UP:]
    if len(steady) < 6:
        return found
    third = len(steady) // 3
    for name, allowed in (("client", NOISE), ("workers", NOISE), ("open_files", 6),
                       ("threads", 6)):  # fmt: skip
        first, last = (
            median(getattr(one, name) for one in some)
            for some in (steady[:third], steady[-third:])
        )
        if last > first + allowed:
            found.append(f"{name} grew from {first:,.0f} to {last:,.0f}")
    return found
