"""XGBoost's Dask estimators accept the arguments of its workloads."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
import xgboost.dask as dxgb

import clustertune
from clustertune.integrations import libraries
from clustertune.integrations.libraries import FitInputs, Rows
from tests.integrations.libraries import data
from tests.integrations.libraries.data import spread

pytestmark = pytest.mark.slow

ESTIMATORS = [
    (dxgb.DaskXGBRegressor, "approx"),
    (dxgb.DaskXGBClassifier, "hist"),
    (dxgb.DaskXGBRFRegressor, "hist"),
]


def fitted(client: Any, model: Any, handed: FitInputs) -> Any:
    """Return the estimator with parameters and arguments of its workload, fitted."""
    profile = libraries.choose(model)
    model.set_params(**libraries.estimator_params(profile, handed))
    model.client = client
    rows = handed.training
    kwargs = libraries.fit_kwargs(profile, handed)
    return model.fit(rows.X, rows.y, **kwargs)


@pytest.mark.parametrize(("kind", "method"), ESTIMATORS)
def test_weights_count(client: Any, kind: Any, method: str) -> None:
    """Rows without weight have no effect; from equal rows nothing is learned."""
    X = data.features()
    X, y, w = clustertune.prepare(
        client, X, data.labels(X), sample_weight=1 - data.labels(X), estimator="xgboost"
    )
    model = kind(n_estimators=3, tree_method=method)
    assert spread(fitted(client, model, FitInputs(training=Rows(X=X, y=y))), X) > 0.3
    weighted = FitInputs(training=Rows(X=X, y=y, sample_weight=w), estimator=model)
    model = kind(n_estimators=3, tree_method=method)
    assert spread(fitted(client, model, weighted), X) < 1e-3


def test_eval_sets(client: Any) -> None:
    """Every eval set is evaluated with its own weights and margins."""
    X, V = data.features(), data.features(4)
    p = clustertune.prepare(
        client,
        X,
        data.labels(X),
        eval_set=[(V, data.labels(V)), (X, data.labels(X))],
        estimator="xgboost",
    )
    (V, v), (E, e) = p.eval_set
    # a weight and a margin that leave one row in two; the other set has neither
    rows = Rows(X=V, y=v, sample_weight=1 - v, base_margin=v * 0)
    model = dxgb.DaskXGBRegressor(n_estimators=3)
    handed = FitInputs(
        training=Rows(X=p.X, y=p.y), eval_sets=(rows, Rows(X=E, y=e)), estimator=model
    )
    fitted(client, model, handed)
    result = model.evals_result()
    assert set(result) == {"validation_0", "validation_1"}
    assert all(len(r["rmse"]) == 3 for r in result.values())
    plain = dxgb.DaskXGBRegressor(n_estimators=3)
    sets = (Rows(X=V, y=v), Rows(X=E, y=e))
    handed = FitInputs(training=handed.training, eval_sets=sets, estimator=plain)
    fitted(client, plain, handed)
    other = plain.evals_result()
    assert other["validation_0"] != result["validation_0"]
    assert other["validation_1"] == result["validation_1"]


def test_groups(client: Any) -> None:
    """The ranker trains on the partitions unchanged, also of arrays."""
    X, V = data.features(), data.features(4)
    X, y, qid = clustertune.prepare(
        client, X, data.labels(X), qid=data.groups(), estimator="xgboost_rank"
    )
    rows = Rows(X=X, y=y, qid=qid)
    model = dxgb.DaskXGBRanker(
        n_estimators=3, tree_method="approx", allow_group_split=True
    )
    model.client = client
    evals = (Rows(X=V, y=data.labels(V), qid=data.groups()),)
    handed = FitInputs(training=rows, eval_sets=evals, estimator=model)
    fitted(client, model, handed)
    assert spread(model, X) > 0.3
    assert next(iter(model.evals_result()["validation_0"])).startswith("ndcg")


def test_refused_estimators(client: Any) -> None:
    """Weights with groups are refused because XGBoost does not take them."""
    X = data.features()
    y = data.labels(X)
    with pytest.raises(NotImplementedError, match="per-group weight"):
        dxgb.DaskDMatrix(client, X, y, weight=y, qid=data.groups())
    assert "sample_weight" not in (libraries.choose("xgboost_rank").takes or ())


@pytest.mark.parametrize("rows", [1, 3])
def test_fewer_rows_than_partitions_or_workers(client: Any, rows: int) -> None:
    """As many workers train as can have a row; a finding reports those without."""
    X = data.features()[:rows]
    model = dxgb.DaskXGBRegressor(n_estimators=2)
    p = clustertune.prepare(client, X, data.labels(X), estimator=model)
    idle = [f for f in p.report.left if f.check == "empty_workers"]
    assert len(idle) == (rows < 2)
    model.client = client
    assert len(model.fit(p.X, p.y).predict(p.X).compute()) == rows


def test_the_training_data_as_eval_set(client: Any) -> None:
    """XGBoost uses one matrix for both, also with early stopping."""
    X = data.features()
    y = data.labels(X)
    model = dxgb.DaskXGBRegressor(n_estimators=3, early_stopping_rounds=2)
    p = clustertune.prepare(client, X, y, eval_set=[(X, y)], estimator=model)
    assert p.fit_kwargs["eval_set"][0][0] is p.X
    model.client = client
    model.fit(p.X, p.y, **p.fit_kwargs)
    assert len(model.evals_result_["validation_0"]["rmse"]) == 3


def test_a_random_forest(client: Any) -> None:
    """It has one round, and XGBoost refuses callbacks for it."""
    X = data.features()
    model = dxgb.DaskXGBRFRegressor(n_estimators=3)
    clustertune.fit(client, model, X, data.labels(X), max_failures=1)
    assert len(model.get_booster().get_dump()) == 3


def last_label(y_true: Any, y_score: Any) -> float:
    """A score that no mean of parts equals."""
    assert len(y_true) == len(y_score)
    return float(y_true[-1] + 10 * len(y_true))


def test_a_custom_metric_sees_all_rows_everywhere(client: Any) -> None:
    """XGBoost returns the mean of the workers' scores, so each has the same."""
    X, V = data.features(), data.features(4)[:7].rechunk(-1)
    model = dxgb.DaskXGBRegressor(n_estimators=2, eval_metric=last_label)
    labels = da.arange(7, chunks=-1)
    p = clustertune.prepare(
        client, X, data.labels(X), eval_set=[(V, labels)], estimator=model
    )
    assert not [f for f in p.report.left if f.check == "eval_sets"]
    model.client = client
    model.fit(p.X, p.y, **p.fit_kwargs)
    assert model.evals_result_["validation_0"]["last_label"] == [76.0, 76.0]


def test_bounds_of_labels(client: Any) -> None:
    """They are placed with X; an upper bound may be infinite."""
    X = data.features()
    lower = 1 + data.labels(X)
    upper = da.where(X[:, 1] > 0.5, np.inf, lower).rechunk((200,))
    X, lower, upper = p = clustertune.prepare(
        client, X, lower, upper, estimator="xgboost"
    )
    assert X.chunks[0] == lower.chunks[0] == upper.chunks[0]
    bounds = {"label_lower_bound": lower, "label_upper_bound": upper}
    assert not [f for f in p.report.left if f.check == "separated_pairs"]
    matrix = dxgb.DaskDMatrix(client, X, **bounds)
    found = dxgb.train(client, {"objective": "survival:aft"}, matrix, 2)
    assert found["booster"].num_boosted_rounds() == 2
    with pytest.raises(TypeError, match=r"y must be .*Give each collection"):
        clustertune.fit(client, dxgb.DaskXGBRegressor(), X, (lower, upper))
