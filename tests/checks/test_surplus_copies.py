"""The check ``surplus_copies``."""

import pytest

from clustertune.checks.surplus_copies import find
from clustertune.core.model import Severity
from clustertune.testing import layout, view


@pytest.mark.parametrize(
    "layouts",
    [
        pytest.param([], id="no data"),
        pytest.param([layout([10] * 2, [0, 1])], id="one copy each"),
        pytest.param([layout([10] * 2, {"X": [0, 0], "y": [1, 1]})], id="apart"),
        pytest.param([layout([10] * 2, None)], id="not loaded"),
    ],
)
def test_silent(layouts):
    """Nothing is said where every key lies on one worker, wherever that is."""
    assert list(find(view(layouts=layouts))) == []


def test_copies_are_counted_by_piece():
    """A piece counts once, however many of its members have copies."""
    given = layout([10] * 3, {"X": [[0, 1], 0, 1], "y": [[0, 1], [0, 1], 1]})
    (finding,) = find(view(layouts=[given]))
    assert finding.severity is Severity.info
    assert finding.evidence == {"copied": 2, "pieces": 3}
