"""The check ``separated_pairs``."""

import pytest

from clustertune.checks.separated_pairs import find
from clustertune.core.model import Severity
from clustertune.testing import layout, view, worker


@pytest.mark.parametrize(
    "layouts",
    [
        pytest.param([], id="no data"),
        pytest.param([layout([10] * 4, [0, 0, 0, 1])], id="together, uneven"),
        pytest.param([layout([10] * 2, [0, 1], members=["X"])], id="X alone"),
        pytest.param(
            [layout([10] * 2, {"X": [0, 1], "y": [[0, 1], [0, 1]]})], id="y copied"
        ),
        pytest.param([layout([10, 0], {"X": [0, 0], "y": [0, 1]})], id="empty piece"),
        pytest.param([layout([10] * 2, None)], id="not loaded"),
        pytest.param(
            [layout(None, {"X": [0, 0], "y": [1, 1]})], id="rows unknown: no pairs"
        ),
    ],
)
def test_silent(layouts):
    """Nothing is said where each piece is whole on some worker, or not known."""
    assert list(find(view(layouts=layouts))) == []


def test_separated_pieces_are_counted_with_what_must_travel():
    """Of a separated pair at least the smaller part travels."""
    torn = layout([10] * 4, {"X": [0, 0, 1, 1], "y": [0, 1, 1, 0]})
    (finding,) = find(view(layouts=[torn]))
    assert finding.severity is Severity.warning
    assert finding.subject == ("X", "y")
    assert finding.message == (
        "2 of 4 pieces (50%) of the training data are not on one worker as a whole; a "
        "fit ships at least 160 B to join them"
    )
    assert finding.evidence == {"apart": 2, "pieces": 4, "bytes": 160}


def test_a_piece_of_one_row_counts():
    """Only pieces without rows are of no concern."""
    (finding,) = find(view(layouts=[layout([1], {"X": [0], "y": [1]})]))
    assert finding.evidence == {"apart": 1, "pieces": 1, "bytes": 8}


def test_every_member_counts():
    """A weight on a third worker separates a piece whose X and y are together."""
    members = ["X", "y", "sample_weight"]
    workers = [worker(i) for i in range(3)]
    torn = layout([10], {"X": [0], "y": [0], "sample_weight": [2]}, members=members)
    (finding,) = find(view(workers=workers, layouts=[torn]))
    assert finding.evidence["bytes"] == 80


def test_eval_sets_are_looked_at():
    """An eval set's pairs travel at each fit too."""
    torn = layout([10], {"X": [0], "y": [1]}, label="eval_set[0]")
    (finding,) = find(view(layouts=[layout([10], [0]), torn]))
    assert "eval_set[0]" in finding.message
