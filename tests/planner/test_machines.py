"""CPUs and memory of hosts, over all their workers."""

import pytest

from clustertune.core.model import Severity, Unknown
from clustertune.planner import machines
from clustertune.planner.machines import (
    by_host,
    host_cpus,
    host_memory,
    merge_obstacle,
    start_command,
    threads_per_host,
    unknown_findings,
    with_scheduler,
)
from tests.builders import snapshot, worker


def cpus(*workers):
    """Return usable and busy CPUs of the host of these workers."""
    found = host_cpus(workers)
    return found.usable, found.busy


def test_workers_are_grouped_by_host_in_their_order():
    """Every worker is in the group of its host."""
    a, b, c = worker(0, host="h"), worker(1, host="g"), worker(2, host="h")
    assert by_host([a, b, c]) == {"h": (a, c), "g": (b,)}


def test_affinities_are_joined_not_added():
    """CPUs that several workers may use count once."""
    every = frozenset(range(4))
    assert cpus(worker(0, affinity=every), worker(1, affinity=every)) == (4, 2)


def test_workers_pinned_apart_have_the_sum():
    """Workers with separate CPUs have the sum."""
    assert cpus(worker(0, nthreads=2), worker(1, nthreads=2)) == (4, 4)


def test_a_quota_is_shared_by_all_workers_of_its_cgroup():
    """Two workers in one cgroup of 3 CPUs have 3, not 6."""
    quotas = (("/slice", 3.0),)
    pair = [worker(i, nthreads=4, quotas=quotas) for i in (0, 1)]
    assert cpus(*pair) == (3, 3)


def test_quotas_of_different_cgroups_add_up():
    """Two containers of 2 CPUs on one host have 4, however many the host has."""
    affinity = frozenset(range(16))
    pods = [
        worker(i, nthreads=2, affinity=affinity, quotas=((f"/pod{i}", 2.0),))
        for i in (0, 1)
    ]
    assert cpus(*pods) == (4, 4)


@pytest.mark.parametrize(("outer", "usable"), [(3.0, 3.0), (8.0, 4.0)])
def test_the_tightest_of_nested_quotas_wins(outer, usable):
    """A quota around two others counts if it is smaller than their sum."""
    affinity = frozenset(range(16))
    pods = [
        worker(i, affinity=affinity, quotas=((f"/job/{i}", 2.0), ("/job", outer)))
        for i in (0, 1)
    ]
    assert cpus(*pods) == (usable, 2)


def test_threads_in_one_container_do_not_use_the_cpus_of_another():
    """Four threads on 2 CPUs and one thread on 4 CPUs keep 3 CPUs busy."""
    affinity = frozenset(range(16))
    full = worker(0, nthreads=4, affinity=affinity, quotas=(("/a", 2.0),))
    idle = worker(1, nthreads=1, affinity=affinity, quotas=(("/b", 4.0),))
    assert cpus(full, idle) == (6, 3)
    assert host_cpus((full, idle)).tightest.workers == (full,)


def test_the_tightest_limit_is_found_among_overlapping_affinities():
    """Two threads on each of CPUs 0-1 and 1-2 are four threads on three CPUs."""
    left = worker(0, nthreads=2, affinity=frozenset({0, 1}))
    right = worker(1, nthreads=2, affinity=frozenset({1, 2}))
    tightest = host_cpus((left, right)).tightest
    assert (tightest.threads, tightest.cpus) == (4, 3)


def test_workers_pinned_to_the_same_cpus_compete_beside_a_free_one():
    """The CPUs of a third worker do not help the two that may not use them."""
    pair = [worker(i, nthreads=2, affinity=frozenset({0, 1})) for i in (0, 1)]
    free = worker(2, nthreads=1, affinity=frozenset(range(8)))
    tightest = host_cpus((*pair, free)).tightest
    assert (tightest.workers, tightest.cpus) == (tuple(pair), 2)


def test_cgroups_that_cross_are_survived():
    """Quotas that cannot be nested, as with equal names, still give a number."""
    a = worker(0, quotas=(("/x", 1.0), ("/y", 1.0)))
    b = worker(1, quotas=(("/x", 1.0), ("/z", 1.0)))
    c = worker(2, quotas=(("/y", 1.0), ("/z", 1.0)))
    assert 0 < host_cpus((a, b, c)).usable <= 3


def test_what_one_worker_does_not_tell_of_its_host_is_unknown():
    """Without the facts of all workers of a host there is no sum."""
    unknown = Unknown("no answer")
    pair = (worker(0), worker(1, facts=unknown))
    assert host_cpus(pair) == unknown
    assert host_memory(pair) == unknown


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        pytest.param([[], []], 20, id="of the machine"),
        pytest.param([[("a", 5)], []], 20, id="a smaller cgroup"),
        pytest.param([[("a", 5)], [("b", 7)]], 12, id="two containers"),
        pytest.param([[("a", 15)], [("b", 17)]], 20, id="large containers"),
        pytest.param([[("a", 9), ("c", 5)], [("a", 9)]], 9, id="nested cgroups"),
        pytest.param([[("a", 9)], [("a", 9)]], 9, id="one container"),
    ],
)
def test_workers_share_memory_as_their_cgroups_do(limits, expected):
    """They have no more together than the machine, and each cgroup, has."""
    workers = [
        worker(
            i,
            host_memory=min([20, *(n for _, n in levels)]),
            memory_limits=(("", 20), *levels),
        )
        for i, levels in enumerate(limits)
    ]
    assert host_memory(tuple(workers)) == expected


@pytest.mark.parametrize(
    ("host", "scheduler", "same"),
    [
        ("127.0.0.1", "tcp://10.0.0.1:8786", True),
        ("10.0.0.1", "tcp://10.0.0.1:8786", True),
        ("10.0.0.1", "tcp://10.0.0.12:8786", False),
        ("fe80::1", "tls://[fe80::1]:8786", True),
        ("10.0.0.1", "inproc://10.0.0.1/123/1", True),
        ("10.0.0.2", "tcp://10.0.0.1:8786", False),
    ],
)
def test_the_schedulers_host_is_recognized(host, scheduler, same):
    """The scheduler's host is loopback, or the host in its address."""
    workers = (worker(0, host=host),)
    assert with_scheduler(workers, snapshot([], scheduler=scheduler)) is same


ALL = frozenset(range(8))


@pytest.mark.parametrize(
    ("workers", "expected"),
    [
        pytest.param([worker(i, affinity=ALL) for i in range(3)], 3, id="one host"),
        pytest.param(
            [worker(i, host=f"10.0.0.{i % 2}", affinity=ALL) for i in range(4)],
            2,
            id="two hosts",
        ),
        pytest.param(
            [worker(i, nthreads=2, affinity=frozenset(range(3))) for i in range(2)],
            3,
            id="fewer CPUs than threads",
        ),
        pytest.param(
            [worker(i, nthreads=2, affinity=frozenset(range(2))) for i in range(2)],
            None,
            id="no CPU for another thread",
        ),
        pytest.param([worker(0, affinity=ALL)], None, id="one worker"),
        pytest.param([worker(0), worker(1)], None, id="pinned to different CPUs"),
        pytest.param(
            [worker(i, host=f"10.0.0.{i // 2}", affinity=ALL) for i in range(3)],
            None,
            id="hosts of different sizes",
        ),
        pytest.param(
            [worker(i, nthreads=i, affinity=ALL) for i in (1, 2)],
            None,
            id="workers of different sizes",
        ),
        pytest.param(
            [worker(0, facts=Unknown("why")), worker(1, affinity=ALL)],
            None,
            id="unknown CPUs",
        ),
        pytest.param([], None, id="no worker"),
    ],
)
def test_the_threads_of_a_host(workers, expected):
    """One task may use them if all hosts and workers are alike, and CPUs are free."""
    assert threads_per_host(workers) == expected


def test_unknown_facts_are_grouped_by_reason():
    """A thousand silent workers are one finding; its reason is escaped."""
    mute = Unknown("no\x1banswer")
    pairs = [(worker(i), mute) for i in range(1000)] + [(worker(1000), 4)]
    (finding,) = unknown_findings("usable CPUs", pairs)
    assert finding.severity is Severity.unknown
    assert len(finding.subject) == 1000
    assert finding.message == (
        "usable CPUs of workers 0, 1, 2 and 997 more unknown: no\\x1banswer"
    )


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ([{}, {}], "--nworkers 3 --nthreads 1 --memory-limit 1024MiB"),
        ([{"nthreads": 2}, {}], "--nworkers 3 --memory-limit 1024MiB"),
        (
            [{"memory_limit": 10**9 + 1}],
            "--nworkers 3 --nthreads 1 --memory-limit 1000000001",
        ),
        ([{"memory_limit": 0}], "--nworkers 3 --nthreads 1 --memory-limit 0"),
        ([{"nanny": None}], "--no-nanny --nthreads 1 --memory-limit 1024MiB"),
        ([{"nanny": None}, {}], "--nworkers 3 --nthreads 1 --memory-limit 1024MiB"),
        (
            [{"setup": {"resources": "GPU=1, disk=0.5"}}],
            (
                "--nworkers 3 --nthreads 1 --memory-limit 1024MiB "
                "--resources GPU=1,disk=0.5"
            ),
        ),
        (
            [{"setup": {"resources": "GPU=1"}}, {}],
            "--nworkers 3 --nthreads 1 --memory-limit 1024MiB",
        ),
        ([{"status": "closed", "nthreads": 9}], "--nworkers 3"),
        ([], "--nworkers 3"),
    ],
)
def test_the_line_that_starts_workers(changes, options):
    """It has the options in which all existing workers are equal."""
    alike = {"nthreads": 1, "memory_limit": 2**30}
    found = snapshot([worker(i, **(alike | c)) for i, c in enumerate(changes)])
    assert start_command(found, 3) == f"dask worker {found.scheduler} {options}"


def test_the_line_that_starts_a_merged_worker():
    """It has the resources of all workers, and no more threads than CPUs."""
    two, own = frozenset(range(2)), {"resources": "GPU=1, disk=0.5"}
    some = tuple(worker(i, affinity=two, setup=own) for i in range(5))
    line = merge_obstacle(some, snapshot(some))
    assert "one worker would not add up their GPU=1, disk=0.5" in line
    assert " --nthreads 2 " in line
    assert line.endswith(" --resources GPU=5,disk=2.5`")


# --- names of hosts -------------------------------------------------------------------


def on(id, host, machine, hostname, **overrides):
    return worker(id, host=host, machine=machine, hostname=hostname, **overrides)


@pytest.mark.parametrize(
    ("workers", "expected"),
    [
        pytest.param(
            [on(0, "10.0.0.1", "a", "node1"), on(1, "10.0.0.2", "b", "node2")],
            ["node1", "node2"],
            id="two machines",
        ),
        pytest.param(
            [on(0, "10.0.0.1", "a", "node1"), on(1, "10.1.0.1", "a", "node1")],
            ["node1", "node1"],
            id="two addresses of one machine",
        ),
        pytest.param(
            [on(0, "10.0.0.1", "a", "pod-x"), on(1, "10.0.0.2", "a", "pod-y")],
            ["10.0.0.1", "10.0.0.1"],
            id="two containers on one machine",
        ),
        pytest.param(
            [on(0, "10.0.0.1", "a", "node"), on(1, "10.0.0.2", "b", "node")],
            ["10.0.0.1", "10.0.0.2"],
            id="two machines with one name",
        ),
        pytest.param(
            [on(0, "127.0.0.1", "a", "node1"), on(1, "127.0.0.1", "a", "node1")],
            ["127.0.0.1", "127.0.0.1"],
            id="this machine",
        ),
        pytest.param(
            [on(0, "10.0.0.1", "", ""), on(1, "10.0.0.2", "", "")],
            ["10.0.0.1", "10.0.0.2"],
            id="unknown",
        ),
        pytest.param(
            [
                on(0, "10.0.0.1", "a", "node1"),
                worker(1, host="10.0.0.1", facts=Unknown("no answer")),
                worker(2, host="10.0.0.2", facts=Unknown("no answer")),
            ],
            ["node1", "node1", "10.0.0.2"],
            id="some do not answer",
        ),
    ],
)
def test_machines_have_one_name(workers, expected):
    assert [w.host for w in machines.with_host_names(workers)] == expected
