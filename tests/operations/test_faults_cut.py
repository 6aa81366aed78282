"""Workers killed and calls interrupted during load and rechunk, with real processes.

A fault comes after a number of finished partitions. Every row exists afterwards.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from time import sleep
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, wait

import clustertune
from tests.operations.test_faults import pause, resume
from tests.processes import Call, empty_cluster, interrupted_when, local_workers, until

ROWS, COLUMNS = 300_000, 10
SEED = 7


@pytest.fixture(scope="module")
def three() -> Iterator[Client]:
    """Client of three workers that are killed, and come back."""
    with local_workers(3) as client:
        # installs the scheduler plugin
        clustertune.prepare(client, da.ones((30, 1), chunks=1))
        yield client


@pytest.fixture
def client(three: Client) -> Iterator[Client]:
    """Client of three workers without keys."""
    empty_cluster(three, 3)
    until(lambda: three.run_on_scheduler(bound)["all"] == 0)
    yield three
    three.run(resume)


def source() -> tuple[da.Array, da.Array]:
    """Return 24 MB that can be recomputed; labels contain their row numbers."""
    X = da.random.default_rng(SEED).random((ROWS, COLUMNS), chunks=(5_000, COLUMNS))
    return X, (X[:, 0] * 2).rechunk(7_100)


def slowly(block: Any) -> Any:
    sleep(0.02)
    return block


def given(client: Client, what: str) -> tuple[da.Array, da.Array]:
    """Return data in memory with different partitions, or lazy data."""
    X, y = source()
    if what == "load":
        return X.map_blocks(slowly), y.map_blocks(slowly)
    X, y = client.persist([X, y])
    wait([X, y])
    return X, y


def bound(dask_scheduler: Any) -> dict[str, int]:
    """Return the bound tasks of this plan: all, known to Dask, and finished."""
    plugin = dask_scheduler.plugins["clustertune"]
    ours = set().union(*(p for k in plugin.bindings.kept.values() for p in k.parts))
    found = [dask_scheduler.tasks[k] for k in ours if k in dask_scheduler.tasks]
    done = sum(ts.state in ("memory", "released", "forgotten") for ts in found)
    return {"all": len(ours), "known": len(found), "done": done}


def restricted(dask_scheduler: Any) -> int:
    return sum(bool(ts.worker_restrictions) for ts in dask_scheduler.tasks.values())


def at_work(client: Client, fraction: float) -> bool:
    """Whether this fraction of the bound tasks has finished."""
    now = client.run_on_scheduler(bound)
    return now["known"] > 0 and now["done"] >= fraction * now["all"]


def assert_whole(client: Client, X: da.Array, y: da.Array) -> None:
    """Assert that every row exists with its label, in aligned partitions."""
    expected, _ = source()
    assert X.chunks[0] == y.chunks[0]
    x, t = client.gather(client.compute([X, y]))
    assert np.array_equal(x, expected.compute(scheduler="sync"))
    assert np.array_equal(t, x[:, 0] * 2)


@pytest.mark.parametrize(
    ("what", "fraction", "victim"),
    [("rechunk", 0.0, 0), ("load", 0.2, 1), ("rechunk", 0.4, 2), ("load", 0.6, 0)],
)
def test_a_worker_is_killed(
    client: Client, what: str, fraction: float, victim: int
) -> None:
    """Whichever worker is killed, prepare ends with every row, paired and even."""
    X, y = given(client, what)
    pids = list(client.run(os.getpid).values())
    preparing = Call(clustertune.prepare, client, X, y)
    until(lambda: at_work(client, fraction))
    assert preparing.is_alive()
    os.kill(pids[victim], signal.SIGKILL)
    preparing.join(120)
    assert isinstance(preparing.result, clustertune.Prepared), preparing.result
    after = preparing.result.report.after[0]
    assert after.separated == 0
    assert_whole(client, *preparing.result)
    until(lambda: client.run_on_scheduler(restricted) == 0)


@pytest.mark.parametrize("what", ["rechunk", "load"])
def test_a_worker_pauses(client: Client, what: str) -> None:
    """Its tasks that have not begun run on the other workers."""
    X, y = given(client, what)
    preparing = Call(clustertune.prepare, client, X, y)
    until(lambda: at_work(client, 0.1))
    last = list(client.nthreads())[-1]
    client.run(pause, workers=[last])
    preparing.join(120)
    assert isinstance(preparing.result, clustertune.Prepared), preparing.result
    assert_whole(client, *preparing.result)
    until(lambda: client.run_on_scheduler(restricted) == 0)


@pytest.mark.parametrize("what", ["rechunk", "load"])
def test_interrupted(client: Client, what: str) -> None:
    """After ^C the new partitions are released; the given data is unchanged."""
    X, y = given(client, what)
    begun = partial(at_work, client, 0.0)
    with interrupted_when(begun), pytest.raises(KeyboardInterrupt):
        clustertune.prepare(client, X, y)
    until(lambda: client.run_on_scheduler(restricted) == 0)
    until(lambda: client.run_on_scheduler(bound)["all"] == 0)
    assert_whole(client, *clustertune.prepare(client, X, y))
