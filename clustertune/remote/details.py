"""What a worker says of its process and its disk when a diagnosis asks for it.

Facts of the process and not of settings: the environment may name a number of threads
that a library has not taken.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from time import time
from typing import Any

import psutil

VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


def worker_details(dask_worker: Any, packages: Iterable[str]) -> dict[str, Any]:
    """Child processes, thread pools, disk, lifetime and packages; plain types."""
    process = psutil.Process()
    children = [_resident(child) for child in process.children(recursive=True)]
    return {
        "pid": process.pid,
        "daemon": multiprocessing.current_process().daemon,
        "children": [len(children), sum(children)],
        "pools": pools(),
        "variables": {k: os.environ[k] for k in VARIABLES if k in os.environ},
        "disk": disk(dask_worker.local_directory),
        "lifetime": [_left(dask_worker, process), dask_worker.lifetime_restart],
        "paused": _paused(dask_worker),
        "packages": installed(packages),
    }


def installed(packages: Iterable[str]) -> dict[str, str]:
    """Versions by name of distribution, of those that are installed here."""
    found = {name: _version(name) for name in packages}
    return {name: text for name, text in found.items() if text is not None}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _resident(process: psutil.Process) -> int:
    """Bytes resident in a process; one that has ended meanwhile has none."""
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def pools() -> list[list[Any]] | None:
    """(kind, library, threads) of every pool; None where nothing can tell."""
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        return None
    return [
        [str(p["user_api"]), str(p["prefix"]), int(p["num_threads"])]
        for p in threadpool_info()
    ]


def disk(path: str) -> list[Any]:
    """Kind of file system, bytes in all, bytes free, where the worker spills."""
    usage = psutil.disk_usage(path)
    inside = [
        p
        for p in psutil.disk_partitions(all=True)
        if os.path.commonpath([p.mountpoint, os.path.realpath(path)]) == p.mountpoint
    ]
    nearest = max(inside, key=lambda p: len(p.mountpoint), default=None)
    return [nearest.fstype if nearest else "", usage.total, usage.free]


def _paused(dask_worker: Any) -> float | None:
    """Seconds since it paused, as far as its own log goes back; None: it has not."""
    if dask_worker.status.name != "paused":
        return None
    for event in reversed(dask_worker.state.stimulus_log):
        if type(event).__name__ == "PauseEvent":
            handled: float = event.handled
            return max(0.0, time() - handled)
    return None


def _left(dask_worker: Any, process: psutil.Process) -> float | None:
    """Seconds of its lifetime; counted from its process's start, a little early."""
    lifetime = dask_worker.lifetime
    return process.create_time() + lifetime - time() if lifetime else None
