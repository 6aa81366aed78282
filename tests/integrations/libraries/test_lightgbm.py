"""LightGBM's Dask estimators accept the arguments of its workloads."""

from __future__ import annotations

from typing import Any

import dask.array as da
import dask.dataframe as dd
import lightgbm as lgb
import numpy as np
import pytest

import clustertune
from clustertune.errors import AlignmentError
from clustertune.integrations import libraries
from clustertune.integrations.libraries import FitInputs, Rows
from clustertune.integrations.libraries.boosting import Checkpoint
from clustertune.integrations.libraries.lightgbm import Boosting
from clustertune.integrations.libraries.workload import assign
from clustertune.operations.checkpoints import Callbacks
from clustertune.remote.worker.rounds import Reports
from tests.integrations.libraries import data
from tests.integrations.libraries.data import spread

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Parameter n_jobs will be ignored:UserWarning"),
]

OPTIONS = {"n_estimators": 3, "min_child_samples": 1, "verbose": -1}


def fitted(client: Any, kind: Any, handed: FitInputs) -> Any:
    """Return an estimator fitted with the arguments of its workload."""
    model = kind(client=client, **OPTIONS)
    profile = libraries.choose(model)
    rows = handed.training
    return model.fit(rows.X, rows.y, **libraries.fit_kwargs(profile, handed))


def test_weights_count(client: Any) -> None:
    """Rows without weight have no effect; from equal rows nothing is learned."""
    X = data.features()
    y = data.labels(X)
    X, y, w = clustertune.prepare(client, X, y, sample_weight=1 - y)
    kind = lgb.DaskLGBMClassifier
    assert spread(fitted(client, kind, FitInputs(training=Rows(X=X, y=y))), X) > 0.1
    weighted = FitInputs(training=Rows(X=X, y=y, sample_weight=w))
    assert spread(fitted(client, kind, weighted), X) < 1e-3


def test_missing_labels(client: Any) -> None:
    """Its regressor trains on such frames without an error; prepare refuses them."""
    X = data.features()
    y = dd.from_dask_array(da.where(X[:, 1] > 0.9, np.nan, data.labels(X)), "y")
    X = dd.from_dask_array(X, list("abcde"), index=y.index)
    model = lgb.DaskLGBMRegressor(client=client, **OPTIONS)
    lacking = int(y.isna().sum().compute())
    with pytest.raises(ValueError, match=f"y has {lacking} missing labels, on which a"):
        clustertune.prepare(client, X, y, estimator=model)
    assert np.isfinite(model.fit(X, y).predict(X).compute()).all()


@pytest.mark.parametrize("kind", ["f8", "i8"])
def test_numbers_are_no_classes(client: Any, kind: str) -> None:
    """The workload's name does not describe y; a classifier refuses such labels."""
    X = data.features()
    y = da.arange(data.ROWS, chunks=data.CHUNK, dtype=kind)
    new, labels = clustertune.prepare(client, X, y, estimator="lightgbm")
    model = lgb.DaskLGBMRegressor(client=client, **OPTIONS)
    assert spread(model.fit(new, labels), new) > 0
    estimator = lgb.DaskLGBMClassifier
    with pytest.raises(AlignmentError, match="has 1 row, too few for 2 workers"):
        clustertune.prepare(client, X, y, estimator=estimator)


@pytest.mark.parametrize("named", [True, False])
def test_eval_sets(client: Any, named: bool) -> None:
    """Every eval set is evaluated with its own weights and scores, without warnings."""
    X, V = data.features(), data.features(4)
    p = clustertune.prepare(
        client, X, data.labels(X), eval_set=[(V, data.labels(V)), (V, data.labels(V))]
    )
    (V, v), (W, w) = p.eval_set
    plain = (Rows(X=V, y=v), Rows(X=W, y=w))
    rich = tuple(Rows(X=V, y=v, sample_weight=1 - v, init_score=v) for _ in "ab")
    results = []
    for sets in (plain, rich):
        handed = FitInputs(
            training=Rows(X=p.X, y=p.y),
            eval_sets=sets,
            estimator=None if named else lgb.DaskLGBMRegressor,
        )
        model = fitted(client, lgb.DaskLGBMRegressor, handed)
        results.append(model.evals_result_)
    assert all(len(r) == 2 for r in results)
    assert all(len(x["l2"]) == 3 for r in results for x in r.values())
    assert results[0] != results[1]


def test_weights_of_some_eval_sets_only() -> None:
    """LightGBM takes weights of all eval sets or of none, and would fail in the fit."""
    sets = (Rows(X="V", y="v", sample_weight="w"), Rows(X="W", y="w"))
    handed = FitInputs(training=Rows(X="X", y="y"), eval_sets=sets)
    with pytest.raises(ValueError, match=r"sample_weight .*eval_set\[0\] .*\[1\]"):
        libraries.fit_kwargs(libraries.choose("lightgbm"), handed)


def test_the_training_data_as_eval_set(client: Any) -> None:
    """LightGBM recognizes it and trains; early stopping is refused."""
    X = data.features()
    y = data.labels(X)
    model = lgb.DaskLGBMRegressor(client=client, **OPTIONS)
    p = clustertune.prepare(client, X, y, eval_set=[(X, y)], estimator=model)
    assert p.eval_set[0][0] is p.X
    assert "eval_sets" in {f.check for f in p.report.left}
    model.fit(p.X, p.y, **p.fit_kwargs)
    assert [len(x["l2"]) for x in model.evals_result_.values()] == [3]
    model.set_params(early_stopping_round=2)
    with pytest.raises(ValueError, match=r"is the training data, .* leave it out"):
        clustertune.prepare(client, X, y, eval_set=[(X, y)], estimator=model)


def test_rounds_that_were_set_are_continued(client: Any) -> None:
    """A continued training has as many trees as ``set_params`` demands."""
    X = data.features()
    model = lgb.DaskLGBMRegressor(client=client, **OPTIONS)
    X, y = clustertune.prepare(client, X, data.labels(X), estimator=model)
    first = model.fit(X, y).booster_.model_to_string().encode()
    checkpoint = Checkpoint(rounds=3, model=first, history=[[]] * 3)
    model = lgb.DaskLGBMRegressor(client=client, **OPTIONS)
    model.set_params(n_estimators=5)
    callbacks = Callbacks(client, Boosting(), Reports("name", 5, None))
    attempt = Boosting().attempt(model, {}, callbacks, checkpoint)
    former = assign(model, attempt.attributes)
    model.fit(X, y, **attempt.fit_kwargs)
    assign(model, former)
    assert model.booster_.current_iteration() == 5
    assert model.get_params()["n_estimators"] == 5


def test_sizes_of_groups(client: Any) -> None:
    """LightGBM's own argument is accepted, and returned for the new partitions."""
    X, V = data.features(), data.features(4)
    sizes = np.tile([7, 13, 40], data.ROWS // 60)
    group = da.from_array(sizes, chunks=17)
    model = lgb.DaskLGBMRanker(client=client, **OPTIONS)
    X2, y, new = p = clustertune.prepare(
        client,
        X,
        data.labels(X),
        group=group,
        eval_set=[(V, data.labels(V), {"group": group})],
        estimator=model,
    )
    assert p.group is new
    assert p.fit_kwargs["group"] is new
    np.testing.assert_array_equal(new.compute(), sizes)
    np.testing.assert_array_equal(X2.compute(), X.compute())
    rows = [int(part.sum().compute()) for part in new.partitions]
    assert rows == list(X2.chunks[0])
    assert spread(model.fit(X2, y, **p.fit_kwargs), X2) > 0.1
    dry = clustertune.prepare(
        client, X, data.labels(X), group=group, estimator=model, dry_run=True
    )
    assert list(dry)[2] is group
    with pytest.raises(AlignmentError, match="cannot be paired"):
        clustertune.prepare(
            client, X, data.labels(X), group=group[:-1], estimator=model
        )
