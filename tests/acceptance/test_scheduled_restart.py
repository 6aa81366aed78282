"""A restart that was ordered during a fit happens when the fit has ended."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import xgboost
from distributed import Event, get_worker
from xgboost import dask as dxgb

import clustertune
from tests.acceptance.helpers import assert_intact, clustertune_json, load, pids
from tests.acceptance.helpers import clustertune as command
from tests.processes import until


class WaitForTest(xgboost.callback.TrainingCallback):
    """Keeps the fit running until the test lets it end."""

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        get_worker().log_event("fit", epoch)
        Event("the fit may end").wait(100)
        return False


def fit(client: Any, X: Any, y: Any) -> Any:
    matrix = dxgb.DaskQuantileDMatrix(client, X, y)
    return dxgb.train(client, {}, matrix, 2, callbacks=[WaitForTest()])["booster"]


def test_scheduled_restart(local_cluster: Any) -> None:
    cluster, client = local_cluster(2)
    address = cluster.scheduler_address
    X, y = load(client)
    before = pids(client)

    with ThreadPoolExecutor() as pool:
        running = pool.submit(fit, client, X, y)
        until(lambda: client.get_events("fit"))

        # the command orders the restart, and ends
        done = command("schedule", "restart", "--idle-for", "1s", "-y", address)
        assert done.returncode == 0, done.stderr

        (schedule,) = clustertune_json("schedule", "list", address)["schedules"]
        assert schedule["state"] == "waiting"
        assert pids(client) == before
        Event("the fit may end", client=client).set()
        assert running.result(100).num_boosted_rounds() == 2

    until(lambda: [s.state for s in clustertune.schedules(client)] == ["done"])
    assert not before & pids(client)
    assert_intact(X, y)
