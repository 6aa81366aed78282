"""Memory leaks with each fit. Restarted one at a time, workers keep their data."""

from __future__ import annotations

from typing import Any

import clustertune
from tests.acceptance.helpers import assert_intact, load, pids, process_memory
from tests.processes import leak, until

LIMIT = 2**30


def train(client: Any, X: Any, y: Any) -> bytes:
    """The model to the last bit: the sums over these features and labels are exact."""
    from xgboost import dask as dxgb

    parameters = {"base_score": 0.5, "tree_method": "hist", "max_depth": 3}
    matrix = dxgb.DaskQuantileDMatrix(client, X[:, 1:], y)
    found = dxgb.train(client, parameters, matrix, num_boost_round=1)
    return bytes(found["booster"].save_raw("json"))


def rows_by_worker(report: clustertune.Report) -> dict[Any, int]:
    (layout,) = report.after
    return {share.worker: share.rows for share in layout.workers}


def leaking_workers(client: Any) -> int:
    found = clustertune.check(client).found
    return sum(len(f.subject) for f in found if f.check == "unmanaged_memory")


def test_rolling_restart(local_cluster: Any) -> None:
    _, client = local_cluster(2, memory_limit=LIMIT)
    X, y = prepared = clustertune.prepare(client, *load(client), estimator="xgboost")
    model, total = train(client, X, y), float(X.sum().compute())
    client.run(leak, nbytes=int(0.65 * LIMIT))
    until(lambda: min(process_memory(client)) > 0.6 * LIMIT)
    assert leaking_workers(client) == 2
    before = pids(client)

    report = clustertune.restart_workers(client, X, y)

    assert report.status == "done", str(report)
    assert [step.lost for step in report.steps] == [0, 0]
    assert not before & pids(client)
    until(lambda: max(process_memory(client)) < 0.5 * LIMIT)
    assert leaking_workers(client) == 0
    assert float(X.sum().compute()) == total
    assert_intact(X, y)
    # each worker has its partitions again
    assert rows_by_worker(prepared.verify()) == rows_by_worker(prepared.report)
    assert train(client, X, y) == model
