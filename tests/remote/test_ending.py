"""Tasks end even if they miss a cancellation."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from clustertune.remote import ending
from tests.in_process import gen_test


@gen_test()
async def test_a_task_that_misses_its_cancellation_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ending, "AGAIN", 0.01)
    never = asyncio.Event()

    async def misses_the_first() -> None:
        with suppress(asyncio.CancelledError):
            await never.wait()
        await never.wait()

    async def fails() -> None:
        try:
            await never.wait()
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
