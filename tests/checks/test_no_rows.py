"""The check ``no_rows``."""

import pytest

from clustertune.checks.no_rows import find
from clustertune.core.model import Severity
from clustertune.testing import layout, view


@pytest.mark.parametrize(
    "layouts",
    [
        pytest.param([], id="no data"),
        pytest.param([layout([10, 0], [0, 1])], id="an empty piece"),
        pytest.param([layout(None, [0, 1])], id="rows unknown"),
        pytest.param([layout([10, 10], None)], id="not loaded"),
    ],
)
def test_silent(layouts):
    """Nothing is said while there is a row, or nobody has counted."""
    assert list(find(view(layouts=layouts))) == []


def test_no_row_at_all():
    """A collection of empty pieces only stops what was asked for, by its name."""
    found = list(find(view(layouts=[layout([0, 0], [0, 1])])))
    assert [f.severity for f in found] == [Severity.critical] * 2
    assert found[0].message == "X is empty: it has no rows"
    assert found[1].subject == ("y",)
