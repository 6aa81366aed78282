from __future__ import annotations

from clustertune.checks.no_nanny import find
from clustertune.core.model import Severity
from clustertune.testing import view, worker


def test_silent_with_nannies():
    """Each worker has one."""
    assert list(find(view())) == []


def test_without():
    """Information: some clusters are meant so."""
    (finding,) = find(view([worker(0), worker(1, nanny=None)]))
    assert finding.severity is Severity.info
    assert finding.subject == (1,)
