from __future__ import annotations

from dataclasses import replace

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from distributed import wait

import clustertune
from clustertune.checks import ERRORS
from clustertune.checks.labels import (
    class_labels,
    differing_index,
    missing_classes,
    missing_estimator,
    query_groups,
    unshuffled_rows,
)
from clustertune.core.model import Contents, Severity, Unknown
from clustertune.errors import AlignmentError
from clustertune.remote.worker import content
from clustertune.remote.worker.content import labels
from tests.builders import layout, view, worker
from tests.in_process import gen_cluster

# --- missing_classes ------------------------------------------------------------------


THREE = [worker(i) for i in range(3)]


def find_missing_classes(*partitions, homes=(0, 1), needed=True, workers=(), **goal):
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


def test_silent_where_all_are_everywhere():
    """Classes are needed on every worker, not in every partition."""
    assert find_missing_classes("ab", "ba") == []
    assert find_missing_classes("a", "b", "b", "a", homes=(0, 0, 1, 1)) == []
    assert find_missing_classes(None, "a") == []
    assert find_missing_classes("aa", "a") == []
    assert find_missing_classes("aa", "bb", needed=False) == []
    assert list(missing_classes(view((), [layout([10], [0])]))) == []
    assert list(missing_classes(view())) == []


def test_silent_of_workers_that_do_not_train():
    """A paused worker gets no rows."""
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
    """The finding names an example."""
    (finding,) = find_missing_classes("abcabc", "aa")
    assert "on worker 1 2 are missing, for example b" in finding.message
    assert finding.severity is Severity.critical
    assert finding.subject == ("X", "y")
    assert finding.evidence == {"classes": 3, "workers": 1}
    assert ERRORS["missing_classes"] is AlignmentError


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
    assert "workers=[0, 1])`, which trains on 2 workers" in finding.remedy


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


# --- class_labels ---------------------------------------------------------------------


def find_class_labels(*partitions, numbered=True):
    """Return findings for partitions with these labels."""
    looked = [content.distinct(np.array([*p])) for p in partitions]
    data = layout(
        [len(p) for p in partitions],
        [0] * len(partitions),
        collections=("y",),
        contents=Contents(partitions=tuple(looked)),
    )
    seen = view([], [data])
    workload = replace(seen.goal.workload, numbered_classes=numbered)
    return list(class_labels(replace(seen, goal=replace(seen.goal, workload=workload))))


def test_silent_for_numbers_from_zero():
    """A partition may have some of the classes; other libraries take any labels."""
    assert find_class_labels([0, 1], [2, 2]) == []
    assert find_class_labels([1, 2], numbered=False) == []
    assert find_class_labels([0, 1], ["a", "b"]) == []  # texts are refused elsewhere


@pytest.mark.parametrize("numbers", [([1, 2], [2, 1]), ([0, 1], [3, 3]), ([-1], [1])])
def test_numbers_that_do_not_begin_at_zero_or_have_a_gap(numbers):
    """The fit would fail, so the finding is critical."""
    (finding,) = find_class_labels(*numbers)
    assert finding.severity is Severity.critical
    assert finding.subject == ("y",)
    assert finding.evidence == {"labels": len({*numbers[0], *numbers[1]})}


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
        lambda n: CHANCE.integers(0, 5000, n),
        np.ones,
    ],
    ids=["numbers", "classes", "many numbers", "one value"],
)
def test_silent_where_order_is_random(draw):
    """For random order, any labels and few rows on a worker are fine."""
    for n in (1, 20, 3000):
        assert find_row_order(draw(3000), draw(n)) == []


@pytest.mark.parametrize("kind", ["f8", "i8"])
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
    """Texts, several columns, data that was not read, and data without holders."""
    texts = np.repeat(["a", "b"], 500)
    assert find_row_order(texts[:500], texts[500:]) == []
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


# --- differing_index ------------------------------------------------------------------


def find_differing_index(X, y):
    """Return findings for the index values of each partition; None: an Array."""

    def looked(partitions):
        read = [pd.DataFrame(index=p) for p in partitions] if partitions else []
        return Contents(partitions=tuple(map(content.index, read)))

    data = layout([len(p) for p in X], [0] * len(X), ("X", "y"))
    own = [
        replace(m, kind=kind, contents=looked(p))
        for m, p, kind in zip(
            data.collections, (X, y), ("dataframe", "series"), strict=True
        )
    ]
    return list(differing_index(view((), [replace(data, collections=tuple(own))])))


@pytest.mark.parametrize(
    ("X", "y"),
    [
        pytest.param([[1, 2], [3]], [[1, 2], [3]], id="the same"),
        pytest.param([[0, 1], [0, 1]], [[0, 1], [0, 1]], id="repeated values"),
        pytest.param([[1, 2], [3]], [[7, 8], [9]], id="other values"),
        pytest.param([[1, 2], [3]], [[2], [1, 3]], id="other partitions"),
        pytest.param([[1, 2], [3]], None, id="an Array"),
    ],
)
def test_silent_where_no_index_shows_another_order(X, y):
    """Only the same values in another order show that rows are mixed up."""
    assert find_differing_index(X, y) == []
    assert list(differing_index(view())) == []


@pytest.mark.parametrize("y", [[[2, 1], [3]], [[3, 2], [1]]])
def test_an_index_in_another_order(y):
    """It may differ within a partition or across partitions."""
    (finding,) = find_differing_index([[1, 2], [3]], y)
    assert finding.severity is Severity.critical
    assert finding.subject == ("X", "y")
    assert "X.join(y" in finding.remedy


# --- query_groups ---------------------------------------------------------------------


def find_group_order(*partitions, needs=""):
    """Return findings for data with these group ids, one for each row."""
    looked = Contents(partitions=tuple(content.runs(np.array(p)) for p in partitions))
    data = layout([len(p) for p in partitions], [0] * len(partitions), ("X", "qid"))
    X, qid = data.collections
    data = replace(data, collections=(X, replace(qid, contents=looked)))
    seen = view((), [data])
    workload = replace(seen.goal.workload, groups=needs)
    return list(query_groups(replace(seen, goal=replace(seen.goal, workload=workload))))


@pytest.mark.parametrize(
    ("partitions", "needs"),
    [
        pytest.param([[3, 3], [3, 1]], "together", id="together across partitions"),
        pytest.param([[1, 1], [], [1, 2]], "together", id="an empty partition"),
        pytest.param([[2, 1]], "together", id="descending"),
        pytest.param([[], []], "together", id="no rows"),
    ],
)
def test_silent_where_groups_are_together(partitions, needs):
    """Groups have the order that the workload needs."""
    found = find_group_order(*partitions, needs=needs)
    assert not [f for f in found if "come back" in f.message]


def test_silent_where_nobody_looked():
    """There are no groups, or their values were not read."""
    assert list(query_groups(view())) == []
    assert list(query_groups(view((), [layout([5], [0], ("X", "qid"))]))) == []


def test_groups_that_come_back():
    """Groups may be unsorted within or across partitions; the remedy sorts them."""
    for partitions in ([[1, 2, 1]], [[1, 2], [1]]):
        (finding,) = find_group_order(*partitions, needs="together")
        assert finding.severity is Severity.critical
        assert finding.message == (
            "groups in qid come back after another group; Any training library would "
            "split them"
        )
        assert finding.subject == ("X", "qid")
        assert finding.fixed_by == ""
        assert "numpy.argsort(qid.compute()" in finding.remedy
    assert ERRORS["query_groups"] is AlignmentError
    for needs in ("anywhere", ""):
        assert find_group_order([3, 1], [3], needs=needs) == []


@pytest.mark.parametrize("needs", ["together", "anywhere"])
def test_rows_without_a_group(needs):
    """No order helps rows without a group, so the remedy does not sort."""
    finding, *_ = find_group_order([1.0, np.nan], [np.nan], needs=needs)
    assert finding.severity is Severity.critical
    assert finding.message.startswith("qid has 2 rows without a group")
    assert not finding.fixed_by
    assert "argsort" not in finding.remedy


# --- query_groups: partitions ---------------------------------------------------------


def ranked(*partitions, others=None, needs="together", **goal):
    """Return findings for data with these group ids; X may have other partitions."""
    looked = Contents(partitions=tuple(content.runs(np.array(p)) for p in partitions))
    rows = [len(p) for p in partitions]
    qid = layout(rows, [0] * len(rows), ("qid",), contents=looked).collections[0]
    others = rows if others is None else others
    X = layout(others, [0] * len(others), ("X",)).collections[0]
    data = replace(layout(rows, [0] * len(rows)), collections=(X, qid))
    seen = view((), [data], **goal)
    workload = replace(seen.goal.workload, groups=needs)
    return list(query_groups(replace(seen, goal=replace(seen.goal, workload=workload))))


def test_silent_where_partitions_end_with_groups():
    """Partitions of all collections end with groups.

    Unsorted groups are sorted or refused before they are cut.
    """
    assert ranked([1, 1], [], [2, 3]) == []
    assert ranked([1, 1], [2, 3], others=[2, 1, 1]) == []
    (finding,) = ranked([1, 2], [1])
    assert "come back" in finding.message


def test_groups_that_partitions_cut():
    """If the workload ranks, partitions are cut at groups, if cutting is allowed."""
    (finding,) = ranked([1, 1], [1, 2])
    assert finding.severity is Severity.critical
    assert finding.message == (
        "1 group of qid would be split, as a partition ends within it"
    )
    assert finding.subject == ("X", "qid")
    assert finding.fixed_by == "rechunk"
    (finding,) = ranked([1, 1], [2, 2], others=[1, 2, 1])
    assert finding.evidence == {"groups": 2}
    (finding,) = ranked([1, 1], [1, 2], rechunk=False)
    assert finding.fixed_by == ""
    assert ERRORS["query_groups"] is AlignmentError


# --- query_groups: memory -------------------------------------------------------------


MIB = 2**20


def find_large_groups(
    *partitions, needs="together", loaded=True, limit=1000 * MIB, row_bytes=MIB, **other
):
    """Return findings for data with these group ids, one for each row of a MiB."""
    looked = Contents(partitions=tuple(content.runs(np.array(p)) for p in partitions))
    homes = [0] * len(partitions) if loaded else None
    data = layout(
        [len(p) for p in partitions],
        homes,
        ("X", "qid"),
        row_bytes={"X": row_bytes - 8},
        contents=looked,
    )
    own = {"memory_limit": limit, "process": 0}
    seen = view([worker(0, **own), worker(1, **own, **other)], [data])
    workload = replace(seen.goal.workload, groups=needs)
    return list(query_groups(replace(seen, goal=replace(seen.goal, workload=workload))))


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({}, id="they fit"),
        pytest.param({"limit": 4 * MIB, "needs": ""}, id="groups may be cut"),
        pytest.param({"limit": 4 * MIB, "loaded": False}, id="not loaded"),
        pytest.param(
            {"limit": 4 * MIB, "facts": Unknown("it did not answer")},
            id="another worker may have enough memory",
        ),
    ],
)
def test_silent(how):
    """The largest group has room, or groups need not be whole."""
    assert find_large_groups([7] * 5, [8], **how) == []
    assert list(query_groups(view())) == []


def test_one_that_fits_no_worker():
    """Rows of all its runs count; its name comes from the data."""
    *_, finding = find_large_groups(["a\x07", "b"], ["a\x07"] * 3, limit=5 * MIB)
    assert finding.severity is Severity.critical
    assert "\x07" not in finding.message
    assert finding.message.endswith(
        "of qid has 4 rows (4.0 MiB), and no worker has more than 3.0 MiB free below "
        "the thresholds at which it spills"
    )
    assert finding.evidence == {"rows": 4, "bytes": 4 * MIB}
    assert finding.fixed_by == ""
    assert ERRORS["query_groups"] is AlignmentError


# --- missing_estimator ----------------------------------------------------------------


DATA = layout([10], [0])


@pytest.mark.parametrize(
    ("data", "goal"),
    [
        pytest.param([DATA], {}, id="it was named"),
        pytest.param([DATA], {"workload_chosen": False}, id="no library needs more"),
        pytest.param([], {"workload_chosen": False}, id="no data"),
    ],
)
def test_missing_estimator_silent(data, goal):
    """The estimator is known, or any layout suits."""
    imported = frozenset(("lightgbm",) if goal == {} else ())
    assert list(missing_estimator(view((), data, imported=imported, **goal))) == []


def test_lightgbm_is_there():
    """LightGBM is installed, may train, and needs more than other libraries."""
    imported = frozenset(("lightgbm",))
    (finding,) = missing_estimator(
        view((), [DATA], workload_chosen=False, imported=imported)
    )
    assert finding.severity is Severity.info
    assert finding.message.endswith("needs every class on every worker")
    assert "estimator=model" in finding.remedy
