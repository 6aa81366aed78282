"""The check ``large_pieces``."""

import pytest

from clustertune.checks.large_pieces import find
from clustertune.core.model import Severity
from clustertune.testing import layout, snapshot, view, worker

WORKERS = [worker(0, memory_limit=8000), worker(1, memory_limit=4000)]


@pytest.mark.parametrize(
    "layouts",
    [
        pytest.param([], id="no data"),
        pytest.param([layout([11, 11], [0, 1])], id="968 of 4000 bytes"),
        pytest.param([layout([11, 11], None)], id="968 of 4000 bytes, not loaded"),
    ],
)
def test_silent(layouts):
    """Nothing is said of pieces up to a quarter of the smallest worker."""
    assert list(find(view(workers=WORKERS, layouts=layouts))) == []


def test_just_a_quarter_is_silent():
    """The limit may be reached."""
    workers = [worker(0, memory_limit=4 * 880)]
    assert list(find(view(workers=workers, layouts=[layout([10], [0])]))) == []
    assert len(list(find(view(workers=workers, layouts=[layout([11], [0])])))) == 1


def test_without_a_limit_nothing_is_compared():
    """No worker, or none with a memory limit, is no finding."""
    data = [layout([1000], [0])]
    assert list(find(view(workers=[worker(memory_limit=0)], layouts=data))) == []
    assert list(find(view(snapshots=[snapshot([])], layouts=data))) == []


def test_small_workers_that_may_not_train_do_not_count():
    """Only workers that may hold the data are compared."""
    data = [layout([20], [0])]
    assert list(find(view(workers=WORKERS, layouts=data, goal_workers=[0]))) == []


def test_a_large_piece_is_a_warning():
    """Its bytes are compared with the smallest worker's limit."""
    (finding,) = find(view(workers=WORKERS, layouts=[layout([5, 20], [0, 1])]))
    assert finding.severity is Severity.warning
    assert finding.subject == ("X", "y")
    assert finding.message == (
        "a piece of the training data has 1.7 KiB, 44% of the 3.9 KiB that worker 1 "
        "may use"
    )
    assert finding.evidence == {"piece_bytes": 1760, "limit_bytes": 4000}


def test_fraction_sets_how_large_is_large():
    """Half of a worker may be allowed."""
    data = [layout([20], [0])]
    assert list(find(view(workers=WORKERS, layouts=data), fraction=0.5)) == []


def test_sizes_that_are_not_known_are_unknown():
    """A frame that is not loaded does not tell how large its pieces are."""
    lazy = layout(None, None, keys=(0, 1))
    (finding,) = find(view(workers=WORKERS, layouts=[lazy]))
    assert finding.severity is Severity.unknown
    assert finding.message == (
        "how large the pieces of the training data are is unknown: X is not loaded, "
        "so its size is unknown"
    )
