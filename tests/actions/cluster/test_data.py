"""``prepare`` releases nothing of its caller, and the caller owns the result."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask import delayed
from distributed import Client, Future, futures_of, wait
from distributed.core import Status

import clustertune
from clustertune.actions.cluster import lease as leases
from clustertune.actions.cluster.lease import Computing, Lease
from clustertune.collections import graphs
from clustertune.core.model import Severity
from clustertune.errors import IncompleteError, RefusedError, VerificationError
from clustertune.monitor import monitor
from tests.in_process import TWO, gen_cluster
from tests.processes import soon, until

PARTITIONS = 7


def drawn(rows: int) -> np.ndarray:
    """Draw values that differ each time, so a recomputed partition would differ."""
    return np.random.default_rng().random((rows, 3))


def drawn_frame(rows: int) -> pd.DataFrame:
    return pd.DataFrame(drawn(rows), columns=list("abc"))


def lazy() -> tuple[da.Array, da.Array]:
    """Return X and y with different boundaries, so one of them must change."""
    rows = [100 + 37 * i for i in range(PARTITIONS)]
    partitions = [
        da.from_delayed(delayed(drawn, pure=False)(n), (n, 3), dtype="f8") for n in rows
    ]
    X = da.concatenate(partitions)
    return X, da.arange(len(X), chunks=300, dtype="f8")


async def there(client: Any, collection: Any) -> int:
    """Return how many partitions are in memory, by the scheduler."""
    found = await client.who_has(futures_of(collection))
    return sum(bool(workers) for workers in found.values())


async def values(client: Any, collection: Any) -> Any:
    return await client.compute(collection, optimize_graph=False)


# --- partitions that are held elsewhere -----------------------------------------------


def test_a_persisted_copy_stays(local_cluster: Any) -> None:
    """The call loads the lazy X under the same keys, cuts it, and keeps them."""
    _, client = local_cluster(2, processes=False)
    parts = [delayed(drawn_frame, pure=False)(100 + 37 * i) for i in range(PARTITIONS)]
    frame = dd.from_delayed(parts, meta=drawn_frame(1), verify_meta=False)
    for X, y in (lazy(), (frame, None)):
        held = X.persist()
        wait(held)
        before = held.sum().compute(optimize_graph=False)
        p = clustertune.prepare(client, X, y, rechunk=8, timeout="1 minute")
        assert p.X.npartitions == 8
        assert all(client.who_has(futures_of(held)).values())
        assert len(futures_of(held)) == PARTITIONS
        np.testing.assert_array_equal(held.sum().compute(optimize_graph=False), before)
        np.testing.assert_allclose(p.X.sum().compute(), before)
        again = clustertune.prepare(client, held, y, timeout="1 minute")
        assert again.report.status in ("done", "fine")
        assert p.verify().status == "fine"


@gen_cluster(client=True, nthreads=TWO)
async def test_an_earlier_prepared_stays_whole(c: Any, s: Any, a: Any, b: Any) -> None:
    X, y = lazy()
    y = y.rechunk((X.chunks[0],))
    first = await clustertune.prepare(c, X, y, rechunk=False)
    before = await values(c, first.X)
    second = await clustertune.prepare(c, X, y, rechunk=8)
    assert second.X.npartitions == 8
    assert await there(c, first.X) == await there(c, first.y) == PARTITIONS
    np.testing.assert_array_equal(await values(c, first.X), before)
    np.testing.assert_array_equal(await values(c, second.X), before)
    assert (await second.verify()).status == "fine"
    # its keys may have been moved by the second, but nothing of it is lost
    with suppress(VerificationError):
        await first.verify()
    assert (await clustertune.prepare(c, first.X, first.y, rechunk=False)).report


def test_what_other_clients_hold_stays(local_cluster: Any) -> None:
    """Futures of another client, or a published name, hold the keys of the lazy X."""
    cluster, client = local_cluster(2, processes=False)
    for name in ("", "x"):
        X, y = lazy()
        with Client(cluster, set_as_default=False) as other:
            held = other.persist(X)
            wait(held)
            before = other.compute(held.sum(), optimize_graph=False).result()
            if name:
                other.publish_dataset(held, name=name)
                del held
            p = clustertune.prepare(client, X, y, rechunk=8, timeout="1 minute")
            held = other.get_dataset(name) if name else held
            assert all(other.who_has(futures_of(held)).values())
            after = other.compute(held.sum(), optimize_graph=False).result()
            assert after == before
            with pytest.raises(RefusedError, match="another client"):
                clustertune.prepare(client, X, y, rechunk=9, release_inputs=True)
            assert all(other.who_has(futures_of(held)).values())
            assert p.verify().status == "fine"
            if name:
                other.unpublish_dataset(name)


@gen_cluster(client=True, nthreads=TWO)
async def test_unshared_partitions_are_still_freed(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    """Partitions that only this call has loaded are released after the cut."""
    X, y = lazy()
    p = await clustertune.prepare(c, X, y, rechunk=8)
    wanted = {f.key for f in futures_of([p.X, p.y])}
    await soon(
        lambda: {ts.key for ts in s.tasks.values() if ts.state == "memory"} == wanted
    )


@gen_cluster(client=True, nthreads=TWO)
async def test_releasing_what_is_held_is_refused(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    X, y = lazy()
    held = c.persist(X)
    before = await values(c, held)
    with pytest.raises(RefusedError, match="without release_inputs"):
        await clustertune.prepare(c, X, y, rechunk=8, release_inputs=True)
    assert await there(c, held) == PARTITIONS
    np.testing.assert_array_equal(await values(c, held), before)


@gen_cluster(client=True, nthreads=TWO)
async def test_the_same_lazy_data_twice_in_a_call(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    """Two collections share a partition; cutting one keeps it for the other."""
    X, y = lazy()
    part = da.Array(X.dask, X.name, X.chunks, meta=X._meta)
    p = await clustertune.prepare(
        c, X, y, eval_set=[(part[:300], part[:300, 0])], rechunk=8
    )
    assert await there(c, p.X) == 8
    rows = await values(c, p.eval_set[0][0])
    np.testing.assert_array_equal(rows, (await values(c, p.X))[:300])


@gen_cluster(client=True, nthreads=TWO)
async def test_tasks_of_others_stay_bound(c: Any, s: Any, a: Any, b: Any) -> None:
    """A task that the user has bound to a worker stays bound."""
    X, y = lazy()
    held = c.persist(X, workers=[a.address])
    await wait(held)
    bound = {ts.key for ts in s.tasks.values() if ts.worker_restrictions}
    assert bound
    await clustertune.prepare(c, X, y, rechunk=8)
    after = {ts.key for ts in s.tasks.values() if ts.worker_restrictions}
    assert after == bound


# --- data of another client -----------------------------------------------------------


def observe(client: Client, X: Any, y: Any) -> Any:
    return clustertune.run_playbook(client, "observe", X, y)


@gen_cluster(client=True, nthreads=TWO)
async def test_data_of_another_client(c: Any, s: Any, a: Any, b: Any) -> None:
    """It is refused; what the caller's client holds, too, outlives that client."""
    address = s.address.replace("127.0.0.1", "localhost")
    calls: tuple[Any, ...] = (
        clustertune.prepare,
        clustertune.check,
        clustertune.restart_workers,
        clustertune.schedule_restart,
        observe,
    )
    for frame in (False, True):
        X: Any = da.random.random((4000, 3), chunks=(1000, 3))
        y: Any = da.arange(4000, chunks=1000)
        if frame:
            X = dd.from_dask_array(X, columns=list("abc"))
            y = dd.from_dask_array(y, index=X.index)
        held = set(c.futures)
        async with Client(address, asynchronous=True, set_as_default=False) as other:
            X, y = other.persist([X, y])
            await wait([X, y])
            before = await other.compute(X.sum())
            names: dict[str, Any] = {"client": c, "X": X, "y": y}
            for label in ("X", "y"):
                refused = f"{label} was loaded with .*{other.scheduler.address};"
                for call in calls:
                    with pytest.raises(ValueError, match=refused) as caught:
                        await call(c, names["X"], names["y"])
                assert label == "y" or set(c.futures) <= held
                assert "the client that loaded" in str(caught.value)
                names[label] = c.persist(names[label])
                await wait(names[label])
            p = await clustertune.prepare(c, names["X"], names["y"], timeout="1 minute")
            assert all(f.client is c for f in futures_of([p.X, p.y]))
            assert p.X.divisions == X.divisions if frame else p.X.chunks == X.chunks
        await soon(lambda: other.id not in s.clients)
        assert all((await c.who_has(futures_of([p.X, p.y]))).values())
        np.testing.assert_allclose(await c.compute(p.X.sum()), before)
        assert (await p.verify()).status == "fine"


@gen_cluster(client=True, nthreads=TWO)
async def test_one_partition_of_another_client(c: Any, s: Any, a: Any, b: Any) -> None:
    """It is enough for a refusal, also in an eval set."""
    async with Client(s.address, asynchronous=True, set_as_default=False) as other:
        X, theirs = (
            one.persist(da.random.random((200, 3), chunks=(100, 3)))
            for one in (c, other)
        )
        await wait(
            [X, theirs]
        )  # Dask cancels keys that the scheduler does not know yet
        mixed = [futures_of(X)[0], futures_of(theirs)[0]]
        graph = {("mixed", i, 0): future for i, future in enumerate(mixed)}
        with pytest.raises(ValueError, match="X was loaded with another client"):
            await clustertune.prepare(
                c, da.Array(graph, "mixed", X.chunks, dtype=float)
            )
        y, labels = c.persist([da.ones(200, chunks=100), da.zeros(200, chunks=100)])
        eval_set = [(theirs, labels)]
        with pytest.raises(ValueError, match=r"eval_set\[0\].X was loaded"):
            await clustertune.prepare(c, X, y, eval_set=eval_set)
        p = await clustertune.prepare(c, X, y, eval_set=[(c.persist(theirs), labels)])
        found, expected = await c.compute(p.eval_set[0][0]), await other.compute(theirs)
    np.testing.assert_array_equal(found, expected)


@gen_cluster(client=True, nthreads=TWO)
async def test_lazy_data_made_of_another_clients(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    async with Client(s.address, asynchronous=True, set_as_default=False) as other:
        X = other.persist(da.arange(4000, chunks=1000))
        await wait(X)
        p = await clustertune.prepare(c, X * 2)
    assert other.id not in s.clients
    np.testing.assert_array_equal(await values(c, p.X), 2 * np.arange(4000))


@gen_cluster(client=True, nthreads=TWO)
async def test_partitions_that_the_scheduler_has_forgotten(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    """The caller's futures are finished, but their keys were released."""
    X = c.persist(da.random.random((4000, 3), chunks=(1000, 3)))
    await wait(X)
    names = [f.key for f in futures_of(X)][:2]
    s.client_releases_keys(keys=names, client=c.id)
    await soon(lambda: names[0] not in s.tasks)
    assert {f.status for f in futures_of(X)} == {"finished"}
    with pytest.raises(IncompleteError, match="2 partitions of the data are gone"):
        await clustertune.prepare(c, X)


@gen_cluster(client=True, nthreads=TWO)
async def test_a_partition_that_occurs_twice(c: Any, s: Any, a: Any, b: Any) -> None:
    """It is refused, and the proposed line helps."""
    frame = dd.from_pandas(drawn_frame(400), npartitions=4, sort=False)
    frame = c.persist(frame)
    await wait(frame)
    X = frame.partitions[[0, 0, 1, 3]]
    with pytest.raises(RefusedError, match="several times") as caught:
        await clustertune.prepare(c, X)
    before = await c.compute(X)
    names = {"X": X}
    exec(str(caught.value).split("`")[1], names)
    p = await clustertune.prepare(c, names["X"])
    assert (await p.verify()).status == "fine"
    pd.testing.assert_frame_equal(await c.compute(p.X), before)
    # the line for an eval set leaves the training data as it is
    names = {"X": frame, "eval_set": [(X, X["a"])]}
    with pytest.raises(RefusedError, match=r"^eval_set\[0\].X has") as caught:
        await clustertune.prepare(c, frame, eval_set=names["eval_set"])
    exec(str(caught.value).split("`")[1], names)
    assert names["X"] is frame
    assert names["eval_set"][0][0] is not X


# --- prepared data stays where it was put ---------------------------------------------


def held_once(client: Client, futures: Any) -> bool:
    """Run Dask's memory manager unless each key has one holder."""
    if {len(workers) for workers in client.who_has(futures).values()} == {1}:
        return True
    client.amm.run_once()
    return False


def test_it_stays_through_ordinary_computations(local_cluster: Any) -> None:
    """Replicas that tasks fetch are dropped, not the placed ones.

    A restarted worker has another address, and the same keys.
    """
    _, client = local_cluster(3)
    X, y = client.persist(
        [da.random.random((6000, 4), chunks=(200, 4)), da.arange(6000, chunks=200)]
    )
    X, y = p = clustertune.prepare(client, X, y)
    futures = futures_of([X, y])
    placed = client.who_has(futures)
    assert {len(workers) for workers in placed.values()} == {1}
    # each task needs partitions of two workers
    (X.sum(axis=1)[::-1] + y).sum().compute()
    client.replicate(futures)
    until(lambda: held_once(client, futures))
    assert client.who_has(futures) == placed
    assert p.verify().status == "fine"
    assert clustertune.restart_workers(client, X, y, workers=[0]).status == "done"
    placed = client.who_has(futures)
    assert {len(workers) for workers in placed.values()} == {1}
    client.replicate(futures)
    until(lambda: held_once(client, futures))
    assert client.who_has(futures) == placed


@gen_cluster(client=True, nthreads=TWO)
async def test_the_latest_prepare_decides(c: Any, s: Any, a: Any, b: Any) -> None:
    X = c.persist(da.random.random((4000, 3), chunks=(500, 3)))
    await wait(X)
    await clustertune.prepare(c, X)
    (X,) = await clustertune.prepare(c, X, workers=[b.address])
    futures = futures_of(X)
    await c.replicate(futures)

    def one_left() -> bool:
        s.extensions["amm"].run_once()
        return all(len(s.tasks[f.key].who_has) == 1 for f in futures)

    await soon(one_left)
    assert set(b.data) >= {f.key for f in futures}
    assert a.address not in {
        ws.address for f in futures for ws in s.tasks[f.key].who_has
    }


@gen_cluster(client=True, nthreads=TWO)
async def test_verify_waits_for_copies_to_be_dropped(
    c: Any, s: Any, a: Any, b: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training library could use either replica until one is dropped."""
    # a busy machine drops replicas late
    monkeypatch.setattr("clustertune.operations.prepared.DROP_SECONDS", 60.0)
    X, y = c.persist(
        [da.random.random((4000, 3), chunks=500), da.ones(4000, chunks=500)]
    )
    X, y = p = await clustertune.prepare(c, X, y)
    futures = futures_of([X, y])
    placed = await c.who_has(futures)
    await c.replicate(futures)
    assert (await p.verify()).status == "fine"
    assert await c.who_has(futures) == placed


@gen_cluster(client=True, nthreads=TWO)
async def test_verify_notices_a_worker_without_its_eval_set(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    """LightGBM would fail on a worker without its replica."""
    X, y = c.persist(
        [da.random.random((4000, 3), chunks=500), da.ones(4000, chunks=500)]
    )
    Xv, yv = c.persist([da.random.random((100, 3), chunks=50), da.ones(100, chunks=50)])
    p = await clustertune.prepare(c, X, y, eval_set=[(Xv, yv)], estimator="lightgbm")
    futures = futures_of(p.eval_set)
    placed = await c.who_has(futures)
    # all other copies last as long as the placed ones
    await c.replicate(futures)
    s.extensions["amm"].run_once()
    await p.verify()
    assert await c.who_has(futures) == placed
    s.extensions["amm"].stop()
    await c.replicate(futures)
    keys = [f.key for f in futures]
    s.request_remove_replicas(b.address, keys, stimulus_id="test")
    with pytest.raises(
        VerificationError, match=r"of the eval_set\[0\] moved, .* from worker 1"
    ):
        await p.verify()


# --- data that a playbook releases ----------------------------------------------------


@gen_cluster(client=True, nthreads=TWO)
async def test_releasing_a_collection_leaves_other_names(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    """Another collection with the same keys keeps its data."""
    X = da.random.random((4000, 3), chunks=1000)
    held, again, alone = c.persist(X), c.persist(X), c.persist(da.ones(40, chunks=10))
    await wait([held, again, alone])
    await clustertune.release_data(c, held, alone)
    assert await there(c, again) == 4
    assert {f.status for f in futures_of(again)} == {"finished"}
    assert {f.status for f in futures_of(alone)} == {"cancelled"}


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_data_that_the_scheduler_does_not_know(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    """A future of an unknown key waits forever, as of data from before a restart."""
    futures = {("gone", i): Future(("gone", i), client=c) for i in range(9)}
    gone = da.Array(futures, "gone", ((100,) * 9,), dtype=float)
    for call in (
        lambda: clustertune.prepare(c, gone, timeout="50s"),
        lambda: clustertune.prepare(c, gone, dry_run=True, timeout="50s"),
    ):
        with pytest.raises(IncompleteError, match="9 partitions of the data are gone"):
            await call()
    report = await clustertune.check(c, gone, timeout="50s")
    (finding,) = (f for f in report.found if f.check == "unread_data")
    assert finding.severity is Severity.critical
    assert "9 partitions of the data are gone" in finding.message


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_data_whose_graph_is_still_on_its_way(c: Any, s: Any, a: Any, b: Any):
    """Keys of a graph that the scheduler has not read yet are no error."""
    X = c.persist(da.ones((5_000, 2), chunks=(10, 2)) + 1)
    (found,) = await clustertune.prepare(c, X, timeout="50s")
    assert found.shape == (5_000, 2)


# --- computed partitions --------------------------------------------------------------


@gen_cluster(client=True, nthreads=TWO)
async def test_small_arrays_of_paused_workers_are_made_elsewhere(c, s, a, b):
    """Small constants, such as sizes of groups, do not wait for a paused worker."""
    await monitor.install_plugin(c, await monitor.identify(c))
    lease = Lease(c, lambda: 30.0)
    lease.opened = True
    graph = graphs.constants("qid", [[1], [2, 3]], [a.address, b.address])
    a.memory_manager.memory_pause_fraction = 1e-9
    await soon(lambda: s.workers[a.address].status is Status.paused)
    async with lease.held("prepare", lambda *_: None):
        futures = await Computing(lease).partitions(graph, lambda *_: None, "counting")
    assert [f.tolist() for f in await c.gather(list(futures.values()))] == [[1], [2, 3]]
    assert all(key in b.data for key in futures)
    assert not any(s.tasks[key].worker_restrictions for key in futures)


@gen_cluster(client=True, nthreads=TWO)
async def test_partitions_that_may_run_on_a_worker_that_is_gone_only(
    c, s, a, b, monkeypatch
):
    """The error names these partitions, without waiting forever."""
    monkeypatch.setattr(leases, "UNMET_INTERVAL", 0.0)
    monkeypatch.setattr(leases, "RETURN_SECONDS", 0.2)
    await monitor.install_plugin(c, await monitor.identify(c))
    lease, told = Lease(c, lambda: 30.0), []
    lease.opened = True
    gone = a.address
    partitions = c.map(abs, range(3), workers=[gone])
    await wait(partitions)
    await a.close()
    await soon(lambda: all(f.status == "lost" for f in partitions))
    with pytest.raises(IncompleteError, match=f"3 tasks may run on {gone} only"):
        await Computing(lease).settle(
            partitions, lambda text, _: told.append(text), "loading", {}
        )
    assert told[-1] == (
        f"loading 3 partitions; 3 tasks may run on {gone} only, which is gone"
    )
