from __future__ import annotations

from dataclasses import replace

import pytest

from clustertune.checks.partitions import too_few_partitions
from clustertune.checks.placement import (
    empty_workers,
    eval_sets,
    separated_pairs,
    uneven_rows,
)
from clustertune.core.model import Severity
from clustertune.planner.suitability import chosen
from tests.builders import layout, view, worker

# --- empty_workers --------------------------------------------------------------------


THREE = [worker(i) for i in range(3)]


@pytest.mark.parametrize(
    "layouts",
    [
        pytest.param([], id="no data"),
        pytest.param([layout([10] * 3, [0, 1, 2])], id="one partition each"),
        pytest.param([layout([1] * 3, [0, 1, 2])], id="one row each"),
        pytest.param([layout([10] * 2, [0, 1])], id="fewer partitions than workers"),
        pytest.param([layout([10, 10, 0], [0, 1, 1])], id="fewer partitions with rows"),
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
    """Every worker trains, or the layout is unknown."""
    assert list(empty_workers(view(workers=THREE, layouts=layouts))) == []


def test_workers_that_may_not_train_may_be_empty():
    """A paused worker, or one that was not named, needs no data."""
    workers = [worker(0), worker(1, status="paused"), worker(2)]
    data = [layout([10] * 3, [0] * 3)]
    assert (
        list(empty_workers(view(workers=workers, layouts=data, goal_workers=[0]))) == []
    )


def test_a_worker_without_partitions_is_a_warning():
    """With all data on the first of three workers, two workers will not train."""
    (finding,) = empty_workers(view(workers=THREE, layouts=[layout([10] * 3, [0] * 3)]))
    assert finding.severity is Severity.warning
    assert finding.subject == (1, 2)
    assert finding.message == (
        "workers 1 and 2 hold no rows of the training data, so only 1 of 3 workers "
        "will train"
    )


def test_partitions_without_rows_do_not_count():
    """A worker that holds only empty partitions is empty."""
    data = layout([10, 10, 10, 0], [0, 1, 1, 2])
    (finding,) = empty_workers(view(workers=THREE, layouts=[data]))
    assert finding.subject == (2,)


def test_one_row_makes_a_partition():
    """However small partitions are, each gives a worker rows."""
    (finding,) = empty_workers(
        view(workers=THREE, layouts=[layout([1] * 3, [0, 1, 1])])
    )
    assert finding.subject == (2,)


def test_a_copy_is_not_a_share():
    """A worker that only has replicas of other workers' keys is empty."""
    data = layout([10] * 3, {"X": [0, 1, [1, 2]], "y": [0, 1, 1]})
    (finding,) = empty_workers(view(workers=THREE, layouts=[data]))
    assert finding.subject == (2,)


def test_workers_that_cannot_have_rows():
    """The finding names too few rows as the cause."""
    seen = chosen(view(THREE, [layout([1, 1], [0, 2])]))
    (finding,) = empty_workers(seen)
    assert finding.severity is Severity.warning
    assert finding.message == (
        "the training data has only 2 rows, so only 2 of 3 workers will train, without "
        "worker 1"
    )
    assert finding.subject == (1,)
    assert finding.evidence == {"empty_workers": 1, "workers": 3, "rows": 2}
    seen = chosen(view(THREE, [layout([4, 4], [0, 2])], rechunk=False))
    (finding,) = empty_workers(seen)
    assert finding.message.startswith(
        "the training data has only 2 partitions, so only 2 of 3"
    )
    assert "Leave out rechunk=" in finding.remedy


# --- uneven_rows ----------------------------------------------------------------------


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
def test_uneven_rows_silent(layouts):
    """Rows are even, or the layout is unknown."""
    assert list(uneven_rows(view(layouts=layouts))) == []


def test_shares_are_by_threads():
    """A worker with twice the threads should hold twice the rows."""
    workers = [worker(0, nthreads=2), worker(1, nthreads=1)]
    data = [layout([10] * 3, [0, 0, 1])]
    assert list(uneven_rows(view(workers=workers, layouts=data))) == []


def test_all_rows_on_one_worker_are_a_warning():
    """The finding has the fullest worker, its rows, and the result of moving."""
    (finding,) = uneven_rows(view(layouts=[layout([10] * 4, [1] * 4)]))
    assert finding.severity is Severity.warning
    assert finding.subject == (1,)
    assert finding.message == (
        "worker 1 holds 2 times its share of rows (40 of 40 of the training data), so "
        "the other workers wait for it; moving whole partitions can reduce that to 1"
    )
    assert finding.evidence["imbalance"] == pytest.approx(2.0)
    assert finding.evidence["best_imbalance"] == pytest.approx(1.0)


def test_the_tolerance_is_the_goals():
    """The goal's tolerance decides."""
    data = [layout([12, 8, 1, 1], [0, 1, 0, 0])]
    assert len(list(uneven_rows(view(layouts=data)))) == 1
    assert list(uneven_rows(view(layouts=data, tolerance=0.5))) == []


def test_what_no_move_can_better_is_reported_once():
    """Three equal partitions on two workers are as even as possible."""
    seen = view(layouts=[layout([10] * 3, [0, 1, 0])])
    assert list(uneven_rows(seen)) == []
    (finding,) = too_few_partitions(seen)
    assert finding.severity is Severity.info


@pytest.mark.parametrize(
    ("workers", "goal"),
    [
        pytest.param([worker(0), worker(1, status="paused")], {}, id="paused"),
        pytest.param([worker(0), worker(1)], {"goal_workers": [0]}, id="not asked for"),
    ],
)
def test_rows_on_workers_that_may_not_train_are_a_warning(workers, goal):
    """Such rows are a warning, even if the other workers have room."""
    data = [layout([10] * 4, [0, 1, 0, 1])]
    (finding,) = uneven_rows(view(workers=workers, layouts=data, **goal))
    assert finding.severity is Severity.warning
    assert finding.subject == (1,)
    assert finding.message == (
        "20 rows of the training data are on worker 1, which is not running or not in "
        "workers=, so every fit must move them first"
    )


def test_rows_of_eval_sets_on_such_workers_are_found_too():
    """A worker that may not train should not hold eval sets either."""
    sets = [layout([10], [0]), layout([5], [1], label="eval_set[0]")]
    (finding,) = uneven_rows(view(layouts=sets, goal_workers=[0]))
    assert "5 rows of the eval_set[0] are on worker 1" in finding.message


def test_no_eligible_worker_is_survived():
    """Rows on paused workers alone give a finding, not a division by zero."""
    workers = [worker(0, status="paused")]
    (finding,) = uneven_rows(view(workers=workers, layouts=[layout([10], [0])]))
    assert finding.evidence == {"rows": 10, "total_rows": 10}


# --- separated_pairs ------------------------------------------------------------------


@pytest.mark.parametrize(
    "layouts",
    [
        pytest.param([], id="no data"),
        pytest.param([layout([10] * 4, [0, 0, 0, 1])], id="together, uneven"),
        pytest.param([layout([10] * 2, [0, 1], collections=["X"])], id="X alone"),
        pytest.param(
            [layout([10, 0], {"X": [0, 0], "y": [0, 1]})], id="empty partition"
        ),
        pytest.param([layout([10] * 2, None)], id="not loaded"),
        pytest.param(
            [layout(None, {"X": [0, 0], "y": [1, 1]})], id="rows unknown: no pairs"
        ),
    ],
)
def test_separated_pairs_silent(layouts):
    """Each partition is whole on some worker, or holders are unknown."""
    assert list(separated_pairs(view(layouts=layouts))) == []


def test_replicas_are_counted_by_partition():
    """A partition counts once, however many of its collections have replicas."""
    given = layout([10] * 3, {"X": [[0, 1], 0, 1], "y": [[0, 1], [0, 1], 1]})
    (finding,) = separated_pairs(view(layouts=[given]))
    assert finding.severity is Severity.info
    assert finding.evidence == {"replicated": 2, "partitions": 3}
    assert "Dask will drop some" in finding.message


def test_separated_partitions_are_counted_with_what_must_travel():
    """At least the smaller part of a separated pair is transferred."""
    torn = layout([10] * 4, {"X": [0, 0, 1, 1], "y": [0, 1, 1, 0]})
    (finding,) = separated_pairs(view(layouts=[torn]))
    assert finding.severity is Severity.warning
    assert finding.subject == ("X", "y")
    assert finding.message == (
        "2 of 4 partitions (50%) of X and y are split over several workers, so every "
        "fit sends at least 160 B between workers"
    )
    assert finding.evidence == {"separated": 2, "partitions": 4, "bytes": 160}


def test_a_partition_of_one_row_counts():
    """Only partitions without rows are ignored."""
    (finding,) = separated_pairs(view(layouts=[layout([1], {"X": [0], "y": [1]})]))
    assert finding.evidence == {"separated": 1, "partitions": 1, "bytes": 8}


def test_every_member_counts():
    """A weight on a third worker separates a partition whose X and y are together."""
    collections = ["X", "y", "sample_weight"]
    workers = [worker(i) for i in range(3)]
    torn = layout(
        [10], {"X": [0], "y": [0], "sample_weight": [2]}, collections=collections
    )
    (finding,) = separated_pairs(view(workers=workers, layouts=[torn]))
    assert finding.evidence["bytes"] == 80


def test_eval_sets_are_looked_at():
    """Pairs of eval sets are transferred at each fit too."""
    X, y = "eval_set[0].X", "eval_set[0].y"
    torn = layout([10], {X: [0], y: [1]}, (X, y), label="eval_set[0]")
    (finding,) = separated_pairs(view(layouts=[layout([10], [0]), torn]))
    assert finding.message.startswith("1 of 1 partition (100%) of eval_set[0].X and")


# --- eval_sets ------------------------------------------------------------------------


CATEGORIES = {"category": ("c",)}


def find_eval_rows(rows, homes, types=CATEGORIES, everywhere=True):
    """Return findings for an eval set and training data on two workers."""
    training = layout([10, 10], [0, 1])
    evals = layout(rows, homes, ("eval_set[0].X", "eval_set[0].y"))
    first, *others = (replace(m, types=types) for m in evals.collections)
    evals = replace(evals, collections=(first, *others))
    seen = view([worker("a"), worker("b")], [training, evals])
    workload = replace(seen.goal.workload, eval_everywhere=everywhere)
    return list(eval_sets(replace(seen, goal=replace(seen.goal, workload=workload))))


def test_silent_where_all_have_rows():
    """All workers have rows, or the library does not need them."""
    assert find_eval_rows([5, 5], [0, 1]) == []
    assert find_eval_rows([10], [0], everywhere=False) == []


def test_a_worker_without_rows():
    """Partitions move if enough of them have rows; otherwise they are cut."""
    (finding,) = find_eval_rows([5, 5], [0, 0])
    assert finding.message.startswith("worker b has no rows of training data, ")
    assert finding.subject == ("eval_set[0].X", "eval_set[0].y")
    assert finding.fixed_by == "rebalance"
    assert find_eval_rows([10, 0], [0, 1])[0].fixed_by == "rechunk"
    assert find_eval_rows([1], [0])[0].fixed_by == ""
    assert finding.severity is Severity.warning


def test_a_custom_metric_needs_rows_too():
    """Without categories only a custom metric is lost, which is information."""
    (finding,) = find_eval_rows([10], [0], types={"float64": ("a",)})
    assert finding.severity is Severity.info
    assert finding.message == (
        "worker b has no rows of training data, so a custom metric has no value "
        "there, and its score is NaN"
    )
    assert finding.fixed_by == "rechunk"


# --- eval_sets: all rows --------------------------------------------------------------


TRAINING = layout([10] * 4, [0, 1, 0, 1])


def find_unshared_evals(rows, homes, *, needed=True, copied=True, training=TRAINING):
    valid = layout(rows, homes, ("Xv", "yv"), label="eval_set[0]")
    if copied:
        collections = [
            replace(m, keys=tuple((f"copied-{m.label}", i) for _, i in m.keys))
            for m in valid.collections
        ]
        valid = replace(valid, collections=tuple(collections))
    seen = view((), [training, valid])
    workload = replace(seen.goal.workload, eval_copies=needed)
    return list(eval_sets(replace(seen, goal=replace(seen.goal, workload=workload))))


def test_silent_where_every_worker_has_all():
    """Each worker has all eval rows in its first partition."""
    assert find_unshared_evals([7, 7, 0, 0], [0, 1, 0, 1]) == []


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({"needed": False}, id="the library scores on all workers"),
        pytest.param({"training": layout([10], None)}, id="not loaded"),
    ],
)
def test_silent_where_it_does_not_matter(how):
    """The library does not need whole eval sets, or the data is not loaded."""
    assert find_unshared_evals([5, 5], [0, 1], **how) == []
    assert list(eval_sets(view())) == []


@pytest.mark.parametrize(
    ("rows", "homes", "copied"),
    [
        pytest.param([5, 5], [0, 1], False, id="shared out"),
        pytest.param([7, 7], [0, 1], True, id="fewer partitions"),
        pytest.param([7, 0, 7, 0], [0, 1, 0, 1], True, id="twice on one worker"),
        pytest.param([7, 6, 0, 0], [0, 1, 0, 1], True, id="unlike rows"),
        pytest.param(
            [7, 7, 0, 0], [0, 1, 1, 1], True, id="an empty partition elsewhere"
        ),
        pytest.param([7, 7, 0, 0], [0, 1, 0, 1], False, id="other rows, as it was cut"),
    ],
)
def test_workers_without_all_of_it(rows, homes, copied):
    """In any layout, the remedy replicates the eval set."""
    (finding,) = find_unshared_evals(rows, homes, copied=copied)
    assert finding.severity is Severity.warning
    assert finding.subject == ("Xv", "yv")
    assert finding.message.startswith("eval_set[0] is not completely on every worker")
    assert finding.fixed_by == "replicate"
