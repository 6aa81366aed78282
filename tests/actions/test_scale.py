"""Scaling up, and down without data loss."""

from __future__ import annotations

import sys
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, wait

import clustertune
from clustertune.actions import restart as restarting
from clustertune.core.model import HeldData, Retire
from clustertune.errors import NoWorkersError, RefusedError
from tests.builders import view, worker
from tests.in_process import gen_cluster
from tests.processes import process, until, workers_of


def burden(nbytes: int) -> HeldData:
    return HeldData(keys=1, unique=1, nbytes=nbytes, scattered=0, actors=0)


def test_who_goes() -> None:
    """Workers with the fewest unreplicated bytes leave."""
    some = [worker(i, held_data=burden(n)) for i, n in enumerate([50, 10, 40, 20])]
    first, second = restarting.retirements(view(some), 2)
    assert {first.args.id, second.args.id} == {1, 3}
    assert first.args.process_limits.keys() == {0, 2}
    assert isinstance(first.args, Retire)
    assert first.price.nbytes in (10, 20)
    assert list(restarting.retirements(view(some), 4)) == []
    assert list(restarting.propose((), view(some))) == []


def test_down_and_up(local_cluster: Any) -> None:
    """All data exists afterwards, and the cluster object has the right number."""
    local, client = local_cluster(4)
    X = client.persist(da.random.default_rng(0).random((4000, 100), chunks=(100, 100)))
    kept = client.scatter([np.full(9, i) for i in range(8)], hash=False)
    wait(X)
    plan = clustertune.scale(client, 2, dry_run=True)
    assert len(plan.steps) == 2
    assert len(local.workers) == 4
    report = clustertune.scale(client, 2, X)
    assert report.status == "done", str(report)
    assert all("lost 0" in step.details for step in report.steps)
    assert len(workers_of(client)) == 2
    assert len(local.worker_spec) == 2
    expected = da.random.default_rng(0).random((4000, 100), chunks=(100, 100))
    np.testing.assert_array_equal(X.compute(), expected.compute(scheduler="sync"))
    assert [int(v[0]) for v in client.gather(kept)] == list(range(8))
    assert clustertune.scale(client, 2).status == "fine"
    gone = {0, 1, 2, 3} - local.worker_spec.keys()
    assert clustertune.scale(client, 3).status == "done"
    assert len(workers_of(client)) == 3
    # of a name that is still closing none would be started
    assert not gone & local.worker_spec.keys()


def test_with_an_address_only(local_cluster: Any) -> None:
    """Workers can be removed. The error has the line that starts more."""
    local, _ = local_cluster(3)
    with Client(local.scheduler_address) as client:
        X = client.persist(da.ones((300, 10), chunks=(10, 10)) * 2)
        wait(X)
        with pytest.raises(
            NoWorkersError, match="only the scheduler's address"
        ) as error:
            clustertune.scale(client, 4)
        line = str(error.value).rpartition(": dask worker ")[2].split()
        with process(sys.executable, "-m", "dask", "worker", *line):
            client.wait_for_workers(4)
            workers = workers_of(client).values()
            assert len({(w["nthreads"], w["memory_limit"]) for w in workers}) == 1
            assert all(w["nanny"] for w in workers)
        until(lambda: len(workers_of(client)) == 3)
        assert clustertune.scale(client, 1).status == "done"
        assert len(workers_of(client)) == 1
        assert float(X.sum().compute()) == 6000.0


@gen_cluster(
    client=True,
    nthreads=[("127.0.0.1", 1)] * 2,
    worker_kwargs={"memory_limit": "8 GiB"},  # their process is that of all tests
)
async def test_workers_without_nannies(c: Any, s: Any, a: Any, b: Any) -> None:
    """They can be retired, because they need not start again.

    Workers with actors stay.
    """
    actor = await c.submit(dict, actor=True, workers=[b.address])
    partitions = await c.scatter([np.arange(10)] * 3, workers=[a.address], hash=False)
    report = await clustertune.scale(c, 1)
    assert report.status == "done", str(report)
    assert list(s.workers) == [b.address]
    assert len(await c.gather(partitions)) == 3
    del actor
    with pytest.raises(ValueError, match="n_workers=0"):
        await clustertune.scale(c, 0)


@gen_cluster(
    client=True,
    nthreads=[("127.0.0.1", 1)] * 2,
    worker_kwargs={"memory_limit": "8 GiB"},  # their process is that of all tests
)
async def test_actors_everywhere(c: Any, s: Any, a: Any, b: Any) -> None:
    """Actors on all workers are refused before any change."""
    actors = [await c.submit(dict, actor=True, workers=[w.address]) for w in (a, b)]
    with pytest.raises(RefusedError, match="1 actor, which cannot be moved"):
        await clustertune.scale(c, 1)
    assert len(s.workers) == 2
    del actors


@gen_cluster(
    client=True,
    nthreads=[("127.0.0.1", 1)] * 2,
    worker_kwargs={"memory_limit": "8 GiB"},  # their process is that of all tests
)
async def test_a_worker_that_is_not_closed(
    c: Any, s: Any, a: Any, b: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It continues with its keys."""
    partitions = await c.scatter([np.arange(10)] * 3, workers=[b.address], hash=False)
    await c.scatter([np.arange(1000)], workers=[b.address], hash=False)

    async def refuse(**_: Any) -> dict[str, Any]:
        return {}

    held = {w.address: set(w.data) for w in (a, b)}
    monkeypatch.setattr(s, "retire_workers", refuse)
    report = await clustertune.scale(c, 1)
    assert report.status == "left"
    assert "did not close it" in report.steps[0].reason
    assert {ws.status.name for ws in s.workers.values()} == {"running"}
    assert len(s.workers) == 2
    assert {w.address: set(w.data) & held[w.address] for w in (a, b)} == {
        w.address: set(w.data) for w in (a, b)
    }
    assert len(await c.gather(partitions)) == 3
