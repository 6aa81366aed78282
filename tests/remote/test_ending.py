"""Tasks end even if they miss a cancellation."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from clustertune.remote import ending
from tests.in_process import gen_test


async def misses_the_first() -> None:
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    await asyncio.Event().wait()


@gen_test()
async def test_a_task_that_misses_its_cancellation_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ending, "AGAIN", 0.01)

    async def fails() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError

    tasks = [asyncio.ensure_future(work()) for work in (misses_the_first, fails)]
    await asyncio.sleep(0)
    await ending.end_tasks(*tasks)
    assert tasks[0].cancelled()
    assert isinstance(tasks[1].exception(), ValueError)


@gen_test()
async def test_no_task_and_a_finished_one_end_at_once() -> None:
    done = asyncio.ensure_future(asyncio.sleep(0))
    await done
    await ending.end_tasks()
    await ending.end_tasks(done)
    assert not done.cancelled()


@gen_test()
async def test_a_time_limit_holds_although_a_cancellation_is_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ending, "AGAIN", 0.01)
    with pytest.raises(asyncio.TimeoutError):
        await ending.within(misses_the_first(), 0.01)


@gen_test()
async def test_a_cancellation_at_the_moment_of_the_result_is_not_lost() -> None:
    """``asyncio.wait_for`` returns the result before Python 3.12."""
    event = asyncio.Event()

    async def work() -> None:
        await ending.within(event.wait(), 100)
        await asyncio.Event().wait()

    task = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    event.set()
    await asyncio.sleep(0)  # the wait for the event has its result
    task.cancel()
    await asyncio.wait([task], timeout=20)
    assert task.cancelled()


@gen_test()
async def test_results_and_errors_within_a_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cleanup that may be long is not cancelled again."""
    monkeypatch.setattr(ending, "AGAIN", 0.01)
    cleaned = asyncio.Event()

    async def cleans_up() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.1)
            cleaned.set()

    async def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.TimeoutError):
        await ending.within(cleans_up(), 0.01, once=True)
    assert cleaned.is_set()
    assert await ending.within(asyncio.sleep(0, 3), 100) == 3
    assert await ending.within(asyncio.sleep(0, 3), None) == 3
    with pytest.raises(ZeroDivisionError):
        await ending.within(asyncio.to_thread(lambda: 1 / 0), 100)
    with pytest.raises(asyncio.CancelledError):
        await ending.within(cancelled(), 100)
