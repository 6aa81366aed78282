"""The playbook ``memory-rescue``, as an operator runs it on a cluster in trouble."""

from __future__ import annotations

from typing import Any

from tests.acceptance.helpers import (
    assert_intact,
    clustertune_json,
    load,
    process_memory,
)
from tests.acceptance.helpers import clustertune as command
from tests.processes import leak, until, workers_of

LIMIT = 2**30


def test_playbook(local_cluster: Any) -> None:
    cluster, client = local_cluster(2, memory_limit=LIMIT)
    address = cluster.scheduler_address
    X, y = load(client)
    leaking, well = sorted(client.nthreads())
    client.run(leak, nbytes=int(0.75 * LIMIT), workers=[leaking])
    until(lambda: max(process_memory(client)) > 0.7 * LIMIT)
    pid = client.run(process_id)

    # without consent nothing is done
    assert command("run", "memory-rescue", address).returncode == 2
    planned = command("run", "memory-rescue", address, "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert client.run(process_id) == pid

    result = clustertune_json("run", "memory-rescue", address, "--yes")

    assert "restart" in str(result)
    after = client.run(process_id)
    assert after[well] == pid[well]
    assert pid[leaking] not in after.values()
    assert max(process_memory(client)) < 0.5 * LIMIT
    assert {w["status"] for w in workers_of(client).values()} == {"running"}
    assert_intact(X, y)


def process_id() -> int:
    import os

    return os.getpid()
