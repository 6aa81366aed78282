"""Names change in one turn of the scheduler, whatever happens before and after."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import dask.array as da
import pytest
from distributed import Client, futures_of, wait
from distributed.utils_test import gen_cluster

from clustertune.remote import keys
from clustertune.remote.scheduler import published
from tests.processes import soon


async def noted(
    c: Client, s: Any
) -> tuple[published.PublishedNames, list[Any], list[Any]]:
    """Return the notes of a client, its data, and new data for the names."""
    old = c.persist([da.ones((8,), chunks=1), da.zeros((8,), chunks=1)])
    new = c.persist([da.ones((8,), chunks=2) + 1, da.zeros((8,), chunks=2) + 1])
    await wait([old, new])
    await c.publish_dataset(X=old[0], y=old[1])
    found = published.PublishedNames(s)
    assert await found.note(c.id, ["X", "y"]) == {"X": 0, "y": 0}
    return found, old, new


def requested(new: Any) -> list[Any]:
    return [
        (name, keys.pack([f.key for f in futures_of(x)]), f"new {name}")
        for name, x in zip("Xy", new)
    ]


def are_new(s: Any) -> tuple[bool, bool]:
    datasets = s.extensions["publish"].datasets
    return tuple(datasets[name]["data"] == f"new {name}" for name in "Xy")


def wanted_by(s: Any, name: str) -> set[Any]:
    return {ts.key for ts in s.clients[f"published-{name}"].wants_what}


def key_set(data: Any) -> set[Any]:
    return {f.key for f in futures_of(data)}


class Turns:
    """Replaces ``asyncio`` in the tested module, and calls a function between turns."""

    def __init__(self, between: Callable[[], Any]):
        self.between = between
        self.count = 0

    async def sleep(self, _seconds: float) -> None:
        self.count += 1
        await self.between()


async def in_turns(work: Any, between: Callable[[], Any]) -> Any:
    """Iterate, and call a function between two items."""
    with pytest.MonkeyPatch.context() as patched:
        turns = Turns(between)
        # of the functions, which a scheduler in this process may have been sent
        used = published.PublishedNames.replace.__globals__
        patched.setitem(used["in_turns"].__globals__, "asyncio", turns)
        patched.setattr(used["in_turns"], "__defaults__", (0.0,))
        patched.setattr(used["batches"], "__defaults__", (1,))
        answer = await work
        assert turns.count > 2, answer
        return answer


@gen_cluster(client=True)
async def test_all_names_change_in_one_turn(c: Client, s: Any, a: Any, b: Any) -> None:
    """No client sees a new X with an old y; all keys are wanted at any time."""
    found, old, new = await noted(c, s)
    seen = []

    async def look() -> None:
        seen.append(are_new(s))
        for name, was, will_be in zip("Xy", old, new):
            now = will_be if seen[-1][0] else was
            assert key_set(now) <= wanted_by(s, name)

    assert await in_turns(found.replace(c.id, requested(new), {}), look) == {}
    assert set(seen) == {(False, False), (True, True)}
    assert [wanted_by(s, name) for name in "Xy"] == [key_set(x) for x in new]
    assert not found.noted


@gen_cluster(client=True)
async def test_somebody_publishes_between_two_turns(
    c: Client, s: Any, a: Any, b: Any
) -> None:
    """No name is changed, and the new data is not kept."""
    found, old, new = await noted(c, s)
    theirs = c.persist(da.ones(3, chunks=1))
    did = count()

    async def publish() -> None:
        if next(did) == 0:
            await c.publish_dataset(theirs, name="y", override=True)

    answer = await in_turns(found.replace(c.id, requested(new), {"X": "o"}), publish)
    assert answer == {"changed": ["y"], "taken": [], "gone": 0}
    assert are_new(s) == (False, False)
    assert wanted_by(s, "X") == key_set(old[0])
    assert key_set(theirs) <= wanted_by(s, "y")
    assert not wanted_by(s, "y") & key_set(new)
    assert not wanted_by(s, "o")


@gen_cluster(client=True)
async def test_somebody_publishes_old_partitions_again(
    c: Client, s: Any, a: Any, b: Any
) -> None:
    """Data of a published name is not released."""
    found, old, new = await noted(c, s)
    did = count()

    async def publish() -> None:
        if are_new(s)[0] and next(did) == 0:
            await c.publish_dataset(old[0], name="X", override=True)

    assert await in_turns(found.replace(c.id, requested(new), {}), publish) == {}
    assert next(did) > 0
    assert key_set(old[0]) <= wanted_by(s, "X")


@gen_cluster(client=True)
async def test_new_partitions_are_gone(c: Client, s: Any, a: Any, b: Any) -> None:
    """Their client closed before, so no name is changed."""
    found, old, new = await noted(c, s)
    request = requested(new)
    gone = key_set(new)
    del new
    await soon(lambda: not any(key in s.tasks for key in gone))
    answer = await found.replace(c.id, request, {})
    assert answer == {"changed": [], "taken": [], "gone": 8}
    assert are_new(s) == (False, False)
    # and what was not noted is not changed either
    found.forget(c.id)
    answer = await found.replace(c.id, [("X", keys.pack(list(key_set(old))), "z")], {})
    assert answer["changed"] == ["X"]
    assert await found.note("unknown", ["X"]) == {"X": 0}
    assert not found.noted


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_data_that_is_lost_after_the_names_want_it(
    c: Client, s: Any, a: Any, b: Any
) -> None:
    """The last turn finds it, and no name changes."""
    found, old, new = await noted(c, s)
    lost = await c.scatter({("lost", i): i for i in range(8)}, workers=[b.address])
    request = [("X", keys.pack(list(lost)), "new X"), requested(new)[1]]

    async def close() -> None:
        if s.clients[c.id].wants_what and set(lost) <= wanted_by(s, "X"):
            await b.close()

    answer = await in_turns(found.replace(c.id, request, {}), close)
    assert answer == {"changed": [], "taken": [], "gone": 8}
    assert are_new(s) == (False, False)
    assert not any(isinstance(p, published.ChangedKeys) for p in s.plugins.values())
