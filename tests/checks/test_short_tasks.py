from __future__ import annotations

from clustertune.checks.short_tasks import find
from clustertune.core.model import Severity
from clustertune.testing import prefix, survey, view


def found(*prefixes):
    return list(find(view(survey=survey(prefixes=prefixes))))


def test_silent_where_tasks_are_long_or_few():
    """Or where nobody asked, or nothing has run."""
    assert found() == []
    assert found(prefix("a", finished=1000, seconds=1.0)) == []
    assert found(prefix("a", finished=100_000, seconds=5000.0)) == []
    assert list(find(view())) == []


def test_many_short_ones():
    """With what they cost, and how much larger they should be."""
    some = prefix("random", finished=100_000, seconds=100.0)
    (finding,) = found(some, prefix("sum", finished=80_000, seconds=100.0))
    assert finding.severity is Severity.warning
    assert finding.subject == ("random", "sum")
    assert (
        "'random' took 0.001 s each; scheduling them took about 20 s" in finding.message
    )
    assert finding.evidence["factor"] == 20
    (finding,) = found(prefix("a", finished=100_000, seconds=0.0))
    assert finding.evidence["factor"] > 1000
