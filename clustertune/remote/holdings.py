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

from clustertune.remote.survey import COMING

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


def shared(scheduler: Any) -> dict[str, tuple[str, str]]:
    """Kind and name of what is shared by name, by the client that holds it for all."""
    extensions = scheduler.extensions
    found = {}
    for extension, table, kind in (
        ("publish", "datasets", "published"),
        ("variables", "variables", "variable"),
        ("queues", "queues", "queue"),
    ):
        for name in getattr(extensions.get(extension), table, ()):
            found[f"{kind}-{stringify(name)}"] = (kind, str(name))
    return found


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
    scheduler: Any, owner: str, prefix: str, kept: Collection[Any], others: bool
) -> tuple[int, int]:
    """Have clients want the keys of a prefix no more; answers with (keys, bytes).

    Unless ``others`` is set, only those that the owner alone wants. What tasks that are
    still to run depend on stays until these have run.
    """
    count = nbytes = 0
    going: dict[str, list[Any]] = {}
    async for ts, wanting in wanted(scheduler, kept):
        there = ts.state == "memory" and ts.prefix.name == prefix
        if there and (others or wanting == {owner}):
            count += 1
            nbytes += ts.nbytes
            for client in wanting:
                going.setdefault(client, []).append(ts.key)
    for client, names in going.items():
        for start in range(0, len(names), YIELD):
            some = names[start : start + YIELD]
            scheduler.client_releases_keys(
                keys=some, client=client, stimulus_id=f"clustertune-release-{time()}"
            )
            message = {"op": "cancelled-keys", "keys": some}
            scheduler.report(message | {"reason": REASON, "msg": SAID}, client=client)
            await asyncio.sleep(0)
    return count, nbytes
