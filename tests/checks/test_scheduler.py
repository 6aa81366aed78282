from __future__ import annotations

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, Event, get_worker, wait
from distributed.utils_test import gen_cluster

import clustertune
from clustertune.checks.scheduler import (
    abandoned_tasks,
    actors,
    data_in_graph,
    large_results,
    lost_datasets,
    other_clients,
    short_tasks,
    single_busy_worker,
    unrunnable_tasks,
)
from clustertune.core.model import (
    ClientFacts,
    PublishedDataset,
    Severity,
    UnmetRestriction,
)
from tests.builders import layout, prefix, snapshot, survey, view, worker
from tests.processes import soon

# --- abandoned_tasks ------------------------------------------------------------------


def find_abandoned_tasks(*seen):
    """Return findings from (time, cancelled tasks) of one of two workers."""
    window = [
        snapshot([worker(0, cancelled=n), worker(1)], time=time) for time, n in seen
    ]
    return list(abandoned_tasks(view(snapshots=window)))


def test_silent_where_tasks_are_wanted():
    """Tasks are wanted, or a cancelled task runs for a moment."""
    assert find_abandoned_tasks((0, 0)) == []
    assert find_abandoned_tasks((0, 1), (20, 0)) == []
    assert find_abandoned_tasks((0, 0), (20, 1)) == []
    assert find_abandoned_tasks((0, 1), (5, 1)) == []


def test_one_reading_tells_nothing():
    """After one reading the task may end soon."""
    (finding,) = find_abandoned_tasks((0, 1))
    assert finding.severity is Severity.unknown
    assert "one reading cannot show for how long" in finding.message


def test_abandoned():
    """The duration is that of the snapshots without a break."""
    (finding,) = find_abandoned_tasks((0, 0), (10, 2), (30, 2))
    assert finding.severity is Severity.warning
    assert finding.subject == (0,)
    assert finding.evidence == {"tasks": 2, "seconds": 20.0}


def _train(gate):
    Event(gate).wait(60)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_live(c, s, a, b):
    """A client closes while its task runs, and the thread cannot be stopped."""
    gate = Event("gate", client=c)
    # its result is not what keeps the worker: the thread is in native code, say
    # nor may its thread take this client, which goes, for the one that it waits with
    options = {"asynchronous": True, "set_as_default": False}
    async with Client(s.address, **options) as other:
        task = other.submit(_train, gate.name, workers=[a.address])
        await soon(lambda: a.state.executing_count)
        settings = {"clustertune.checks.abandoned_tasks.min_seconds": 0.5}
        with dask.config.set(settings):
            async with clustertune.Monitor(c, interval=0.1) as monitor:
                monitor._watch.hold = 0.1
                assert _names(monitor) == set()
                await other.close()
                await a.heartbeat()
                await soon(lambda: "abandoned_tasks" in _names(monitor))
    await gate.set()
    del task


def _names(monitor):
    return {f.check for f in monitor.findings}


# --- single_busy_worker ---------------------------------------------------------------


def find_single_busy_worker(*seen, workers=2):
    """Return findings from (time, tasks of each worker)."""
    window = [
        snapshot([worker(i, processing=n) for i, n in enumerate(tasks)], time=t)
        for t, *tasks in seen
    ]
    return list(single_busy_worker(view(snapshots=window)))


def test_silent_where_all_or_none_work():
    """All, none, or different workers are busy, or only briefly, or there is one
    worker.
    """
    assert find_single_busy_worker((0, 0, 0)) == []
    assert find_single_busy_worker((0, 3, 1), (60, 1, 1)) == []
    assert find_single_busy_worker((0, 1, 0), (20, 1, 0)) == []
    assert find_single_busy_worker((0, 1, 0), (40, 0, 1), (60, 0, 1)) == []
    assert find_single_busy_worker((0, 1), (60, 1)) == []


def test_single_busy_worker_one_reading_tells_nothing():
    """Every computation has such moments."""
    (finding,) = find_single_busy_worker((0, 1, 0))
    assert finding.severity is Severity.unknown


def test_one_worker_works():
    """The duration is that of the snapshots."""
    (finding,) = find_single_busy_worker((0, 1, 1, 1), (10, 2, 0, 0), (50, 1, 0, 0))
    assert finding.severity is Severity.info
    assert finding.subject == (0,)
    assert finding.evidence == {"seconds": 40.0, "waiting_workers": 2}
    assert "2 workers wait" in finding.message


# --- short_tasks ----------------------------------------------------------------------


def find_short_tasks(*prefixes):
    return list(short_tasks(view(survey=survey(prefixes=prefixes))))


def test_silent_where_tasks_are_long_or_few():
    """Tasks are long or few, or nothing has run or was read."""
    assert find_short_tasks() == []
    assert find_short_tasks(prefix("a", finished=1000, seconds=1.0)) == []
    assert find_short_tasks(prefix("a", finished=100_000, seconds=5000.0)) == []
    assert list(short_tasks(view())) == []


def test_many_short_ones():
    """The finding has their overhead, and a better size."""
    some = prefix("random", finished=100_000, seconds=100.0)
    (finding,) = find_short_tasks(some, prefix("sum", finished=80_000, seconds=100.0))
    assert finding.severity is Severity.warning
    assert finding.subject == ("random", "sum")
    assert finding.message == (
        "100,000 tasks 'random' took 0.001 s each, so workers wait for the scheduler; "
        "tasks should take at least 0.02 s"
    )
    assert finding.evidence["factor"] == 20
    (finding,) = find_short_tasks(prefix("a", finished=100_000, seconds=0.0))
    assert finding.evidence["factor"] > 1000


# --- unrunnable_tasks -----------------------------------------------------------------


def find_stuck_tasks(*unmet):
    seen = snapshot([worker(0)], survey=survey(unmet_restrictions=unmet))
    return list(unrunnable_tasks(view(snapshots=[seen])))


def test_silent_where_nothing_waits():
    """No task waits, or the tasks were not read."""
    assert find_stuck_tasks() == []
    assert list(unrunnable_tasks(view(snapshots=[snapshot([worker(0)])]))) == []


def test_a_worker_that_is_gone():
    """A lost worker seldom returns with its address."""
    gone = ("tcp://10.0.0.1:4000", "tcp://10.0.0.2:4000")
    one, two = find_stuck_tasks(
        *(UnmetRestriction(kind="worker", names=gone[:i], tasks=i) for i in (1, 2))
    )
    assert one.severity is two.severity is Severity.critical
    assert one.message == f"1 task may run on {gone[0]} only, which is gone"
    assert two.message.endswith(f"{gone[0]} and {gone[1]} only, which are gone")
    assert two.subject == gone
    assert two.evidence == {"tasks": 2, "worker": ", ".join(gone)}


def test_what_may_still_come():
    """A missing host or resource may still come."""
    host, resources = find_stuck_tasks(
        UnmetRestriction(kind="host", names=("gpu-\x1b[31m7",), tasks=3),
        UnmetRestriction(kind="resources", names=("GPU: 1",), tasks=4),
    )
    assert host.severity is resources.severity is Severity.warning
    assert "\x1b" not in host.message
    assert "no worker or host is called so" in host.message
    assert resources.message == (
        "4 tasks may run with GPU: 1 only: no worker has these resources"
    )


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_stuck_tasks_live(c, s, a, b):
    """A worker that leaves had a task that is restricted to it."""
    gone = a.address
    await a.close()
    tasks = c.map(int, range(3), workers=[gone])
    await soon(lambda: len(s.unrunnable) == 3)
    report = await clustertune.check(c)
    (finding,) = (f for f in report.found if f.check == "unrunnable_tasks")
    assert finding.message == f"3 tasks may run on {gone} only, which is gone"
    del tasks


# --- large_results --------------------------------------------------------------------


ARRAYS = "finalize-hlgfinalizecompute"


def find_large_results(*prefixes):
    return list(large_results(view(survey=survey(prefixes=prefixes))))


def test_silent_where_results_are_small_or_spread():
    """Results are small, or many partitions hold the bytes."""
    assert find_large_results(prefix(ARRAYS, memory=3, nbytes=2**30)) == []
    assert find_large_results(prefix(ARRAYS, waiting=3, inputs=2**30)) == []
    assert (
        find_large_results(prefix("random", memory=3, nbytes=2**40, inputs=2**40)) == []
    )
    assert list(large_results(view())) == []


@pytest.mark.parametrize("name", [ARRAYS, "repartitiontofewer"])
def test_a_large_result_in_one_place(name):
    """Every result passed through the memory of one worker."""
    (finding,) = find_large_results(prefix(name, memory=2, nbytes=2**33))
    assert finding.severity is Severity.warning
    assert "2 results of 8.0 GiB in all were joined" in finding.message


def test_a_large_result_that_is_to_come():
    """The result can still be prevented."""
    (finding,) = find_large_results(prefix(ARRAYS, waiting=1, inputs=2**33))
    assert finding.severity is Severity.warning
    assert "1 result of 8.0 GiB in all is about to be joined" in finding.message


def _after(partition, gate):
    if get_worker().name == 1:
        Event(gate).wait(30)
    return partition.copy()


FRAME = pd.DataFrame(np.ones((8000, 100)))


@pytest.mark.parametrize(
    "collection",
    [
        lambda: da.random.random((8000, 100), chunks=(1000, 100)),
        lambda: dd.from_pandas(FRAME, npartitions=8),
    ],
    ids=["array", "frame"],
)
def test_large_results_live(collection):
    """Dask's names identify results before and after all partitions are joined."""

    @gen_cluster(
        client=True,
        nthreads=[("127.0.0.1", 1)] * 2,
        config={"clustertune.checks.large_results.max_bytes": 5e6},
    )
    async def test(c, s, a, b):
        X = c.persist(collection())
        await wait(X)
        assert await _messages(c) == []
        gate = Event("gate", client=c)
        map_partitions = getattr(X, "map_blocks", None) or X.map_partitions
        result = c.compute(map_partitions(_after, gate=gate.name, meta=X._meta))
        # From the first partition on sizes are known; frames have other tasks between.
        await soon(
            lambda: any("after" in k[0] and t.who_has for k, t in s.tasks.items())
        )
        (message,) = await _messages(c)
        assert "1 result of 6.1 MiB in all is about to be joined" in message
        await gate.set()
        await wait(result)
        (message,) = await _messages(c)
        assert "1 result of 6.1 MiB in all was joined" in message

    test()


async def _messages(c):
    report = await clustertune.check(c)
    return [f.message for f in report.found if f.check == "large_results"]


# --- data_in_graph --------------------------------------------------------------------


def find_embedded_data(nbytes):
    return list(data_in_graph(view((), [layout([10], None, ("X",), embedded=nbytes)])))


def test_silent_where_workers_read():
    """Workers read the data, little is in the graph, or the data is loaded."""
    assert (
        find_embedded_data(0)
        == find_embedded_data(None)
        == find_embedded_data(2**20)
        == []
    )


def test_data_in_the_graph():
    """It is a warning from a certain size on."""
    (finding,) = find_embedded_data(2**26)
    assert finding.severity is Severity.info
    assert "X has 64.0 MiB of data in the graph" in finding.message
    (finding,) = find_embedded_data(2**31)
    assert finding.severity is Severity.warning


# --- actors ---------------------------------------------------------------------------


def test_silent_without_actors():
    """There are no actors, or they were not read."""
    assert list(actors(view(survey=survey()))) == []
    assert list(actors(view())) == []


def test_actors():
    """The finding counts them."""
    (finding,) = actors(view(survey=survey(actors=2)))
    assert finding.severity is Severity.info
    assert finding.message == (
        "2 actors are on the workers; Dask cannot move actors, so a restart ends them"
    )


# --- lost_datasets --------------------------------------------------------------------


def find_lost_datasets(*names):
    some = [PublishedDataset(name=n, keys=k, missing=m) for n, k, m in names]
    return list(lost_datasets(view(survey=survey(published=tuple(some)))))


def test_silent_where_names_lead_somewhere():
    """All names have data, or there are no names."""
    assert find_lost_datasets(("X", 5, 0)) == []
    assert find_lost_datasets() == []
    assert list(lost_datasets(view())) == []


def test_names_that_lead_nowhere():
    """All or some of their keys are missing."""
    (finding,) = find_lost_datasets(("X", 5, 5), ("y", 5, 0))
    assert finding.severity is Severity.critical
    assert (
        finding.message
        == "published data set X: 5 keys of 5 are gone, so any use of the data fails"
    )
    (finding,) = find_lost_datasets(("X", 5, 1), ("y\n", 5, 0))
    assert (
        finding.message
        == "published data set X: 1 key of 5 is gone, so any use of the data fails"
    )


# --- other_clients --------------------------------------------------------------------


def find_other_clients(*clients):
    some = [ClientFacts(id=i, keys=n, heartbeat_age=s) for i, n, s in clients]
    return list(other_clients(view(survey=survey(clients=tuple(some)))))


def test_silent_where_there_is_nobody_else():
    """There are only this client, published data, and clients without data."""
    assert (
        find_other_clients(
            ("Client-me", 5, 1), ("published-X", 5, 0), ("Client-b", 0, 0)
        )
        == []
    )
    assert list(other_clients(view())) == []


def test_others():
    """The finding has their number, their bytes, and silent ones."""
    (finding,) = find_other_clients(("Client-me", 5, 1), ("Client-b", 7, 1))
    assert finding.severity is Severity.info
    assert finding.message == "1 other client of this cluster keeps 7 keys"
    (finding,) = find_other_clients(("a", 7, 1), ("b", 3, 600))
    assert "keep 10 keys; one is silent for 10 min" in finding.message
