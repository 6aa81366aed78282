"""Data that is released on request, and never data of another client by mistake."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import dask.array as da
import numpy as np
import pytest
from click.testing import CliRunner
from distributed import Client, Event, LocalCluster, Nanny, Queue, Variable, wait
from distributed.utils_test import gen_cluster

import clustertune
from clustertune.actions import drop, release
from clustertune.cli import main
from clustertune.core import arguments
from clustertune.core.model import KeyGroup, Step, View
from clustertune.errors import RefusedError
from clustertune.monitor import inquiry
from clustertune.planner import guards
from clustertune.remote.scheduler.release import release as release_keys
from clustertune.remote.scheduler.release import release_rows
from tests.builders import view, worker
from tests.memory_cluster import MemoryCluster
from tests.processes import soon

MB = 2**20
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
    """Without prefixes all data of this client is proposed, most bytes first."""
    found = seen(
        holding("a", 1),
        holding("b", 3, scattered=2),
        holding("c", 9, others=("other",)),
        holding("d", 9, shared=(("published", "train"),)),
        holding("e", 9, mine=False, others=("other",)),
    )
    b, a = release.steps(found, ())
    assert b.summary == "release 3 keys named b (3.0 MiB)"
    assert "2 of them were scattered" in b.price.at_risk
    assert a.args.prefix == "a"
    assert refusals([a, b], found) == [None, None]


def test_what_others_want_stays() -> None:
    """Keys that only this client holds are released; the report lists the others."""
    found = seen(holding("a", 1), holding("a", 2, others=("other",)))
    (step,) = release.steps(found, ["a"])
    assert step.summary == (
        "release 1 key named a (1.0 MiB); 2 more stay, which other clients want (other)"
    )
    assert refusals([step], found) == [None]
    (step,) = release.steps(found, ["a"], include_other_clients=True)
    assert "3 keys" in step.summary
    assert refusals([step], found) == [None]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"others": ("bob",)}, "other clients want (bob)"),
        ({"shared": (("published", "train"),)}, "are published as train"),
        ({"mine": False, "others": ("bob",)}, "other clients want (bob)"),
    ],
)
def test_what_only_others_want_is_refused(changes: Any, text: str) -> None:
    """Both a release and a restart that drops data are refused."""
    found = seen(holding("a", 5, **changes))
    for steps in (release.steps(found, ["a"]), drop.steps(found)):
        (no,) = refusals(steps, found)
        assert text in str(no)
        assert "include_other_clients=True" in str(no)
    others = {"include_other_clients": True}
    for steps in (release.steps(found, ["a"], **others), drop.steps(found, **others)):
        assert refusals(steps, found) == [None]


def test_what_a_drop_loses_is_listed() -> None:
    """The list has keys, bytes, scattered keys, owners and names."""
    found = seen(
        holding("a", 1),
        holding(
            "b",
            2,
            scattered=2,
            shared=(("published", "train"), ("published", "test")),
        ),
    )
    (step,) = drop.steps(found)
    assert step.price.at_risk == (
        "3 keys (3.0 MiB), named b and a; 2 of them were scattered; this includes "
        "2.0 MiB which are published as test and train; the published test and train "
        "will be unpublished"
    )
    (step,) = drop.steps(seen())
    assert step.price.at_risk == "nothing: no data is in memory"


def test_a_drop_needs_nannies() -> None:
    (no,) = refusals(drop.steps(found := seen(nanny=None)), found)
    assert "no nanny" in str(no)


def test_in_memory() -> None:
    """The cluster in memory releases too."""
    cluster = MemoryCluster(seen(managed=5 * MB, process=90 * MB))
    (step,) = drop.steps(seen())
    asyncio.run(drop.enact(step, cluster, lambda *_: None))
    after = asyncio.run(cluster.look(lambda *_: None))
    assert [w.managed for w in after.now.workers] == [0, 0]
    assert cluster.calls == ["drop 2"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [(1, 1), ("3", 3), (0.25, 0.25), ("25%", 0.25), ("100%", 1.0)],
)
def test_parts(given: Any, expected: float) -> None:
    found = arguments.part("x", given)
    assert (type(found), found) == (type(expected), expected)


@pytest.mark.parametrize("given", [0, -1, 1.5, "150%", "0%", "many", True, None, []])
def test_what_is_no_part(given: Any) -> None:
    with pytest.raises(ValueError, match="a number of at least 1, or a part"):
        arguments.part("x", given)


def test_rows_are_one_step() -> None:
    """It names the keys, the clients and the names; others stay."""
    train = (("published", "train"),)
    found = seen(
        holding("a", 1, row="1", mine=False, others=("bob",)),
        holding("a", 2, row="2", mine=False, others=("eve",)),
        holding("b", 3, row="3", mine=False, others=("bob",), shared=train),
        holding("c", 4, row="4", mine=False, shared=train),
    )
    step = release.row_step(found, ["1"])
    assert step.summary == (
        "release 1 key named a (1.0 MiB), which other clients want (bob)"
    )
    assert step.args.rows == ("1",)
    assert refusals([step], found) == [None]
    step = release.row_step(found, ["1", "3"])
    assert "4 keys named a and b (4.0 MiB), which other clients want (bob)" in (
        step.summary
    )
    assert step.summary.endswith("; unpublish train")
    (no,) = refusals([step], found)
    assert str(no).startswith("the published train also holds row 4 (c), which would")
    assert refusals([release.row_step(found, ["3", "4"])], found) == [None]


def test_keys_without_a_row_id() -> None:
    """A name that also holds them is released by prefixes."""
    train = (("published", "train"),)
    found = seen(
        holding("a", row="1", mine=False, shared=train),
        holding("", row="", mine=False, shared=train),
    )
    (no,) = refusals([release.row_step(found, ["1"])], found)
    assert "train also holds keys without a row id" in str(no)
    assert "--prefix NAME --include-other-clients" in str(no)


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
    assert report.steps[0].reason == "10 keys (3.1 KiB) released"
    assert len(s.tasks) == 22
    with pytest.raises(Exception, match="cancelled"):
        await c.compute(old.sum())
    assert (await c.compute((X * 0).sum())) == 0
    assert await c.gather(some) == [1, 2]
    with pytest.raises(RefusedError, match="are published as kept"):
        await clustertune.release_data(c, "ones_like")
    with pytest.raises(ValueError, match=r"prefix nope, so nothing.* random_sample"):
        await clustertune.release_data(c, "nope")
    with pytest.raises(TypeError, match="keep="):
        await clustertune.release_data(c)
    assert len(s.tasks) == 22


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_what_others_hold(c: Any, s: Any, *workers: Any) -> None:
    """Permission is needed; afterwards their futures are cancelled."""
    async with Client(s.address, asynchronous=True, set_as_default=False) as other:
        theirs = await other.scatter([1, 2, 3])
        with pytest.raises(RefusedError, match="other clients want"):
            await clustertune.release_data(c, "int")
        assert await other.gather(theirs) == [1, 2, 3]
        await clustertune.release_data(c, "int", include_other_clients=True)
        assert not s.tasks
        await soon(lambda: {f.status for f in theirs} == {"cancelled"})


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_what_is_still_needed_stays(c: Any, s: Any, a: Any) -> None:
    """Inputs of a waiting task stay until it has run."""
    gate = Event("gate")
    X = c.submit(lambda: 7, key="x-1")
    await X
    y = c.submit(lambda x, gate: gate.wait() and x + 1, X, gate, key="y-1")
    await clustertune.release_data(c, "x")
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
    assert "would lose  10 keys" in str(report)
    report = await clustertune.restart_workers(c, drop_data=True)
    assert report.status == "done", str(report)
    assert report.steps[0].reason == "10 keys (3.1 KiB) dropped"
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
    with pytest.raises(RefusedError, match="train will be unpublished"):
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
    with pytest.raises(RefusedError, match="are shared by queue q and variable v"):
        await clustertune.restart_workers(c, drop_data=True)
    assert await c.gather([kept, queued]) == [1, 2]


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_a_prefix_that_is_not_there(c: Any, s: Any, a: Any) -> None:
    """The message lists the existing prefixes, if there are any."""
    await c.publish_dataset("a text", name="no keys")
    text = r"^prefixes: no data in memory has the prefix nosuch, since no data is in me"
    with pytest.raises(ValueError, match=text):
        await clustertune.release_data(c, "nosuch", include_other_clients=True)
    y, x = await c.scatter([1]), c.submit(float, 1)
    await wait(x)
    with pytest.raises(ValueError, match=r"Prefixes in memory: float and int$"):
        await clustertune.release_data(c, "nosuch")
    del x, y


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_published_data_that_is_released(c: Any, s: Any, *workers: Any) -> None:
    """The published name is removed in the same step; other data stays."""
    X, y = c.map(np.ones, [3] * 4, pure=False), c.map(np.zeros, [3] * 4, pure=False)
    z = c.map(np.ones, [5], pure=False, key="zero")
    await wait([X, y, z])
    await c.publish_dataset(X, name="X")
    await c.publish_dataset([X, y], name="both")
    await c.publish_dataset(z, name=("other", 1))
    await c.publish_dataset("a text", name="no keys")
    everything = {"include_other_clients": True}
    with pytest.raises(
        RefusedError, match=r"both also holds zeros, which would .* lost"
    ):
        await clustertune.release_data(c, "ones", **everything)
    assert len(await c.list_datasets()) == 4
    plan = await clustertune.release_data(
        c, "ones", "zeros", dry_run=True, **everything
    )
    assert "unpublish X and both" in " ".join(str(plan).split())
    report = await clustertune.release_data(c, "ones", "zeros", **everything)
    assert report.status == "done"
    assert [step.reason.partition(" (")[0] for step in report.steps] == ["4 keys"] * 2
    unpublished = [s.reason.partition("unpublished ")[2] for s in report.steps]
    assert sorted(unpublished) in (["", "X and both"], ["X", "both"])
    assert set(await c.list_datasets()) == {("other", 1), "no keys"}
    assert list(s.tasks) == [z[0].key]
    again = await c.get_dataset(("other", 1))
    assert len(await c.gather(again[0])) == 5


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_a_name_that_got_other_data_meanwhile(c: Any, s: Any, *w: Any) -> None:
    """The scheduler checks again, so data that only the name holds is not lost."""
    X, y = c.map(np.ones, [3] * 4, pure=False), c.map(np.zeros, [3] * 4, pure=False)
    await wait([X, y])
    await c.publish_dataset([X, y], name="both")
    names = [f.key for f in X]
    del X, y
    await soon(lambda: len(s.tasks[names[0]].who_wants) == 1)
    count, nbytes, gone = await release_keys(s, c.id, "ones", (), True)
    assert (count, nbytes, gone) == (0, 0, [])
    X, y = await c.get_dataset("both")
    assert len(await c.gather([*X, *y])) == 8


@gen_cluster(**WORKERS)
async def test_drop_waits_for_tasks(c: Any, s: Any, *nannies: Any) -> None:
    """The call waits for tasks of any client, and refuses after the deadline."""
    gate = Event("gate")
    future = c.submit(lambda gate: gate.wait(), gate)
    await soon(lambda: any(ws.processing for ws in s.workers.values()))
    report = await clustertune.restart_workers(c, drop_data=True, wait="0.2s")
    assert report.status == "left"
    assert report.steps[0].reason == "1 task still runs after 0.2 s"
    await gate.set()
    assert await future


@gen_cluster(**(WORKERS | {"nthreads": [("127.0.0.1", 1)] * 4}), timeout=90)
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
    assert all(step.reason.endswith("lost 0") for step in report.steps)
    assert most == 2
    assert layout(s) == holders
    assert await c.compute(X.sum()) == total
    assert await c.gather(some) == list(range(8))


async def listed(c: Any) -> dict[tuple[str, ...], str]:
    """Ids of rows by prefix and clients."""
    await clustertune.check(c)  # installs the plugin
    groups = await inquiry.holdings(c, ())
    return {(g.prefix, *g.others, *g.published): g.row for g in groups if g.keys}


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_a_row_is_released(c: Any, s: Any, *workers: Any) -> None:
    """The keys of that prefix and that client, and no other key."""
    options = {"asynchronous": True, "set_as_default": False}
    async with (
        Client(s.address, **options) as bob,
        Client(s.address, **options) as eve,
    ):
        his = await bob.scatter([1, 2, 3])
        hers = await eve.scatter([4, 5])
        both = await bob.scatter(6)
        shared = await eve.scatter(6)  # has the same key
        await soon(lambda: len(s.tasks[both.key].who_wants) == 2)
        rows = await listed(c)
        assert rows == await listed(c)
        assert len({*rows.values()}) == 3
        row = rows["int", bob.id]
        plan = await clustertune.release_data(c, rows=[row], dry_run=True)
        assert plan.steps[0].summary.startswith("release 3 keys named int (")
        assert len(s.tasks) == 6
        report = await clustertune.release_data(c, rows=[row])
        assert report.steps[0].reason.startswith("3 keys (")
        await soon(lambda: {f.status for f in his} == {"cancelled"})
        assert set(s.tasks) == {both.key, *(f.key for f in hers)}
        assert await eve.gather([*hers, shared]) == [4, 5, 6]
        with pytest.raises(RefusedError, match=f"no data in memory is row {row}: "):
            await clustertune.release_data(c, rows=[row])


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_a_row_that_changed_is_refused(c: Any, s: Any, *workers: Any) -> None:
    """Another key, another client, or a key less: nothing is released."""
    options = {"asynchronous": True, "set_as_default": False}
    async with (
        Client(s.address, **options) as bob,
        Client(s.address, **options) as eve,
    ):
        his = await bob.scatter([1, 2])
        old = (await listed(c))["int", bob.id]
        more = await bob.scatter(3)
        ids = {old}
        for change in ("more", "fewer", "eve"):
            if change == "fewer":
                del more
                await soon(lambda: len(s.tasks) == 2)
                assert (await listed(c))["int", bob.id] == old
                del his[1]
                await soon(lambda: len(s.tasks) == 1)
            elif change == "eve":
                hers = await eve.scatter(1)  # has the same key
                await soon(lambda: len(s.tasks[his[0].key].who_wants) == 2)
            ids |= (now := {*(await listed(c)).values()})
            assert old not in now
            with pytest.raises(RefusedError, match="have changed"):
                await clustertune.release_data(c, rows=[old, *now])
            assert await release_rows(s, [old, *now]) == (0, 0, [], [old])
            assert his[0].status == "finished"
        assert len(ids) == 4
        assert await eve.gather(hers) == 1


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_a_row_that_changes_after_the_plan(
    c: Any, s: Any, a: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler compares once more, and the step is skipped."""
    x = await c.scatter([1, 2])
    row = (await listed(c))["int",]
    enact = release.enact

    async def late(*arguments: Any) -> Any:
        await c.scatter(3, hash=False)
        y.append(await c.scatter(4))
        return await enact(*arguments)

    y: list[Any] = []
    monkeypatch.setattr(release, "enact", late)
    report = await clustertune.release_data(c, rows=[row])
    assert [step.status for step in report.steps] == ["skipped"]
    assert "changed meanwhile; nothing was released" in str(report.steps[0].reason)
    assert await c.gather([*x, *y]) == [1, 2, 4]


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_rows_of_published_data(c: Any, s: Any, *workers: Any) -> None:
    """A name is removed with all of its rows, and not with some of them."""
    X, y = c.map(np.ones, [3] * 4, pure=False), c.map(np.zeros, [3] * 4, pure=False)
    await wait([X, y])
    await c.publish_dataset([X, y], name="both")
    del X, y
    await soon(lambda: all(len(ts.who_wants) == 1 for ts in s.tasks.values()))
    rows = await listed(c)
    ones, zeros = rows["ones", "both"], rows["zeros", "both"]
    with pytest.raises(RefusedError, match=f"both also holds row {zeros} .zeros."):
        await clustertune.release_data(c, rows=[ones])
    # the scheduler looks once more
    assert await release_rows(s, [ones]) == (0, 0, [], [])
    assert len(await c.gather((await c.get_dataset("both"))[0])) == 4
    await soon(lambda: all(len(ts.who_wants) == 1 for ts in s.tasks.values()))
    report = await clustertune.release_data(c, rows=[ones, zeros])
    assert report.status == "done"
    assert "8 keys" in report.steps[0].reason
    assert "unpublished both" in report.steps[0].reason
    await soon(lambda: not s.tasks)
    assert await c.list_datasets() == ()


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_rows_exclude_other_choices(c: Any, s: Any, a: Any) -> None:
    """A row already names its data and its clients."""
    for other in ({"include_other_clients": True}, {"keep": [c.submit(int)]}):
        with pytest.raises(TypeError, match="do not combine with prefixes"):
            await clustertune.release_data(c, rows=["1"], **other)
    with pytest.raises(TypeError, match="do not combine with prefixes"):
        await clustertune.release_data(c, "int", rows=["1"])


def test_from_the_shell() -> None:
    """The command lists the data; releasing needs an option."""
    options: dict[str, Any] = {"n_workers": 1, "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        X = da.ones((100, 4), chunks=10).persist()
        wait(X)
        address = cluster.scheduler_address

        def run(*arguments: str) -> Any:
            return CliRunner().invoke(main, [*arguments], catch_exceptions=False)

        listed = run("release", address)
        assert listed.exit_code == 0
        assert "ones_like" in listed.output
        rows = json.loads(run("release", address, "-f", "json").output)["holdings"]
        assert [(r["prefix"], r["keys"], r["mine"]) for r in rows] == [
            ("ones_like", 10, False)
        ]
        refused = run("release", address, "--prefix", "ones_like", "--yes")
        assert refused.exit_code == 4
        assert X.sum().compute() == 400
        everything = ["--include-other-clients", "--yes"]
        done = run("release", address, "--prefix", "ones_like", *everything)
        assert done.exit_code == 0
        assert not client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.tasks)
        assert run("restart", address, "--drop-data", "--worker", "0").exit_code == 2
        dropped = run("restart", address, "--drop-data", "--yes")
        assert dropped.exit_code == 0
        assert "restart all 1 worker at once" in dropped.output
