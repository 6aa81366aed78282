"""XGBoost from Parquet files to the model, on Dask, on Ray and in one process.

The 23 files have unequal sizes. Two workers have one thread each. `persist` and
`rebalance` read with `dd.read_parquet`, persist, and fit; `rebalance` calls
`client.rebalance` before the fit. (Without `persist` XGBoost raises an error, because
the partitions of features and label differ.) `prepare` gives the lazy frames to
`clustertune.prepare`. `ray` reads with `ray.data.read_parquet` and trains with Ray
Train on splits with locality. `one_process` uses pandas and two threads. Peak memory is
that of the largest worker process; for Ray it does not include the object store.

Options: `--rounds 6`, `--rows 250000`. Ray is left out unless `ray[data,train]` is
installed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from importlib.util import find_spec
from itertools import chain, pairwise, repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import xgboost as xgb
import xgboost.dask as dxgb
from distributed import Client, wait
from layouts import Table
from libraries import log_loss
from measure import (
    cluster,
    compare,
    machine,
    orphans,
    peak,
    ratios,
    reset_peak,
    run,
    serve,
    settle,
    show,
)

import clustertune

WORKERS = 2
COLUMNS = 50
TREES = 60
PARAMETERS = {
    "tree_method": "hist",
    "objective": "binary:logistic",
    "max_depth": 6,
    "nthread": 1,
}
#: fraction of the rows in each file
SHARES = (0.3, 0.2, 0.12, *[0.019] * 20)
LABEL = "label"
HELD_OUT = 20_000
FEW = 4000  # rows of the warm-up


# --- files ----------------------------------------------------------------------------


def write(folder: Path, rows: int) -> None:
    table = Table(rows, COLUMNS, "f4")
    ends = np.round(np.cumsum((0, *SHARES)) / sum(SHARES) * rows).astype(int)
    folder.mkdir()
    for i, (start, stop) in enumerate(pairwise(ends)):
        frame(table, start, stop).to_parquet(folder / f"part-{i:03}.parquet")


def frame(table: Table, start: int, stop: int) -> pd.DataFrame:
    X, y = table.make(start, stop)
    return pd.DataFrame(X, columns=[f"x{i}" for i in range(COLUMNS)]).assign(
        **{LABEL: y}
    )


def quality(booster: xgb.Booster, rows: int) -> float:
    other = frame(Table(rows, COLUMNS, "f4"), rows, rows + HELD_OUT)
    chance = booster.inplace_predict(other.drop(columns=LABEL))
    return log_loss(chance, other[LABEL])


# --- the variants ---------------------------------------------------------------------

Figures = dict[str, float]
#: a model and its figures for each round, the first one of the warm-up
Rounds = Generator[tuple[xgb.Booster, Figures], None, None]


def persist(client: Client, data: Any) -> Any:
    data = client.persist(data)
    wait(data)
    return data.drop(columns=LABEL), data[LABEL]


def rebalance(client: Client, data: Any) -> Any:
    data = client.persist(data)
    wait(data)
    client.rebalance(data)
    return data.drop(columns=LABEL), data[LABEL]


def prepare(client: Client, data: Any) -> Any:
    """Return X and y in memory, with even rows and the same partitions."""
    X, y = data.drop(columns=LABEL), data[LABEL]
    return clustertune.prepare(client, X, y, estimator="xgboost", progress=False)


READY: Mapping[str, Callable[[Client, Any], Any]] = {
    "persist": persist,
    "rebalance": rebalance,
    "prepare": prepare,
}


def on_dask(name: str, few: Path, folder: Path) -> Rounds:
    with (
        TemporaryDirectory() as spilled,
        cluster(WORKERS, local_directory=spilled) as client,
    ):
        yield fit(name, client, few)
        while True:
            # memory that the round before has freed would count in the peak
            client.run(settle)
            client.run(reset_peak)
            booster, figures = fit(name, client, folder)
            yield booster, figures | {"peak": max(client.run(peak).values())}


def fit(name: str, client: Client, folder: Path) -> tuple[xgb.Booster, Figures]:
    start = perf_counter()
    X, y = READY[name](client, dd.read_parquet(folder))
    ready = perf_counter()
    matrix = dxgb.DaskQuantileDMatrix(client, X, y)
    trained = dxgb.train(client, PARAMETERS, matrix, TREES)
    end = perf_counter()
    return trained["booster"], {"seconds": end - start, "ready": ready - start}


def on_ray(name: str, few: Path, folder: Path) -> Rounds:
    import ray

    # Ray Data reads on one more logical CPU
    ray.init(num_cpus=WORKERS + 1, include_dashboard=False, log_to_driver=False)
    try:
        yield _fit_on_ray(few)[0], {}
        while True:
            with orphans() as used:  # Ray does not wait for its training processes
                start = perf_counter()
                booster, largest = _fit_on_ray(folder)
                seconds = perf_counter() - start
            yield booster, {"seconds": seconds, "peak": largest, **used}
    finally:
        ray.shutdown()


def _fit_on_ray(folder: Path) -> tuple[xgb.Booster, float]:
    import ray.data
    from ray.train import RunConfig, ScalingConfig
    from ray.train.xgboost import XGBoostTrainer

    with TemporaryDirectory() as kept:
        trainer = XGBoostTrainer(
            _train_on_ray,
            datasets={"train": ray.data.read_parquet(str(folder))},
            scaling_config=ScalingConfig(num_workers=WORKERS),
            run_config=RunConfig(storage_path=kept, name="fit"),
        )
        result = trainer.fit()
        booster = xgb.Booster(model_file=Path(result.checkpoint.path, "model.json"))
        return booster, result.metrics["peak"]


def _train_on_ray() -> None:
    """Train in each worker of Ray, as part of its group."""
    import ray.train

    reset_peak()
    shard = ray.train.get_dataset_shard("train").materialize().to_pandas()
    matrix = xgb.QuantileDMatrix(shard.drop(columns=LABEL), shard[LABEL])
    booster = xgb.train(PARAMETERS, matrix, TREES)
    with TemporaryDirectory() as folder:
        booster.save_model(Path(folder, "model.json"))
        checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report({"peak": peak()}, checkpoint=checkpoint)


def in_one_process(name: str, few: Path, folder: Path) -> Rounds:
    both = {**PARAMETERS, "nthread": WORKERS}
    for each in chain([few], repeat(folder)):
        settle()
        reset_peak()
        start = perf_counter()
        data = pd.read_parquet(each)
        ready = perf_counter()
        matrix = xgb.QuantileDMatrix(
            data.drop(columns=LABEL), data[LABEL], nthread=WORKERS
        )
        booster = xgb.train(both, matrix, TREES)
        end = perf_counter()
        del data, matrix
        yield (
            booster,
            {"seconds": end - start, "ready": ready - start, "peak": peak()},
        )


Variant = Callable[[str, Path, Path], Rounds]
VARIANTS: Mapping[str, Variant] = {
    "persist": on_dask,
    "rebalance": on_dask,
    "prepare": on_dask,
    "ray": on_ray,
    "one_process": in_one_process,
}


def judged(rounds: Rounds, rows: int) -> Generator[Figures, None, None]:
    """The figures of each round, with the model's quality."""
    with closing(rounds):
        for booster, figures in rounds:
            yield figures | {"quality": quality(booster, rows)}


# --- all of them ----------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--rows", type=int, default=250_000)
    parser.add_argument("--variant", choices=VARIANTS)
    parser.add_argument("--files", type=Path)
    chosen = parser.parse_args()
    if chosen.variant:
        few, folder = chosen.files / "few", chosen.files / "all"
        rounds = VARIANTS[chosen.variant](chosen.variant, few, folder)
        serve(judged(rounds, chosen.rows))
        return
    names = [name for name in VARIANTS if name != "ray" or find_spec("ray")]
    print(f"{chosen.rows:,} x {COLUMNS} float32 in {len(SHARES)} files, hist, {TREES} "
          f"trees, {WORKERS} workers of 1 thread; {machine()}, dask "
          f"{dask.__version__}, xgboost {xgb.__version__}"
          + ("" if "ray" in names else "; Ray is not installed"))  # fmt: skip
    with TemporaryDirectory() as files:
        write(Path(files, "few"), FEW)
        write(Path(files, "all"), chosen.rows)
        given = f"--rows={chosen.rows}", f"--files={files}"
        rounds = run(sys.argv[0], names, chosen.rounds, *given, kept=True)
    for r in rounds:
        for name in names:
            r[f"{name}.peak"] /= 1e6
    show(
        rounds,
        {
            f"{name}.{figure}": f"{name}, {unit}"
            for figure, unit in FIGURES.items()
            for name in names
            if f"{name}.{figure}" in rounds[0]
        },
    )
    for name in names:
        if name != "prepare":
            gained = ratios(rounds, "prepare.seconds", f"{name}.seconds")
            compare(f"prepare and fit / {name}", gained, at_most=AIMS.get(name))
    for r in rounds:
        r["faster"] = min(r["persist.seconds"], r["rebalance.seconds"])
    best = ratios(rounds, "prepare.seconds", "faster")
    what = "prepare and fit / the faster of persist and rebalance"
    compare(what, best, at_most=1.0, headline=True)


#: the largest allowed ratio to other variants
AIMS = {"ray": 0.5, "one_process": 1.15}
FIGURES = {
    "seconds": "files to model (s)",
    "ready": "of these until the data is in memory (s)",
    "peak": "peak of a worker (MB)",
    "quality": "log loss of other rows",
}


if __name__ == "__main__":
    main()
