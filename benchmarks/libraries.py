"""Training libraries as their users call them, on a cluster and in one process."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import dask
import dask.array as da
import numpy as np
from distributed import Client
from layouts import Table, holders, partitions
from threadpoolctl import threadpool_limits

HELD_OUT = 20_000  # rows on which models are judged, beyond those they trained on
NOTHING = SimpleNamespace(fit_kwargs={}, estimator_params={})  # is handed over


class Library(ABC):
    """A fit of a standard size, or of a fraction of it."""

    size: tuple[int, int] = (1_000_000, 50)
    dtype = "f4"
    partitions = 8  # that its user chooses, for two workers
    labels = True  # whether it takes y
    judged = "log loss of other rows"
    #: by how much, as a fraction, a model on a cluster may be worse or better than in
    #: one process; what makes them differ is said where it is not rounding alone
    tolerance = 1e-6
    #: what is given to ``prepare`` beside the data and the estimator
    wanted: Mapping[str, Any] = {}

    def __init__(self, scale: float):
        rows, columns = self.size
        unit = 2 * self.partitions  # so that halves of even partitions are whole rows
        parts = max(1, round(rows * scale / unit))
        self.table = Table(parts * unit, columns, self.dtype)

    @abstractmethod
    def estimator(self) -> Any:
        """What is fitted, and given to ``prepare``."""

    def fit(self, client: Client, X: Any, y: Any, handed: Any) -> Any:
        """What is to be judged afterwards, small."""
        model = self.estimator().set_params(**handed.estimator_params)
        return self.result(model.fit(X, y, **handed.fit_kwargs))

    def result(self, model: Any) -> Any:
        return model

    @abstractmethod
    def alone(self) -> Any:
        """A function that fits the same rows in this process, with all its cores."""

    @abstractmethod
    def judge(self, fitted: Any) -> float:
        """How good it is: the smaller the better."""

    def all_rows(self) -> tuple[Any, Any]:
        return self.table.make(0, self.table.rows)

    def other_rows(self) -> tuple[Any, Any]:
        return self.table.make(self.table.rows, self.table.rows + HELD_OUT)


def log_loss(chance: Any, y: Any) -> float:
    chance = np.clip(np.asarray(chance, dtype="f8"), 1e-12, 1 - 1e-12)
    return float(-np.mean(y * np.log(chance) + (1 - y) * np.log(1 - chance)))


class XGBoost(Library):
    """Bins are of a sketch that workers merge, so a few rows fall into others."""

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
    """Every feature is binned by the rows of one worker.

    Workers exchange sums at every split, whatever the number of rows: with half as many
    rows and twice as many leaves, two workers took 0.81 of the time of one.
    """

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


class _Linear(Library):
    """Logistic regression of dask-glm: a tenth of the rows of an article about it."""

    size = (800_000, 15)
    dtype = "f8"
    judged = "objective"
    options: Mapping[str, Any]

    @property
    def wanted(self) -> Mapping[str, Any]:  # type: ignore[override]
        return {"rechunk": self.partitions}

    def estimator(self) -> Any:
        from dask_glm.estimators import LogisticRegression

        return LogisticRegression(fit_intercept=False, regularizer="l1", **self.options)

    def result(self, model: Any) -> Any:
        return model.coef_

    def alone(self) -> Any:
        X, y = self.all_rows()
        rows = self.table.rows // self.partitions
        X, y = da.from_array(X, (rows, -1)), da.from_array(y, rows)

        def fit() -> Any:
            threads = dask.config.set(scheduler="threads", num_workers=2)
            with threads, threadpool_limits(1):  # of BLAS, as below a nanny
                return self.estimator().fit(X, y).coef_

        return fit

    def judge(self, fitted: Any) -> float:
        X, y = self.all_rows()
        score = X @ fitted
        loss = np.logaddexp(0, score).sum() - y @ score
        return float(loss + self.estimator().lamduh * np.abs(fitted).sum())


class Admm(_Linear):
    """Its coefficients depend on the number of partitions, so all have as many."""

    partitions = 80
    options = {"solver": "admm", "max_iter": 10}  # noqa: RUF012


class Proximal(_Linear):
    options = {"solver": "proximal_grad", "tol": 1e-8}  # noqa: RUF012


class KMeans(Library):
    """From the same centres, as many steps.

    Between two steps dask-ml waits for a result, whatever the number of rows.
    """

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


class Predict(Library):
    """A forest of 20 MB predicts all rows; how far it is off is compared.

    With half as many rows that took 2 s, of which preparing was a fifth.
    """

    size = (1_000_000, 100)
    partitions = 16
    judged = "mean squared error"

    def __init__(self, scale: float):
        from sklearn.ensemble import ExtraTreesRegressor

        super().__init__(scale)
        X, _ = self.other_rows()
        noise = np.random.default_rng(3).standard_normal(len(X))
        model = ExtraTreesRegressor(7, max_features=0.1, random_state=0)
        self.model = model.fit(X, X[:, 0] + noise)
        assert 18e6 < len(pickle.dumps(self.model)) < 22e6

    def estimator(self) -> Any:
        from dask_ml.wrappers import ParallelPostFit

        return ParallelPostFit(self.model)

    def fit(self, client: Client, X: Any, y: Any, handed: Any) -> Any:
        model = self.estimator().set_params(**handed.estimator_params)
        return ((model.predict(X) - y) ** 2).mean().compute()

    def alone(self) -> Any:
        X, y = self.all_rows()
        model = self.model.set_params(n_jobs=2)

        def fit() -> Any:
            return ((model.predict(X) - y) ** 2).mean()

        return fit

    def judge(self, fitted: Any) -> float:
        return float(fitted)


class Ddp(Library):
    """PyTorch, one rank on each worker that has rows, each with the rows there.

    All take as many steps, as many as the rank with fewest rows can, or they would
    wait for each other for ever. Batches are of other rows than in one process.

    Gradients travel at every step, so the step has to be worth it: with batches of 512
    rows two ranks took 0.76 of the time of one, and 1.35 with a network of 64 units and
    batches of 256.
    """

    size = (300_000, 100)
    tolerance = 0.05
    epochs = 3
    batch = 1024  # rows, on each of two ranks

    def estimator(self) -> Any:
        return network(self.table.columns)

    def fit(self, client: Client, X: Any, y: Any, handed: Any) -> Any:
        of_rank = defaultdict(list)
        places = zip(holders(client, X), partitions(X), partitions(y), strict=True)
        for rows, (held, *pair) in zip(X.chunks[0], places, strict=True):
            of_rank[held[0]].append((rows, pair))
        fewest = min(sum(n for n, _ in parts) for parts in of_rank.values())
        with TemporaryDirectory() as folder:
            ranks = [
                client.submit(
                    train,
                    *zip(*(pair for _, pair in parts), strict=True),
                    steps=fewest // self.batch,
                    epochs=self.epochs,
                    batch=self.batch,
                    rank=rank,
                    n_ranks=len(of_rank),
                    meet=str(Path(folder, "store")),
                    workers=[address],
                    pure=False,
                )
                for rank, (address, parts) in enumerate(of_rank.items())
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
    meet: str = "",
    threads: int = 1,
) -> dict[str, Any]:
    """Weights of a network, trained on partitions together with the other ranks."""
    from datetime import timedelta

    import torch

    torch.set_num_threads(threads)
    rows, labels = (torch.from_numpy(np.concatenate(parts)) for parts in (X, y))
    model = network(rows.shape[1])
    how = {"steps": steps, "epochs": epochs, "batch": batch, "seed": rank}
    if not meet:
        _learn(model, rows, labels, **how)
    else:
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"file://{meet}",
            rank=rank,
            world_size=n_ranks,
            timeout=timedelta(seconds=60),
        )
        try:
            parallel = torch.nn.parallel.DistributedDataParallel
            _learn(parallel(model), rows, labels, **how)
            # a rank that ends before the others sometimes hangs while it does
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
        for some in order[: steps * batch].split(batch):
            optimizer.zero_grad()
            loss(model(rows[some])[:, 0], labels[some]).backward()
            optimizer.step()


LIBRARIES: dict[str, type[Library]] = {
    "xgboost": XGBoost,
    "lightgbm": LightGBM,
    "admm": Admm,
    "proximal": Proximal,
    "kmeans": KMeans,
    "predict": Predict,
    "ddp": Ddp,
}
