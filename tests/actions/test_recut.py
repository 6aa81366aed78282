"""Rechunk and join on real clusters: equal rows on the planned workers."""

from __future__ import annotations

import asyncio
from time import sleep

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import futures_of, wait
from distributed.client import FutureCancelledError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import clustertune
from clustertune.actions.cluster.live import LiveCluster
from clustertune.errors import AlignmentError, CapacityError, RefusedError
from clustertune.operations.call import RunningCall
from tests.in_process import gen_cluster
from tests.processes import soon

ROWS = 4000


def numbers(columns=5):
    """Return values that contain their row numbers."""
    return np.arange(ROWS * columns, dtype="f8").reshape(ROWS, columns)


async def persisted(client, *collections):
    """Persist collections one by one, so Dask chooses the workers."""
    loaded = [client.persist(c) for c in collections]
    await wait(loaded)
    return loaded


async def values(client, *collections):
    return [await client.compute(c) for c in collections]


async def lengths(client, x):
    """Return the rows of the partitions in memory."""
    if isinstance(x, da.Array):
        blocks = [x.blocks[i] for i in range(x.numblocks[0])]
        assert [len(b) for b in await values(client, *blocks)] == list(x.chunks[0])
        return list(x.chunks[0])
    return list(await client.compute(x.map_partitions(len)))


async def restricted(scheduler):
    return [ts.key for ts in scheduler.tasks.values() if ts.worker_restrictions]


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_labels_are_cut_to_the_data(c, s, a, b):
    """The labels are cut; X keeps its keys and values."""
    Xn = numbers()
    X, y = await persisted(
        c,
        da.from_array(Xn, chunks=(1000, 5)),
        da.from_array(Xn[:, 0], chunks=((1500, 1000, 500, 1000),)),
    )
    X2, y2 = p = await clustertune.prepare(c, X, y)
    # before anything else copies partitions: of two copies Dask may delete either
    assert (await p.verify()).status == "fine"
    assert X2.__dask_keys__() == X.__dask_keys__()
    assert X2.chunks[0] == y2.chunks[0] == (1000,) * 4
    np.testing.assert_array_equal((await values(c, X2))[0], Xn)
    for i in range(4):
        left, right = await values(c, X2.blocks[i], y2.blocks[i])
        np.testing.assert_array_equal(left[:, 0], right)
    assert p.report.status == "done"


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_blocks_of_columns_are_joined(c, s, a, b):
    """Every partition has all columns in order, also with more dimensions."""
    Xn = numbers(24).reshape(ROWS, 6, 4)
    X, y = await persisted(
        c,
        da.from_array(Xn, chunks=(700, 4, 3)),
        da.from_array(Xn[:, 0, 0], chunks=900),
    )
    X2, y2 = await clustertune.prepare(c, X, y)
    assert X2.numblocks[1:] == (1, 1)
    np.testing.assert_array_equal((await values(c, X2))[0], Xn)
    np.testing.assert_array_equal((await values(c, y2))[0], Xn[:, 0, 0])


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_frames(c, s, a, b):
    """Frames and series keep values, types, categories and index."""
    frame = pd.DataFrame(numbers(), columns=list("abcde"))
    frame["kind"] = pd.Categorical(["x", "y", "z", "x"] * (ROWS // 4))
    frame["text"] = frame["a"].astype(str)
    X, y = await persisted(
        c,
        dd.from_pandas(frame, npartitions=3),
        dd.from_pandas(frame["a"], npartitions=5),
    )
    X2, y2 = await clustertune.prepare(c, X, y, rechunk=7)
    assert X2.npartitions == y2.npartitions == 7
    found, labels = await values(c, X2, y2)
    before, _ = await values(c, X, y)
    pd.testing.assert_frame_equal(found, before)
    pd.testing.assert_series_equal(labels, frame["a"], check_names=False)
    apart = await c.compute((X2["a"] - y2).abs().max())
    assert apart == 0


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_text_that_has_left_is_freed(c, s, a, b):
    """Arrow's slices and copies keep all values, so rows that stay are taken."""
    texts = {"t": [f"{i:0100}" for i in range(ROWS)]}
    text = pd.DataFrame(texts, dtype="string[pyarrow]")
    (X,) = await persisted(c, dd.from_pandas(text, npartitions=1))
    (X2,) = await clustertune.prepare(c, X)
    made = {f.key for f in futures_of(X2)}
    held = [w.data[key]["t"] for w in (a, b) for key in made & w.data.keys()]
    assert len(held) == len(made) > 1
    for part in held:
        values = part.array.__arrow_array__()
        assert values.get_total_buffer_size() < 1.5 * values.nbytes
    pd.testing.assert_frame_equal(await c.compute(X2), text)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_kinds_of_arrays(c, s, a, b):
    """Masked values stay masked; objects, complex numbers and booleans are kept."""
    mask = np.arange(ROWS) % 3 == 0
    y = await persisted(c, da.from_array(np.arange(ROWS) % 2 == 0, chunks=ROWS))
    for Xn in (
        np.ma.masked_array(numbers(), np.repeat(mask[:, None], 5, axis=1)),
        np.array([str(i) for i in range(ROWS)], dtype=object),
        np.arange(ROWS) * 1j,
        np.asfortranarray(numbers()),
    ):
        (X,) = await persisted(c, da.from_array(Xn, chunks=1500))
        X2, _ = await clustertune.prepare(c, X, *y)
        (found,) = await values(c, X2)
        assert type(found) is type(Xn)
        assert found.dtype == Xn.dtype
        np.testing.assert_array_equal(found, Xn)
        if isinstance(Xn, np.ma.MaskedArray):
            np.testing.assert_array_equal(found.mask, Xn.mask)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 3)
async def test_nothing_stays_bound(c, s, a, b, d):
    """No task stays bound to a worker, and no parts stay in memory."""
    Xn = numbers()
    X, y = await persisted(
        c, da.from_array(Xn, chunks=700), da.from_array(Xn[:, 0], chunks=1000)
    )
    X2, y2 = await clustertune.prepare(c, X, y)
    assert await restricted(s) == []
    parts = [ts for k, ts in s.tasks.items() if "parts-" in str(k)]
    assert parts
    assert {ts.state for ts in parts} == {"released"}
    assert not s.plugins["clustertune"].bindings.kept


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 3)
async def test_partitions_are_made_where_they_stay(c, s, a, b, d):
    """After the cut rows are even and pairs together, so nothing moves."""
    Xn = numbers()
    with_pin = {"workers": [a.address]}
    X = c.persist(da.from_array(Xn, chunks=ROWS), **with_pin)
    y = c.persist(da.from_array(Xn[:, 0], chunks=ROWS), **with_pin)
    await wait([X, y])
    p = await clustertune.prepare(c, X, y)
    assert [o.action for o in p.report.steps] == ["rechunk"]
    assert p.report.after[0].separated == 0
    assert p.report.after[0].imbalance <= 1.05
    (step,) = p.report.steps
    assert step.nbytes == pytest.approx(step.predicted_bytes, rel=0.2)
    assert step.nbytes == pytest.approx((X.nbytes + y.nbytes) * 2 / 3, rel=0.2)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_what_is_cut_can_be_computed_again(c, s, a, b):
    """The partitions of a lost worker are recomputed with equal values.

    So are those of the caller's collections, which are unchanged.
    """
    Xn = numbers()
    X, y = await persisted(
        c, da.from_array(Xn, chunks=1500), da.from_array(Xn[:, 0], chunks=1000)
    )
    X2, y2 = await clustertune.prepare(c, X, y)
    await b.close()
    old, found, labels = await values(c, X, X2, y2)
    np.testing.assert_array_equal(old, Xn)
    np.testing.assert_array_equal(found, Xn)
    np.testing.assert_array_equal(labels, Xn[:, 0])


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 4)
async def test_fewer_rows_than_workers(c, s, *workers):
    """As many workers as rows get a row, and the report names the cause."""
    Xn = np.arange(6.0).reshape(3, 2)
    X, y = await persisted(
        c, da.from_array(Xn, chunks=3), da.from_array(Xn[:, 0], chunks=3)
    )
    X2, y2 = p = await clustertune.prepare(c, X, y)
    (idle,) = [f for f in p.report.left if f.check == "empty_workers"]
    assert "has only 3 rows, so only 3 of 4 workers will train" in idle.message
    assert (await p.verify()).status == "fine"
    held = await c.who_has([*X2.__dask_graph__().values()])
    assert len({w for holders in held.values() for w in holders}) == 3
    found, labels = await values(c, X2, y2)
    np.testing.assert_array_equal(found, Xn)
    np.testing.assert_array_equal(labels, Xn[:, 0])


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_a_dry_run_cuts_nothing(c, s, a, b):
    """The report has the cuts and their price. ``rechunk=False`` refuses them."""
    Xn = numbers()
    X, y = await persisted(
        c, da.from_array(Xn, chunks=1500), da.from_array(Xn[:, 0], chunks=1000)
    )
    before = set(s.tasks)
    where = await c.who_has([*X.__dask_graph__().values()])
    with pytest.raises(
        AlignmentError, match="4,000 rows each, but are cut at different rows"
    ):
        await clustertune.prepare(c, X, y, rechunk=False)
    assert await c.who_has([*X.__dask_graph__().values()]) == where
    p = await clustertune.prepare(c, X, y, dry_run=True)
    await soon(lambda: set(s.tasks) == before)  # the timed tasks are released
    (plan,) = p.plan
    assert plan.phase == "rechunk"
    assert plan.steps[0].price.nbytes is not None
    assert (await clustertune.prepare(c, X, y)).report.status == "done"


@gen_cluster(
    client=True,
    nthreads=[("127.0.0.1", 1)] * 2,
    worker_kwargs={"memory_limit": "40 MB"},
    # they share a process that has more than that
    config={"distributed.worker.memory.pause": False},
)
async def test_without_room_it_is_an_error(c, s, a, b):
    """Old and new partitions do not fit: an error with sizes, before any cut."""
    X = c.persist(da.ones((1000, 2000), chunks=(1000, 2000)))
    y = c.persist(da.ones(1000, chunks=500))
    await wait([X, y])
    before = set(s.tasks)
    with pytest.raises(CapacityError):
        await clustertune.prepare(c, X, y)
    # rows of partitions that were spilled are counted by tasks, which go a little later
    await soon(lambda: set(s.tasks) == before)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 3)
async def test_a_worker_lost_while_cutting(c, s, a, b, d):
    """Tasks bound to a lost worker run on another one."""
    Xn = numbers()
    X, y = await persisted(
        c, da.from_array(Xn, chunks=700), da.from_array(Xn[:, 0], chunks=1000)
    )
    work = asyncio.ensure_future(clustertune.prepare(c, X, y))
    await soon(lambda: any("parts-" in str(k) for k in list(s.tasks)))
    await d.close()
    X2, y2 = p = await work
    found, labels = await values(c, X2, y2)
    np.testing.assert_array_equal(found, Xn)
    np.testing.assert_array_equal(labels, Xn[:, 0])
    assert X2.chunks[0] == y2.chunks[0]
    assert p.report.after[0].separated == 0
    assert await restricted(s) == []


CHUNKS = st.lists(st.integers(1, 30), min_size=1, max_size=9)


@given(CHUNKS, st.data())
@settings(
    deadline=None,
    max_examples=15,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_whatever_the_partitions(rows, data):
    """Values and pairs are equal row by row for all partitions, types and workers."""
    total = sum(rows)
    edges = data.draw(st.lists(st.integers(1, total), max_size=6, unique=True))
    others = tuple(np.diff(sorted({0, total, *edges})).tolist())
    frames = data.draw(st.sampled_from(["", "y", "X", "Xy"]), label="frames")
    loaded = data.draw(st.booleans(), label="loaded")
    blocks = data.draw(st.sampled_from([1, 3]), label="blocks")
    wanted = data.draw(st.sampled_from([True, 1, 4, 50]), label="wanted")
    nthreads = data.draw(st.lists(st.integers(1, 2), min_size=1, max_size=3))
    some = [("127.0.0.1", n) for n in nthreads]

    @gen_cluster(client=True, nthreads=some)
    async def cut(c, s, *workers):
        Xn = np.arange(total * 3, dtype="f4").reshape(total, 3)
        X = da.from_array(Xn, chunks=(tuple(rows), 1 if blocks == 3 else 3))
        y = da.from_array(Xn[:, 0], chunks=(others,))
        if "X" in frames:
            X = X.rechunk({1: -1}).to_dask_dataframe()
        if "y" in frames:
            y = y.to_dask_dataframe()
        if loaded:
            X, y = await persisted(c, X, y)
        X2, y2 = p = await clustertune.prepare(c, X, y, rechunk=wanted)
        found, labels = await values(c, X2, y2)
        np.testing.assert_array_equal(np.asarray(found), Xn)
        np.testing.assert_array_equal(np.asarray(labels), Xn[:, 0])
        assert np.asarray(found).dtype == "float32"
        assert np.asarray(labels).dtype == "float32"
        assert X2.npartitions == y2.npartitions
        assert p.report.after[0].separated == 0
        sizes = [await lengths(c, x) for x in (X2, y2)]
        assert sizes[0] == sizes[1]
        for name, x in (("X", X2), ("y", y2)):
            assert isinstance(x, da.Array) is (name not in frames)

    cut()


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_released_inputs_are_freed(c, s, a, b):
    """Only the new partitions are in memory; use of the given ones raises an error."""
    Xn = numbers()
    X, y = await persisted(
        c, da.from_array(Xn, chunks=ROWS), da.from_array(Xn[:, 0], chunks=ROWS)
    )
    old = [*X.__dask_graph__(), *y.__dask_graph__()]
    X2, y2 = await clustertune.prepare(c, X, y, release_inputs=True)
    found, labels = await values(c, X2, y2)
    np.testing.assert_array_equal(found, Xn)
    np.testing.assert_array_equal(labels, Xn[:, 0])
    assert not [k for k in old if k in a.data or k in b.data]
    # as long as the new partitions need them for that, old ones can be computed again
    assert await c.compute(X.sum()) == Xn.sum()
    del X2, y2
    await soon(lambda: not any(k in s.tasks for k in old))
    with pytest.raises(FutureCancelledError, match="lost dependencies"):
        await c.compute(X.sum())
    with pytest.raises(ValueError, match="X is released"):
        await clustertune.prepare(c, X, y)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_partitions_that_the_same_call_needs_are_not_released(c, s, a, b):
    """An eval set may be a part of the training data."""
    frame = pd.DataFrame(numbers(), columns=list("abcde"))
    (X,) = await persisted(c, dd.from_pandas(frame, npartitions=4))
    some = X.partitions[:2]
    with pytest.raises(RefusedError, match="needs, too"):
        await clustertune.prepare(
            c, X, eval_set=[(some, some["a"])], rechunk=7, release_inputs=True
        )
    assert await c.compute(X["a"].sum()) == frame["a"].sum()


def slow(block):
    sleep(0.5)
    return block


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_stopped_before_anything_is_released(c, s, a, b):
    """The given data is complete, and nothing is published."""
    Xn = numbers()
    (X,) = await persisted(c, da.from_array(Xn, chunks=ROWS))
    busy = c.map(slow, range(8), pure=False)  # the cut has to wait for these
    work = asyncio.ensure_future(
        clustertune.prepare(c, X, release_inputs=True, progress=False)
    )
    await soon(lambda: any(str(k).startswith("('array-") for k in list(s.tasks)))
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert await c.compute(X.sum()) == Xn.sum()
    assert await c.list_datasets() == ()
    assert await restricted(s) == []
    del busy


@pytest.mark.parametrize("again", [False, True])
@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_stopped_after_inputs_were_released(c, s, a, b, monkeypatch, again):
    """Memory has only new partitions, and old ones that are not cut.

    A second interruption does not end the cleanup.
    """
    calls, explained = [], RunningCall._explained

    async def interrupted(self, error):
        calls.pop().cancel()
        return await explained(self, error)

    if again:
        monkeypatch.setattr(RunningCall, "_explained", interrupted)
    Xn = numbers()
    (X,) = await persisted(c, da.from_array(Xn, chunks=ROWS // 8))
    first = X.__dask_keys__()[0][0]
    busy = c.map(slow, range(4), workers=[b.address], pure=False)  # keeps one of two
    work = asyncio.ensure_future(
        clustertune.prepare(c, X, rechunk=32, release_inputs=True, progress=False)
    )
    calls.append(work)
    await soon(lambda: len({k for w in (a, b) for k in w.data if k[0] == first[0]}) < 8)
    work.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await work
    report = await clustertune.last_report(c)
    assert "client.get_dataset('clustertune-" in report.error
    if hasattr(caught.value, "add_note"):
        assert "client.get_dataset" in "".join(caught.value.__notes__)
    name = report.error.split("get_dataset('")[1].split("'")[0]
    calls.clear()
    del X, work, caught, report
    (found,) = await c.get_dataset(name)
    np.testing.assert_array_equal((await values(c, found))[0], Xn)
    assert all(str(k).startswith("slow") for k in await restricted(s))
    del busy


@pytest.mark.parametrize("again", [False, True])
@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_stopped_after_the_work(c, s, a, b, monkeypatch, again):
    """The caller gets no result while the report is stored; the data is published.

    A second interruption does not end the cleanup.
    """
    Xn = numbers()
    (X,) = await persisted(c, da.from_array(Xn, chunks=ROWS // 8))
    storing = asyncio.Event()

    async def keep(self, report, facts=None):
        storing.set()
        await asyncio.sleep(60)

    monkeypatch.setattr(LiveCluster, "keep", keep)
    work = asyncio.ensure_future(
        clustertune.prepare(c, X, rechunk=32, release_inputs=True, progress=False)
    )
    await asyncio.wait_for(storing.wait(), 30)
    work.cancel()
    while again and not work.done():
        await asyncio.sleep(0)
        work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    del X, work
    (name,) = await c.list_datasets()
    (found,) = await c.get_dataset(name)
    np.testing.assert_array_equal((await values(c, found))[0], Xn)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_failed_after_inputs_were_released(c, s, a, b):
    """The second data set cannot be released; the error locates the first."""
    Xn = numbers()
    X, valid = await persisted(
        c,
        da.from_array(Xn, chunks=ROWS),
        da.from_array(Xn + 1, chunks=((1, ROWS - 1), 5)),
    )
    y = await c.persist(da.from_array(Xn[:, 0], chunks=1000))
    await c.publish_dataset(y, name="wanted")
    with pytest.raises(RefusedError, match="another client or a published") as caught:
        await clustertune.prepare(c, X, eval_set=[(valid, y)], release_inputs=True)
    assert "client.get_dataset('clustertune-" in str(caught.value)
    name = str(caught.value).split("get_dataset('")[1].split("'")[0]
    (found,) = await c.get_dataset(name)
    np.testing.assert_array_equal((await values(c, found))[0], Xn)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_partitions_of_other_types_than_they_say(c, s, a, b):
    """Joined partitions have a type that holds all numbers; nothing is cut off."""

    def odd(block, block_info=None):
        number = block_info[0]["chunk-location"][0]
        return block.astype("f8") + 0.5 if number == 1 else block

    X = da.arange(40, chunks=5).map_blocks(odd, dtype="i8")
    (X,) = await persisted(c, X)
    (X2,) = await clustertune.prepare(c, X, rechunk=2)
    expected = np.arange(40.0)
    expected[5:10] += 0.5
    np.testing.assert_array_equal((await values(c, X2))[0], expected)
    words = da.from_array(np.array((["ab"] * 5 + ["abcdef"] * 5) * 2), chunks=5)
    (words,) = await persisted(c, words.map_blocks(lambda b: b.astype(f"U{len(b[0])}")))
    (joined,) = await clustertune.prepare(c, words, rechunk=2)
    for partition in await values(c, joined.blocks[0], joined.blocks[1]):
        assert partition.tolist() == ["ab"] * 5 + ["abcdef"] * 5
