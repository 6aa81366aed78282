"""A cluster whose memory leaks from run to run, from its first fit to its rescue."""

from __future__ import annotations

import os
from typing import Any

import dask.array as da
import numpy as np
import pytest
from dask.system import CPU_COUNT
from distributed import Client, wait

import clustertune
from clustertune.core.model import Finding, Severity
from clustertune.core.report import Report
from clustertune.core.results import LayoutSummary
from tests.processes import until
from tests.test_full import leak, processes, states

LIMIT = 2**30
ROWS, PARTITIONS = 24_000, 24
LEVELS = np.array([7, 11, 13, 31])  # distinct values of each feature
#: With fewer distinct values than bins and a fixed base score, all sums over rows are
#: exact. The model is the same to the last bit for any number of workers and threads.
PARAMETERS = {
    "objective": "reg:squarederror",
    "base_score": 0.5,
    "learning_rate": 0.5,
    "tree_method": "hist",
}


def expected() -> tuple[Any, Any]:
    """Features of a row follow from its number, and its label from both."""
    rows = np.arange(ROWS)
    features = (rows[:, None] * np.array([1, 3, 5, 7]) + rows[:, None] // 97) % LEVELS
    y = (features[:, 0] * 3 + features[:, 1] * features[:, 2] + rows % 2) % 16
    return features.astype("f4"), y.astype("f4")


def load(client: Client) -> tuple[Any, Any]:
    """All partitions on one worker, as a single reader leaves them."""
    X, y = expected()
    rows = ROWS // PARTITIONS
    lazy = [da.from_array(X, chunks=(rows, -1)), da.from_array(y, chunks=rows)]
    first = sorted(client.nthreads())[:1]
    loaded = client.persist(lazy, workers=first, allow_other_workers=True)
    wait(loaded)
    return tuple(loaded)


def fit(client: Client, X: Any, y: Any) -> bytes:
    """The model that XGBoost trains, to the last bit."""
    from xgboost import dask as dxgb

    matrix = dxgb.DaskQuantileDMatrix(client, X, y)
    found = dxgb.train(client, PARAMETERS, matrix, num_boost_round=5)
    return bytes(found["booster"].save_raw("json"))


def assert_there(X: Any, y: Any) -> None:
    """Each row is at its place, with its own label."""
    features, labels = expected()
    np.testing.assert_array_equal(X.compute(), features)
    np.testing.assert_array_equal(y.compute(), labels)


def by_worker(layout: LayoutSummary) -> dict[Any, int]:
    return {share.worker: share.rows for share in layout.workers}


def findings(client: Client, check: str, *collections: Any) -> list[Finding]:
    report = clustertune.check(client, *collections)
    return [f for f in report.found if f.check == check]


def assert_restarted(client: Client, report: Report, before: dict[str, int]) -> None:
    """Every worker is a new process; no key was lost."""
    assert report.status == "done", str(report)
    assert [step.lost for step in report.steps] == [0] * len(before)
    after = client.run(os.getpid)
    assert not set(before.values()) & set(after.values())
    assert states(client) == ["running"] * len(before)


@pytest.mark.slow
def test_from_the_first_fit_to_the_rescue(local_cluster: Any) -> None:
    _, client = local_cluster(3, memory_limit=LIMIT)
    X, y = clustertune.prepare(client, *load(client), estimator="xgboost")
    model = fit(client, X, y)

    # memory leaks; the warning comes before the first threshold of any worker
    client.run(leak, nbytes=int(0.65 * LIMIT))
    until(lambda: min(processes(client)) > 0.62 * LIMIT)
    (warning,) = findings(client, "unmanaged_memory", X, y)
    assert warning.severity is Severity.warning
    assert len(warning.subject) == 3
    (close,) = findings(client, "memory_pressure", X, y)
    assert close.severity is Severity.info
    assert "close to the spill threshold" in close.message
    assert "at 70% it writes keys to disk" in close.message

    # a rolling restart between two fits keeps all data
    before = client.run(os.getpid)
    assert_restarted(client, clustertune.restart_workers(client, X, y), before)
    until(lambda: max(processes(client)) < 0.5 * LIMIT)
    assert not findings(client, "unmanaged_memory", X, y)
    assert_there(X, y)

    # twice the workers, each with its share of the rows
    report = clustertune.scale(client, 6, X, y)
    assert report.status == "done", str(report)
    assert states(client) == ["running"] * 6
    (empty,) = findings(client, "empty_workers", X, y)
    assert len(empty.subject) == 3
    p = clustertune.prepare(client, X, y, estimator="xgboost")
    X, y = p
    (layout,) = p.verify().after
    assert [share.rows for share in layout.workers] == [ROWS // 6] * 6
    assert layout.separated == 0
    assert_there(X, y)
    assert fit(client, X, y) == model

    # the worst case: all workers are paused
    client.run(leak, nbytes=int(0.86 * LIMIT))
    until(lambda: states(client) == ["paused"] * 6)
    before = client.run(os.getpid)
    assert_restarted(client, clustertune.restart_workers(client, X, y), before)
    (after,) = p.verify().after
    assert by_worker(after) == by_worker(layout)
    assert after.separated == 0
    assert_there(X, y)
    assert fit(client, X, y) == model


@pytest.mark.slow
@pytest.mark.skipif(CPU_COUNT < 2, reason="one CPU needs no second thread")
def test_threads_below_cpus(local_cluster: Any) -> None:
    """The fix of the finding gives the next fit all CPUs, and keeps the data."""
    _, client = local_cluster(1, memory_limit=LIMIT)
    X, y = clustertune.prepare(client, *load(client), estimator="xgboost")
    model = fit(client, X, y)
    (finding,) = findings(client, "thread_count", X, y)
    assert "fewer threads than usable CPUs" in finding.message
    assert "resize" in finding.remedy
    before = client.run(os.getpid)
    report = clustertune.resize_workers(client, X, y, nthreads=CPU_COUNT)
    assert_restarted(client, report, before)
    assert list(client.nthreads().values()) == [CPU_COUNT]
    assert not findings(client, "thread_count", X, y)
    assert_there(X, y)
    assert fit(client, X, y) == model
