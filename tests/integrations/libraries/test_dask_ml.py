"""The profiles of dask-ml and dask-glm are right for the installed releases."""

from __future__ import annotations

import inspect
import os
import signal
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pytest
from dask_ml.cluster import KMeans
from dask_ml.linear_model import LinearRegression, LogisticRegression
from dask_ml.model_selection import HyperbandSearchCV
from dask_ml.naive_bayes import GaussianNB
from dask_ml.wrappers import Incremental
from sklearn.linear_model import SGDClassifier

import clustertune
from clustertune.integrations import libraries
from tests.integrations.libraries import data

pytestmark = [
    pytest.mark.slow,
    # of Dask and SciPy, at how dask-glm calls them
    pytest.mark.filterwarnings("ignore:Dask configuration key:FutureWarning"),
    pytest.mark.filterwarnings("ignore:scipy.optimize:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.mark.parametrize("kind", [LogisticRegression, KMeans])
def test_it_takes_nothing_but_data(kind: Any) -> None:
    """It needs only the prepared collections."""
    assert list(inspect.signature(kind().fit).parameters) == ["X", "y"]


def test_newton_does_not_depend_on_the_number_of_partitions(client: Any) -> None:
    """As ``tests/rules`` show, ``admm`` does, so its partitions are kept."""
    X = data.features()
    y = data.labels(X)
    found = [
        LinearRegression(solver="newton", max_iter=5)
        .fit(X.rechunk((rows, 5)), y.rechunk(rows))
        .coef_
        for rows in (600, 100)
    ]
    assert np.allclose(*found, rtol=1e-3)
    assert libraries.choose("glm_admm").keeps_partitions
    assert not libraries.choose("glm").keeps_partitions


def test_linear_models_take_no_frames(client: Any) -> None:
    """So ``prepare`` has to return arrays."""
    X = data.features()
    frame = dd.from_dask_array(X, columns=list("abcde"))
    with pytest.raises(TypeError):
        LinearRegression(solver="lbfgs").fit(frame, frame["a"])
    assert libraries.choose("glm").kinds == ("array",)


@pytest.mark.parametrize("frames", ["X, y", "y"])
def test_frames_become_arrays_for_linear_models(client: Any, frames: str) -> None:
    """Frames become Arrays by Dask's own conversion."""
    X = data.features()
    y = data.labels(X)
    model = LinearRegression(solver="newton", max_iter=5)
    expected = model.fit(X, y).coef_
    dX = dd.from_dask_array(X, columns=list("abcde")) if "X" in frames else X
    dy = dd.from_dask_array(y, columns="y")
    p = clustertune.prepare(client, dX, dy, estimator=model)
    assert p.X.chunks[0] == p.y.chunks[0]
    np.testing.assert_array_equal(p.X.compute(), X.compute())
    np.testing.assert_allclose(model.fit(*p).coef_, expected, rtol=1e-3)


def test_another_number_of_partitions(client: Any) -> None:
    """The given number is one partition, without an earlier fit; also in a dry run."""
    X = data.features().rechunk((data.ROWS, 5))
    y = data.labels(X)
    model = LogisticRegression(solver="admm")
    planned = clustertune.prepare(client, X, y, estimator=model, dry_run=True)
    p = clustertune.prepare(client, X, y, estimator=model)
    assert len(p.X.chunks[0]) > 1
    (finding,) = [f for f in p.report.left if f.check == "changed_partitions"]
    assert "makes another model" in finding.message
    assert planned.report.status == "planned"
    as_given = clustertune.prepare(client, X, y, estimator=model, rechunk=1)
    assert as_given.X.chunks[0] == (data.ROWS,)


def test_naive_bayes_has_a_workload(client: Any) -> None:
    """It has the name of scikit-learn's class, which trains in one process."""
    X = data.features()
    X, y = clustertune.prepare(client, X, data.labels(X), estimator=GaussianNB())
    predicted = GaussianNB().fit(X, y).predict(X)
    assert predicted.compute().shape == (data.ROWS,)


def test_incremental_takes_no_weights(client: Any) -> None:
    """It would pass all weights to every partition."""
    X = data.features()
    y = data.labels(X)
    with pytest.raises(ValueError, match=r"sample_weight.*shape"):
        Incremental(SGDClassifier()).fit(X, y, classes=[0, 1], sample_weight=y)


def test_incremental_searches_still_fail(client: Any) -> None:
    """If this test fails they work again: refuse them no longer (dask-ml#1016)."""
    X = data.features()
    search = HyperbandSearchCV(
        SGDClassifier(), {"alpha": np.logspace(-4, -1, 20)}, max_iter=3
    )
    with pytest.raises(RuntimeError, match="asynchronous Client"):
        search.fit(X, data.labels(X), classes=[0, 1])
    with pytest.raises(ValueError, match="dask-ml#1016"):
        libraries.choose(search)
    with pytest.raises(ValueError, match="dask-ml#1016"):
        clustertune.prepare(client, X, data.labels(X), estimator=search)


LOSING = {
    "kmeans": lambda: KMeans(2, init="random", random_state=0),
    "incremental": lambda: Incremental(
        SGDClassifier(random_state=0, shuffle=False), shuffle_blocks=False
    ),
}


def parameters(model: Any) -> Any:
    names = "cluster_centers_", "coef_"
    found = getattr(model, "estimator_", model)
    return np.asarray(next(getattr(found, n) for n in names if hasattr(found, n)))


@pytest.mark.parametrize("name", LOSING)
def test_a_lost_worker_costs_one_more_try(
    client: Any, tmp_path: Path, name: str
) -> None:
    """A worker is killed while the fit runs; the model is that of a calm fit."""
    X = data.features()
    y = data.labels(X).astype("i8")
    given = (X,) if name == "kmeans" else (X, y)
    more = {"classes": [0, 1]} if name == "incremental" else {}
    calm = LOSING[name]()
    clustertune.fit(client, calm, *given, **more)
    model = LOSING[name]()
    mark = tmp_path / "mark"

    class Loses(type(model)):  # type: ignore[misc]
        def fit(self, *args: Any, **kwargs: Any) -> Any:
            if not mark.exists():
                mark.touch()
                os.kill(min(client.run(os.getpid).values()), signal.SIGKILL)
            return super().fit(*args, **kwargs)

    model.__class__ = Loses
    clustertune.fit(client, model, *given, max_failures=1, **more)
    assert mark.exists()
    assert np.allclose(parameters(model), parameters(calm))
    client.wait_for_workers(2, timeout=300)
