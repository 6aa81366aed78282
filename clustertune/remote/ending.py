"""End tasks of an event loop, even if they miss their cancellation.

Before Python 3.12 ``asyncio.wait_for`` loses a cancellation that comes together with
its result (python/cpython#86296). Dask's connections use it, so any request may lose
one, and a task that repeats requests would never end.
"""

from __future__ import annotations

import asyncio
from typing import Any

AGAIN = 5.0  # seconds for the cleanup of a task before it is cancelled again


async def end_tasks(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks, and wait for their ends; their errors are ignored."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=AGAIN)
    await asyncio.gather(*tasks, return_exceptions=True)  # retrieves their errors
