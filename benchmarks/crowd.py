"""A scheduler in a process of its own, and hundreds of real workers in one other.

They share a core, so what workers answer is slow, and what the scheduler does is not.
Its event loop tells how long it was kept from other work.
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

START = 900  # seconds for all workers to come
TURN = 0.002  # seconds between two turns of what listens for gaps
LIMIT = 64 * 2**30  # bytes of a worker; all have one process, which is large
QUIET = {  # hundreds of workers in one process would do nothing else
    "distributed.worker.profile.enabled": False,
    "distributed.worker.memory.monitor-interval": "30s",
    # each look lists the open files of all
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
        # where it finds this module: Dask sends functions of a module by name
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
                client.run_on_scheduler(_listen, turn=TURN)
                yield client, [psutil.Process(p.pid) for p in started]
        finally:
            for process in reversed(started):
                process.terminate()
                process.wait()


def longest_turn(client: Client) -> float:
    """Seconds of the longest gap in the scheduler's event loop since the last call."""
    found: float = client.run_on_scheduler(_take_longest)
    return found


def _start(command: list[str], folder: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=folder)


def _listen(dask_scheduler: Any, turn: float) -> None:
    import asyncio
    from time import perf_counter

    async def tick() -> None:
        last = perf_counter()
        while True:
            await asyncio.sleep(turn)
            now = perf_counter()
            dask_scheduler.longest = max(dask_scheduler.longest, now - last)
            last = now

    dask_scheduler.longest = 0.0
    dask_scheduler.ticking = asyncio.ensure_future(tick())


def _take_longest(dask_scheduler: Any) -> float:
    longest: float = dask_scheduler.longest
    dask_scheduler.longest = 0.0
    return longest


async def _work(address: str, count: int) -> None:
    """Run workers until this process is ended."""
    import gc

    from distributed import Worker

    gc.disable()  # each collection calls back all of them

    options: dict[str, Any] = {"nthreads": 1, "memory_limit": LIMIT, "dashboard": False}
    every = [Worker(address, name=i, **options) for i in range(count)]
    for some in range(0, count, 50):
        await asyncio.gather(*every[some : some + 50])
    await asyncio.Event().wait()


if __name__ == "__main__":
    import dask

    with dask.config.set(QUIET):
        asyncio.run(_work(sys.argv[1], int(sys.argv[2])))
