"""XGBoost after a scale-up from one to two workers.

X and y are in memory on one of two workers, as when the second one has just joined.
`naive` fits at once, `rebalance` calls `client.rebalance` before, and `prepare` calls
`clustertune.prepare` before. `even` loads the data on both workers, and `one_process`
fits without Dask on two threads. Each variant has its own cluster, warmed up with a fit
on few rows, and loads the data in each round.

Options: `--rounds 6`, `--rows 1000000`, `--columns 50`, `--partitions 20`.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Generator
from time import perf_counter
from typing import Any

import dask
import dask.array as da
import numpy as np
import xgboost as xgb
import xgboost.dask as dxgb
from distributed import Client, wait
from measure import (
    cluster,
    compare,
    machine,
    ratios,
    run,
    serve,
    show,
    workers_of,
)

import clustertune

VARIANTS = ("naive", "rebalance", "prepare", "even", "one_process")
PARAMETERS = {"tree_method": "hist", "objective": "binary:logistic", "max_depth": 6}
TREES = 50
FEW = (2000, 50, 4)  # rows, columns and partitions of the warm-up
Rounds = Generator[dict[str, float], None, None]


def blocks(n_rows: int, n_columns: int, n_partitions: int) -> tuple[da.Array, da.Array]:
    """Random rows with a signal, the same in every variant."""
    rng = da.random.default_rng(7)
    rows = n_rows // n_partitions
    X = rng.standard_normal(
        (n_rows, n_columns), chunks=(rows, n_columns), dtype=np.float32
    )
    noise = rng.standard_normal(n_rows, chunks=rows)
    y = (X[:, 0] + X[:, 1] * X[:, 2] + 0.5 * noise > 0).astype(np.float32)
    return X, y


def warm_up(client: Client) -> None:
    """Import XGBoost on all workers, and train on a few rows."""
    addresses = list(workers_of(client))
    X = da.random.random((200 * len(addresses), 4), chunks=(200, 4))
    y = (X[:, 0] > 0.5).astype("f4")
    where = dict(enumerate(addresses))
    X, y = _pin(client, X, y, lambda i: where[i])
    dxgb.train(client, PARAMETERS, dxgb.DaskQuantileDMatrix(client, X, y), 2)


def _pin(
    client: Client, X: da.Array, y: da.Array, where: Callable[[int], str]
) -> tuple[da.Array, da.Array]:
    """Load partition i on the worker ``where(i)``."""
    with dask.annotate(workers=lambda key: where(key[1]), allow_other_workers=False):
        X, y = client.persist([X, y])
    wait([X, y])
    return X, y


def fit(client: Client, X: da.Array, y: da.Array) -> dict[str, float]:
    """Train on a DaskQuantileDMatrix, as the scikit-learn classes do."""
    start = perf_counter()
    matrix = dxgb.DaskQuantileDMatrix(client, X, y)
    dxgb.train(client, PARAMETERS, matrix, TREES)
    return {"fit": perf_counter() - start}


def variant(name: str, size: tuple[int, int, int]) -> Rounds:
    with cluster(2, memory_limit="6GiB") as client:
        two = list(workers_of(client))
        loaded = two if name == "even" else two[:1]
        warm_up(client)
        placed(name, client, *_pin(client, *blocks(*FEW), lambda _: two[0]))
        yield {}
        while True:
            gc.collect()  # keys of the round before would be where they are
            X, y = _pin(client, *blocks(*size), lambda i: loaded[i % len(loaded)])
            assert len(rows_per_worker(client, X)) == len(loaded)
            figures = placed(name, client, X, y)
            del X, y
            yield figures


def placed(name: str, client: Client, X: Any, y: Any) -> dict[str, float]:
    start = perf_counter()
    if name == "rebalance":
        client.rebalance([X, y])
    elif name == "prepare":
        X, y = clustertune.prepare(client, X, y, estimator="xgboost", progress=False)
    seconds = perf_counter() - start
    rows = rows_per_worker(client, X)
    return fit(client, X, y) | {"before": seconds, "fullest": max(rows) / sum(rows)}


def rows_per_worker(client: Client, X: da.Array) -> list[int]:
    held: dict[str, int] = {}
    for (_, i, _), holders in client.who_has(X).items():
        held[holders[0]] = held.get(holders[0], 0) + X.chunks[0][i]
    return list(held.values())


def one_process(size: tuple[int, int, int]) -> Rounds:
    X, y = dask.compute(*blocks(*size), scheduler="threads")
    warm = xgb.QuantileDMatrix(X[:200], y[:200], nthread=2)
    xgb.train(PARAMETERS | {"nthread": 2}, warm, 2)
    yield {}
    while True:
        start = perf_counter()
        matrix = xgb.QuantileDMatrix(X, y, nthread=2)
        xgb.train(PARAMETERS | {"nthread": 2}, matrix, TREES)
        yield {"fit": perf_counter() - start}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--variant", choices=VARIANTS)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=50)
    parser.add_argument("--partitions", type=int, default=20)
    chosen = parser.parse_args()
    size = (chosen.rows, chosen.columns, chosen.partitions)
    if chosen.variant:
        is_alone = chosen.variant == "one_process"
        serve(one_process(size) if is_alone else variant(chosen.variant, size))
        return
    print(f"{chosen.rows:,} x {chosen.columns} float32, {chosen.partitions} partitions,"
          f" hist, {TREES} trees; {machine()}, xgboost {xgb.__version__}")  # fmt: skip
    chosen_sizes = dict(zip(("rows", "columns", "partitions"), size, strict=True))
    sizes = [f"--{k}={v}" for k, v in chosen_sizes.items()]
    rounds = run(sys.argv[0], VARIANTS, chosen.rounds, *sizes, kept=True)
    for r in rounds:
        r["prepare.total"] = r["prepare.before"] + r["prepare.fit"]
    show(
        rounds,
        {f"{name}.fit": f"fit, {name} (s)" for name in VARIANTS}
        | {"prepare.before": "prepare itself (s)"}
        | {f"{n}.fullest": f"rows on the fullest, {n}" for n in VARIANTS[:4]},
    )
    compare(
        "prepare and fit / fit",
        ratios(rounds, "prepare.total", "naive.fit"),
        headline=True,
    )
    gained = ratios(rounds, "naive.fit", "prepare.fit")
    compare("fit / fit after prepare", gained)
    even = ratios(rounds, "prepare.fit", "even.fit")
    compare("fit after prepare / fit on even rows", even, at_most=1.05)
    rebalanced = ratios(rounds, "rebalance.fit", "naive.fit")
    compare("fit after client.rebalance / fit", rebalanced)
    alone = ratios(rounds, "one_process.fit", "prepare.fit")
    compare("fit in one process / fit after prepare", alone)


if __name__ == "__main__":
    main()
