"""End tasks of an event loop, even if they miss their cancellation.

Before Python 3.12 ``asyncio.wait_for`` loses a cancellation that comes together with
its result (python/cpython#86296). Dask's connections use it, so any request may lose
one. A task that repeats requests would never end, and ``wait_for`` itself would wait
for it after its time limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

AGAIN = 5.0  # seconds for the cleanup of a task before it is cancelled again

T = TypeVar("T")


async def end_tasks(*tasks: asyncio.Future[Any], once: bool = False) -> None:
    """Cancel tasks, and wait for their ends; their errors are ignored.

    With ``once`` they are not cancelled again, because their cleanup may be long.
    """
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=None if once else AGAIN)
    await asyncio.gather(*tasks, return_exceptions=True)  # retrieves their errors


async def within(work: Awaitable[T], seconds: float | None, *, once: bool = False) -> T:
    """Do the same as ``asyncio.wait_for``, but lose no cancellation."""
    task = asyncio.ensure_future(work)
    timeout = None if seconds is None else max(0.0, seconds)
    late = False
    try:
        _, pending = await asyncio.wait([task], timeout=timeout)
        late = bool(pending)
    finally:  # this call may have been cancelled
        if not task.done():
            await end_tasks(task, once=once)
        elif not task.cancelled():
            task.exception()  # counts as retrieved, also if this call was cancelled
    if late and task.cancelled():
        raise asyncio.TimeoutError
    return task.result()


async def whole(work: Awaitable[T]) -> tuple[T, bool]:
    """Wait for the end of a cleanup, also if this call is cancelled meanwhile.

    Returns its result, and whether the caller has to raise ``CancelledError`` now. The
    cleanup needs a time limit.
    """
    task, cancelled = asyncio.ensure_future(work), False
    while not task.done():
        cancelled |= await _is_cancelled(task)
    return task.result(), cancelled


async def _is_cancelled(task: asyncio.Future[Any]) -> bool:
    """Wait for a task; return whether this call was cancelled meanwhile."""
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        return True
    return False
