from __future__ import annotations

from dataclasses import replace

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pytest

from clustertune.checks.values import (
    differing_categories,
    differing_columns,
    non_numeric_columns,
    nonfinite_values,
    unreadable_values,
)
from clustertune.core.model import Contents, Severity
from clustertune.integrations import libraries
from tests.builders import layout, view

# --- unreadable_values ----------------------------------------------------------------


def test_a_partition_that_cannot_be_read():
    """The finding names the collection and the error; others have none."""
    one = layout([1, 1], [0, 1])
    X, y = one.collections
    X = replace(X, unreadable={1: "OSError('footer')"})
    (finding,) = unreadable_values(view([], [replace(one, collections=(X, y))]))
    assert finding.severity is Severity.critical
    assert finding.subject == ("X",)
    assert "partition 1: OSError('footer')" in finding.message
    assert not list(unreadable_values(view([], [one])))


def test_a_problem_of_two_collections_is_printed_once():
    """X has a problem more than y; each has the file of its partition."""
    one = layout([1, 1, 1], [0, 1, 0])
    X, y = one.collections
    files = ("a.csv", "b\x1b.csv", "c.csv")
    X = replace(X, unreadable={0: "OSError", 1: "OSError", 2: "KeyError"})
    X, y = replace(X, sources=files), replace(y, sources=files)
    y = replace(y, unreadable={0: "OSError", 1: "OSError"})
    found = list(unreadable_values(view([], [replace(one, collections=(X, y))])))
    both, alone = (finding.message.partition("missing: ")[2] for finding in found)
    assert both == r"partitions 0 and 1 (a.csv and b\x1b.csv): OSError"
    assert alone == "partition 2 (c.csv): KeyError"
    assert [finding.subject for finding in found] == [("X", "y"), ("X",)]


# --- nonfinite_values -----------------------------------------------------------------


def find_not_finite(label, *partitions, needs=True):
    contents = Contents(
        partitions=tuple({"nonfinite_values": list(p)} for p in partitions)
    )
    data = layout([10] * len(partitions), None, (label,), contents=contents)
    seen = view((), [data])
    workload = replace(seen.goal.workload, needs_labels=needs)
    return list(
        nonfinite_values(replace(seen, goal=replace(seen.goal, workload=workload)))
    )


def test_silent_where_values_are_good():
    """Features may be missing; unread values are unknown."""
    assert find_not_finite("X", (3, 0), (0, 0)) == []
    assert find_not_finite("y", (0, 0)) == []
    assert list(nonfinite_values(view((), [layout([10], [0])]))) == []


def test_what_no_fit_can_use():
    """Missing labels are worse than infinite features."""
    (finding,) = find_not_finite("X", (3, 1), (0, 1))
    assert finding.severity is Severity.warning
    assert (
        finding.message
        == "X has 2 infinite values, on which a fit fails or trains a useless model"
    )
    (finding,) = find_not_finite("y", (1, 0), (0, 0))
    assert finding.severity is Severity.critical
    assert (
        finding.message
        == "y has 1 missing label, on which a fit fails or trains a useless model"
    )
    (finding,) = find_not_finite("y", (0, 2))
    assert finding.severity is Severity.critical
    (finding,) = find_not_finite("y", (1, 0), needs=False)
    assert finding.severity is Severity.warning


# --- remedies of eval sets ------------------------------------------------------------


@pytest.mark.parametrize("kind", ["array", "dataframe"])
def test_remedies_of_eval_sets_leave_the_training_data(kind):
    """Their code changes the eval set, and neither X nor y."""
    X = da.from_array(np.array([[1.0], [np.inf], [3.0], [4.0]]), chunks=(2, 1))
    y = da.from_array(np.array([0.0, 1.0, np.nan, 1.0]), chunks=2)
    if kind == "dataframe":
        X = dd.from_dask_array(X, columns=["a"])
        y = dd.from_dask_array(y, columns="y")
    labels = ("eval_set[0].X", "eval_set[0].y")
    given = layout([2, 2], [0, 0], labels, label="eval_set[0]")
    counts = {labels[0]: (0, 1), labels[1]: (1, 0)}
    read = [
        replace(
            m,
            kind=kind if m.label == labels[0] or kind == "array" else "series",
            contents=Contents(partitions=({"nonfinite_values": counts[m.label]},)),
        )
        for m in given.collections
    ]
    given = replace(given, collections=tuple(read))
    training = layout([2, 2], [0, 0])
    names = {"X": 1, "y": 2, "eval_set": [(X, y)], "numpy": np, "dask": dask}
    for finding in nonfinite_values(view((), [training, given])):
        exec(finding.remedy.split("`")[1], names)
    assert (names["X"], names["y"]) == (1, 2)
    X, y = (np.asarray(x.compute()) for x in names["eval_set"][0])
    assert X.shape == (3, 1)
    assert np.isfinite(y).all()
    assert np.isinf(X).sum() == 0


# --- differing_categories -------------------------------------------------------------


def find_unlike_categories(*partitions):
    contents = Contents(partitions=tuple({"categories": p} for p in partitions))
    data = layout([10] * len(partitions), None, ("X",), contents=contents)
    return list(differing_categories(view((), [data])))


def test_silent_where_they_are_the_same():
    """All partitions have the same categories in the same order."""
    assert find_unlike_categories({"a": [2, "uv"]}, {"a": [2, "uv"]}) == []
    assert find_unlike_categories({}, {}) == []
    assert list(differing_categories(view((), [layout([10], [0])]))) == []


def test_other_lists():
    """The finding names the columns."""
    (finding,) = find_unlike_categories(
        {"a": [1, "u"], "b": [1, "1"]}, {"a": [1, "v"], "b": [1, "1"]}
    )
    assert "categorize(" in finding.remedy
    assert finding.severity is Severity.warning
    assert "different categories in 1 column: a" in finding.message


def test_values_are_no_categories():
    """No remedy makes categories of so many timestamps."""
    (finding,) = find_unlike_categories({"t": [148_000, "x"]}, {"t": [148_000, "y"]})
    assert "categorize(" not in finding.remedy
    assert '`X = X.drop(columns=["t"])`' in finding.remedy
    (finding,) = find_text_columns(**{"datetime64[ns]": ("t",)})
    assert "categorize(" not in finding.remedy


# --- differing_columns ----------------------------------------------------------------


def find_unlike_columns(*partitions):
    contents = Contents(partitions=tuple({"columns": p} for p in partitions))
    data = layout([10] * len(partitions), None, ("X",), contents=contents)
    return list(differing_columns(view((), [data])))


def test_partitions_with_the_columns_of_the_metadata():
    """Columns that were not read are unknown."""
    assert find_unlike_columns("", "") == []
    assert list(differing_columns(view((), [layout([10], [0])]))) == []


def test_partitions_with_other_columns():
    """The first is named, and only another order has a line that corrects it."""
    (finding,) = find_unlike_columns("", "has the order b, a", "has the order b, a")
    assert finding.message == (
        "2 partitions of X have other columns than its metadata: partition 1 has the "
        "order b, a"
    )
    assert "part[columns]" in finding.remedy
    (finding,) = find_unlike_columns("", "has the order b, a", "lacks b")
    assert finding.severity is Severity.critical
    assert "part[columns]" not in finding.remedy


# --- non_numeric_columns --------------------------------------------------------------


def find_text_columns(label="X", **types):
    data = layout([10], [0], (label,), kind="dataframe", types=types)
    return list(non_numeric_columns(view((), [data])))


def test_silent_for_numbers():
    """Numbers have no categories; labels are no features."""
    assert find_text_columns(float64=("a", "b"), bool=("c",), Int64=("d",)) == []
    assert find_text_columns(label="y", object=("label",)) == []


@pytest.mark.parametrize("dtype", ["object", "string", "datetime64[ns]", "str"])
def test_what_is_refused(dtype):
    """The finding comes before the error of a worker."""
    (finding,) = find_text_columns(**{dtype: ("city", "name")})
    assert finding.severity is Severity.warning
    assert "2 columns of type" in finding.message
    assert "(city and name)" in finding.message
    assert '.drop(columns=["city", "name"])' in finding.remedy
    (finding,) = find_text_columns(**{dtype: tuple(map(str, range(11)))})
    assert "(0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 1 more)" in finding.message
    assert "[c for c in X.columns if " in finding.remedy


def test_categories():
    """Some libraries accept categories; a model that does has no finding."""

    def found(workload):
        data = layout([10], [0], kind="dataframe", types={"category": ("city",)})
        return list(non_numeric_columns(view((), [data], workload=workload)))

    (finding,) = find_text_columns(label="eval_set[0].X", category=("city",))
    assert finding.severity is Severity.info
    model = pytest.importorskip("xgboost.dask").DaskXGBClassifier
    takes = model(enable_categorical=True)
    assert not found(libraries.choose(takes))
    assert not found(libraries.choose("lightgbm"))
    (finding,) = found(libraries.choose("xgboost"))
    assert "`enable_categorical=True`" in finding.remedy
