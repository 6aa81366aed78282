from __future__ import annotations

from clustertune.checks.actors import find
from clustertune.core.model import Severity
from clustertune.testing import survey, view


def test_silent_without_actors():
    """Or where nobody asked."""
    assert list(find(view(survey=survey()))) == []
    assert list(find(view())) == []


def test_actors():
    """Counted."""
    (finding,) = find(view(survey=survey(actors=2)))
    assert finding.severity is Severity.info
    assert finding.message == "2 actors live on the workers, and cannot be moved"
