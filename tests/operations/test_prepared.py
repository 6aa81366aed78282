"""Results of ``prepare`` for workloads that need more than X and y."""

from __future__ import annotations

import gc
from itertools import cycle

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import futures_of, wait
from distributed.utils_test import gen_cluster

import clustertune
from clustertune.errors import LayoutChanged
from tests.processes import soon

THREE = [("127.0.0.1", 1)] * 3
ROWS = 100
X = np.arange(ROWS * 2.0).reshape(ROWS, 2)


@pytest.mark.parametrize("kind", ["arrays", "frames"])
@gen_cluster(client=True, nthreads=THREE)
async def test_rows_that_are_left_over(c, s, *workers, kind):
    """The remaining rows are returned in the order of the arguments; none are lost."""
    x, y = da.from_array(X, chunks=(30, 2)), da.from_array(X[:, 0], chunks=25)
    if kind == "frames":
        x, y = (
            dd.from_pandas(pd.DataFrame(X, columns=list("ab")), npartitions=4),
            dd.from_pandas(pd.Series(X[:, 0], name="y"), npartitions=3),
        )
    to = "array" if kind == "frames" else None
    p = await clustertune.prepare(c, x, y, estimator="torch_ddp", to=to)
    # before anything else copies partitions: of two copies Dask may delete either
    assert (await p.verify()).status == "fine"
    left, labels = await c.gather(c.compute(p.remainder))
    found, own = await c.gather(c.compute([p.X, p.y]))
    np.testing.assert_array_equal(np.concatenate([found, left]), X)
    np.testing.assert_array_equal(np.concatenate([own, labels]), X[:, 0])
    assert len(left) == 1
    rows = [w.rows for w in p.report.after[0].workers]
    assert rows == [33, 33, 33]
    assert p.row_order is None


@gen_cluster(client=True, nthreads=THREE)
async def test_prepared_again_for_fewer_workers(c, s, a, b, d):
    """Another call has other remaining rows; the caller still has the earlier ones."""
    x = da.from_array(X, chunks=(30, 2))
    p = await clustertune.prepare(c, x, estimator="torch_ddp")
    first = await c.compute(p.remainder[0])
    await d.close()
    with pytest.raises(LayoutChanged):
        await p.verify()
    again = await clustertune.prepare(c, p.X, estimator="torch_ddp")
    second = await c.compute(again.remainder[0])
    found = await c.compute(again.X)
    np.testing.assert_array_equal(np.concatenate([found, second, first]), X)
    assert len(second) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"estimator": "torch_ddp"},
        {"estimator": "xgboost_rank", "sort": True},
        {"shuffle": "rows"},
    ],
    ids=["rechunk", "sorted", "shuffled"],
)
@gen_cluster(client=True, nthreads=THREE)
async def test_what_it_replaces_is_nobodys(c, s, *workers, options):
    """A kept result keeps none of the given data in memory."""
    x, qid = da.from_array(X, chunks=(7, 2)), da.from_array(np.arange(ROWS) // 5, 7)
    given = c.persist([x, x[:, 0], qid[::-1]])
    await wait(given)
    old = {f.key for f in futures_of(given)}
    ranked = {"qid": given.pop()} if "sort" in options else {}
    p = await clustertune.prepare(c, *given, progress=False, **options, **ranked)
    assert p.report.steps
    assert (await p.verify()).status == "fine"
    del given, ranked, x, qid
    gc.collect()
    await soon(lambda: not any(old & w.data.keys() for w in workers))
    found = await c.compute(p.X)
    assert len(found) >= ROWS - 2
    assert np.isin(found, X).all()


@gen_cluster(client=True, nthreads=THREE)
async def test_the_order_of_rows(c, s, *workers):
    """``row_order`` returns predictions to the original order, also after two calls."""
    x, y = da.from_array(X, chunks=(30, 2)), da.from_array(X[:, 0], chunks=25)
    p = await clustertune.prepare(c, x, y, shuffle="rows", random_state=3)
    # before anything else copies partitions: of two copies Dask may delete either
    assert (await p.verify()).status == "fine"
    found, labels, order = await c.gather(c.compute([p.X, p.y, p.row_order]))
    assert not np.array_equal(found, X)
    np.testing.assert_array_equal(found, X[order])
    np.testing.assert_array_equal(labels[np.argsort(order)], X[:, 0])
    assert next(iter(p)) is p.X
    assert len(list(p)) == 2


async def scattered(client, partitions, addresses):
    """Return an array whose partitions are on these workers in turn."""
    futures = [
        await client.scatter(part, workers=[address], hash=False)
        for part, address in zip(partitions, cycle(addresses))
    ]
    parts = zip(futures, partitions, strict=True)
    return da.concatenate([da.from_delayed(f, x.shape, x.dtype) for f, x in parts])


@pytest.mark.parametrize("shuffle", ["rows", "partitions"])
@gen_cluster(client=True, nthreads=THREE)
async def test_a_seed_gives_the_same_order(c, s, *workers, shuffle):
    """The order depends on the partitions and the seed, not on where the data is."""
    orders = []
    for held in (workers[:1], workers, workers[::-1]):
        addresses = [w.address for w in held]
        X0 = await scattered(c, np.split(X, [30, 60, 90]), addresses)
        y0 = await scattered(c, np.split(X[:, 0], 4), addresses)
        p = await clustertune.prepare(c, X0, y0, shuffle=shuffle, random_state=3)
        found, labels, order = await c.gather(c.compute([p.X, p.y, p.row_order]))
        np.testing.assert_array_equal(found, X[order])
        np.testing.assert_array_equal(labels, X[order, 0])
        orders.append(order)
        del X0, y0, p
    np.testing.assert_array_equal(orders[0], orders[1])
    np.testing.assert_array_equal(orders[0], orders[2])


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
