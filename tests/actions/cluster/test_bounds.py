"""Bounds of adaptive scaling after an interrupted change."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from distributed import Client, LocalCluster

from clustertune.actions.cluster import workers
from clustertune.actions.cluster.live import LiveCluster
from clustertune.collections import inputs
from clustertune.core.model import Bounds, Goal
from clustertune.integrations import libraries, managers
from tests.in_process import gen_cluster, gen_test
from tests.processes import IN_PROCESS, soon


def test_interrupted_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of the change ends before the former bounds are restored."""
    began, gate, ended = threading.Event(), threading.Event(), threading.Event()
    find = managers.find

    def find_slow(cluster: Any) -> Any:
        """Return an adapter whose first change runs in a thread."""
        adapter = find(cluster)
        adapt = adapter.adapt

        def change(minimum: int, maximum: float) -> None:
            began.set()
            gate.wait(200)
            asyncio.run(adapt(minimum, maximum))
            ended.set()

        async def slowly(minimum: int, maximum: float) -> None:
            await managers.off_loop(change, minimum, maximum)

        if not began.is_set():
            monkeypatch.setattr(adapter, "adapt", slowly)
        return adapter

    monkeypatch.setattr(managers, "find", find_slow)

    @gen_test()
    async def run() -> None:
        options = IN_PROCESS | {"asynchronous": True}
        async with (
            LocalCluster(1, **options) as cluster,
            Client(cluster, asynchronous=True, set_as_default=False) as client,
        ):
            cluster.adapt(minimum=1, maximum=2)
            adaptive: Any = cluster._adaptive
            goal = Goal(workload=libraries.choose(None))
            live = LiveCluster(client, inputs.NOTHING, goal, lambda: 60.0)
            change = live.adapt(Bounds(minimum=1, maximum=3), lambda *_: None)
            adapting = asyncio.ensure_future(change)
            await soon(began.is_set)
            adapting.cancel()
            for _ in range(10):
                await asyncio.sleep(0)
            waited = not adapting.done()
            gate.set()
            await asyncio.wait([adapting])
            assert adapting.cancelled()
            await live.put_bounds_back()
            await soon(ended.is_set)
            assert waited
            assert (adaptive.minimum, adaptive.maximum) == (1, 2)

    run()


@gen_cluster(client=True, nthreads=[])
async def test_a_manager_without_an_answer(
    c: Any, s: Any, monkeypatch: Any, caplog: Any
) -> None:
    """The call ends, and the log has the line that restores the bounds."""

    class Silent(managers.Adapter):
        async def adapt(self, minimum: int, maximum: float) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr(managers, "find", Silent)
    monkeypatch.setattr(workers, "MANAGER_SECONDS", 0.01)
    await asyncio.wait_for(workers.put_bounds_back(c, (1, 2)), 30)
    assert "other bounds (TimeoutError()); " in caplog.text
    assert "cluster.adapt(minimum=1, maximum=2)" in caplog.text
