"""What-if predictions of fits on numbers of workers that the model has not seen.

Run: ``python benchmarks/what_if.py [--workers 1,2,3,4] [--rows 400000] [--rounds 3]
[--trees 40] [--json PATH]``; three minutes with two CPUs that nobody else uses.

On a ``LocalCluster`` of each size XGBoost trains on data that ``prepare`` has laid out,
in held blocks, as users write them; the history notes each. A fit before these, of the
same rows, is not held: libraries are loaded then. Sizes take turns, so that a machine
that gets slower does so for all. Then every size is left out in turn: what
``what_if`` says of it, who has seen all others, beside the median of what it took.

Aim: within 20 % on average, on sizes within those seen and beyond them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from time import perf_counter

import dask
import dask.array as da
from measure import cluster, machine
from tabulate import tabulate
from xgboost import dask as training

import clustertune
from clustertune.operations.history import trends

COLUMNS = 20


def fit(client, X, y, trees):
    data = training.DaskDMatrix(client, X, y)
    settings = {"tree_method": "hist", "max_depth": 8}
    training.train(client, settings, data, num_boost_round=trees)


def hold_fits(n_workers, options, held):
    """Train on a cluster of that size, the first time without a note."""
    with cluster(n_workers, memory_limit="2GiB") as client:
        state = da.random.RandomState(0)
        chunks = (options.rows // 12, COLUMNS)
        X = state.random_sample((options.rows, COLUMNS), chunks=chunks)
        y = (X[:, 0] * X[:, 1] + X[:, 2] > 0.75).astype("f4")
        prepared = clustertune.prepare(
            client, X.astype("f4"), y, workload="xgboost", progress=False
        )
        X, y = prepared
        fit(client, X, y, options.trees)
        for _ in range(held):
            with prepared:
                fit(client, X, y, options.trees)


def left_out(records):
    """By number of workers: what it took, and what is predicted from all others."""
    for n in sorted({r.workers for r in records}):
        mine = [r.seconds for r in records if r.workers == n]
        others = [r for r in records if r.workers != n]
        found = trends.what_if(others, [n])
        (prediction,) = found.predictions
        yield n, median(mine), prediction.seconds, prediction.outside, found.error


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", default="1,2,3,4")
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--trees", type=int, default=40)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    sizes = [int(n) for n in options.workers.split(",")]
    if len(sizes) < trends.KINDS + 1:
        parser.error(f"give {trends.KINDS + 1} sizes: one of them is left out")
    start = perf_counter()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "history.sqlite"
        settings = {"enabled": True, "path": str(path), "job": "what-if"}
        with dask.config.set({"clustertune.history": settings}):
            for _ in range(options.rounds):
                for n in sizes:
                    hold_fits(n, options, 2)
        records = clustertune.history(path=path, kind="fit").records
    rows = list(left_out(records))
    print(
        tabulate(
            [
                [
                    n,
                    took,
                    predicted,
                    f"{predicted / took - 1:+.0%}",
                    beyond,
                    f"{own:.0%}",
                ]
                for n, took, predicted, beyond, own in rows
            ],
            headers=["workers", "took", "predicted", "off by", "beyond", "said error"],
            floatfmt=".2f",
        )
    )
    errors = [abs(predicted / took - 1) for _, took, predicted, *_ in rows]
    print(f"mean error {fmean(errors):.0%}, worst {max(errors):.0%}")
    print(f"{len(records)} held fits in {perf_counter() - start:.0f} s; {machine()}")
    if options.json:
        options.json.write_text(
            json.dumps(
                {
                    "machine": machine(),
                    "options": {k: str(v) for k, v in vars(options).items()},
                    "runs": [[r.workers, r.seconds, r.host_cpus] for r in records],
                    "left_out": rows,
                },
                indent=1,
            )
        )


if __name__ == "__main__":
    main()
