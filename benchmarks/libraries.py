"""Training libraries as their users call them, on a cluster and in one process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
from distributed import Client
from layouts import Table, holders, partitions

HELD_OUT = 20_000  # other rows, on which models are judged
NO_ARGUMENTS = SimpleNamespace(fit_kwargs={}, estimator_params={})  # of the recipe


class Library(ABC):
    """A fit on a standard number of rows, or a fraction of it."""

    size: tuple[int, int] = (1_000_000, 50)
    dtype = "f4"
    partitions = 8  # of the recipe, for two workers
    labels = True  # whether fit takes y
    judged = "log loss of other rows"
    #: allowed relative difference to the model of one process; subclasses with more
    #: than rounding errors give the reason
    tolerance = 1e-6
    #: further arguments of ``prepare``
    options_of_prepare: Mapping[str, Any] = {}

    def __init__(self, scale: float):
        rows, columns = self.size
        unit = 2 * self.partitions  # halves of even partitions are whole rows
        parts = max(1, round(rows * scale / unit))
        self.table = Table(parts * unit, columns, self.dtype)

    @abstractmethod
    def estimator(self) -> Any:
        """The estimator, for ``fit`` and for ``prepare``."""

    def fit(self, client: Client, X: Any, y: Any, prepared: Any) -> Any:
        """The fitted model, reduced to what is judged."""
        model = self.estimator().set_params(**prepared.estimator_params)
        return self.result(model.fit(X, y, **prepared.fit_kwargs))

    def result(self, model: Any) -> Any:
        return model

    @abstractmethod
    def alone(self) -> Any:
        """A function that fits the same rows in this process with all cores."""

    @abstractmethod
    def judge(self, fitted: Any) -> float:
        """The loss of a model: smaller is better."""

    def all_rows(self) -> tuple[Any, Any]:
        return self.table.make(0, self.table.rows)

    def other_rows(self) -> tuple[Any, Any]:
        return self.table.make(self.table.rows, self.table.rows + HELD_OUT)


def log_loss(chance: Any, y: Any) -> float:
    chance = np.clip(np.asarray(chance, dtype="f8"), 1e-12, 1 - 1e-12)
    return float(-np.mean(y * np.log(chance) + (1 - y) * np.log(1 - chance)))


class XGBoost(Library):
    """Workers merge sketches of the bins, so a few rows fall into other bins."""

    tolerance = 0.01
    options: Mapping[str, Any] = {
        "n_estimators": 60,
        "max_depth": 6,
        "tree_method": "hist",
    }

    def estimator(self) -> Any:
        from xgboost.dask import DaskXGBClassifier

        return DaskXGBClassifier(**self.options)

    def result(self, model: Any) -> Any:
        return model.get_booster()

    def alone(self) -> Any:
        from xgboost import XGBClassifier

        X, y = self.all_rows()
        model = XGBClassifier(**self.options, n_jobs=2)
        return lambda: model.fit(X, y).get_booster()

    def judge(self, fitted: Any) -> float:
        X, y = self.other_rows()
        return log_loss(fitted.inplace_predict(X), y)


class LightGBM(Library):
    """Every feature is binned by the rows of one worker."""

    size = (2_000_000, 50)
    tolerance = 0.01
    options: Mapping[str, Any] = {"n_estimators": 60, "verbose": -1}

    def estimator(self) -> Any:
        from lightgbm import DaskLGBMClassifier

        return DaskLGBMClassifier(**self.options)

    def result(self, model: Any) -> Any:
        return model.booster_

    def alone(self) -> Any:
        from lightgbm import LGBMClassifier

        X, y = self.all_rows()
        model = LGBMClassifier(**self.options, n_jobs=2)
        return lambda: model.fit(X, y).booster_

    def judge(self, fitted: Any) -> float:
        X, y = self.other_rows()
        return log_loss(fitted.predict(X), y)


class KMeans(Library):
    """The same initial centres and number of steps."""

    size = (500_000, 50)
    dtype = "f8"
    labels = False
    judged = "inertia"
    clusters = 8

    @property
    def options(self) -> dict[str, Any]:
        centres = self.table.make(0, self.clusters)[0]
        return {"n_clusters": self.clusters, "init": centres, "max_iter": 20, "tol": 0}

    def estimator(self) -> Any:
        from dask_ml.cluster import KMeans

        return KMeans(**self.options)

    def result(self, model: Any) -> Any:
        return model.cluster_centers_

    def alone(self) -> Any:
        from sklearn.cluster import KMeans

        X, _ = self.all_rows()
        model = KMeans(**self.options, n_init=1)
        return lambda: model.fit(X).cluster_centers_

    def judge(self, fitted: Any) -> float:
        from sklearn.metrics import pairwise_distances_argmin_min

        X, _ = self.all_rows()
        return float((pairwise_distances_argmin_min(X, fitted)[1] ** 2).sum())


class Ddp(Library):
    """PyTorch, one rank on each worker that holds rows.

    All ranks take the steps that even rows need. A rank with fewer rows repeats some of
    them. So both variants train on equally many rows, and only the seconds differ.
    Batches differ from those in one process.
    """

    size = (300_000, 100)
    tolerance = 0.05
    epochs = 3
    batch = 1024  # rows on each of two ranks

    def estimator(self) -> Any:
        return network(self.table.columns)

    def fit(self, client: Client, X: Any, y: Any, prepared: Any) -> Any:
        rows_of_rank = defaultdict(list)
        places = zip(holders(client, X), partitions(X), partitions(y), strict=True)
        for held, *pair in places:
            rows_of_rank[held[0]].append(pair)
        steps = X.shape[0] // (self.batch * len(rows_of_rank))
        with TemporaryDirectory() as folder:
            ranks = [
                client.submit(
                    train,
                    *zip(*pairs, strict=True),
                    steps=steps,
                    epochs=self.epochs,
                    batch=self.batch,
                    rank=rank,
                    n_ranks=len(rows_of_rank),
                    store=str(Path(folder, "store")),
                    workers=[address],
                    pure=False,
                )
                for rank, (address, pairs) in enumerate(rows_of_rank.items())
            ]
            return client.gather(ranks)[0]

    def alone(self) -> Any:
        X, y = self.all_rows()
        batch = 2 * self.batch
        steps = len(X) // batch
        options = {"steps": steps, "epochs": self.epochs, "batch": batch, "threads": 2}
        return lambda: train([X], [y], **options)

    def judge(self, fitted: Any) -> float:
        import torch

        model = network(self.table.columns)
        model.load_state_dict({k: torch.from_numpy(v) for k, v in fitted.items()})
        X, y = self.other_rows()
        with torch.no_grad():
            return log_loss(torch.sigmoid(model(torch.from_numpy(X))[:, 0]), y)


def network(columns: int) -> Any:
    import torch

    torch.manual_seed(0)
    nn = torch.nn
    hidden = nn.Linear(columns, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()
    return nn.Sequential(*hidden, nn.Linear(256, 1))


def train(
    X: Any,
    y: Any,
    *,
    steps: int,
    epochs: int,
    batch: int,
    rank: int = 0,
    n_ranks: int = 1,
    store: str = "",
    threads: int = 1,
) -> dict[str, Any]:
    """Train a network together with the other ranks; return its weights."""
    from datetime import timedelta

    import torch

    torch.set_num_threads(threads)
    rows, labels = (torch.from_numpy(np.concatenate(parts)) for parts in (X, y))
    model = network(rows.shape[1])
    options = {"steps": steps, "epochs": epochs, "batch": batch, "seed": rank}
    if not store:
        _learn(model, rows, labels, **options)
    else:
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=n_ranks,
            timeout=timedelta(seconds=60),
        )
        try:
            parallel = torch.nn.parallel.DistributedDataParallel
            _learn(parallel(model), rows, labels, **options)
            # a rank that ends before the others sometimes hangs
            torch.distributed.barrier()
        finally:
            torch.distributed.destroy_process_group()
    return {k: v.numpy() for k, v in model.state_dict().items()}


def _learn(
    model: Any,
    rows: Any,
    labels: Any,
    *,
    steps: int,
    epochs: int,
    batch: int,
    seed: int,
) -> None:
    import torch

    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss = torch.nn.BCEWithLogitsLoss()
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        order = torch.randperm(len(rows), generator=generator)
        repeats = -(-steps * batch // len(rows))
        for some in order.repeat(repeats)[: steps * batch].split(batch):
            optimizer.zero_grad()
            loss(model(rows[some])[:, 0], labels[some]).backward()
            optimizer.step()


LIBRARIES: dict[str, type[Library]] = {
    "xgboost": XGBoost,
    "lightgbm": LightGBM,
    "kmeans": KMeans,
    "ddp": Ddp,
}
