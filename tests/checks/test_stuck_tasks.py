"""Tasks that wait for a worker that is not there."""

from __future__ import annotations

from distributed.utils_test import gen_cluster

import clustertune
from clustertune.checks.stuck_tasks import find
from clustertune.core.model import Severity, Unmet
from clustertune.testing import snapshot, survey, view, worker
from tests.processes import soon


def found(*unmet):
    seen = snapshot([worker(0)], survey=survey(unmet=unmet))
    return list(find(view(snapshots=[seen])))


def test_silent_where_nothing_waits():
    """Or where nobody has asked."""
    assert found() == []
    assert list(find(view(snapshots=[snapshot([worker(0)])]))) == []


def test_a_worker_that_is_gone():
    """Will not come back under its address, as a rule."""
    gone = ("tcp://10.0.0.1:4000", "tcp://10.0.0.2:4000")
    one, two = found(*(Unmet(kind="worker", names=gone[:i], tasks=i) for i in (1, 2)))
    assert one.severity is two.severity is Severity.critical
    assert one.message == f"1 task may run on {gone[0]} only, which is gone"
    assert two.message.endswith(f"{gone[0]} and {gone[1]} only, which are gone")
    assert two.subject == gone
    assert two.evidence == {"tasks": 2, "worker": ", ".join(gone)}


def test_what_may_still_come():
    """A host, and resources."""
    host, resources = found(
        Unmet(kind="host", names=("gpu-\x1b[31m7",), tasks=3),
        Unmet(kind="resources", names=("GPU: 1",), tasks=4),
    )
    assert host.severity is resources.severity is Severity.warning
    assert "\x1b" not in host.message
    assert "no worker or host is called so" in host.message
    assert resources.message == (
        "4 tasks may run with GPU: 1 only: no worker has these resources"
    )


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_live(c, s, a, b):
    """What a worker that leaves has not done, and was to do alone."""
    gone = a.address
    await a.close()
    tasks = c.map(int, range(3), workers=[gone])
    await soon(lambda: len(s.unrunnable) == 3)
    report = await clustertune.check(c)
    (finding,) = (f for f in report.found if f.check == "stuck_tasks")
    assert finding.message == f"3 tasks may run on {gone} only, which is gone"
    del tasks
