from __future__ import annotations

from dataclasses import replace

from clustertune.checks.wide_numbers import find
from clustertune.core.model import Severity
from clustertune.testing import layout, view


def found(kept, itemsize=8, rows=10**8):
    seen = view((), [layout([rows], [0], itemsize=itemsize)])
    workload = replace(seen.goal.workload, feature_bytes=kept)
    return list(find(replace(seen, goal=replace(seen.goal, workload=workload))))


def test_silent_where_it_does_not_matter():
    """Unknown libraries, narrow numbers, small data, no data, no numbers."""
    assert found(None) == found(4, itemsize=4) == found(4, rows=1000) == []
    assert found(4, itemsize=None) == []
    assert list(find(view())) == []


def test_half_would_do():
    """With the bytes that would be spared."""
    (finding,) = found(4)
    assert finding.severity is Severity.info
    assert finding.evidence["bytes"] == 80 * 10**8 // 2
