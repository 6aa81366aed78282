"""The commands of an operator who has the address of a cluster, with exit codes."""

from __future__ import annotations

from pathlib import Path

from distributed import Client

from tests.acceptance.helpers import assert_intact, clustertune, load, pids
from tests.processes import cluster


def test_commands(tmp_path: Path) -> None:
    with cluster(tmp_path, 2) as file, Client(scheduler_file=file) as client:
        client.wait_for_workers(2)
        X, y = load(client)
        before = pids(client)
        where = f"--scheduler-file={file}"

        # look, and no consent without a terminal
        assert clustertune("check", where).returncode == 0
        assert clustertune("restart", where).returncode == 2
        assert pids(client) == before

        # restart both workers
        done = clustertune("restart", where, "--yes")
        assert done.returncode == 0, done.stderr
        assert "lost 0" in done.stdout
        assert not before & pids(client)
        assert_intact(X, y)

        # with an address only, workers can be removed and not started
        refused = clustertune("scale", "3", where, "--yes")
        assert refused.returncode == 4
        assert "dask worker" in refused.stderr
        assert clustertune("scale", "1", where, "--yes").returncode == 0
        assert len(client.nthreads()) == 1
        assert_intact(X, y)
