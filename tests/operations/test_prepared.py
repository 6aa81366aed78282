"""Results of ``prepare`` for workloads that need more than X and y."""

from __future__ import annotations

import gc
from dataclasses import replace

import dask.array as da
import numpy as np
import pytest
from dask import delayed
from distributed import Event, Worker, futures_of, wait
from distributed.core import Status
from xgboost.dask import DaskXGBRegressor

import clustertune
from clustertune.core.progress import Progress
from clustertune.errors import TimedOutError, VerificationError
from clustertune.operations import fit
from tests.in_process import THREE, gen_cluster
from tests.processes import soon

ROWS = 100
X = np.arange(ROWS * 2.0).reshape(ROWS, 2)


@gen_cluster(client=True, nthreads=THREE)
async def test_what_it_replaces_is_nobodys(c, s, *workers):
    """A kept result keeps none of the given data in memory."""
    x = da.from_array(X, chunks=(7, 2))
    given = c.persist([x, x[:, 0]])
    await wait(given)
    old = {f.key for f in futures_of(given)}
    p = await clustertune.prepare(c, *given, progress=False, rechunk=6)
    assert p.report.steps
    assert (await p.verify()).status == "fine"
    del given, x
    gc.collect()
    await soon(lambda: not any(old & w.data.keys() for w in workers))
    np.testing.assert_array_equal(await c.compute(p.X), X)


@gen_cluster(client=True, nthreads=THREE)
async def test_a_lost_partition_is_an_error_of_verify(c, s, *workers):
    """Scattered data cannot be computed again."""
    futures = await c.scatter([X[:50], X[50:]])
    parts = [da.from_delayed(delayed(f), (50, 2), float) for f in futures]
    x = c.persist(da.concatenate(parts))
    await wait(x)
    p = await clustertune.prepare(c, x, progress=False)
    del futures, parts, x
    await workers[[w.address for w in workers].index(p.addresses[0])].close()
    with pytest.raises(VerificationError, match=r"looking again found: .*(gone|lost)"):
        await p.verify()


@gen_cluster(client=True, nthreads=THREE)
async def test_an_eval_set_with_companions(c, s, *workers):
    """It returns in its given form, and as arguments of the fit."""
    x, y = da.from_array(X, chunks=(30, 2)), da.from_array(X[:, 0] % 4 // 2, chunks=25)
    qid = da.from_array(np.arange(ROWS) // 5, chunks=30)
    valid = x[:20], y[:20], {"qid": qid[:20]}
    p = await clustertune.prepare(
        c, x, y, qid=qid, eval_set=[valid], estimator="lightgbm_rank"
    )
    ((xv, yv, named),) = p.eval_set
    assert list(named) == ["qid"]
    copies = await c.compute(xv)
    np.testing.assert_array_equal(copies, np.concatenate([X[:20]] * 3))
    (sizes,) = p.fit_kwargs["eval_group"]
    assert (await c.compute(sizes)).tolist() == [5] * 12
    assert (await c.compute(p.fit_kwargs["group"])).tolist() == [5] * 20
    assert xv.chunks[0] == yv.chunks[0] == named["qid"].chunks[0]
    assert p.report.status == "done"
    again = await clustertune.prepare(
        c, p.X, p.y, qid=p.qid, eval_set=p.eval_set, estimator="lightgbm_rank"
    )
    assert again.report.steps == ()


@gen_cluster(client=True, nthreads=THREE)
async def test_verify_after_other_workers_came_and_went(c, s, a, b, d):
    """It does not repeat the request for workers; a lost one has lost its rows."""
    x = da.ones((120, 3), chunks=(20, 3))
    p = await clustertune.prepare(c, x, n_workers=3)
    named = await clustertune.prepare(c, x + 1, workers=[a.address, b.address])
    async with Worker(s.address, nthreads=1):
        assert (await p.verify()).status == "fine"
        assert (await named.verify()).status == "fine"
        await b.close()
        for prepared in (p, named):
            with pytest.raises(VerificationError, match="looking again found"):
                await prepared.verify()


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_verify_has_the_time_limit_of_the_call(c, s, a, b):
    """A busy worker does not compute lost partitions again."""
    p = await clustertune.prepare(c, da.ones((120, 3), chunks=(20, 3)))
    busy = c.submit(lambda: Event("gate").wait(60), workers=[a.address])
    await soon(lambda: a.state.executing_count)
    await b.close()
    await soon(lambda: any(f.status == "lost" for f in futures_of(p.X)))
    p._call = replace(p._call, timeout=0.5)
    with pytest.raises(TimedOutError, match=r"not computed again .* be verified"):
        await p.verify()
    await Event("gate").set()
    await busy


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_verify_does_not_wait_for_ever_for_a_count(c, s, a):
    """A task counts a spilled partition, and the only thread is busy."""
    p = await clustertune.prepare(c, da.ones((120, 3), chunks=(20, 3)))
    busy = c.submit(lambda: Event("gate").wait(60))
    await soon(lambda: a.state.executing_count)
    a.data.evict()
    p._call = replace(p._call, timeout=0.5)
    with pytest.raises(TimedOutError, match=r"within 0\.5 s, or others not counted"):
        await p.verify()
    await Event("gate").set()
    await busy


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_digests_of_former_partitions(c, s, a, b):
    """Lost ones are computed again first, within the time limit of their call."""
    X = da.random.default_rng(0).random((120, 3), chunks=(20, 3))
    former = await clustertune.prepare(c, X)
    prepared = await clustertune.prepare(c, former.X, rechunk=4)
    before = await former.digests()
    assert len(before) == 6
    assert before.keys().isdisjoint(await prepared.digests())
    a.status = Status.paused
    await b.close()
    await soon(lambda: any(f.status == "lost" for f in futures_of(former.X)))
    call, former._call = former._call, replace(former._call, timeout=0.0)
    with pytest.raises(TimedOutError, match=r"not computed again .* longer timeout"):
        await prepared.digests([former])
    a.status, former._call = Status.running, call
    found = await prepared.digests([former])
    assert before.items() <= found.items()
    # what cannot come back is left out
    (lost, *rest) = futures_of(former.X)
    await c.cancel([lost], force=True)
    found = await prepared.digests([former])
    assert {f.key for f in rest} <= found.keys()
    assert lost.key not in found


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_partitions_that_cannot_be_compared(c, s, a):
    """After a loss, a fit notes them, and does not promise the same model."""
    X = da.random.default_rng(0).random((120, 3), chunks=(20, 3))
    prepared = await clustertune.prepare(c, X)
    work = fit._Work(
        client=c,
        model=DaskXGBRegressor(),
        fit_kwargs={},
        options={},
        max_failures=2,
        every=None,
        file=None,
        progress=Progress(False),
        attempts=[prepared],
        placement=prepared.placement,
    )
    await work.compare(prepared)
    work.attempts.append(prepared)
    await work.compare(prepared)
    assert work.notes == []
    assert work._identity() == "yes"
    a.data.evict()
    await work.compare(prepared)
    (note,) = work.notes
    assert note.startswith("the values of 1 partition could not be compared")
    assert work._identity().startswith("unknown, since")
