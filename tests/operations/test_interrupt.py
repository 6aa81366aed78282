"""^C ends a call, also before its first step and during it."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import dask.array as da
import pytest
from distributed import Client, Nanny

import clustertune
from clustertune.actions.cluster import workers
from clustertune.actions.cluster.lease import Lease
from clustertune.actions.cluster.live import LiveCluster
from clustertune.integrations.managers import Adapter
from clustertune.monitor.connection import sync
from clustertune.operations.call import RunningCall
from clustertune.remote.scheduler import bindings
from clustertune.training.joblib_parallel import replicated
from tests.in_process import ONE, gen_cluster
from tests.processes import soon, until


@pytest.fixture
def client(local_cluster: Any) -> Client:
    client: Client = local_cluster(1, processes=False)[1]
    return client


def interrupted(
    monkeypatch: pytest.MonkeyPatch, client: Client, call: Callable[[], Any]
) -> None:
    """Raise KeyboardInterrupt in a call once its first step is in the event loop."""
    schedule = client.loop.add_callback

    def interrupt(callback: Any, *args: Any, **kwargs: Any) -> None:
        monkeypatch.undo()
        schedule(callback, *args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(client.loop, "add_callback", interrupt)
    with pytest.raises(KeyboardInterrupt):
        call()


def test_before_the_first_step(monkeypatch: Any, client: Client) -> None:
    """The call does not begin."""
    begun = []

    async def work() -> None:
        begun.append(True)

    stopped = threading.Event()
    client.loop.add_callback(stopped.wait, 30)  # the loop waits for ^C
    interrupted(monkeypatch, client, lambda: sync(client, work))
    stopped.set()
    client.sync(asyncio.sleep, 0)  # this call came later
    assert begun == []


def press() -> None:
    """Press ^C, which only the main thread gets."""
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


def test_during_the_call(client: Client) -> None:
    """It is cancelled once, so its cleanup ends."""
    states = []

    async def work() -> None:
        states.append("begun")
        press()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            states.append("clean")

    with pytest.raises(KeyboardInterrupt):
        sync(client, work)
    until(lambda: states == ["begun", "clean"])


def test_results_and_errors(client: Client) -> None:
    """They are those of the function."""

    async def divide(a: int, b: int) -> float:
        return a / b

    assert sync(client, divide, 3, b=2) == 1.5
    with pytest.raises(ZeroDivisionError):
        sync(client, divide, 3, b=0)


def test_a_hold_that_has_not_begun(monkeypatch: Any, client: Client) -> None:
    """The cluster is not held afterwards."""
    with clustertune.hold(client):
        plugin = client.cluster.scheduler.plugins["clustertune"]
        assert plugin.holds.active()

    def call() -> None:
        with clustertune.hold(client):
            raise AssertionError("the block began")

    interrupted(monkeypatch, client, call)
    clustertune.check(client)  # this call came later
    assert plugin.holds.active() == []


def test_a_hold_that_has_just_begun(client: Client) -> None:
    """It ends, as the block does not begin."""
    hold = clustertune.hold(client)
    begin = hold._begin

    async def interrupted_begin() -> None:
        await begin()
        press()

    hold._begin = interrupted_begin
    with pytest.raises(KeyboardInterrupt):
        hold.__enter__()
    plugin = client.cluster.scheduler.plugins["clustertune"]
    until(lambda: hold.measures is not None and not plugin.holds.active())


def test_an_end_that_was_not_even_requested(monkeypatch: Any, client: Client) -> None:
    """^C came before the end was in the event loop."""
    hold = clustertune.hold(client)
    hold.__enter__()
    plugin = client.cluster.scheduler.plugins["clustertune"]

    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(client, "sync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            hold.__exit__(None, None, None)
    until(lambda: not plugin.holds.active() and hold.measures is not None)


@pytest.mark.parametrize("begun", [False, True])
def test_the_end_of_a_hold(monkeypatch: Any, client: Client, begun: bool) -> None:
    """It ends also if the caller does not wait for it."""
    hold, pressed = clustertune.hold(client), threading.Event()
    end = hold._end

    async def interrupted_end() -> None:
        press()
        await asyncio.to_thread(pressed.wait, 30)
        await end()

    hold.__enter__()
    plugin = client.cluster.scheduler.plugins["clustertune"]
    assert plugin.holds.active()
    if begun:
        hold._end = interrupted_end
        with pytest.raises(KeyboardInterrupt):
            hold.__exit__(None, None, None)
        pressed.set()
    else:
        interrupted(monkeypatch, client, lambda: hold.__exit__(None, None, None))
    until(lambda: not plugin.holds.active() and hold.measures is not None)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_the_end_of_a_hold_in_a_cancelled_task(c: Any, s: Any, a: Any) -> None:
    """It ends, too."""
    hold = clustertune.hold(c)
    await hold.__aenter__()
    task = asyncio.ensure_future(hold.__aexit__(None, None, None))
    await asyncio.sleep(0)  # the task begins
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await soon(lambda: not s.plugins["clustertune"].holds.active())


def test_a_block_that_begins_again(client: Client) -> None:
    """Each one ends: several fits with the same prepared data."""
    X = da.ones((100, 2), chunks=(10, 2))
    prepared = clustertune.prepare(client, X, progress=False)
    plugin = client.cluster.scheduler.plugins["clustertune"]
    for _ in range(2):
        with prepared:
            assert plugin.holds.active()
        assert plugin.holds.active() == []


def test_the_end_of_replicas(monkeypatch: Any, client: Client) -> None:
    """^C does not skip the request to stop keeping them."""
    kept = replicated(client, list(client.nthreads()), [])
    kept.__enter__()
    plugin = client.cluster.scheduler.plugins[bindings.NAME]
    assert plugin.any()
    interrupted(monkeypatch, client, lambda: kept.__exit__(None, None, None))
    until(lambda: not plugin.any())


@pytest.mark.parametrize(
    ("action", "manager"),
    [("resize", ""), ("scale", ""), ("scale", "fails"), ("scale", "hangs")],
)
def test_the_cluster_object_learns_of_a_finished_job(
    monkeypatch: Any, action: str, manager: str
) -> None:
    """A ^C as the job ends: otherwise the object starts another worker.

    A failure of the object does not replace ^C, and the call ends without its answer.
    """
    updated: list[Any] = []

    async def retired(self: Any, id: Any) -> None:
        updated.append(id)
        if manager == "fails":
            raise OSError("no answer")
        if manager == "hangs":
            await asyncio.Event().wait()

    async def interrupted(self: Any, method: str, tell: Any, ended: Any, **asked: Any):
        ended[:] = [await job(self, method, tell, ended, **asked)]
        raise asyncio.CancelledError

    job = Lease.job
    monkeypatch.setattr(Lease, "job", interrupted)
    monkeypatch.setattr(workers, "MANAGER_SECONDS", 0.1)
    monkeypatch.setattr(Adapter, "retired", retired)
    monkeypatch.setattr(Adapter, "resized", lambda _, id, size: updated.append(id))

    @gen_cluster(client=True, Worker=Nanny, nthreads=[("127.0.0.1", 1)] * 2)
    async def test(c: Any, s: Any, *nannies: Any) -> None:
        calls = {
            "resize": partial(clustertune.resize_workers, c, nthreads=2, workers=[0]),
            "scale": partial(clustertune.scale, c, 1),
        }
        with pytest.raises(asyncio.CancelledError):
            await calls[action]()
        assert len(updated) == 1
        assert updated[0] in (0, 1)

    test()


@gen_cluster(client=True, nthreads=ONE)
async def test_after_the_time_limit(
    c: Any, s: Any, a: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ^C while the call cleans up is one: a playbook must not go on."""
    calls, explained = [], RunningCall._explained

    async def hangs(*_: Any) -> None:
        await asyncio.Event().wait()

    async def interrupted(self: RunningCall, error: BaseException) -> BaseException:
        calls.pop().cancel()
        return await explained(self, error)

    monkeypatch.setattr(LiveCluster, "look", hangs)
    monkeypatch.setattr(RunningCall, "_explained", interrupted)
    call = clustertune.prepare(c, da.ones((4, 2)), timeout=1, progress=False)
    calls.append(asyncio.ensure_future(call))
    with pytest.raises(asyncio.CancelledError):
        await calls[0]
    assert not calls
