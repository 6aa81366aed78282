from __future__ import annotations

from clustertune.checks.phantom_memory import find
from clustertune.core.model import Severity
from clustertune.testing import view, worker

GIB = 2**30


def found(*workers):
    return list(find(view(workers)))


def test_silent_where_the_process_has_it():
    """A little more may be managed: numbers are not of the same moment."""
    assert found(worker(0), worker(1, process=GIB, managed=GIB + GIB // 8)) == []


def test_silent_where_a_process_is_shared():
    """Workers of one process manage what is partly the others'."""
    assert found(worker(0, address="inproc://127.0.0.1/1/2", managed=3 * GIB)) == []


def test_counted_twice():
    """A warning only where the worker writes to disk for it."""
    (finding,) = found(worker(0, process=GIB, managed=2 * GIB))
    assert finding.severity is Severity.info
    (finding,) = found(worker(0, process=GIB, managed=3 * GIB), worker(1))
    assert finding.severity is Severity.warning
    assert finding.subject == (0,)
    assert "3.0 GiB of keys" in finding.message
    (finding,) = found(worker(0, process=GIB, managed=3 * GIB, target=None))
    assert finding.severity is Severity.info
