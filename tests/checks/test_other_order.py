"""The check ``other_order``."""

import pytest

from clustertune.checks.other_order import ERROR, find
from clustertune.core.model import Severity
from clustertune.errors import RefusedError
from clustertune.testing import layout, view


@pytest.mark.parametrize("order", ["", "sort"])
def test_silent_where_no_shuffle_was_asked_for(order):
    """Whether rows are to be sorted is another question."""
    assert list(find(view((), [layout([10], [0])], order=order))) == []
    assert list(find(view(order="rows"))) == []


@pytest.mark.parametrize("order", ["rows", "pieces"])
def test_a_shuffle_that_was_asked_for(order):
    """Of the training data; once it is done the goal has it no more."""
    valid = layout([5], [0], ("Xv", "yv"), label="eval_set[0]")
    (finding,) = find(view((), [layout([10], [0]), valid], order=order))
    assert finding.severity is Severity.info
    assert finding.subject == ("X", "y")
    assert finding.message.startswith(f"{order} of the training data are in the order")
    assert finding.fixed_by == "reorder"


@pytest.mark.parametrize(("rows", "refused"), [(10**9 - 1, False), (10**9, True)])
def test_more_rows_than_can_be_shuffled(rows, refused):
    """NumPy would raise an error of its own; whole pieces can be shuffled."""
    data = layout([rows - 5, 5], [0, 0])
    (finding,) = find(view((), [data], order="rows"))
    assert (finding.severity is Severity.critical) == refused
    assert bool(finding.fixed_by) != refused
    assert ERROR is RefusedError
    (pieces,) = find(view((), [data], order="pieces"))
    assert pieces.fixed_by == "reorder"
