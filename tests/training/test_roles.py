"""Roles on clusters, most in one process."""

from __future__ import annotations

import asyncio
import os
import pickle
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, Event, futures_of, get_worker, wait

import clustertune
from clustertune.errors import (
    AlignmentError,
    ConnectionLostError,
    FunctionError,
    NoWorkersError,
    TimedOutError,
)
from clustertune.remote import ship
from clustertune.remote.ending import within
from clustertune.training import frameworks, remote_roles, run_roles
from clustertune.training.frameworks import Framework
from tests.in_process import TWO, gen_cluster
from tests.processes import interrupted_when, soon, until

PAGE = Path(__file__).parents[2] / "docs" / "training.md"

THREE = [("127.0.0.1", 2)] * 3


def left(s: Any, *workers: Any) -> list[Any]:
    """Return leftovers of roles: tasks, endpoints, handlers, threads."""
    found: list[Any] = [key for key in s.tasks if str(key).startswith("role-")]
    found += [key for w in workers for key in w.state.tasks if "role-" in str(key)]
    found += [
        h for w in workers for h in w.handlers if h.startswith(remote_roles.ENDPOINT)
    ]
    return found


async def nothing_left(s: Any, *workers: Any) -> None:
    await soon(lambda: not left(s, *workers))


def until_stopped(ctx: Any) -> str:
    while not ctx.should_stop():
        ctx.wait(0.01)
    return f"{ctx.role} {ctx.rank}"


# --- running roles --------------------------------------------------------------------


@gen_cluster(client=True, nthreads=THREE)
async def test_roles_run_concurrently(c: Any, s: Any, *workers: Any) -> None:
    """Each role has its own worker and the addresses of all roles."""

    def know(ctx: Any) -> Any:
        Event(f"here-{ctx.role}-{ctx.rank}").set()
        for role, places in ctx.spec.items():
            for rank in range(len(places)):
                Event(f"here-{role}-{rank}").wait()
        where = get_worker().address
        return ctx.role, ctx.rank, ctx.size, ctx.threads, where, ctx.spec

    roles = await run_roles(c, {"worker": (2, know), "scorer": (1, know)})
    found = await roles.result()
    assert [x[:4] for x in found["worker"]] == [
        ("worker", 0, 2, 2),
        ("worker", 1, 2, 2),
    ]
    assert [x[:4] for x in found["scorer"]] == [("scorer", 0, 1, 2)]
    assert [x[4] for x in found["worker"]] == roles.workers["worker"]
    assert {x for w in roles.workers.values() for x in w} == {
        w.address for w in workers
    }
    assert all(x[5] == roles.spec for x in found["worker"] + found["scorer"])
    places = [place for role in roles.spec.values() for place in role]
    assert len(set(places)) == 3
    assert all(place.startswith("127.0.0.1:") for place in places)
    assert repr(roles) == "<Roles: worker: ended, ended; scorer: ended>"
    await nothing_left(s, *workers)


@gen_cluster(client=True, nthreads=THREE)
async def test_rows_come_from_the_own_worker(c: Any, s: Any, *workers: Any) -> None:
    """Each epoch has each row once with its label, on the workers of one role only."""

    def train(ctx: Any) -> Any:
        before = len(get_worker().transfer_incoming_log)
        found = [(X[:, 0], y) for X, y in ctx.batches(epochs=2)]
        assert len(get_worker().transfer_incoming_log) == before
        return found, ctx.steps

    def score(ctx: Any) -> Any:
        with pytest.raises(RuntimeError, match="role scorer has no data"):
            next(ctx.batches())
        return ctx.steps

    X = c.persist(da.arange(200, chunks=20)[:, None] * da.ones((1, 3)))
    y = c.persist(X[:, 0] * -2)
    await wait([X, y])
    roles = {"scorer": (1, score), "worker": (2, train)}
    async with await run_roles(c, roles, data=(X, y), batch_size=30) as running:
        found = await running.result()
        (scorer,) = running.workers["scorer"]
        partitions = {f.key for x in (X, y) for f in futures_of(x)}
        assert not partitions & {ts.key for ts in s.workers[scorer].has_what}
    assert found["scorer"] == [None]
    rows: list[float] = []
    for batches, steps in found["worker"]:
        assert steps == 3  # 100 rows in batches of 30
        assert all((x * -2 == labels).all() for x, labels in batches)
        of_rank = [list(x) for x, _ in batches]
        assert len(of_rank[0]) == 30
        whole = [row for batch in of_rank for row in batch]
        assert whole[:100] == whole[100:]
        rows += whole[:100]
    assert sorted(rows) == list(range(200))
    del X, y
    await nothing_left(s, *workers)
    await soon(lambda: not s.tasks)


@gen_cluster(client=True, nthreads=TWO)
async def test_frames_and_equal_steps(
    c: Any, s: Any, a: Any, b: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If ranks run in step, all have equally many full batches."""
    table = pd.DataFrame({"x": range(50), "y": range(50)})
    frame = c.persist(dd.from_pandas(table, npartitions=5))

    def train(ctx: Any) -> Any:
        return [list(batch["x"]) for (batch,) in ctx.batches(2)], ctx.steps

    async def trained() -> Any:
        # a single role has the data
        roles = await run_roles(c, {"a": (2, train)}, data=frame, batch_size=8)
        return (await roles.result())["a"]

    one, two = await trained()
    assert [len(batch) for batch in one[0]] == [8, 8, 8, 1] * 2
    assert one[0][:4] == one[0][4:]
    assert sorted(
        x for found in (one, two) for batch in found[0][:4] for x in batch
    ) == [*range(50)]
    fake = Framework(synchronous=True, own_process=False)
    monkeypatch.setattr(frameworks, "choose", lambda name, roles=(): fake)
    one, two = await trained()
    assert [len(batch) for batch in one[0]] == [8] * 6
    assert [len(batch) for batch in two[0]] == [8] * 6
    assert one[1] == two[1] == 3


@gen_cluster(client=True, nthreads=TWO)
async def test_a_role_does_not_change_the_data(c: Any, s: Any, a: Any, b: Any) -> None:
    """Arrays are read-only. A frame is copied when it is changed."""
    table = pd.DataFrame({"x": range(4)})
    frame, array = dd.from_pandas(table, npartitions=1), da.arange(4, chunks=4)
    data = c.persist(frame), c.persist(array)

    def change(ctx: Any) -> list[int]:
        for frame, array in ctx.batches(epochs=2):
            with pytest.raises(ValueError, match="read-only"):
                np.add(array, 1, out=array)
            frame["x"] *= 2
            found = list(frame["x"])
        return found

    roles = await run_roles(c, {"worker": (1, change)}, data=data)
    assert await roles.result() == {"worker": [[0, 2, 4, 6]]}
    assert list((await c.compute(data[0]))["x"]) == [0, 1, 2, 3]


@gen_cluster(client=True, nthreads=TWO)
async def test_a_state_that_is_not_readable(c: Any, s: Any, a: Any, b: Any) -> None:
    """It is an error of the function."""
    for state, error in ((b"no pickle", "UnpicklingError"), (1, "TypeError")):
        states: Any = {"worker": [state]}
        roles = await run_roles(c, {"worker": (1, has_state)}, states=states)
        with pytest.raises(FunctionError, match=rf"^worker 0 .* failed: {error}"):
            await roles.result()


@gen_cluster(client=True, nthreads=TWO)
async def test_scores_and_a_stop(c: Any, s: Any, a: Any, b: Any) -> None:
    """Scores come while roles run, in order; all roles see the stop."""

    def train(ctx: Any) -> int:
        epoch = 0
        while not ctx.should_stop():
            epoch += 1
            ctx.report({"epoch": epoch})
            ctx.wait(0.001)
        return epoch

    roles = {"worker": (1, train), "scorer": (1, until_stopped)}
    async with await run_roles(c, roles) as running:
        seen = []
        async for score in running.scores:
            seen.append(score)
            if score.value["epoch"] == 5:
                await running.stop()
        found = await running.result()
        assert [score async for score in running.scores] == seen
    assert [x.value["epoch"] for x in seen] == list(range(1, found["worker"][0] + 1))
    assert {(x.role, x.rank) for x in seen} == {("worker", 0)}
    assert found["scorer"] == ["scorer 0"]
    await running.stop()  # has no effect
    await nothing_left(s, a, b)


@gen_cluster(nthreads=TWO)
async def test_scores_do_not_push_a_state_out(
    s: Any, a: Any, b: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest scores are dropped, and the last state stays."""
    # its functions travel by value, so those of the class may have other globals
    monkeypatch.setitem(remote_roles.Endpoint.send.__globals__, "MAX_LINES", 3)
    endpoint = remote_roles.Endpoint(a, "name", 60)
    for kind, data in (("state", b"old"), *(("score", b"%d" % i) for i in range(5))):
        endpoint.send(kind, data)
    kept = [("state", b"old"), ("score", b"3"), ("score", b"4")]
    assert [line[1:] for line in endpoint.lines] == kept
    endpoint.send("state", b"new")
    assert [line[1:] for line in endpoint.lines] == [*kept[1:], ("state", b"new")]
    endpoint.forget()


@gen_cluster(client=True, nthreads=TWO)
async def test_a_stop_does_not_wait_for_workers(c: Any, s: Any, a: Any, b: Any) -> None:
    """A worker that does not answer delays neither the call nor the other role."""
    running = await run_roles(c, {"worker": (2, until_stopped)}, grace=0.5)
    frozen, alive = (s.workers[address] for address in running.workers["worker"])
    name = remote_roles.handler_name(running._name)
    worker = next(w for w in (a, b) if w.address == frozen.address)
    handler = worker.handlers[name]

    async def answer(command: str, **arguments: Any) -> Any:
        if command == "stop":
            await asyncio.Event().wait()
        return await handler(command, **arguments)

    worker.handlers[name] = answer
    await within(running.stop(), 5)
    await soon(lambda: not alive.processing)
    worker.handlers[name] = handler
    await running.stop()
    assert await running.result() == {"worker": ["worker 0", "worker 1"]}
    await nothing_left(s, a, b)


@gen_cluster(client=True, nthreads=THREE)
async def test_others_stop_when_training_has_ended(
    c: Any, s: Any, *workers: Any
) -> None:
    roles = {"worker": (2, lambda ctx: "done"), "scorer": (1, until_stopped)}
    found = await (await run_roles(c, roles)).result()
    assert found == {"worker": ["done"] * 2, "scorer": ["scorer 0"]}


# --- how roles end --------------------------------------------------------------------


@gen_cluster(client=True, nthreads=THREE)
async def test_a_role_fails(c: Any, s: Any, *workers: Any) -> None:
    """Other roles stop, its error is the cause, and its text is escaped."""

    def train(ctx: Any) -> Any:
        if ctx.rank == 1:
            Event("others").wait()
            raise KeyError("no \x1b[31m")
        Event("others").set()
        return until_stopped(ctx)

    roles = await run_roles(c, {"worker": (2, train), "scorer": (1, until_stopped)})
    said = r"worker 1 on worker \S+ failed: KeyError: 'no \\x1b.* in train\)$"
    with pytest.raises(FunctionError, match=said) as caught:
        await roles.result()
    assert isinstance(caught.value.__cause__, KeyError)
    assert (caught.value.role, caught.value.rank) == ("worker", 1)
    assert caught.value.worker == roles.workers["worker"][1]
    assert repr(roles) == "<Roles: worker: ended, failed; scorer: ended>"
    with pytest.raises(FunctionError):
        assert not [score async for score in roles.scores]
    await nothing_left(s, *workers)

    class StubbornError(Exception):
        def __init__(self, one: str, two: str):
            super().__init__(one + two)

    def refuse(ctx: Any) -> None:
        raise StubbornError("does not", " unpickle")

    def leave(ctx: Any) -> None:
        raise SystemExit(3)

    for function, text in ((refuse, "StubbornError: does not unpickle"), (leave, "3")):
        with pytest.raises(FunctionError, match=text):
            # the end of the block raises
            async with await run_roles(c, {"worker": (1, function)}) as roles:
                await soon(lambda: "failed" in repr(roles))
    with pytest.raises(FunctionError, match="returned no readable result: TypeError"):
        await (await run_roles(c, {"a": (1, lambda ctx: threading.Lock())})).result()
    with pytest.raises(FunctionError, match=r"worker 0 .*failed: .*pickle"):
        await (
            await run_roles(c, {"worker": (1, lambda x: x.report(threading.Lock()))})
        ).result()
    await nothing_left(s, *workers)


@gen_cluster(client=True, nthreads=TWO)
async def test_a_role_that_does_not_stop(c: Any, s: Any, a: Any, b: Any) -> None:
    """An error names it. Its resources are released when it returns."""

    def stubborn(ctx: Any) -> None:
        Event("begun").set()
        Event("go").wait()

    def fail(ctx: Any) -> None:
        Event("begun").wait()
        raise ValueError("first")

    roles = {"worker": (1, fail), "scorer": (1, stubborn)}
    running = await run_roles(c, roles, grace="500 ms")
    said = r"worker 0 .*first.*; scorer 0 on worker \S+ did not stop within 0\.5 s"
    with pytest.raises(FunctionError, match=said) as caught:
        await running.result()
    assert caught.value.role == "worker"
    await Event("begun").clear()
    with pytest.raises(FunctionError, match=r"^scorer 0 .* did not stop"):
        async with await run_roles(c, {"scorer": (1, stubborn)}, grace=0.5):
            await Event("begun").wait()
    assert not [key for key in s.tasks if "role-" in str(key)]
    await Event("go").set()
    await nothing_left(s, a, b)


@gen_cluster(client=True, nthreads=TWO)
async def test_a_lost_worker(c: Any, s: Any, a: Any, b: Any) -> None:
    roles = await run_roles(c, {"worker": (2, until_stopped)})
    gone = {w.address: w for w in (a, b)}[roles.workers["worker"][1]]
    closing = asyncio.ensure_future(gone.close(executor_wait=False))
    with pytest.raises(
        FunctionError, match=r"worker 1 .* is lost: the worker"
    ) as caught:
        await roles.result()
    assert caught.value.worker == gone.address
    await closing
    (other,) = {a, b} - {gone}
    await nothing_left(s, other)

    def report(ctx: Any) -> None:
        while not ctx.should_stop():
            ctx.report(ctx.wait(0.01))

    roles = await run_roles(c, {"worker": (1, report)})
    # as after a new process has got the same address
    for name in [h for h in other.handlers if h.startswith(remote_roles.ENDPOINT)]:
        del other.handlers[name]
    with pytest.raises(FunctionError, match=r"worker 0 .* was restarted"):
        await roles.result()
    await nothing_left(s, other)


@gen_cluster(client=True, nthreads=TWO)
async def test_a_role_that_does_not_begin(c: Any, s: Any, a: Any, b: Any) -> None:
    """No function is called, because all would wait for the missing role."""

    def mark(ctx: Any) -> None:
        Event("called").set()

    busy = c.submit(lambda: Event("go").wait(), workers=[b.address])
    await soon(lambda: b.state.executing)
    with pytest.raises(FunctionError, match="did not begin within 2 s: other") as told:
        await run_roles(c, {"worker": (2, mark)}, timeout="2 s")
    assert told.value.worker == b.address
    assert not await Event("called").is_set()
    await Event("go").set()
    await busy
    await nothing_left(s, a, b)


@gen_cluster(client=True, nthreads=TWO)
async def test_a_client_that_is_closed(c: Any, s: Any, a: Any, b: Any) -> None:
    """Its roles end with it, and a task without an endpoint fails."""
    async with Client(s.address, asynchronous=True) as other:
        roles = await run_roles(other, {"worker": (2, until_stopped)})
    with pytest.raises(ConnectionLostError, match="the client is clos"):
        await roles.result()
    await nothing_left(s, a, b)
    with pytest.raises(RuntimeError, match="a role is not started again"):
        await c.submit(remote_roles.run_role, "gone", "key", b"")


@gen_cluster(client=True, nthreads=TWO)
async def test_an_interruption_stops_all_roles(c: Any, s: Any, a: Any, b: Any) -> None:
    """A timeout of result() stops no role."""
    roles = await run_roles(c, {"worker": (2, until_stopped)})
    with pytest.raises(TimedOutError, match=r"<Roles: worker: running, running>"):
        await roles.result(timeout="50 ms")
    waiting = asyncio.ensure_future(roles.result())
    await asyncio.sleep(0)
    waiting.cancel()
    assert (await roles.result())["worker"] == ["worker 0", "worker 1"]
    await nothing_left(s, a, b)
    with pytest.raises(ZeroDivisionError):
        async with await run_roles(c, {"worker": (2, until_stopped)}):
            raise ZeroDivisionError
    await nothing_left(s, a, b)


@gen_cluster(client=True, nthreads=TWO)
async def test_an_abandoned_endpoint_expires(c: Any, s: Any, a: Any, b: Any) -> None:
    """The client may be killed before its tasks began."""
    about = {"name": "x", "expiry": 2.0}
    await ship.on_workers(c, remote_roles.register, [a.address], timeout=10, **about)
    assert len(left(s, a)) == 1
    await nothing_left(s, a)


# --- misuse ---------------------------------------------------------------------------


@gen_cluster(client=True, nthreads=TWO)
async def test_misuse(c: Any, s: Any, a: Any, b: Any) -> None:
    """Wrong arguments raise an error with a fix before anything runs."""
    X = da.ones((10, 2), chunks=(5, 2))
    lock, f = threading.Lock(), until_stopped
    one = {"worker": (1, f)}
    cases: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (TypeError, "roles must be a mapping", lambda: run_roles(c, [f])),
        (TypeError, "roles must be a mapping", lambda: run_roles(c, {})),
        (ValueError, "must have a text as name", lambda: run_roles(c, {1: (1, f)})),
        (ValueError, "and .number, function", lambda: run_roles(c, {"a": (0, f)})),
        (ValueError, "and .number, function", lambda: run_roles(c, {"a": (f, 1)})),
        (ValueError, "and .number, function", lambda: run_roles(c, {"a": f})),
        (ValueError, "and .number, function", lambda: run_roles(c, {"a": (1, "f")})),
        (ValueError, "and .number, function", lambda: run_roles(c, {"ps": 1})),
        (ValueError, "must be one of", lambda: run_roles(c, one, framework="jax")),
        (TypeError, r"roles\['a'\] cannot be sent",
         lambda: run_roles(c, {"a": (1, lambda ctx: lock)})),
        (ValueError, "must be named \"worker\", .* the roles are 'a', 'b'",
         lambda: run_roles(c, {"a": (1, f), "b": (1, f)})),
        (ValueError, "states must be roles.states of an earlier call",
         lambda: run_roles(c, one, states=[b"1"])),
        (ValueError, "states must be roles.states .* the same roles .worker: 1.",
         lambda: run_roles(c, one, states={"worker": [None, b"1"]})),
        (ValueError, "states must be",
         lambda: run_roles(c, one, states={"trainer": [b"1"]})),
        (ValueError, "data is empty", lambda: run_roles(c, one, data=())),
        (TypeError, "must be a Dask", lambda: run_roles(c, one, data=np.ones(3))),
        (ValueError, "batch_size=0", lambda: run_roles(c, one, batch_size=0)),
        (ValueError, "timeout=", lambda: run_roles(c, one, timeout="soon")),
        (ValueError, "grace=", lambda: run_roles(c, one, grace=0)),
        (AlignmentError, "rows",
         lambda: run_roles(c, one, data=(X, da.ones(9, chunks=5)))),
        (NoWorkersError, r"need 3 workers \(worker: 3\), one each, and 2 of 2",
         lambda: run_roles(c, {"worker": (3, f)})),
    ]  # fmt: skip
    for error, said, call in cases:
        with pytest.raises(error, match=said):
            await call()
    async with await run_roles(c, one) as running:
        with pytest.raises(TypeError, match="async for"):
            next(iter(running.scores))
    await nothing_left(s, a, b)


@gen_cluster(client=True, nthreads=TWO)
async def test_roles_of_a_framework_need_processes(
    c: Any, s: Any, a: Any, b: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They also need their modules, and batches on every rank."""
    fake = Framework(synchronous=True)
    monkeypatch.setattr(frameworks, "choose", lambda name, roles=(): fake)
    with pytest.raises(NoWorkersError, match="in one process with others"):
        await run_roles(c, {"worker": (2, until_stopped)})
    fake = Framework(synchronous=True, modules=("no_such_module",))
    with pytest.raises(NoWorkersError, match="cannot import no_such_module"):
        await run_roles(c, {"worker": (1, until_stopped)})
    fake = Framework(synchronous=True, own_process=False)
    X = da.ones((10, 2), chunks=(5, 2))
    with pytest.raises(ValueError, match=r"batch_size=6, but one of the 2 .* 5 rows"):
        await run_roles(c, {"worker": (2, until_stopped)}, data=X, batch_size=6)
    await nothing_left(s, a, b)
    assert await clustertune.last_report(c) is not None


# --- real processes -------------------------------------------------------------------


def left_there(client: Client) -> list[Any]:
    """Return leftovers in processes, with environment variables of frameworks."""

    def look(dask_worker: Any) -> list[Any]:
        found: list[Any] = [h for h in dask_worker.handlers if "roles" in h]
        found += [key for key in dask_worker.state.tasks if "role-" in str(key)]
        names = "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CLUSTERTUNE_ROLE"
        return found + [name for name in names if name in os.environ]

    tasks = client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.tasks))
    found = [key for key in tasks if "role-" in str(key)]
    return found + [x for there in client.run(look).values() for x in there]


def example(name: str) -> dict[str, Any]:
    """Return the names of a code block of the page; they travel by value."""
    block = rf"<!-- roles: {name} -->\n```python\n(.*?)```"
    (code,) = re.findall(block, PAGE.read_text(), flags=re.DOTALL)
    found: dict[str, Any] = {"__name__": "of_the_page"}
    exec(code, found)
    return found


@pytest.mark.slow
def test_killed_and_interrupted(local_cluster: Any) -> None:
    """The error names the lost worker, not roles that fail later. ^C ends all roles."""
    _, client = local_cluster(2)

    def die(ctx: Any) -> None:
        if ctx.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        ctx.wait()

    roles = run_roles(client, {"worker": (2, die)})
    with pytest.raises(FunctionError, match=r"^worker 1 .* is lost"):
        list(roles.scores)
    client.wait_for_workers(2, timeout=200)

    waiting = threading.Event()
    roles = run_roles(client, {"worker": (2, lambda ctx: ctx.wait())})
    with interrupted_when(waiting.wait), pytest.raises(KeyboardInterrupt), roles:
        roles.result(waiting.set())
    assert repr(roles) == "<Roles: worker: ended, ended>"
    until(lambda: not left_there(client))


def count_to_six(ctx: Any) -> list[int]:
    """Save each step; in the first attempt, rank 0 waits after the third."""
    first = ctx.state or 0
    for step in range(first, 6):
        ctx.save(step + 1)
        if step == 2 and first == 0 and ctx.rank == 0:
            until_stopped(ctx)
    return [ctx.rank, first]


@pytest.mark.slow
def test_another_attempt_continues_from_saved_states(local_cluster: Any) -> None:
    """The worker of rank 0 is killed; the states of both ranks are known."""
    _, client = local_cluster(2)
    roles = run_roles(client, {"worker": (2, count_to_six)})
    until(lambda: [bool(x) and pickle.loads(x) for x in saved(roles)] == [3, 6])
    pids = client.run(os.getpid)
    os.kill(pids[roles.workers["worker"][0]], signal.SIGKILL)
    with pytest.raises(FunctionError, match=r"worker 0 .* is lost"):
        roles.result()
    client.wait_for_workers(2, timeout=300)
    again = run_roles(client, {"worker": (2, count_to_six)}, states=roles.states)
    assert again.result() == {"worker": [[0, 3], [1, 6]]}
    assert [pickle.loads(x) for x in saved(again)[:1]] == [6]
    assert run_roles(client, {"worker": (1, has_state)}).result() == {"worker": [None]}
    # an attempt that is lost before its first save does not forget earlier states
    seven = {"worker": [pickle.dumps(7)]}
    kept = run_roles(client, {"worker": (1, has_state)}, states=seven)
    assert kept.result() == {"worker": [7]}
    assert kept.states == seven


def saved(roles: Any) -> Any:
    return roles.states["worker"]


def has_state(ctx: Any) -> Any:
    return ctx.state


@pytest.mark.slow
def test_torch(local_cluster: Any) -> None:
    """Ranks train one model from all rows. A failed rank leaves no other waiting."""
    pytest.importorskip("torch")
    from sklearn.datasets import load_digits

    _, client = local_cluster(2)
    rows, labels = load_digits(return_X_y=True)
    X = da.from_array((rows / 16).astype("float32"), chunks=(300, 64))
    y = da.from_array(labels, chunks=300)
    train = example("ddp")["train_network"]
    options = {"framework": "torch", "batch_size": 100}
    with run_roles(client, {"worker": (2, train)}, data=(X, y), **options) as roles:
        scores = list(roles.scores)
        one, two = roles.result()["worker"]
    assert {name: v.tobytes() for name, v in one.items()} == {
        name: v.tobytes() for name, v in two.items()
    }
    assert len(scores) == 2 * 20 * 8  # 898 rows in batches of 100
    found = rows / 16 @ one["weight"].T + one["bias"]
    assert (found.argmax(axis=1) == labels).mean() > 0.9

    def stop_alike(ctx: Any) -> int:
        from torch import distributed

        distributed.init_process_group("gloo")
        steps = 0
        while not ctx.should_stop():
            steps += 1
            ctx.report(steps)
            if ctx.rank == steps == 1:
                ctx.wait(0.1)  # late: the other rank must wait
        return steps

    with run_roles(client, {"a": (2, stop_alike)}, framework="torch") as roles:
        next(iter(roles.scores))
        roles.stop()
        one, two = roles.result()["a"]
    assert one == two

    def fail(ctx: Any) -> None:
        import torch
        from torch import distributed

        distributed.init_process_group("gloo")
        if ctx.rank == 1:
            raise KeyError("rank 1")
        distributed.all_reduce(torch.ones(1))

    for _ in range(2):  # the second time after ended groups
        roles = run_roles(client, {"a": (2, fail)}, framework="torch")
        with pytest.raises(
            FunctionError, match=r"^a 1 .*failed: KeyError.*after that, a 0"
        ):
            roles.result()
    until(lambda: not left_there(client))
