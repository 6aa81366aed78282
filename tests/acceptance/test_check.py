"""``check`` finds what stands in the way of a fit, and changes nothing."""

from __future__ import annotations

import os
from typing import Any

import clustertune
from tests.acceptance.helpers import clustertune as command
from tests.acceptance.helpers import holders, keys, load, pids
from tests.processes import stop_stealing


def state(client: Any, X: Any, y: Any) -> Any:
    """Processes, threads, and every key with its holders."""
    data = [(keys(x), holders(client, x)) for x in (X, y)]
    return pids(client), client.nthreads(), client.has_what(), data


def test_check(local_cluster: Any) -> None:
    # more threads than CPUs
    cluster, client = local_cluster(2, threads_per_worker=2 * (os.cpu_count() or 1))
    client.run_on_scheduler(stop_stealing)
    first = min(client.nthreads())
    X, y = load(client, workers=[first], allow_other_workers=True)
    before = state(client, X, y)

    report = clustertune.check(client, X, y, estimator="xgboost")

    (finding,) = (f for f in report.found if f.check == "empty_workers")
    assert finding.severity.name == "warning"
    assert "holds no rows" in finding.message
    assert "clustertune.prepare(client, X, y" in finding.remedy
    assert finding.message in " ".join(str(report).split())

    # the command has an exit code for scripts
    address = cluster.scheduler_address
    assert command("check", address).returncode == 0
    assert command("check", address, "--fail-on", "warning").returncode == 1
    assert state(client, X, y) == before
