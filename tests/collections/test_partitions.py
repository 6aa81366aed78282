"""Lazy data: its rows by metadata, and loading on the workers that will train."""

from __future__ import annotations

import asyncio
import itertools
import threading
from time import sleep

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import wait

import clustertune
from clustertune.actions import placing
from clustertune.collections.partitions import Lazy, lengths, loading_graph
from clustertune.errors import CapacityError, IncompleteError
from tests.builders import layout, view, worker
from tests.in_process import THREE, gen_cluster
from tests.processes import local_workers, soon

FRAME = pd.DataFrame({"a": np.arange(900.0), "b": np.arange(900), "y": 1})


@pytest.fixture
def parquet(tmp_path):
    """Nine files with uneven rows."""
    ends = [0, 20, 80, 220, 240, 420, 520, 540, 700, 900]
    partitions = [FRAME[i:j] for i, j in itertools.pairwise(ends)]
    for n, partition in enumerate(partitions):
        partition.to_parquet(tmp_path / f"{n}.parquet")
    return tmp_path, [len(p) for p in partitions]


def received(*workers):
    return sum(t["total"] for w in workers for t in w.transfer_incoming_log)


def restricted(scheduler):
    return [ts.key for ts in scheduler.tasks.values() if ts.worker_restrictions]


# --- rows -----------------------------------------------------------------------------


def test_rows_of_arrays():
    """Rows are those of the chunks; after a filter they are unknown."""
    X = da.ones((10, 2), chunks=((3, 7), 1))
    assert lengths(X, asynchronous=True).tolist() == [3, 7]
    assert lengths(X[X[:, 0] > 0], asynchronous=True) is None


@pytest.mark.parametrize("filesystem", [None, "arrow"])
def test_rows_of_parquet_files(parquet, filesystem, monkeypatch):
    """Rows come from Parquet footers through operations on values, but not filters."""
    # where no client is, whatever a test before has left as the default
    monkeypatch.setitem(dask.config.config, "scheduler", "sync")
    frame = dd.read_parquet(parquet[0], filesystem=filesystem)
    parts = [frame.partitions[i] for i in range(9)]
    rows = [len(part.compute(scheduler="sync")) for part in parts]
    assert sorted(rows) == sorted(parquet[1])  # one reader sorts files by size
    for x in (frame, frame["a"], frame[["a", "b"]].astype("f4") + 1):
        assert lengths(x, asynchronous=False).tolist() == rows
    for x in (frame[frame.a > 3], frame.map_partitions(lambda f: f[:1], meta=frame)):
        assert lengths(x, asynchronous=False) is None
    # Dask tells the rows of other partitions than those selected
    for some in ([1, 2], [2, 0], slice(1, 3)):
        assert lengths(frame.partitions[some], asynchronous=False) is None


def test_rows_that_only_tasks_could_tell(parquet):
    """Row counts that need tasks are not computed for an asynchronous client."""
    frame = dd.read_parquet(parquet[0], filesystem="arrow")
    assert lengths(frame, asynchronous=True) is None


def test_files_that_are_gone(parquet):
    """Rows of missing files are unknown; loading raises the error."""
    frame = dd.read_parquet(parquet[0])
    for file in parquet[0].iterdir():
        file.unlink()
    assert lengths(frame, asynchronous=False) is None


# --- the graph ------------------------------------------------------------------------


def test_what_one_worker_needs_is_made_there():
    """Ancestors of one worker's partitions are bound to it; shared ones are not."""
    base = da.random.random((40, 2), chunks=(10, 2))
    shared = base.sum()
    X, y = base * 2 + shared, base[:, 0]
    homes = ["a", "b", "a", "b"]
    graph = loading_graph([Lazy("X", X, homes, None), Lazy("y", y, homes, None)])
    assert [graph.where[k] for k in graph.partitions["X"]] == homes
    assert [graph.where[k] for k in graph.partitions["y"]] == homes
    free = [k for k in graph.tasks if k not in graph.where]
    assert free
    assert all("sum" in str(k) or "random" in str(k) for k in free)


def test_without_places_nothing_is_bound():
    """Dask chooses the workers of data with unknown rows."""
    graph = loading_graph([Lazy("X", da.ones((4, 2), chunks=2), None, None)])
    assert graph.where == {}
    assert len(graph.partitions["X"]) == 2


# --- on clusters ----------------------------------------------------------------------


@gen_cluster(client=True, nthreads=THREE)
async def test_arrays_are_computed_where_they_train(c, s, *workers):
    """Rows are even, pairs are together, nothing is transferred or stays bound."""
    X = da.random.default_rng(0).random(
        (900, 4), chunks=((50, 250, 80, 120, 100, 160, 140), 4)
    )
    y = X[:, 0] * 2
    Xp, yp = p = await clustertune.prepare(c, X, y)
    assert received(*workers) == 0
    assert [plan.phase for plan in p.plan] == ["load"]
    found, labels = [await c.compute(x) for x in (Xp, yp)]
    np.testing.assert_array_equal(found, await c.compute(X))
    np.testing.assert_array_equal(labels, found[:, 0] * 2)
    assert p.report.after[0].imbalance <= 1.05
    assert restricted(s) == []


@gen_cluster(client=True, nthreads=THREE)
async def test_parquet_is_read_where_it_trains(c, s, *workers, parquet):
    """Frames are even by the rows of their footers, and nothing is transferred."""
    frame = dd.read_parquet(parquet[0])
    X, y = p = await clustertune.prepare(c, frame[["a", "b"]], frame["y"])
    assert received(*workers) == 0
    assert p.plan[0].phase == "load"
    assert set(p.plan[0].steps[0].args.targets) == {"X", "y"}
    assert not any(plan.phase == "rebalance" for plan in p.plan)
    pd.testing.assert_frame_equal(await c.compute(X), FRAME[["a", "b"]])
    pd.testing.assert_series_equal(await c.compute(y), FRAME["y"])
    assert p.report.after[0].separated == 0
    assert p.report.after[0].imbalance <= 1.05


@gen_cluster(client=True, nthreads=THREE)
async def test_labels_are_loaded_beside_data(c, s, *workers):
    """If X is loaded, y is computed on the same workers, with any partitions."""
    X = c.persist(da.random.random((900, 4), chunks=(100, 4)))
    await wait(X)
    await clustertune.prepare(c, X)  # Dask may have put 4, 3 and 2 partitions somewhere
    before = received(*workers)
    _, first = await clustertune.prepare(c, X, da.arange(900, chunks=100))
    assert received(*workers) == before
    _, second = await clustertune.prepare(c, X, da.arange(900, chunks=300))
    assert (await c.compute(second)).tolist() == list(range(900))
    assert second.chunks == first.chunks == ((100,) * 9,)


@gen_cluster(client=True, nthreads=THREE)
async def test_what_is_made_of_loaded_data_is_made_where_that_is(c, s, *workers):
    """Data derived from loaded data is computed on its workers."""
    base = await c.persist(da.random.random((900, 4), chunks=(50, 4)))
    before = received(*workers)
    X, y = await clustertune.prepare(c, base[:, 1:] * 2, base[:, 0])
    assert received(*workers) - before <= base.nbytes / 3
    Xn = await c.compute(base)
    np.testing.assert_array_equal(await c.compute(X), Xn[:, 1:] * 2)
    np.testing.assert_array_equal(await c.compute(y), Xn[:, 0])


@gen_cluster(client=True, nthreads=THREE)
async def test_frames_become_arrays_while_they_are_loaded(c, s, *workers, parquet):
    """Arrays have known chunks, and nothing is transferred."""
    frame = dd.read_parquet(parquet[0])
    X, y = p = await clustertune.prepare(
        c, frame[["a", "b"]], frame["y"], estimator="glm", rechunk=False
    )
    assert (type(X), type(y), y.dtype) == (da.Array, da.Array, np.int64)
    assert X.chunks == (tuple(parquet[1]), (2,))
    assert y.chunks == (tuple(parquet[1]),)
    assert received(*workers) == 0
    assert [plan.phase for plan in p.plan] == ["load"]
    np.testing.assert_array_equal(await c.compute(X), FRAME[["a", "b"]].to_numpy())
    np.testing.assert_array_equal(await c.compute(y), FRAME["y"])


@gen_cluster(client=True, nthreads=THREE)
async def test_selected_partitions_in_another_order(c, s, *workers):
    """Rows of reordered partitions are counted, not taken from metadata."""
    frame = dd.from_pandas(pd.DataFrame({"a": range(10)}), npartitions=3)
    (X,) = await clustertune.prepare(
        c, frame.partitions[[2, 0, 1]], estimator="glm", rechunk=False
    )
    assert X.chunks == ((3, 4, 3), (1,))
    assert (await c.compute(X[3:5]))[:, 0].tolist() == [0, 1]


@gen_cluster(client=True, nthreads=THREE)
async def test_unknown_chunks_are_known_afterwards(c, s, *workers):
    """Returned arrays have the counted rows as chunks."""
    base = da.arange(900, chunks=100)
    X = base[base % 3 == 0]
    frame = dd.from_pandas(FRAME, npartitions=9)
    y = frame[frame["b"] % 3 == 0]["b"]
    X2, y2 = await clustertune.prepare(c, X, y, estimator="glm", rechunk=False)
    assert X2.chunks == y2.chunks == ((34, 33, 33) * 3,)
    assert (await c.compute(X2)).tolist() == list(range(0, 900, 3))
    assert (await c.compute(y2)).tolist() == list(range(0, 900, 3))


@gen_cluster(client=True, nthreads=THREE)
async def test_a_worker_lost_while_loading(c, s, a, b, d):
    """Partitions bound to a lost worker are loaded on another one."""

    def slow(block):
        sleep(0.2)
        return block

    X = da.arange(900, chunks=100).map_blocks(slow, dtype="i8")
    work = asyncio.ensure_future(clustertune.prepare(c, X))
    await soon(lambda: any(ts.worker_restrictions for ts in list(s.tasks.values())))
    await d.close()
    (X2,) = p = await work
    assert (await c.compute(X2)).tolist() == list(range(900))
    assert p.report.after[0].imbalance <= 1.2
    assert restricted(s) == []


@gen_cluster(client=True, nthreads=THREE)
async def test_stopped_while_loading(c, s, *workers):
    """The loaded partitions are released, and nothing stays bound."""

    def slow(block):
        sleep(0.2)
        return block

    X = da.arange(900, chunks=100).map_blocks(slow, dtype="i8")
    work = asyncio.ensure_future(clustertune.prepare(c, X))
    await soon(lambda: any(ts.worker_restrictions for ts in list(s.tasks.values())))
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    await soon(lambda: not s.tasks)
    await soon(lambda: s.plugins["clustertune"].lease.holder() is None)


@gen_cluster(client=True, nthreads=THREE)
async def test_a_partition_that_fails(c, s, *workers):
    """The error of a partition is raised, and nothing stays bound."""

    def fail(block):
        raise ZeroDivisionError("on purpose")

    X = da.arange(900, chunks=100).map_blocks(fail, dtype="i8")
    with pytest.raises(IncompleteError, match="on purpose"):
        await clustertune.prepare(c, X)
    assert restricted(s) == []


def test_too_much_is_refused_while_all_workers_are_paused() -> None:
    """Too much data is refused even if all workers are paused."""
    full = [worker(i, status="paused", memory_limit=100) for i in range(2)]
    lazy = layout([100], None, ["X"], {"X": 80})
    with pytest.raises(CapacityError, match="workers spill: 2 workers have 0 B free"):
        list(placing.propose_load((), view(full, [lazy])))


@gen_cluster(
    client=True,
    nthreads=THREE,
    worker_kwargs={"memory_limit": "64 MiB"},
    config={"distributed.worker.memory.pause": False},  # their process has more
)
async def test_too_much_is_not_loaded(c, s, *workers):
    """Data known to exceed memory is refused before anything is computed."""
    X = da.random.random((10_000_000, 10), chunks=(100_000, 10))
    with pytest.raises(CapacityError, match=r"X \(762.9 MiB\) cannot be loaded"):
        await clustertune.prepare(c, X)
    assert not s.tasks


GO_ON, COUNT = threading.Event(), itertools.count()


def _partition(i):
    assert next(COUNT) < 20 or GO_ON.wait(30)
    return pd.DataFrame({"a": np.full(250_000, float(i))})


@gen_cluster(
    client=True,
    nthreads=THREE,
    worker_kwargs={"memory_limit": "8 GiB"},
    config={"distributed.worker.memory.target": 0.001},  # 8.6 MB
)
async def test_what_turns_out_to_be_too_much(c, s, *workers):
    """Loading stops at the spill thresholds and leaves nothing in memory."""
    X = dd.from_map(_partition, range(30), meta=pd.DataFrame({"a": [0.0]}))
    text = (
        r"X cannot be loaded: \d+ of 30 partitions took .*, "
        r"so all take about 5.\.. MiB;"
    )
    with pytest.raises(CapacityError, match=text):
        await clustertune.prepare(c, X)
    GO_ON.set()
    await soon(lambda: not s.tasks and not any(w.data for w in workers))
    (few,) = await clustertune.prepare(c, X.partitions[:10])
    assert await c.compute(few["a"].count()) == 2_500_000


def test_with_a_synchronous_client(parquet):
    """Tasks read footers in worker processes."""
    with local_workers() as client:
        frame = dd.read_parquet(parquet[0], filesystem="arrow")
        X, y = p = clustertune.prepare(client, frame[["a", "b"]], frame["y"])
        assert set(p.plan[0].steps[0].args.targets) == {"X", "y"}
        found = X.compute().sort_values("b").reset_index(drop=True)
        pd.testing.assert_frame_equal(found, FRAME[["a", "b"]])
        assert p.report.after[0].separated == 0
