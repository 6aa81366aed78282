"""What a worker's process has in memory, as far as the scheduler can know it.

The scheduler hears of every key at once, and of the process at each heartbeat. Taken
together as they come, 100 MB that have just left a worker look like 100 MB that are
nobody's, for as long as a heartbeat is due. So what came and went since is added to
what the process had then.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from distributed.core import Status

PREFIX = "clustertune-parking-"  # of its name
WAITING = ("waiting", "no-worker", "queued")
COMING = (*WAITING, "processing")  # states of tasks that are still to be done

Id = str | int


class Memory(NamedTuple):
    """Bytes on one worker."""

    process: int  # resident, or by now about
    managed: int  # of Dask's keys in memory, but not more than the process has
    spilled: int  # of keys on disk
    counted: int  # of keys in memory, by their sizes as Dask knows them

    @property
    def unmanaged(self) -> int:
        return self.process - self.managed


def counted(ws: Any) -> int:
    """Bytes of a worker's keys in memory, by their sizes as Dask knows them."""
    on_disk = ws.metrics.get("spilled_bytes", {}).get("memory", 0)
    there: int = ws.nbytes - on_disk
    return max(0, there)


def memory_of(ws: Any) -> Memory:
    """Of a worker as the scheduler has it."""
    came: int = ws.nbytes - ws.metrics.get("managed_bytes", ws.nbytes)
    # a process that is not heard of yet has 0 bytes, and keeps them
    heard: int = ws.metrics.get("memory", 0)
    process = max(0, heard + came) if heard else 0
    there = counted(ws)
    return Memory(process, min(process, there), ws.memory.spilled, there)


def worker_id(address: str, name: Any, nanny: str | None) -> Id:
    """What survives a restart: the name that was given, else the nanny's address."""
    if isinstance(name, str | int) and name not in ("", address):
        return name
    return nanny or address


def is_parking(name: Any) -> bool:
    """Whether a worker's name is that of a parking worker."""
    return isinstance(name, str) and name.startswith(PREFIX)


def used(worker: Any) -> int:
    """Bytes of its process; what a heartbeat has not told yet is in its keys."""
    return int(max(worker.memory.process, counted(worker)))


def identity(worker: Any) -> Any:
    """What survives a restart: its name, and its nanny."""
    return worker.nanny, None if worker.name == worker.address else worker.name


def begun(worker: Any) -> int:
    """Tasks that a worker has begun, or begins by itself: a paused one begins none."""
    if worker.status is Status.running:
        return len(worker.processing)
    return sum(ts in worker.executing for ts in worker.processing)


def by_name(name: object) -> tuple[int, str]:
    """Order of workers: ``worker-2`` before ``worker-10``."""
    return len(str(name)), str(name)


def is_gone(scheduler: Any, key: Any) -> bool:
    """Whether a key is neither in memory nor on its way there."""
    ts = scheduler.tasks.get(key)
    return ts is None or ts.state in ("released", "forgotten")
