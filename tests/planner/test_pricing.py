"""Predicted bytes and seconds of moves and cuts, against the measured ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import psutil
import pytest
from dask.sizeof import sizeof
from distributed import wait
from distributed.utils_test import gen_cluster
from hypothesis import given
from hypothesis import strategies as st

import clustertune
from clustertune.core.model import Conversion, Flow, WorkerSnapshot
from clustertune.core.rules import CYCLE, KEYS_PER_CYCLE
from clustertune.monitor import inquiry, monitor
from clustertune.planner import layouts, pricing
from clustertune.remote.worker import probe
from tests.builders import collection, layout, snapshot, view, worker

TWO = [("127.0.0.1", 1)] * 2
ROWS = 40_000


def flow(
    into: list[int], out: list[int], made: list[int] | None = None, **counts: int
) -> Flow:
    arrays = [np.array(x) for x in (into, out, made or [0] * len(into))]
    return Flow(
        received=arrays[0],
        sent=arrays[1],
        produced=arrays[2],
        requests=5,
        **counts,
    )


def seconds(flow: Flow, *workers: WorkerSnapshot, **values: float | None) -> Any:
    """Predicted seconds; a request takes 0.1 s unless ``values`` differ."""
    known = {"round_trip": 0.1, "overhead": 0.01} | values
    return pricing.seconds(flow, view(snapshots=[snapshot(workers, **known)]))


# --- bytes ----------------------------------------------------------------------------


#: bytes: in older Pythons 0 takes less than other numbers, and a range begins with one
SLACK = sizeof(pd.RangeIndex(1, 1)) - sizeof(pd.RangeIndex(0, 0))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=5), st.data())
def test_rows_of_a_frame(counts: list[int], data: st.DataObject) -> None:
    """Sizes are those of Dask, for any rows of any partition."""
    frame = pd.DataFrame(np.zeros((sum(counts), 3)), columns=list("abc"))
    ends = np.cumsum(counts)
    partitions = [
        frame.iloc[end - n : end] for end, n in zip(ends, counts, strict=True)
    ]
    held = collection(
        "X",
        counts,
        [0] * len(counts),
        nbytes=np.array([sizeof(p) for p in partitions]),
        fixed=sizeof(frame.iloc[:0]),
    )
    key = data.draw(st.integers(0, len(counts) - 1))
    start = data.draw(st.integers(0, counts[key]))
    stop = data.draw(st.integers(start, counts[key]))
    found = layouts.part_bytes(held, np.array([key]), np.array([stop - start]))
    assert found[0] == pytest.approx(
        sizeof(partitions[key].iloc[start:stop]), abs=SLACK
    )


def test_rows_that_become_another_kind() -> None:
    """Other bytes of the partition do not travel; blocks share the new row."""
    numbers = Conversion(kind="array", dtype="float32", row_bytes=12)
    frame = collection("X", [10], [0], 24, fixed=100, conversion=numbers)
    assert layouts.part_bytes(frame, np.array([0]), np.array([4])).tolist() == [48]
    blocks = collection(
        "X",
        [10],
        [0, 0],
        keys=(("X", 0, 0), ("X", 0, 1)),
        column_blocks=2,
        nbytes=np.array([80, 160]),
        conversion=numbers,
    )
    found = layouts.part_bytes(blocks, np.array([0, 1]), np.array([10, 10]))
    assert found.tolist() == [40, 80]


@pytest.mark.parametrize("n", [1, 2, 3, 10])
def test_lists(n: int) -> None:
    """The size of a list of parts is that of Dask."""
    parts = [np.zeros(i) for i in range(n)]
    besides = sizeof(list(list(parts))) - sum(map(sizeof, parts))  # noqa: C414
    assert layouts.list_bytes(np.array([n])).tolist() == [besides]


# --- seconds --------------------------------------------------------------------------


def test_the_busiest_worker_decides() -> None:
    """Its larger sum of received or sent bytes counts, and its copied bytes."""
    slow = worker(1, bandwidth=50.0, cut_bandwidth=25.0, copying=100.0)
    fast = worker(0, bandwidth=100.0)
    assert seconds(flow([0, 100], [100, 0]), fast, slow) == 0.5 + 2
    assert seconds(flow([0, 100], [100, 0], [0, 200]), fast, slow) == 0.5 + 4
    # transfers of a cut have their own bandwidth
    cut = flow([0, 100], [100, 0], [0, 200], tasks=10)
    assert seconds(cut, fast, slow) == pytest.approx(0.5 + 0.1 + 6)


def test_requests_cycles_and_tasks_take_time() -> None:
    """Their seconds were measured; a cycle is a setting of the mover."""
    none = flow([0], [0], cycles=2, tasks=30)
    assert seconds(none, worker(0)) == pytest.approx(0.5 + 2 * CYCLE + 0.3)


def test_many_keys_take_many_cycles() -> None:
    """A cycle of the mover requests a limited number of keys."""
    n = 3 * KEYS_PER_CYCLE
    data = layout([1] * n, [0] * n)
    seen = view([worker(0), worker(1)], layouts=[data])
    few = pricing.of_moves(data, seen, np.zeros(n, dtype=np.int64))
    many = pricing.of_moves(data, seen, np.ones(n, dtype=np.int64))
    assert many.cycles == few.cycles + 3 * len(data.collections)


@pytest.mark.parametrize(
    ("missing", "needed"),
    [
        ("bandwidth", flow([0, 9], [9, 0])),
        ("copying", flow([0, 0], [0, 0], [9, 9])),
        ("copying", flow([0, 9], [9, 0])),
        ("overhead", flow([0, 0], [0, 0], tasks=1)),
        ("round_trip", flow([0, 0], [0, 0])),
    ],
)
def test_a_missing_speed(missing: str, needed: Flow) -> None:
    """The seconds are unknown, unless the step does not need this speed."""
    if missing in ("bandwidth", "copying"):
        some, values = [worker(0), worker(1, **{missing: 0.0})], {}
    else:
        some, values = [worker(0), worker(1)], {missing: None}
    assert seconds(needed, *some, **values) is None
    if missing != "round_trip":
        assert seconds(flow([0, 0], [0, 0]), *some, **values) == 0.5


def test_many_parts() -> None:
    """Their time is not measured, so the seconds are unknown if they may matter."""
    assert seconds(flow([0], [0], parts=20), worker(0)) == 0.5
    assert seconds(flow([0], [0], parts=30), worker(0)) is None


# --- live -----------------------------------------------------------------------------


async def on_one(client: Any, address: str, *given: Any) -> Any:
    """Loaded on one worker."""
    loaded = [client.persist(x, workers=[address]) for x in given]
    await wait(loaded)
    return loaded


@gen_cluster(client=True, nthreads=TWO)
async def test_predicted_bytes_are_those_that_travel(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    """Of cuts and moves of all kinds of numbers, to the byte."""
    numbers = np.arange(4.0 * ROWS).reshape(ROWS, 4)
    frame = pd.DataFrame(numbers, columns=list("abcd"))
    frame["e"] = np.arange(ROWS, dtype="i4")
    labels = da.from_array(numbers[:, 0], chunks=ROWS // 3 + 1)
    kinds: list[tuple[Any, Any, dict[str, Any]]] = [
        (da.from_array(numbers.astype("f4"), chunks=(ROWS, 4)), labels, {}),
        (da.from_array(numbers, chunks=(ROWS // 2, 4)), labels, {"rechunk": 7}),
        (da.from_array(numbers, chunks=(9000, 3)), labels, {"dtype": "f4"}),
        (dd.from_pandas(frame, npartitions=3), labels, {"rechunk": 4}),
        (dd.from_pandas(frame, npartitions=8), labels, {"to": "array"}),
        (
            dd.from_pandas(frame, npartitions=3),
            dd.from_pandas(frame["a"], npartitions=5),
            {"dtype": "f4", "rechunk": 5},
        ),
    ]
    for features, target, asked in kinds:
        X, y = await on_one(c, a.address, features, target)
        prepared = await clustertune.prepare(c, X, y, **asked)
        steps = prepared.report.steps
        assert {step.status for step in steps} == {"done"}
        assert sum(step.nbytes for step in steps) > 0
        found = [s.nbytes for s in steps]
        # of each of at most 16 parts
        slack = 16 * SLACK
        assert [s.predicted_bytes for s in steps] == pytest.approx(found, abs=slack)
        del X, y, prepared


@gen_cluster(client=True, nthreads=TWO)
async def test_bandwidth_is_that_of_real_transfers(
    c: Any, s: Any, a: Any, b: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is unknown on a new cluster; nothing is sent to measure it."""
    x = da.random.random((250_000, 8), chunks=(250_000, 8))
    (loaded,) = await on_one(c, a.address, x)
    estimate = await clustertune.prepare(c, loaded, rechunk=2, dry_run=True)
    (step,) = estimate.report.steps
    assert step.predicted_bytes > 0
    assert step.predicted_seconds is None
    assert not b.transfer_incoming_log
    await c.submit(lambda chunk: None, c.futures_of(loaded)[0], workers=[b.address])
    (sent,) = b.transfer_incoming_log
    monkeypatch.setattr(probe, "MIN_GROUPS", 1)  # others are tested in test_probe.py
    now, _ = await monitor.look(c, [])
    now = await inquiry.with_bandwidths(c, now)
    found = {w.address: w.bandwidth for w in now.workers}
    # a worker that has received nothing gets the value of the others
    assert found == dict.fromkeys((a.address, b.address), found[b.address])
    assert found[b.address] == pytest.approx(sent["total"] / sent["duration"], rel=0.01)
    later = sent["start"] + 100  # a transfer at another speed
    b.transfer_incoming_log.append(sent | {"start": later, "stop": later + 9})
    unsteady = await inquiry.with_bandwidths(c, now)
    assert {w.bandwidth for w in unsteady.workers} == {0.0}
    # other processes on this host do not matter here
    monkeypatch.setattr(probe, "STEADY", float("inf"))
    monkeypatch.setattr(psutil, "getloadavg", lambda: (0.0, 0.0, 0.0))
    now = await inquiry.with_copying(c, now)
    moved = flow([0, 10**6], [10**6, 0])
    assert pricing.seconds(moved, view(snapshots=[now])) is not None
    # no cut has sent parts yet
    cut = replace(moved, tasks=1)
    now = replace(now, overhead=0.001)
    assert pricing.seconds(cut, view(snapshots=[now])) is None
    await clustertune.prepare(c, loaded, rechunk=2, dry_run=True)
    assert len(b.transfer_incoming_log) == 2
