from __future__ import annotations

from clustertune.checks.dangling_names import find
from clustertune.core.model import Published, Severity
from clustertune.testing import survey, view


def found(*names):
    some = [Published(name=n, keys=k, missing=m) for n, k, m in names]
    return list(find(view(survey=survey(published=tuple(some)))))


def test_silent_where_names_lead_somewhere():
    """Or there are none."""
    assert found(("X", 5, 0)) == []
    assert found() == []
    assert list(find(view())) == []


def test_names_that_lead_nowhere():
    """All of their keys, or some."""
    (finding,) = found(("X", 5, 5), ("y", 5, 0))
    assert finding.severity is Severity.critical
    assert finding.message == "published name X: 5 keys of 5 are gone"
    (finding,) = found(("X", 5, 1), ("y\n", 5, 0))
    assert finding.message == "published name X: 1 key of 5 is gone"
