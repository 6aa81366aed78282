from __future__ import annotations

import pytest
from distributed import Client, Event

import clustertune
from clustertune.checks import scheduler
from clustertune.checks.scheduler import (
    abandoned_tasks,
    data_from_client,
    stuck_tasks,
    unrelated_keys,
    unrunnable_tasks,
)
from clustertune.core.model import (
    RunningTask,
    Severity,
    UnmetRestriction,
)
from tests.builders import details, layout, prefix, snapshot, survey, view, worker
from tests.in_process import gen_cluster
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


def test_the_worker_reports_for_how_long():
    """Then one reading is enough."""
    seen = [worker(0, cancelled=1, details=details(cancelled=30.0)), worker(1)]
    (finding,) = abandoned_tasks(view(seen))
    assert (finding.severity, finding.subject) == (Severity.warning, (0,))
    assert finding.evidence == {"tasks": 1, "seconds": 30.0}
    seen = [worker(0, cancelled=1, details=details(cancelled=5.0)), worker(1)]
    assert not list(abandoned_tasks(view(seen)))


def _train(gate):
    Event(gate).wait(60)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_live(c, s, a, b, monkeypatch):
    """A client closes while its task runs, and the thread cannot be stopped."""
    monkeypatch.setattr(scheduler, "ABANDONED", 0.5)
    gate = Event("gate", client=c)
    # its result is not what keeps the worker: the thread is in native code, say
    # nor may its thread take this client, which goes, for the one that it waits with
    options = {"asynchronous": True, "set_as_default": False}
    async with Client(s.address, **options) as other:
        task = other.submit(_train, gate.name, workers=[a.address])
        await soon(lambda: a.state.executing_count)
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


# --- stuck_tasks ----------------------------------------------------------------------


def long_running(*tasks):
    """Return findings from worker, name, seconds, training and lost_member of tasks."""
    names = ("worker", "name", "seconds", "training", "lost_member")
    usual = {"inc": 2.0, "fn": 5.0}
    running = [
        RunningTask(usual=usual.get(x[1]), **dict(zip(names, x, strict=True)))
        for x in tasks
    ]
    seen = survey(running=tuple(running))
    workers = [worker(0, nanny="n"), worker(1, nanny="n")]
    return list(stuck_tasks(view(snapshots=[snapshot(workers, survey=seen)])))


@pytest.mark.parametrize(
    "task",
    [
        ("inc", 59.0, False, False),  # a short one
        ("fn", 9000.0, True, False),  # a fit takes as long as it takes
    ],
)
def test_tasks_that_are_not_stuck(task):
    assert long_running((worker(0).address, *task)) == []


@pytest.mark.parametrize(
    ("task", "severity", "text"),
    [
        (("inc", 61.0, False, False), Severity.warning, "at least 20 times as long"),
        (("fn", 1.0, True, True), Severity.warning, "of a fit that has lost a worker"),
        (("load", 61.0, False, False), Severity.unknown, "which may be stuck"),
    ],
)
def test_stuck_tasks(task, severity, text):
    """The remedy ends the tasks of the named worker."""
    (finding,) = long_running((worker(1).address, *task))
    assert (finding.severity, finding.subject) == (severity, (1,))
    assert text in finding.message
    assert repr(task[0]) in finding.message
    call = "clustertune.restart_workers(client, end_tasks=True, workers=[1])"
    assert call in finding.remedy


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


# --- data_from_client -----------------------------------------------------------------


def find_embedded_data(nbytes):
    return list(
        data_from_client(view((), [layout([10], None, ("X",), embedded=nbytes)]))
    )


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


def test_silent_where_data_has_a_recipe():
    """Data of any kind that can be computed again."""
    assert list(data_from_client(view((), [layout([10], [0])]))) == []


def test_without_a_recipe():
    """The finding counts the keys of all collections."""
    (finding,) = data_from_client(view((), [layout([10, 10], [0, 1], scattered=2)]))
    assert finding.severity is Severity.info
    assert finding.subject == ("X", "y")
    assert "4 partitions of X and y are lost if a worker dies" in finding.message


# --- unrelated_keys -------------------------------------------------------------------


GIB = 2**30


def find_unrelated_keys(managed, *prefixes, layouts=None):
    data = layout([1000] * 4, [0, 0, 1, 1])  # 352,000 bytes
    some = [worker(i, managed=managed) for i in range(2)]
    given = [data] if layouts is None else layouts
    return list(unrelated_keys(view(some, given, survey=survey(prefixes=prefixes))))


def test_silent_where_others_take_little():
    """Others hold little of 8 GiB, or no data was given, or nothing was read."""
    assert find_unrelated_keys(GIB // 4) == []
    assert find_unrelated_keys(3 * GIB, layouts=[]) == []
    assert (
        list(unrelated_keys(view([worker(0, managed=3 * GIB)], [layout([1], [0])])))
        == []
    )


def test_other_keys():
    """The finding names the largest kinds in memory."""
    kinds = (
        prefix("old", keys=5, nbytes=GIB),
        prefix("gone", keys=0, nbytes=9 * GIB),
        prefix("small", keys=1, nbytes=10),
    )
    (finding,) = find_unrelated_keys(GIB // 2, *kinds)
    assert finding.severity is Severity.info
    assert "largest kinds of all keys: old (1.0 GiB)" in finding.message
    (finding,) = find_unrelated_keys(2 * GIB, *kinds)
    assert finding.severity is Severity.warning
