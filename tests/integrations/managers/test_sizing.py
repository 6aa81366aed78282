"""dask_jobqueue accepts the recommended line for a job queue."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from dask.utils import parse_bytes
from dask_jobqueue import SLURMCluster

from tests.operations.test_sizing import SERIAL, rows_of, sized


def test_the_line_of_slurm() -> None:
    """The job requests that size, and its workers have these limits."""
    found = sized(rows_of(100), SERIAL)
    made: list[SLURMCluster] = []

    def cluster(**options: Any) -> Any:
        made.append(
            SLURMCluster(
                scheduler_options={"dashboard_address": "127.0.0.1:0"}, **options
            )
        )
        return made[0]

    definition, _, scaling = found.lines["SLURMCluster"].partition("; ")
    exec(definition, {"SLURMCluster": cluster})
    with made[0]:
        script = made[0].job_script()
    assert scaling == f"cluster.scale(jobs={found.hosts})"
    assert "#SBATCH --cpus-per-task=16" in script
    (line,) = [x for x in script.splitlines() if "distributed.cli.dask_worker" in x]
    words = shlex.split(line)
    assert words[words.index("--nthreads") + 1] == str(found.threads)
    assert words[words.index("--nworkers") + 1] == str(found.workers_per_host)
    limit = parse_bytes(words[words.index("--memory-limit") + 1])
    assert limit == pytest.approx(found.memory_limit, rel=0.01)
