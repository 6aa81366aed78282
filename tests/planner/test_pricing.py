"""What moving and cutting is predicted to take, and what it did take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.sizeof import sizeof
from distributed import wait
from distributed.utils_test import gen_cluster
from hypothesis import given
from hypothesis import strategies as st

import clustertune
from clustertune import actions, checks
from clustertune.core.model import Conversion, Flow
from clustertune.monitor import monitor
from clustertune.planner import goals, layouts, pricing
from clustertune.planner.plan import make_plan
from clustertune.testing import collection, layout, view, worker

TWO = [("127.0.0.1", 1)] * 2
ROWS = 40_000


def flow(into: list[int], out: list[int], made: list[int] | None = None) -> Flow:
    arrays = [np.array(x) for x in (into, out, made or [0] * len(into))]
    return Flow(received=arrays[0], sent=arrays[1], produced=arrays[2], seconds=0.5)


# --- bytes ----------------------------------------------------------------------------


#: bytes: in older Pythons 0 takes less than other numbers, and a range begins with one
SLACK = sizeof(pd.RangeIndex(1, 1)) - sizeof(pd.RangeIndex(0, 0))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=5), st.data())
def test_rows_of_a_frame(counts: list[int], data: st.DataObject) -> None:
    """As Dask counts them, whatever rows of whatever partition."""
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
    """What they had besides stays behind; blocks of columns share the new row."""
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
    """A bundle of parts is a list made of a list, as Dask counts it."""
    parts = [np.zeros(i) for i in range(n)]
    besides = sizeof(list(list(parts))) - sum(map(sizeof, parts))  # noqa: C414
    assert layouts.list_bytes(np.array([n])).tolist() == [besides]


# --- seconds --------------------------------------------------------------------------


def test_the_busiest_worker_decides() -> None:
    """What it receives or sends, whichever is more, and what it copies."""
    some = [worker(0, bandwidth=100.0), worker(1, bandwidth=50.0)]
    copied = [0, int(2 * pricing.COPYING)]
    assert pricing.seconds(flow([0, 100], [100, 0]), view(some)) == 0.5 + 2
    assert pricing.seconds(flow([0, 100], [100, 0], copied), view(some)) == 0.5 + 4
    unknown = [some[0], replace(some[1], bandwidth=0.0)]
    assert pricing.seconds(flow([0, 100], [100, 0]), view(unknown)) is None
    # no bandwidth is needed where nothing travels
    assert pricing.seconds(flow([0, 0], [0, 0], copied), view(unknown)) == 0.5 + 2


def test_many_parts_take_time() -> None:
    """In addition to their bytes; parts of frames take more."""

    def priced(n_partitions: int, kind: str) -> float:
        partitions = layout([1000 // n_partitions] * n_partitions, [0] * n_partitions)
        collections = tuple(replace(m, kind=kind) for m in partitions.collections)
        seen = view(
            [worker(0), worker(1)], [replace(partitions, collections=collections)]
        )
        seen = replace(seen, goal=replace(seen.goal, rechunk=2))
        (step,) = make_plan(
            (*checks.run(seen), *goals.unmet(seen)), seen, actions.available()
        ).steps
        assert (step.action, step.price.seconds is None) == ("rechunk", False)
        return step.price.seconds or 0.0

    few, many, frames = priced(4, "array"), priced(500, "array"), priced(500, "series")
    assert many - few > 900 * pricing.ARRAY_PART
    assert frames - many == pytest.approx(
        1000 * (pricing.FRAME_PART - pricing.ARRAY_PART)
    )


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
    c: Any, s: Any, a: Any, b: Any
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
    now, _ = await monitor.look(c, [])
    now = await monitor.with_bandwidths(c, now)
    found = {w.address: w.bandwidth for w in now.workers}
    # a worker that has received nothing gets the value of the others
    assert found == dict.fromkeys((a.address, b.address), found[b.address])
    assert found[b.address] == pytest.approx(sent["total"] / sent["duration"], rel=0.01)
    estimate = await clustertune.prepare(c, loaded, rechunk=2, dry_run=True)
    assert estimate.report.steps[0].predicted_seconds is not None
    assert len(b.transfer_incoming_log) == 1
