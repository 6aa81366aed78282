from __future__ import annotations

from clustertune.checks.thread_pools import find
from clustertune.model import Pool, Severity
from clustertune.testing import details, view, worker


def found(threads, *, nthreads=2, workers=2, address="tcp://127.0.0.1/{}"):
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
    return list(find(view(some)))


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
