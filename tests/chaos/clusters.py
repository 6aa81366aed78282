"""Real clusters for rounds with faults.

A cluster is repaired between two rounds: nannies restart their workers, and killed
nannies are replaced.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any

import dask
from distributed import Client, LocalCluster
from distributed.core import Status

from tests.processes import process, scheduler, worker_command

LIMIT = "700 MiB"
LOST_WORKER_TIMEOUT = "distributed.deploy.lost-worker-timeout"
NANNY_RUNS = (Status.running, Status.init, Status.starting)
#: of processes that are started by commands
ENVIRONMENT = {
    "PYTHONPATH": str(Path(__file__).parents[2]),
    "DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD": "spawn",
}


def becomes_true(condition: Callable[[], Any], seconds: float = 30) -> bool:
    """Whether a condition becomes true in time."""
    end = monotonic() + seconds
    while not condition():
        if monotonic() > end:
            return False
        sleep(0.02)
    return True


class LocalWorkers:
    """A ``LocalCluster`` whose workers are processes, and two clients.

    Attributes
    ----------
    client : Client
        The client that calls clustertune.
    watch : Client
        The client that injects faults and inspects the cluster.
    """

    def __init__(self, n_workers: int):
        self.n_workers = n_workers
        self.stack = ExitStack()
        try:
            self.client = self.open()
            self.watch = self.stack.enter_context(
                Client(self.client.scheduler.address, set_as_default=False)
            )
            self.client.wait_for_workers(n_workers, timeout=60)
        except BaseException:
            self.stack.close()
            raise

    def open(self) -> Client:
        # on a busy machine a worker starts slowly, and the cluster object would
        # give it up
        self.stack.enter_context(dask.config.set({LOST_WORKER_TIMEOUT: "1 hour"}))
        cluster = LocalCluster(
            n_workers=self.n_workers,
            threads_per_worker=1,
            processes=True,
            memory_limit=LIMIT,
            dashboard_address="127.0.0.1:0",
        )
        self.cluster = self.stack.enter_context(cluster)
        return self.stack.enter_context(Client(cluster))

    def close(self) -> None:
        self.stack.close()

    def pids(self) -> dict[str, int]:
        """Process ids of workers, by address."""
        return {
            n.worker_address: n.pid
            for n in list(self.cluster.workers.values())
            if n.worker_address and n.pid
        }

    def nannies(self) -> list[int]:
        """Process ids of nannies that may be killed."""
        return []

    def repair(self) -> bool:
        """Restore the initial number of running workers; whether that succeeded."""
        workers = self.cluster.workers.items()
        gone = [name for name, n in workers if n.status not in NANNY_RUNS]
        # without this, the cluster object waits for them
        self.cluster.sync(self.cluster.scale_down, gone)
        self.cluster.scale(self.n_workers)
        return becomes_true(self._is_complete)

    def _is_complete(self) -> bool:
        info = self.watch.sync(self.watch.scheduler.identity, n_workers=-1)["workers"]
        states = [w["status"] for w in info.values()]
        return states == ["running"] * self.n_workers


class ProcessWorkers(LocalWorkers):
    """A cluster whose scheduler and nannies are processes of their own."""

    def open(self) -> Client:
        self.folder = Path(self.stack.enter_context(TemporaryDirectory()))
        self.file = self.stack.enter_context(scheduler(self.folder, **ENVIRONMENT))
        self.workers = [self._worker(i) for i in range(self.n_workers)]
        return self.stack.enter_context(Client(scheduler_file=self.file))

    def _worker(self, number: int) -> Any:
        options = ("--memory-limit", LIMIT, "--name", f"worker-{number}")
        command = worker_command(self.file, self.folder, *options)
        return self.stack.enter_context(process(*command, **ENVIRONMENT))

    def pids(self) -> dict[str, int]:
        return dict(self.watch.run(os.getpid, on_error="ignore"))

    def nannies(self) -> list[int]:
        return [w.pid for w in self.workers if w.poll() is None]

    def repair(self) -> bool:
        for i, one in enumerate(self.workers):
            if one.poll() is not None:
                self.workers[i] = self._worker(i)
        return becomes_true(self._is_complete, 60)
