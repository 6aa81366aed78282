"""Which workers train where the data cannot be shared out to all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clustertune.core.model import Contents, View
from clustertune.planner import trainers
from clustertune.remote.worker import content
from clustertune.testing import layout, view, worker


def seen(data: Any, workers: int = 3, needs: Any = None, **goal: Any) -> View:
    """A view of healthy workers with one thread each."""
    at = view([worker(i, nthreads=1) for i in range(workers)], [data], **goal)
    workload = replace(at.goal.workload, **(needs or {}))
    return replace(at, goal=replace(at.goal, workload=workload))


def ranked(*groups: str, label: str = "qid") -> Any:
    """Pieces with a row for each letter, which is its group."""
    looked = tuple(content.runs(np.array([*g])) for g in groups)
    data = layout([len(g) for g in groups], [0] * len(groups), ("X", "y", label))
    qid = replace(data.members[2], contents=Contents(pieces=looked))
    return replace(data, members=(*data.members[:2], qid))


@pytest.mark.parametrize(
    ("data", "needs", "goal", "expected"),
    [
        pytest.param(layout([2], [0]), {}, {}, {0, 1}, id="2 rows"),
        pytest.param(layout([2], None), {}, {}, {0, 1}, id="2 rows, not loaded"),
        pytest.param(layout([1, 1], [2, 1]), {}, {}, {1, 2}, id="where they are"),
        pytest.param(layout([5], [2]), {"min_rows": 2}, {}, {0, 2}, id="2 rows each"),
        pytest.param(layout([1], [1]), {"min_rows": 2}, {}, {1}, id="1 row"),
        pytest.param(layout([9], [1]), {}, {"rechunk": False}, {1}, id="not cut"),
        pytest.param(layout([9], [0]), {}, {"rechunk": 2}, {0, 1}, id="2 partitions"),
        pytest.param(layout([1], [0]), {}, {"rechunk": 2}, {0}, id="1 row in 2"),
        pytest.param(ranked("aab", "bb"), {"groups": "together"}, {}, {0, 1}, id="ab"),
        pytest.param(ranked("aba"), {"groups": "sorted"}, {}, {0, 1}, id="unsorted"),
        pytest.param(ranked("ab", "c"), {}, {}, {0, 1}, id="groups are only joined"),
    ],
)
def test_fewer_parts_than_workers(
    data: Any, needs: Any, goal: Any, expected: set[int]
) -> None:
    """As many train as can have some; another look chooses the same ones."""
    once = trainers.chosen(seen(data, needs=needs, **goal))
    assert once.trainers == expected
    assert {w.id for w in once.eligible_workers} == expected
    assert trainers.chosen(once).trainers == expected


@pytest.mark.parametrize(
    ("data", "needs"),
    [
        pytest.param(layout([1, 1, 1], [0] * 3), {}, id="as many rows"),
        pytest.param(layout([100], [0]), {}, id="one partition, which is cut"),
        pytest.param(layout([0], [0]), {}, id="no rows at all"),
        pytest.param(layout(None, [0]), {}, id="unknown rows"),
        pytest.param(layout([2], [0]), {"exact_rows": True}, id="all take each step"),
        pytest.param(ranked("abc"), {"groups": "together"}, id="as many groups"),
    ],
)
def test_all_train(data: Any, needs: Any) -> None:
    """Where all can have some, or it cannot be told, nothing is decided."""
    assert trainers.chosen(seen(data, needs=needs)).trainers is None


def test_no_data() -> None:
    """Without data all may train."""
    assert trainers.chosen(view()).trainers is None
