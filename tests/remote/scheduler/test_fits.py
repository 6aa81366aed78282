"""The training tasks of a fit on the scheduler."""

from __future__ import annotations

import threading
from time import time
from typing import Any

import pytest
from distributed import Client, Worker, wait
from distributed.core import Status

from clustertune.monitor import monitor
from clustertune.remote.scheduler.plugin import NAME
from tests.in_process import gen_cluster
from tests.processes import soon

gate = threading.Event()


def train() -> None:
    gate.wait(100)


def train_with(result: Any) -> None:
    gate.wait(100)


def pick(results: Any) -> Any:
    return results


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 3)
async def test_what_needs_a_training_task_is_cancelled_too(c, s, a, b, d):
    """As in XGBoost; otherwise the training task goes on, and is not stuck."""
    await monitor.install_plugin(c, await monitor.identify(c))
    fits = s.plugins[NAME].fits
    gate.clear()
    fn = c.submit(train, key="fn-1", workers=[a.address], allow_other_workers=True)
    between = c.submit(pick, fn, key="bag-1")
    wanted = c.submit(pick, between, key="finalize-1")
    other = c.submit(pick, 1, key="other-1")
    # another fit of this client, on a worker that is no member
    fn_2 = c.submit(train, key="fn-2", workers=[d.address], allow_other_workers=True)
    apart = c.submit(pick, fn_2, key="finalize-2")
    # what needs a result is no part of a training
    done = c.submit(pick, 1, key="fn-3", workers=[a.address], allow_other_workers=True)
    await wait([other, done])
    where = {"workers": [b.address], "allow_other_workers": True}
    needs = c.submit(train_with, done, key="predict-3", **where)
    await soon(lambda: a.state.executing_count)
    between.release()
    try:
        await soon(lambda: b.state.executing_count and d.state.executing_count)
        fits.begin("fit", c.id, None, [(a.address, 0), (b.address, 1)])
        fits.running["fit"].lose(a.address, "left")
        fits.answer("fit", "cancel", reason="a test")
        await soon(lambda: wanted.cancelled() and fn.cancelled())
        answer = fits.answer("fit", "stuck", tasks={a.address: ["fn-1"]})
        assert answer == {"stuck": [a.address], "shared": [], "more": False}
        assert await other == 1
        assert not fn_2.cancelled()
        assert s.tasks["fn-2"].processing_on.address == d.address
        gate.set()
        assert await apart is None
        assert await needs is None
    finally:
        gate.set()


@gen_cluster(client=True)
async def test_a_scheduler_that_was_suspended_loses_no_member(c, s, a, b):
    """It first reads the heartbeats that wait; a worker that stays silent is lost."""
    await monitor.install_plugin(c, await monitor.identify(c))
    fits = s.plugins[NAME].fits
    fits.begin("fit", c.id, None, [(a.address, 0), (b.address, 1)])
    fit, passed = fits.running["fit"], 0.0
    for ws in s.workers.values():
        ws.last_seen = time()
    with pytest.MonkeyPatch.context() as patch:
        # the plugin has its own copy of the module
        patch.setitem(fits._look.__globals__, "time", lambda: time() + passed)
        for seconds in (0.0, 0.5, 3600.0, 3600.5):
            passed = seconds
            fits._look(fit)
            assert not fit.lost
        s.workers[a.address].last_seen = time() + 3601
        step = 5 / 2
        while passed < 3600 + 10 + 2 * step:
            passed += step
            fits._look(fit)
        assert list(fit.lost) == [b.address]
        # it answers again
        s.workers[b.address].last_seen = time() + passed
        fits._look(fit)
        assert not fit.lost
        passed += 61
        for _ in "12345":
            passed += 4
            fits._look(fit)
        assert {x["how"] for x in fit.lost.values()} == {"silent"}
        fits.answer("fit", "cancel", reason="a test", finished=True)
        s.workers[b.address].last_seen = time() + passed
        fits._look(fit)
        assert fit.lost[a.address]["how"] == "silent"
        assert fit.lost[b.address]["how"] == "back"


@gen_cluster(client=True)
async def test_a_hold_that_is_taken_again_keeps_its_fit(c, s, a, b):
    """A client that was silent for a while finds its checkpoint and its losses."""
    await monitor.install_plugin(c, await monitor.identify(c))
    plugin = s.plugins[NAME]
    fit = {"rounds": 9, "workers": [(a.address, 0), (b.address, 1)]}
    hold = {"owner": c.id, "label": "a fit", "token": "name", "hold": True, "fit": fit}
    plugin.acquire(**hold)
    plugin.fits.answer("name", "note", round=4, model=b"model")
    plugin.fits.running["name"].lose(b.address, "leaving")
    plugin.fits.answer("name", "cancel", reason="a test", finished=True)
    # a plan could wait for its stuck threads, and the one that frees them for the plan
    assert plugin.holds.of_others("another client")["label"] == "a fit"
    plugin.fits.answer("name", "freed")
    assert plugin.holds.of_others("another client") is None
    plugin.holds.forget(c.id, "it was silent")
    assert not plugin.lease.is_held("name")
    plugin._forget_client("another client")
    plugin.acquire(**hold)
    assert plugin.fits.answer("name", "checkpoint")["checkpoint"]["rounds"] == 4
    assert list(plugin.fits.running["name"].lost) == [b.address]
    assert plugin.holds.of_others("another client") is None
    plugin._forget_client(c.id)
    assert plugin.fits.answer("name", "checkpoint") == {"ended": True}


@gen_cluster(client=True, nthreads=[("127.0.0.1", 2)] * 2)
async def test_another_fit_in_the_same_hold_goes_on(c, s, a, b):
    """A loss ends the tasks that trained at that moment, not those of the next try."""
    await monitor.install_plugin(c, await monitor.identify(c))
    fits = s.plugins[NAME].fits
    gate.clear()
    fits.begin("hold", c.id, None, [])

    def trains(name: str, worker: Any) -> Any:
        key = f"_train_part-{name}"
        return c.submit(train, key=key, workers=[worker.address], pure=False)

    mine, torn = trains("mine", a), trains("torn", b)
    try:
        await soon(lambda: len(fits.training) == 2)
        await b.close(executor_wait=False)
        await soon(lambda: fits.running["hold"].lost)
        again = trains("again", a)
        await soon(lambda: "_train_part-again" in fits.training)
        answer = await fits._state(fits.running["hold"], -1, 0)
        assert [x["address"] for x in answer["lost"]] == [b.address]
        fits.answer("hold", "cancel", reason="a test")
        await soon(lambda: mine.cancelled() and torn.cancelled())
        assert s.tasks["_train_part-again"].state == "processing"
        gate.set()
        assert await again is None
    finally:
        gate.set()


@gen_cluster(client=True)
async def test_a_training_task_that_another_worker_takes_over_at_once(c, s, a, b):
    """Its fit has lost a worker: its peers wait for the former one."""
    await monitor.install_plugin(c, await monitor.identify(c))
    fits = s.plugins[NAME].fits
    gate.clear()
    fits.begin("hold", c.id, None, [])
    where = {"workers": [a.address], "allow_other_workers": True}
    future = c.submit(train, key="fn-1", **where)
    try:
        await soon(lambda: fits.training)
        await a.close(executor_wait=False)
        await soon(lambda: fits.running["hold"].lost)
        assert list(fits.running["hold"].lost) == [a.address]
        fits.answer("hold", "cancel", reason="a test")
        await soon(future.cancelled)
    finally:
        gate.set()


@gen_cluster(client=True)
async def test_a_training_that_begins_after_the_loss(c, s, a, b):
    """The hold protects the fit until there is something to cancel."""
    await monitor.install_plugin(c, await monitor.identify(c))
    plugin = s.plugins[NAME]
    fits, owner = plugin.fits, c.id
    fit = {"rounds": 9, "workers": [(a.address, 0), (b.address, 1)]}
    plugin.acquire(owner=owner, label="a fit", token="name", hold=True, fit=fit)
    lost = b.address
    await b.close()
    await soon(lambda: fits.running["name"].lost)
    gate.clear()
    where = {"workers": [a.address], "allow_other_workers": True}
    without = c.submit(train, key="fn-1", **where)
    await soon(lambda: fits.training)
    answer = fits.answer("name", "cancel", reason="a test")
    assert answer == {"cancelled": 0, "over": False}
    assert plugin.holds.of_others("another client") is not None
    gate.set()
    assert await without is None
    # LightGBM's first tasks may run nowhere else
    bound = c.submit(train, key="_acquire_port-1", workers=[lost])
    await soon(lambda: "_acquire_port-1" in s.tasks)
    answer = fits.answer("name", "cancel", reason="a test")
    assert answer == {"cancelled": 1, "over": True}
    assert plugin.holds.of_others("another client") is not None
    fits.answer("name", "freed")
    assert plugin.holds.of_others("another client") is None
    await soon(bound.cancelled)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 3)
async def test_a_worker_that_trains_without_data(c, s, a, b, d):
    """A library may move rows, so its fit is lost with a worker that is no member."""
    await monitor.install_plugin(c, await monitor.identify(c))
    fits = s.plugins[NAME].fits
    gate.clear()
    fits.begin("fit", c.id, None, [(a.address, 0)])
    async with Client(s.address, asynchronous=True) as client:
        fits.begin("theirs", client.id, None, [(a.address, 0)])

        async def lose(worker: Any) -> Any:
            """Lose a worker that trains, and cancel the fit; return what needs it."""
            where = {"workers": [worker.address], "allow_other_workers": True}
            key = f"fn-{worker.name}"
            wanted = c.submit(pick, c.submit(train, key=key, **where))
            await soon(lambda: key in fits.training)
            await worker.close(executor_wait=False)
            await soon(lambda: worker.address not in s.workers)
            fits.answer("fit", "cancel", reason="a test")
            return wanted

        def lost() -> dict[str, set[str]]:
            return {name: set(fit.lost) for name, fit in fits.running.items()}

        try:
            wanted = await lose(b)
            assert lost() == {"fit": {b.address}, "theirs": set()}
            await soon(wanted.cancelled)
            # of several fits of one client, only those with the worker have lost it
            fits.begin("other", c.id, None, [(d.address, 2)])
            await lose(d)
            apart = {"theirs": set(), "other": {d.address}}
            assert lost() == {"fit": {b.address}} | apart
        finally:
            gate.set()


@gen_cluster(client=True)
async def test_the_same_address_is_lost_again(c, s, a, b):
    """A nanny with a fixed port starts its next process there."""
    await monitor.install_plugin(c, await monitor.identify(c))
    fits = s.plugins[NAME].fits
    gate.clear()
    fits.begin("hold", c.id, None, [])
    numbers, worker = [], b
    try:
        for name in "12":
            future = c.submit(train, key=f"_train_part-{name}", workers=[b.address])
            await soon(lambda n=name: f"_train_part-{n}" in fits.training)
            before = fits.running["hold"].version
            await worker.close(executor_wait=False)
            await soon(lambda v=before: fits.running["hold"].version > v)
            (lost,) = (await fits._state(fits.running["hold"], -1, 0))["lost"]
            assert lost["address"] == b.address
            numbers.append(lost["number"])
            fits.answer("hold", "cancel", reason="a test")
            await soon(future.cancelled)
            port = int(b.address.rpartition(":")[2])
            worker = await Worker(s.address, nthreads=1, host="127.0.0.1", port=port)
    finally:
        gate.set()
        await worker.close()
    assert numbers[0] != numbers[1]


@gen_cluster(client=True)
async def test_a_member_that_does_not_retire_after_all(c, s, a, b):
    """As when Dask finds no place for its data; the fit goes on."""
    await monitor.install_plugin(c, await monitor.identify(c))
    fits = s.plugins[NAME].fits
    fits.begin("fit", c.id, None, [(a.address, 0), (b.address, 1)])
    fit, ws = fits.running["fit"], s.workers[b.address]
    for status, lost in (
        (Status.closing_gracefully, ["leaving"]),
        (Status.running, []),
    ):
        ws.status = status
        fits._look(fit)
        assert [x["how"] for x in fit.lost.values()] == lost


@gen_cluster(client=True)
async def test_a_member_that_has_left_before_the_fit_begins(c, s, a, b):
    """Its loss has the id that its client knows."""
    await monitor.install_plugin(c, await monitor.identify(c))
    fits, gone = s.plugins[NAME].fits, "tcp://127.0.0.1:1"
    fits.begin("fit", c.id, None, [(a.address, "w-0"), (gone, "w-1")])
    (lost,) = fits.running["fit"].lost.values()
    assert lost == {"worker": "w-1", "address": gone, "how": "left", "number": 1}


@gen_cluster(client=True)
async def test_a_restart_that_frees_threads_is_no_loss(c, s, a, b):
    """Another client, whose fit has lost the same worker, may restart the others."""
    await monitor.install_plugin(c, await monitor.identify(c))
    fits = s.plugins[NAME].fits
    # the former processes of a worker that is there, and of one that died
    restarted, died = "tcp://127.0.0.1:1", "tcp://127.0.0.1:2"
    fits.begin("fit", c.id, None, [(b.address, 1)])
    fit = fits.running["fit"]
    fit.members |= {restarted: 0, died: 7}
    fits.answer("fit", "cancel", reason="a test", finished=True)
    for address in (restarted, died):
        fits.worker_removed(address)
    assert [*fit.lost] == [died]
    fit.cancelled = False  # its training was on that process
    fits.worker_removed(restarted)
    assert [*fit.lost] == [died, restarted]


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 3)
async def test_one_fit_at_a_time_begins_its_training(c, s, a, b, d):
    """Else each of two trainings may get some of the threads, and wait for the rest."""
    await monitor.install_plugin(c, await monitor.identify(c))
    fits = s.plugins[NAME].fits
    members = [(a.address, 0), (b.address, 1)]
    gate.clear()
    async with Client(s.address, asynchronous=True) as other:
        fits.begin("first", c.id, 10, members)
        fits.begin("second", other.id, 10, members)
        fits.begin("same client", c.id, 10, members)
        fits.begin("elsewhere", other.id, 10, [(d.address, 2)])
        try:
            assert fits.answer("first", "turn") == {}
            assert fits.answer("second", "turn") == {"wait": True}
            assert fits.answer("elsewhere", "turn") == {}
            # LightGBM's training tasks come after these
            ports = [
                c.submit(abs, i, key=f"_acquire_port-{i}", workers=[address])
                for i, (address, _) in enumerate(members)
            ]
            await wait(ports)
            assert fits.answer("second", "turn") == {"wait": True}
            first = c.submit(train, key="_train_part-1", workers=[a.address])
            await soon(lambda: a.state.executing_count)
            assert fits.answer("second", "turn") == {"wait": True}
            second = c.submit(train, key="_train_part-2", workers=[b.address])
            await soon(lambda: b.state.executing_count)
            assert fits.answer("second", "turn") == {}
            # its own tasks may wait for these threads
            fits.running["second"].turn -= 60
            assert fits.answer("same client", "turn") == {"wait": True}
        finally:
            gate.set()
        await wait([first, second])
        await soon(lambda: not fits.training)
        # the training of the second fit does not come
        assert fits.answer("same client", "turn") == {"wait": True}
        fits.running["second"].turn -= 60
        assert fits.answer("same client", "turn") == {}
