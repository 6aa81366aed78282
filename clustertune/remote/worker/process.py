"""Changes a worker's process: its memory now, and its size at the next start.

A nanny starts its worker with threads, a memory limit and an environment. A change
takes effect at the next start of the worker, and holds for every later start, also
after a crash.
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterable, Mapping
from typing import Any

import psutil

from clustertune.remote.worker.probe import pools


def change(
    dask_worker: Any,
    nthreads: int | None = None,
    memory_limit: int | None = None,
    env: Mapping[str, str | None] | None = None,
) -> None:
    """Have the nanny start the next process with all values that are not None.

    ``dask_worker`` is the nanny, because distributed passes it under this name. A
    variable whose value is None is removed. The nanny keeps the former values until
    :func:`settle`. Its own memory limit stays until then: it would kill the current,
    maybe larger process.
    """
    nanny, process = dask_worker, dask_worker.process
    if process is None:
        raise RuntimeError("the nanny has no worker process now")
    before: dict[str, Any] = {"kwargs": {}, "memory_limit": memory_limit}
    for name, value in (("nthreads", nthreads), ("memory_limit", memory_limit)):
        if value is not None:
            before["kwargs"][name] = process.worker_kwargs[name]
            process.worker_kwargs[name] = value
    if nthreads is not None:
        nanny.nthreads = nthreads
    if env is not None:
        before["env"] = nanny.pre_spawn_env, nanny.env
        # distributed copies them into the nanny's process, which may be a user's
        before["outer"] = {name: os.environ.get(name) for name in env}
        # new dictionaries, as other nannies may share the old ones
        _start_with(nanny, _with(nanny.pre_spawn_env, env), _with(nanny.env, env))
    nanny.clustertune_before = before


def settle(dask_worker: Any, keep: bool) -> None:
    """Keep the last change after its process has started, or undo it."""
    nanny = dask_worker
    before = getattr(nanny, "clustertune_before", None)
    if before is None:  # the change has not arrived, or is settled already
        return
    del nanny.clustertune_before
    if keep and before["memory_limit"] is not None:
        nanny.memory_manager.memory_limit = before["memory_limit"]
    if not keep:
        nanny.process.worker_kwargs.update(before["kwargs"])
        nanny.nthreads = nanny.process.worker_kwargs["nthreads"]
        if "env" in before:
            _start_with(nanny, *before["env"])
    for name, value in before.get("outer", {}).items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _start_with(nanny: Any, pre_spawn: Mapping[str, str], env: Any) -> None:
    nanny.pre_spawn_env = nanny.process.pre_spawn_env = pre_spawn
    nanny.env = nanny.process.env = env


def _with(
    variables: Mapping[str, str], changes: Mapping[str, str | None]
) -> dict[str, str]:
    merged = {**variables, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def least_memory(dask_worker: Any) -> int | None:
    """The least memory of a worker's process since its start, in bytes.

    None if its system monitor does not reach back to the start.
    """
    monitor = dask_worker.monitor
    if monitor.maxlen is not None and monitor.count > monitor.maxlen:
        return None
    return int(min(monitor.quantities["memory"]))


def started_with(dask_worker: Any, names: Iterable[str]) -> dict[str, Any]:
    """The worker's threads, memory limit, variables and native pools."""
    return {
        "nthreads": dask_worker.state.nthreads,
        "memory_limit": dask_worker.memory_manager.memory_limit,
        "env": {name: os.environ.get(name) for name in names},
        "pools": pools(),
    }


async def trim(dask_worker: Any) -> list[Any]:
    """Return unneeded memory of a worker's process to its host.

    The scheduler gets the new value at once, so that forecasts use it.

    Returns
    -------
    list
        Bytes before, bytes after, and whether the C library returned memory.
    """
    process = psutil.Process()
    before = process.memory_info().rss
    gc.collect()
    trimmed = _malloc_trim()
    after = process.memory_info().rss
    await send_memory(dask_worker)
    return [before, after, trimmed]


def _malloc_trim() -> bool:
    """Call glibc's ``malloc_trim``; musl, macOS and Windows do not have it."""
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):
        return False
    return True


async def send_memory(dask_worker: Any) -> int:
    """Measure the memory of the process and send it to the scheduler at once.

    The scheduler's value is up to a second old, while its list of keys is current. Keys
    that just left would look like unmanaged memory.
    """
    measured = dask_worker.monitor.update()
    await dask_worker.heartbeat()
    return int(measured["memory"])
