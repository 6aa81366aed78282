from __future__ import annotations

from clustertune.checks.not_finite import find
from clustertune.core.model import Contents, Severity
from clustertune.testing import layout, view


def found(label, *pieces):
    contents = Contents(pieces=tuple({"not_finite": list(p)} for p in pieces))
    data = layout([10] * len(pieces), None, (label,), contents=contents)
    return list(find(view((), [data])))


def test_silent_where_values_are_good():
    """Features may be lacking; and nothing is known that was not asked for."""
    assert found("X", (3, 0), (0, 0)) == []
    assert found("y", (0, 0)) == []
    assert list(find(view((), [layout([10], [0])]))) == []


def test_what_no_fit_can_use():
    """Labels that are lacking are worse than infinite features."""
    (finding,) = found("X", (3, 1), (0, 1))
    assert finding.severity is Severity.warning
    assert finding.message == "X has 2 infinite values"
    (finding,) = found("y", (1, 0), (0, 0))
    assert finding.severity is Severity.critical
    assert finding.message == "y has 1 lacking label"
