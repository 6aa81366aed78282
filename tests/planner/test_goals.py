from __future__ import annotations

from dataclasses import replace

from clustertune import checks
from clustertune.core.model import Severity
from clustertune.planner import goals
from clustertune.planner.goals import (
    requested_partitions,
    unloaded_data,
)
from tests.builders import layout, view

# --- requested_partitions -------------------------------------------------------------


def find_other_number(rows, wanted):
    return list(
        requested_partitions(view(layouts=[layout(rows, None)], rechunk=wanted))
    )


def test_silent_without_a_number():
    """Other checks compare the number of partitions with the workers."""
    assert find_other_number([10, 10], True) == []
    assert find_other_number([10, 10], False) == []


def test_silent_without_data():
    """Without data nothing is cut."""
    assert list(requested_partitions(view(rechunk=3))) == []


def test_silent_when_there_are_so_many():
    """The number of even partitions is the requested one, or one for each row."""
    assert find_other_number([3, 3, 4], 3) == []
    assert find_other_number([1, 1], 5) == []


def test_others_are_found():
    """The number is too small or too large, or the partitions are uneven."""
    for rows in ([10], [2] * 5, [1, 9, 2]):
        (finding,) = find_other_number(rows, 3)
        assert finding.severity is Severity.info
        assert finding.fixed_by == "rechunk"
        assert finding.evidence == {"partitions": len(rows), "requested_partitions": 3}


# --- unloaded_data --------------------------------------------------------------------


def test_silent_for_loaded_data():
    """Data in memory is not loaded again."""
    assert list(unloaded_data(view())) == []
    assert list(unloaded_data(view(layouts=[layout([10], [0])]))) == []


def test_all_that_is_not_loaded_is_one_finding():
    """One call loads the collections of all layouts, so they are one finding."""
    lazy = layout([10], None, collections=["eval_set[0].X", "eval_set[0].y"])
    (finding,) = unloaded_data(view(layouts=[layout([10], [0]), lazy]))
    assert finding.severity is Severity.info
    assert finding.subject == ("eval_set[0].X", "eval_set[0].y")
    assert finding.message == (
        "eval_set[0].X and eval_set[0].y are not in memory, so every fit "
        "would load them again"
    )


def test_what_is_read_once_stays():
    """It stays lazy, unless loading is requested or some of it is in memory."""
    seen = view(layouts=[layout([10], None)])
    once = replace(seen.goal.workload, persist=False, title="Incremental")
    for persist, stays in ((None, True), (True, False)):
        goal = replace(seen.goal, workload=once, persist=persist)
        (finding,) = unloaded_data(replace(seen, goal=goal))
        stay = finding.message.endswith("stay lazy, since Incremental reads data once")
        assert stay is stays


# --- all goals ------------------------------------------------------------------------


def test_goals_that_are_not_met():
    """Findings have the names of their goals, as in reports."""
    seen = view((), [layout([10] * 4, [0] * 4)], rechunk=3)
    assert [f.check for f in goals.unmet(seen)] == ["requested_partitions"]
    assert goals.unmet(view((), [layout([10] * 4, [0] * 4)])) == ()
    assert goals.unmet(view()) == ()


def test_goals_are_no_findings_of_checks():
    """Goals are not problems of the cluster."""
    seen = view((), [layout([10] * 4, None)], rechunk=3)
    names = {f.check for f in goals.unmet(seen)}
    assert names == {"requested_partitions", "unloaded_data"}
    assert not names & {f.check for f in checks.run(seen)}
