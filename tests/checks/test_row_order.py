from __future__ import annotations

from dataclasses import replace

import dask.array as da
import numpy as np
import pytest
from distributed import wait
from distributed.utils_test import gen_cluster

import clustertune
from clustertune.checks.row_order import find
from clustertune.core.model import Contents, Severity
from clustertune.remote.worker.content import labels
from clustertune.testing import layout, view


def found(*pieces, homes=(0, 1), needed=None):
    contents = Contents(pieces=tuple(labels(np.asarray(p)) for p in pieces))
    rows = [len(p) for p in pieces]
    data = layout(rows, list(homes), ("X", "y"), contents=contents)
    seen = view((), [data])
    workload = replace(seen.goal.workload, random_order=needed)
    return list(find(replace(seen, goal=replace(seen.goal, workload=workload))))


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
    """Whatever labels are, and however few rows a worker has."""
    for n in (1, 20, 3000):
        assert found(draw(3000), draw(n)) == []


@pytest.mark.parametrize("kind", ["f8", "i8", "U4"])
def test_sorted_labels(kind):
    """As bad as the library takes it."""
    values = np.repeat([0, 1], 500).astype(kind)
    (finding,) = found(values[:500], values[500:])
    assert finding.severity is Severity.info
    assert finding.subject == (0, 1)
    assert finding.evidence["shift"] == 1.0
    (finding,) = found(values[:500], values[500:], needed=True)
    assert finding.severity is Severity.warning
    assert found(values[:500], values[500:], needed=False) == []


def test_pieces_that_differ_on_one_worker_are_mixed_there():
    """What counts is what each worker holds."""
    low, high = np.zeros(500), np.ones(500)
    assert found(low, high, low, high, homes=(0, 0, 1, 1)) == []
    assert len(found(low, high, low, high, homes=(0, 1, 0, 1))) == 1


def test_what_cannot_be_told():
    """Labels of several columns; data that was not read, or lies nowhere."""
    assert found(np.ones((9, 2)), np.ones((9, 2))) == []
    assert list(find(view((), [layout([10], [0])]))) == []
    assert list(find(view())) == []
    assert found(np.zeros(500), np.ones(500), homes=(-1, 0)) == []


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_live(c, s, a, b):
    """Labels as they were written, sorted."""
    X, y = c.persist([da.ones((4000, 2), chunks=1000), da.arange(4000, chunks=1000)])
    await wait([X, y])
    X, y = await clustertune.prepare(c, X, y)
    report = await clustertune.check(c, X, y, deep=True)
    assert {"row_order"} <= {f.check for f in report.found}
    report = await clustertune.check(c, X, y, deep=True, workload="xgboost")
    assert "row_order" not in {f.check for f in report.found}
