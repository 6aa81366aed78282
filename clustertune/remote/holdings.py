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
    list of [prefix, keys, nbytes, scattered, mine, others, published]
        ``others`` are clients besides the owner, ``published`` names of data sets.
    """
    names = published(scheduler)
    found: dict[tuple[str, frozenset[str]], list[int]] = {}
    async for ts, wanting in in_memory(scheduler, kept):
        entry = (str(ts.prefix.name), wanting)
        if entry not in found and len(found) >= MOST:
            entry = ("", wanting)
        numbers = found.setdefault(entry, [0, 0, 0])
        numbers[0] += 1
        numbers[1] += ts.nbytes
        numbers[2] += ts.run_spec is None
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


def published(scheduler: Any) -> dict[str, str]:
    """Names of data sets, by the client as which the scheduler holds them."""
    publisher = scheduler.extensions.get("publish")
    datasets = () if publisher is None else publisher.datasets
    return {f"published-{stringify(name)}": str(name) for name in datasets}


async def in_memory(
    scheduler: Any, kept: Collection[Any]
) -> AsyncIterator[tuple[Any, frozenset[str]]]:
    """Tasks whose results somebody wants kept, and who these are."""
    for i, ts in enumerate(list(scheduler.tasks.values())):
        if i % YIELD == YIELD - 1:
            await asyncio.sleep(0)
        if ts.state == "memory" and ts.who_wants and ts.key not in kept:
            yield ts, frozenset(c.client_key for c in ts.who_wants)


async def release(
    scheduler: Any, owner: str, prefix: str, kept: Collection[Any], others: bool
) -> tuple[int, int]:
    """Have clients want the keys of a prefix no more; answers with (keys, bytes).

    Unless ``others`` is set, only those that the owner alone wants. What tasks that are
    still to run depend on stays until these have run.
    """
    count = nbytes = 0
    wanted: dict[str, list[Any]] = {}
    async for ts, wanting in in_memory(scheduler, kept):
        if ts.prefix.name == prefix and (others or wanting == {owner}):
            count += 1
            nbytes += ts.nbytes
            for client in wanting:
                wanted.setdefault(client, []).append(ts.key)
    for client, names in wanted.items():
        for start in range(0, len(names), YIELD):
            some = names[start : start + YIELD]
            scheduler.client_releases_keys(
                keys=some, client=client, stimulus_id=f"clustertune-release-{time()}"
            )
            message = {"op": "cancelled-keys", "keys": some}
            scheduler.report(message | {"reason": REASON, "msg": SAID}, client=client)
            await asyncio.sleep(0)
    return count, nbytes
