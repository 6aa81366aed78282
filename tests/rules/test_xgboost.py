"""XGBoost: fits that fail with unprepared data and work with prepared data."""

from __future__ import annotations

from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xgboost as xgb
import xgboost.dask as dxgb
from distributed import get_worker

import clustertune
from clustertune.errors import AlignmentError
from tests.rules.placing import cut, gain, placed, ranking

pytestmark = pytest.mark.slow

OPTIONS: dict[str, Any] = {"n_estimators": 20, "max_depth": 4}
A, B = 0, 1  # workers


def fitted(model: Any, client: Any, p: Any) -> Any:
    """Return the estimator, fitted with all prepared arguments."""
    model.client = client
    return model.set_params(**p.estimator_params).fit(p.X, p.y, **p.fit_kwargs)


def predicted(model: Any, X: Any) -> Any:
    """Return predictions of rows in this process."""
    return model.get_booster().inplace_predict(X)


def difference(model: Any, other: Any, X: Any) -> float:
    return float(np.abs(predicted(model, X) - predicted(other, X)).mean())


def test_companions_with_other_partitions(client: Any) -> None:
    """Weights and margins with other partitions are refused; prepared they work."""
    X = np.random.default_rng(1).random((900, 5))
    y, w, margin = X[:, 0], 1 - X[:, 1], X[:, 2]
    dX, dy = (placed(client, cut(x, 300, 300, 300), (A, A, A)) for x in (X, y))
    dw = placed(client, cut(w, 500, 400), (B, A))
    dm = placed(client, cut(margin, 100, 800), (B, B))
    V = [placed(client, cut(x, 200, 700), (B, B)) for x in (X, y, margin)]
    naive = dxgb.DaskXGBRegressor(**OPTIONS)
    naive.client = client
    with pytest.raises(AssertionError):
        naive.fit(dX, dy, sample_weight=dw)

    model = dxgb.DaskXGBRegressor(**OPTIONS)
    evals = [(V[0], V[1], {"base_margin": V[2]})] * 2
    p = clustertune.prepare(
        client,
        dX,
        dy,
        sample_weight=dw,
        base_margin=dm,
        eval_set=evals,
        estimator=model,
    )
    fitted(model, client, p)
    alone = xgb.XGBRegressor(**OPTIONS)
    alone.fit(
        X, y, sample_weight=w, base_margin=margin,
        eval_set=[(X, y)], base_margin_eval_set=[margin], verbose=False,
    )  # fmt: skip
    assert difference(model, alone, X) < 0.02
    ours, theirs = model.evals_result(), alone.evals_result()
    assert set(ours) == {"validation_0", "validation_1"}
    last = theirs["validation_0"]["rmse"][-1]
    for result in ours.values():
        assert abs(result["rmse"][-1] - last) < 0.01


def test_groups_are_whole(client: Any) -> None:
    """Unprepared, XGBoost ranks the parts of a group on two workers separately.

    Prepared, it takes the partitions unchanged, with whole groups.
    """
    n_groups, size = 60, 20
    X, y, qid = ranking(n_groups, size)
    frame = pd.DataFrame(X, columns=list("abcd"))
    columns = (frame, pd.Series(y), pd.Series(qid))
    rows = (310, 290, 600)  # the first ends within a group
    dX, dy, dq = (placed(client, cut(x, *rows), (A, B, A)) for x in columns)

    def groups(X: Any, y: Any, qid: Any) -> list[int]:
        """Return the sizes of the groups on all workers."""

        def objective(score: Any, matrix: Any) -> tuple[Any, Any]:
            edges = matrix.get_uint_info("group_ptr").astype("i8")
            event = get_worker().address, np.diff(edges).tolist()
            get_worker().log_event("groups", event)
            return score - matrix.get_label(), np.ones(len(score))

        before = len(client.get_events("groups"))
        matrix = dxgb.DaskQuantileDMatrix(client, X, y, qid=qid)
        dxgb.train(client, {}, matrix, 1, obj=objective)
        seen = dict(event for _, event in client.get_events("groups")[before:])
        assert len(seen) == 2
        return [n for sizes in seen.values() for n in sizes]

    assert len(groups(dX, dy, dq)) == n_groups + 1

    model = dxgb.DaskXGBRanker(allow_group_split=True, **OPTIONS)
    p = clustertune.prepare(client, dX, dy, qid=dq, estimator=model)
    assert groups(p.X, p.y, p.qid) == [size] * n_groups
    alone = xgb.XGBRanker(**OPTIONS).fit(frame, y, qid=qid)
    expected = gain(predicted(alone, X), y, n_groups)
    found = predicted(fitted(model, client, p), X)
    assert gain(found, y, n_groups) > expected - 0.01


def test_the_ranker_sorts_rows_itself(client: Any) -> None:
    """Unsorted groups are only placed, because the ranker sorts them in its fit."""
    n_groups, size = 40, 10
    X, y, qid = ranking(n_groups, size)
    mixed = np.random.default_rng(8).permutation(len(X))
    X, y, qid = X[mixed], y[mixed], qid[mixed]
    whole = pd.DataFrame(X, columns=list("abcd")).assign(y=y, qid=qid)
    frame = dd.from_pandas(whole, npartitions=4)
    given = frame[list("abcd")], frame["y"], frame["qid"]
    model = dxgb.DaskXGBRanker(**OPTIONS)
    p = clustertune.prepare(client, *given[:2], qid=given[2], estimator=model)
    assert "query_groups" not in {f.check for f in p.report.found}
    assert p.estimator_params == {}
    assert np.array_equal(p.X.compute().to_numpy(), X)
    by = np.argsort(qid, kind="stable")
    alone = xgb.XGBRanker(**OPTIONS).fit(X[by], y[by], qid=qid[by])
    expected = gain(predicted(alone, X[by]), y[by], n_groups)
    found = predicted(fitted(model, client, p), X[by])
    assert gain(found, y[by], n_groups) > expected - 0.01
    split = dxgb.DaskXGBRanker(allow_group_split=True, **OPTIONS)
    with pytest.raises(AlignmentError, match="come back"):
        clustertune.prepare(client, *given[:2], qid=given[2], estimator=split)
