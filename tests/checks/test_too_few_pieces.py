"""The check ``too_few_pieces``."""

from dataclasses import replace

import pytest

from clustertune.checks.too_few_pieces import ERROR, find
from clustertune.core.model import Severity
from clustertune.errors import AlignmentError
from clustertune.testing import layout, snapshot, view, worker


@pytest.mark.parametrize(
    "layouts",
    [
        pytest.param([], id="no data"),
        pytest.param([layout([10, 10], [0, 0])], id="a piece each, wherever it is"),
        pytest.param([layout([1, 1], [0, 0])], id="a row each"),
        pytest.param([layout([10, 10], None)], id="a piece each, not loaded"),
        pytest.param([layout([10] * 41, [0] * 41)], id="uneven within the tolerance"),
        pytest.param([layout(None, [0])], id="rows unknown"),
        pytest.param(
            [layout([10, 10], [0, 1]), layout([5], [0], label="eval_set[0]")],
            id="one piece of an eval set",
        ),
    ],
)
def test_silent(layouts):
    """Nothing is said where pieces can be shared out evenly, or are not known."""
    assert list(find(view(layouts=layouts))) == []


def test_no_workers_are_no_finding():
    """Without any worker there is nobody to have a piece."""
    assert (
        list(find(view(snapshots=[snapshot([])], layouts=[layout([10], None)]))) == []
    )


def test_workers_that_may_not_train_need_no_piece():
    """One piece is enough for the one worker that was asked for."""
    data = [layout([10], [0])]
    assert list(find(view(layouts=data, goal_workers=[0]))) == []


def test_fewer_pieces_than_workers_are_critical():
    """The remedy has the rows of a piece that give each thread four."""
    workers = [worker(i) for i in range(3)]
    (finding,) = find(view(workers=workers, layouts=[layout([600, 600], None)]))
    assert ERROR is AlignmentError
    assert finding.severity is Severity.critical
    assert finding.subject == ("X", "y")
    assert finding.message == (
        "2 pieces of the training data with rows for 3 workers: 1 worker cannot "
        "take part"
    )
    assert finding.remedy == "X = X.rechunk({0: 100}); y = y.rechunk({0: 100})"
    assert finding.evidence == {"pieces": 2, "workers": 3}


def test_pieces_without_rows_do_not_count():
    """An empty piece gives a worker nothing to train on."""
    (finding,) = find(view(layouts=[layout([10, 0], [0, 1])]))
    assert finding.evidence["pieces"] == 1


def test_workers_still_to_be_started_are_counted():
    """It is said before the cluster is scaled, not after."""
    data = [layout([10, 10], [0, 1])]
    (finding,) = find(view(layouts=data, n_workers=5))
    assert finding.evidence["workers"] == 5


def test_the_remedy_suits_frames():
    """Frames are cut into a number of partitions, four for each thread."""
    data = [layout([100], [0], kind="dataframe")]
    (finding,) = find(view(layouts=data))
    assert finding.remedy == (
        "X = X.repartition(npartitions=8); y = y.repartition(npartitions=8)"
    )


def test_the_remedy_cuts_as_prepare_would():
    """One piece for every thread where a task costs more than small pieces are worth;
    those of workers to come count as the others'."""
    threads = [worker(0, nthreads=1), worker(1, nthreads=3)]
    now = snapshot(threads, overhead=1e-3)
    (finding,) = find(view(snapshots=[now], layouts=[layout([600], [0])]))
    assert finding.remedy == "X = X.rechunk({0: 150}); y = y.rechunk({0: 150})"
    (finding,) = find(view(snapshots=[now], layouts=[layout([600], [0])], n_workers=3))
    assert finding.remedy == "X = X.rechunk({0: 100}); y = y.rechunk({0: 100})"


@pytest.mark.parametrize("rows", [2, 3, 5, 17])
def test_the_remedys_pieces_are_enough(rows):
    """However few rows there are, pieces so cut suffice for every worker."""
    (finding,) = find(view(layouts=[layout([rows], [0])]))
    size = int(finding.remedy.split("rechunk({0: ")[1].split("}")[0])
    assert -(-rows // size) >= 2


def test_fewer_rows_than_workers_that_all_need_some():
    """Rows are named as the cause, and only fewer workers help."""
    seen = view(layouts=[layout([1], [0])])
    exact = replace(seen.goal.workload, exact_rows=True)
    seen = replace(seen, goal=replace(seen.goal, workload=exact))
    (finding,) = find(seen)
    assert finding.message == (
        "1 row of the training data for 2 workers: Any training library needs as many "
        "on each, and cutting makes no more rows"
    )
    assert finding.severity is Severity.critical
    assert finding.fixed_by == ""
    assert finding.remedy == "for 1 row in all name fewer workers in workers="


@pytest.mark.parametrize("rechunk", [True, False, 2])
def test_no_more_workers_are_expected_than_can_train(rechunk):
    """Workers to come that will get no rows need no partition."""
    seen = view(layouts=[layout([1, 1], [0, 1])], n_workers=5, rechunk=rechunk)
    assert list(find(seen)) == []


def test_pieces_that_cannot_be_even_are_information():
    """Three equal pieces on two workers cost a third of the time."""
    (finding,) = find(view(layouts=[layout([10] * 3, [0, 0, 1])]))
    assert finding.severity is Severity.info
    assert finding.message == (
        "3 pieces of the training data, the largest 10 rows: one of 2 workers has 1.33 "
        "times its share at best, and each round of a fit takes that much longer"
    )
    assert finding.evidence["best"] == pytest.approx(4 / 3)


def test_a_larger_tolerance_accepts_them():
    """What the goal allows is not mentioned."""
    data = [layout([10] * 3, [0, 0, 1])]
    assert list(find(view(layouts=data, tolerance=1 / 3))) == []
    assert len(list(find(view(layouts=data, tolerance=0.33)))) == 1
