"""The cluster in memory acts like a live cluster, immediately."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clustertune.core.model import Load, Move, Moves, Result, View
from clustertune.errors import CapacityError, NoWorkersError
from tests.builders import layout, verify, view, worker
from tests.memory_cluster import MemoryCluster

ROWS = [10, 20, 30, 40]
ANYWHERE = Load(workers=(), targets={})


def at(i: int) -> str:
    return worker(i).address


def three(data: Any, **how: Any) -> MemoryCluster:
    return MemoryCluster(view([worker(i) for i in range(3)], [data]), **how)


def look(cluster: MemoryCluster) -> View:
    return asyncio.run(cluster.look(lambda *_: None))


def move(cluster: MemoryCluster, label: str, targets: dict[int, int]) -> Result:
    """Move some partitions of a collection to workers, by number."""
    keys = tuple((label, partition) for partition in targets)
    one = Move(label=label, keys=keys, targets=np.array(list(targets.values())))
    addresses = tuple(at(i) for i in range(3))
    moves = Moves(workers=addresses, process_limits=(0, 0, 0), moves=(one,))
    return asyncio.run(cluster.move(moves, lambda *_: None))


def homes(cluster: MemoryCluster, label: str) -> list[set[str]]:
    return cluster.homes[label]


# --- verify ---------------------------------------------------------------------------


def test_verify_accepts_a_safe_move() -> None:
    """A move that keeps pairs and data raises no error."""
    before = view((), [layout(ROWS, [0, 0, 0, 0])])
    verify(before, view((), [layout(ROWS, [0, 1, 0, 1])]))


def test_verify_names_everything_that_is_wrong() -> None:
    """One error lists all problems."""
    before = view((), [layout(ROWS, [0, 0, 0, 0])])
    after = view((), [layout(ROWS, {"X": [0, 0, 0, -1], "y": [0, 0, 1, 0]})])
    with pytest.raises(AssertionError, match=r"1 partition of X.*; .*2 pairs are sep"):
        verify(before, after)


# --- the cluster ----------------------------------------------------------------------


def test_a_look_changes_nothing() -> None:
    """Two looks return the given data."""
    data = layout(ROWS, [0, [0, 2], 1, -1])
    cluster = three(data)
    for _ in range(2):
        seen = look(cluster)
        assert [w.id for w in seen.now.workers] == [0, 1, 2]
        for now, was in zip(seen.layouts[0].collections, data.collections, strict=True):
            assert np.array_equal(now.holders, was.holders)
            assert np.array_equal(now.rows, was.rows)
    assert cluster.calls == []


def test_memory_follows_the_partitions() -> None:
    """Moved partitions move their bytes; other bytes stay."""
    data = layout([10, 10], [0, 0], ["X"], row_bytes={"X": 1})
    first = worker(0, managed=50, process=80)  # 30 of them are other keys
    cluster = MemoryCluster(view([first, *map(worker, (1, 2))], [data]))
    assert [w.managed for w in look(cluster).now.workers] == [50, 0, 0]
    before = [w.process for w in look(cluster).now.workers]
    move(cluster, "X", {0: 1})
    after = look(cluster).now.workers
    assert [w.managed for w in after] == [40, 10, 0]
    changes = [w.process - b for w, b in zip(after, before, strict=True)]
    assert changes == [-10, 10, 0]


def test_move() -> None:
    """A key ends on its target only; bytes count once, and only if they move."""
    cluster = three(layout(ROWS, [0, [0, 1], 1, 1]))
    result = move(cluster, "y", {0: 2, 1: 1, 2: 1})
    assert result == Result(nbytes=10 * 8, not_done="")
    assert homes(cluster, "y") == [{at(2)}, {at(1)}, {at(1)}, {at(1)}]
    assert homes(cluster, "X")[0] == {at(0)}
    assert (cluster.moved, cluster.calls) == (80, ["move 3"])


def test_move_to_a_worker_that_does_not_run() -> None:
    """Keys whose target is gone or paused stay, and the result names the reason."""
    cluster = three(layout(ROWS, [0, 0, 0, 0]))
    cluster.pause(at(1))
    cluster.kill(at(2))
    result = move(cluster, "X", {0: 1, 1: 2, 2: 0})
    assert result.nbytes == 0
    assert result.not_done == f"{at(1)} is gone or paused; {at(2)} is gone or paused"
    assert homes(cluster, "X") == [{at(0)}] * 4


def test_a_fault_comes_before_each_key() -> None:
    """A fault sees the cluster at that moment of the move."""
    moved: list[int] = []
    fault = lambda c: moved.append(c.moved)  # noqa: E731
    cluster = three(layout(ROWS, [0] * 4), fault=fault)
    move(cluster, "y", {0: 1, 1: 1, 2: 1})
    assert moved == [0, 80, 240]


def test_kill() -> None:
    """Partitions that only the killed worker held are recomputed on another worker."""
    cluster = three(layout(ROWS, [0, [0, 2], 1, -1]))
    cluster.kill(at(0))
    assert [w.id for w in look(cluster).now.workers] == [1, 2]
    assert homes(cluster, "X") == [{at(1)}, {at(2)}, {at(1)}, set()]


def test_pause() -> None:
    """A paused worker keeps its partitions."""
    cluster = three(layout(ROWS, [0] * 4))
    cluster.pause(at(0))
    seen = look(cluster)
    assert [w.status for w in seen.now.workers] == ["paused", "running", "running"]
    assert homes(cluster, "X") == [{at(0)}] * 4


def test_load() -> None:
    """Lazy data is loaded round robin or by ``arrives``; loaded data stays."""
    loaded = layout(ROWS, [2] * 4).collections[0]
    data = layout(ROWS, None)
    data = replace(data, collections=(loaded, data.collections[1]))
    for how, expected in (
        ({}, [0, 1, 2, 0]),
        ({"arrives": lambda n, w: np.full(n, w - 1)}, [2] * 4),
    ):
        cluster = three(data, **how)
        asyncio.run(cluster.load(ANYWHERE, lambda *_: None))
        assert homes(cluster, "y") == [{at(i)} for i in expected]
        assert homes(cluster, "X") == [{at(2)}] * 4
        assert cluster.calls == ["load"]


def test_load_on_named_workers() -> None:
    """Partitions are loaded on the named worker, or on another one if it is gone."""
    cluster = three(layout(ROWS, None))
    cluster.kill(at(2))
    targets = {"X": np.array([1, 0, 2, 1])}
    load = Load(workers=(at(0), at(1), at(2)), targets=targets)
    asyncio.run(cluster.load(load, lambda *_: None))
    assert homes(cluster, "X") == [{at(i)} for i in (1, 0, 0, 1)]


def test_load_refuses_data_that_does_not_fit() -> None:
    """No data is loaded in that case; data that fits is loaded."""
    cluster = three(layout(ROWS, None))
    total = 88 * sum(ROWS)
    for room in (total / 2, 0.0):
        load = replace(ANYWHERE, free_memory=np.array([room / 2] * 2))
        with pytest.raises(CapacityError, match="The loaded partitions are released"):
            asyncio.run(cluster.load(load, lambda *_: None))
        assert not any(m.loaded for m in look(cluster).layouts[0].collections)
    load = replace(ANYWHERE, free_memory=np.array([float(total)]))
    asyncio.run(cluster.load(load, lambda *_: None))
    assert all(m.loaded for m in look(cluster).layouts[0].collections)


def test_load_measures_rows_and_bytes() -> None:
    """Loaded data has its predicted bytes."""
    cluster = three(layout(ROWS, None))
    asyncio.run(cluster.load(ANYWHERE, lambda *_: None))
    X, y = look(cluster).layouts[0].collections
    assert X.loaded
    assert y.loaded
    assert X.nbytes.tolist() == [80 * n for n in ROWS]
    assert y.nbytes.tolist() == [8 * n for n in ROWS]


def test_scale() -> None:
    """New workers are added, also after a loss; other workers stay."""
    cluster = three(layout(ROWS, [0] * 4))
    cluster.kill(at(1))
    asyncio.run(cluster.scale(5, lambda *_: None))
    assert sorted(w.id for w in look(cluster).now.workers) == [0, 1, 2, 3, 4]
    assert homes(cluster, "X") == [{at(0)}] * 4


def test_scale_too_far() -> None:
    """A request beyond the limit raises an error, as on a live cluster."""
    cluster = three(layout(ROWS, [0] * 4), most=4)
    with pytest.raises(NoWorkersError, match="asked for 5 workers, 4 run"):
        asyncio.run(cluster.scale(5, lambda *_: None))
