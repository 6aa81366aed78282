"""Training libraries use the rows on the workers on which prepare placed them."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pytest
from distributed import get_worker, wait

import clustertune
from tests.processes import stop_stealing, workers_of

ROWS, PARTITIONS = 9000, 9


def rows_seen(client: Any) -> dict[str, set[int]]:
    """Return by worker the numbers of rows that its objective received."""
    seen: dict[str, set[int]] = {}
    for _, event in client.get_events("rows"):
        seen.setdefault(event["worker"], set()).add(event["rows"])
    return seen


def data(kind: str) -> tuple[Any, Any]:
    X = da.random.default_rng(3).random((ROWS, 5), chunks=(ROWS // PARTITIONS, 5))
    y = (X[:, 0] > 0.5).astype("f4")
    if kind == "array":
        return X, y
    frame = dd.from_dask_array(X, columns=list("abcde"))
    return frame, dd.from_dask_array(y, columns="y")


def received(client: Any) -> int:
    counts = client.run(
        lambda dask_worker: sum(
            log["total"] for log in dask_worker.transfer_incoming_log
        )
    )
    return sum(counts.values())


@pytest.fixture
def uneven(local_cluster: Any, request: Any) -> Any:
    _, client = local_cluster(3)
    client.run_on_scheduler(stop_stealing)
    first = next(iter(workers_of(client)))
    X, y = data(request.param)
    X, y = client.persist([X, y], workers=[first], allow_other_workers=True)
    wait([X, y])
    return client, X, y


@pytest.mark.slow
@pytest.mark.parametrize("uneven", ["array", "dataframe"], indirect=True)
def test_xgboost_trains_where_the_rows_are(uneven: Any) -> None:
    """XGBoost trains on a third of the rows on each of three workers.

    Almost nothing is transferred during the fit.
    """
    import xgboost.dask as dxgb

    def objective(score: Any, matrix: Any) -> tuple[Any, Any]:
        get_worker().log_event(
            "rows", {"worker": get_worker().address, "rows": int(matrix.num_row())}
        )
        p = 1 / (1 + np.exp(-score))
        return p - matrix.get_label(), p * (1 - p)

    client, X, y = uneven
    X, y = clustertune.prepare(client, X, y, estimator="xgboost")
    before = received(client)
    matrix = dxgb.DaskQuantileDMatrix(client, X, y)
    dxgb.train(client, {"tree_method": "hist"}, matrix, 3, obj=objective)
    seen = rows_seen(client)
    assert len(seen) == 3
    assert set().union(*seen.values()) == {ROWS // 3}
    assert received(client) - before < 10_000


@pytest.mark.slow
@pytest.mark.parametrize("uneven", ["array", "dataframe"], indirect=True)
@pytest.mark.filterwarnings("ignore:Parameter n_jobs will be ignored:UserWarning")
def test_lightgbm_trains_where_the_rows_are(uneven: Any) -> None:
    """LightGBM trains on a third of the rows on each of three workers.

    Almost nothing is transferred during the fit.
    """
    import lightgbm as lgb

    def objective(label: Any, score: Any) -> tuple[Any, Any]:
        get_worker().log_event(
            "rows", {"worker": get_worker().address, "rows": len(label)}
        )
        p = 1 / (1 + np.exp(-score))
        return p - label, p * (1 - p)

    client, X, y = uneven
    X, y = clustertune.prepare(client, X, y)
    before = received(client)
    model = lgb.DaskLGBMRegressor(
        client=client, objective=objective, n_estimators=3, verbose=-1
    )
    model.fit(X, y)
    seen = rows_seen(client)
    assert len(seen) == 3
    assert set().union(*seen.values()) == {ROWS // 3}
    assert received(client) - before < 10_000


WRONG = (1500, 1000, 500, 1000)
"""Rows of the partitions of y, while those of X have 1,000 each."""


@pytest.fixture
def mispaired(local_cluster: Any) -> Any:
    """Return X and y with equal numbers of partitions but different boundaries.

    Each worker has equally many rows of both, so no library raises an error.
    """
    _, client = local_cluster(2)
    where = list(workers_of(client))
    values = np.random.default_rng(5).random((4000, 5))
    labels = (values[:, 0] > 0.5).astype("f4")
    X = da.from_array(values, chunks=(1000, 5))
    y = da.from_array(labels, chunks=(WRONG,))
    with dask.annotate(workers=lambda key: where[key[1] % 2]):
        X, y = client.persist([X, y])
    wait([X, y])
    return client, X, y, values, labels


def error(prediction: Any, labels: Any) -> float:
    """Return the mean distance between predicted probability and label."""
    return float(np.abs(np.asarray(prediction) - labels).mean())


@pytest.mark.slow
def test_xgboost_learns_the_right_labels(mispaired: Any) -> None:
    """Unprepared, XGBoost with ``approx`` trains on wrong labels without an error.

    After prepare its model is as good as in one process.
    """
    import xgboost as xgb
    import xgboost.dask as dxgb

    client, X, y, values, labels = mispaired
    options = {"tree_method": "approx", "objective": "binary:logistic"}

    def wrong(X: Any, y: Any) -> float:
        model = dxgb.train(client, options, dxgb.DaskDMatrix(client, X, y), 10)
        return error(model["booster"].predict(xgb.DMatrix(values)), labels)

    alone = xgb.train(options, xgb.DMatrix(values, labels), 10)
    expected = error(alone.predict(xgb.DMatrix(values)), labels)
    assert wrong(X, y) > 1.5 * expected
    assert wrong(*clustertune.prepare(client, X, y)) < 1.1 * expected


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Parameter n_jobs will be ignored:UserWarning")
def test_lightgbm_learns_the_right_labels(mispaired: Any) -> None:
    """Unprepared, LightGBM trains on wrong labels without an error."""
    import lightgbm as lgb

    client, X, y, values, labels = mispaired

    def wrong(X: Any, y: Any) -> float:
        model = lgb.DaskLGBMRegressor(client=client, n_estimators=10, verbose=-1)
        model.fit(X, y)
        return error(model.to_local().predict(values), labels)

    alone = lgb.LGBMRegressor(n_estimators=10, verbose=-1).fit(values, labels)
    expected = error(alone.predict(values), labels)
    assert wrong(X, y) > 1.5 * expected
    assert wrong(*clustertune.prepare(client, X, y)) < 1.1 * expected
