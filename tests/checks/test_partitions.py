from __future__ import annotations

from dataclasses import replace

import pytest

from clustertune.checks import ERRORS
from clustertune.checks.memory import fit_memory
from clustertune.checks.partitions import (
    changed_partitions,
    column_chunks,
    large_partitions,
    misaligned_partitions,
    no_rows,
    too_few_partitions,
    too_many_partitions,
)
from clustertune.core.model import Layout, Profile, Severity
from clustertune.errors import AlignmentError
from tests.builders import collection, layout, snapshot, view, worker

# --- misaligned_partitions ------------------------------------------------------------


def pair(x, y, label="training data", homes=True, **fields):
    """Make a layout of X and y with these rows."""
    rows = {"X": x, "y": y}
    collections = [
        collection(name, r, [0] * len(r) if homes else None, **fields)
        for name, r in rows.items()
    ]
    return Layout(label=label, collections=tuple(collections))


def find_differing_boundaries(*layouts):
    """Return findings for these layouts."""
    return list(misaligned_partitions(view(layouts=layouts)))


@pytest.mark.parametrize(
    "layouts",
    [
        pytest.param([], id="no data"),
        pytest.param([layout([10, 20], [0, 1])], id="the same"),
        pytest.param([layout([10, 20], None)], id="the same, not loaded"),
        pytest.param(
            [layout(None, [0, 1], collections=["X"])], id="X alone, rows unknown"
        ),
        pytest.param(
            [layout([10, 20], [0, 1]), layout([5], [0], label="eval_set[0]")],
            id="an eval set is cut otherwise than the training data",
        ),
    ],
)
def test_silent(layouts):
    """All collections of each layout have the same partitions."""
    assert find_differing_boundaries(*layouts) == []


def test_critical_findings_stop_with_an_alignment_error():
    """Training with labels of other rows must not begin."""
    assert ERRORS["misaligned_partitions"] is AlignmentError


def test_other_boundaries_are_critical():
    """Equal numbers of partitions and rows with other boundaries raise no error in
    Dask.
    """
    (finding,) = find_differing_boundaries(pair([100, 100, 100], [100, 50, 150]))
    assert finding.severity is Severity.critical
    assert finding.subject == ("X", "y")
    assert finding.message == (
        "X and y have 300 rows each, but are cut at different rows, so a fit could "
        "pair rows with wrong labels; the first partition that differs is number 1: "
        "100 rows in X, 50 rows in y"
    )
    assert finding.remedy == (
        "Run `X, y = clustertune.prepare(client, X, y)`, which gives y the partitions "
        "of X."
    )
    assert finding.evidence["same_total"] is True


def test_boundaries_are_compared_before_loading_where_they_are_known():
    """Rows of arrays are known before they are loaded."""
    (finding,) = find_differing_boundaries(pair([100, 100], [150, 50], homes=False))
    assert finding.severity is Severity.critical


@pytest.mark.parametrize(
    ("x", "y", "partition", "text"),
    [
        ([10, 10], [20], 0, "10 rows in X, 20 rows in y"),
        ([10], [10, 0], 1, "none in X, 0 rows in y"),
        ([10, 0], [10], 1, "0 rows in X, none in y"),
    ],
)
def test_other_numbers_of_partitions_are_critical(x, y, partition, text):
    """The finding names the first partition that differs."""
    (finding,) = find_differing_boundaries(pair(x, y))
    assert finding.severity is Severity.critical
    assert finding.evidence["partition"] == partition
    assert finding.message.endswith(text)


def test_other_totals_are_critical_and_no_cut_helps():
    """The finding has both numbers of rows, and does not propose rechunk."""
    (finding,) = find_differing_boundaries(pair([50_000, 50_000], [50_000, 49_000]))
    assert finding.severity is Severity.critical
    assert finding.message.startswith(
        "X has 100,000 rows, y has 99,000, so their rows cannot be paired; "
    )
    assert finding.remedy.startswith("Find the step that changed the rows of only one")
    assert "prepare" not in finding.remedy
    assert finding.evidence["same_total"] is False


def test_every_member_is_compared():
    """A weight that differs is found even if y fits."""
    weight = collection("sample_weight", [15, 5], [0, 0])
    three = layout([10, 10], [0, 0])
    three = Layout(label=three.label, collections=(*three.collections, weight))
    (finding,) = find_differing_boundaries(three)
    assert finding.subject == ("X", "sample_weight")


def test_the_remedy_without_a_cut():
    """A report of the call with rechunk=False keeps this remedy."""
    collections = [
        collection(name, rows, [0, 0])
        for name, rows in zip("Xy", ([1, 3], [2, 2]), strict=True)
    ]
    data = Layout(label="training data", collections=tuple(collections))
    (finding,) = misaligned_partitions(view(layouts=[data], rechunk=False))
    assert finding.remedy.endswith(
        "without `rechunk=False`, which gives y the partitions of X."
    )
    assert not finding.fixed_by


def test_an_eval_set_is_compared_within_itself():
    """The remedy has the user's names of the collections."""
    rows = {"eval_set[0].X": [1, 3], "eval_set[0].y": [2, 2]}
    collections = [collection(label, r, [0, 0]) for label, r in rows.items()]
    evals = Layout(label="eval_set[0]", collections=tuple(collections))
    (finding,) = misaligned_partitions(view(layouts=[evals], rechunk=False))
    assert finding.remedy.endswith(
        ", which gives eval_set[0].y the partitions of eval_set[0].X."
    )


@pytest.mark.parametrize("n_partitions", [8, 3])
def test_counts_of_partitions_prove_nothing_before_loading(n_partitions):
    """Numbers of partitions of lazy frames may change when they are loaded."""
    lazy = [
        collection(label, None, None, kind="dataframe", keys=tuple(range(n)))
        for label, n in (("X", 8), ("y", n_partitions))
    ]
    (finding,) = find_differing_boundaries(
        Layout(label="training data", collections=tuple(lazy))
    )
    assert finding.severity is Severity.unknown
    assert finding.message == (
        "whether the collections of the training data are cut at the same rows is "
        "unknown: the rows of X and y are known only after loading"
    )


def test_counts_of_loaded_partitions_are_what_they_are():
    """Loaded data has a fixed number of partitions, even if rows were not counted."""
    collections = [collection("X", None, [0] * 8), collection("y", None, [0] * 3)]
    severe, unknown = find_differing_boundaries(
        Layout(label="training data", collections=tuple(collections))
    )
    assert severe.severity is Severity.critical
    assert (
        severe.message
        == "X has 8 partitions, y has 3, so a fit could pair rows with wrong labels"
    )
    assert unknown.severity is Severity.unknown
    assert unknown.message.endswith("the rows of X and y were not counted")


def test_what_is_known_is_compared_although_something_is_not():
    """The labels and the weight are compared even if X is lazy."""
    collections = [
        collection("X", None, None, kind="dataframe", keys=(0, 1)),
        collection("y", [10, 10], [0, 0]),
        collection("sample_weight", [5, 15], [0, 0]),
    ]
    severe, unknown = find_differing_boundaries(
        Layout(label="training data", collections=tuple(collections))
    )
    assert severe.subject == ("y", "sample_weight")
    assert unknown.subject == ("X",)


# --- column_chunks --------------------------------------------------------------------


def test_silent_for_whole_rows():
    """Arrays have chunks of whole rows."""
    assert list(column_chunks(view())) == []
    assert list(column_chunks(view(layouts=[layout([10, 10], [0, 1])]))) == []


def test_blocks_of_columns_are_critical():
    """An array with blocks of columns stops prepare."""
    x = collection("eval_set[0].X", [10], [0], column_blocks=2)
    cut = Layout(
        label="eval_set[0]", collections=(x, collection("eval_set[0].y", [10], [0]))
    )
    (finding,) = column_chunks(view(layouts=[layout([10], [0]), cut]))
    assert ERRORS["column_chunks"] is AlignmentError
    assert finding.severity is Severity.critical
    assert finding.subject == ("eval_set[0].X",)
    assert finding.message == (
        "eval_set[0].X is cut into 2 blocks of columns, but a fit needs all "
        "columns of a row in one partition"
    )
    assert finding.remedy == (
        "Run `X_valid, y_valid, *rest = eval_set[0]; "
        "X_valid = X_valid.rechunk({1: -1}); "
        "eval_set[0] = (X_valid, y_valid, *rest)`."
    )


def test_blocks_of_columns_of_data_that_is_not_loaded():
    """Nothing cuts it, so the error of prepare has the remedy."""
    x = collection("X", [10], None, column_blocks=2)
    lazy = Layout(label="training data", collections=(x,))
    fixes = [
        finding.fixed_by
        for persist in (True, False)
        for finding in column_chunks(view(layouts=[lazy], persist=persist))
    ]
    assert fixes == ["rechunk", ""]


# --- no_rows --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "layouts",
    [
        pytest.param([], id="no data"),
        pytest.param([layout([10, 0], [0, 1])], id="an empty partition"),
        pytest.param([layout(None, [0, 1])], id="rows unknown"),
        pytest.param([layout([10, 10], None)], id="not loaded"),
    ],
)
def test_no_rows_silent(layouts):
    """There is a row, or rows were not counted."""
    assert list(no_rows(view(layouts=layouts))) == []


def test_no_row_at_all():
    """A collection without rows is named, and stops the call."""
    found = list(no_rows(view(layouts=[layout([0, 0], [0, 1])])))
    assert [f.severity for f in found] == [Severity.critical] * 2
    assert found[0].message == "X has no rows, so nothing can be trained on it"
    assert found[1].subject == ("y",)


# --- too_few_partitions ---------------------------------------------------------------


@pytest.mark.parametrize(
    "layouts",
    [
        pytest.param([], id="no data"),
        pytest.param([layout([10, 10], [0, 0])], id="a partition each, wherever it is"),
        pytest.param([layout([1, 1], [0, 0])], id="a row each"),
        pytest.param([layout([10, 10], None)], id="a partition each, not loaded"),
        pytest.param([layout([10] * 41, [0] * 41)], id="uneven within the tolerance"),
        pytest.param([layout(None, [0])], id="rows unknown"),
        pytest.param(
            [layout([10, 10], [0, 1]), layout([5], [0], label="eval_set[0]")],
            id="one partition of an eval set",
        ),
    ],
)
def test_too_few_partitions_silent(layouts):
    """Partitions can be shared evenly, or are unknown."""
    assert list(too_few_partitions(view(layouts=layouts))) == []


def test_no_workers_are_no_finding():
    """Without workers there is nothing to compare."""
    assert (
        list(
            too_few_partitions(
                view(snapshots=[snapshot([])], layouts=[layout([10], None)])
            )
        )
        == []
    )


def test_workers_that_may_not_train_need_no_partition():
    """One partition is enough for the one named worker."""
    data = [layout([10], [0])]
    assert list(too_few_partitions(view(layouts=data, goal_workers=[0]))) == []


def test_fewer_partitions_than_workers():
    """``prepare`` cuts them."""
    workers = [worker(i) for i in range(3)]
    (finding,) = too_few_partitions(
        view(workers=workers, layouts=[layout([600, 600], None)])
    )
    assert finding.severity is Severity.warning
    assert finding.subject == ("X", "y")
    assert finding.message == (
        "the training data has 2 partitions with rows for 3 workers, so 1 worker "
        "cannot train"
    )
    assert finding.remedy == "Run `X, y = clustertune.prepare(client, X, y)`."
    assert finding.evidence == {"partitions": 2, "workers": 3}
    assert finding.fixed_by == "rechunk"


def test_partitions_without_rows_do_not_count():
    """A worker with only an empty partition cannot train."""
    (finding,) = too_few_partitions(view(layouts=[layout([10, 0], [0, 1])]))
    assert finding.evidence["partitions"] == 1


def test_workers_still_to_be_started_are_counted():
    """The finding comes before the cluster is scaled."""
    data = [layout([10, 10], [0, 1])]
    (finding,) = too_few_partitions(view(layouts=data, n_workers=5))
    assert finding.evidence["workers"] == 5


@pytest.mark.parametrize("rechunk", [True, False, 2])
def test_no_more_workers_are_expected_than_can_train(rechunk):
    """Future workers that will get no rows need no partition."""
    seen = view(layouts=[layout([1, 1], [0, 1])], n_workers=5, rechunk=rechunk)
    assert list(too_few_partitions(seen)) == []


def test_partitions_that_cannot_be_even_are_information():
    """Three equal partitions on two workers lose a third of the time."""
    (finding,) = too_few_partitions(view(layouts=[layout([10] * 3, [0, 0, 1])]))
    assert finding.severity is Severity.info
    assert finding.message == (
        "the training data has 3 partitions, the largest of 10 rows, so one of 2 "
        "workers has at least 1.33 times its share of rows, and the others wait for it"
    )
    assert finding.evidence["best_imbalance"] == pytest.approx(4 / 3)


def test_a_larger_tolerance_accepts_them():
    """The goal's tolerance allows them."""
    data = [layout([10] * 3, [0, 0, 1])]
    assert list(too_few_partitions(view(layouts=data, tolerance=1 / 3))) == []
    assert len(list(too_few_partitions(view(layouts=data, tolerance=0.33)))) == 1


# --- too_many_partitions --------------------------------------------------------------


TEN = Profile(name="t", title="T", memory_multiple={8: 2}, max_partitions_per_thread=10)


def partitions(n, **fields):
    """Make data of n partitions of 880 bytes, on the first worker."""
    return layout([10] * n, [0] * n, **fields)


def find_too_many_partitions(*layouts, workers=()):
    """Return findings with a limit of 10 partitions for each thread."""
    return list(too_many_partitions(view(workers, layouts, workload=TEN)))


@pytest.mark.parametrize(
    "layouts",
    [
        pytest.param([], id="no data"),
        pytest.param([partitions(20)], id="as many as the limit"),
        pytest.param([layout([20_000] * 21, [0] * 21)], id="many but large"),
        pytest.param([layout(None, [0] * 20)], id="few, bytes unknown"),
    ],
)
def test_too_many_partitions_silent(layouts):
    """There are few partitions, or large ones."""
    assert find_too_many_partitions(*layouts) == []


def test_the_limit_is_for_each_thread_that_may_train():
    """More threads may have more partitions; threads of paused workers do not count."""
    assert (
        find_too_many_partitions(partitions(21), workers=[worker(0, nthreads=3)]) == []
    )
    paused = [worker(0, status="paused")]
    assert find_too_many_partitions(partitions(21), workers=paused) == []
    one = [worker(0), worker(1, nthreads=3, status="paused")]
    assert len(find_too_many_partitions(partitions(21), workers=one)) == 1


def test_many_small_partitions_are_a_warning():
    """The finding has the number of partitions, the threads and the mean size."""
    (finding,) = find_too_many_partitions(partitions(21))
    assert finding.severity is Severity.warning
    assert finding.message == (
        "the training data has 21 partitions for 2 threads: 880 B each, so handling "
        "them can take longer than their work"
    )
    assert finding.evidence == {"partitions": 21, "threads": 2}


@pytest.mark.parametrize(
    ("n", "severity"), [(160, Severity.warning), (161, Severity.critical)]
)
def test_far_too_many_are_critical(n, severity):
    """From eight times the limit on, prepare stops."""
    (finding,) = find_too_many_partitions(partitions(n))
    assert finding.severity is severity
    assert ERRORS["too_many_partitions"] is AlignmentError


def test_eval_sets_are_never_critical():
    """An eval set in too many partitions is slow, but does not stop prepare."""
    (finding,) = find_too_many_partitions(
        partitions(2), partitions(1000, label="eval_set[0]")
    )
    assert finding.severity is Severity.warning


def test_a_number_that_is_wanted_is_never_critical():
    """Partitions of the requested number are never joined."""
    (finding,) = too_many_partitions(
        view((), [partitions(161)], workload=TEN, rechunk=161)
    )
    assert finding.severity is Severity.warning
    assert not finding.fixed_by
    assert "without `rechunk=161`" in finding.remedy
    (finding,) = too_many_partitions(
        view((), [partitions(161)], workload=TEN, rechunk=80)
    )
    assert finding.severity is Severity.critical
    assert finding.fixed_by == "rechunk"


def test_many_partitions_of_unknown_size_are_unknown():
    """Partition sizes of a lazy frame are unknown."""
    keys = tuple(range(21))
    (finding,) = find_too_many_partitions(
        layout(None, None, kind="dataframe", keys=keys)
    )
    assert finding.severity is Severity.unknown
    assert finding.message == (
        "the training data has 21 partitions for 2 threads: whether they are too "
        "small is unknown: X is not loaded, so its size is unknown"
    )


# --- large_partitions -----------------------------------------------------------------


WORKERS = [worker(0, memory_limit=8000), worker(1, memory_limit=4000)]


@pytest.mark.parametrize(
    "layouts",
    [
        pytest.param([], id="no data"),
        pytest.param([layout([11, 11], [0, 1])], id="968 of 4000 bytes"),
        pytest.param([layout([11, 11], None)], id="968 of 4000 bytes, not loaded"),
    ],
)
def test_large_partitions_silent(layouts):
    """Partitions have up to a quarter of the smallest worker's limit."""
    assert list(large_partitions(view(workers=WORKERS, layouts=layouts))) == []


def test_just_a_quarter_is_silent():
    """The limit may be reached."""
    workers = [worker(0, memory_limit=4 * 880)]
    assert (
        list(large_partitions(view(workers=workers, layouts=[layout([10], [0])]))) == []
    )
    assert (
        len(list(large_partitions(view(workers=workers, layouts=[layout([11], [0])]))))
        == 1
    )


def test_without_a_limit_nothing_is_compared():
    """There is no worker, or none has a memory limit."""
    data = [layout([1000], [0])]
    assert (
        list(large_partitions(view(workers=[worker(memory_limit=0)], layouts=data)))
        == []
    )
    assert list(large_partitions(view(snapshots=[snapshot([])], layouts=data))) == []


def test_small_workers_that_may_not_train_do_not_count():
    """Only workers that may hold the data are compared."""
    data = [layout([20], [0])]
    assert (
        list(large_partitions(view(workers=WORKERS, layouts=data, goal_workers=[0])))
        == []
    )


def test_a_large_partition_is_a_warning():
    """The finding compares its bytes with the smallest worker's limit."""
    (finding,) = large_partitions(
        view(workers=WORKERS, layouts=[layout([5, 20], [0, 1])])
    )
    assert finding.severity is Severity.warning
    assert finding.subject == ("X", "y")
    assert finding.message == (
        "a partition of the training data has 1.7 KiB, 44% of the 3.9 KiB that "
        "worker 1 may use; moving or cutting it takes twice that memory"
    )
    assert finding.evidence == {"partition_bytes": 1760, "limit_bytes": 4000}


def test_unknown_sizes_are_reported_once():
    """Partition sizes of a lazy frame are unknown, and so is the memory of a fit."""
    seen = view(workers=WORKERS, layouts=[layout(None, None, keys=(0, 1))])
    assert list(large_partitions(seen)) == []
    (finding,) = fit_memory(seen)
    assert finding.severity is Severity.unknown
    assert "X is not loaded, so its size is unknown" in finding.message


# --- changed_partitions ---------------------------------------------------------------


def find_changed_partitions(given, *, keeps=True, data=None):
    data = layout([10] * 4, [0, 1, 0, 1]) if data is None else data
    seen = replace(view([worker(0), worker(1)], [data]), given_partitions=given)
    workload = replace(seen.goal.workload, keeps_partitions=keeps)
    return list(
        changed_partitions(replace(seen, goal=replace(seen.goal, workload=workload)))
    )


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({"given": 4}, id="as it was given"),
        pytest.param({"given": None}, id="not known"),
        pytest.param({"given": 1, "keeps": False}, id="of no account"),
        pytest.param({"given": 5, "data": layout(None, [0])}, id="rows unknown"),
    ],
)
def test_changed_partitions_silent(how):
    """The number is as given, does not matter, or is unknown."""
    assert find_changed_partitions(**how) == []
    assert list(changed_partitions(view())) == []


def test_another_number_than_was_given():
    """The remedy keeps the given number."""
    (finding,) = find_changed_partitions(1)
    assert finding.severity is Severity.info
    assert finding.message.startswith(
        "the training data was given in 1 partition and has 4 now, "
    )
    assert finding.evidence == {"partitions": 4, "given_partitions": 1}
    assert finding.fixed_by == ""
    assert "rechunk=1" in finding.remedy
