"""Scaling up, and down without data loss."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, wait
from xgboost.dask import DaskXGBClassifier

import clustertune
from clustertune import checks, errors
from clustertune.actions import restart as restarting
from clustertune.actions import scale
from clustertune.actions.cluster import workers as on_workers
from clustertune.core import arguments
from clustertune.core.model import Bounds, HeldData, Profile, Retire, Unknown
from clustertune.errors import NoWorkersError, RefusedError
from clustertune.planner import forecast
from tests.builders import layout, snapshot, view, worker
from tests.in_process import gen_cluster
from tests.processes import process, soon, until, workers_of


def burden(nbytes: int) -> HeldData:
    return HeldData(keys=1, unique=1, nbytes=nbytes, scattered=0, actors=0)


def test_who_goes() -> None:
    """Workers with the fewest unreplicated bytes leave."""
    some = [worker(i, held_data=burden(n)) for i, n in enumerate([50, 10, 40, 20])]
    first, second = scale.retirements(view(some), 2)
    assert {first.args.id, second.args.id} == {1, 3}
    assert first.args.process_limits.keys() == {0, 2}
    assert isinstance(first.args, Retire)
    assert first.price.nbytes in (10, 20)
    assert list(scale.retirements(view(some), 4)) == []
    assert list(restarting.propose((), view(some))) == []


def test_a_running_worker_stays() -> None:
    """A paused worker with more bytes leaves, since it would run no task."""
    some = [worker(i, held_data=burden(n)) for i, n in enumerate([50, 0, 10])]
    some[0] = replace(some[0], status="paused")
    found = view(some)
    assert {s.args.id for s in scale.retirements(found, 1)} == {0, 1}
    assert {s.args.id for s in scale.retirements(found, 2)} == {1}
    paused = view([replace(w, status="paused") for w in some])
    assert {s.args.id for s in scale.retirements(paused, 2)} == {1}


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

    Workers with actors stay. Actors on all workers are refused before any change.
    """
    actors = [await c.submit(dict, actor=True, workers=[w.address]) for w in (a, b)]
    with pytest.raises(RefusedError, match="1 actor, which cannot be moved"):
        await clustertune.scale(c, 1)
    assert len(s.workers) == 2
    del actors[0]
    await soon(lambda: not s.workers[a.address].actors)
    partitions = await c.scatter([np.arange(10)] * 3, workers=[a.address], hash=False)
    report = await clustertune.scale(c, 1)
    assert report.status == "done", str(report)
    assert list(s.workers) == [b.address]
    assert len(await c.gather(partitions)) == 3
    del actors
    with pytest.raises(ValueError, match="n_workers=0"):
        await clustertune.scale(c, 0)


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


# --- adaptive clusters ----------------------------------------------------------------


TRIPLE = Profile(name="t", title="T", memory_multiple={8: 3.0})


def seen(adaptive: Any = None, n: int = 2, **goal: Any) -> Any:
    return view(
        snapshots=[snapshot([worker(i) for i in range(n)], adaptive=adaptive)], **goal
    )


def proposed(found: Any) -> list[Any]:
    return list(scale.propose_bounds(checks.run(found), found))


# --- bounds (pure) --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("adaptive", "wanted", "bounds"),
    [
        (None, 4, None),
        (Unknown("the gateway knows"), 4, None),
        ((0, 8), None, None),
        ((4, 8), 4, None),
        ((0, 8), 4, (4, 8)),
        ((0, 3), 4, (4, 4)),
        ((0, math.inf), 4, (4, math.inf)),
    ],
)
def test_bounds(adaptive: Any, wanted: int | None, bounds: Any) -> None:
    """The minimum becomes the requested number, and the maximum at least that."""
    steps = proposed(seen(adaptive, n_workers=wanted))
    assert [(s.args.minimum, s.args.maximum) for s in steps] == [bounds] * bool(bounds)


def test_exactly() -> None:
    """``scale`` sets both bounds to the requested number."""
    (step,) = scale.exact_bounds(seen((0, 8)), 3)
    assert step.args == Bounds(minimum=3, maximum=3)
    assert "to 3 workers instead of 0 to 8" in step.summary
    assert list(scale.exact_bounds(seen((3, 3)), 3)) == []
    assert list(scale.exact_bounds(seen(None), 3)) == []


# --- as many as memory needs (pure) ---------------------------------------------------


def small(id: int, **fields: Any) -> Any:
    """Return a worker of 1000 bytes, of which a fit may use 700."""
    return worker(id, **{"memory_limit": 1000, "process": 100, **fields})


def fit(nbytes: int, *workers: Any) -> Any:
    widths = {"X": nbytes // 4}
    data = layout([1] * 4, [0] * 4, collections=["X"], row_bytes=widths)
    return view(workers, [data], workload=TRIPLE, n_workers="fit")


@pytest.mark.parametrize(("nbytes", "n"), [(40, 1), (200, 1), (204, 2), (1200, 6)])
def test_as_many_as_memory_needs(nbytes: int, n: int) -> None:
    """A fit needs three times the data, and each worker has 600 bytes; none are
    removed.
    """
    found = fit(nbytes, small(0, managed=nbytes, process=100 + nbytes))
    assert forecast.workers_needed(found) == n
    assert forecast.wanted_workers(found) == n
    steps = list(scale.propose(checks.run(found), found))
    assert [s.args for s in steps] == [n] * (n > 1)


def test_no_number_would_do() -> None:
    """If no worker has free memory for the fit, nothing is scaled, with a finding."""
    found = fit(400, small(0, process=1200))
    assert forecast.workers_needed(found) is None
    assert forecast.wanted_workers(found) is None
    assert any("more workers are not enough" in f.message for f in checks.run(found))


def test_it_is_not_guessed() -> None:
    """Data of unknown size is loaded before the number is chosen."""
    lazy = layout(None, None, collections=["X"], total_bytes=None)
    found = view([small(0)], [lazy], workload=TRIPLE, n_workers="fit")
    assert isinstance(forecast.workers_needed(found), Unknown)
    assert forecast.wanted_workers(found) is None


@pytest.mark.parametrize("wrong", [0, "many", 1.5, True])
def test_what_is_no_number(wrong: Any) -> None:
    with pytest.raises(ValueError, match='a whole number of at least 1, "fit"'):
        arguments.workers_wanted("n_workers", wrong)


# --- live -----------------------------------------------------------------------------


def there(client: Any) -> int:
    return len(workers_of(client))


def test_bounds_are_put_back(local_cluster: Any) -> None:
    """In the block the workers stay; after it adaptive scaling has its bounds again."""
    cluster, client = local_cluster(1, processes=False)
    cluster.adapt(minimum=1, maximum=2, interval="100ms", wait_count=2)
    X = da.random.default_rng(0).random((1000, 10), chunks=(100, 10))
    with clustertune.prepare(client, X, n_workers=3) as prepared:
        (X,) = prepared
        assert (cluster._adaptive.minimum, cluster._adaptive.maximum) == (3, 3)
        assert there(client) == 3
        assert [s.action for s in prepared.report.steps][:2] == ["adapt", "scale"]
        assert "cluster.adapt(minimum=1, maximum=2)" in prepared.report.steps[0].details
        total = X.sum().compute()
    assert (cluster._adaptive.minimum, cluster._adaptive.maximum) == (1, 2)
    until(lambda: there(client) <= 2)
    np.testing.assert_allclose(X.sum().compute(), total)


def test_bounds_are_put_back_where_it_fails(
    local_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, client = local_cluster(1)
    cluster.adapt(minimum=1, maximum=2)
    cluster.new_spec["options"]["no_such_option"] = 1
    X = da.ones((10, 2), chunks=2)
    with pytest.raises(errors.NoWorkersError, match="requested 2 workers, 1 run"):
        clustertune.prepare(client, X, n_workers=2, timeout="6 s")
    assert (cluster._adaptive.minimum, cluster._adaptive.maximum) == (1, 2)


def test_bounds_that_cannot_be_put_back(
    local_cluster: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning reports them, and the error of the block is raised unchanged."""
    cluster, client = local_cluster(1, processes=False)
    cluster.adapt(minimum=1, maximum=1)

    def fit() -> None:
        with clustertune.prepare(client, da.ones((10, 2), chunks=2), n_workers=2):
            cluster._adaptive.stop()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fit()
    assert "cluster.adapt(minimum=1, maximum=1)" in caplog.text


@pytest.mark.parametrize("persisted", [False, True])
def test_an_adaptive_cluster_without_workers(
    local_cluster: Any, *, persisted: bool
) -> None:
    """A fit starts the workers that it needs; the bounds are the same afterwards."""
    cluster, client = local_cluster(0, memory_limit="1GiB")
    cluster.adapt(minimum=0, maximum=2, interval="100ms", wait_count=20)
    X = da.random.default_rng(0).random((1000, 4), chunks=(100, 4))
    y = (X[:, 0] > 0.5).astype(int)
    plan = clustertune.prepare(client, X, y, dry_run=True).report
    assert [s.action for s in plan.steps] == ["adapt"]
    if persisted:
        X, y = client.persist([X, y])
    model = DaskXGBClassifier(n_estimators=2)
    clustertune.fit(client, model, X, y)
    assert (cluster._adaptive.minimum, cluster._adaptive.maximum) == (0, 2)
    assert len(model.classes_) == 2


def test_the_maximum_is_kept() -> None:
    """Without ``n_workers``, a call raises only the minimum of adaptive scaling."""
    full = fit(1200, small(0, managed=1200, process=1300))
    now = replace(full.now, adaptive=(0, 3))
    goal = replace(full.goal, n_workers="adaptive")
    assert forecast.wanted_workers(replace(full, snapshots=(now,), goal=goal)) == 3
    empty = replace(now, workers=())
    assert forecast.wanted_workers(replace(full, snapshots=(empty,), goal=goal)) == 1


def test_n_workers_of_a_cluster_without_workers(local_cluster: Any) -> None:
    """They start first, also for data that waits for a worker."""
    cluster, client = local_cluster(0, processes=False)
    X = client.persist(da.ones((1000, 4), chunks=(100, 4)) * 2)
    with pytest.raises(errors.NoWorkersError, match=r"client\.cluster\.scale\(1\)"):
        clustertune.prepare(client, X)
    prepared = clustertune.prepare(client, X, n_workers=2)
    assert prepared.report.status == "done"
    assert next(s.action for s in prepared.report.steps) == "scale"
    assert there(client) == 2
    assert float(prepared.X.sum().compute()) == 8000.0


@gen_cluster(client=True, nthreads=[])
async def test_no_way_to_start_workers(c: Any, s: Any) -> None:
    """The error comes at once, with the line that starts workers."""
    X = da.ones((10, 2), chunks=2)
    for wanted, missing, line in (
        (None, "missing 1 worker,", ""),
        (2, "missing 2 workers,", " --nworkers 2"),
    ):
        expected = f"no running worker.* {missing} .*: dask worker {s.address}{line}$"
        with pytest.raises(errors.NoWorkersError, match=expected):
            await clustertune.prepare(c, X, n_workers=wanted)
    assert not s.tasks


@pytest.mark.parametrize("processes", [True, False])
def test_scale_of_an_adaptive_cluster(local_cluster: Any, processes: bool) -> None:
    """The cluster scales up and down to the number, and stays there."""
    cluster, client = local_cluster(1, processes=processes)
    cluster.adapt(minimum=1, maximum=4, interval="100ms", wait_count=2)
    assert clustertune.scale(client, 3).status == "done"
    X = client.persist(da.random.default_rng(0).random((1000, 10), chunks=(100, 10)))
    wait(X)
    report = clustertune.scale(client, 2, X)
    assert report.status == "done", str(report)
    assert "lost 0" in report.steps[1].details
    assert there(client) == 2
    expected = da.random.default_rng(0).random((1000, 10), chunks=(100, 10)).sum()
    np.testing.assert_allclose(X.sum().compute(), expected.compute(scheduler="sync"))


def test_prepare_to_fit(local_cluster: Any) -> None:
    """XGBoost needs 1.4 times the bytes of float64; workers start until that fits."""
    _, client = local_cluster(1, memory_limit="700MB")
    X = da.random.random((1_000_000, 20), chunks=(50_000, 20))  # 160 MB
    prepared = clustertune.prepare(client, X, n_workers="fit", estimator="xgboost")
    assert there(client) > 1
    assert not [f for f in prepared.report.left if f.check == "fit_memory"]


@pytest.mark.parametrize("timeout", ["50ms", "1s"])
def test_a_retired_worker_starts_again(
    local_cluster: Any, monkeypatch: pytest.MonkeyPatch, timeout: str
) -> None:
    """Dask starts it only if the cluster scales, and not before a timeout."""
    monkeypatch.setattr(on_workers, "LOOKS", 5)
    with dask.config.set({"distributed.deploy.lost-worker-timeout": timeout}):
        cluster, client = local_cluster(2)
        client.retire_workers(names=[1])
        if timeout == "50ms":
            until(lambda: set(cluster.workers) == {0})
        until(lambda: cluster.observed == {0})
        report = clustertune.scale(client, 2, timeout="30 s")
    assert report.status == "done", str(report)
    until(lambda: cluster.observed == {0, 1})


def test_not_more_than_needed_start_again(
    local_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dask forgets the retired workers only while the call waits."""
    monkeypatch.setattr(on_workers, "LOOKS", 5)
    with dask.config.set({"distributed.deploy.lost-worker-timeout": "1s"}):
        cluster, client = local_cluster(4)
        client.retire_workers(names=[2, 3])
        assert clustertune.scale(client, 3, timeout="30 s").status == "done"
        assert len(cluster.worker_spec) == there(client) == 3


def test_a_retired_worker_stays_away(local_cluster: Any) -> None:
    """A call for fewer workers does not start it again."""
    with dask.config.set({"distributed.deploy.lost-worker-timeout": "50ms"}):
        cluster, client = local_cluster(4)
        client.retire_workers(names=[2, 3])
        until(lambda: set(cluster.workers) == {0, 1})
        # one of the two is enough
        assert clustertune.scale(client, 3, timeout="30 s").status == "done"
        until(lambda: set(cluster.workers) == set(cluster.worker_spec))
        assert len(cluster.worker_spec) == there(client) == 3
        client.retire_workers(names=[0])
        until(lambda: len(cluster.workers) == 2)
        assert clustertune.scale(client, 1).status == "done"
        assert len(cluster.worker_spec) == there(client) == 1
