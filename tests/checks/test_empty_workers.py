"""The check ``empty_workers``."""

import pytest

from clustertune.checks.empty_workers import find
from clustertune.core.model import Severity
from clustertune.planner.suitability import chosen
from clustertune.testing import layout, view, worker

THREE = [worker(i) for i in range(3)]


@pytest.mark.parametrize(
    "layouts",
    [
        pytest.param([], id="no data"),
        pytest.param([layout([10] * 3, [0, 1, 2])], id="one piece each"),
        pytest.param([layout([1] * 3, [0, 1, 2])], id="one row each"),
        pytest.param([layout([10] * 2, [0, 1])], id="fewer pieces than workers"),
        pytest.param([layout([10, 10, 0], [0, 1, 1])], id="fewer pieces with rows"),
        pytest.param([layout([10] * 3, None)], id="not loaded"),
        pytest.param([layout(None, [0] * 3)], id="rows unknown"),
        pytest.param(
            [
                layout([10] * 3, [0, 1, 2]),
                layout([9] * 3, [0] * 3, label="eval_set[0]"),
            ],
            id="eval set on one worker",
        ),
    ],
)
def test_silent(layouts):
    """Nothing is said where every worker trains, or where it cannot be decided."""
    assert list(find(view(workers=THREE, layouts=layouts))) == []


def test_workers_that_may_not_train_may_be_empty():
    """A paused worker, or one that was not asked for, needs no data."""
    workers = [worker(0), worker(1, status="paused"), worker(2)]
    data = [layout([10] * 3, [0] * 3)]
    assert list(find(view(workers=workers, layouts=data, goal_workers=[0]))) == []


def test_a_worker_without_pieces_is_a_warning():
    """All data on the first of three workers leaves two that will not train."""
    (finding,) = find(view(workers=THREE, layouts=[layout([10] * 3, [0] * 3)]))
    assert finding.severity is Severity.warning
    assert finding.subject == (1, 2)
    assert finding.message == (
        "no rows of the training data on workers 1 and 2: only 1 of 3 workers "
        "will train"
    )


def test_pieces_without_rows_do_not_count():
    """A worker that holds only empty pieces is empty."""
    data = layout([10, 10, 10, 0], [0, 1, 1, 2])
    (finding,) = find(view(workers=THREE, layouts=[data]))
    assert finding.subject == (2,)


def test_one_row_makes_a_piece():
    """However small pieces are, each can give a worker something to do."""
    (finding,) = find(view(workers=THREE, layouts=[layout([1] * 3, [0, 1, 1])]))
    assert finding.subject == (2,)


def test_a_copy_is_not_a_share():
    """A worker that only has copies of what others hold is empty."""
    data = layout([10] * 3, {"X": [0, 1, [1, 2]], "y": [0, 1, 1]})
    (finding,) = find(view(workers=THREE, layouts=[data]))
    assert finding.subject == (2,)


def test_workers_that_cannot_have_rows():
    """Where there are too few rows for all, that is the cause which is named."""
    seen = chosen(view(THREE, [layout([1, 1], [0, 2])]))
    (finding,) = find(seen)
    assert finding.severity is Severity.warning
    assert finding.message == (
        "the training data has 2 rows: only 2 of 3 workers will train, without worker 1"
    )
    assert finding.subject == (1,)
    assert finding.evidence == {"empty": 1, "workers": 3, "rows": 2}
    seen = chosen(view(THREE, [layout([4, 4], [0, 2])], rechunk=False))
    (finding,) = find(seen)
    assert finding.message.startswith("the training data has 2 partitions: only 2 of 3")
    assert "leave rechunk= out" in finding.remedy
