from __future__ import annotations

from dataclasses import replace

import dask.array as da
import numpy as np
import pytest
from distributed import wait
from distributed.utils_test import gen_cluster

import clustertune
from clustertune.checks import ERRORS
from clustertune.checks.labels import missing_classes, unshuffled_rows
from clustertune.core.model import Contents, Severity
from clustertune.errors import ClassCoverageError
from clustertune.remote.worker import content
from clustertune.remote.worker.content import labels
from clustertune.testing import layout, view, worker

# --- missing_classes ------------------------------------------------------------------


THREE = [worker(i) for i in range(3)]


def find_missing_classes(*partitions, homes=(0, 1), needed=False, workers=(), **goal):
    """Return findings for partitions with these labels, one for each row; None: no
    classes.
    """
    looked = [
        {"classes": None} if p is None else content.classes(np.array([*p]), 64)
        for p in partitions
    ]
    data = layout(
        [1 if p is None else len(p) for p in partitions],
        list(homes),
        contents=Contents(partitions=tuple(looked)),
    )
    seen = view(workers, [data], **goal)
    workload = replace(seen.goal.workload, needs_all_classes=needed)
    return list(
        missing_classes(replace(seen, goal=replace(seen.goal, workload=workload)))
    )


@pytest.mark.parametrize("needed", [False, True])
def test_silent_where_all_are_everywhere(needed):
    """Classes are needed on every worker, not in every partition."""
    assert find_missing_classes("ab", "ba", needed=needed) == []
    assert (
        find_missing_classes("a", "b", "b", "a", homes=(0, 0, 1, 1), needed=needed)
        == []
    )
    assert find_missing_classes(None, "a", needed=needed) == []
    assert find_missing_classes("aa", "a", needed=needed) == []
    assert list(missing_classes(view((), [layout([10], [0])]))) == []
    assert list(missing_classes(view())) == []


def test_silent_of_workers_without_rows():
    """Other checks report workers without rows, which will receive some."""
    assert find_missing_classes("ab", "ab", homes=(0, 0)) == []
    paused = [worker(0), worker(1), worker(2, status="paused")]
    assert (
        find_missing_classes(
            "ab", "ab", "a", homes=(0, 1, 2), needed=True, workers=paused
        )
        == []
    )


def test_silent_before_partitions_fit_each_other():
    """If y has other partitions than X, its partitions are not final."""
    data = layout(
        [2, 2], [0, 1], contents=Contents(partitions=({"classes": [["a", 2]]},))
    )
    y = replace(data.collections[1], rows=np.array([1, 3]))
    data = replace(data, collections=(data.collections[0], y))
    assert list(missing_classes(view((), [data]))) == []


def test_a_worker_lacks_one():
    """The workload sets the severity."""
    (finding,) = find_missing_classes("abc", "a")
    assert finding.severity is Severity.info
    assert finding.subject == (1,)
    assert "on worker 1 2 are missing, for example b" in finding.message
    assert finding.fixed_by == ""
    (finding,) = find_missing_classes("abcabc", "aa", needed=True)
    assert finding.severity is Severity.critical
    assert finding.subject == ("X", "y")
    assert finding.evidence == {"classes": 3, "workers": 1}
    assert ERRORS["missing_classes"] is ClassCoverageError


def test_whole_partitions_move_where_that_will_do():
    """Whole partitions move if that suffices; otherwise they are cut, if allowed."""
    (finding,) = find_missing_classes(
        "a", "b", "b", "a", homes=(0, 1, 1, 0), needed=True
    )
    assert finding.fixed_by == "rebalance"
    (finding,) = find_missing_classes("aa", "bb", needed=True)
    assert finding.fixed_by == "rechunk"
    (finding,) = find_missing_classes("aa", "bb", needed=True, rechunk=False)
    assert finding.fixed_by == ""
    # each is in two partitions, and yet two workers cannot share three partitions
    (finding,) = find_missing_classes("ab", "ac", "bc", homes=(0, 0, 1), needed=True)
    assert finding.fixed_by == "rechunk"


def test_a_worker_without_rows_lacks_all():
    """A worker that will need rows lacks all classes."""
    (finding,) = find_missing_classes("ab", "ab", homes=(0, 0), needed=True)
    assert "on worker 1 2 are missing" in finding.message


def test_fewer_rows_than_workers():
    """Rows cannot be shared; the message has a fix."""
    (finding,) = find_missing_classes(
        "aaa", "aab", "aba", homes=range(3), needed=True, workers=THREE
    )
    assert finding.severity is Severity.critical
    assert finding.message == (
        "class b of y has 2 rows, too few for 3 workers: Any training library needs "
        "every class on each worker"
    )
    assert finding.fixed_by == ""
    assert "name only 2 workers in workers=" in finding.remedy


def test_labels_of_an_unknown_estimator():
    """Labels are shared if possible; without an estimator nothing is refused."""
    (finding,) = find_missing_classes("aa", "bb", needed=None)
    assert finding.severity is Severity.warning
    assert finding.fixed_by == "rechunk"
    (finding,) = find_missing_classes(
        "aaa", "aab", "aba", homes=range(3), needed=None, workers=THREE
    )
    assert finding.severity is Severity.info
    assert finding.fixed_by == ""
    assert finding.message.startswith("label b of y has 2 rows, too few for 3 workers")
    assert "estimator=" in finding.remedy


def test_a_class_of_a_strange_name():
    """The name of a class comes from the data and may be any text."""
    (finding,) = find_missing_classes(["\x1b[2J", "b"], ["b"], needed=True)
    assert "\x1b" not in finding.message


# --- unshuffled_rows ------------------------------------------------------------------


def find_row_order(*partitions, homes=(0, 1), needed=None):
    contents = Contents(partitions=tuple(labels(np.asarray(p)) for p in partitions))
    rows = [len(p) for p in partitions]
    data = layout(rows, list(homes), ("X", "y"), contents=contents)
    seen = view((), [data])
    workload = replace(seen.goal.workload, random_order=needed)
    return list(
        unshuffled_rows(replace(seen, goal=replace(seen.goal, workload=workload)))
    )


CHANCE = np.random.default_rng(0)


@pytest.mark.parametrize(
    "draw",
    [
        lambda n: CHANCE.normal(size=n),
        lambda n: CHANCE.integers(0, 3, n),
        lambda n: CHANCE.choice(["a", "b"], n, p=[0.99, 0.01]),
        lambda n: CHANCE.integers(0, 5000, n),
        np.ones,
    ],
    ids=["numbers", "classes", "a rare text", "many numbers", "one value"],
)
def test_silent_where_order_is_random(draw):
    """For random order, any labels and few rows on a worker are fine."""
    for n in (1, 20, 3000):
        assert find_row_order(draw(3000), draw(n)) == []


@pytest.mark.parametrize("kind", ["f8", "i8", "U4"])
def test_sorted_labels(kind):
    """The workload sets the severity."""
    values = np.repeat([0, 1], 500).astype(kind)
    (finding,) = find_row_order(values[:500], values[500:])
    assert finding.severity is Severity.info
    assert finding.subject == (0, 1)
    assert finding.evidence["standard_deviations"] == 1.0
    (finding,) = find_row_order(values[:500], values[500:], needed=True)
    assert finding.severity is Severity.warning
    assert find_row_order(values[:500], values[500:], needed=False) == []


def test_partitions_that_differ_on_one_worker_are_mixed_there():
    """All rows of a worker count together."""
    low, high = np.zeros(500), np.ones(500)
    assert find_row_order(low, high, low, high, homes=(0, 0, 1, 1)) == []
    assert len(find_row_order(low, high, low, high, homes=(0, 1, 0, 1))) == 1


def test_what_cannot_be_told():
    """Labels of several columns, data that was not read, and data without holders."""
    assert find_row_order(np.ones((9, 2)), np.ones((9, 2))) == []
    assert list(unshuffled_rows(view((), [layout([10], [0])]))) == []
    assert list(unshuffled_rows(view())) == []
    assert find_row_order(np.zeros(500), np.ones(500), homes=(-1, 0)) == []


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_live(c, s, a, b):
    """Sorted labels on a real cluster."""
    X, y = c.persist([da.ones((4000, 2), chunks=1000), da.arange(4000, chunks=1000)])
    await wait([X, y])
    X, y = await clustertune.prepare(c, X, y)
    report = await clustertune.check(c, X, y, deep=True)
    assert {"unshuffled_rows"} <= {f.check for f in report.found}
    report = await clustertune.check(c, X, y, deep=True, estimator="xgboost")
    assert "unshuffled_rows" not in {f.check for f in report.found}
