"""The demo: a fit after scaling up, without clustertune and after ``prepare``.

It starts a local cluster with one thread for each worker, makes data on one worker,
scales up, trains XGBoost, prepares, and trains again. Both fits have the same rows,
parameters and workers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import click
import dask
import dask.array as da
import numpy as np
from dask.system import CPU_COUNT
from distributed import Client, LocalCluster, futures_of, wait
from distributed.system import MEMORY_LIMIT
from tabulate import tabulate

import clustertune

Echo = Callable[[str], None]

ROWS = 600_000  # a fit takes about 8 s on one thread
COLUMNS = 64
PARTITIONS = 16  # for each worker
TREES = 40  # of one fit
START_TIMEOUT = 120  # seconds for new workers to start


@dataclass(frozen=True, slots=True)
class Trial:
    """One fit: where its rows were, its time and its score."""

    name: str
    rows: Mapping[str, int]  # by worker
    seconds: float
    score: float


@contextmanager
def step(echo: Echo, text: str) -> Iterator[Callable[[], float]]:
    """Print a long step and its time; the value returns its seconds so far."""
    echo(f"{text} ...")
    start = perf_counter()
    yield lambda: perf_counter() - start
    echo(f"    {perf_counter() - start:.1f} s")


def run(workers: int, echo: Echo, *, rows: int = ROWS) -> None:
    """Run the demo on generated rows, and print with ``echo``.

    Scale up to ``workers``, at least 2. Raise UsageError if a package is missing.
    """
    titles = {"xgboost": "xgboost", "sklearn": "scikit-learn"}
    if missing := [t for name, t in titles.items() if find_spec(name) is None]:
        command = "pip install 'clustertune[demo]'"
        raise click.UsageError(f"the demo needs {', '.join(missing)}; run `{command}`")
    echo("starting a local cluster with 1 worker of 1 thread ...")
    with (
        TemporaryDirectory(
            prefix="clustertune-demo-", ignore_cleanup_errors=True
        ) as folder,
        dask.config.set({"temporary-directory": folder}),
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            memory_limit=MEMORY_LIMIT // workers,
            dashboard_address="127.0.0.1:0",
            silence_logs=logging.ERROR,
        ) as cluster,
        Client(cluster) as client,
    ):
        with step(echo, f"making {rows:,} rows there"):
            data = load(client, rows, PARTITIONS * workers)
        with step(echo, f"scaling to {workers} workers"):
            cluster.scale(workers)
            client.wait_for_workers(workers, timeout=START_TIMEOUT)
        _compare(client, data, echo)


def load(client: Client, rows: int, partitions: int) -> list[Any]:
    """Make X, y, and X, y of the validation rows, on the workers that are there.

    The noise makes the task so hard that wrong labels would lower the score.
    """
    random = da.random.default_rng(0)
    X = random.standard_normal((rows, COLUMNS), chunks=(rows // partitions, COLUMNS))
    noise = random.standard_normal(rows, chunks=X.chunks[0])
    X, y = X.astype("float32"), X[:, 0] * X[:, 1] + X[:, 2] + noise > 0
    n = rows * 9 // 10
    found: list[Any] = list(client.persist([X[:n], y[:n], X[n:], y[n:]]))
    wait(found)
    return found


def _compare(client: Client, data: list[Any], echo: Echo) -> None:
    from xgboost.dask import DaskXGBClassifier

    X, y, *valid = data
    model = DaskXGBClassifier(n_estimators=TREES, max_depth=6, tree_method="hist")
    # Imports, threads and first connections would count for the first fit only.
    with step(echo, "warming up with a tiny fit on all workers"):
        _warm_up(client)
    echo('XGBoost prints a line "got rank" for each worker that trains.')
    without = _trial(client, model, [X, y, *valid], "without clustertune", echo)
    with step(echo, "X, y = clustertune.prepare(client, X, y)") as seconds:
        prepared = clustertune.prepare(client, X, y, estimator=model, progress=False)
        took = seconds()
    X, y = prepared
    after = _trial(client, model, [X, y, *valid], "after prepare", echo)
    echo(f"\nprepare's report\n----------------\n{prepared.report}")
    echo(f"\nthe two fits\n------------\n{_table(without, after)}")
    echo(f"\n{_verdict(without, after, took)}")


def _warm_up(client: Client) -> None:
    from xgboost.dask import DaskXGBRegressor

    parts = [
        client.submit(np.random.default_rng(i).random, (100, 4), workers=[worker])
        for i, worker in enumerate(client.nthreads())
    ]
    X = da.concatenate([da.from_delayed(part, (100, 4), float) for part in parts])
    DaskXGBRegressor(n_estimators=2).fit(X, X[:, 0])


def _trial(client: Client, model: Any, data: list[Any], name: str, echo: Echo) -> Trial:
    """Count the rows of each worker, train, and score on the validation set."""
    X, y, X_valid, y_valid = data
    rows = _rows_by_worker(client, X)
    with step(echo, f"training XGBoost {name}") as seconds:
        model.fit(X, y)
        took = seconds()
    predicted = np.asarray(model.predict(X_valid).compute())
    score = (predicted == np.asarray(y_valid.compute())).mean()
    return Trial(name, rows, took, float(score))


def _rows_by_worker(client: Client, X: Any) -> dict[str, int]:
    keys = {future.key for future in futures_of(X)}

    def count(dask_worker: Any) -> int:
        return sum(len(dask_worker.data[k]) for k in keys if k in dask_worker.data)

    counts = client.run(count)
    cluster: Any = client.cluster
    return {str(n): counts[w.worker_address] for n, w in cluster.workers.items()}


def _table(without: Trial, after: Trial) -> str:
    rows = [f"rows on worker {n}" for n in without.rows]
    body = []
    for trial in (without, after):
        counts = [f"{n:,}" for n in trial.rows.values()]
        fit = [f"{trial.seconds:.1f}", f"{trial.score:.4f}"]
        body.append([trial.name, *counts, *fit])
    return tabulate(
        body,
        headers=["", *rows, "fit (s)", "accuracy"],
        disable_numparse=True,
        colalign=["left", *["right"] * (len(rows) + 2)],
    )


def _verdict(without: Trial, after: Trial, preparing: float) -> str:
    ratio = without.seconds / (preparing + after.seconds)
    text = (
        f"prepare took {preparing:.1f} s; prepare and fit together were {ratio:.2f} "
        "times as fast as the fit without clustertune."
    )
    n_workers = len(without.rows)
    if n_workers > CPU_COUNT:
        text += f"\n{n_workers} workers share {CPU_COUNT} CPUs, which limits both fits."
    return text
