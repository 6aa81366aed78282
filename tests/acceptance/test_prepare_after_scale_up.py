"""New workers are empty. ``prepare`` gives each worker its share of the rows."""

from __future__ import annotations

from typing import Any

import clustertune
from tests.acceptance.helpers import (
    PARTITIONS,
    assert_intact,
    holders,
    keys,
    load,
    partitions_by_worker,
)


def bytes_received(dask_worker: Any) -> int:
    return sum(log["total"] for log in dask_worker.transfer_incoming_log)


def test_prepare_after_scale_up(local_cluster: Any) -> None:
    cluster, client = local_cluster(1)
    X, y = load(client)
    (first,) = partitions_by_worker(client, X)
    cluster.scale(3)
    client.wait_for_workers(3)
    given, names = (X, y), (keys(X), keys(y))

    X, y = prepared = clustertune.prepare(client, X, y, estimator="xgboost")

    assert prepared.report.status == "done"
    assert prepared.report.after[0].imbalance == 1.0
    assert X is given[0]
    assert y is given[1]
    assert client.amm.running()
    # every worker has a third of the partitions, and each partition has one holder
    share = PARTITIONS // 3
    assert sorted(partitions_by_worker(client, X).values()) == [share] * 3
    assert all(len(workers) == 1 for workers in holders(client, X))
    # the rows of X and their labels are on the same worker
    assert holders(client, X) == holders(client, y)
    # keys keep their names; only the moved ones crossed between workers
    assert (keys(X), keys(y)) == names
    received = client.run(bytes_received)
    assert received.pop(first) == 0
    one_share = (X.nbytes + y.nbytes) // 3
    assert all(one_share <= n < 1.1 * one_share for n in received.values())

    # a second call finds nothing to do
    assert clustertune.prepare(client, X, y, estimator="xgboost").report.steps == ()
    assert_intact(X, y)
