"""Job queues: dask_jobqueue's local batch system, whose jobs are processes."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.array as da
import pytest
from dask.utils import parse_bytes
from dask_jobqueue import SLURMCluster
from dask_jobqueue.local import LocalCluster, LocalJob
from distributed import Client, wait

import clustertune
from clustertune.errors import NoWorkersError
from clustertune.integrations import managers
from clustertune.integrations.managers import JobQueue
from clustertune.operations.sizing import size_text
from tests.operations.test_sizing import SERIAL, rows_of, sized
from tests.processes import until, workers_of


class Tidy(LocalJob):
    """A local job that leaves no pipe and no process."""

    async def close(self) -> None:
        await super().close()
        self.process.proc.wait(10)
        self.process.stdout.close()
        self.process.stderr.close()


class Queued(LocalJob):
    """A job that its batch system has accepted but not begun."""

    async def _submit_job(self, _script: str) -> str:
        return "1"

    @classmethod
    async def _close_job(cls, job_id: str, cancel_command: str) -> None:
        """The job has not begun."""


@pytest.fixture
def jobs(tmp_path: Any) -> Iterator[Callable[..., tuple[LocalCluster, Client]]]:
    """Start clusters of jobs, and close them afterwards."""
    opened: list[Any] = []

    def start(job: type[LocalJob] = Tidy, **options: Any) -> tuple[Any, Client]:
        settings = {
            "job_cls": job,
            "cores": 2,
            "memory": "2GiB",
            "scheduler_options": {"dashboard_address": "127.0.0.1:0"},
            "worker_extra_args": ["--no-dashboard"],
            "local_directory": str(tmp_path),
        }
        cluster = LocalCluster(**(settings | options))
        opened.append(cluster)
        client = Client(cluster)
        opened.append(client)
        return cluster, client

    yield start
    for thing in reversed(opened):
        thing.close()


def sizes(client: Client) -> dict[str, tuple[int, int]]:
    workers = workers_of(client).values()
    return {w["name"]: (w["nthreads"], w["memory_limit"]) for w in workers}


def test_jobs_of_two_workers(jobs: Any) -> None:
    """Whole jobs start; a job with a remaining worker is not cancelled."""
    cluster, client = jobs(processes=2)
    assert isinstance(managers.find(cluster), JobQueue)
    cluster.scale(2)
    assert clustertune.scale(client, 4).status == "done"
    assert len(cluster.worker_spec) == 2  # the first was on its way, not missing
    X = client.persist(da.ones((300, 10), chunks=(10, 10)) * 2)
    wait(X)
    report = clustertune.restart_workers(client, X, workers=[min(sizes(client))])
    assert report.status == "done", str(report)
    first, second = sorted(cluster.worker_spec)
    goes = [f"{first}-0", f"{first}-1"]
    for worker, left in zip(goes, [[first, second], [second]]):
        client.retire_workers([address_of(client, worker)], close_workers=True)
        client.sync(managers.find(cluster).retired, worker)
        assert sorted(cluster.worker_spec) == left
        stays = sizes(client)
        assert float(X.sum().compute()) == 6000.0
        assert worker not in stays
    assert stays.keys() == {f"{second}-0", f"{second}-1"}

    resized = clustertune.resize_workers(client, X, nthreads=2, memory_limit="1.5 GiB")
    assert resized.status == "done", str(resized)
    assert clustertune.scale(client, 3).status == "done"
    until(lambda: len(sizes(client)) == 4)  # whole jobs come
    assert set(sizes(client).values()) == {(2, 1536 << 20), (1, 1 << 30)}


def address_of(client: Client, name: str) -> str:
    workers = workers_of(client)
    return next(a for a, w in workers.items() if w["name"] == name)


def test_jobs_without_a_number_of_workers(jobs: Any) -> None:
    """The number follows the cores; the cluster object does not count workers."""
    cluster, client = jobs()
    cluster.scale(2)
    client.wait_for_workers(2)
    assert len(cluster.plan) == 1
    assert clustertune.scale(client, 2).status == "fine"
    assert clustertune.scale(client, 4).status == "done"
    assert clustertune.scale(client, 3).status == "done"
    assert len(sizes(client)) == 3
    # the place of the one that went is not taken for a worker on its way
    assert clustertune.scale(client, 4).status == "done"
    assert len(cluster.worker_spec) == 3


def test_jobs_that_have_ended(jobs: Any) -> None:
    """They are submitted again to scale up, and not while the cluster scales down."""
    with dask.config.set({"distributed.deploy.lost-worker-timeout": "50ms"}):
        cluster, client = jobs(processes=1)
        cluster.scale(jobs=3)
        client.wait_for_workers(3)
        for n_workers in (3, 1):
            ends = [address_of(client, min(sizes(client)))]
            client.retire_workers(ends, close_workers=True)
            until(lambda: len(cluster.workers) == 2)
            report = clustertune.scale(client, n_workers, timeout="60 s")
            assert report.status == "done", str(report)
            assert len(cluster.worker_spec) == len(sizes(client)) == n_workers


def test_jobs_that_do_not_begin(jobs: Any) -> None:
    """After the timeout, the error has the text of the cluster object.

    Adaptive scaling is that of distributed.
    """
    cluster, client = jobs(Queued, processes=1)
    expected = r"requested 2 workers, 0 run: LocalCluster\(.*Ask the manager"
    with pytest.raises(NoWorkersError, match=expected):
        clustertune.scale(client, 2, timeout="6s")
    assert client.sync(managers.find(cluster).bounds) is None
    cluster.adapt(minimum=0, maximum=3)
    client.sync(managers.find(cluster).adapt, 1, 2)
    assert client.sync(managers.find(cluster).bounds) == (1, 2)


# --- a recommended size ---------------------------------------------------------------


def test_a_recommended_size() -> None:
    """The job requests that size, and its workers have these limits."""
    found = sized(rows_of(100), SERIAL)
    each = found.workers_per_host
    with SLURMCluster(
        cores=each * found.threads,
        processes=each,
        memory=size_text(each * found.memory_limit),
        scheduler_options={"dashboard_address": "127.0.0.1:0"},
    ) as cluster:
        script = cluster.job_script()
    assert "#SBATCH --cpus-per-task=16" in script
    (line,) = [x for x in script.splitlines() if "distributed.cli.dask_worker" in x]
    words = shlex.split(line)
    assert words[words.index("--nthreads") + 1] == str(found.threads)
    assert words[words.index("--nworkers") + 1] == str(found.workers_per_host)
    limit = parse_bytes(words[words.index("--memory-limit") + 1])
    assert limit == pytest.approx(found.memory_limit, rel=0.01)
