from __future__ import annotations

from clustertune.checks.unlike_categories import find
from clustertune.core.model import Contents, Severity
from clustertune.testing import layout, view


def found(*pieces):
    contents = Contents(pieces=tuple({"categories": p} for p in pieces))
    data = layout([10] * len(pieces), None, ("X",), contents=contents)
    return list(find(view((), [data])))


def test_silent_where_they_are_the_same():
    """In every piece, in the same order."""
    assert found({"a": "['u', 'v']"}, {"a": "['u', 'v']"}) == []
    assert found({}, {}) == []
    assert list(find(view((), [layout([10], [0])]))) == []


def test_other_lists():
    """Named by column."""
    (finding,) = found({"a": "['u']", "b": "[1]"}, {"a": "['v']", "b": "[1]"})
    assert finding.severity is Severity.warning
    assert "other categories in 1 column: a" in finding.message
