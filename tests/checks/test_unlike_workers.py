from __future__ import annotations

from clustertune.checks.unlike_workers import find
from clustertune.core.model import Severity
from clustertune.testing import view, worker

GIB = 2**30


def found(*workers):
    return list(find(view(workers)))


def test_silent_where_they_are_alike():
    """Limits may differ by a little."""
    assert found(worker(0), worker(1, memory_limit=4 * GIB - 2**20)) == []
    double = worker(1, nthreads=2, memory_limit=8 * GIB, status="paused")
    assert found(worker(0), double) == []


def test_threads_and_memory():
    """One with twice the threads gets twice the rows, so it needs twice the memory."""
    (finding,) = found(worker(0), worker(1, nthreads=2, memory_limit=8 * GIB))
    assert finding.severity is Severity.info
    assert "1 worker with 1 thread, 1 worker with 2 threads" in finding.message
    (finding,) = found(worker(0), worker(1, memory_limit=8 * GIB))
    assert "unlike memory for each thread" in finding.message
    assert len(found(worker(0), worker(1, nthreads=2))) == 2
