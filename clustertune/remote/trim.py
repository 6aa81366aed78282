"""Gives memory that a worker's process does not need back to its host."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import psutil


def trim(dask_worker: Any) -> list[Any]:
    """(bytes before, bytes after, whether the C library could be asked)."""
    process = psutil.Process()
    before = process.memory_info().rss
    gc.collect()
    asked = _malloc_trim()
    return [before, process.memory_info().rss, asked]


def _malloc_trim() -> bool:
    """Only glibc has it: not musl, nor macOS, nor Windows."""
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):
        return False
    return True
