"""``fit`` prepares uneven, mismatched data and trains on all workers."""

from __future__ import annotations

from typing import Any

import xgboost
from distributed import get_worker, wait
from xgboost import dask as dxgb

import clustertune
from tests.acceptance.helpers import FEATURES, LABELS, lazy


class LogWorker(xgboost.callback.TrainingCallback):
    """Logs which workers train."""

    def after_training(self, model: Any) -> Any:
        get_worker().log_event("trained", get_worker().address)
        return model


def test_fit(local_cluster: Any) -> None:
    _, client = local_cluster(2)
    workers = sorted(client.nthreads())
    # all rows are on one worker, and the boundaries of X and y differ
    X, y = lazy(rows_of_X=2000, rows_of_y=1500)
    X, y = client.persist([X, y], workers=workers[:1], allow_other_workers=True)
    wait([X, y])
    model = dxgb.DaskXGBClassifier(n_estimators=10, callbacks=[LogWorker()])

    clustertune.fit(client, model, X, y, workers=workers)

    trained = {address for _, address in client.get_events("trained")}
    assert trained == set(workers)
    # it has learned the labels of the right rows
    prediction = model.get_booster().inplace_predict(FEATURES) > 0.5
    assert (prediction == LABELS).mean() > 0.99
    report = model.clustertune_report_
    assert report.status == "done"
    assert [share.rows for share in report.after[0].workers] == [12_000, 12_000]
