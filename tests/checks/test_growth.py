"""Leaks of fits that follow without a gap, with real processes."""

from __future__ import annotations

import builtins
from time import time
from typing import Any

import dask
import dask.array as da
import lightgbm
import pytest
import xgboost
from distributed import wait
from xgboost import dask as dxgb

import clustertune
from clustertune.core.model import Finding, Severity
from tests.processes import until, workers_of

MIB = 2**20
LEAKED = 60 * MIB  # bytes that each worker keeps with each fit
LIMIT = 1024 * MIB
THRESHOLDS = {"spill": 0.7, "pause": 0.8, "terminate": 0.95}  # Dask's defaults


def leak() -> None:
    """Keep memory that is no data, and touch all of it."""
    kept = vars(builtins).setdefault("leaked", [])
    kept.append(b"x" * LEAKED)


class Leaking(xgboost.callback.TrainingCallback):
    """Leaks at the end of each worker's training."""

    def after_training(self, model: Any) -> Any:
        leak()
        return model


def data(client: Any, n_workers: int = 2) -> tuple[da.Array, da.Array]:
    """Return data of which each of the first workers has as many partitions."""
    where = list(workers_of(client))
    random = da.random.default_rng(0)
    X = random.random((40_000, 20), chunks=(10_000, 20))
    y = (X[:, 0] > 0.5).astype("i4")
    with dask.annotate(workers=lambda key: where[key[1] % n_workers]):
        X, y = client.persist([X, y])
    wait([X, y])
    return X, y


def fit(client: Any, X: da.Array, y: da.Array, *callbacks: Any) -> None:
    matrix = dxgb.DaskQuantileDMatrix(client, X, y)
    dxgb.train(
        client,
        {"objective": "binary:logistic", "nthread": 1},
        matrix,
        num_boost_round=10,
        callbacks=callbacks,
    )


def growth(client: Any) -> Finding | None:
    found = clustertune.check(client).found
    return next((f for f in found if f.check == "memory_growth"), None)


def last_sample(dask_scheduler: Any) -> float:
    """Return when the last worker measured the memory of its last heartbeat."""
    workers = dask_scheduler.workers.values()
    return min(ws.metrics["time"] + ws.time_delay for ws in workers)


def wait_for_heartbeats(client: Any) -> None:
    """Wait until each worker has sent a heartbeat; a run takes about a second."""
    now = time()
    until(lambda: client.run_on_scheduler(last_sample) > now + 0.1)


def kept_runs(dask_scheduler: Any) -> list[dict[str, Any]]:
    return list(dask_scheduler.plugins["clustertune"].runs.kept)


def least_managed(client: Any) -> int:
    """Return the bytes of data on the worker with the least."""
    found: int = client.run_on_scheduler(
        lambda dask_scheduler: min(
            ws.memory.managed for ws in dask_scheduler.workers.values()
        )
    )
    return found


def assert_leak(client: Any) -> None:
    found = growth(client)
    assert found is not None
    assert found.severity is Severity.warning, found
    assert set(found.subject) <= {0, 1}
    step = found.evidence["bytes_per_run"]
    assert isinstance(step, int)
    assert 0.75 * LEAKED <= step <= 1.5 * LEAKED
    left = [found.evidence[f"runs_until_{name}"] for name in THRESHOLDS]
    assert left == sorted(left)
    # the process has reached the threshold after these runs of growth
    last = client.run_on_scheduler(kept_runs)[-1]
    process = min(unmanaged for _, unmanaged in last["floors"]) + least_managed(client)
    for runs, fraction in zip(left, THRESHOLDS.values(), strict=True):
        assert runs * step <= fraction * LIMIT - process + step
    assert "clustertune.restart_workers(client, workers=[" in found.remedy


@pytest.mark.parametrize("n_workers", [2, 1])
def test_three_fits_in_a_row(local_cluster: Any, n_workers: int) -> None:
    """Without a gap, the end of the training tasks ends a run.

    If the data is on one worker, Dask fuses the last task of XGBoost with others.
    """
    _, client = local_cluster(2, memory_limit=LIMIT)
    X, y = data(client, n_workers)
    clustertune.check(client)
    for _ in range(3):
        fit(client, X, y, Leaking())
        wait_for_heartbeats(client)
    ended = [run["ended_by"] for run in client.run_on_scheduler(kept_runs)]
    assert ended == ["training"] * 3
    assert_leak(client)


def test_three_holds_in_a_row(local_cluster: Any) -> None:
    """Each hold is a run, whatever runs in it."""
    cluster, client = local_cluster(2, memory_limit=LIMIT)
    for _ in range(3):
        with clustertune.hold(client):
            for worker in cluster.workers.values():
                here = [worker.worker_address]
                client.submit(leak, workers=here, pure=False).result()
            wait_for_heartbeats(client)
    assert_leak(client)


def test_three_short_gaps(local_cluster: Any) -> None:
    """A run of any tasks ends with a gap after the last task."""
    cluster, client = local_cluster(2, memory_limit=LIMIT)
    clustertune.check(client)
    cluster.scheduler.plugins["clustertune"].runs.gap = 1.0
    for number in (1, 2, 3):
        for worker in cluster.workers.values():
            here = [worker.worker_address]
            client.submit(leak, workers=here, pure=False).result()
        until(lambda n=number: len(client.run_on_scheduler(kept_runs)) == n)
    assert_leak(client)


@pytest.mark.filterwarnings("ignore:Parameter n_jobs will be ignored:UserWarning")
def test_fits_without_a_leak(local_cluster: Any) -> None:
    """A run of LightGBM ends with its last training task too."""
    _, client = local_cluster(2, memory_limit=LIMIT)
    X, y = data(client)
    clustertune.check(client)
    for _ in range(5):
        fit(client, X, y)
    before = len(client.run_on_scheduler(kept_runs))
    assert before >= 5
    assert growth(client) is None
    lightgbm.DaskLGBMRegressor(client=client, n_estimators=2, verbose=-1).fit(X, y)
    runs = client.run_on_scheduler(kept_runs)[before:]
    # a task that follows the last fit of XGBoost late would be a run that a gap ends
    assert [r["ended_by"] for r in runs if r["ended_by"] != "gap"] == ["training"]
