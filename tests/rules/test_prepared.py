"""Rules for every library: groups larger than a worker, and layouts that change."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, futures_of

import clustertune
from clustertune.errors import AlignmentError, VerificationError
from tests.processes import until, workers_of
from tests.rules.conftest import two_workers
from tests.rules.placing import cut, placed, workers

pytestmark = pytest.mark.slow

A, B = 0, 1  # workers
LIMIT = 640 * 2**20  # bytes of memory of a worker


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Small workers, whose data Dask's ``rebalance`` balances at any difference."""
    names = {"measure": "managed", "sender-min": 0, "sender-recipient-gap": 0}
    rebalance = {
        f"distributed.worker.memory.rebalance.{name}": value
        for name, value in names.items()
    }
    with dask.config.set(rebalance), two_workers(LIMIT) as client:
        yield client


def transitions(client: Any) -> int:
    """Return the number of state changes of a task."""
    return client.run_on_scheduler(
        lambda dask_scheduler: dask_scheduler.transition_counter
    )


def test_what_has_moved_is_named(client: Any) -> None:
    """Dask's ``rebalance`` separates pairs, and a killed worker loses partitions.

    Verification finds both with one request and no task.
    """
    X = np.random.default_rng(1).random((2000, 20))
    dX, dy = (placed(client, cut(x, *[250] * 8), [A] * 8) for x in (X, X[:, 0]))
    p = clustertune.prepare(client, dX, dy)
    before = transitions(client)
    assert p.verify().status == "fine"
    assert transitions(client) == before

    first, _ = workers(client)
    ballast = client.scatter(np.zeros(10_000_000), workers=[first])
    client.rebalance(futures_of(p.X))
    with pytest.raises(VerificationError, match="pairs are separated") as error:
        p.verify()
    assert "of the training data moved, for example number" in str(error.value)
    del ballast

    p = clustertune.prepare(client, dX, dy)
    assert p.verify().status == "fine"
    os.kill(client.run(os.getpid)[first], signal.SIGKILL)
    until(lambda: first not in workers_of(client))
    with pytest.raises(VerificationError, match="from worker 0 to worker 1"):
        p.verify()
    client.wait_for_workers(2)


def test_whole_groups_before_even_rows(client: Any) -> None:
    """A group with most of the rows makes workers uneven, but is not cut."""
    qid = np.repeat(np.arange(3), [850, 50, 100])
    X = np.random.default_rng(1).random((1000, 4))
    given = [placed(client, cut(x, *[250] * 4), (A, A, B, B)) for x in (X, X[:, 0])]
    dq = placed(client, cut(qid, *[250] * 4), (A, A, B, B))
    p = clustertune.prepare(client, *given, qid=dq, estimator="lightgbm_rank")
    assert np.array_equal(p.qid.compute(), qid)
    assert p.X.chunks[0][0] == 850
    assert {s.rows for s in p.report.after[0].workers} == {850, 150}


def test_a_group_that_fits_no_worker(client: Any) -> None:
    """A group is needed on one worker, so the memory of other workers does not help.

    Workers that rank its halves would raise no error.
    """
    # in MiB: that group has 420, half of all is 220, and a worker has 448 below the
    # line at which it spills, of which its process takes some 100
    n = 115_000
    X = da.random.default_rng(1).random((n, 500), chunks=(5_000, 500))
    y = da.zeros(n, chunks=5_000, dtype="i8")
    qid = (da.arange(n, chunks=5_000) >= 110_000).astype("i8")
    with pytest.raises(AlignmentError, match="the group 0 of qid has 110,000 rows"):
        clustertune.prepare(client, X, y, qid=qid, estimator="lightgbm_rank")
