from __future__ import annotations

import pytest

from clustertune.checks.text_columns import find
from clustertune.core.model import Severity
from clustertune.testing import layout, view


def found(label="X", **types):
    data = layout([10], [0], (label,), kind="dataframe", types=types)
    return list(find(view((), [data])))


def test_silent_for_numbers():
    """And for what is no feature."""
    assert found(float64=(3, "a"), bool=(1, "b"), Int64=(1, "c")) == []
    assert found(label="y", object=(1, "label")) == []


@pytest.mark.parametrize("dtype", ["object", "string", "datetime64[ns]", "str"])
def test_what_is_refused(dtype):
    """Before a worker says so."""
    (finding,) = found(**{dtype: (2, "city")})
    assert finding.severity is Severity.warning
    assert "2 columns of type" in finding.message
    assert "(city, ...)" in finding.message


def test_categories():
    """Some libraries take them."""
    (finding,) = found(label="eval_set[0].X", category=(1, "city"))
    assert finding.severity is Severity.info
