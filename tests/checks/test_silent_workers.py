from __future__ import annotations

import pytest

from clustertune.checks.silent_workers import find
from clustertune.core.model import Severity
from clustertune.testing import survey, view, worker


def found(seconds, ttl=300.0, **options):
    some = [worker(0, silent=seconds, **options), worker(1)]
    return list(find(view(some, survey=survey(worker_ttl=ttl))))


def test_silent_while_workers_speak():
    """A heartbeat may be late."""
    assert found(10) == []


@pytest.mark.parametrize(
    ("seconds", "ttl", "severity"),
    [
        (60, 300, Severity.warning),
        (200, 300, Severity.critical),
        (200, None, Severity.warning),
        (31, 60, Severity.critical),
    ],
)
def test_silence(seconds, ttl, severity):
    """Worse the nearer the scheduler is to giving the worker up."""
    (finding,) = found(seconds, ttl)
    assert finding.severity is severity
    assert finding.subject == (0,)


def test_a_task_that_may_hold_the_lock():
    """It is the first to be suspected."""
    (finding,) = found(60, executing=1)
    assert "which may hold Python's global lock" in finding.message
    (finding,) = find(view([worker(0, silent=60)]))
    assert "after 5 min it is given up" in finding.message
