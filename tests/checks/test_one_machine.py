"""The check ``one_machine``."""

import pytest

from clustertune.checks.one_machine import find
from clustertune.core.model import Profile, Severity, Unknown
from clustertune.testing import layout, snapshot, view, worker

DOUBLE = Profile(name="t", title="T", memory_multiple={8: 2.0})


def host(name, **fields):
    """Make a worker with all 4 CPUs and 1000 bytes of a host of its own."""
    cpus = {"nthreads": 4, "affinity": frozenset(range(4)), "host_memory": 1000}
    return worker(name, **{"host": name, **cpus, **fields})


def found(workers, nbytes=350, **settings):
    """Findings for so many bytes of data that are needed twice."""
    data = layout([1], [0], members=["X"], row_bytes={"X": nbytes})
    return list(find(view(workers, [data], workload=DOUBLE), **settings))


@pytest.mark.parametrize(
    "workers",
    [
        pytest.param([host("a"), host("b")], id="twice the threads of one host"),
        pytest.param([host("a", facts=Unknown("no answer"))], id="facts unknown"),
        pytest.param([host("a", host_memory=900)], id="too little memory"),
        pytest.param([host("a", status="paused")], id="no worker may train"),
    ],
)
def test_silent(workers):
    """Nothing is said where the cluster is faster, or one machine is not enough."""
    assert found(workers) == []


def test_silent_without_data_or_its_size():
    """Without knowing the data there is no hint."""
    lazy = layout([1], None, total_bytes=None)
    assert list(find(view())) == []
    assert list(find(view([host("a")], [lazy]))) == []
    assert list(find(view(snapshots=[snapshot([])]))) == []


def test_data_and_copies_that_fit_one_machine_are_information():
    """Both estimates are said, memory and time."""
    (finding,) = found([host("a")])
    assert finding.severity is Severity.info
    assert finding.message == (
        "The data and its copies fit one machine: about 700 B of 1000 B on a; one "
        "process without Dask on its 4 CPUs would take about 76% of the time of this "
        "cluster"
    )
    assert finding.evidence["time"] == pytest.approx(0.76)


def test_threads_without_a_cpu_of_their_own_do_not_count():
    """Three workers on a host of one CPU are as fast as one is there."""
    (finding,) = found([host(n, host="a", affinity=frozenset({0})) for n in "abc"])
    assert finding.evidence["time"] == pytest.approx(0.76)


def test_more_data_than_the_machine_holds_is_silent():
    """The fraction of the memory that a fit may fill is the goal's."""
    assert found([host("a")], nbytes=351) == []


def test_the_host_with_most_cpus_is_taken():
    """A small host beside does not hide the one that would do."""
    small = host("a", nthreads=1, affinity=frozenset({0}))
    (finding,) = found([small, host("b")], alone=0.5)
    assert finding.evidence["time"] == pytest.approx(5 / 4 * 0.5)
    assert " on b;" in finding.message


def test_a_host_with_too_little_memory_is_not_taken():
    """The one with fewer CPUs but enough memory must do, or none."""
    large = host("a", host_memory=500, nthreads=4, affinity=frozenset(range(8)))
    small = host("b", nthreads=1)
    (finding,) = found([large, small], alone=0.5)
    assert " on b;" in finding.message


def test_how_fast_one_process_is_can_be_set():
    """Where one process is not faster at equal CPUs, equal CPUs are not enough."""
    assert len(found([host("a")], alone=1.0)) == 1
    assert found([host("a")], alone=1.01) == []


def test_the_process_itself_counts():
    """One that has imported the library has less room for data."""
    large = Profile(name="t", title="T", memory_multiple={8: 2.0}, base_bytes=100)
    data = layout([1], [0], members=["X"], row_bytes={"X": 300})
    (finding,) = find(view([host("a")], [data], workload=large))
    assert finding.evidence["needed_bytes"] == 700
    data = layout([1], [0], members=["X"], row_bytes={"X": 301})
    assert list(find(view([host("a")], [data], workload=large))) == []
