from __future__ import annotations

from clustertune.checks.mixed_numbers import find
from clustertune.core.model import Severity
from clustertune.testing import layout, view


def found(kind="dataframe", **types):
    data = layout([10], [0], ("X",), kind=kind, types=types)
    return list(find(view((), [data])))


def test_silent_where_all_are_alike():
    """Or most are wide already; or it is no frame."""
    assert found(float32=(10, "a")) == found(float64=(10, "a")) == []
    assert found(float32=(2, "a"), float64=(10, "b")) == []
    assert found(float32=(9, "a"), int8=(1, "b")) == []
    assert found(kind="array") == []


def test_one_wide_column():
    """Named with its type."""
    (finding,) = found(float32=(9, "a"), int64=(1, "id"))
    assert finding.severity is Severity.info
    assert "9 columns of float32 and 1 of wider numbers (id: int64)" in finding.message
