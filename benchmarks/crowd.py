"""A scheduler in its own process, and hundreds of real workers in another process.

The workers share one core, so their answers are slow. The scheduler is not affected:
its longest turn of the event loop is measured, in CPU time of its thread.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import Any

import psutil
from distributed import Client

START = 900  # seconds until all workers are connected
TURN = 0.002  # seconds between two turns of the task that measures
LIMIT = 64 * 2**30  # memory limit of a worker; all share one large process
QUIET = {  # background work that would fill a process with hundreds of workers
    "distributed.worker.profile.enabled": False,
    "distributed.worker.memory.monitor-interval": "30s",
    # each run lists the open files of all workers
    "distributed.admin.system-monitor.interval": "1h",
    "distributed.admin.tick.interval": "5s",
}


@contextmanager
def crowd(n_workers: int) -> Iterator[tuple[Client, list[psutil.Process]]]:
    """A client, and the processes of the scheduler and of the workers."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "scheduler.json"
        options = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
        begin = [sys.executable, "-m", "dask", "scheduler", *options]
        # Dask sends functions by module name, so the scheduler must find this file
        here = str(Path(__file__).parent)
        started = [_start([*begin, "--scheduler-file", str(file)], here)]
        try:
            while not file.exists():
                sleep(0.05)
            address = json.loads(file.read_text())["address"]
            command = [sys.executable, __file__, address, str(n_workers)]
            started.append(_start(command, folder))
            with Client(address) as client:
                client.wait_for_workers(n_workers, timeout=START)
                client.run_on_scheduler(_measure_turns, turn=TURN)
                yield client, [psutil.Process(p.pid) for p in started]
        finally:
            for process in reversed(started):
                process.terminate()
                process.wait()


def longest_turn(client: Client) -> float:
    """CPU seconds of the scheduler's longest turn since the last call."""
    found: float = client.run_on_scheduler(_take_longest)
    return found


def _start(command: list[str], folder: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=folder)


def _measure_turns(dask_scheduler: Any, turn: float) -> None:
    import asyncio
    from time import thread_time

    async def tick() -> None:
        last = thread_time()
        while True:
            await asyncio.sleep(turn)
            now = thread_time()
            dask_scheduler.longest = max(dask_scheduler.longest, now - last)
            last = now

    dask_scheduler.longest = 0.0
    dask_scheduler.ticking = asyncio.ensure_future(tick())


def _take_longest(dask_scheduler: Any) -> float:
    longest: float = dask_scheduler.longest
    dask_scheduler.longest = 0.0
    return longest


async def _work(address: str, count: int) -> None:
    """Run workers until this process is terminated."""
    import gc

    from distributed import Worker

    gc.disable()  # each collection runs a callback of every worker

    options: dict[str, Any] = {"nthreads": 1, "memory_limit": LIMIT, "dashboard": False}
    every = [Worker(address, name=i, **options) for i in range(count)]
    for some in range(0, count, 50):
        await asyncio.gather(*every[some : some + 50])
    await asyncio.Event().wait()


if __name__ == "__main__":
    import dask

    with dask.config.set(QUIET):
        asyncio.run(_work(sys.argv[1], int(sys.argv[2])))
