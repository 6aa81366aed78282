from __future__ import annotations

from clustertune.checks.unmanaged_memory import find
from clustertune.core.model import Severity
from clustertune.testing import view, worker

GIB = 2**30


def found(*workers):
    return list(find(view(workers)))


def test_silent_where_it_is_usual():
    """Python and the libraries; a third of the limit beyond that."""
    assert found(worker(0), worker(1, process=GIB, managed=GIB // 2)) == []


def test_silent_where_it_may_be_in_use():
    """Of a task that runs; of a process that is the client's too; without a limit."""
    full = {"process": 3 * GIB}
    assert found(worker(0, **full, processing=1), worker(1, **full, executing=1)) == []
    assert found(worker(0, **full, address="inproc://127.0.0.1/1/2")) == []
    assert found(worker(0, **full, memory_limit=0)) == []


def test_idle_workers_with_much_are_found():
    """The worst of them is named."""
    some = [worker(0, process=2 * GIB), worker(1, process=3 * GIB), worker(2)]
    (finding,) = found(*some)
    assert finding.severity is Severity.warning
    assert finding.subject == (0, 1)
    assert "worker 1 most: 3.0 GiB of the limit of 4.0 GiB" in finding.message
