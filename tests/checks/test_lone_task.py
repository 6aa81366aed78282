from __future__ import annotations

from clustertune.checks.lone_task import find
from clustertune.core.model import Severity
from clustertune.testing import snapshot, view, worker


def found(*seen, workers=2):
    """From (time, tasks of each worker)."""
    window = [
        snapshot([worker(i, processing=n) for i, n in enumerate(tasks)], time=t)
        for t, *tasks in seen
    ]
    return list(find(view(snapshots=window)))


def test_silent_where_all_or_none_work():
    """Or for a short while, or by turns, or where there is one worker."""
    assert found((0, 0, 0)) == []
    assert found((0, 3, 1), (60, 1, 1)) == []
    assert found((0, 1, 0), (20, 1, 0)) == []
    assert found((0, 1, 0), (40, 0, 1), (60, 0, 1)) == []
    assert found((0, 1), (60, 1)) == []


def test_one_reading_tells_nothing():
    """Every computation has such a moment."""
    (finding,) = found((0, 1, 0))
    assert finding.severity is Severity.unknown


def test_one_worker_works():
    """For as long as it was seen."""
    (finding,) = found((0, 1, 1, 1), (10, 2, 0, 0), (50, 1, 0, 0))
    assert finding.severity is Severity.info
    assert finding.subject == (0,)
    assert finding.evidence == {"seconds": 40.0, "waiting": 2}
    assert "2 workers wait" in finding.message
