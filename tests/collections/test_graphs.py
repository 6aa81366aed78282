"""Graphs of clustertune, and collections of some of their partitions."""

from __future__ import annotations

import asyncio
from threading import Event
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import clustertune
from clustertune.collections import graphs
from clustertune.errors import RefusedError
from tests.in_process import gen_cluster


def test_constants():
    """Each worker gets one small array by key."""
    values = [np.array([1, 2]), np.array([3])]
    graph = graphs.constants("qid", values, ["a", "b"])
    keys = graph.partitions["qid"]
    assert [graph.where[k] for k in keys] == ["a", "b"]
    found = dask.get(dict(graph.tasks), keys)
    assert [f.tolist() for f in found] == [[1, 2], [3]]


@pytest.mark.parametrize("bound", [{"resources": {"GPU": 1}}, {"workers": ["a"]}])
def test_tasks_that_are_bound_to_workers(bound: Any) -> None:
    """Their annotations are not dropped without a message."""
    with dask.config.set({"optimization.fuse.active": False}):
        with dask.annotate(**bound):
            x = da.ones(4, chunks=2) + 1
        with pytest.raises(RefusedError, match="persist the data first"):
            graphs.optimized([x])
        with dask.annotate(priority=1):
            x = da.ones(4, chunks=2) + 1
        _, (keys,) = graphs.optimized([x])
    assert len(keys) == 2


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_what_was_bound_is_let_go(c, s, a, b):
    """Bound data is released, also in a graph, where it would wait for its worker."""
    numbers = np.arange(40.0).reshape(20, 2)
    for chunks, n_partitions in ((10, 2), (20, 8)):
        p = await clustertune.prepare(
            c, da.from_array(numbers, chunks=(chunks, 2)), rechunk=n_partitions
        )
        assert not [k for k, ts in s.tasks.items() if ts.worker_restrictions]
    await b.close()
    np.testing.assert_array_equal(await c.compute(p.X), numbers)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_two_threads_that_submit_at_once(
    c: Any, s: Any, a: Any, b: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads change Dask's threshold, and both restore it."""
    seen: list[Any] = []
    get, inside, more = c.get, Event(), Event()

    def slow(*arguments: Any, **how: Any) -> Any:
        seen.append(dask.config.get(graphs.THRESHOLD))
        if len(seen) == 1:
            inside.set()
            more.wait(0.5)  # for the other one, which must not come
        return get(*arguments, **how)

    monkeypatch.setattr(c, "get", slow)
    one, two = (graphs.constants("x", [[1]], [a.address]) for _ in range(2))
    with dask.config.set({graphs.THRESHOLD: "12 MB"}):
        first = asyncio.ensure_future(asyncio.to_thread(graphs.submit, c, one))
        await asyncio.to_thread(inside.wait, 10)
        second = asyncio.to_thread(graphs.submit, c, two)
        made = await asyncio.gather(first, second)
        assert dask.config.get(graphs.THRESHOLD) == "12 MB"
    assert seen == ["1 TB", "1 TB"]
    for futures in made:
        (future,) = futures.values()
        assert (await future).tolist() == [1]


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_lazy_data_made_of_futures(c: Any, s: Any, a: Any) -> None:
    """``from_delayed`` has only the keys of futures in its graph."""
    part = pd.DataFrame({"a": [1, 2]})
    future = c.submit(lambda: part)
    frame = dd.from_delayed([future], meta=part)
    x = da.from_delayed(dask.delayed(future), (2, 1), float)
    assert [graphs.origin(of)[0] for of in (frame["a"], x + 1)] == [True, True]
    lazy = dd.from_pandas(part, npartitions=1)
    assert not graphs.origin(lazy)[0]
    assert not graphs.origin(dd.from_delayed([dask.delayed(part)], meta=part))[0]
    assert not graphs.origin(da.ones((4, 2), chunks=2).rechunk(3).sum(axis=1))[0]
