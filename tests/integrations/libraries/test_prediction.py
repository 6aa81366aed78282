"""A fitted model goes to every worker once, and predicts the same."""

from __future__ import annotations

import os
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pytest
from dask.delayed import Delayed
from dask_ml.wrappers import ParallelPostFit
from distributed import wait
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from clustertune.integrations import libraries
from clustertune.integrations.libraries import FitInputs, Rows
from clustertune.integrations.libraries.dask_ml import share
from tests.integrations.libraries import data
from tests.integrations.libraries.models import Seen
from tests.processes import workers_of

COLUMNS = list("abcde")


def prepared(model: Any, X: Any) -> Any:
    """Return the wrapper with the parameters of its workload."""
    wrapper = ParallelPostFit(model)
    handed = FitInputs(training=Rows(X=X), estimator=wrapper)
    profile = libraries.choose(wrapper)
    return wrapper.set_params(**libraries.estimator_params(profile, handed))


def readers(client: Any, notes: Path) -> Counter[int]:
    """Return how often each worker process has read the model."""
    workers = set(client.run(os.getpid).values())
    pids = map(int, notes.read_text().split()) if notes.exists() else ()
    return Counter(pid for pid in pids if pid in workers)


def kinds(X: Any) -> dict[str, Any]:
    return {"array": X, "dataframe": dd.from_dask_array(X, columns=COLUMNS)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["array", "dataframe"])
@pytest.mark.parametrize("method", ["predict_proba", "transform"])
def test_each_worker_reads_the_model_once(
    client: Any, tmp_path: Path, kind: str, method: str
) -> None:
    """Otherwise it is read once for every partition; the result is the same.

    For ``predict``, ``tests/rules/test_dask_ml.py`` tests it.
    """
    X = kinds(data.features().rechunk((100, 5)))[kind].persist()
    wait(X)
    values = np.asarray(X.compute())
    counts = []
    for i, wrap in enumerate((lambda m, X: ParallelPostFit(m), prepared)):
        notes = tmp_path / str(i)
        model = Seen(str(notes)).fit(values, [0, 1])
        result = getattr(wrap(model, X), method)(X).compute()
        assert np.array_equal(result, getattr(model, method)(values))
        counts.append(readers(client, notes))
    plain, shared = counts
    assert sum(plain.values()) >= 12
    assert set(shared.values()) <= {1}
    assert 1 <= len(shared) <= 2


@pytest.mark.slow
def test_the_model_outlives_the_worker_that_had_it(client: Any, tmp_path: Path) -> None:
    """Results of a lost worker are computed again, and the model is sent again."""
    X = data.features()
    model = Seen(str(tmp_path / "notes")).fit(None, [0, 1])
    result = prepared(model, X).predict(X).persist()
    wait(result)
    client.restart_workers(list(workers_of(client)))
    assert np.array_equal(result.compute(), model.predict(X.compute()))


@pytest.mark.slow
def test_workers_need_no_clustertune(client: Any, tmp_path: Path) -> None:
    """Graphs of arrays and frames contain no class of clustertune."""
    X = data.features()
    model = Seen(str(tmp_path / "notes")).fit(None, [0, 1])
    for x in kinds(X).values():
        result = prepared(model, x).predict(x)
        assert b"clustertune" not in pickle.dumps(dask.base.collections_to_expr(result))


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of Dask, at dask-ml's scorer
def test_scores() -> None:
    """The wrapper's score is that of the model, by Dask or by its own method."""
    X = data.features()
    y = data.labels(X)
    values, truth = X.compute(), y.compute()
    for model in (
        LogisticRegression().fit(values, truth),
        make_pipeline(StandardScaler(), LinearRegression()).fit(values, truth),
        KNeighborsClassifier().fit(values, truth),
    ):
        with dask.config.set(scheduler="synchronous"):
            score = prepared(model, X).score(X, y)
        assert np.isclose(score, model.score(values, truth))


def test_a_shared_model_is_the_model_here() -> None:
    """It has the model's attributes, and is a Delayed for graphs and for pickle."""
    values = data.features().compute()
    model = KMeans(n_clusters=2, n_init=1).fit(values)
    shared = share(model)
    assert isinstance(shared, Delayed)
    assert shared.n_clusters == 2
    assert np.array_equal(shared.cluster_centers_, model.cluster_centers_)
    assert np.array_equal(shared.predict(values), model.predict(values))
    assert not hasattr(shared, "predict_proba")
    assert clone(shared).get_params() == model.get_params()
    assert type(pickle.loads(pickle.dumps(shared))) is Delayed
    assert shared.compute(scheduler="synchronous") is model


def test_a_model_that_is_not_fitted() -> None:
    """It stays unchanged until it is fitted, and so does a class."""
    X = data.features()
    for estimator in (
        ParallelPostFit(LinearRegression()),
        ParallelPostFit(make_pipeline(StandardScaler(), LinearRegression())),
        ParallelPostFit(),
        ParallelPostFit,
    ):
        handed = FitInputs(training=Rows(X=X), estimator=estimator)
        assert libraries.estimator_params(libraries.choose("predict"), handed) == {}


def test_outputs_that_the_user_has_described() -> None:
    """The output of a method is determined unless the user has described it."""
    frame = kinds(data.features())["dataframe"]
    model = LinearRegression().fit(frame.compute(), np.ones(data.ROWS))
    wrapper = ParallelPostFit(model, predict_meta=np.array([1], dtype="f4"))
    handed = FitInputs(training=Rows(X=frame), estimator=wrapper)
    found = libraries.estimator_params(libraries.choose("predict"), handed)
    assert set(found) == {"estimator"}
    handed = FitInputs(training=Rows(X=frame), estimator=ParallelPostFit(model))
    found = libraries.estimator_params(libraries.choose("predict"), handed)
    assert set(found) == {"estimator", "predict_meta"}
