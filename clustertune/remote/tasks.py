"""Which tasks workers run, by prefix. Runs on the scheduler."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from distributed.core import Status

YIELD = 2000  # tasks between two yields to the event loop
MOST = 5  # prefixes of a worker


async def running(
    scheduler: Any, addresses: Sequence[str]
) -> list[tuple[str, list[tuple[str, int]]]]:
    """By worker the tasks that it has begun: prefixes and numbers.

    A worker tells which these are with its heartbeats. Before the next one all its
    tasks count, unless it is paused and begins none.
    """
    found, seen = [], 0
    for address in addresses:
        worker = scheduler.workers.get(address)
        if worker is None:
            continue
        counts = Counter[str]()
        begun = [ts for ts in list(worker.executing) if ts in worker.processing]
        if not begun and worker.status is not Status.paused:
            begun = list(worker.processing)
        for ts in begun:
            seen += 1
            if seen % YIELD == 0:
                await asyncio.sleep(0)
            counts[str(ts.prefix.name)] += 1
        found.append((address, counts.most_common(MOST)))
    return found
