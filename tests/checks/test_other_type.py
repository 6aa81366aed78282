from __future__ import annotations

from clustertune.checks import other_type
from clustertune.core.model import Conversion, Severity
from clustertune.testing import layout, member, view

ARRAY = Conversion(kind="array", dtype="float32", row_bytes=40)


def found(**overrides):
    data = layout([10, 10], [0, 1])
    X = member("X", [10, 10], [0, 1], **overrides)
    return list(other_type.find(view(layouts=[layout([10], None), data, _with(X)])))


def _with(X):
    return layout([10, 10], [0, 1], ("X",)).__class__(label="eval_set[0]", members=(X,))


def test_silent_where_nothing_was_asked_for():
    """Frames are as good as arrays, and any number type will do."""
    assert found(kind="dataframe") == []


def test_what_must_change_is_found():
    """Kind or number type; cutting puts it right, also where pieces may not be cut."""
    for kind in ("dataframe", "array"):
        (finding,) = found(kind=kind, conversion=ARRAY)
        assert finding.severity is Severity.info
        assert finding.subject == ("X",)
        assert finding.message == "X is not an Array of float32"
        assert finding.evidence == {"kind": kind, "wanted": "array", "dtype": "float32"}
        assert finding.fixed_by == "rechunk"
