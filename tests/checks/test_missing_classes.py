from __future__ import annotations

from dataclasses import replace

from clustertune.checks.missing_classes import find
from clustertune.model import Contents, Severity
from clustertune.testing import layout, view


def found(*pieces, homes=(0, 1), needed=False):
    classes = [None if p is None else [[c, 1] for c in p] for p in pieces]
    contents = Contents(pieces=tuple({"classes": c} for c in classes))
    data = layout([10] * len(pieces), list(homes), ("X", "y"), contents=contents)
    seen = view((), [data])
    workload = replace(seen.goal.workload, needs_all_classes=needed)
    return list(find(replace(seen, goal=replace(seen.goal, workload=workload))))


def test_silent_where_all_are_everywhere():
    """On every worker, not in every piece; of what are no classes nothing is said."""
    assert found("ab", "ba") == []
    assert found("a", "b", "b", "a", homes=(0, 0, 1, 1)) == []
    assert found(None, "a") == []
    assert list(find(view((), [layout([10], [0])]))) == []
    assert list(find(view())) == []


def test_a_worker_lacks_one():
    """As bad as the workload takes it."""
    (finding,) = found("abc", "a")
    assert finding.severity is Severity.info
    assert finding.subject == (1,)
    assert "worker 1 lacks 2, for example b" in finding.message
    (finding,) = found("abc", "a", needed=True)
    assert finding.severity is Severity.critical
