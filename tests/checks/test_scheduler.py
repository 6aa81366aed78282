from __future__ import annotations

import dask
import pytest
from distributed import Client, Event

import clustertune
from clustertune.checks.scheduler import (
    data_from_client,
    stuck_tasks,
    unrunnable_tasks,
)
from clustertune.core.model import (
    RunningTask,
    Severity,
    UnmetRestriction,
)
from tests.builders import details, layout, snapshot, survey, view, worker
from tests.in_process import gen_cluster
from tests.processes import soon

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


def unwanted(*seconds):
    """Return findings from the seconds for which workers run a cancelled task."""
    workers = [
        worker(i, details=details(cancelled=lasting))
        for i, lasting in enumerate(seconds)
    ]
    return list(stuck_tasks(view(workers)))


def test_silent_where_tasks_are_wanted():
    """No worker runs a cancelled task, it may end soon, or details were not read."""
    assert unwanted(None, None) == unwanted(59.0, None) == []
    assert list(stuck_tasks(view([worker(0)]))) == []


def test_tasks_that_no_client_waits_for():
    """A restart does not wait for them, so the remedy ends no others."""
    (finding,) = unwanted(61.0, 300.0, None)
    assert (finding.severity, finding.subject) == (Severity.warning, (0, 1))
    assert finding.evidence == {"seconds": 300.0}
    assert "tasks for which no client waits, for up to 5 min" in finding.message
    assert "clustertune.restart_workers(client, workers=[0, 1])" in finding.remedy


def _train(gate):
    Event(gate).wait(60)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_a_client_that_left(c, s, a, b):
    """A client closes while its task runs, and the thread cannot be stopped."""
    gate = Event("gate", client=c)
    # the task's thread must not wait with this client, which closes
    options = {"asynchronous": True, "set_as_default": False}
    async with Client(s.address, **options) as other:
        task = other.submit(_train, gate.name, workers=[a.address])
        await soon(lambda: a.state.executing_count)
    await soon(lambda: a.state.tasks[task.key].state == "cancelled")
    with dask.config.set({"clustertune.checks.stuck_tasks.min_seconds": 0}):
        report = await clustertune.check(c)
    (finding,) = (f for f in report.found if f.check == "stuck_tasks")
    assert finding.severity is Severity.warning
    assert "no client waits" in finding.message
    await gate.set()


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
