"""The check ``column_chunks``."""

from clustertune.checks.column_chunks import ERROR, find
from clustertune.core.model import Layout, Severity
from clustertune.errors import AlignmentError
from clustertune.testing import layout, member, view


def test_silent_for_whole_rows():
    """Arrays that are cut by rows only are as they should be."""
    assert list(find(view())) == []
    assert list(find(view(layouts=[layout([10, 10], [0, 1])]))) == []


def test_blocks_of_columns_are_critical():
    """An array cut by columns stops the fit, and prepare before it."""
    x = member("eval_set[0].X", [10], [0], column_blocks=2)
    cut = Layout(label="eval_set[0]", members=(x, member("eval_set[0].y", [10], [0])))
    (finding,) = find(view(layouts=[layout([10], [0]), cut]))
    assert ERROR is AlignmentError
    assert finding.severity is Severity.critical
    assert finding.subject == ("eval_set[0].X",)
    assert finding.message == (
        "eval_set[0].X is cut into 2 blocks of columns; its pieces must have all "
        "columns of their rows"
    )
    assert finding.remedy == "X = X.rechunk({1: -1})"
