"""``prepare`` on real clusters: its result, placement, and unchanged data."""

from __future__ import annotations

import asyncio
import logging
import sys
from functools import partial
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import (
    Client,
    LocalCluster,
    Scheduler,
    SpecCluster,
    Worker,
    futures_of,
    wait,
)
from distributed.core import Status
from xgboost.dask import DaskXGBClassifier

import clustertune
from clustertune import errors
from clustertune.monitor import inquiry
from clustertune.remote import ship
from tests import in_process
from tests.builders import verify
from tests.processes import IN_PROCESS, soon, stop_stealing, until

#: tasks stay on the workers that are named, however busy these are
gen_cluster = partial(
    in_process.gen_cluster, config={"distributed.scheduler.work-stealing": False}
)
TWO = [("127.0.0.1", 1)] * 2
LIMIT = {"memory_limit": "4GiB"}  # their process is that of all tests


async def uneven(c: Any, worker: Any, n: int = 2000) -> tuple[Any, Any]:
    """Return X and y in 20 partitions, all on one worker."""
    X = da.random.default_rng(0).random((n, 4), chunks=(n // 20, 4))
    y = da.arange(n, chunks=n // 20)
    await c.run_on_scheduler(stop_stealing)
    with dask.annotate(workers=[worker.address], allow_other_workers=True):
        X, y = c.persist([X, y])
    await wait([X, y])
    return X, y


def where(s: Any, collection: Any) -> list[set[str]]:
    """Return the holders of each partition, in order."""
    keys = [f.key for f in futures_of(collection)]
    return [{ws.address for ws in s.tasks[k].who_has} for k in keys]


@gen_cluster(
    client=True, nthreads=[("127.0.0.1", 1), ("127.0.0.1", 3)], worker_kwargs=LIMIT
)
async def test_rows_follow_threads(c, s, a, b):
    """A worker with three threads gets three times the rows of one with one thread."""
    X, y = await uneven(c, a)
    with dask.config.set({"clustertune.prepare.tolerance": 0}):
        await clustertune.prepare(c, X, y)
    assert sum(h == {b.address} for h in where(s, X)) == 15


@gen_cluster(client=True, nthreads=TWO, worker_kwargs=LIMIT)
async def test_separated_pairs_come_together(c, s, a, b):
    """X is on one worker and y on the other; mostly the small y moves."""
    X, _ = await uneven(c, a)
    y = c.persist(da.ones(2000, chunks=100), workers=[b.address])
    await wait(y)
    p = await clustertune.prepare(c, X, y)
    assert where(s, X) == where(s, y)
    assert p.report.before[0].separated == 20
    assert p.report.after[0].separated == 0
    x, t = (s.tasks[futures_of(k)[0].key].nbytes for k in (X, y))
    assert p.report.steps[0].nbytes == 10 * x + 10 * t


@gen_cluster(client=True, nthreads=TWO, worker_kwargs=LIMIT)
async def test_a_paused_worker_gets_nothing(c, s, a, b):
    """A paused worker gets no data, and its data moves away."""
    X, y = await uneven(c, a)
    b.memory_manager.memory_pause_fraction = 1e-9
    await soon(lambda: b.status is Status.paused and len(s.running) == 1)
    p = await clustertune.prepare(c, X, y)
    assert set().union(*where(s, X)) == {a.address}
    assert any(f.check == "paused_workers" for f in p.report.left)


@gen_cluster(client=True, nthreads=TWO, worker_kwargs=LIMIT)
async def test_one_partition_for_two_workers(c, s, a, b):
    """With rechunk=False one worker trains; the report has the reason and a fix."""
    p = await clustertune.prepare(c, da.ones((100, 4), chunks=100), rechunk=False)
    (idle,) = [f for f in p.report.left if f.check == "empty_workers"]
    assert "only 1 partition, so only 1 of 2 workers will train" in idle.message
    assert "Leave out rechunk=" in idle.remedy


@gen_cluster(client=True, nthreads=TWO, worker_kwargs=LIMIT)
async def test_a_surplus_copy_goes(c, s, a, b):
    """The misplaced replica of a partition on two workers is dropped."""
    X, y = await uneven(c, a)
    await clustertune.prepare(c, X, y)
    await c.amm.stop()
    await c.replicate(futures_of(X)[:4], n=2)
    assert sum(len(h) == 2 for h in where(s, X)) == 4
    p = await clustertune.prepare(c, X, y)
    assert [len(h) for h in where(s, X)] == [1] * 20
    assert where(s, X) == where(s, y)
    assert p.report.steps[0].nbytes == 0


@gen_cluster(client=True, nthreads=TWO, worker_kwargs=LIMIT)
async def test_lazy_frames_keep_what_they_are(c, s, a, b):
    """A frame and its column return as frame and series.

    Values, names, index, divisions and order stay.
    """
    source = pd.DataFrame(
        {"p": np.arange(400.0), "q": pd.Categorical(["u", "v"] * 200), "t": 1},
        index=pd.Index(np.arange(400) * 2, name="row"),
    )
    frame = dd.from_pandas(source, npartitions=8)
    X, y = await clustertune.prepare(c, frame[["p", "q"]], frame["t"])
    assert isinstance(X, dd.DataFrame)
    assert isinstance(y, dd.Series)
    assert X.divisions == frame.divisions
    pd.testing.assert_frame_equal(await c.compute(X), source[["p", "q"]])
    pd.testing.assert_series_equal(await c.compute(y), source["t"])
    assert where(s, X) == where(s, y)
    assert len(set(map(frozenset, where(s, X)))) == 2


@gen_cluster(client=True, nthreads=TWO, worker_kwargs=LIMIT)
async def test_the_result_outlives_its_inputs(c, s, a, b):
    """The result can be computed after all inputs are released."""
    source = pd.DataFrame({"p": np.arange(100.0), "t": 1})
    frame = dd.from_pandas(source, npartitions=4)
    X, y = await clustertune.prepare(c, frame[["p"]], frame["t"])
    del frame
    assert (await c.compute(X["p"].sum())) == source["p"].sum()
    Z = X.assign(u=2)
    del X
    assert (await c.compute(Z["u"].sum())) == 200


@gen_cluster(client=True, nthreads=TWO, worker_kwargs=LIMIT)
async def test_companions_and_eval_sets(c, s, a, b):
    """Companions are with X; eval sets are placed separately; all are returned."""
    X, y = await uneven(c, a)
    Xv, yv = await uneven(c, a, n=400)
    w = da.ones(2000, chunks=100)
    with dask.config.set({"clustertune.prepare.tolerance": 0}):
        p = await clustertune.prepare(
            c, X, y, sample_weight=w, eval_set=[(Xv, yv), (X, y)]
        )
    X2, y2, w2 = p
    assert where(s, X2) == where(s, y2) == where(s, w2)
    assert p.sample_weight is w2
    assert p.qid is None
    assert p.eval_set[1] == (X2, y2)
    (Xv2, yv2), _ = p.eval_set
    assert where(s, Xv2) == where(s, yv2)
    assert sum(h == {a.address} for h in where(s, Xv2)) == 10


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 3, worker_kwargs=LIMIT)
async def test_only_on_these_workers(c, s, a, b, d):
    """``workers=`` takes names and addresses; no other worker keeps data."""
    X, y = await uneven(c, a)
    await clustertune.prepare(c, X, y, workers=[b.name, d.address])
    assert set().union(*where(s, X)) == {b.address, d.address}
    assert sum(h == {b.address} for h in where(s, X)) == 10
    assert where(s, X) == where(s, y)


@gen_cluster(client=True, nthreads=TWO, worker_kwargs=LIMIT)
async def test_a_dry_run_changes_nothing_and_plans_the_real_call(c, s, a, b):
    """A dry run changes nothing; the real call does the planned steps."""
    X, y = await uneven(c, a)
    before = where(s, X)
    p = await clustertune.prepare(c, X, y, dry_run=True)
    assert where(s, X) == before
    assert p.report.status == "planned"
    step = p.plan[0].steps[0]
    assert step.price.nbytes == sum(
        s.tasks[f.key].nbytes for f in futures_of(X)[:10]
    ) + (sum(s.tasks[f.key].nbytes for f in futures_of(y)[:10]))
    assert await clustertune.last_report(c) is None
    q = await clustertune.prepare(c, X, y)
    assert q.report.status == "done"
    assert q.report.steps[0].nbytes == step.price.nbytes
    assert where(s, X) != before


@gen_cluster(client=True, nthreads=TWO, worker_kwargs=LIMIT)
async def test_a_failed_load_says_what_failed(c, s, a, b):
    """The user's error is raised, and the lease is free."""

    def fail(block: Any) -> Any:
        raise RuntimeError("broken file")

    X = da.ones((100, 4), chunks=(10, 4)).map_blocks(fail, meta=np.ones((1, 1)))
    with pytest.raises(errors.IncompleteError, match="broken file"):
        await clustertune.prepare(c, X)
    assert s.plugins["clustertune"].lease.holder() is None


@gen_cluster(client=True, nthreads=TWO, worker_kwargs=LIMIT)
async def test_lost_data_is_said(c, s, a, b):
    """Scattered partitions of a killed worker are reported as lost."""
    partitions = await c.scatter([np.ones((5, 2))] * 4, workers=[b.address])
    X = da.concatenate(
        [da.from_delayed(dask.delayed(p), (5, 2), dtype=float) for p in partitions]
    )
    X = c.persist(X)
    await wait(X)
    await b.close()
    with pytest.raises(errors.IncompleteError, match="lost"):
        await clustertune.prepare(c, X)


@gen_cluster(client=True, nthreads=TWO, worker_kwargs=LIMIT)
async def test_what_is_refused(c, s, a, b):
    """Nothing is computed first, unless rows have to be counted."""
    # with an address only, the error has the line of ``scale``
    line = f"dask worker {s.address} --no-nanny --nthreads 1"
    expected = f"n_workers=4: .* missing 2 workers, .*: {line}"
    with pytest.raises(errors.NoWorkersError, match=expected):
        await clustertune.prepare(c, da.ones((10, 2), chunks=2), n_workers=4)
    with pytest.raises(ValueError, match="there is no absent"):
        await clustertune.prepare(c, da.ones((10, 2), chunks=2), workers=["absent"])
    # partitions without all columns; the error has code that fixes them
    X = da.ones((100, 4), chunks=(10, 2))
    with pytest.raises(errors.AlignmentError, match="rechunk"):
        await clustertune.prepare(c, X, da.ones(100, chunks=10), rechunk=False)
    assert not s.tasks
    source = pd.DataFrame({"p": np.arange(100.0), "t": 1})
    X = dd.from_pandas(source[["p"]], npartitions=4)
    y = dd.from_pandas(source["t"], npartitions=4).repartition([0, 10, 50, 75, 99])
    with pytest.raises(errors.AlignmentError, match="25"):
        await clustertune.prepare(c, X, y, rechunk=False)
    with pytest.raises(ValueError, match="X has no rows"):
        await clustertune.prepare(c, X[X["p"] > 100])


@gen_cluster(client=True, nthreads=TWO, worker_kwargs=LIMIT)
async def test_the_time_limit(c, s, a, b):
    """At the time limit the call stops with an error and keeps nothing."""
    slow = da.ones((60, 2), chunks=(1, 2)).map_blocks(_sleep, dtype=float)
    for seconds in (0.7, 1.4, 2.8):  # a busy machine begins to load later
        with pytest.raises(errors.TimedOutError, match="timeout") as caught:
            await clustertune.prepare(c, slow, timeout=seconds)
        if caught.value.report.steps:
            break
    assert caught.value.report.steps[0].status == "failed"
    assert isinstance(caught.value, TimeoutError)
    assert s.plugins["clustertune"].lease.holder() is None


def _sleep(block: Any) -> Any:
    import time

    time.sleep(0.2)  # a slow load: work, not waiting for a condition
    return block


@gen_cluster(client=True, nthreads=TWO, worker_kwargs=LIMIT)
async def test_spilled_partitions_are_counted_and_placed(c, s, a, b):
    """Tasks count the rows of spilled partitions, which are placed as well."""
    source = pd.DataFrame({"p": np.arange(1000.0), "t": 1})
    frame = dd.from_pandas(source, npartitions=10)
    X, y = c.persist([frame[["p"]], frame["t"]], workers=[a.address])
    await wait([X, y])
    while a.data.fast:
        a.data.evict()
    await clustertune.prepare(c, X, y)
    assert where(s, X) == where(s, y)
    assert sum(h == {a.address} for h in where(s, X)) == 5
    pd.testing.assert_frame_equal(await c.compute(X), source[["p"]])


@gen_cluster(client=True, nthreads=TWO, worker_kwargs=LIMIT)
async def test_no_room_is_a_capacity_error(c, s, a, b):
    """Partitions that would make workers spill are refused before anything moves."""
    X, y = await uneven(c, a)
    for w in (a, b):
        # what the scheduler knows of its memory, as on a worker that is nearly full
        s.workers[w.address].memory_limit = 250 * 2**20
        s.workers[w.address].metrics["memory"] = 240 * 2**20
        w.monitor.get_process_memory = lambda: 240 * 2**20
    with pytest.raises(errors.CapacityError):
        await clustertune.prepare(c, X, y)
    assert set().union(*where(s, X)) == {a.address}


@gen_cluster(client=True, nthreads=TWO, worker_kwargs=LIMIT)
async def test_memory_after_a_move_is_what_is_there_then(c, s, a, b):
    """The report has the memory after the moves, not that of an earlier heartbeat."""
    X, y = await uneven(c, a)
    for w in (a, b):
        await w.heartbeat()
        w.periodic_callbacks["heartbeat"].stop()
        w.monitor.get_process_memory = lambda: 2**30
    p = await clustertune.prepare(c, X, y)
    first, last = (p._journal.views[i].now.workers for i in (0, -1))
    assert 2**30 not in {w.process for w in first}
    assert {w.process for w in last} == {2**30}


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 3, worker_kwargs=LIMIT)
async def test_who_has_gone_is_not_waited_for(c, s, a, b, gone, monkeypatch):
    """A lost worker is not waited for.

    After each restart the wait would take a second.
    """
    await clustertune.check(c)
    await gone.close()
    asked = []
    ask = ship.on_workers

    async def listen(client, function, workers, **options):
        asked.extend(workers)
        return await ask(client, function, workers, **options)

    monkeypatch.setattr(ship, "on_workers", listen)
    await inquiry.refresh_memory(c)
    assert sorted(asked) == sorted([a.address, b.address])


@gen_cluster(client=True, nthreads=TWO, worker_kwargs=LIMIT)
async def test_verify_looks_again(c, s, a, b):
    """``verify`` accepts the prepared layout, and finds later changes."""
    X, y = await uneven(c, a)
    p = await clustertune.prepare(c, X, y)
    assert (await p.verify()).status == "fine"
    verify(p._journal.views[0], p._journal.views[-1])
    assert p._journal.views[-1].now.memory_manager is True
    key = next(f.key for f, h in zip(futures_of(y), where(s, y)) if h == {b.address})
    await c.amm.stop()  # it may drop either replica
    await c.replicate([f for f in futures_of(y) if f.key == key], workers=[a.address])
    s.request_remove_replicas(b.address, [key], stimulus_id="test")
    with pytest.raises(errors.VerificationError, match="1 pairs are separated"):
        await p.verify()


def test_a_progress_function_that_exits(local_cluster, caplog):
    """The exit is logged; the call and the client continue."""
    _, client = local_cluster(2, processes=False, protocol="tcp://")
    X = da.arange(1000, chunks=100)

    def exits(text, fraction):
        raise SystemExit

    (X,) = clustertune.prepare(client, X, progress=exits)
    assert "progress= raised SystemExit" in caplog.text
    assert client.compute(X.sum(), sync=True) == 499_500


def test_an_error_is_shown_once(local_cluster, capsys):
    """The traceback has the error and what was done, so stderr has no other line."""
    _, client = local_cluster(2, processes=False, protocol="tcp://")
    X, y = da.ones((40, 2), chunks=(10, 2)), da.full(40, np.nan, chunks=10)
    with pytest.raises(ValueError, match="40 missing labels") as caught:
        clustertune.prepare(client, X, y, estimator="xgboost")
    assert capsys.readouterr().err == ""
    if sys.version_info >= (3, 11):
        assert caught.value.__notes__ == ["loaded 2 collections"]
    with pytest.raises(errors.AlignmentError, match="40 rows, y has 30"):
        clustertune.prepare(client, X, y[:30])
    assert capsys.readouterr().err == ""


def test_shuffles_of_the_data_are_not_logged(local_cluster, caplog, monkeypatch):
    """Dask warns that a P2P shuffle begins and ends, also in a user's terminal."""
    logger = logging.getLogger("distributed.shuffle._scheduler_plugin")
    monkeypatch.setattr(logger, "handlers", [caplog.handler])
    monkeypatch.setattr(logger, "disabled", False)
    caplog.set_level(logging.WARNING, logger.name)
    _, client = local_cluster(2)
    with dask.config.set({"array.rechunk.method": "p2p"}):
        X = da.ones((40, 4), chunks=(40, 2)).rechunk((10, 4))
        clustertune.prepare(client, X)
        rows = pd.DataFrame({"a": np.arange(80.0), "y": np.arange(80) % 2})
        frame = dd.from_pandas(rows, npartitions=8)
        # XGBoost shuffles the labels to find the classes
        model = DaskXGBClassifier(n_estimators=1)
        clustertune.fit(client, model, frame[["a"]], frame["y"], workers=[0, 1])
        assert "Shuffle" not in caplog.text
        # other keys, as those of X may still be in memory
        wait(da.zeros((60, 4), chunks=(60, 2)).rechunk((15, 4)).persist())
    until(lambda: "Shuffle" in caplog.text)


def test_on_a_synchronous_client(local_cluster):
    """The cluster scales from 1 to 2 worker processes, and data is placed.

    The cluster object is the client's own.
    """
    cluster, client = local_cluster(1)
    X = da.random.default_rng(0).random((2000, 4), chunks=(100, 4))
    y = X[:, 0] > 0.5
    X, y = client.persist([X, y])
    expected = client.compute(X.sum(), sync=True)
    p = clustertune.prepare(client, X, y, n_workers=2)
    assert [s.action for s in p.report.steps] == ["scale", "rebalance"]
    assert [s.status for s in p.report.steps] == ["done", "done"]
    assert [w.rows for w in p.report.after[0].workers] == [1000, 1000]
    assert client.compute(p.X.sum(), sync=True) == pytest.approx(expected)
    assert clustertune.last_report(client) == p.report
    assert p.verify().status == "fine"
    assert "X, y; done" in repr(p)


def test_not_an_array_by_mistake(local_cluster):
    """The error of NumPy's conversion shows how to unpack the result."""
    _, client = local_cluster(1, processes=False)
    p = clustertune.prepare(client, da.ones((10, 2), chunks=5))
    with pytest.raises(TypeError, match="unpack it"):
        np.asarray(p)
    with pytest.raises(AttributeError, match="unpack it"):
        p.shape  # noqa: B018
    (X,) = p
    assert X.shape == (10, 2)


def test_a_client_that_is_closed_or_none():
    """The error has a fix, also after the event loop has ended with the client."""
    with LocalCluster(n_workers=1, **IN_PROCESS) as cluster, Client(cluster) as client:
        p = clustertune.prepare(client, da.ones((10, 2), chunks=5))
    assert client.loop.asyncio_loop.is_closed()
    for call in (
        clustertune.restart_workers,
        clustertune.last_report,
        lambda client: clustertune.hold(client).__enter__(),
        lambda _: p.verify(),
    ):
        with pytest.raises(errors.ConnectionLostError, match="the client is closed"):
            call(client)
    for call in (
        clustertune.restart_workers,
        clustertune.release_data,
        clustertune.last_report,
    ):
        with pytest.raises(TypeError, match=r"client must be a .* it was str"):
            call("tcp://127.0.0.1:8786")


@gen_cluster(client=True, nthreads=TWO, worker_kwargs=LIMIT)
async def test_two_clients_at_once(c, s, a, b):
    """The second client waits for the first; both end with even data."""
    async with Client(s.address, asynchronous=True, set_as_default=False) as other:
        X, y = await uneven(c, a)
        with dask.annotate(workers=[a.address], allow_other_workers=True):
            Z = other.persist(da.ones((2000, 3), chunks=(100, 3)))
        await other.gather(other.map(len, futures_of(Z)))
        first, second = await asyncio.gather(
            clustertune.prepare(c, X, y), clustertune.prepare(other, Z)
        )
        assert first.report.status == second.report.status == "done"
        assert first.report.after[0].imbalance == second.report.after[0].imbalance == 1
    assert s.extensions["amm"].running


@gen_cluster(client=True, nthreads=TWO, worker_kwargs=LIMIT)
async def test_a_held_lease_is_named(c, s, a, b):
    """The error names the holder of the lease."""
    X, y = await uneven(c, a)
    await clustertune.prepare(c, X, y)
    plugin = s.plugins["clustertune"]
    assert "token" in plugin.acquire(c.id, "a rolling restart", "t")
    with pytest.raises(errors.LeaseHeldError, match="a rolling restart"):
        await clustertune.prepare(c, X, y, timeout="2 s")


@gen_cluster(client=True, nthreads=TWO, worker_kwargs=LIMIT)
async def test_the_same_key_may_stand_for_other_data(c, s, a, b):
    """Rows of a reused key are counted again, because its data may differ."""

    def frame(rows: int) -> Any:
        part = c.submit(pd.DataFrame, {"p": range(rows)}, key=f"part-{0}", pure=False)
        whole = dd.from_delayed([part], meta=pd.DataFrame({"p": [1]}))
        return c.persist(dd.concat([whole, whole]))

    for rows in (6, 8):
        X = frame(rows)
        p = await clustertune.prepare(c, X)
        assert p.report.after[0].rows == 2 * rows
        del X, p
        await soon(lambda: "part-0" not in s.tasks)


@gen_cluster(client=True, nthreads=TWO, worker_kwargs=LIMIT)
async def test_given_twice_it_is_one(c, s, a, b):
    """X as its own label, and an eval set that shares X, are placed once."""
    X, y = await uneven(c, a)
    p = await clustertune.prepare(c, X, X, eval_set=[(X, y)])
    assert [x is X for x in p] == [True, True]
    assert p.eval_set == [(X, y)]
    assert where(s, X) == where(s, y)
    assert len(p.report.before) == 1
    assert p.report.before[0].collections == ("X", "eval_set[0].y")


def test_a_fixed_list_of_workers_is_not_scaled():
    """A cluster made from a list of workers cannot scale; the error has a fix."""
    spec = {0: {"cls": Worker, "options": {"nthreads": 1}}}
    scheduler = {"cls": Scheduler, "options": {"dashboard_address": "127.0.0.1:0"}}
    with SpecCluster(spec, scheduler) as cluster, Client(cluster) as client:
        with pytest.raises(errors.NoWorkersError, match="fixed list of workers"):
            clustertune.prepare(client, da.ones((10, 2), chunks=2), n_workers=2)
        assert set(cluster.worker_spec) == {0}


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_a_failed_call_keeps_nothing_that_it_loaded(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    """A kept traceback keeps no old values, so a corrected source is read again."""
    size = {"n": 9}

    def read(i: int) -> pd.DataFrame:
        return pd.DataFrame({"a": np.arange(float(size["n"]))})

    meta = pd.DataFrame({"a": [0.0]})
    X = dd.from_pandas(pd.DataFrame({"a": np.arange(40.0)}), npartitions=4)
    y = dd.from_map(read, range(4), meta=meta)["a"]
    with pytest.raises(errors.AlignmentError) as kept:
        await clustertune.prepare(c, X, y)
    assert not c.futures
    size["n"] = 10  # the source is corrected
    p = await clustertune.prepare(c, X, y)
    assert kept.value.__traceback__ is not None
    assert await c.compute(p.y.size) == 40


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_a_refused_call_leaves_its_report(c, s, a, b):
    """Other clients and the page see the reason of a refused call."""
    X, y = c.persist([da.ones((40, 2), chunks=10), da.ones(30, chunks=10)])
    with pytest.raises(errors.AlignmentError, match="X has 40 rows, y has 30"):
        await clustertune.prepare(c, X, y)
    report = await clustertune.last_report(c)
    assert report is not None
    assert report.status == "failed"
    assert "rows" in report.error
