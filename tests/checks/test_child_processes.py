from __future__ import annotations

from clustertune.checks.child_processes import find
from clustertune.core.model import Severity, Unknown
from clustertune.testing import details, view, worker

GIB = 2**30


def found(**answers):
    return list(find(view([worker(0, details=details(**answers)), worker(1)])))


def test_silent_without_children():
    """Or with small ones, or where nobody asked, or got an answer."""
    assert found() == []
    assert found(child_count=2, child_memory=100 * 2**20) == []
    assert list(find(view())) == []
    assert list(find(view([worker(0, details=Unknown("no answer"))]))) == []


def test_silent_in_the_clients_own_process():
    """Its children are the user's own."""
    big = details(child_count=1, child_memory=3 * GIB)
    there = worker(0, details=big, address="inproc://127.0.0.1/1/2")
    assert list(find(view([there]))) == []


def test_children_with_memory():
    """A warning where worker and children exceed the limit together."""
    (finding,) = found(child_count=1, child_memory=GIB)
    assert finding.severity is Severity.info
    assert "1 child process of worker 0 holds 1.0 GiB" in finding.message
    (finding,) = found(child_count=4, child_memory=4 * GIB)
    assert finding.severity is Severity.warning
    assert "105% of its limit" in finding.message
