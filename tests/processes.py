"""Clusters of processes that are started by commands, as operators do, for tests."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from socket import socket
from time import monotonic, sleep
from typing import Any

import dask
import numpy as np
from distributed import Client, Event, LocalCluster
from distributed.utils import get_mp_context

METHOD = "distributed.worker.multiprocessing-method"
#: options of a LocalCluster for tests
LOCAL: dict[str, Any] = {
    "threads_per_worker": 1,
    "processes": True,
    # port 8787 may be taken, and distributed then leaks a socket
    "dashboard_address": "127.0.0.1:0",
    "memory_limit": "2GiB",
}
#: the same with workers in the process of the test. Its memory counts for them, and has
#: grown by all tests before: with a limit, they would pause.
IN_PROCESS: dict[str, Any] = LOCAL | {"processes": False, "memory_limit": None}
BLOCK = """
import sys


class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "clustertune":
            text = "No module named 'clustertune' (blocked)"
            raise ModuleNotFoundError(text, name=name)


sys.meta_path.insert(0, Block())
"""


def fork_workers() -> None:
    """Fork workers from a process that has imported what they need.

    That takes a tenth of the time. ``dask worker`` commands spawn workers, as they do
    for users.
    """
    if "forkserver" in multiprocessing.get_all_start_methods():
        dask.config.set({METHOD: "forkserver"})
        get_mp_context().set_forkserver_preload(
            ["distributed", "dask.array", "dask.dataframe"]
        )


def free_ports(count: int) -> list[int]:
    """Return ports that are free now, and that the system gives to no other process.

    A port that was bound as port 0 may be given to another test before it is used.
    """
    # the system gives out ports from its range, which begins at 32768 by default
    limits = Path("/proc/sys/net/ipv4/ip_local_port_range")
    first = int(limits.read_text().split()[0]) if limits.exists() else 32768
    found: list[int] = []
    candidates = random.Random().sample(range(10_000, first), 1000)
    while len(found) < count:
        port = candidates.pop()
        with socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
    return found


def until(
    condition: Callable[[], Any], seconds: float = 200, what: str = "the condition"
) -> Any:
    """Wait for a condition and return it; fail after a time limit."""
    end = monotonic() + seconds
    while not (value := condition()):
        assert monotonic() < end, f"{what} did not come"
        sleep(0.02)
    return value


def workers_of(client: Client) -> dict[str, dict[str, Any]]:
    """What the scheduler says of each worker, by address.

    ``client.scheduler_info()`` may answer with no workers at all: the client itself
    asks for none of them now and then, and both answers have one place.
    """
    found: dict[str, dict[str, Any]] = client.sync(
        client.scheduler.identity, n_workers=-1
    )["workers"]
    return found


def is_empty(dask_scheduler: Any, n_workers: int) -> bool:
    """Return whether these workers run, and no key is left."""
    running = len(dask_scheduler.running) == len(dask_scheduler.workers) == n_workers
    return running and not dask_scheduler.tasks


def empty_cluster(client: Client, n_workers: int) -> None:
    """Wait until these workers run, and the keys of the former test are gone."""
    # errors have frames with futures, and pytest keeps the last one
    sys.last_value = sys.last_traceback = sys.last_exc = None
    gc.collect()
    until(lambda: client.run_on_scheduler(is_empty, n_workers=n_workers))


@contextmanager
def interrupted_when(condition: Callable[[], Any]) -> Iterator[None]:
    """Send ^C to the main thread when a condition holds; the block handles it."""

    def interrupt() -> None:
        until(lambda: over.is_set() or condition())
        if not over.is_set():
            signal.pthread_kill(main, signal.SIGINT)

    main, over = threading.main_thread().ident, threading.Event()
    assert main is not None
    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    try:
        yield
    finally:  # a late ^C would stop another test
        over.set()
        thread.join(10)


class Call(threading.Thread):
    """A call in a thread; its result is the value, or the error."""

    def __init__(self, function: Callable[..., Any], *args: Any, **kwargs: Any):
        super().__init__(daemon=True)
        self.function = partial(function, *args, **kwargs)
        self.result: Any = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self.function()
        except BaseException as error:
            self.result = error


@contextmanager
def process(*command: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process, drop its output, and end it afterwards."""
    started = subprocess.Popen(
        command,
        env=os.environ | environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield started
    finally:
        if started.poll() is None:
            started.send_signal(signal.SIGTERM)
        try:
            started.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
            started.wait()


@contextmanager
def local_workers(
    n_workers: int = 2, *, set_as_default: bool = True, **options: Any
) -> Iterator[Client]:
    """Start a cluster of workers with one thread each; yield its client."""
    defaults = LOCAL if options.get("processes", True) else IN_PROCESS
    with (
        LocalCluster(n_workers=n_workers, **(defaults | options)) as cluster,
        Client(cluster, set_as_default=set_as_default) as client,
    ):
        yield client


def blocking(folder: Path) -> Mapping[str, str]:
    """Return an environment in which ``import clustertune`` fails."""
    (folder / "sitecustomize.py").write_text(BLOCK)
    return {"PYTHONPATH": str(folder)}


@contextmanager
def scheduler(
    folder: Path, python: str = sys.executable, **environment: str
) -> Iterator[str]:
    """Start a ``dask scheduler`` process; yield its file with the address."""
    file = folder / "scheduler.json"
    with process(
        python, "-m", "dask", "scheduler", "--host", "127.0.0.1", "--port", "0",
        "--dashboard-address", "127.0.0.1:0", "--scheduler-file", str(file),
        **environment,
    ):  # fmt: skip
        until(file.exists)
        yield str(file)


def worker_command(
    file: str, folder: Path, *options: str, python: str = sys.executable
) -> tuple[str, ...]:
    """Return the command of a nanny whose worker has one thread."""
    return (
        python, "-m", "dask", "worker", "--scheduler-file", file, "--nthreads", "1",
        "--memory-limit", "1GiB", "--host", "127.0.0.1", "--no-dashboard",
        "--local-directory", str(folder), *options,
    )  # fmt: skip


@contextmanager
def cluster(
    folder: Path,
    n_workers: int,
    python: str = sys.executable,
    options: tuple[str, ...] = (),
    **environment: str,
) -> Iterator[str]:
    """Start ``dask scheduler`` and ``dask worker`` processes; yield the file."""
    options = ("--nworkers", str(n_workers), *options)
    with scheduler(folder, python, **environment) as file:
        worker = worker_command(file, folder, *options, python=python)
        with process(*worker, **environment):
            yield file


def at_gate(name: str) -> None:
    """Run until the event of this name is set."""
    Event(name).wait(200)


def endless(*_: Any) -> None:
    """Run in native code without an end in the time of a test."""
    ctypes.CDLL(None).sleep(600)


def leak(dask_worker: Any, nbytes: int) -> None:
    """Keep unmanaged memory, so that the process has this size in bytes."""
    present = dask_worker.monitor.get_process_memory()
    dask_worker.leak = np.ones(max(0, nbytes - present), dtype="u1")


async def stop_stealing(dask_scheduler: Any) -> None:
    """Leave tasks on the workers that were chosen for them, on a busy machine too."""
    # schedulers of ``gen_cluster`` have no work stealing
    if stealing := dask_scheduler.extensions.get("stealing"):
        await stealing.stop()


async def start_stealing(dask_scheduler: Any) -> None:
    """Undo :func:`stop_stealing`."""
    if stealing := dask_scheduler.extensions.get("stealing"):
        await stealing.start()


async def soon(condition: Callable[[], Any], seconds: float = 200) -> Any:
    """Wait like :func:`until`, without stopping an event loop."""
    end = monotonic() + seconds
    while not (value := condition()):
        assert monotonic() < end, "the condition did not come"
        await asyncio.sleep(0.005)
    return value
