from __future__ import annotations

from clustertune.checks.embedded_data import find
from clustertune.core.model import Severity
from clustertune.testing import layout, view


def found(nbytes):
    return list(find(view((), [layout([10], None, ("X",), embedded=nbytes)])))


def test_silent_where_workers_read():
    """A little does no harm; of what is loaded nothing is known."""
    assert found(0) == found(None) == found(2**20) == []


def test_data_in_the_graph():
    """A warning where it is much."""
    (finding,) = found(2**26)
    assert finding.severity is Severity.info
    assert "X carries 64.0 MiB of data in the graph" in finding.message
    (finding,) = found(2**31)
    assert finding.severity is Severity.warning
