"""Values are read only if the workload needs them."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import futures_of, wait
from distributed.core import Status
from distributed.diagnostics.plugin import SchedulerPlugin

from clustertune.actions.cluster.live import LiveCluster, LookOptions
from clustertune.collections import contents, inputs
from clustertune.core.model import Goal
from clustertune.errors import IncompleteError
from clustertune.integrations.libraries import GENERIC
from clustertune.remote.worker import content
from tests.builders import collection, layout, view, worker
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
    """Group ids, also of eval sets, are sent if groups must be whole."""
    wanted = goal(groups="together")
    assert need("qid", goal(groups="anywhere")) is content.without_group
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


class Inputs(SchedulerPlugin):
    """The number of partitions that each task gets that reads values."""

    def __init__(self, scheduler):
        self.scheduler, self.counts = scheduler, []

    def transition(self, key, start, finish, *args, **kwargs):
        if finish == "processing" and str(key[0]).startswith("contents-"):
            self.counts.append(len(self.scheduler.tasks[key].dependencies))


async def labels(c, addresses):
    """Nine partitions of labels: 10, 11, ... zeros, and a one."""
    blocks = [np.repeat([0, 1], [10 + i, 1]) for i in range(9)]
    made = da.from_array(np.concatenate(blocks), chunks=(tuple(map(len, blocks)),))
    where = [addresses[i % 3 == 1] for i in range(9)]
    with dask.annotate(workers=lambda key: where[key[1]], allow_other_workers=False):
        y = c.persist(made.map_blocks(np.copy), optimize_graph=False)
    await wait(y)
    return y


async def classes_of(c, y):
    """What a call reads of labels; the number of zeros in each partition."""
    given = inputs.gather(y.reshape(-1, 1), y)
    wanted = Goal(workload=replace(GENERIC.profile, needs_all_classes=True))
    options = LookOptions(values=True)
    cluster = LiveCluster(c, given, wanted, lambda: 30.0, options=options)
    await cluster.open(None)
    seen = await cluster.look(lambda *_: None)
    (found,) = (m.contents for m in seen.layouts[0].collections if m.label == "y")
    return [dict(partition["classes"])[0] for partition in found.partitions]


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1), ("127.0.0.1", 2)])
async def test_partitions_in_memory_need_no_task(c, s, a, b):
    """Results are in the order of partitions."""
    y = await labels(c, [a.address, b.address])
    s.add_plugin(begun := Inputs(s))
    assert await classes_of(c, y) == [10 + i for i in range(9)]
    assert not begun.counts
    assert not any(w.transfer_incoming_log for w in (a, b))


@gen_cluster(
    client=True,
    nthreads=[("127.0.0.1", 1)] * 2,
    config={"distributed.scheduler.work-stealing": False},
)
async def test_a_long_read_goes_on_in_tasks(c, s, a, b, monkeypatch):
    """After its time, a call leaves the rest to tasks; each reads one partition."""
    monkeypatch.setattr(content, "SECONDS", -1.0)
    y = await labels(c, [a.address, b.address])
    s.add_plugin(begun := Inputs(s))
    assert await classes_of(c, y) == [10 + i for i in range(9)]
    assert begun.counts == [1] * 9
    assert not any(w.transfer_incoming_log for w in (a, b))


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_a_full_worker_reads_nothing(c, s, a, b):
    """Reading takes memory, so another worker reads the partitions of a paused one."""
    y = await labels(c, [a.address, b.address])
    b.memory_manager.memory_pause_fraction = 1e-9
    await soon(lambda: s.workers[b.address].status is Status.paused)
    s.add_plugin(begun := Inputs(s))
    assert await classes_of(c, y) == [10 + i for i in range(9)]
    assert begun.counts == [1] * 3


def test_partitions_are_read_in_batches():
    """Dask can spill what is not read now; a large partition has its own batch."""
    sizes = [6, 6, 6, 100, 1, 1]
    found = content._batches(range(6), lambda i: sizes[i] * content.BATCH // 16)
    assert list(found) == [[0, 1], [2], [3], [4, 5]]
    assert list(content._batches([], int)) == []


READ = threading.Event()


def _wait(_):
    READ.wait(60)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_a_look_that_takes_long(c, s, a, b, monkeypatch):
    """The rows do not wait for it."""
    monkeypatch.setattr(content, "SECONDS", 0.1)
    monkeypatch.setattr(content, "LONGER", 0.1)
    y = await labels(c, [a.address, b.address])
    seen = await placed(c, y, [a.address, b.address])
    (counted,), answers = await contents.in_memory(
        c,
        seen.layouts[0].collections,
        [a.address, b.address],
        approved=[a.address, b.address],
        looks={"y": _wait},
        task_seconds=0.0,
    )
    READ.set()
    assert [*counted.rows] == [11 + i for i in range(9)]
    assert answers == {}


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_spilled_partitions(c, s, a, b):
    """Dask loads all inputs of a task at once, so a task reads one of them."""
    y = await labels(c, [a.address, b.address])
    for w in (a, b):
        while w.data.fast:
            w.data.evict()
    s.add_plugin(begun := Inputs(s))
    assert await classes_of(c, y) == [10 + i for i in range(9)]
    assert begun.counts == [1] * 9


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_a_partition_that_cannot_be_read(c, s, a, b):
    """Its rows count all the same; the task that reads it next has the error."""
    y = c.persist(da.arange(4, chunks=2).map_blocks(_broken, meta=np.ones(0)))
    await wait(y)
    given = inputs.gather(da.ones((4, 1), chunks=2), y)
    view = await placed(c, y, [a.address, b.address])
    looks = {"y": content.finite}
    (counted,), answers = await contents.in_memory(
        c,
        view.layouts[0].collections,
        [a.address, b.address],
        approved=[a.address, b.address],
        looks=looks,
        task_seconds=30.0,
    )
    assert [*counted.rows] == [2, 2]
    assert not answers
    with pytest.raises(IncompleteError, match="could not be read: ZeroDivisionError"):
        await contents.read(
            c,
            given,
            {"y": futures_of(y)},
            looks,
            view,
            approved=[a.address, b.address],
            answers=answers,
        )


class Broken(list):
    """A partition with rows, and without values."""

    shape = (2,)

    def tocoo(self):
        raise ZeroDivisionError("no values")


def _broken(block):
    return Broken()


async def placed(c, y, addresses):
    """A view of y on these workers, as it is."""
    holders = await c.scheduler.who_has(keys=[f.key for f in futures_of(y)])
    homes = [addresses.index(held[0]) for held in holders.values()]
    info = collection("y", [2] * len(homes), homes)
    keys = tuple(f.key for f in futures_of(y))
    made = layout([2] * len(homes), homes)
    workers = [worker(i, address=address) for i, address in enumerate(addresses)]
    seen = view(workers, [made])
    layouts = (replace(made, collections=(replace(info, keys=keys),)),)
    return replace(seen, layouts=layouts)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 3)
async def test_each_reads_its_own_beside_an_unknown_worker(c, s, a, b, d):
    """A worker that may get no code moves no partitions of the others."""
    where = [(a, b)[i % 3 == 1].address for i in range(9)]
    made = da.from_array(np.arange(18.0), chunks=2)
    with dask.annotate(workers=lambda key: where[key[1]], allow_other_workers=False):
        y = c.persist(made.map_blocks(np.copy), optimize_graph=False)
    await wait(y)
    addresses = [w.address for w in (d, b, a)]
    found = await contents.read(
        c,
        inputs.gather(y.reshape(-1, 1), y),
        {"y": futures_of(y)},
        {"y": content.finite},
        await placed(c, y, addresses),
        approved=addresses[1:],
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
        await placed(c, y, [a.address, b.address, d.address]),
        approved=[a.address, b.address],
    )
    found = await asyncio.wait_for(work, 30)
    assert len(found["y"].partitions) == 2
    assert not any("contents-" in str(event) for event in d.state.log)
