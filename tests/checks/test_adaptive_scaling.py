from __future__ import annotations

import math

from clustertune.checks.adaptive_scaling import find
from clustertune.core.model import Severity, Unknown
from clustertune.testing import snapshot, view, worker


def found(adaptive):
    seen = snapshot([worker(0), worker(1)], adaptive=adaptive)
    return list(find(view(snapshots=[seen])))


def test_silent_where_the_number_stays():
    """Not adaptive, or held at one number."""
    assert found(None) == []
    assert found((2, 2)) == []


def test_adaptive():
    """Bounds and workers are named; the remedy is that of the page."""
    for most, text in ((8, "between 1 and 8"), (math.inf, "between 1 and any number")):
        (finding,) = found((1, most))
        assert finding.severity is Severity.info
        assert text in finding.message
        assert finding.remedy == ""


def test_unknown():
    """A manager that keeps the bounds to itself."""
    (finding,) = found(Unknown("the gateway keeps them"))
    assert finding.severity is Severity.unknown
    assert "the gateway keeps them" in finding.message
