from __future__ import annotations

from clustertune.checks.lifetimes import find
from clustertune.core.model import Severity
from clustertune.testing import details, view, worker


def found(*ends):
    return list(
        find(view([worker(i, details=details(expires=e)) for i, e in enumerate(ends)]))
    )


def test_silent_where_none_is_set():
    """Or where nobody asked."""
    assert found(None, None) == []
    assert list(find(view())) == []


def test_lifetimes():
    """A warning where the first ends within the hour, or has ended."""
    (finding,) = found(7200.0, None)
    assert finding.severity is Severity.info
    assert finding.subject == (0,)
    (finding,) = found(7200.0, 600.0)
    assert finding.severity is Severity.warning
    assert "the first in about 10 min" in finding.message
    (finding,) = found(-5.0)
    assert finding.evidence["seconds"] == 0
