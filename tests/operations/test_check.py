"""``check`` on real clusters: its findings, and that it changes nothing."""

from __future__ import annotations

import asyncio
from time import monotonic, time

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import psutil
import pytest
from distributed import Event, Nanny, wait
from xgboost.dask import DaskXGBRanker

import clustertune
from clustertune.checks import workers
from clustertune.collections import contents
from clustertune.core.model import Severity
from clustertune.errors import TimedOutError
from clustertune.monitor import monitor
from clustertune.operations import check
from clustertune.remote.ending import within
from tests.in_process import TWO, gen_cluster
from tests.processes import soon


def names(report, least=Severity.info):
    return {f.check for f in report.found if f.severity >= least}


@gen_cluster(client=True, nthreads=TWO)
async def test_the_cluster_alone(c, s, a, b):
    """Without data it checks workers, scheduler and software."""
    report = await clustertune.check(c)
    assert report.status == "checked"
    assert "no_nanny" in names(report)
    assert report.before == report.steps == ()
    assert "no_nanny" in str(report)
    assert clustertune.Report.from_json(report.to_json()) == report


@gen_cluster(client=True, nthreads=TWO)
async def test_a_scheduler_that_stops_answering(c, s, a, b, monkeypatch):
    """The check keeps its time limit, and returns what it has found."""
    ask = monitor.ask

    async def hangs(client, name, **arguments):
        if name == "report":
            await asyncio.Event().wait()
        return await ask(client, name, **arguments)

    monkeypatch.setattr(monitor, "ask", hangs)
    report = await within(clustertune.check(c, timeout="5s"), 30)
    assert report.status == "checked"


@gen_cluster(client=True, nthreads=TWO)
async def test_data_is_looked_at_and_left(c, s, a, b):
    """It reports holders and partitions, and neither loads nor moves data."""
    X = c.persist(da.random.random((400, 4), chunks=(100, 4)), workers=[a.address])
    await wait(X)
    y = da.ones(400, chunks=200)
    tasks = set(s.tasks)
    report = await clustertune.check(c, X, y)
    assert {"unloaded_data", "misaligned_partitions"} <= names(report)
    assert set(s.tasks) == tasks
    assert len(a.data) == 4
    assert not b.data


@gen_cluster(client=True, nthreads=TWO)
async def test_columns_of_text(c, s, a, b):
    """Columns of text are found without reading them."""
    frame = dd.from_pandas(
        pd.DataFrame({"a": [1.0] * 8, "t": ["u"] * 8}), npartitions=2
    )
    report = await clustertune.check(c, frame)
    assert "non_numeric_columns" in names(report, Severity.warning)


@gen_cluster(client=True, nthreads=TWO)
async def test_data_in_graphs_and_without_recipe(c, s, a, b):
    """A graph that contains an array, and scattered partitions."""
    big = da.from_array(np.zeros((3_000_000, 1)), chunks=(1_000_000, 1))
    report = await clustertune.check(c, big)
    assert "data_from_client" in names(report)
    partitions = await c.scatter([np.zeros(5), np.ones(5)])
    X = da.Array(
        dict(zip([("x", 0), ("x", 1)], partitions, strict=True)),
        "x",
        ((5, 5),),
        dtype="f8",
    )
    report = await clustertune.check(c, X)
    assert "data_from_client" in names(report)


@gen_cluster(client=True, nthreads=TWO)
async def test_wrong_input(c, s, a, b):
    """Each wrong argument is one clear error, before any request."""
    y = da.ones(4)
    with pytest.raises(TypeError, match="X is None but other data is given"):
        await clustertune.check(c, y=y)
    with pytest.raises(TypeError, match="X is None but other data is given"):
        await clustertune.check(c, sample_weight=y)
    with pytest.raises(TypeError, match="X is None but other data is given"):
        await clustertune.check(c, eval_set=[(y, y)])
    with pytest.raises(TypeError, match="client must be"):
        await clustertune.check("tcp://127.0.0.1:1")
    with pytest.raises(ValueError, match="'x' is no known workload"):
        await clustertune.check(c, estimator="x")
    with pytest.raises(ValueError, match="there is no absent in this cluster"):
        await clustertune.check(c, workers=["absent"])


@gen_cluster(client=True, nthreads=TWO)
async def test_the_time_is_over(c, s, a, b, monkeypatch):
    """A scheduler that does not answer is an error after the time limit."""

    async def wait_long(**_):
        await asyncio.sleep(30)

    await clustertune.check(c)
    monkeypatch.setitem(s.handlers, "clustertune", wait_long)
    with pytest.raises(TimedOutError, match=r"the check did not finish within 0\.5 s"):
        await clustertune.check(c, timeout="500 ms")


@gen_cluster(client=True, nthreads=TWO, Worker=Nanny)
async def test_a_worker_hangs(c, s, a, b, monkeypatch):
    """The report has what the others know, names it, and leaves no task."""
    monkeypatch.setattr(contents, "PATIENCE", 1.0)
    monkeypatch.setattr(monitor, "PATIENCE", 1.0)
    monkeypatch.setitem(monitor.ask_workers.__kwdefaults__, "timeout", 1.0)
    # longer than a busy worker is silent, and shorter than the wait below
    monkeypatch.setattr(workers, "ANSWERS", 1.5)
    monkeypatch.setattr(check, "COUNT_SECONDS", 1.0)
    X, y = c.persist([da.ones((40, 2), chunks=(5, 2)), da.ones(40, chunks=5)])
    await wait([X, y])
    await clustertune.check(c, X, y)
    tasks = set(s.tasks)
    hung = s.workers[a.worker_address]
    psutil.Process(a.pid).suspend()
    try:
        await soon(lambda: time() - hung.last_seen > 2)
        report = await clustertune.check(c, X, y, timeout="60s")
        (finding,) = (f for f in report.found if f.check == "unresponsive_workers")
        assert finding.subject == (hung.name,)
        assert finding.evidence["silent_seconds"] > 1
        assert len(report.workers) == 2
        assert report.before
        report = await clustertune.check(c, X, y, deep=True, timeout="5s")
        (finding,) = (f for f in report.found if f.check == "unread_data")
        assert finding.severity is Severity.critical
        assert f"worker {hung.name} sent no heartbeat" in finding.message
    finally:
        psutil.Process(a.pid).resume()
    await soon(lambda: set(s.tasks) == tasks)


def _pass(gate):
    Event(gate).wait(300)
    return np.ones(5)


@gen_cluster(client=True, nthreads=TWO, Worker=Nanny)
async def test_a_task_that_never_ends(c, s, a, b):
    """A check names the worker that runs it, and so does a call that waits for it."""
    await clustertune.check(c)  # the first one takes longer
    gate = Event("gate", client=c)
    stuck = c.submit(_pass, gate.name, pure=False, workers=[a.worker_address])
    X = c.persist(da.Array({("x", 0): stuck}, "x", ((5,),), dtype="f8"))
    hung = s.workers[a.worker_address]
    await soon(lambda: max(hung.executing.values(), default=0) > 2)
    try:
        report = await clustertune.check(c, X, timeout="5s")
        (finding,) = (f for f in report.found if f.check == "unread_data")
        ended = f"restart_workers(client, end_tasks=True, workers=[{hung.name}])"
        assert f"worker {hung.name} runs a task which may be stuck" in finding.message
        assert ended in finding.remedy
        with pytest.raises(TimedOutError) as caught:
            await clustertune.prepare(c, X, timeout="5s")
        assert ended in str(caught.value)
    finally:  # a worker waits for its threads
        await gate.set()


@gen_cluster(client=True, nthreads=TWO)
async def test_deep(c, s, a, b):
    """Values of loaded and of lazy data."""
    frame = pd.DataFrame({"a": [1.0, np.inf] * 20, "q": np.repeat(range(10), 4)})
    frame["y"] = np.repeat([0, 1], 20)
    source = dd.from_pandas(frame, npartitions=5)
    X, y, qid = source[["a"]], source["y"], source["q"]
    report = await clustertune.check(c, X, y, deep=True)
    assert "nonfinite_values" in names(report, Severity.warning)
    with pytest.raises(ValueError, match="qid needs a ranker as estimator="):
        await clustertune.check(c, X, y, qid=qid)
    ranker = {"qid": qid, "estimator": "lightgbm_rank"}
    report = await clustertune.check(c, X, y, **ranker, deep=True)
    assert report.status == "checked"
    assert "query_groups" not in names(report)
    ranker |= {"qid": qid.where(qid > 0), "estimator": DaskXGBRanker()}
    report = await clustertune.check(c, X, y, **ranker, deep=True)
    (finding,) = (f for f in report.found if f.check == "query_groups")
    assert "qid has 4 rows without a group" in finding.message
    assert "nonfinite_values" not in names(await clustertune.check(c, X, y))
    X, y = c.persist([da.ones((40, 2), chunks=(20, 2)), da.arange(40, chunks=20) // 20])
    await wait([X, y])
    X, y = await clustertune.prepare(c, X, y, rechunk=False)
    assert "missing_classes" not in names(await clustertune.check(c, X, y, deep=True))
    report = await clustertune.check(c, X, y, deep=True, estimator="lightgbm")
    (finding,) = (f for f in report.found if f.check == "missing_classes")
    assert "no rows of some of 2 classes" in finding.message


def _fail(partition):
    raise ZeroDivisionError("a\x1b[31mred")


@gen_cluster(client=True, nthreads=TWO)
async def test_deep_of_data_that_cannot_be_read(c, s, a, b):
    """A damaged partition of X is a finding; the values of y are still checked."""
    X = da.ones((40, 2), chunks=(20, 2)).map_blocks(_fail, meta=np.ones((0, 0)))
    y = da.full(40, np.nan, chunks=20)
    report = await clustertune.check(c, X, y, deep=True)
    (finding,) = (f for f in report.found if f.check == "unreadable_values")
    assert finding.severity is Severity.critical
    assert finding.subject == ("X",)
    assert "partitions 0 and 1: ZeroDivisionError: a" in finding.message
    assert "\x1b" not in finding.message
    assert {"nonfinite_values", "unloaded_data"} <= names(report)


@gen_cluster(client=True, nthreads=TWO)
async def test_data_that_is_lost(c, s, a, b):
    """It is a finding, and those of the workers are there, too."""
    failing = c.persist(da.ones(4, chunks=2).map_blocks(_fail, meta=np.ones(0)))
    await wait(failing, return_when="ALL_COMPLETED")
    report = await clustertune.check(c, failing)
    assert report.status == "checked"
    (finding,) = (f for f in report.found if f.check == "unread_data")
    assert finding.severity is Severity.critical
    assert "ZeroDivisionError" in finding.message
    assert names(report) - {"unread_data"}


@gen_cluster(client=True, nthreads=TWO)
async def test_deep_sends_code_where_it_may_go(c, s, a, b):
    """Code goes only to workers whose versions are known."""
    X = c.persist(da.random.random((400, 4), chunks=(50, 4)))
    await wait(X)
    await clustertune.check(c)
    known = monitor.known(c)
    (silent,) = (p for p in known.approved if p[0] == b.address)
    known.approved.remove(silent)
    known.silent[silent] = monotonic()
    await clustertune.check(c, X, deep=True)
    assert any("contents-" in str(event) for event in a.state.log)
    assert not any("contents-" in str(event) for event in b.state.log)


@gen_cluster(client=True, nthreads=TWO)
async def test_clocks_need_not_agree(c, s, a, b, monkeypatch):
    """The scheduler's clock alone measures the silence of a worker."""
    # the module uses no local clock; if it ever does, this one is wrong
    monkeypatch.setattr(monitor, "time", lambda: time() + 10_000, raising=False)
    report = await clustertune.check(c)
    assert "unresponsive_workers" not in names(report)


@gen_cluster(client=True, nthreads=TWO)
async def test_deep_looks_at_partitions_and_leaves_nothing(c, s, a, b):
    """Lazy data is not kept, and loaded data stays on its workers."""
    X = da.random.random((400, 4), chunks=(100, 4))
    report = await clustertune.check(c, X, deep=True)
    assert report.status == "checked"
    await soon(lambda: not s.tasks)
