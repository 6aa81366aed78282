from __future__ import annotations

from clustertune.checks.abandoned_tasks import find
from clustertune.model import Severity
from clustertune.testing import snapshot, view, worker


def found(*seen):
    """From (time, executing, processing) of one of two workers."""
    window = [
        snapshot([worker(0, executing=e, processing=p), worker(1)], time=t)
        for t, e, p in seen
    ]
    return list(find(view(snapshots=window)))


def test_silent_where_tasks_are_wanted():
    """Also where more wait than run, and for the moment in which one ends."""
    assert found((0, 1, 1)) == []
    assert found((0, 1, 5), (20, 1, 1)) == []
    assert found((0, 1, 1), (20, 1, 0)) == []
    assert found((0, 1, 0), (5, 1, 0)) == []


def test_one_reading_tells_nothing():
    """The task may have ended a moment ago."""
    (finding,) = found((0, 1, 0))
    assert finding.severity is Severity.unknown
    assert "one reading; use watch" in finding.message


def test_abandoned():
    """For as long as it was seen, without a break."""
    (finding,) = found((0, 1, 1), (10, 2, 0), (30, 2, 0))
    assert finding.severity is Severity.warning
    assert finding.subject == (0,)
    assert finding.evidence == {"tasks": 2, "seconds": 20.0}
