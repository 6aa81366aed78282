"""The check ``paused_workers``."""

from distributed.core import Status
from distributed.utils_test import gen_cluster

import clustertune
from clustertune.checks.paused_workers import find
from clustertune.core.model import Severity
from clustertune.testing import details, snapshot, view, worker
from tests.processes import soon

GIB = 2**30


def found(*workers, **goal):
    """Findings for these workers."""
    return list(find(view(workers=workers, **goal)))


def test_silent_while_all_run():
    """Running workers, and those that are only starting, are no finding."""
    assert found(worker(0), worker(1, status="init")) == []


def test_paused_workers_are_critical():
    """All paused workers are one finding that says what does not happen there."""
    (finding,) = found(worker(0), *(worker(i, status="paused") for i in (1, 2)))
    assert finding.severity is Severity.critical
    assert finding.subject == (1, 2)
    assert finding.message.startswith(
        "workers 1 and 2 are paused: no task starts there and no data is placed there; "
        "a fit that needs them can hang"
    )


def test_why():
    """What fills it, beside the threshold; or that nothing does."""
    full = worker(1, status="paused", process=int(3.5 * GIB), managed=GIB)
    (finding,) = found(worker(0), full)
    assert finding.message.endswith(
        "; it has 3.5 GiB in memory, above 80% of its limit of 4.0 GiB: 1.0 GiB of "
        "keys, 2.5 GiB of anything else"
    )
    (finding,) = found(worker(0, status="paused"), full)
    assert "; worker 1, the fullest, has 3.5 GiB" in finding.message
    (finding,) = found(worker(0, status="paused"), worker(1))
    assert "was paused by hand" in finding.message
    (finding,) = found(worker(0, status="paused", memory_limit=0))
    assert finding.message.endswith("can hang")


def test_since_when_is_what_the_worker_says():
    """Also with one reading."""
    said = details(paused=75.0)
    (finding,) = found(worker(0), worker(1, status="paused", details=said))
    assert "paused, for at least 75 s:" in finding.message


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_live(c, s, a, b):
    """As a worker says it."""
    a.memory_manager.memory_pause_fraction = 1e-9
    a.status = Status.paused
    await soon(lambda: s.workers[a.address].status is Status.paused)
    report = await clustertune.check(c)
    (finding,) = (f for f in report.found if f.check == "paused_workers")
    assert 0 < finding.evidence["seconds"] < 60
    assert ", for at least" in finding.message


def test_a_paused_worker_that_was_not_asked_for_is_information():
    """A fit on other workers does not depend on it."""
    (finding,) = found(worker(0), worker(1, status="paused"), goal_workers=[0])
    assert finding.severity is Severity.info
    assert finding.subject == (1,)


def test_how_long_is_told_as_far_as_it_was_seen():
    """The time is counted from the first of the snapshots that show it paused."""
    window = [
        snapshot([worker(0, status=status)], time=time)
        for time, status in [(0, "paused"), (10, "running"), (20, "paused")]
    ]
    window.append(snapshot([worker(0, status="paused")], time=50.0))
    (finding,) = find(view(snapshots=window))
    assert "paused, for at least 30 s:" in finding.message
    assert finding.evidence["seconds"] == 30


def test_the_longest_time_is_that_of_one_of_them():
    """Of several workers the longest pause is told, and that it is one's."""
    early = snapshot([worker(0, status="paused"), worker(1)], time=0)
    late = snapshot([worker(i, status="paused") for i in (0, 1)], time=40.0)
    (finding,) = find(view(snapshots=[early, late]))
    assert "paused, one of them for at least 40 s:" in finding.message


def test_a_closing_worker_is_a_warning():
    """A worker that closes gracefully does not train, but nothing hangs on it."""
    (finding,) = found(worker(0), worker(1, status="closing_gracefully"))
    assert finding.severity is Severity.warning
    assert finding.message == "worker 1 is about to close and will not train"
