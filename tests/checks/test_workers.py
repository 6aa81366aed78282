from __future__ import annotations

import math
from dataclasses import replace

import pytest
from distributed.core import Status

import clustertune
from clustertune.checks.workers import (
    adaptive_scaling,
    missing_workers,
    no_nanny,
    paused_workers,
    software_versions,
    unfinished_restarts,
    unresponsive_workers,
    worker_lifetime,
)
from clustertune.core.model import OtherVersions, Severity, Unknown
from tests.builders import details, snapshot, survey, view, worker
from tests.in_process import gen_cluster
from tests.processes import soon

# --- missing_workers ------------------------------------------------------------------


def test_none_at_all():
    """Without workers nothing can run."""
    (finding,) = missing_workers(view(snapshots=[snapshot([])]))
    assert finding.severity is Severity.critical
    assert finding.message == "no worker is running (workers: none)"
    (finding,) = missing_workers(view([worker(i, status="paused") for i in range(2)]))
    assert finding.message == "no worker is running (workers: 2 paused)"


@pytest.mark.parametrize("n_workers", [None, 1, 2])
def test_silent_with_enough_workers(n_workers):
    """As many workers as requested run, or no number was requested."""
    assert list(missing_workers(view(n_workers=n_workers))) == []


def test_fewer_running_workers_than_asked_for_are_a_warning():
    """A paused worker does not count as a running one."""
    workers = [worker(0), worker(1, status="paused")]
    (finding,) = missing_workers(view(workers=workers, n_workers=4))
    assert finding.severity is Severity.warning
    assert finding.message == "1 of 4 requested workers running"
    assert finding.evidence == {"running": 1, "requested": 4, "can_scale": True}


def test_why_the_cluster_cannot_be_scaled_is_said():
    """The finding has the reason why the client cannot scale."""
    moment = snapshot([], can_scale="it was connected by address")
    (finding,) = missing_workers(view(snapshots=[moment], n_workers=1))
    assert finding.message == (
        "0 of 1 requested worker running; this client cannot scale it: it was "
        "connected by address"
    )
    assert finding.evidence["can_scale"] is False


# --- paused_workers -------------------------------------------------------------------


GIB = 2**30


def find_paused_workers(*workers, **goal):
    """Return findings for these workers."""
    return list(paused_workers(view(workers=workers, **goal)))


def test_silent_while_all_run():
    """All workers run or start."""
    assert find_paused_workers(worker(0), worker(1, status="init")) == []


def test_paused_workers_are_critical():
    """One finding lists all paused workers and the effect."""
    (finding,) = find_paused_workers(
        worker(0), *(worker(i, status="paused") for i in (1, 2))
    )
    assert finding.severity is Severity.critical
    assert finding.subject == (1, 2)
    assert finding.message.startswith(
        "workers 1 and 2 are paused: no task starts there and no data is placed there; "
        "a fit on them can hang"
    )


def test_why():
    """The finding has the data that fills the worker, if there is any."""
    full = worker(1, status="paused", process=int(3.5 * GIB), managed=GIB)
    (finding,) = find_paused_workers(worker(0), full)
    assert finding.message.endswith(
        "; it has 3.5 GiB in memory, 88% of its limit of 4.0 GiB: 1.0 GiB of "
        "keys and 2.5 GiB unmanaged"
    )
    (finding,) = find_paused_workers(worker(0, status="paused"), full)
    assert "; worker 1, the fullest, has 3.5 GiB" in finding.message
    (finding,) = find_paused_workers(worker(0, status="paused", memory_limit=0))
    assert finding.message.endswith("can hang")


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_live(c, s, a, b):
    """A real worker reports it."""
    a.memory_manager.memory_pause_fraction = 1e-9
    a.status = Status.paused
    await soon(lambda: s.workers[a.address].status is Status.paused)
    report = await clustertune.check(c)
    (finding,) = (f for f in report.found if f.check == "paused_workers")
    assert finding.evidence["process_bytes"] > 0


def test_a_paused_worker_that_was_not_asked_for_is_information():
    """The fit on other workers does not depend on it."""
    (finding,) = find_paused_workers(
        worker(0), worker(1, status="paused"), goal_workers=[0]
    )
    assert finding.severity is Severity.info
    assert finding.subject == (1,)


def test_a_closing_worker_is_a_warning():
    """A worker that closes gracefully does not train, but no task waits for it."""
    (finding,) = find_paused_workers(worker(0), worker(1, status="closing_gracefully"))
    assert finding.severity is Severity.warning
    assert finding.message == "worker 1 is about to close and will not train"


# --- unresponsive_workers -------------------------------------------------------------


def find_unresponsive_workers(seconds, ttl=300.0, **options):
    some = [worker(0, heartbeat_age=seconds, **options), worker(1)]
    return list(unresponsive_workers(view(some, survey=survey(worker_ttl=ttl))))


def test_silent_while_workers_speak():
    """A heartbeat may be late."""
    assert find_unresponsive_workers(10) == []
    # the heartbeats of 1,000 workers are 6 s apart
    late = {"heartbeat_age": 7, "details": Unknown("other versions")}
    crowd = [worker(i, **late) for i in range(1000)]
    assert list(unresponsive_workers(view(crowd))) == []
    assert len(list(unresponsive_workers(view(crowd[:2])))) == 1


@pytest.mark.parametrize(
    ("seconds", "ttl", "severity"),
    [
        (60, 300, Severity.warning),
        (200, 300, Severity.critical),
        (200, None, Severity.warning),
        (31, 60, Severity.critical),
    ],
)
def test_silence(seconds, ttl, severity):
    """The severity rises until the scheduler removes the worker."""
    (finding,) = find_unresponsive_workers(seconds, ttl)
    assert finding.severity is severity
    assert finding.subject == (0,)


def test_a_task_that_may_hold_the_lock():
    """It is the first suspect."""
    (finding,) = find_unresponsive_workers(60, executing=1)
    assert "a task runs there and may hold Python's global lock" in finding.message
    (finding,) = unresponsive_workers(view([worker(0, heartbeat_age=60)]))
    assert "after 5 min Dask removes it" in finding.message


# --- unfinished_restarts --------------------------------------------------------------


PARKING = worker(
    "clustertune-parking-1", parking=True, status="closing_gracefully", managed=2**20
)


def test_silent_without():
    """A healthy cluster has no parking worker."""
    assert list(unfinished_restarts(view())) == []


def test_a_parking_worker():
    """The finding names it and its keys, and does not call it closing."""
    seen = view([worker(0), PARKING])
    (finding,) = unfinished_restarts(seen)
    assert finding.severity is Severity.warning
    assert finding.subject == ("clustertune-parking-1",)
    assert finding.evidence == {"bytes": 2**20}
    assert "keeps 1.0 MiB of keys" in finding.message
    assert list(paused_workers(seen)) == []


# --- adaptive_scaling -----------------------------------------------------------------


def find_adaptive_scaling(adaptive):
    seen = snapshot([worker(0), worker(1)], adaptive=adaptive)
    return list(adaptive_scaling(view(snapshots=[seen])))


def test_silent_where_the_number_stays():
    """The cluster is not adaptive, or its bounds are equal."""
    assert find_adaptive_scaling(None) == []
    assert find_adaptive_scaling((2, 2)) == []


def test_adaptive():
    """The finding has bounds and workers."""
    for most, text in ((8, "between 1 and 8"), (math.inf, "between 1 and any number")):
        (finding,) = find_adaptive_scaling((1, most))
        assert finding.severity is Severity.info
        assert text in finding.message
        assert "clustertune.hold(client)" in finding.remedy


def test_unknown():
    """Some managers do not tell the bounds."""
    (finding,) = find_adaptive_scaling(Unknown("the gateway keeps them"))
    assert finding.severity is Severity.unknown
    assert "the gateway keeps them" in finding.message


# --- worker_lifetime ------------------------------------------------------------------


def find_lifetimes(*ends):
    return list(
        worker_lifetime(
            view([worker(i, details=details(expires=e)) for i, e in enumerate(ends)])
        )
    )


def test_silent_where_none_is_set():
    """Workers have no lifetime, or it was not read."""
    assert find_lifetimes(None, None) == []
    assert list(worker_lifetime(view())) == []


def test_lifetimes():
    """It is a warning if the first ends within the hour, or has ended."""
    (finding,) = find_lifetimes(7200.0, None)
    assert finding.severity is Severity.info
    assert finding.subject == (0,)
    (finding,) = find_lifetimes(7200.0, 600.0)
    assert finding.severity is Severity.warning
    assert "the first in about 10 min" in finding.message
    (finding,) = find_lifetimes(-5.0)
    assert finding.evidence["seconds"] == 0


# --- no_nanny -------------------------------------------------------------------------


def test_silent_with_nannies():
    """Each worker has a nanny."""
    assert list(no_nanny(view())) == []


def test_without():
    """It is information, because some clusters intend it."""
    (finding,) = no_nanny(view([worker(0), worker(1, nanny=None)]))
    assert finding.severity is Severity.info
    assert finding.subject == (1,)


# --- software_versions ----------------------------------------------------------------


def find_software_versions(client, scheduler, *workers, needed=()):
    some = [worker(i, details=details(packages=p)) for i, p in enumerate(workers)]
    both = {"client": client, "scheduler": scheduler}
    seen = view(some, survey=survey(packages=both))
    workload = replace(seen.goal.workload, packages=needed)
    return list(
        software_versions(replace(seen, goal=replace(seen.goal, workload=workload)))
    )


def test_silent_where_they_are_the_same():
    """Packages that one side lacks are no difference."""
    same = {"dask": "1"}
    assert (
        find_software_versions(
            {**same, "xgboost": "3"}, same, {**same, "xgboost": "3"}, same
        )
        == []
    )
    assert list(software_versions(view())) == []


def test_other_releases():
    """The finding has the releases of each side and the number of workers."""
    (finding,) = find_software_versions(
        {"xgboost": "3.2"},
        {},
        {"xgboost": "3.1"},
        {"xgboost": "3.1"},
        {"xgboost": "3.2"},
    )
    assert finding.severity is Severity.warning
    text = "releases of xgboost differ (client 3.2, 2 workers 3.1, 1 worker 3.2), so"
    assert finding.message.startswith(text)


def test_workers_that_get_no_code():
    """They are named with the cause, once for each cause, and are not eligible."""
    other = OtherVersions("it runs Python 3.4")
    seen = view([worker(0), worker("b", facts=other), worker("c", facts=other)])
    (finding,) = software_versions(seen)
    assert finding.severity is Severity.warning
    assert finding.subject == ("b", "c")
    assert "workers b and c get no code" in finding.message
    assert "it runs Python 3.4" in finding.message
    assert [w.id for w in seen.eligible_workers] == [0]


def test_what_trains_is_missing():
    """A fit cannot run on workers without the required package."""
    (finding,) = find_software_versions(
        {}, {}, {"xgboost": "3"}, {}, needed=("xgboost", "x")
    )
    assert finding.severity is Severity.critical
    assert finding.subject == (1,)
