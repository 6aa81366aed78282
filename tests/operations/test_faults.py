"""Workers and clients that are killed, frozen or interrupted during a plan.

Afterwards every row exists or was recomputed, settings are restored, and the lease is
free.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, futures_of, wait

import clustertune
from clustertune.remote.scheduler import mover
from tests.processes import (
    Call,
    empty_cluster,
    interrupted_when,
    local_workers,
    process,
    stop_stealing,
    until,
    workers_of,
)
from tests.remote.scheduler.test_faults_restart import be_patient, lose_clients_soon


def slowly(dask_scheduler: Any) -> None:
    """Limit the mover of a scheduler to two keys in flight, so that moves take time."""
    from types import FunctionType

    plugin = dask_scheduler.plugins["clustertune"]
    move_keys = type(plugin.jobs)._move.__globals__["move_keys"]
    assert isinstance(move_keys, FunctionType)
    policy = type(dask_scheduler.plugins["clustertune"]).move.__globals__["MovePolicy"]
    policy._send.__globals__["MAX_KEYS"] = 2


def quickly(dask_scheduler: Any) -> None:
    """Remove that limit; schedulers in one process share the shipped class."""
    policy = type(dask_scheduler.plugins["clustertune"]).move.__globals__["MovePolicy"]
    policy._send.__globals__["MAX_KEYS"] = mover.MAX_KEYS


def state(dask_scheduler: Any) -> dict[str, Any]:
    """Return the state that must be restored: memory manager, lease and jobs."""
    plugin = dask_scheduler.plugins["clustertune"]
    return {
        "manager": dask_scheduler.extensions["amm"].running,
        "holds": dask_scheduler._replica_lock._count,
        "lease": plugin.lease.holder() is not None,
        "jobs": [(j.work.done, j.work.total) for j in plugin.jobs.kept.values()],
        "ended": all(job.task.done() for job in plugin.jobs.kept.values()),
    }


def settled(client: Client) -> None:
    """Wait until the lease is free, and the memory manager runs as before."""
    wanted = {"manager": True, "holds": 0, "lease": False, "ended": True}
    until(lambda: wanted.items() <= client.run_on_scheduler(state).items())


def moving(client: Client) -> bool:
    """Whether the move of the 200 partitions has begun."""
    now = client.run_on_scheduler(state)
    last = () if now["ended"] else now["jobs"][-1:]  # the others are of former calls
    return any(2 < done < total and total > 100 for done, total in last)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Client of three workers that are killed, and come back."""
    with local_workers(3) as client:
        # installs the scheduler plugin
        clustertune.prepare(client, da.ones((30, 1), chunks=1))
        client.run_on_scheduler(stop_stealing)
        yield client


@pytest.fixture
def uneven(client: Client) -> Iterator[Any]:
    """Three workers; X and y in 200 partitions on the first.

    Dask can recompute them, and the mover is slow.
    """
    empty_cluster(client, 3)
    first = next(iter(workers_of(client)))
    client.run_on_scheduler(slowly)
    X = da.random.default_rng(1).random((20_000, 20), chunks=(100, 20))
    y = X[:, 0] * 2
    X, y = client.persist([X, y], workers=[first], allow_other_workers=True)
    wait([X, y])
    yield client, first, X, y
    client.run_on_scheduler(quickly)
    client.run(resume)


def pause(dask_worker: Any) -> None:
    from distributed.core import Status

    dask_worker.memory_manager.memory_pause_fraction = 1e-9
    dask_worker.status = Status.paused


def resume(dask_worker: Any) -> None:
    """Let the worker end the pause when it next looks at its memory."""
    dask_worker.memory_manager.memory_pause_fraction = 0.8


def assert_whole(client: Client, X: da.Array, y: da.Array) -> None:
    """Assert that every row exists with its label."""
    x, t = client.gather(client.compute([X, y]))
    again = da.random.default_rng(1).random((20_000, 20), chunks=(100, 20))
    assert np.array_equal(x, again.compute(scheduler="sync"))
    assert np.array_equal(t, x[:, 0] * 2)


@pytest.mark.parametrize("victim", ["source", "target"])
def test_a_worker_is_killed_in_mid_move(uneven: Any, victim: str) -> None:
    """Whichever worker is killed, prepare ends with all rows, paired and even, on the
    remaining workers.
    """
    client, first, X, y = uneven
    preparing = Call(clustertune.prepare, client, X, y)
    until(lambda: moving(client))
    pids = client.run(os.getpid)
    target = first if victim == "source" else next(w for w in pids if w != first)
    os.kill(pids[target], signal.SIGKILL)
    client.run_on_scheduler(quickly)  # the rest
    preparing.join(90)
    assert isinstance(preparing.result, clustertune.Prepared), preparing.result
    report = preparing.result.report
    assert any(s.status == "partly" for s in report.steps), report
    assert report.after[0].separated == 0
    assert report.after[0].imbalance <= 1.05
    assert_whole(client, X, y)
    settled(client)


def test_interrupted_in_mid_move(uneven: Any) -> None:
    """^C stops the move; every row exists, and the lease is free."""
    client, _, X, y = uneven
    with (
        interrupted_when(lambda: moving(client)),
        pytest.raises(KeyboardInterrupt),
    ):
        clustertune.prepare(client, X, y)
    settled(client)
    assert_whole(client, X, y)


def test_the_time_is_over_in_mid_move(uneven: Any) -> None:
    """A time limit stops the move; every row exists, and the lease is free."""
    client, _, X, y = uneven
    steps: Any = ()
    for seconds in (0.7, 1.4, 2.8):  # a busy machine needs longer until it moves any
        with pytest.raises(clustertune.errors.TimedOutError) as caught:
            clustertune.prepare(client, X, y, timeout=seconds)
        steps = caught.value.report.steps
        if steps:
            break
    assert steps[-1].status in ("failed", "partly", "skipped")  # how far the move was
    assert "keys" in str(caught.value).rpartition("moved ")[2]
    settled(client)
    assert_whole(client, X, y)


def test_a_paused_target_is_planned_around(uneven: Any) -> None:
    """A worker that pauses during a move gets no more keys; the others share them."""
    client, first, X, y = uneven
    preparing = Call(clustertune.prepare, client, X, y)
    until(lambda: moving(client))
    victim = next(w for w in workers_of(client) if w != first)
    client.run(pause, workers=[victim])
    client.run_on_scheduler(quickly)  # the rest
    preparing.join(90)
    assert isinstance(preparing.result, clustertune.Prepared), preparing.result
    by_rows = {w.worker: w.rows for w in preparing.result.report.after[0].workers}
    assert min(by_rows.values()) == 0
    assert max(by_rows.values()) <= 1.05 * 10_000
    assert_whole(client, X, y)
    settled(client)


SCRIPT = """
import os, signal, sys
import dask.array as da
from distributed import Client, wait
import clustertune
from tests.operations.test_faults import moving, slowly
from tests.processes import stop_stealing, until, workers_of
import threading

client = Client(sys.argv[1])
client.wait_for_workers(2)
first = next(iter(workers_of(client)))
clustertune.prepare(client, da.ones((20, 1), chunks=1))
client.run_on_scheduler(slowly)
client.run_on_scheduler(stop_stealing)
X = da.random.default_rng(1).random((20_000, 20), chunks=(100, 20))
X, y = client.persist([X, X[:, 0] * 2], workers=[first], allow_other_workers=True)
wait([X, y])
client.publish_dataset(X=X, y=y)

def die():
    until(lambda: moving(client))
    os.kill(os.getpid(), getattr(signal, sys.argv[2]))

threading.Thread(target=die, daemon=True).start()
clustertune.prepare(client, X, y)
"""


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_the_client_is_killed_or_frozen_in_mid_move(
    local_cluster: Any, how: str
) -> None:
    """Published data survives its client; the lease is free after its grace period.

    The next prepare completes the move.
    """
    _, client = local_cluster(2)
    address, root = client.scheduler.address, str(Path(__file__).parents[2])
    script = (sys.executable, "-c", SCRIPT, address, how)
    with process(*script, PYTHONPATH=root) as dying:
        try:
            until(lambda: _gone(dying.pid))
            assert client.run_on_scheduler(state)["jobs"]
            client.run_on_scheduler(lose_clients_soon)
            settled(client)
            client.run_on_scheduler(be_patient)
            client.run_on_scheduler(quickly)  # the rest
            X, y = client.get_dataset("X"), client.get_dataset("y")
            assert len(futures_of(X)) == 200
            assert_whole(client, X, y)
            p = clustertune.prepare(client, X, y)
            assert p.report.after[0].imbalance <= 1.05
            assert p.report.after[0].separated == 0
            assert_whole(client, X, y)
        finally:
            client.run_on_scheduler(quickly)  # its process is that of all tests
            if dying.poll() is None:
                os.killpg(dying.pid, signal.SIGKILL)


def _gone(pid: int) -> bool:
    """Whether a process has ended or is stopped."""
    import psutil

    try:
        status = psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return True
    return status in (psutil.STATUS_ZOMBIE, psutil.STATUS_STOPPED)


def test_the_mover_is_what_the_tests_make_slow() -> None:
    """The mover uses the limit that ``slowly`` sets."""
    assert "MAX_KEYS" in mover.MovePolicy._send.__globals__
