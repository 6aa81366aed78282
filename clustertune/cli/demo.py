"""The story behind ``clustertune demo``: a fit after scaling up, without and with us.

It runs on this machine, on a cluster of its own with one thread a worker: load on one
worker, scale up, train XGBoost as one would without clustertune, prepare, train again.
Both fits have the same rows, parameters and workers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from time import perf_counter
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.system import CPU_COUNT
from distributed import Client, LocalCluster, futures_of
from distributed.system import MEMORY_LIMIT
from tabulate import tabulate

import clustertune
from clustertune.cli.demo_data import LABEL, Data, DemoError, load, read, write_digits

Echo = Callable[[str], None]

ROWS = 600_000  # of the data made here: a fit of about 8 s on one thread
PIECES = 16  # row groups for each worker: whole ones can be shared out evenly
TREES = 40  # of one fit, over all rounds and classes
BEAT = 5.0  # seconds after which a long step says again that it runs
PATIENCE = 120  # seconds in which new workers come


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One fit: where its rows lay, what it took, how well it predicts."""

    name: str
    rows: Mapping[str, int]  # by worker
    seconds: float
    score: float


class Step:
    """A long step: says what goes on, then that it still does, then what it took."""

    def __init__(self, echo: Echo, text: str) -> None:
        self._echo = echo
        self._text = text
        self._over = Event()
        self._start = perf_counter()
        self.seconds = 0.0

    def __enter__(self) -> Step:
        self._echo(f"{self._text} ...")
        self._start = perf_counter()
        self._beating = Thread(target=self._beat, daemon=True)
        self._beating.start()
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self.seconds = perf_counter() - self._start
        self._over.set()
        self._beating.join()  # or it might say once more that it still runs
        if error is None:
            self._echo(f"    {self.seconds:.1f} s")

    def _beat(self) -> None:
        while not self._over.wait(BEAT):
            self._echo(f"    ... {perf_counter() - self._start:.0f} s")


def run(
    parquet: str | None,
    label: str | None,
    workers: int,
    echo: Echo,
    *,
    rows: int = ROWS,
) -> None:
    """Run the demo.

    Parameters
    ----------
    parquet, label
        Parquet data to learn from and the column to predict; None: made here.
    workers
        To how many workers the cluster grows after the data was loaded on one.
    echo
        Is called with what goes on, in text of a line or more.
    rows
        How many to make, if they are made here.

    Raises
    ------
    DemoError
        A package is missing, an argument is wrong, or the data cannot be learned from.
    """
    _require_packages()
    _check_arguments(parquet, label, workers)
    with ExitStack() as stack:
        folder = stack.enter_context(
            TemporaryDirectory(prefix="clustertune-demo-", ignore_cleanup_errors=True)
        )
        if parquet is None:
            parquet, label = str(Path(folder, "digits")), LABEL
            text = f"writing {rows:,} rows of scikit-learn's handwritten digits"
            with Step(echo, f"{text}, with noise, as Parquet"):
                write_digits(Path(parquet), rows=rows, pieces=PIECES * workers)
        assert label is not None  # _check_arguments has seen to it
        frame = read(parquet, label)
        with Step(echo, "starting a local cluster with 1 worker of 1 thread"):
            cluster, client = stack.enter_context(_local_cluster(folder, workers))
        with Step(echo, "loading the data there"):
            data = load(client, frame, label, pieces=PIECES * workers)
        with Step(echo, f"scaling to {workers} workers"):
            cluster.scale(workers)
            client.wait_for_workers(workers, timeout=PATIENCE)
        _compare(client, data, echo)


def _require_packages() -> None:
    titles = {"xgboost": "xgboost", "sklearn": "scikit-learn", "pyarrow": "pyarrow"}
    missing = [title for name, title in titles.items() if find_spec(name) is None]
    if missing:
        raise DemoError(
            f"not installed: {', '.join(missing)}; the demo needs it: "
            "pip install 'clustertune[demo]'"
        )


def _check_arguments(parquet: str | None, label: str | None, workers: int) -> None:
    if workers < 2:
        raise DemoError(
            f"workers={workers}: the cluster grows from 1 worker to at least 2"
        )
    if parquet is None and label is not None:
        raise DemoError(f"label={label!r} is a column of what? Give parquet, too")
    if parquet is None:
        return
    # addresses and patterns are for the reader to resolve
    if not any(c in parquet for c in ":*?[") and not Path(parquet).exists():
        raise DemoError(f"parquet={parquet!r}: there is no such file or folder")
    if label is None:
        raise DemoError("label is missing: name the column to predict")


@contextmanager
def _local_cluster(folder: str, workers: int) -> Iterator[tuple[LocalCluster, Client]]:
    """A cluster with one worker, and room in memory for so many; it leaves nothing."""
    with (
        dask.config.set({"temporary-directory": folder}),
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            processes=True,
            memory_limit=MEMORY_LIMIT // workers,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            silence_logs=logging.ERROR,
        ) as cluster,
        Client(cluster) as client,
    ):
        yield cluster, client


# --- the comparison -----------------------------------------------------------------


def _compare(client: Client, data: Data, echo: Echo) -> None:
    model = _model(data)
    # What every process pays once (imports, threads, the first connections) would
    # otherwise count against the first of the two fits only.
    with Step(echo, "warming up with a tiny fit on all workers"):
        _warm_up(client)
    echo('Each line "got rank" is XGBoost\'s own, from one worker that trains.')
    without = _trial(client, model, data, "without clustertune", echo)
    with Step(echo, "X, y = clustertune.prepare(client, X, y)") as preparing:
        prepared = clustertune.prepare(
            client, data.X, data.y, estimator=model, progress=False
        )
    X, y = prepared
    after = _trial(client, model, replace(data, X=X, y=y), "after prepare", echo)
    echo(f"\nprepare's report\n----------------\n{prepared.report}")
    echo(f"\nthe two fits\n------------\n{_table(without, after, data)}")
    echo(f"\n{_verdict(without, after, preparing.seconds)}")


def _model(data: Data) -> Any:
    from xgboost.dask import DaskXGBClassifier, DaskXGBRegressor

    # more than two classes take a tree each in every round
    trees_per_round = data.classes if data.classes and data.classes > 2 else 1
    kind = DaskXGBRegressor if data.classes is None else DaskXGBClassifier
    return kind(
        n_estimators=max(2, TREES // trees_per_round),
        max_depth=6,
        tree_method="hist",
        enable_categorical=True,
    )


def _warm_up(client: Client) -> None:
    from xgboost.dask import DaskXGBRegressor

    parts = [
        client.submit(np.random.default_rng(i).random, (100, 4), workers=[worker])
        for i, worker in enumerate(client.nthreads())
    ]
    X = da.concatenate([da.from_delayed(part, (100, 4), float) for part in parts])
    DaskXGBRegressor(n_estimators=2).fit(X, X[:, 0])


def _trial(client: Client, model: Any, data: Data, name: str, echo: Echo) -> Trial:
    """Look where the rows lie, train on them, score on the validation set."""
    rows = _rows_by_worker(client, data.X)
    with Step(echo, f"training XGBoost {name}") as training:
        model.fit(data.X, data.y)
    return Trial(
        name=name,
        rows=rows,
        seconds=training.seconds,
        score=_score(model, data),
    )


def _rows_by_worker(client: Client, X: Any) -> dict[str, int]:
    """Counted where the pieces lie, by Dask alone: not what clustertune says of it."""
    cluster: Any = client.cluster
    names = {w.worker_address: str(n) for n, w in cluster.workers.items()}
    futures = futures_of(X)
    holders = client.who_has(futures)
    homes = [holders[future.key][0] for future in futures]
    lengths = client.gather(
        [
            client.submit(len, future, workers=[home], pure=False)
            for future, home in zip(futures, homes, strict=True)
        ]
    )
    rows = dict.fromkeys(names.values(), 0)
    for home, length in zip(homes, lengths, strict=True):
        rows[names[home]] += length
    return rows


def _score(model: Any, data: Data) -> float:
    """Accuracy, or R2 of quantities; computed on the cluster."""
    predicted = _array(model.predict(data.X_valid))
    truth = _array(data.y_valid)
    if data.classes is not None:
        return float((predicted == truth).mean().compute())
    return float(
        1 - ((truth - predicted) ** 2).mean().compute() / truth.var().compute()
    )


def _array(collection: Any) -> Any:
    return collection if isinstance(collection, da.Array) else collection.values


def _table(without: Trial, after: Trial, data: Data) -> str:
    header = ["", *(f"rows on worker {n}" for n in without.rows), "fit (s)"]
    score = "R2" if data.classes is None else "accuracy"
    body = [
        [t.name, *(f"{n:,}" for n in t.rows.values()), f"{t.seconds:.1f}", t.score]
        for t in (without, after)
    ]
    return tabulate(
        body,
        headers=[*header, score],
        floatfmt=".4f",
        disable_numparse=range(1, len(header)),
        colalign=["left", *["right"] * len(header)],
    )


def _verdict(without: Trial, after: Trial, preparing: float) -> str:
    ratio = without.seconds / (preparing + after.seconds)
    text = (
        f"prepare took {preparing:.1f} s; prepare and fit together were {ratio:.2f} "
        "times as fast as the fit without."
    )
    n_workers = len(without.rows)
    if n_workers > CPU_COUNT:
        text += (
            f"\nDask counts {CPU_COUNT} CPUs here and {n_workers} workers share them: "
            "no fit can be faster than on so many CPUs."
        )
    return text
