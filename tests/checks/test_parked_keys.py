from __future__ import annotations

from clustertune.checks import paused_workers
from clustertune.checks.parked_keys import find
from clustertune.core.model import Severity
from clustertune.testing import view, worker

PARKING = worker(
    "clustertune-parking-1", parking=True, status="closing_gracefully", managed=2**20
)


def test_silent_without():
    """Nothing is parked in a cluster that works."""
    assert list(find(view())) == []


def test_a_parking_worker():
    """It is named with what it keeps, and is not said to close."""
    seen = view([worker(0), PARKING])
    (finding,) = find(seen)
    assert finding.severity is Severity.warning
    assert finding.subject == ("clustertune-parking-1",)
    assert finding.evidence == {"bytes": 2**20}
    assert "keeps 1.0 MiB of keys" in finding.message
    assert list(paused_workers.find(seen)) == []
