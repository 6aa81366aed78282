"""What a worker's process has in memory, as far as the scheduler can know it.

The scheduler hears of every key at once, and of the process at each heartbeat. Taken
together as they come, 100 MB that have just left a worker look like 100 MB that are
nobody's, for as long as a heartbeat is due. So what came and went since is added to
what the process had then.
"""

from __future__ import annotations

from typing import Any, NamedTuple


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


def of(ws: Any) -> Memory:
    """Of a worker as the scheduler has it."""
    came: int = ws.nbytes - ws.metrics.get("managed_bytes", ws.nbytes)
    # a process that is not heard of yet has 0 bytes, and keeps them
    heard: int = ws.metrics.get("memory", 0)
    process = max(0, heard + came) if heard else 0
    there = counted(ws)
    return Memory(process, min(process, there), ws.memory.spilled, there)
