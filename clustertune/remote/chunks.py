"""Types of chunks, as workers have reported them to the scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from clustertune.remote.keys import Run, unpack

YIELD = 5000  # keys between two yields to the event loop


async def types(
    dask_scheduler: Any, chunks: Mapping[str, Sequence[Run]]
) -> dict[str, list[str]]:
    """Names of the types that the chunks of each label have; unknown keys are skipped.

    Parameters
    ----------
    chunks
        Packed keys, by label.
    """
    found: dict[str, list[str]] = {}
    for label, packed in chunks.items():
        names: set[str] = set()
        for number, key in enumerate(unpack(packed), 1):
            task = dask_scheduler.tasks.get(key)
            if task is not None and task.type:
                names.add(task.type)
            if number % YIELD == 0:
                await asyncio.sleep(0)
        found[label] = sorted(names)
    return found
