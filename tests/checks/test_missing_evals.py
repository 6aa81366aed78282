from __future__ import annotations

from dataclasses import replace

from clustertune.checks.missing_evals import find
from clustertune.testing import layout, view, worker

CATEGORIES = {"category": (1, "c")}


def found(rows, homes, types=CATEGORIES, everywhere=True):
    """Of an eval set beside training data on two workers."""
    training = layout([10, 10], [0, 1])
    evals = layout(rows, homes, ("eval_set[0].X", "eval_set[0].y"))
    first, *others = (replace(m, types=types) for m in evals.members)
    evals = replace(evals, members=(first, *others))
    seen = view([worker("a"), worker("b")], [training, evals])
    workload = replace(seen.goal.workload, eval_everywhere=everywhere)
    return list(find(replace(seen, goal=replace(seen.goal, workload=workload))))


def test_silent_where_all_have_rows():
    """And where there are no categories, or the library does not care."""
    assert found([5, 5], [0, 1]) == []
    assert found([10], [0], types={"float64": (3, "a")}) == []
    assert found([10], [0], everywhere=False) == []


def test_a_worker_without_rows():
    """Pieces are moved where there are enough with rows, else cut if there are rows."""
    (finding,) = found([5, 5], [0, 0])
    assert "on worker b: " in finding.message
    assert finding.subject == ("eval_set[0].X", "eval_set[0].y")
    assert finding.fixed_by == "rebalance"
    assert found([10, 0], [0, 1])[0].fixed_by == "rechunk"
    assert found([1], [0])[0].fixed_by == ""
