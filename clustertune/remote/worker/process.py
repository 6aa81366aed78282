"""Changes a worker's process: its memory, its size at the next start, and the process.

A nanny starts its worker with threads and a memory limit. A change takes effect at the
next start of the worker, and holds for every later start, also after a crash. A nanny
can also start the next process while the former one keeps its keys.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psutil
from distributed.core import Status
from distributed.nanny import Nanny, WorkerProcess

from clustertune.remote.ending import within

SECOND = "clustertune-second-process"  # its name among the plugins of a nanny
KILL_TIMEOUT = 5.0  # seconds for a killed process to end, as in Dask
NEW_PROCESS = 2**30  # bytes of a new process without data; it rarely needs so many

# --- size -----------------------------------------------------------------------------


def change(
    dask_worker: Any,
    nthreads: int | None = None,
    memory_limit: int | None = None,
) -> None:
    """Have the nanny start the next process with all values that are not None.

    ``dask_worker`` is the nanny, because distributed passes it under this name. The
    nanny keeps the former values until :func:`settle`. Its own memory limit stays until
    then: it would kill the current, maybe larger process.
    """
    nanny, process = dask_worker, dask_worker.process
    if process is None:
        raise RuntimeError("the nanny has no worker process now")
    size = {"nthreads": nthreads, "memory_limit": memory_limit}
    changes = {name: value for name, value in size.items() if value is not None}
    nanny.clustertune_before = {name: process.worker_kwargs[name] for name in changes}
    process.worker_kwargs.update(changes)
    nanny.nthreads = process.worker_kwargs["nthreads"]


def settle(dask_worker: Any, keep: bool) -> None:
    """Keep the last change after its process has started, or undo it."""
    nanny = dask_worker
    before = getattr(nanny, "clustertune_before", None)
    if before is None:  # the change has not arrived, or is settled already
        return
    del nanny.clustertune_before
    given = nanny.process.worker_kwargs
    if not keep:
        given.update(before)
        nanny.nthreads = given["nthreads"]
    elif "memory_limit" in before:
        nanny.memory_manager.memory_limit = given["memory_limit"]


# --- replacement ----------------------------------------------------------------------


class SecondProcess:
    """Another process of a nanny: the next one while it starts, then the former one.

    The nanny lists it as a plugin, so that it ends with the nanny. The reference
    matters: Dask ends a process that no object refers to.
    """

    def __init__(self, process: Any):
        self.process = process
        self.ending: asyncio.Task[None] | None = None

    async def teardown(self, nanny: Any) -> None:
        await self.kill()

    async def kill(self) -> None:
        """Kill the process, and wait until its folder and threads are gone."""
        if self.process.process is not None:
            await self.process.process.kill()
            await within(self.process.stopped.wait(), KILL_TIMEOUT, once=True)


async def replace(dask_worker: Any, nbytes: int, free: int, timeout: float) -> str:
    """Start the next process of a nanny; the former one keeps its keys until `end`.

    The nanny watches the new process only, and starts it again if it ends. ``nbytes``
    of ``free`` bytes of memory will be filled with keys. Return why the nanny cannot
    run two processes, or nothing. If the process fails to start, raise its error.
    Nothing has changed in both cases.
    """
    nanny, former = dask_worker, dask_worker.process
    second = nanny.plugins.get(SECOND)
    if second is not None and second.ending is not None:
        await asyncio.wait([second.ending])
    found = second_process(nanny)
    if found["obstacle"]:
        return str(found["obstacle"])
    needed = nbytes + found["second"]
    if needed > free:
        return f"a second process may need {needed:,} bytes, and may fill {free:,}"
    new = WorkerProcess(
        worker_kwargs=former.worker_kwargs,
        silence_logs=former.silence_logs,
        on_exit=None,
        worker=former.Worker,
        env=former.env,
        pre_spawn_env=former.pre_spawn_env,
        config=former.config,
    )
    second = nanny.plugins[SECOND] = SecondProcess(new)
    # two processes cannot have the same name, so the nanny must not start a third one
    callback, former.on_exit = former.on_exit, None
    try:
        await _start(new, nanny, timeout)
    except BaseException:
        nanny.plugins.pop(SECOND, None)
        former.on_exit = callback
        await second.kill()
        if former.status is Status.stopped:
            callback(1)
        raise
    new.on_exit, nanny.process, second.process = callback, new, former
    former.on_exit = lambda _: _forget_second(nanny)
    if former.status is Status.stopped:
        former.on_exit(None)
    return ""


def _forget_second(nanny: Any) -> None:
    # a nanny that closes removes its plugins itself, by names that it has listed
    if nanny.status is not Status.closing:
        nanny.plugins.pop(SECOND, None)


async def _start(process: Any, nanny: Any, timeout: float) -> None:
    status = await within(process.start(), timeout, once=True)
    if status is not Status.running:
        raise RuntimeError("its next process ended at once")
    if nanny.status is not Status.running:
        raise RuntimeError(f"its nanny is {nanny.status.name}")


def second_process(dask_worker: Any) -> dict[str, Any]:
    """Return why a nanny cannot run two processes, or the bytes of another one.

    These are the bytes of a new process without data.
    """
    why = next(_obstacles(dask_worker), "")
    nbytes = 0
    if not why:
        nbytes = psutil.Process(dask_worker.process.pid).memory_info().rss
    return {"obstacle": why, "second": min(nbytes, NEW_PROCESS)}


def _obstacles(nanny: Any) -> Iterator[str]:
    """Yield why a nanny cannot run two processes of its worker."""
    process = nanny.process
    own = type(nanny).instantiate is Nanny.instantiate
    if not own or type(process) is not WorkerProcess:
        yield f"its nanny is a {type(nanny).__name__}"
        return
    if nanny.status is not Status.running or process.status is not Status.running:
        yield "its nanny has no running process"
        return
    if SECOND in nanny.plugins:
        yield "its nanny still has an earlier process"
    given = process.worker_kwargs
    page = str(given.get("dashboard_address")).rpartition(":")[2]
    # the last port of a range may belong to a worker that starts now
    if given.get("contact_address") or given.get("port"):
        yield "it may not use any free port"
    if page.isdigit() and int(page) and given.get("dashboard", True):
        yield "its dashboard may not use any free port"
    if given.get("data") is not None:
        yield "it does not keep its data in Dask's own buffer"


def detach(dask_worker: Any) -> None:
    """Have a former process neither close its nanny nor report that it runs.

    Otherwise Dask's memory monitor would report it once it has dropped enough keys, and
    it would get tasks.
    """
    dask_worker.nanny = None
    dask_worker._send_worker_status_change = lambda stimulus_id: None


async def end(dask_worker: Any, at_once: bool) -> None:
    """Begin to end the former process of a nanny, which takes some time.

    Another call tries again if the process has not ended. ``at_once``: its tasks may
    not end, and would use a CPU of the next process while Dask waits for them.
    """
    second = dask_worker.plugins.get(SECOND)
    if second is not None and (second.ending is None or second.ending.done()):
        ends = second.kill() if at_once else second.process.kill()
        second.ending = asyncio.ensure_future(ends)


# --- memory ---------------------------------------------------------------------------


def least_memory(dask_worker: Any) -> int | None:
    """The least memory of a worker's process since its start, in bytes.

    None if its system monitor does not reach back to the start.
    """
    monitor = dask_worker.monitor
    if monitor.maxlen is not None and monitor.count > monitor.maxlen:
        return None
    return int(min(monitor.quantities["memory"]))


async def trim(dask_worker: Any) -> list[int]:
    """Return unneeded memory of a worker's process to its host.

    The scheduler gets the new value at once, so that forecasts use it. Returns the
    bytes before and after.
    """
    process = psutil.Process()
    before = process.memory_info().rss
    gc.collect()
    # musl, macOS and Windows do not have it
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    after = process.memory_info().rss
    await send_memory(dask_worker)
    return [before, after]


async def send_memory(dask_worker: Any) -> int:
    """Measure the memory of the process and send it to the scheduler at once.

    The scheduler's value is up to a second old, while its list of keys is current. Keys
    that just left would look like unmanaged memory.
    """
    measured = dask_worker.monitor.update()
    await dask_worker.heartbeat()
    return int(measured["memory"])
