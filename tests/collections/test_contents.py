"""Values are read only if the workload needs them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import futures_of, wait
from distributed.core import Status
from distributed.diagnostics.plugin import SchedulerPlugin

import clustertune
from clustertune.actions.cluster.live import LiveCluster, LookOptions
from clustertune.collections import contents, inputs
from clustertune.core.model import Goal
from clustertune.integrations.libraries import GENERIC
from clustertune.remote.worker import content
from tests.builders import collection
from tests.in_process import gen_cluster
from tests.processes import soon


def goal(**needs):
    return Goal(workload=replace(GENERIC.profile, **needs))


def need(label, wanted, *, training=True, n_workers=2, **overrides):
    one = collection(label, [3], [0], **overrides)
    return contents.of_need(one, wanted, n_workers, training=training)


def test_nothing_is_read_without_need():
    """Of a library that any layout suits, only missing labels are counted."""
    for label in ("X", "qid", "sample_weight"):
        assert need(label, goal()) is None
    for label in ("y", "eval_set[0].y"):
        assert need(label, goal(), training=label == "y") is content.finite


def test_groups():
    """Group ids, also of eval sets, are read if groups must be whole."""
    wanted = goal(groups="together")
    assert need("qid", goal(groups="anywhere")) is None
    assert need("qid", wanted) is content.runs
    assert need("eval_set[0].qid", wanted, training=False) is content.runs


def test_classes():
    """Classes of the training data only, limited by the possible number of workers."""
    wanted = goal(needs_all_classes=True)
    assert need("eval_set[0].y", wanted, training=False) is content.finite
    few, many = need("y", wanted), need("y", wanted, n_workers=100)
    labels = np.zeros(1000, dtype=int)
    assert len(few(labels)["positions"][0]) == contents.ROWS
    assert len(many(labels)["positions"][0]) == 100


def test_types_of_columns():
    """Lists of categories are read if the library trains on their codes."""
    frame = {"kind": "dataframe", "types": {"float32": (1, "a"), "category": (1, "c")}}
    numbers = {"kind": "dataframe", "types": {"float32": (1, "a"), "int64": (1, "b")}}
    assert need("X", goal(categories=True), **frame) is content.types
    assert need("eval_set[1].X", goal(categories=True), **frame) is content.types
    assert need("X", goal(categories=True), **numbers) is None
    assert need("X", goal(), **frame) is None


class Begun(SchedulerPlugin):
    """Workers on which tasks that read values began."""

    def __init__(self, scheduler):
        self.scheduler, self.where = scheduler, []

    def transition(self, key, start, finish, *args, **kwargs):
        if finish == "processing" and str(key[0]).startswith("contents-"):
            self.where.append(self.scheduler.tasks[key].processing_on.address)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1), ("127.0.0.1", 2)])
async def test_one_task_for_each_thread(c, s, a, b):
    """Each thread reads its own partitions; results are in the order of partitions."""
    blocks = [np.repeat([0, 1], [10 + i, 1]) for i in range(9)]
    lie = [(b, a)[i % 3 == 1] for i in range(9)]
    made = da.from_array(np.concatenate(blocks), chunks=(tuple(map(len, blocks)),))
    where = [w.address for w in lie]
    with dask.annotate(workers=lambda key: where[key[1]], allow_other_workers=False):
        y = c.persist(made.map_blocks(np.copy), optimize_graph=False)
    await wait(y)
    s.add_plugin(begun := Begun(s))
    given = inputs.gather(y.reshape(-1, 1), y)
    wanted = Goal(workload=replace(GENERIC.profile, needs_all_classes=True))
    cluster = LiveCluster(
        c, given, wanted, lambda: 30.0, options=LookOptions(values=True)
    )
    await cluster.open(None)
    seen = await cluster.look(lambda *_: None)
    (found,) = (m.contents for m in seen.layouts[0].collections if m.label == "y")
    counts = [dict(partition["classes"])[0] for partition in found.partitions]
    assert counts == [10 + i for i in range(9)]
    assert sorted(begun.where) == sorted([a.address, b.address, b.address])


class Inputs(SchedulerPlugin):
    """Bytes of the partitions that each task gets that reads values."""

    def __init__(self, scheduler):
        self.scheduler, self.nbytes = scheduler, []

    def transition(self, key, start, finish, *args, **kwargs):
        if finish == "processing" and str(key[0]).startswith("contents-"):
            sources = self.scheduler.tasks[key].dependencies
            self.nbytes.append([ts.get_nbytes() for ts in sources])


@pytest.mark.parametrize(("columns", "n_tasks"), [(10, 8), (1, 2)])
@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_a_task_reads_few_bytes(c, s, a, b, columns, n_tasks, monkeypatch):
    """Spilled partitions of a task come into memory at once, so they are few."""
    monkeypatch.setattr(contents, "BUNDLE", 2**16)
    given = pd.DataFrame(np.ones((8000, columns)), columns=[*map(str, range(columns))])
    frame = c.persist(dd.from_pandas(given, npartitions=8))
    await wait(frame)
    s.add_plugin(inputs := Inputs(s))
    await clustertune.prepare(c, frame, rechunk=False)
    assert all(len(x) == 1 or sum(x) <= contents.BUNDLE for x in inputs.nbytes)
    assert len(inputs.nbytes) == n_tasks


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 3)
async def test_each_reads_its_own_beside_an_unknown_worker(c, s, a, b, d):
    """A worker that may get no code moves no partitions of the others."""
    where = [(a, b)[i % 3 == 1].address for i in range(9)]
    made = da.from_array(np.arange(18.0), chunks=2)
    with dask.annotate(workers=lambda key: where[key[1]], allow_other_workers=False):
        y = c.persist(made.map_blocks(np.copy), optimize_graph=False)
    await wait(y)
    addresses = [w.address for w in (d, b, a)]
    info = collection("y", [2] * 9, [addresses.index(x) for x in where])
    found = await contents.read(
        c,
        inputs.gather(y.reshape(-1, 1), y),
        {"y": futures_of(y)},
        {"y": content.finite},
        addresses,
        approved=addresses[1:],
        homes={"y": contents._homes(info, [1, 1, 1])},
    )
    assert len(found["y"].partitions) == 9
    assert not any(w.transfer_incoming_log for w in (a, b, d))


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 3)
async def test_a_paused_worker_beside_an_unknown_one(c, s, a, b, d):
    """Another worker that may get code reads the partitions of the paused one."""
    y = c.persist(da.arange(4, chunks=2), workers=[b.address])
    await wait(y)
    b.status = Status.paused
    await soon(lambda: s.workers[b.address].status is Status.paused)
    work = contents.read(
        c,
        inputs.gather(y.reshape(-1, 1), y),
        {"y": futures_of(y)},
        {"y": content.finite},
        [a.address, b.address, d.address],
        approved=[a.address, b.address],
        homes={"y": [(1, 0), (1, 1)]},
    )
    found = await asyncio.wait_for(work, 30)
    assert len(found["y"].partitions) == 2
    assert not any("contents-" in str(event) for event in d.state.log)
