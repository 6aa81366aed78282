"""Workers join, and workers leave after they have handed on their data."""

from __future__ import annotations

from typing import Any

import clustertune
from tests.acceptance.helpers import (
    PARTITIONS,
    assert_intact,
    load,
    partitions_by_worker,
)


def test_scale_up_and_down(local_cluster: Any) -> None:
    cluster, client = local_cluster(2)
    X, y = load(client)
    scattered = client.scatter(list(range(10)), hash=False)  # cannot be recomputed

    up = clustertune.scale(client, 3, X, y)

    assert up.status == "done", str(up)
    assert len(client.nthreads()) == 3
    X, y = clustertune.prepare(client, X, y, estimator="xgboost")
    assert sorted(partitions_by_worker(client, X).values()) == [PARTITIONS // 3] * 3

    names = set(cluster.worker_spec)
    planned = clustertune.scale(client, 1, X, y, dry_run=True)

    assert len(planned.steps) == 2
    assert len(client.nthreads()) == 3

    down = clustertune.scale(client, 1, X, y)

    assert down.status == "done", str(down)
    assert [step.lost for step in down.steps] == [0, 0]
    assert len(client.nthreads()) == len(cluster.worker_spec) == 1
    assert client.gather(scattered) == list(range(10))
    assert list(partitions_by_worker(client, X).values()) == [PARTITIONS]
    assert_intact(X, y)

    # a second call finds nothing to do; the next worker has a new name, since a worker
    # that is still closing keeps its own
    assert clustertune.scale(client, 1).status == "fine"
    gone = names - cluster.worker_spec.keys()
    assert clustertune.scale(client, 2).status == "done"
    assert len(client.nthreads()) == 2
    assert not gone & cluster.worker_spec.keys()
