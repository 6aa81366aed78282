from __future__ import annotations

from clustertune.checks.scattered_data import find
from clustertune.core.model import Severity
from clustertune.testing import layout, view


def test_silent_where_data_has_a_recipe():
    """Whatever it is."""
    assert list(find(view((), [layout([10], [0])]))) == []


def test_without_a_recipe():
    """Counted over all collections."""
    (finding,) = find(view((), [layout([10, 10], [0, 1], scattered=2)]))
    assert finding.severity is Severity.info
    assert finding.subject == ("X", "y")
    assert "4 pieces of X and y are lost if the worker dies" in finding.message
