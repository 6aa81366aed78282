from __future__ import annotations

import dask
from distributed import Client, Event
from distributed.utils_test import gen_cluster

import clustertune
from clustertune.checks.abandoned_tasks import find
from clustertune.core.model import Severity
from clustertune.testing import snapshot, view, worker
from tests.processes import soon


def found(*seen):
    """From (time, cancelled tasks) of one of two workers."""
    window = [
        snapshot([worker(0, cancelled=n), worker(1)], time=time) for time, n in seen
    ]
    return list(find(view(snapshots=window)))


def test_silent_where_tasks_are_wanted():
    """And for the moment in which one ends."""
    assert found((0, 0)) == []
    assert found((0, 1), (20, 0)) == []
    assert found((0, 0), (20, 1)) == []
    assert found((0, 1), (5, 1)) == []


def test_one_reading_tells_nothing():
    """The task may end in a moment."""
    (finding,) = found((0, 1))
    assert finding.severity is Severity.unknown
    assert "one reading; use watch" in finding.message


def test_abandoned():
    """For as long as it was seen, without a break."""
    (finding,) = found((0, 0), (10, 2), (30, 2))
    assert finding.severity is Severity.warning
    assert finding.subject == (0,)
    assert finding.evidence == {"tasks": 2, "seconds": 20.0}


def _train(gate):
    Event(gate).wait(60)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_live(c, s, a, b):
    """A client goes while its task runs: the thread cannot be stopped."""
    gate = Event("gate", client=c)
    # its result is not what keeps the worker: the thread is in native code, say
    # nor may its thread take this client, which goes, for the one that it waits with
    options = {"asynchronous": True, "set_as_default": False}
    async with Client(s.address, **options) as other:
        task = other.submit(_train, gate.name, workers=[a.address])
        await soon(lambda: a.state.executing_count)
        settings = {"clustertune.checks.abandoned_tasks.after": 0.5}
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
