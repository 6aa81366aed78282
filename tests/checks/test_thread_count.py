"""The check ``thread_count``."""

import pytest

from clustertune.checks.thread_count import find
from clustertune.core.model import Severity, Unknown
from clustertune.testing import snapshot, view, worker

ALL = frozenset(range(8))


def found(*workers, **settings):
    """Findings for these workers."""
    return list(find(view(workers=workers), **settings))


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
            id="one of 16 idle: within the slack",
        ),
        pytest.param(
            [
                worker(i, nthreads=2, affinity=ALL, quotas=((f"/pod{i}", 2.0),))
                for i in range(2)
            ],
            id="two containers",
        ),
    ],
)
def test_silent(workers):
    """Nothing is said where threads and CPUs match."""
    assert found(*workers) == []


def test_threads_are_summed_over_the_workers_of_a_host():
    """Two workers that each use all CPUs of one host compete."""
    pair = [worker(i, nthreads=8, affinity=ALL) for i in (0, 1)]
    (finding,) = found(*pair)
    assert finding.severity is Severity.warning
    assert finding.message == (
        "more threads than usable CPUs on host 127.0.0.1: 16 threads of workers "
        "0 and 1 share 8 CPUs"
    )
    assert finding.evidence == {"hosts": 1, "threads": 16, "cpus": 8}


def test_the_same_workers_on_two_hosts_do_not_compete():
    """Hosts are counted apart."""
    assert (
        found(*(worker(i, nthreads=8, affinity=ALL, host=f"h{i}") for i in (0, 1)))
        == []
    )


def test_a_quota_around_the_workers_cgroup_counts():
    """A quota on a parent, which Dask overlooks, makes threads compete."""
    quotas = (("/job/step", 8.0), ("/job", 2.0))
    (finding,) = found(worker(0, nthreads=8, affinity=ALL, quotas=quotas))
    assert finding.severity is Severity.warning
    assert finding.evidence["cpus"] == 2.0


def test_one_container_over_its_quota_is_found_beside_an_idle_one():
    """Sums of the host do not hide a worker that competes with itself."""
    full = worker(0, nthreads=4, affinity=ALL, quotas=(("/a", 2.0),))
    idle = worker(1, nthreads=2, affinity=ALL, quotas=(("/b", 4.0),))
    (finding,) = found(full, idle)
    assert "4 threads of worker 0 share 2 CPUs" in finding.message


def test_idle_cpus_of_a_remote_host_are_a_warning():
    """A host that seems to be there for the workers should be used whole."""
    (finding,) = found(worker(0, nthreads=1, affinity=ALL, host="10.0.0.7"))
    assert finding.severity is Severity.warning
    assert "host 10.0.0.7" in finding.message
    assert "keeps 1 of 8 CPUs busy" in finding.message


@pytest.mark.parametrize(
    ("host", "scheduler"),
    [("127.0.0.1", "tcp://127.0.0.1:1"), ("10.0.0.1", "tcp://10.0.0.1:8786")],
)
def test_idle_cpus_of_the_schedulers_host_are_information(host, scheduler):
    """One worker of one thread on the user's machine is mostly meant."""
    small = worker(0, nthreads=1, affinity=frozenset({0, 1}), host=host)
    moment = snapshot([small], scheduler=scheduler)
    (finding,) = find(view(snapshots=[moment]))
    assert finding.severity is Severity.info


def test_idle_cpus_of_shared_hosts_are_information():
    """Where other jobs are meant to use the hosts, idle CPUs are not our concern."""
    (finding,) = found(worker(0, affinity=ALL, host="10.0.0.7"), shared=True)
    assert finding.severity is Severity.info


def test_slack_allows_more_difference():
    """With half the CPUs as slack, four of eight threads are enough."""
    half = worker(0, nthreads=4, affinity=ALL, host="h")
    assert len(found(half)) == 1
    assert found(half, slack=0.5) == []


def test_a_thousand_hosts_are_one_finding():
    """Hosts with the same condition are counted, three named."""
    crowd = [worker(i, affinity=ALL, host=f"h{i}") for i in range(1000)]
    (finding,) = found(*crowd)
    assert "hosts h0, h1, h2 and 997 more" in finding.message
    assert len(finding.subject) == 1000


def test_unknown_facts_are_said_once_for_each_reason():
    """A host of which one worker is silent is not judged by the others."""
    mute = worker(1, facts=Unknown("no answer"))
    (finding,) = found(worker(0, nthreads=64, affinity=ALL), mute)
    assert finding.severity is Severity.unknown
    assert finding.message == "usable CPUs of worker 1 unknown: no answer"


def test_host_names_are_made_safe():
    """A host's name cannot act on a terminal."""
    (finding,) = found(worker(0, affinity=ALL, host="h\x1b[2J"))
    assert finding.message.isprintable()
