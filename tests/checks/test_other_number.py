from __future__ import annotations

from clustertune.checks import other_number
from clustertune.core.model import Severity
from clustertune.testing import layout, view


def found(rows, wanted):
    return list(other_number.find(view(layouts=[layout(rows, None)], rechunk=wanted)))


def test_silent_without_a_number():
    """Whether pieces suit the workers is the subject of other checks."""
    assert found([10, 10], True) == []
    assert found([10, 10], False) == []


def test_silent_without_data():
    """Nothing is cut where nothing was given."""
    assert list(other_number.find(view(rechunk=3))) == []


def test_silent_when_there_are_so_many():
    """As many even pieces as were asked for, or one for each row."""
    assert found([3, 3, 4], 3) == []
    assert found([1, 1], 5) == []


def test_others_are_found():
    """Too few, too many, and uneven ones."""
    for rows in ([10], [2] * 5, [1, 9, 2]):
        (finding,) = found(rows, 3)
        assert finding.severity is Severity.info
        assert finding.fixed_by == "rechunk"
        assert finding.evidence == {"pieces": len(rows), "wanted": 3}
