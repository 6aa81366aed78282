from __future__ import annotations

from clustertune.checks.blocked_loops import find
from clustertune.core.model import Severity
from clustertune.testing import survey, view, worker


def test_silent_while_they_tick():
    """A busy machine may be late now and then."""
    some = [worker(0, loop_delay=0.02), worker(1, loop_delay=0.3)]
    assert list(find(view(some, survey=survey()))) == []
    assert list(find(view(some))) == []


def test_blocked():
    """Of workers, and of the scheduler."""
    some = [worker(0, loop_delay=0.6), worker(1, loop_delay=4.0), worker(2)]
    workers, scheduler = find(view(some, survey=survey(loop_delay=2.0)))
    assert workers.severity is scheduler.severity is Severity.warning
    assert workers.subject == (0, 1)
    assert "4 s between two ticks" in workers.message
    assert scheduler.subject == ("scheduler",)
