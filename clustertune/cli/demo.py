"""The demo: a fit after scaling up, without clustertune and after ``prepare``.

It starts a local cluster with one thread for each worker, loads data on one worker,
scales up, trains XGBoost, prepares, and trains again. Both fits have the same rows,
parameters and workers. The data is generated. Features and labels of the training and
validation sets are loaded in one call, so their rows stay paired.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import numpy.typing as npt
from dask.system import CPU_COUNT
from distributed import Client, LocalCluster, futures_of, wait
from distributed.system import MEMORY_LIMIT
from tabulate import tabulate

import clustertune
from clustertune.errors import ClustertuneError

Echo = Callable[[str], None]

ROWS = 600_000  # of generated data: a fit takes about 8 s on one thread
PARTITIONS = 16  # for each worker
TREES = 40  # of one fit, over all rounds and the 10 digits
START_TIMEOUT = 120  # seconds for new workers to start
LABEL = "digit"
FILES = 4
_SEED = 0


class DemoError(ClustertuneError):
    """The demo cannot run, because a package is missing."""


@dataclass(frozen=True, slots=True)
class Data:
    """A loaded training set and its validation set."""

    X: Any
    y: Any
    X_valid: Any
    y_valid: Any


@dataclass(frozen=True, slots=True)
class Trial:
    """One fit: where its rows were, its time and its score."""

    name: str
    rows: Mapping[str, int]  # by worker
    seconds: float
    score: float


class Step:
    """A long step that prints its name and its time."""

    def __init__(self, echo: Echo, text: str) -> None:
        self._echo = echo
        self._text = text

    def __enter__(self) -> Step:
        self._echo(f"{self._text} ...")
        self._start = perf_counter()
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self.seconds = perf_counter() - self._start
        if error is None:
            self._echo(f"    {self.seconds:.1f} s")


def run(workers: int, echo: Echo, *, rows: int = ROWS) -> None:
    """Run the demo on generated rows, and print with ``echo``.

    Scale up to ``workers``, at least 2. Raise DemoError if a package is missing.
    """
    _require_packages()
    with (
        TemporaryDirectory(
            prefix="clustertune-demo-", ignore_cleanup_errors=True
        ) as folder,
        dask.config.set({"temporary-directory": folder}),
    ):
        digits = Path(folder, "digits")
        text = f"writing {rows:,} rows of scikit-learn's handwritten digits"
        with Step(echo, f"{text}, with noise, as Parquet"):
            write_digits(digits, rows=rows, partitions=PARTITIONS * workers)
        echo("starting a local cluster with 1 worker of 1 thread ...")
        with (
            LocalCluster(
                n_workers=1,
                threads_per_worker=1,
                memory_limit=MEMORY_LIMIT // workers,
                dashboard_address="127.0.0.1:0",
                silence_logs=logging.ERROR,
            ) as cluster,
            Client(cluster) as client,
        ):
            with Step(echo, "loading the data there"):
                data = load(client, digits)
            with Step(echo, f"scaling to {workers} workers"):
                cluster.scale(workers)
                client.wait_for_workers(workers, timeout=START_TIMEOUT)
            _compare(client, data, echo)


def _require_packages() -> None:
    titles = {"xgboost": "xgboost", "sklearn": "scikit-learn", "pyarrow": "pyarrow"}
    missing = ", ".join(t for name, t in titles.items() if find_spec(name) is None)
    if missing:
        command = "pip install 'clustertune[demo]'"
        raise DemoError(f"the demo needs {missing}; run `{command}`")


def write_digits(folder: Path, *, rows: int, partitions: int) -> None:
    """Write Parquet files with uneven row groups, of scikit-learn's digits with noise.

    The noise makes all rows different. It makes the task so hard that wrong labels
    would lower the score. An image can be in both the training and the validation set,
    so the score can only compare the two fits.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    random = np.random.default_rng(_SEED)
    names = [f"pixel_{i}" for i in range(images.shape[1])]
    schema = pa.schema([(n, pa.float32()) for n in names] + [(LABEL, pa.int64())])
    folder.mkdir(parents=True)
    for number, sizes in enumerate(np.array_split(row_groups(rows, partitions), FILES)):
        with pq.ParquetWriter(folder / f"part-{number}.parquet", schema) as writer:
            for size in sizes.tolist():
                which = random.integers(0, len(images), size)
                noise = random.standard_normal((size, len(names)), dtype=np.float32)
                pixels = images[which].astype(np.float32) + 4 * noise
                table = pa.table([*pixels.T, digits[which]], schema=schema)
                writer.write_table(table, row_group_size=size)


def row_groups(rows: int, partitions: int) -> npt.NDArray[np.int64]:
    """Return the sizes of row groups; the largest has up to five times the smallest."""
    share = np.random.default_rng(_SEED).uniform(0.4, 2.0, partitions)
    ends = np.round(np.cumsum(share) / share.sum() * rows).astype(np.int64)
    sizes: npt.NDArray[np.int64] = np.diff(ends, prepend=0)
    return sizes


def load(client: Client, folder: Path) -> Data:
    """Split the rows, and load a partition for each row group on the workers."""
    frame = dd.read_parquet(str(folder), split_row_groups=True)
    halves = frame.random_split([0.9, 0.1], random_state=_SEED)
    lazy = [part for half in halves for part in (half.drop(columns=LABEL), half[LABEL])]
    X, y, X_valid, y_valid = client.persist(lazy)
    wait([X, y, X_valid, y_valid])
    return Data(X, y, X_valid, y_valid)


def _compare(client: Client, data: Data, echo: Echo) -> None:
    from xgboost.dask import DaskXGBClassifier

    rounds = TREES // 10  # each has a tree for each digit
    model = DaskXGBClassifier(n_estimators=rounds, max_depth=6, tree_method="hist")
    # Imports, threads and first connections would count for the first fit only.
    with Step(echo, "warming up with a tiny fit on all workers"):
        _warm_up(client)
    echo('XGBoost prints a line "got rank" for each worker that trains.')
    without = _trial(client, model, data, "without clustertune", echo)
    with Step(echo, "X, y = clustertune.prepare(client, X, y)") as preparing:
        prepared = clustertune.prepare(
            client, data.X, data.y, estimator=model, progress=False
        )
    X, y = prepared
    after = _trial(client, model, replace(data, X=X, y=y), "after prepare", echo)
    echo(f"\nprepare's report\n----------------\n{prepared.report}")
    echo(f"\nthe two fits\n------------\n{_table(without, after)}")
    echo(f"\n{_verdict(without, after, preparing.seconds)}")


def _warm_up(client: Client) -> None:
    from xgboost.dask import DaskXGBRegressor

    parts = [
        client.submit(np.random.default_rng(i).random, (100, 4), workers=[worker])
        for i, worker in enumerate(client.nthreads())
    ]
    X = da.concatenate([da.from_delayed(part, (100, 4), float) for part in parts])
    DaskXGBRegressor(n_estimators=2).fit(X, X[:, 0])


def _trial(client: Client, model: Any, data: Data, name: str, echo: Echo) -> Trial:
    """Count the rows of each worker, train, and score on the validation set."""
    rows = _rows_by_worker(client, data.X)
    with Step(echo, f"training XGBoost {name}") as training:
        model.fit(data.X, data.y)
    predicted = np.asarray(model.predict(data.X_valid).compute())
    score = (predicted == np.asarray(data.y_valid.compute())).mean()
    return Trial(name, rows, training.seconds, float(score))


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
