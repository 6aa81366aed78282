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
from distributed.utils_test import async_poll_for, gen_cluster
from hypothesis import given
from hypothesis import strategies as st

import clustertune
from clustertune import actions, checks
from clustertune.core.model import Conversion, Flow
from clustertune.monitor import links, monitor
from clustertune.planner import layouts, pricing
from clustertune.planner.plan import make_plan
from clustertune.testing import MemoryCluster, layout, member, view, worker
from tests.test_loop import run

TWO = [("127.0.0.1", 1)] * 2
ROWS = 40_000


def flow(into: list[int], out: list[int], made: list[int] | None = None) -> Flow:
    arrays = [np.array(x) for x in (into, out, made or [0] * len(into))]
    return Flow(into=arrays[0], out=arrays[1], made=arrays[2], seconds=0.5)


# --- bytes ----------------------------------------------------------------------------


#: bytes: in older Pythons 0 takes less than other numbers, and a range begins with one
SLACK = sizeof(pd.RangeIndex(1, 1)) - sizeof(pd.RangeIndex(0, 0))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=5), st.data())
def test_rows_of_a_frame(counts: list[int], data: st.DataObject) -> None:
    """As Dask counts them, whatever rows of whatever piece."""
    frame = pd.DataFrame(np.zeros((sum(counts), 3)), columns=list("abc"))
    ends = np.cumsum(counts)
    pieces = [frame.iloc[end - n : end] for end, n in zip(ends, counts, strict=True)]
    held = member(
        "X",
        counts,
        [0] * len(counts),
        nbytes=np.array([sizeof(p) for p in pieces]),
        fixed=sizeof(frame.iloc[:0]),
    )
    key = data.draw(st.integers(0, len(counts) - 1))
    start = data.draw(st.integers(0, counts[key]))
    stop = data.draw(st.integers(start, counts[key]))
    found = layouts.part_bytes(held, np.array([key]), np.array([stop - start]))
    assert found[0] == pytest.approx(sizeof(pieces[key].iloc[start:stop]), abs=SLACK)


def test_rows_that_become_another_kind() -> None:
    """What they had besides stays behind; blocks of columns share the new row."""
    numbers = Conversion(kind="array", dtype="float32", row_bytes=12)
    frame = member("X", [10], [0], 24, fixed=100, conversion=numbers)
    assert layouts.part_bytes(frame, np.array([0]), np.array([4])).tolist() == [48]
    blocks = member(
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
    some = [worker(0, bandwidth=100.0), worker(1, bandwidth=50.0, copying=10.0)]
    assert pricing.seconds(flow([0, 100], [100, 0]), view(some)) == 0.5 + 2
    assert pricing.seconds(flow([0, 100], [100, 0], [0, 20]), view(some)) == 0.5 + 4
    unknown = [some[0], replace(some[1], bandwidth=0.0)]
    assert pricing.seconds(flow([0, 100], [100, 0]), view(unknown)) is None


def test_many_parts_take_time() -> None:
    """In addition to their bytes; parts of frames take more."""

    def priced(n_pieces: int, kind: str) -> float:
        pieces = layout([1000 // n_pieces] * n_pieces, [0] * n_pieces)
        members = tuple(replace(m, kind=kind) for m in pieces.members)
        seen = view([worker(0), worker(1)], [replace(pieces, members=members)])
        seen = replace(seen, goal=replace(seen.goal, rechunk=2))
        (step,) = make_plan(checks.run(seen), seen, actions.available()).steps
        assert (step.action, step.price.seconds is None) == ("rechunk", False)
        return step.price.seconds or 0.0

    few, many, frames = priced(4, "array"), priced(500, "array"), priced(500, "series")
    assert many - few > 900 * pricing.ARRAY_PART
    assert frames - many == pytest.approx(
        1000 * (pricing.FRAME_PART - pricing.ARRAY_PART)
    )


class Timed(MemoryCluster):
    """Says that workers are ten times as fast as they were taken for."""

    asked = 0

    async def speeds(self, view: Any, flows: Any) -> Any:
        self.asked += 1
        some = [replace(w, bandwidth=10 * w.bandwidth) for w in view.now.workers]
        return replace(view, snapshots=(replace(view.now, workers=tuple(some)),))


@pytest.mark.parametrize("count", [10**5, 10])
def test_speeds_are_asked_for_where_much_moves(count: int) -> None:
    """The step of the report has the measured value; a few bytes are not measured."""
    start = view([worker(0), worker(1)], [layout([count] * 8, [0] * 8)])
    (before,) = make_plan(checks.run(start), start, actions.available()).steps
    cluster = Timed(start)
    (outcome,) = run(cluster).outcomes
    assert before.price.seconds is not None
    assert outcome.step.price.seconds is not None
    assert cluster.asked == (count == 10**5)
    besides = before.price.flow.seconds if before.price.flow else 0
    expected = (before.price.seconds - besides) / (10 if cluster.asked else 1)
    assert outcome.step.price.seconds == pytest.approx(besides + expected)
    assert outcome.step.price.nbytes == before.price.nbytes


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
async def test_a_link_is_timed_once(c: Any, s: Any, a: Any, b: Any) -> None:
    """Without a trace in the scheduler, not while there is work, and not twice."""
    await monitor.open_door(c, await monitor.identify(c))
    now, _ = await monitor.look(c, [])
    order = [w.address for w in now.workers]
    large = 2 * pricing.SENDING
    into, out = ([large * (x == w.address) for x in order] for w in (b, a))
    # a sends most of all, and receives most, too
    flows = [flow(into, out, into), *2 * [flow(out, out)]]
    working = replace(now, workers=tuple(replace(w, processing=1) for w in now.workers))
    assert await monitor.speeds(c, working, flows) is working
    few = flow([n // 32 for n in into], [n // 32 for n in out])
    asked = await monitor.speeds(c, now, [few])
    assert [w.bandwidth for w in asked.workers] == [w.bandwidth for w in now.workers]
    assert not b.transfer_incoming_log  # for so little nothing is sent
    timed = await monitor.speeds(c, now, flows)
    sent = [t["total"] for t in b.transfer_incoming_log]
    assert sent == list(links.SIZES)
    usual = {w.bandwidth for w in now.workers}
    assert usual.isdisjoint(w.bandwidth for w in timed.workers)
    assert all(w.copying for w in timed.workers)
    for more in (flows, [few]):
        again = await monitor.speeds(c, now, more)
        assert usual.isdisjoint(w.bandwidth for w in again.workers)
    assert [t["total"] for t in b.transfer_incoming_log] == sent
    assert not a.transfer_incoming_log
    await async_poll_for(lambda: not c.futures and not s.tasks, timeout=10)
