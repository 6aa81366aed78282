"""scikit-learn on workers: the same models as without, and nothing is left behind."""

from __future__ import annotations

import logging
from typing import Any

import dask.array as da
import numpy as np
import pytest
from dask.sizeof import sizeof
from distributed.utils_test import gen_cluster
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

from clustertune.errors import CapacityError, NoWorkersError
from clustertune.training import joblib_backend
from tests.processes import until


def forest() -> Any:
    return RandomForestClassifier(3, random_state=0, n_jobs=-1)


def cross_validation(X: Any, y: Any) -> Any:
    return cross_val_score(DecisionTreeClassifier(random_state=0), X, y, n_jobs=-1)


def search(X: Any, y: Any) -> Any:
    model = make_pipeline(StandardScaler(), forest())
    grid = {"randomforestclassifier__max_depth": [3, 6]}
    return GridSearchCV(model, grid, cv=2).fit(X, y).cv_results_["mean_test_score"]


def outputs(X: Any, y: Any) -> Any:
    return MultiOutputRegressor(Ridge(), n_jobs=-1).fit(X, X[:, 2:4]).predict(X)


def ensemble(X: Any, y: Any) -> Any:
    return forest().fit(X, y).predict_proba(X)


def state(client: Any) -> Any:
    """Tasks, policies of the memory manager, plugins; on the scheduler."""

    def read(dask_scheduler: Any) -> Any:
        policies = dask_scheduler.extensions["amm"].policies
        names = sorted(type(p).__name__ for p in policies)
        return list(dask_scheduler.tasks), names, sorted(dask_scheduler.plugins)

    return client.run_on_scheduler(read)


def pools() -> list[int]:
    import scipy.linalg
    import threadpoolctl

    assert scipy.linalg
    info = threadpoolctl.threadpool_info()
    return [pool["num_threads"] for pool in info if pool["user_api"] == "blas"]


@pytest.mark.slow
def test_the_same_models_as_without_dask(
    local_cluster: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """Data is sent once; copies, pools and policies are put back, after errors too."""
    X, y = load_digits(return_X_y=True)
    X, y = X[:300].astype(np.float32), y[:300]
    _, client = local_cluster(2)
    before, threads = state(client), client.run(pools)
    sent: list[int] = []
    scatter = client.scatter

    def counted(data: Any, **options: Any) -> Any:
        sent.append(sizeof(data))
        return scatter(data, **options)

    monkeypatch.setattr(client, "scatter", counted)
    with (
        caplog.at_level(logging.WARNING, "clustertune"),
        joblib_backend(client, X, y, n_workers=2, inner_threads=2) as backend,
    ):
        assert backend.nbytes == X.nbytes + y.nbytes
        assert "joblib.parallel_config" in caplog.text
        assert {len(holders) for holders in client.who_has().values()} == {2}
        found = {cross_validation: cross_validation(X, y)}
        assert max(sent[2:], default=0) < X.nbytes  # after X and y themselves
        found |= {work: work(X, y) for work in (search, outputs, ensemble)}
        assert {n for each in client.run(pools).values() for n in each} == {2}
        assert state(client)[1] == ["Sparing"]
    until(lambda: state(client) == before)
    assert client.run(pools) == threads
    for work, result in found.items():
        assert np.allclose(result, work(X, y), rtol=1e-4, atol=1e-4), work

    with pytest.raises(ZeroDivisionError), joblib_backend(client, X):
        1 / 0  # noqa: B018
    until(lambda: state(client) == before)
    big = np.empty(10**9)  # of which no page is ever touched
    with pytest.raises(CapacityError, match="a copy of the data"):
        joblib_backend(client, big).__enter__()
    with pytest.raises(TypeError, match=r"arrays\[1\] is a Array: .* compute\(\)"):
        joblib_backend(client, X, da.ones(3)).__enter__()
    with pytest.raises(NoWorkersError, match=r"n_workers=3, but within 0\.1 s only 2"):
        joblib_backend(client, X, n_workers=3, timeout=0.1).__enter__()
    assert state(client) == before


@gen_cluster(client=True)
async def test_an_asynchronous_client_is_refused(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    with pytest.raises(TypeError, match=r"scikit-learn cannot await"):
        joblib_backend(c, np.ones(3)).__enter__()
