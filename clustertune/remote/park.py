"""A parking worker: keeps what a worker that is alone holds while it is restarted.

It runs in the process of that worker's nanny, which survives the restart, on its event
loop. It takes no tasks: it never tells the scheduler that it runs. What exceeds its
share of the free memory goes to the disk. It keeps keys as the bytes in which they
arrive and reads none of them: its process has neither the worker's environment, nor its
modules, nor its GPU. With a ``LocalCluster`` that process is the
user's own, so what a worker does to its process is avoided or undone: no preloads, no
plugins, no lifetime, no threads of its own, no path to import from.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from time import monotonic
from typing import Any

from distributed import Worker
from distributed.core import Status
from distributed.protocol.serialize import Serialized
from distributed.spill import SpillBuffer

from clustertune.remote.details import disk
from clustertune.remote.probe import available_memory

PATIENCE = 120.0  # seconds after which one that holds nothing closes by itself
PREFIX = "clustertune-parking-"  # of its name
MEMORY = 0.5  # of the host's free memory that it fills
DISK = 0.9  # of the disk's free bytes
IN_MEMORY = ("tmpfs", "ramfs")  # kinds of file systems that are no disk


def is_parking(name: Any) -> bool:
    """Whether a worker's name is that of a parking worker."""
    return isinstance(name, str) and name.startswith(PREFIX)


def room(dask_worker: Any) -> dict[str, int]:
    """Bytes that a parking worker of this nanny may fill: of memory, of its disk."""
    kind, _, free = disk(dask_worker.local_directory)
    return {
        "memory": int(MEMORY * available_memory()),
        "disk": 0 if kind in IN_MEMORY else int(DISK * free),
    }


async def open_parking(
    dask_worker: Any, name: str, nbytes: int, timeout: float
) -> None:
    """Start one with this name, for so many bytes; it has registered when this ends.

    ``timeout`` are the seconds in which it has to. It closes by itself where it holds
    nothing after ``PATIENCE`` seconds: the scheduler may have forgotten it.
    """
    nanny, free = dask_worker, room(dask_worker)
    if nbytes > free["memory"] + free["disk"]:
        raise RuntimeError(
            f"{nbytes:,} bytes need a place, and {free['memory']:,} of memory and "
            f"{free['disk']:,} of disk may be filled there"
        )
    given = nanny.worker_kwargs
    worker = Parking(
        nanny.scheduler_addr,
        name=name,
        nthreads=1,
        executor="offload",  # one that is there: closing it would start a thread
        local_directory=nanny.local_directory,
        security=nanny.security,
        protocol=given.get("protocol"),
        interface=given.get("interface"),
        host=given.get("host"),
        # no limit of the process, much of which may be the user's: a share of its own
        memory_limit=0,
        data=(_buffer, {"target": free["memory"]}),
        resources={},
        lifetime=0,
        # none would mean those of the configuration; this one is there and does nothing
        preload=["distributed"],
        preload_argv=[[]],
        death_timeout=timeout,
        patience=timeout + PATIENCE,
    )
    worker.executors["actor"] = worker.executors["offload"]
    if worker.local_directory in sys.path:
        sys.path.remove(worker.local_directory)
    logging.getLogger("distributed.worker").removeHandler(worker._deque_handler)
    await worker
    worker.end = monotonic() + PATIENCE


def _buffer(worker_local_directory: str, target: int) -> SpillBuffer:
    return Unread(str(Path(worker_local_directory, "storage")), target)


class Unread(SpillBuffer):
    """Keeps values as header and bytes, which Dask can measure and write to disk."""

    def __setitem__(self, key: Any, value: Any) -> None:
        # copies: Dask reads several keys into one buffer, which stays for the last one
        assert isinstance(value, Serialized)
        frames = [bytes(frame) for frame in value.frames]
        super().__setitem__(key, (value.header, frames))


class Parking(Worker):
    """A worker that holds keys and does nothing else.

    Parameters
    ----------
    patience
        Seconds after which it closes if it holds nothing.
    """

    def __init__(self, *args: Any, patience: float, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.rpc.deserialize = False
        self.end = monotonic() + patience

    def _send_worker_status_change(self, stimulus_id: str) -> None:
        """Never say that it runs: in that moment it would be given tasks."""
        if self.status is not Status.running:
            super()._send_worker_status_change(stimulus_id)

    async def get_data(
        self, comm: Any, keys: Any, who: Any = None, serializers: Any = None
    ) -> Any:
        """Send keys as they have arrived."""
        stored: Any = self.data
        data = {k: Serialized(*stored[k]) for k in keys if k in stored}
        await comm.write({"status": "OK", "data": data}, serializers=serializers)
        await comm.read(deserializers=serializers)  # the receiver's OK
        return Status.dont_reply

    async def plugin_add(self, *args: Any, **kwargs: Any) -> Any:
        """Take none: what they set up would stay in the nanny's process."""
        return {"status": "OK"}

    async def heartbeat(self) -> None:
        """Close if it was forgotten."""
        if monotonic() > self.end and not self.data:
            self.loop.add_callback(self.close, reason="clustertune-parking-forgotten")
        await super().heartbeat()
