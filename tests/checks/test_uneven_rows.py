"""The check ``uneven_rows``."""

import pytest

from clustertune.checks.uneven_rows import find
from clustertune.core.model import Severity
from clustertune.testing import layout, view, worker


@pytest.mark.parametrize(
    "layouts",
    [
        pytest.param([], id="no data"),
        pytest.param([layout([10] * 4, [0, 1, 0, 1])], id="even"),
        pytest.param([layout([105, 95], [0, 1])], id="within the tolerance"),
        pytest.param([layout([0, 0], [0, 0])], id="no rows"),
        pytest.param([layout([10] * 4, None)], id="not loaded"),
        pytest.param([layout(None, [0] * 4)], id="rows unknown"),
        pytest.param(
            [layout([10] * 2, [0, 1]), layout([10] * 4, [0] * 4, label="eval_set[0]")],
            id="eval set on one worker",
        ),
    ],
)
def test_silent(layouts):
    """Nothing is said of even rows, or where it cannot be decided."""
    assert list(find(view(layouts=layouts))) == []


def test_shares_are_by_threads():
    """A worker with twice the threads should hold twice the rows."""
    workers = [worker(0, nthreads=2), worker(1, nthreads=1)]
    data = [layout([10] * 3, [0, 0, 1])]
    assert list(find(view(workers=workers, layouts=data))) == []


def test_all_rows_on_one_worker_are_a_warning():
    """The fullest worker is named with its rows, and what moving can reach."""
    (finding,) = find(view(layouts=[layout([10] * 4, [1] * 4)]))
    assert finding.severity is Severity.warning
    assert finding.subject == (1,)
    assert finding.message == (
        "worker 1 holds 2 times its share of rows: 40 of 40 of the training data; "
        "moving whole pieces can bring that down to 1"
    )
    assert finding.evidence["imbalance"] == pytest.approx(2.0)
    assert finding.evidence["best"] == pytest.approx(1.0)


def test_the_tolerance_is_the_goals():
    """What is uneven for one goal is even enough for another."""
    data = [layout([12, 8, 1, 1], [0, 1, 0, 0])]
    assert len(list(find(view(layouts=data)))) == 1
    assert list(find(view(layouts=data, tolerance=0.5))) == []


def test_what_no_move_can_better_is_information():
    """Three equal pieces on two workers lie as evenly as they can."""
    (finding,) = find(view(layouts=[layout([10] * 3, [0, 1, 0])]))
    assert finding.severity is Severity.info
    assert finding.message.endswith("whole pieces cannot lie more evenly")


@pytest.mark.parametrize(
    ("workers", "goal"),
    [
        pytest.param([worker(0), worker(1, status="paused")], {}, id="paused"),
        pytest.param([worker(0), worker(1)], {"goal_workers": [0]}, id="not asked for"),
    ],
)
def test_rows_on_workers_that_may_not_train_are_a_warning(workers, goal):
    """Such rows are wrong although the others are not too full."""
    data = [layout([10] * 4, [0, 1, 0, 1])]
    (finding,) = find(view(workers=workers, layouts=data, **goal))
    assert finding.severity is Severity.warning
    assert finding.subject == (1,)
    assert finding.message == (
        "20 rows of the training data on worker 1, which is not running or not asked "
        "to train"
    )


def test_rows_of_eval_sets_on_such_workers_are_found_too():
    """A worker that may not train should not hold an eval set either."""
    sets = [layout([10], [0]), layout([5], [1], label="eval_set[0]")]
    (finding,) = find(view(layouts=sets, goal_workers=[0]))
    assert "5 rows of the eval_set[0] on worker 1" in finding.message


def test_no_eligible_worker_is_survived():
    """Rows on paused workers alone are found without dividing by nothing."""
    workers = [worker(0, status="paused")]
    (finding,) = find(view(workers=workers, layouts=[layout([10], [0])]))
    assert finding.evidence == {"rows": 10, "of_rows": 10}
