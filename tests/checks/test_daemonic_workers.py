from __future__ import annotations

from dataclasses import replace

from clustertune.checks.daemonic_workers import find
from clustertune.core.model import Severity
from clustertune.testing import details, view, worker


def found(starts, daemon=True):
    seen = view([worker(0, details=details(daemon=daemon)), worker(1)])
    workload = replace(seen.goal.workload, starts_processes=starts)
    return list(find(replace(seen, goal=replace(seen.goal, workload=workload))))


def test_silent_where_no_processes_are_needed():
    """Every stock worker is daemonic."""
    assert found(False) == []
    assert found(True, daemon=False) == []


def test_processes_that_cannot_be_started():
    """Before the fit finds out."""
    (finding,) = found(True)
    assert finding.severity is Severity.warning
    assert finding.subject == (0,)
