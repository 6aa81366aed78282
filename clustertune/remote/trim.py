"""Gives memory that a worker's process does not need back to its host."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import psutil

from clustertune.remote.tell import tell


async def trim(dask_worker: Any) -> list[Any]:
    """(bytes before, bytes after, whether the C library could be asked).

    The scheduler is told at once: whoever looks next, and forecasts by what processes
    have, sees what is there now.
    """
    process = psutil.Process()
    before = process.memory_info().rss
    gc.collect()
    asked = _malloc_trim()
    after = process.memory_info().rss
    await tell(dask_worker)
    return [before, after, asked]


def _malloc_trim() -> bool:
    """Only glibc has it: not musl, nor macOS, nor Windows."""
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):
        return False
    return True
