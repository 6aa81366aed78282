"""Data that is released on request, and never data of another client by mistake."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from concurrent.futures import CancelledError
from dataclasses import replace
from typing import Any

import dask.array as da
import pytest
from click.testing import CliRunner
from distributed import (
    Client,
    Event,
    Future,
    Nanny,
    Queue,
    Variable,
    futures_of,
    wait,
)

import clustertune
from clustertune.actions import ACTIONS, release
from clustertune.cli import main
from clustertune.core.model import KeyGroup, Step, View
from clustertune.errors import RefusedError
from clustertune.planner import guards
from tests.builders import view, worker
from tests.in_process import gen_cluster
from tests.memory_cluster import MemoryCluster
from tests.processes import endless, local_workers, soon

MB = 2**20
BOTH = (0, 1)  # ids of workers
WORKERS = {"nthreads": [("127.0.0.1", 1)] * 2, "Worker": Nanny, "client": True}


# --- pure -----------------------------------------------------------------------------


def holding(prefix: str, keys: int = 1, **changes: Any) -> KeyGroup:
    about = {"nbytes": keys * MB, "scattered": 0, "mine": True} | changes
    return KeyGroup(prefix=prefix, keys=keys, **about)


def seen(*holdings: KeyGroup, **changes: Any) -> View:
    found = view([worker(0, **changes), worker(1, **changes)])
    now = replace(found.now, key_groups=holdings)
    return replace(found, snapshots=(now,))


def refusals(steps: Iterable[Step], found: View) -> list[str | None]:
    nos = [guards.refusal(step, found) for step in steps]
    return [None if no is None else no.reason for no in nos]


def test_what_this_client_alone_wants() -> None:
    """All data of this client is proposed, most bytes first."""
    found = seen(
        holding("a", 1),
        holding("b", 3, scattered=2),
        holding("c", 9, others=("other",)),
        holding("d", 9, others=("published-train",)),
        holding("e", 9, mine=False, others=("other",)),
    )
    b, a = release.steps(found, named=False)
    assert b.summary == "release 3 keys named b (3.0 MiB)"
    assert "2 of them were scattered" in b.price.at_risk
    assert a.args.prefix == "a"
    assert refusals([a, b], found) == [None, None]


def test_what_others_want_stays() -> None:
    """Keys that only this client holds are released; the report lists the others."""
    found = seen(holding("a", 1), holding("a", 2, others=("other",)))
    (step,) = release.steps(found, named=False)
    assert step.summary == (
        "release 1 key named a (1.0 MiB); 2 more stay, which other clients or names "
        "hold (other)"
    )
    assert refusals([step], found) == [None]
    assert list(release.steps(seen(holding("b", mine=False)), named=True)) == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"others": ("bob",)}, "other clients or names hold (bob)"),
        ({"others": ("published-train",)}, "names hold (published-train)"),
    ],
)
def test_what_others_want_is_refused(changes: Any, text: str) -> None:
    """Both a release and a restart that drops data are refused."""
    found = seen(holding("a", 5, **changes))
    for steps in (release.steps(found, named=True), release.drops(found, BOTH)):
        (no,) = refusals(steps, found)
        assert text in str(no)
    assert "include_other_clients=True" in str(no)
    assert refusals(release.drops(found, BOTH, include_other_clients=True), found) == [
        None
    ]


def test_more_names_than_the_scheduler_lists() -> None:
    """A call that cannot release all keys releases none."""
    found = seen(holding("a"), holding("", 5))
    rest, a = steps = list(release.steps(found, named=False))
    assert rest.summary == "release 5 keys with other names (5.0 MiB)"
    why, fine = refusals(steps, found)
    assert "drop_data=True" in str(why)
    assert a.args.prefix == "a"
    assert fine is None


def test_what_a_drop_loses_is_listed() -> None:
    """The list has keys, bytes, scattered keys, owners and names."""
    found = seen(
        holding("a", 1),
        holding("b", 2, scattered=2, others=("published-train", "published-test")),
    )
    (step,) = release.drops(found, BOTH)
    assert step.price.at_risk == (
        "3 keys (3.0 MiB), named b and a; 2 of them were scattered; this includes "
        "2.0 MiB which other clients or names hold (published-test and "
        "published-train); published names will be unpublished"
    )
    (step,) = release.drops(seen(), BOTH)
    assert step.price.at_risk == ""
    assert step.args.all


def test_a_drop_of_all_workers_one_by_one() -> None:
    """A fit that has lost all its members must not take the data of other clients."""
    (step,) = release.drops(seen(), BOTH, whole=False)
    assert not step.args.all
    assert len(step.args.workers) == 2
    assert "computes other keys again" in step.price.at_risk


def test_a_drop_needs_nannies() -> None:
    (no,) = refusals(release.drops(found := seen(nanny=None), BOTH), found)
    assert "no nanny" in str(no)


def test_in_memory() -> None:
    """The cluster in memory releases too."""
    cluster = MemoryCluster(seen(managed=5 * MB, process=90 * MB))
    (step,) = release.drops(seen(), BOTH)
    asyncio.run(ACTIONS["drop"].enact(step, cluster, lambda *_: None))
    after = asyncio.run(cluster.look(lambda *_: None))
    assert [w.managed for w in after.now.workers] == [0, 0]
    assert cluster.calls == ["drop 2"]


# --- live -----------------------------------------------------------------------------


def layout(s: Any) -> dict[str, set[Any]]:
    """Return the keys by worker name."""
    return {ws.name: {ts.key for ts in ws.has_what} for ws in s.workers.values()}


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_release(c: Any, s: Any, *workers: Any) -> None:
    """Kept and published data stays; use of released data raises an error."""
    X = c.persist(da.random.random((100, 4), chunks=10))
    old = c.persist(X + 1)
    names = c.persist(da.ones((100, 4), chunks=10))
    some = await c.scatter([1, 2])
    await wait([X, old, names])
    await c.publish_dataset(names, name="kept")
    report = await clustertune.release_data(c, keep=[X, some], dry_run=True)
    assert [s.summary for s in report.steps] == ["release 10 keys named add (3.1 KiB)"]
    assert len(s.tasks) == 32
    report = await clustertune.release_data(c, keep=[X, some])
    assert report.steps[0].details == "10 keys (3.1 KiB) released"
    assert len(s.tasks) == 22
    with pytest.raises(CancelledError, match="cancelled"):
        await c.compute(old.sum())
    assert (await c.compute((X * 0).sum())) == 0
    assert await c.gather(some) == [1, 2]
    with pytest.raises(RefusedError, match=r"names hold \(published-kept\)"):
        await clustertune.release_data(c, names)
    with pytest.raises(TypeError, match=r"this client\. Give"):
        await clustertune.release_data(c)
    with pytest.raises(TypeError, match="nothing in keep= is in memory"):
        await clustertune.release_data(c, keep=[da.ones(9)])
    with pytest.raises(TypeError, match="not both"):
        await clustertune.release_data(c, names, keep=[X])
    assert len(s.tasks) == 22


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_given_collections(c: Any, s: Any, *workers: Any) -> None:
    """Only their keys are released; keys that others need stay."""
    X = c.persist(da.ones((100, 4), chunks=10))
    y = c.persist(da.zeros(100, chunks=10))
    half = X[:50]
    await wait([X, y])
    plan = await clustertune.release_data(c, y, dry_run=True)
    assert [x.summary for x in plan.steps] == [
        "release 10 keys named zeros_like (80 B)"
    ]
    report = await clustertune.release_data(c, y)
    assert report.status == "done"
    assert {ts.prefix.name for ts in s.tasks.values()} == {"ones_like"}
    with pytest.raises(CancelledError, match="cancelled"):
        await c.compute(y.sum())
    again = c.persist(half)  # another collection with five of the keys
    await wait(again)
    same = [Future(key, client=c) for key in [f.key for f in futures_of(X)]]
    with pytest.raises(
        RefusedError, match="other collections in this process hold all"
    ):
        await clustertune.release_data(c, X)
    del same
    assert float(await c.compute(X.sum())) == 400


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_what_others_hold(c: Any, s: Any, *workers: Any) -> None:
    """Keys that another client holds stay, and the report counts them."""
    mine = await c.scatter([1, 2, 3])
    async with Client(s.address, asynchronous=True, set_as_default=False) as other:
        theirs = Future(mine[0].key, client=other)
        other._send_to_scheduler(
            {"op": "client-desires-keys", "keys": [theirs.key], "client": other.id}
        )
        await soon(lambda: len(s.tasks[theirs.key].who_wants) == 2)
        with pytest.raises(RefusedError, match="other clients or names hold"):
            await clustertune.release_data(c, mine[:1])
        report = await clustertune.release_data(c, mine)
        assert (
            "; 1 more stay, which other clients or names hold"
            in report.steps[0].summary
        )
        assert set(s.tasks) == {theirs.key}


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_what_is_still_needed_stays(c: Any, s: Any, a: Any) -> None:
    """Inputs of a waiting task stay until it has run."""
    gate = Event("gate")
    X = c.submit(lambda: 7, key="x-1")
    await X
    y = c.submit(lambda x, gate: gate.wait() and x + 1, X, gate, key="y-1")
    await clustertune.release_data(c, X)
    assert X.status == "cancelled"
    await gate.set()
    assert await y == 8


@gen_cluster(**WORKERS)
async def test_drop(c: Any, s: Any, *nannies: Any) -> None:
    """All processes are new, no key is left, and the cluster works."""
    X = c.persist(da.random.random((100, 4), chunks=10))
    await wait(X)
    before = await c.run(os.getpid)
    report = await clustertune.restart_workers(c, drop_data=True, dry_run=True)
    assert "would lose 10 keys" in " ".join(str(report).split())
    report = await clustertune.restart_workers(c, drop_data=True)
    assert report.status == "done", str(report)
    assert report.steps[0].details == "10 keys (3.1 KiB) dropped"
    assert not s.tasks
    after = await c.run(os.getpid)
    assert len(after) == 2
    assert not set(before.values()) & set(after.values())
    assert await c.submit(lambda: 5) == 5


@gen_cluster(**WORKERS)
async def test_drop_of_what_is_published(c: Any, s: Any, *nannies: Any) -> None:
    """The error has the names; with permission the data is dropped."""
    X = c.persist(da.ones((100, 4), chunks=10))
    await c.publish_dataset(X, name="train")
    await wait(X)
    await c.publish_dataset("a text", name="no keys")
    with pytest.raises(
        RefusedError, match=r"hold \(.*published-train.*will be unpublished"
    ):
        await clustertune.restart_workers(c, drop_data=True)
    assert float(await c.compute(X.sum())) == 400
    with pytest.raises(TypeError, match="does not combine with collections"):
        await clustertune.restart_workers(c, X, drop_data=True)
    await clustertune.restart_workers(c, drop_data=True, include_other_clients=True)
    assert not s.tasks
    assert await c.list_datasets() == ("no keys",)


@gen_cluster(**WORKERS)
async def test_drop_of_what_variables_and_queues_hold(c: Any, s: Any, *_: Any) -> None:
    """Each name is in the refusal, and the data stays."""
    kept, queued = c.submit(float, 1), c.submit(float, 2)
    await Variable("v", client=c).set(kept)
    await (await Queue("q", client=c)).put(queued)
    await wait([kept, queued])
    with pytest.raises(RefusedError, match=r"names hold \(queue-q and variable-v\)"):
        await clustertune.restart_workers(c, drop_data=True)
    assert await c.gather([kept, queued]) == [1, 2]


@gen_cluster(**WORKERS)
async def test_drop_ends_endless_tasks(c: Any, s: Any, *nannies: Any) -> None:
    """A worker whose task never ends restarts at once, as with Dask's restart."""
    future = c.submit(endless, pure=False)
    await soon(lambda: any(ws.processing for ws in s.workers.values()))
    processes = set((await c.run(os.getpid)).values())
    report = await clustertune.restart_workers(c, drop_data=True)
    assert report.status == "done", report
    assert not processes & set((await c.run(os.getpid)).values())
    assert future.cancelled()
    assert await c.submit(int, "3") == 3
    assert not any(ws.processing for ws in s.workers.values())


@gen_cluster(**WORKERS)
async def test_drop_waits_if_asked(c: Any, s: Any, *nannies: Any) -> None:
    """With ``wait`` tasks may end before."""
    gate = Event("gate")
    future = c.submit(lambda gate: gate.wait(), gate)
    await soon(lambda: any(ws.processing for ws in s.workers.values()))
    restart = asyncio.ensure_future(
        clustertune.restart_workers(c, drop_data=True, wait="60s")
    )
    await soon(
        lambda: (
            s.plugins["clustertune"].jobs.kept if s.plugins.get("clustertune") else None
        )
    )
    await gate.set()
    await soon(future.done)
    assert (await restart).status == "done"


@gen_cluster(**WORKERS)
async def test_drop_of_a_named_worker(c: Any, s: Any, *nannies: Any) -> None:
    """Others keep data and tasks; lost keys are computed again, scattered ones not."""
    first, second = s.workers
    X = await c.persist(da.random.random((40, 4), chunks=(4, 4)))
    (here,) = await c.scatter([1], workers=[first], hash=False)
    (there,) = await c.scatter([2], workers=[second], hash=False)
    total = await c.compute(X.sum())
    pinned = c.submit(os.getpid, workers=[first], pure=False)
    await wait(pinned)
    endlessly = c.submit(endless, workers=[first], pure=False)
    later = c.submit(str, endlessly)
    await soon(lambda: s.workers[first].processing)
    processes = await c.run(os.getpid)
    report = await clustertune.restart_workers(
        c, workers=[s.workers[first].name], drop_data=True
    )
    assert report.status == "done", report
    assert "1 key" in report.steps[0].details
    assert endlessly.cancelled()
    assert later.cancelled()
    now = await c.run(os.getpid)
    assert now[second] == processes[second]
    assert processes[first] not in now.values()
    assert await there == 2
    assert here.status in ("cancelled", "lost")
    assert await c.compute(X.sum()) == total
    assert await pinned in now.values()


@gen_cluster(**WORKERS)
async def test_drop_spares_tasks_of_others(c: Any, s: Any, *nannies: Any) -> None:
    """Tasks of another client on a named worker refuse it."""
    first = next(iter(s.workers))
    async with Client(s.address, asynchronous=True) as other:
        future = other.submit(endless, workers=[first], pure=False)
        await soon(lambda: s.workers[first].processing)
        named = {"workers": [s.workers[first].name], "drop_data": True}
        report = await clustertune.restart_workers(c, **named)
        assert report.status == "left"
        assert f"client {other.id} wants" in report.steps[0].reason
        report = await clustertune.restart_workers(
            c, **named, include_other_clients=True
        )
        assert report.status == "done"
        await soon(future.cancelled)


@gen_cluster(**(WORKERS | {"nthreads": [("127.0.0.1", 1)] * 4}))
async def test_two_at_once(c: Any, s: Any, *nannies: Any) -> None:
    """With max_unavailable=2 two workers are away together, and nothing is lost."""
    X = c.persist(da.random.random((400, 4), chunks=10))
    some = await c.scatter(list(range(8)))
    await wait(X)
    total = await c.compute(X.sum())
    await soon(lambda: len(s.tasks) == 48)
    holders = layout(s)
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            away = [w for w in s.workers.values() if w.status.name != "running"]
            most = max(most, len(away) + 4 - len(s.workers))
            await asyncio.sleep(0.005)

    watching = asyncio.ensure_future(watch())
    report = await clustertune.restart_workers(c, X, max_unavailable="50%")
    watching.cancel()
    assert report.status == "done"
    assert all(step.lost == 0 for step in report.steps)
    assert most == 2
    assert layout(s) == holders
    assert await c.compute(X.sum()) == total
    assert await c.gather(some) == list(range(8))


def test_drop_from_the_shell() -> None:
    """Data of other clients needs an option."""
    with local_workers(1) as client:
        X = da.ones((100, 4), chunks=10).persist()
        wait(X)

        def run(*arguments: str) -> Any:
            address = client.scheduler.address
            words = ["restart", address, "--drop-data", *arguments]
            return CliRunner().invoke(main, words, catch_exceptions=False)

        assert run("--if-needed").exit_code == 2
        assert run("--yes").exit_code == 4
        assert X.sum().compute() == 400
        dropped = run("--include-other-clients", "--yes")
        assert dropped.exit_code == 0
        assert "restarted 1 of 1 worker; lost 10 keys" in dropped.output
        assert not client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.tasks)
