from __future__ import annotations

from clustertune.checks.thread_pools import find
from clustertune.core.model import Pool, Profile, Severity
from clustertune.testing import details, view, worker


def found(threads, *, nthreads=2, workers=2, address="tcp://127.0.0.1/{}", kind=""):
    pools = (Pool(api="blas", library="libopenblas", threads=threads),)
    some = [
        worker(
            i,
            nthreads=nthreads,
            address=address.format(i),
            details=details(pools=pools),
        )
        for i in range(workers)
    ]
    library = Profile(
        name="x", title="The library", memory_multiple={8: 2.0}, threads=kind
    )
    return list(find(view(some, workload=library)))


def test_silent_with_pools_of_one():
    """As the nanny sets them; and up to twice the CPUs."""
    assert found(1) == []
    assert found(2) == []
    assert list(find(view())) == []


def test_too_many_threads():
    """Tasks of all workers of the host, times their pools."""
    (finding,) = found(8)
    assert finding.severity is Severity.warning
    assert "could run 32 native threads at once" in finding.message
    assert "on 4 CPUs" in finding.message
    (finding,) = found(8, address="inproc://127.0.0.1/1/{}")
    assert finding.severity is Severity.info


def test_without_threadpoolctl():
    """What the environment says is no answer, but it is told."""
    blind = details(pools=None, variables={"OMP_NUM_THREADS": "4"})
    (finding,) = find(view([worker(0, details=blind)]))
    assert finding.severity is Severity.unknown
    assert "the environment says OMP_NUM_THREADS=4" in finding.message


def test_a_library_that_takes_the_threads_of_its_worker():
    """Pools are nothing to it; other tasks have them still."""
    (finding,) = found(8, kind="worker")
    assert finding.severity is Severity.info
    assert finding.message.endswith("; The library takes no notice of them")
    assert found(1, nthreads=4, kind="worker") == []


def test_a_library_that_trains_in_its_pools():
    """Where the nanny has set them to 1, threads of the worker are idle."""
    (finding,) = found(1, nthreads=4, kind="pools")
    assert finding.severity is Severity.info
    assert "0 and 1 that is smaller than the worker (1 of 4" in finding.message
    assert "torch.set_num_threads" in finding.remedy
    assert found(2, kind="pools") == []
    assert found(1, nthreads=4) == []
