from __future__ import annotations

from dataclasses import replace

import pytest

from clustertune.checks.threads import (
    blocked_event_loops,
    several_workers_per_host,
    thread_count,
    thread_pools,
)
from clustertune.core.model import Profile, Severity, Unknown
from tests.builders import details, layout, snapshot, survey, view, worker

# --- thread_count ---------------------------------------------------------------------


ALL = frozenset(range(8))


def find_thread_count(*workers, **settings):
    """Return findings for these workers."""
    return list(thread_count(view(workers=workers), **settings))


@pytest.mark.parametrize(
    "workers",
    [
        pytest.param(
            [worker(i, nthreads=2, affinity=ALL) for i in range(4)],
            id="stock LocalCluster: all CPUs, each sees all",
        ),
        pytest.param(
            [worker(0, nthreads=4, affinity=ALL, quotas=(("/c", 3.5),))],
            id="quota of 3.5, rounded up",
        ),
        pytest.param(
            [worker(0, nthreads=3, affinity=ALL, quotas=(("/c", 3.5),))],
            id="quota of 3.5, rounded down",
        ),
        pytest.param(
            [worker(0, nthreads=1, affinity=ALL, quotas=(("/c", 0.5),))],
            id="half a CPU",
        ),
        pytest.param(
            [worker(0, nthreads=15, affinity=frozenset(range(16)), host="h")],
            id="one of 16 idle: within the tolerance",
        ),
        pytest.param(
            [
                worker(i, nthreads=2, affinity=ALL, quotas=((f"/pod{i}", 2.0),))
                for i in range(2)
            ],
            id="two containers",
        ),
        pytest.param(
            [
                worker(name, nthreads=8, affinity=ALL, parking=bool(name))
                for name in (0, "clustertune-parking-1")
            ],
            id="a former process during a restart",
        ),
    ],
)
def test_silent(workers):
    """Threads match CPUs."""
    assert find_thread_count(*workers) == []


def test_threads_are_summed_over_the_workers_of_a_host():
    """Two workers that each use all CPUs of one host compete."""
    pair = [worker(i, nthreads=8, affinity=ALL) for i in (0, 1)]
    (finding,) = find_thread_count(*pair)
    assert finding.severity is Severity.warning
    assert finding.message == (
        "more threads than usable CPUs on host 127.0.0.1: 16 threads of workers "
        "0 and 1 share 8 CPUs and wait for each other"
    )
    assert finding.evidence == {"hosts": 1, "threads": 16, "cpus": 8}


@pytest.mark.parametrize("goal", [{"n_workers": 3}, {"goal_workers": [0, 1, 2]}])
def test_a_wish_for_more_workers_than_cpus(goal):
    """No remedy takes a wished worker away, but fewer threads would help."""
    three = [worker(i, nthreads=1, affinity=frozenset({0, 1})) for i in range(3)]
    (finding,) = thread_count(view(workers=three))
    assert "clustertune.scale(client, 2)" in finding.remedy
    (finding,) = thread_count(view(workers=three, layouts=[layout([1] * 3, [0, 1, 2])]))
    assert "clustertune.scale(client, 2, X, y)" in finding.remedy
    (finding,) = thread_count(view(workers=three, **goal))
    assert finding.severity is Severity.info
    assert finding.remedy == ""
    two = [worker(i, nthreads=2, affinity=frozenset({0, 1})) for i in range(2)]
    (finding,) = thread_count(view(workers=two, n_workers=2))
    assert finding.severity is Severity.warning
    assert "nthreads=1" in finding.remedy


@pytest.mark.parametrize(
    ("n_workers", "nthreads", "severity"),
    [
        (3, 1, Severity.info),
        (4, 1, Severity.info),
        (5, 1, Severity.warning),
        (3, 2, Severity.warning),
    ],
)
def test_more_workers_than_cpus(n_workers, nthreads, severity):
    """Up to two workers of one thread for each CPU are no problem of a fit."""
    cpus = frozenset({0, 1})
    many = [worker(i, nthreads=nthreads, affinity=cpus) for i in range(n_workers)]
    (finding,) = find_thread_count(*many)
    assert finding.severity is severity
    assert "clustertune.scale(client, 2)" in finding.remedy


def test_the_same_workers_on_two_hosts_do_not_compete():
    """Each host counts separately."""
    assert (
        find_thread_count(
            *(worker(i, nthreads=8, affinity=ALL, host=f"h{i}") for i in (0, 1))
        )
        == []
    )


def test_a_quota_around_the_workers_cgroup_counts():
    """A quota of a parent cgroup, which Dask ignores, makes threads compete."""
    quotas = (("/job/step", 8.0), ("/job", 2.0))
    (finding,) = find_thread_count(worker(0, nthreads=8, affinity=ALL, quotas=quotas))
    assert finding.severity is Severity.warning
    assert finding.evidence["cpus"] == 2.0


def test_one_container_over_its_quota_is_found_beside_an_idle_one():
    """Sums over the host do not hide a worker that competes with itself."""
    full = worker(0, nthreads=4, affinity=ALL, quotas=(("/a", 2.0),))
    idle = worker(1, nthreads=2, affinity=ALL, quotas=(("/b", 4.0),))
    (finding,) = find_thread_count(full, idle)
    assert "4 threads of worker 0 share 2 CPUs" in finding.message


def test_idle_cpus_of_a_remote_host_are_a_warning():
    """A remote host is probably meant to be used fully."""
    (finding,) = find_thread_count(worker(0, nthreads=1, affinity=ALL, host="10.0.0.7"))
    assert finding.severity is Severity.warning
    assert "host 10.0.0.7" in finding.message
    assert "keeps 1 of 8 CPUs busy" in finding.message


@pytest.mark.parametrize(
    ("host", "scheduler"),
    [("127.0.0.1", "tcp://127.0.0.1:1"), ("10.0.0.1", "tcp://10.0.0.1:8786")],
)
def test_idle_cpus_of_the_schedulers_host_are_information(host, scheduler):
    """A worker with one thread on the user's machine is mostly intended."""
    small = worker(0, nthreads=1, affinity=frozenset({0, 1}), host=host)
    moment = snapshot([small], scheduler=scheduler)
    (finding,) = thread_count(view(snapshots=[moment]))
    assert finding.severity is Severity.info


def test_idle_cpus_of_shared_hosts_are_information():
    """On shared hosts idle CPUs belong to other jobs."""
    (finding,) = find_thread_count(
        worker(0, affinity=ALL, host="10.0.0.7"), shared_hosts=True
    )
    assert finding.severity is Severity.info


def test_tolerance_allows_more_difference():
    """With half the CPUs as tolerance, four of eight threads are enough."""
    half = worker(0, nthreads=4, affinity=ALL, host="h")
    assert len(find_thread_count(half)) == 1
    assert find_thread_count(half, tolerance=0.5) == []


def test_a_thousand_hosts_are_one_finding():
    """Hosts with the same condition are counted, and three are named."""
    crowd = [worker(i, affinity=ALL, host=f"h{i}") for i in range(1000)]
    (finding,) = find_thread_count(*crowd)
    assert "hosts h0, h1, h2 and 997 more" in finding.message
    assert len(finding.subject) == 1000


def test_unknown_facts_are_said_once_for_each_reason():
    """A host with a silent worker is unknown."""
    mute = worker(1, facts=Unknown("no answer"))
    (finding,) = find_thread_count(worker(0, nthreads=64, affinity=ALL), mute)
    assert finding.severity is Severity.unknown
    assert finding.message == "usable CPUs of worker 1 unknown: no answer"


def test_host_names_are_made_safe():
    """Control characters in a host's name are escaped."""
    (finding,) = find_thread_count(worker(0, affinity=ALL, host="h\x1b[2J"))
    assert finding.message.isprintable()


# --- thread_pools ---------------------------------------------------------------------


def find_thread_pools(
    threads, *, nthreads=2, workers=2, address="tcp://127.0.0.1/{}", kind=""
):
    some = [
        worker(
            i,
            nthreads=nthreads,
            address=address.format(i),
            details=details(thread_pools=(threads,)),
        )
        for i in range(workers)
    ]
    library = Profile(
        name="x", title="The library", memory_multiple={8: 2.0}, threads=kind
    )
    return list(thread_pools(view(some, workload=library)))


def test_silent_with_pools_of_one():
    """The nanny sets pools of one thread; up to twice the CPUs are allowed."""
    assert find_thread_pools(1) == []
    assert find_thread_pools(2) == []
    assert find_thread_pools(1, nthreads=64) == []  # thread_count reports it
    assert list(thread_pools(view())) == []


def test_too_many_threads():
    """Threads are the tasks of all workers of a host, times their pools."""
    (finding,) = find_thread_pools(8)
    assert finding.severity is Severity.warning
    assert "could run 32 native threads at once" in finding.message
    assert "on 4 CPUs" in finding.message
    assert finding.remedy.startswith("Set `OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 ")
    assert "start the workers again" in finding.remedy
    # workers in the client's process have the client's pools
    assert find_thread_pools(8, address="inproc://127.0.0.1/1/{}") == []


def test_without_threadpoolctl():
    """The pools of a host are unknown if one of its workers cannot read them."""
    blind = worker(0, details=details(thread_pools=None))
    assert list(thread_pools(view([blind]))) == []
    large = worker(1, details=details(thread_pools=(64,)))
    assert len(list(thread_pools(view([large])))) == 1
    assert list(thread_pools(view([blind, large]))) == []


def test_a_library_that_takes_the_threads_of_its_worker():
    """The library ignores pools."""
    assert find_thread_pools(8, kind="worker") == []


def test_a_library_that_trains_in_its_pools():
    """It runs one task on each worker."""
    assert find_thread_pools(4, nthreads=4, kind="pools") == []
    (finding,) = find_thread_pools(16, nthreads=4, kind="pools")
    assert "32 native threads at once (2 tasks with" in finding.message


# --- several_workers_per_host ---------------------------------------------------------


THREADS = Profile(name="t", title="T", memory_multiple={8: 2.0}, threads="worker")
GATEWAY = "a gateway starts them again; run `new_cluster(cores={nthreads})`"


def find_several(*workers, workload=THREADS, **moment):
    """Findings for these workers."""
    snapshots = [snapshot(workers, **moment)]
    return list(several_workers_per_host(view(snapshots=snapshots, workload=workload)))


def test_several_workers():
    """The finding has the numbers of the host with the most workers, and a call."""
    some = [worker(i, affinity=ALL) for i in range(3)]
    (finding,) = find_several(*some)
    assert finding.severity is Severity.info
    assert finding.subject == (0, 1, 2)
    assert finding.evidence == {"hosts": 1, "workers": 3, "threads": 3, "cpus": 8}
    assert finding.remedy == "Run `clustertune.merge_workers(client)`."
    (finding,) = find_several(*some, worker("away", host="other"))
    assert "workers=[0, 1, 2]" in finding.remedy
    assert finding.message.startswith("3 workers on host 127.0.0.1 have 3 threads on")


def test_one_worker_suits():
    """Other libraries, hosts with one worker, and workers with a GPU each."""
    some = [worker(i, affinity=ALL) for i in range(2)]
    assert find_several(*some, workload=replace(THREADS, threads="pools"))
    assert not find_several(*some, workload=replace(THREADS, threads=""))
    assert not find_several(worker(0), worker(1, host="other"))
    gpus = [{"CUDA_VISIBLE_DEVICES": f"{i}"} for i in range(2)]
    own = [worker(i, affinity=ALL, setup=setup) for i, setup in enumerate(gpus)]
    assert not find_several(*own)
    # these sizes may be intended, or left by an interrupted merge
    unequal = worker(1, affinity=ALL, nthreads=2, memory_limit=8 * 2**30)
    assert not find_several(worker(0, affinity=ALL), unequal)


def test_a_host_whose_workers_cannot_be_merged():
    """The call names the workers of the other hosts."""
    some = [worker(i, affinity=ALL) for i in range(2)]
    by_hand = [worker(i, affinity=ALL, host="b", nanny=None) for i in (2, 3)]
    (finding,) = find_several(*some, *by_hand)
    assert finding.subject == (0, 1)
    assert "workers=[0, 1]" in finding.remedy


def test_several_workers_that_a_manager_starts_again():
    """The remedy is the manager's line."""
    some = [worker(i, affinity=ALL) for i in range(2)]
    (finding,) = find_several(*some, can_merge=GATEWAY)
    assert "`new_cluster(cores=2)`" in finding.remedy
    assert "merge_workers" not in finding.remedy


# --- blocked_event_loops --------------------------------------------------------------


def test_silent_while_they_tick():
    """A busy machine may be late sometimes."""
    some = [worker(0, loop_delay=0.02), worker(1, loop_delay=0.3)]
    assert list(blocked_event_loops(view(some, survey=survey()))) == []
    assert list(blocked_event_loops(view(some))) == []


def test_blocked():
    """The event loops of workers and of the scheduler are blocked."""
    some = [worker(0, loop_delay=0.6), worker(1, loop_delay=4.0), worker(2)]
    workers, scheduler = blocked_event_loops(view(some, survey=survey(loop_delay=2.0)))
    assert workers.severity is scheduler.severity is Severity.warning
    assert workers.subject == (0, 1)
    assert "event loops of workers 0 and 1 are blocked for up to 4 s" in workers.message
    assert scheduler.subject == ("scheduler",)
