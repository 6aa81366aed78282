"""The demo: a fit after scaling up, without clustertune and after ``prepare``.

It starts a local cluster with one thread for each worker, loads data on one worker,
scales up, trains XGBoost, prepares, and trains again. Both fits have the same rows,
parameters and workers. The data is generated, or the user's own. Features and labels
of the training and validation sets are loaded in one call, so their rows stay paired.
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
import dask.dataframe as dd
import numpy as np
import numpy.typing as npt
import pandas as pd
from dask.system import CPU_COUNT
from distributed import Client, LocalCluster, futures_of, wait
from distributed.system import MEMORY_LIMIT
from tabulate import tabulate

import clustertune
from clustertune.errors import ClustertuneError

Echo = Callable[[str], None]

ROWS = 600_000  # of generated data: a fit takes about 8 s on one thread
PARTITIONS = 16  # for each worker
TREES = 40  # of one fit, over all rounds and classes
PROGRESS = 5.0  # seconds between two lines of a long step
START_TIMEOUT = 120  # seconds for new workers to start
LABEL = "digit"  # label of the generated data
FILES = 4  # of the generated data
MAX_CLASSES = 20  # a whole-number label with more values is a quantity
MIN_ROWS = 100
_SEED = 0


class DemoError(ClustertuneError):
    """The demo cannot run with its arguments or its data."""


@dataclass(frozen=True, slots=True)
class Data:
    """A loaded training set and its validation set."""

    X: Any
    y: Any
    X_valid: Any
    y_valid: Any
    classes: int | None  # None: the label is a quantity


@dataclass(frozen=True, slots=True)
class Trial:
    """One fit: where its rows were, its time and its score."""

    name: str
    rows: Mapping[str, int]  # by worker
    seconds: float
    score: float


class Step:
    """A long step that prints its name, its progress and its time."""

    def __init__(self, echo: Echo, text: str) -> None:
        self._echo = echo
        self._text = text
        self._over = Event()
        self._start = perf_counter()
        self.seconds = 0.0

    def __enter__(self) -> Step:
        self._echo(f"{self._text} ...")
        self._start = perf_counter()
        self._thread = Thread(target=self._progress, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self.seconds = perf_counter() - self._start
        self._over.set()
        self._thread.join()  # or it could print once more
        if error is None:
            self._echo(f"    {self.seconds:.1f} s")

    def _progress(self) -> None:
        while not self._over.wait(PROGRESS):
            self._echo(f"    ... {perf_counter() - self._start:.0f} s")


def run(
    parquet: str | None,
    label: str | None,
    workers: int,
    echo: Echo,
    *,
    rows: int = ROWS,
) -> None:
    """Run the demo on Parquet data, or on ``rows`` generated rows.

    ``label`` is the column to predict. ``workers``, at least 2, is the number after
    scaling up. ``echo`` prints text. Raise DemoError if a package is missing, or if the
    data cannot be read or learned.
    """
    _require_packages()
    with ExitStack() as stack:
        folder = stack.enter_context(
            TemporaryDirectory(prefix="clustertune-demo-", ignore_cleanup_errors=True)
        )
        if parquet is None:
            parquet, label = str(Path(folder, "digits")), LABEL
            text = f"writing {rows:,} rows of scikit-learn's handwritten digits"
            with Step(echo, f"{text}, with noise, as Parquet"):
                write_digits(Path(parquet), rows=rows, partitions=PARTITIONS * workers)
        assert label is not None  # given together with parquet
        frame = read(parquet, label)
        with Step(echo, "starting a local cluster with 1 worker of 1 thread"):
            cluster, client = stack.enter_context(_local_cluster(folder, workers))
        with Step(echo, "loading the data there"):
            data = load(client, frame, label, partitions=PARTITIONS * workers)
        with Step(echo, f"scaling to {workers} workers"):
            cluster.scale(workers)
            client.wait_for_workers(workers, timeout=START_TIMEOUT)
        _compare(client, data, echo)


def _require_packages() -> None:
    titles = {"xgboost": "xgboost", "sklearn": "scikit-learn", "pyarrow": "pyarrow"}
    missing = [title for name, title in titles.items() if find_spec(name) is None]
    if missing:
        raise DemoError(
            f"the demo needs {', '.join(missing)}; run "
            "`pip install 'clustertune[demo]'`"
        )


@contextmanager
def _local_cluster(folder: str, workers: int) -> Iterator[tuple[LocalCluster, Client]]:
    """Start a cluster with one worker, with memory for more workers; leave no files."""
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


# --- the data -------------------------------------------------------------------------


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


def read(path: str, label: str) -> Any:
    """Return the data as a lazy DataFrame, with a partition for each row group.

    Raise DemoError if the data cannot be read or has no such label, or if a column has
    neither numbers nor categories.
    """
    try:
        frame = dd.read_parquet(path, split_row_groups=True)
    except FileNotFoundError as error:
        raise DemoError(f"{path!r}: there is no such file or folder") from error
    except (OSError, ValueError, ImportError, NotImplementedError) as error:
        reason = (str(error).strip() or repr(error)).splitlines()[-1]
        raise DemoError(f"{path!r} cannot be read as Parquet: {reason}") from error
    columns = [str(c) for c in frame.columns]
    if label not in columns:
        raise DemoError(
            f"label={label!r} is not a column; the columns are {_listed(columns)}"
        )
    if len(columns) == 1:
        raise DemoError(
            f"{label!r} is the only column, so there are no features; give files with "
            "more columns"
        )
    odd = [
        f"{name} ({dtype})"
        for name, dtype in frame.drop(columns=label).dtypes.items()
        if not (_is_number(dtype) or _is_category(dtype))
    ]
    if odd:
        raise DemoError(
            "XGBoost cannot train on columns that are neither numbers nor categories: "
            f"{_listed(odd)}; write the files without them, or as categories"
        )
    return frame


def _is_number(dtype: Any) -> bool:
    return bool(pd.api.types.is_numeric_dtype(dtype)) and dtype.kind != "c"


def _is_category(dtype: Any) -> bool:
    return isinstance(dtype, pd.CategoricalDtype)


def _listed(names: list[str], most: int = 20) -> str:
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def load(client: Client, frame: Any, label: str, *, partitions: int) -> Data:
    """Split the data, and load it on the current workers.

    Data with fewer than a quarter of the partitions is repartitioned, so that moving
    whole partitions can give each worker an even share. Raise DemoError if there are
    too few rows, or if the label cannot be learned.
    """
    if 4 * frame.npartitions < partitions:
        frame = frame.repartition(npartitions=partitions)
    categories = [n for n, dtype in frame.dtypes.items() if _is_category(dtype)]
    if categories:
        frame = frame.categorize(columns=categories, index=False)
    halves = frame.random_split([0.9, 0.1], random_state=_SEED)
    lazy = [part for half in halves for part in (half.drop(columns=label), half[label])]
    X, y, X_valid, y_valid = client.persist(lazy)
    wait([X, y, X_valid, y_valid])
    classes = _classes(y, y_valid, label)
    if classes is not None:
        numbered = pd.CategoricalDtype(classes)
        y, y_valid = client.persist(
            [part.astype(numbered).cat.codes for part in (y, y_valid)]
        )
        wait([y, y_valid])
    n_classes = None if classes is None else len(classes)
    return Data(X, y, X_valid, y_valid, n_classes)


def _classes(y: Any, y_valid: Any, label: str) -> list[Any] | None:
    """Return the different labels, or None if they are quantities."""
    rows = len(y) + len(y_valid)
    if rows < MIN_ROWS:
        raise DemoError(f"{rows:,} rows are too few; the demo needs {MIN_ROWS}")
    absent = sum(int(part.isna().sum().compute()) for part in (y, y_valid))
    if absent:
        raise DemoError(
            f"the label {label!r} is missing in {absent:,} of {rows:,} rows; write the "
            "files without these rows"
        )
    whole = pd.api.types.is_integer_dtype(y.dtype)
    if _is_number(y.dtype) and not whole and not pd.api.types.is_bool_dtype(y.dtype):
        return None
    found = sorted(y.unique(split_out=1).compute())
    if whole and len(found) > MAX_CLASSES:
        return None
    if not 2 <= len(found) <= MAX_CLASSES:
        raise DemoError(
            f"the label {label!r} ({y.dtype}) has {len(found):,} different values; "
            f"choose a column with 2 to {MAX_CLASSES} classes, or a numeric one"
        )
    return found


# --- the comparison -------------------------------------------------------------------


def _compare(client: Client, data: Data, echo: Echo) -> None:
    model = _model(data)
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
    echo(f"\nthe two fits\n------------\n{_table(without, after, data)}")
    echo(f"\n{_verdict(without, after, preparing.seconds)}")


def _model(data: Data) -> Any:
    from xgboost.dask import DaskXGBClassifier, DaskXGBRegressor

    # with more than two classes, each round has a tree for each class
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
    """Count the rows of each worker, train, and score on the validation set."""
    rows = _rows_by_worker(client, data.X)
    with Step(echo, f"training XGBoost {name}") as training:
        model.fit(data.X, data.y)
    return Trial(name, rows, training.seconds, _score(model, data))


def _rows_by_worker(client: Client, X: Any) -> dict[str, int]:
    cluster: Any = client.cluster
    names = {w.worker_address: str(n) for n, w in cluster.workers.items()}
    futures = futures_of(X)
    holders = client.who_has(futures)
    workers = [holders[future.key][0] for future in futures]
    lengths = client.gather(
        [
            client.submit(len, future, workers=[worker], pure=False)
            for future, worker in zip(futures, workers, strict=True)
        ]
    )
    rows = dict.fromkeys(names.values(), 0)
    for worker, length in zip(workers, lengths, strict=True):
        rows[names[worker]] += length
    return rows


def _score(model: Any, data: Data) -> float:
    predicted = _as_array(model.predict(data.X_valid))
    truth = _as_array(data.y_valid)
    if data.classes is not None:
        return float((predicted == truth).mean().compute())
    residual = ((truth - predicted) ** 2).mean()
    return float((1 - residual / truth.var()).compute())


def _as_array(collection: Any) -> Any:
    return collection if isinstance(collection, da.Array) else collection.values  # noqa: PD011


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
        "times as fast as the fit without clustertune."
    )
    n_workers = len(without.rows)
    if n_workers > CPU_COUNT:
        text += f"\n{n_workers} workers share {CPU_COUNT} CPUs, which limits both fits."
    return text
