"""Which keys are in memory, whose they are, and letting go of them.

Runs on the scheduler, in short turns; the time that it takes grows with all keys, so it
is done only where somebody is going to destroy data.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from time import time
from typing import Any

from dask.utils import stringify

from clustertune.remote.survey import COMING, shared

MOST = 5000  # prefixes, each with those who want it, that are told apart
YIELD = 2000  # keys between two yields to the event loop
REASON = "released"
SAID = "Its data was released on purpose, by clustertune. Load or compute it again."


async def holdings(
    scheduler: Any, owner: str, kept: Collection[Any] = ()
) -> list[list[Any]]:
    """By prefix and by who wants them: how many keys, bytes, scattered ones.

    Returns
    -------
    list of [prefix, keys, nbytes, scattered, coming, mine, others, shared]
        ``coming`` are tasks that are still to be done, ``others`` clients besides the
        owner, ``shared`` pairs of kind and name. A name of which no key is in memory
        has a row of its own, without keys.
    """
    names = shared(scheduler)
    found = {("", frozenset([client])): [0, 0, 0, 0] for client in names}
    async for ts, wanting in wanted(scheduler, kept):
        there = ts.state == "memory"
        if not (there or ts.state in COMING):
            continue
        entry = (str(ts.prefix.name), wanting)
        if entry not in found and len(found) >= MOST:
            entry = ("", wanting)
        numbers = found.setdefault(entry, [0, 0, 0, 0])
        numbers[0] += there
        numbers[1] += ts.nbytes if there else 0
        numbers[2] += there and ts.run_spec is None
        numbers[3] += not there
    return [
        [
            prefix,
            *numbers,
            owner in wanting,
            sorted(wanting - {owner} - names.keys()),
            sorted(names[c] for c in wanting & names.keys()),
        ]
        for (prefix, wanting), numbers in found.items()
    ]


async def wanted(
    scheduler: Any, kept: Collection[Any]
) -> AsyncIterator[tuple[Any, frozenset[str]]]:
    """Tasks of which somebody wants the results kept, and who these are."""
    for i, ts in enumerate(list(scheduler.tasks.values())):
        if i % YIELD == YIELD - 1:
            await asyncio.sleep(0)
        if ts.who_wants and ts.key not in kept:
            yield ts, frozenset(c.client_key for c in ts.who_wants)


async def release(
    scheduler: Any,
    owner: str,
    prefix: str,
    kept: Collection[Any],
    others: bool,
    together: Collection[str] = (),
) -> tuple[int, int, list[str]]:
    """Have clients want the keys of a prefix no more.

    Unless ``others`` is set, only those that the owner alone wants. What tasks that are
    still to run depend on stays until these have run. Names that were published for
    these keys are removed first, so that none points to nothing. A name that also holds
    keys of prefixes that are not in ``together`` keeps all of its keys.

    Returns
    -------
    tuple
        How many keys, their bytes, and the names that were removed.
    """
    sizes: dict[Any, int] = {}
    going: dict[str, list[Any]] = {}
    async for ts, wanting in wanted(scheduler, kept):
        there = ts.state == "memory" and ts.prefix.name == prefix
        if there and (others or wanting == {owner}):
            sizes[ts.key] = ts.nbytes
            for client in wanting:
                going.setdefault(client, []).append(ts.key)
    names, staying = _unpublish(scheduler, going, {prefix, *together})
    released = [n for key, n in sizes.items() if key not in staying]
    for client, keys in going.items():
        for start in range(0, len(keys), YIELD):
            some = keys[start : start + YIELD]
            scheduler.client_releases_keys(
                keys=some, client=client, stimulus_id=f"clustertune-release-{time()}"
            )
            message = {"op": "cancelled-keys", "keys": some}
            scheduler.report(message | {"reason": REASON, "msg": SAID}, client=client)
            await asyncio.sleep(0)
    return len(released), sum(released), names


def _unpublish(
    scheduler: Any, going: dict[str, list[Any]], prefixes: Collection[str]
) -> tuple[list[str], set[Any]]:
    """Remove the published names of keys that are going; these names.

    ``going`` are keys by client. A name stays that alone holds other data, and so do
    its keys, which are returned, too.
    """
    removed: list[str] = []
    staying: set[Any] = set()
    datasets = getattr(scheduler.extensions.get("publish"), "datasets", {})
    for name, entry in list(datasets.items()):
        client = f"published-{stringify(name)}"
        keys = set(going.get(client, ()))
        if keys.isdisjoint(entry["keys"]):
            continue
        rest = [key for key in entry["keys"] if key not in keys]
        alone = [key for key in rest if _is_alone(scheduler, key, client)]
        if any(scheduler.tasks[key].prefix.name not in prefixes for key in alone):
            staying.update(going.pop(client))
            continue
        del datasets[name]
        removed.append(str(name))
        # what is in memory and has no other holder waits for the turn of its prefix
        going[client] += set(rest).difference(alone)
    return removed, staying


def _is_alone(scheduler: Any, key: Any, client: str) -> bool:
    """Whether data in memory is wanted by this client alone."""
    ts = scheduler.tasks.get(key)
    return (
        ts is not None
        and ts.state == "memory"
        and {c.client_key for c in ts.who_wants or ()} == {client}
    )


def unpublish_all(scheduler: Any) -> list[str]:
    """Remove all published names that hold keys, before all keys are lost."""
    datasets = getattr(scheduler.extensions.get("publish"), "datasets", {})
    names = [name for name, entry in datasets.items() if entry["keys"]]
    for name in names:
        del datasets[name]
    return [str(name) for name in names]
