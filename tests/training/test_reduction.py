"""Sums on clusters, most in one process."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, Event, LocalCluster, get_worker, wait
from distributed.utils_test import inc

from clustertune.collections import graphs
from clustertune.errors import (
    AlignmentError,
    FunctionError,
    IncompleteError,
    NoWorkersError,
)
from clustertune.training import map_reduce, reduction
from tests.in_process import gen_cluster
from tests.processes import interrupted_when, soon, until

TWO = [("127.0.0.1", 2), ("127.0.0.1", 1)]
BIG = np.arange(1_200_000.0)  # large enough for a separate task


def quiet(s: Any) -> bool:
    """Return whether the scheduler has forgotten all tasks of sums."""
    return not [k for k in s.tasks if "map_reduce" in str(k) or "broadcast" in str(k)]


# --- results --------------------------------------------------------------------------


@gen_cluster(client=True, nthreads=TWO)
async def test_a_sum_of_items(c: Any, s: Any, a: Any, b: Any) -> None:
    """Each item counts once, and broadcast arguments arrive unchanged."""

    def g(i: int, x: Any, *rest: Any) -> Any:
        assert rest == ("x", ("map", 0), {"k": [1]}, None, 7)
        return {"sum": x[:2] * i, "n": 1}

    seven = c.submit(inc, 6)
    broadcast = (BIG, "x", ("map", 0), {"k": [1]}, None, seven)
    for items in (range(10), list(range(10)), np.arange(10), tuple(range(10))):
        found = await map_reduce(c, g, items, broadcast=broadcast)
        assert found["n"] == 10
        assert found["sum"].tolist() == [0, 45]
    assert await map_reduce(c, lambda row: row, np.ones((4, 2))) @ [1, 1] == 8
    assert await map_reduce(c, lambda i, a: a[i], range(3), broadcast=([1, 2, 3],)) == 6
    assert await map_reduce(c, lambda i: (-abs(i - 3), i), range(9), reduce=max) == (
        0,
        3,
    )


@pytest.mark.parametrize("limit", [0, 1 << 30])
@gen_cluster(client=True, nthreads=TWO)
async def test_arrays_are_aligned(
    c: Any, s: Any, a: Any, b: Any, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """Arrays are aligned on all workers, both in tasks and as separate tasks."""
    monkeypatch.setattr(reduction, "MAX_REPEATED", limit)

    def f(i: int, x: Any, y: Any) -> int:
        return (x.ctypes.data | y.ctypes.data) % 8

    for size in (1, 10_001, 100_003):
        broadcast = np.ones(size), np.ones((size, 2))
        assert await map_reduce(c, f, range(10), broadcast=broadcast) == 0


@gen_cluster(client=True, nthreads=TWO)
async def test_partitions_are_summed_on_their_workers(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    """Only results move; the same layout gives the same bits; frames work too."""
    X = da.random.default_rng(1).random((900, 4), chunks=(100, 4))
    y = X[:, 0] * 2
    where = [a.address if i < 6 else b.address for i in range(9)]
    with_workers = {"workers": lambda key: where[key[1]], "allow_other_workers": True}
    with dask.annotate(**with_workers):
        X, y = c.persist([X, y], optimize_graph=False)
    await wait([X, y])

    def f(X: Any, y: Any, w: Any) -> Any:
        return X.T @ (X @ w - y), {get_worker().address: len(X)}.get(HERE, 0)

    HERE, w = b.address, np.ones(4)
    before = a.transfer_outgoing_bytes_total, b.transfer_outgoing_bytes_total
    gradient, rows = await map_reduce(c, f, (X, y), broadcast=(w,))
    moved = a.transfer_outgoing_bytes_total + b.transfer_outgoing_bytes_total
    assert rows == 300
    assert moved - sum(before) < 1000  # a partition has 4,000 bytes
    X_here, y_here = await c.gather(c.compute([X, y]))
    assert np.allclose(gradient, X_here.T @ (X_here @ w - y_here))
    again = [await map_reduce(c, f, (X, y), broadcast=(w,)) for _ in range(5)]
    assert {g.tobytes() for g, _ in again} == {gradient.tobytes()}
    frame = dd.from_pandas(pd.DataFrame({"x": range(10)}), npartitions=4)
    assert await map_reduce(c, lambda part: part["x"].sum(), c.persist(frame)) == 45


@gen_cluster(client=True, nthreads=TWO)
async def test_futures_are_items(c: Any, s: Any, a: Any, b: Any) -> None:
    futures = c.map(inc, range(6))
    assert await map_reduce(c, lambda x, y: x * y, futures, broadcast=(2,)) == 42
    async with Client(s.address, asynchronous=True, set_as_default=False) as other:
        with pytest.raises(ValueError, match="that another client made"):
            await map_reduce(other, lambda x: x, futures)
    failed = [*futures[1:], c.submit(lambda: 1 / 0)]
    with pytest.raises(ZeroDivisionError):
        await map_reduce(c, inc, failed)
    for future in futures:
        await future.cancel()
    with pytest.raises(IncompleteError, match="were cancelled"):
        await map_reduce(c, inc, futures)


@gen_cluster(client=True, nthreads=TWO)
async def test_iterations_leave_no_data(
    c: Any, s: Any, a: Any, b: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call sends the array as a new task, and releases its tasks."""
    monkeypatch.setattr(reduction, "MAX_REPEATED", 100)
    w, most = np.ones(1000), 0
    for _ in range(20):
        step = await map_reduce(c, lambda i, w: w[:3] * i, range(9), broadcast=(w,))
        w[:3] = step / 36 + 1
        most = max(most, len(s.tasks))
    assert w[:3].tolist() == [21.0] * 3
    assert most <= 2 * (3 + 2 + 1)  # two calls of batches, joins and one argument
    await soon(lambda: not c.futures)
    await soon(lambda: not s.tasks and not a.data and not b.data)


@gen_cluster(client=True, nthreads=TWO)
async def test_results_are_released_with_the_next_call(
    c: Any, s: Any, a: Any, b: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their messages travel with those of its graph. A failed call keeps none."""
    monkeypatch.setattr(reduction, "RELEASE_DELAY", 600)
    assert await map_reduce(c, inc, range(9)) == 45
    (before,) = c.futures
    assert await map_reduce(c, abs, range(9)) == 36
    (now,) = c.futures
    assert now != before
    await soon(lambda: before not in s.tasks)
    with pytest.raises(FunctionError):
        await map_reduce(c, lambda i: 1 / i, range(9))
    await soon(lambda: not c.futures and not s.tasks)


def test_a_client_whose_loop_has_ended_is_freed() -> None:
    """Its last results were not released."""
    options = {"n_workers": 1, "processes": False, "dashboard_address": "127.0.0.1:0"}

    async def run() -> weakref.ref[Client]:
        async with (
            LocalCluster(asynchronous=True, **options) as cluster,
            Client(cluster, asynchronous=True) as client,
        ):
            assert await map_reduce(client, inc, range(9)) == 45
            assert reduction.LATEST in vars(client)
            return weakref.ref(client)

    client = asyncio.run(run())
    gc.collect()
    assert client() is None


# --- faults ---------------------------------------------------------------------------


@gen_cluster(client=True, nthreads=TWO)
async def test_a_failed_item_is_named(c: Any, s: Any, a: Any, b: Any) -> None:
    """The error of func is the cause, its text is escaped, and other tasks end."""

    def f(i: int) -> int:
        if i == 5:
            raise KeyError("no \x1b[31m")
        return i

    with pytest.raises(FunctionError, match=r"item 5: KeyError: 'no \\x1b") as caught:
        await map_reduce(c, f, range(9))
    assert caught.value.items == (5,)
    assert isinstance(caught.value.__cause__, KeyError)

    class StubbornError(Exception):
        def __init__(self, one: str, two: str):
            super().__init__(one + two)

    def refuse(i: int) -> int:
        raise StubbornError("does not", " unpickle")

    with pytest.raises(FunctionError, match="StubbornError: does not unpickle"):
        await map_reduce(c, refuse, [1])

    class OwnExit(BaseException):
        """An error that is no Exception."""

    def leave(i: int) -> int:
        raise [asyncio.CancelledError, OwnExit][i]("bye")

    with pytest.raises(FunctionError, match="item 0: CancelledError: bye"):
        await map_reduce(c, leave, [0])
    with pytest.raises(FunctionError, match="item 0: OwnExit: bye"):
        await map_reduce(c, leave, [1])
    with pytest.raises(
        FunctionError, match=r"item 8 .* fit .*: shape \(8,\) after shape"
    ):
        await map_reduce(c, lambda i: np.ones(i if i == 8 else 3), range(9))
    with pytest.raises(FunctionError, match=r"reduce failed at the result of item"):
        await map_reduce(c, inc, range(9), reduce=lambda x, y: x / 0)
    await soon(lambda: not s.tasks)


@gen_cluster(client=True, nthreads=TWO)
async def test_misuse(c: Any, s: Any, a: Any, b: Any) -> None:
    """Wrong arguments raise an error with a fix before anything runs."""
    X = da.ones((10, 2), chunks=(5, 2))
    lock = threading.Lock()
    cases: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (TypeError, r"list\(items\)", lambda: map_reduce(c, inc, iter([1]))),
        (TypeError, "it was set", lambda: map_reduce(c, inc, {1})),
        (TypeError, "it was str", lambda: map_reduce(c, inc, "abc")),
        (ValueError, "empty", lambda: map_reduce(c, inc, [])),
        (TypeError, "func must be", lambda: map_reduce(c, 1, [1])),
        (TypeError, "reduce must be", lambda: map_reduce(c, inc, [1], reduce="max")),
        (TypeError, r"\(w,\)", lambda: map_reduce(c, inc, [1], broadcast=np.ones(2))),
        (TypeError, r"broadcast\[0\] is lazy",
         lambda: map_reduce(c, inc, [1], broadcast=(X,))),
        (TypeError, "func cannot be sent", lambda: map_reduce(c, lambda i: lock, [1])),
        (TypeError, "in a tuple", lambda: map_reduce(c, inc, [X, X])),
        (TypeError, "client.compute", lambda: map_reduce(c, inc, X.to_delayed()[0])),
        (TypeError, r"items\[1\] is a Future in a list of values",
         lambda: map_reduce(c, inc, [1, c.submit(inc, 1)])),
        (TypeError, "y must be a Dask", lambda: map_reduce(c, inc, (X, [1]))),
        (AlignmentError, "X has 2 partitions and y has 5: they are not row-aligned",
         lambda: map_reduce(c, inc, (X, X.rechunk((2, 2))))),
        (FunctionError, r"item \d: .* 5 and \d rows",
         lambda: map_reduce(c, inc, tuple(c.persist([X, X.rechunk(((4, 6), 2))])))),
        (AlignmentError, "several column blocks",
         lambda: map_reduce(c, inc, X.rechunk(1))),
        (ValueError, r"items: X is not in memory.* client\.persist",
         lambda: map_reduce(c, inc, X)),
        (ValueError, "y is not in memory",
         lambda: map_reduce(c, inc, (c.persist(X), X[:, 0]))),
    ]  # fmt: skip
    for error, said, call in cases:
        with pytest.raises(error, match=said):
            await call()
    with pytest.raises(TypeError, match="items or broadcast cannot be sent to workers"):
        await map_reduce(c, inc, [1], broadcast=(1, lock))
    with pytest.raises(TypeError, match="items or broadcast cannot be sent to workers"):
        await map_reduce(c, inc, [1, lock])
    rows = dd.from_pandas(pd.DataFrame({"x": range(10)}), npartitions=2)
    some = c.persist([rows["x"], rows[rows["x"] != 2]])
    with pytest.raises(FunctionError, match="5 and 4 rows"):
        await map_reduce(c, lambda a, b: 0, tuple(some))


@gen_cluster(client=True, nthreads=[])
async def test_no_workers(c: Any, s: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data is not waited for without an end."""
    with pytest.raises(NoWorkersError, match=r"wait_for_workers\(1\)"):
        await map_reduce(c, inc, [1])
    X = c.persist(da.ones((10, 2), chunks=(5, 2)))
    monkeypatch.setattr(reduction, "WATCH_INTERVAL", 0.05)
    monkeypatch.setattr(reduction, "NO_WORKER_TIMEOUT", 0.2)
    with pytest.raises(NoWorkersError, match=r"has had no worker for 0\.2 s"):
        await map_reduce(c, np.sum, X)


def test_large_arguments_of_many_tasks_are_separate() -> None:
    def is_separate(nbytes: int, n_tasks: int) -> bool:
        graph = graphs.Graph()
        value = np.empty(nbytes, "u1")  # the kernel never allocates its pages
        reduction._argument(graph, "key", value, n_tasks)
        return bool(graph.tasks)

    assert not is_separate(8_000_000, 2)
    assert is_separate(8_000_001, 2)
    assert is_separate(1_000_000, 10)
    assert not is_separate(1 << 30, 1)


@gen_cluster(client=True, nthreads=TWO)
async def test_a_cancelled_broadcast_future(c: Any, s: Any, a: Any, b: Any) -> None:
    """The error does not name the items alone."""
    value = await c.scatter(3, hash=False)
    await c.cancel([value])
    with pytest.raises(IncompleteError, match=r"broadcast futures .* were cancelled"):
        await map_reduce(c, pow, [1, 2], broadcast=(value,))


@gen_cluster(client=True, nthreads=TWO)
async def test_scattered_items_are_lost(c: Any, s: Any, a: Any, b: Any) -> None:
    """Dask cannot recompute them."""
    items = await c.scatter([1, 2], workers=[a.address])
    go = Event("go")

    def f(i: int) -> int:
        Event("begun").set()
        go.wait()
        return i

    call = asyncio.ensure_future(map_reduce(c, f, items))
    await Event("begun").wait()
    closing = asyncio.ensure_future(a.close(executor_wait=False))
    await soon(lambda: a.address not in s.workers)
    await go.set()
    with pytest.raises(IncompleteError, match="scattered"):
        await call
    await closing


@gen_cluster(client=True, nthreads=TWO)
async def test_a_cancelled_call_leaves_no_task(c: Any, s: Any, a: Any, b: Any) -> None:
    go = Event("go")

    def f(i: int, w: Any) -> None:
        Event("begun").set()
        go.wait()

    call = asyncio.ensure_future(map_reduce(c, f, range(30), broadcast=(BIG,)))
    await Event("begun").wait()
    call.cancel()
    await soon(lambda: quiet(s))
    await soon(lambda: not c.futures)
    await go.set()


# --- real processes -------------------------------------------------------------------


@pytest.mark.slow
def test_workers_that_are_killed(local_cluster: Any, tmp_path: Path) -> None:
    """A lost worker costs a recomputation, even the only one. An error names the
    items of a task that kills all workers. ^C leaves no tasks."""
    _, client = local_cluster(1)
    flag = tmp_path / "killed"
    X = client.persist(da.ones((8, 3), chunks=(1, 3)))
    wait(X)

    def f(x: Any, w: Any) -> Any:
        if x.sum() == 3 and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return x[0] * w[:3]

    for _ in range(3):
        found = map_reduce(client, f, X, broadcast=(BIG,))
        assert found.tolist() == [0, 8, 16]
    assert flag.exists()

    def ends(i: int) -> None:
        # not at once: a nanny of Dask 2025.5 loses a worker that ends before it has
        # registered, and then never closes
        time.sleep(0.3)
        os._exit(1)

    with pytest.raises(
        FunctionError, match="4 workers ended while they worked on item 0"
    ):
        map_reduce(client, ends, [0])
    client.wait_for_workers(1, timeout=200)

    def wait_for_ever(i: int) -> None:
        Event("begun").set()
        Event("never").wait()

    begun = Event("begun", client=client)
    with interrupted_when(begun.wait), pytest.raises(KeyboardInterrupt):
        map_reduce(client, wait_for_ever, range(9))
    until(lambda: not any("map_reduce" in str(k) for k in tasks(client)))
    Event("never", client=client).set()


def tasks(client: Client) -> Any:
    return client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.tasks))
