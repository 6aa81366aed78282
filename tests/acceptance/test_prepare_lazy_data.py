"""Lazy collections whose partitions do not match are loaded, cut and placed."""

from __future__ import annotations

from typing import Any

import numpy as np

import clustertune
from tests.acceptance.helpers import FEATURES, LABELS, ROWS, holders, lazy


def test_prepare_lazy_data(local_cluster: Any) -> None:
    _, client = local_cluster(2)
    X, y = lazy(rows_of_X=9000, rows_of_y=7000)
    assert X.chunks[0] == (9000, 9000, 6000)
    assert y.chunks[0] == (7000, 7000, 7000, 3000)

    X, y = clustertune.prepare(client, X, y, estimator="xgboost")

    # the same boundaries, and each pair of partitions on one worker
    assert X.chunks[0] == y.chunks[0]
    assert holders(client, X) == holders(client, y)
    # each of the two workers has half of the rows
    rows: dict[str, int] = {}
    for (worker,), n in zip(holders(client, X), X.chunks[0]):
        rows[worker] = rows.get(worker, 0) + n
    assert sorted(rows.values()) == [ROWS // 2] * 2
    # rows keep their order and their values
    np.testing.assert_array_equal(X.compute(), FEATURES)
    np.testing.assert_array_equal(y.compute(), LABELS)
