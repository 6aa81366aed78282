"""Training libraries use the rows on the workers on which prepare placed them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import lightgbm as lgb
import numpy as np
import pandas as pd
import pytest
import xgboost as xgb
import xgboost.dask as dxgb
from distributed import Client, get_worker, wait

import clustertune
from tests.processes import local_workers, stop_stealing, workers_of
from tests.rules.placing import cut, placed

ROWS, PARTITIONS = 9000, 9
LIBRARIES = ["xgboost", "lightgbm"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Parameter n_jobs will be ignored:UserWarning"),
]


@pytest.fixture(scope="module")
def three_workers() -> Iterator[Client]:
    with local_workers(3) as client:
        client.run_on_scheduler(stop_stealing)
        yield client


def objective(topic: str) -> Any:
    """Return an objective of both libraries that logs the rows of its worker."""

    def log(rows: int) -> None:
        get_worker().log_event(topic, {"worker": get_worker().address, "rows": rows})

    def gradients(label: Any, score: Any) -> tuple[Any, Any]:
        p = 1 / (1 + np.exp(-score))
        return p - label, p * (1 - p)

    def of_xgboost(score: Any, matrix: Any) -> tuple[Any, Any]:
        log(int(matrix.num_row()))
        return gradients(matrix.get_label(), score)

    def of_lightgbm(label: Any, score: Any) -> tuple[Any, Any]:
        log(len(label))
        return gradients(label, score)

    return of_xgboost if topic.startswith("xgboost") else of_lightgbm


def rows_seen(client: Any, topic: str) -> dict[str, set[int]]:
    """Return by worker the numbers of rows that its objective received."""
    seen: dict[str, set[int]] = {}
    for _, event in client.get_events(topic):
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


@pytest.mark.parametrize(
    ("library", "kind"), [("xgboost", "dataframe"), ("lightgbm", "array")]
)
def test_libraries_train_where_the_rows_are(
    three_workers: Client, library: str, kind: str
) -> None:
    """Each of three workers trains on a third of the rows.

    Almost nothing is transferred during the fit.
    """
    client, topic = three_workers, f"{library} {kind}"
    first = next(iter(workers_of(client)))
    X, y = data(kind)
    X, y = client.persist([X, y], workers=[first], allow_other_workers=True)
    wait([X, y])
    if library == "xgboost":
        X, y = clustertune.prepare(client, X, y, estimator=library)
    else:
        X, y = clustertune.prepare(client, X, y)
    before = received(client)
    if library == "xgboost":
        matrix = dxgb.DaskQuantileDMatrix(client, X, y)
        options = {"tree_method": "hist"}
        dxgb.train(client, options, matrix, 3, obj=objective(topic))
    else:
        lgb.DaskLGBMRegressor(
            client=client, objective=objective(topic), n_estimators=3, verbose=-1
        ).fit(X, y)
    seen = rows_seen(client, topic)
    assert len(seen) == 3
    assert set().union(*seen.values()) == {ROWS // 3}
    assert received(client) - before < 10_000


WRONG = (1500, 1000, 500, 1000)
"""Rows of the partitions of y, while those of X have 1,000 each."""


def mispaired(client: Client, values: Any, labels: Any) -> tuple[Any, Any]:
    """Return X and y with equal numbers of partitions but different boundaries.

    Each worker has equally many rows of both, so no library raises an error.
    """
    where = list(workers_of(client))
    X = da.from_array(values, chunks=(1000, 5))
    y = da.from_array(labels, chunks=(WRONG,))
    with dask.annotate(workers=lambda key: where[key[1] % 2]):
        X, y = client.persist([X, y])
    wait([X, y])
    return X, y


@pytest.mark.parametrize("library", LIBRARIES)
def test_libraries_learn_the_right_labels(client: Client, library: str) -> None:
    """Unprepared, they train on wrong labels without an error: XGBoost with ``approx``.

    After prepare their models are as good as in one process.
    """
    values = np.random.default_rng(5).random((4000, 5))
    labels = (values[:, 0] > 0.5).astype("f4")
    X, y = mispaired(client, values, labels)
    options = {"tree_method": "approx", "objective": "binary:logistic"}
    trees: dict[str, Any] = {"n_estimators": 10, "verbose": -1}

    def error(prediction: Any) -> float:
        """Return the mean distance between predicted probability and label."""
        return float(np.abs(np.asarray(prediction) - labels).mean())

    def wrong(X: Any, y: Any) -> float:
        if library == "xgboost":
            model = dxgb.train(client, options, dxgb.DaskDMatrix(client, X, y), 10)
            return error(model["booster"].predict(xgb.DMatrix(values)))
        fitted = lgb.DaskLGBMRegressor(client=client, **trees).fit(X, y)
        return error(fitted.to_local().predict(values))

    if library == "xgboost":
        alone = xgb.train(options, xgb.DMatrix(values, labels), 10)
        expected = error(alone.predict(xgb.DMatrix(values)))
    else:
        expected = error(lgb.LGBMRegressor(**trees).fit(values, labels).predict(values))
    assert wrong(X, y) > 1.5 * expected
    assert wrong(*clustertune.prepare(client, X, y)) < 1.1 * expected


@pytest.mark.filterwarnings("ignore:The argument 'eval_set' is deprecated")
@pytest.mark.parametrize("kind", ["lightgbm", "xgboost hist", "xgboost approx"])
def test_the_same_categories_everywhere(client: Client, kind: str) -> None:
    """Workers use the codes of their own categories, without an error if they differ.

    Those of eval sets count too.
    """
    text = np.where(np.random.default_rng(4).integers(0, 2, 800), "yes", "no")
    y = pd.Series((text == "yes") * 1.0)
    other = np.random.default_rng(5).random(400)
    lists = (["yes", "no"], ["no", "yes"], ["other", "no", "yes"])
    partitions = [
        pd.DataFrame({"c": pd.Categorical(t, names), "n": other})
        for t, names in zip((text[:400], text[400:], text[:400]), lists)
    ]
    dX = placed(client, partitions[:2], (0, 1))
    dy = placed(client, cut(y, 400, 400), (0, 1))
    eval_set = (placed(client, partitions[2:], [1]), placed(client, [y[:400]], [1]))
    library, _, method = kind.partition(" ")

    def new() -> Any:
        if library == "lightgbm":
            return lgb.DaskLGBMRegressor(
                client=client, n_estimators=20, min_child_samples=5, learning_rate=0.5,
                verbose=-1,
            )  # fmt: skip
        made = dxgb.DaskXGBRegressor(
            n_estimators=20, max_depth=4, tree_method=method, enable_categorical=True
        )
        made.client = client
        return made

    def right(model: Any, codes: Any = partitions[0]["c"].dtype) -> float:
        """Return the fraction of correct predictions by these codes."""
        whole = pd.concat(partitions[:2]).astype({"c": codes})
        if library == "lightgbm":
            found = model.to_local().predict(whole)
        else:
            matrix = xgb.DMatrix(whole, enable_categorical=True)
            found = model.get_booster().predict(matrix)
        return float(((found > 0.5) == y.to_numpy()).mean())

    naive, model = new(), new()
    naive.fit(dX, dy)
    assert right(naive) < 0.9

    with pytest.raises(ValueError, match="different categories in 1 column: c"):
        clustertune.prepare(client, dX, dy, estimator=model)
    names = {"X": dX}
    found = clustertune.check(client, dX, dy, estimator=model, deep=True).found
    (finding,) = [f for f in found if f.check == "differing_categories"]
    exec(finding.remedy.split("`")[1], names)
    dX = names["X"]
    with pytest.raises(ValueError, match=r"partitions of eval_set\[0\].X have"):
        clustertune.prepare(client, dX, dy, eval_set=[eval_set], estimator=model)
    eval_set = eval_set[0].astype({"c": dX.dtypes["c"]}), eval_set[1]
    p = clustertune.prepare(client, dX, dy, eval_set=[eval_set], estimator=model)
    model.set_params(**p.estimator_params).fit(p.X, p.y, **p.fit_kwargs)
    assert right(model, dX.dtypes["c"]) == 1
    if library == "lightgbm":
        (result,) = model.evals_result_.values()
        assert result["l2"][-1] < 0.01
    else:
        assert model.evals_result()["validation_0"]["rmse"][-1] < 0.05
