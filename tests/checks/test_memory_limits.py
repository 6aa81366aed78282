from __future__ import annotations

from clustertune.checks.memory_limits import find
from clustertune.core.model import Severity, Unknown
from clustertune.testing import view, worker

GIB = 2**30


def found(n, **options):
    return list(find(view([worker(i, **options) for i in range(n)])))


def test_silent_where_they_fit():
    """All of the memory, or no limit, or what is not known."""
    assert found(4, host_memory=16 * GIB) == []
    assert found(4, host_memory=8 * GIB, memory_limit=0) == []
    assert found(4, facts=Unknown("no answer")) == []


def test_hosts_are_summed_each_for_itself():
    """Four workers on two hosts."""
    some = [worker(i, host=f"10.0.0.{i % 2}", host_memory=8 * GIB) for i in range(4)]
    assert list(find(view(some))) == []


def test_more_than_there_is():
    """The container's memory counts where it has less."""
    (finding,) = found(4, host_memory=10 * GIB)
    assert finding.severity is Severity.warning
    assert "add up to 16.0 GiB, but they can have 10.0 GiB" in finding.message
    assert finding.subject == (0, 1, 2, 3)
