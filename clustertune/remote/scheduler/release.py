"""Release data on request: by prefix, or by a restart; and the names that hold data.

The scans take time that grows with all keys, in short turns of the event loop. They run
only before data is destroyed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Container, Mapping
from time import time
from typing import Any

from clustertune.remote.keys import batches, drained, in_turns
from clustertune.remote.scheduler.state import COMING, is_computable

MAX_GROUPS = 5000  # of prefix and owners that are reported
REASON = "released"
MESSAGE = "Its data was released on purpose, by clustertune. Load or compute it again."


async def wanted_tasks(
    scheduler: Any, kept: Container[Any]
) -> AsyncIterator[tuple[Any, frozenset[str]]]:
    """Yield tasks whose results clients want, and these clients."""
    todo = list(scheduler.tasks.values())
    todo.reverse()  # drained from its end
    async for ts in in_turns(drained(todo)):
        if ts.who_wants and ts.key not in kept:
            yield ts, frozenset(c.client_key for c in ts.who_wants)


async def holdings(
    scheduler: Any, owner: str, kept: Container[Any] = ()
) -> list[list[Any]]:
    """Return data in memory, by prefix and by the clients that want it.

    Returns
    -------
    list of [prefix, keys, nbytes, scattered, coming, mine, others]
        ``coming`` are tasks without a result yet, ``others`` clients besides the owner,
        also Dask's clients of names, such as ``published-train``.
    """
    found: dict[tuple[str, frozenset[str]], list[int]] = {}
    async for ts, wanting in wanted_tasks(scheduler, kept):
        there = ts.state == "memory"
        if not (there or ts.state in COMING):
            continue
        entry = (str(ts.prefix.name), wanting)
        if entry not in found and len(found) >= MAX_GROUPS:
            entry = ("", wanting)
        numbers = found.setdefault(entry, [0, 0, 0, 0])
        numbers[0] += there
        numbers[1] += ts.nbytes if there else 0
        numbers[2] += there and not is_computable(ts)
        numbers[3] += not there
    return [
        [prefix, *numbers, owner in wanting, sorted(wanting - {owner})]
        for (prefix, wanting), numbers in found.items()
    ]


async def release(
    scheduler: Any, owner: str, prefix: str, kept: Container[Any]
) -> tuple[int, int]:
    """Release the keys of a prefix that only the owner wants, except ``kept`` keys.

    Tasks that are still to run keep their inputs until they have run. Futures of the
    released keys are cancelled. Returns the number of released keys, and their bytes.
    """
    nbytes = 0
    going: list[Any] = []
    async for ts, wanting in wanted_tasks(scheduler, kept):
        if ts.state == "memory" and ts.prefix.name == prefix and wanting == {owner}:
            nbytes += ts.nbytes
            going.append(ts.key)
    count = len(going)
    await release_for(scheduler, {owner: going})
    return count, nbytes


async def release_for(
    scheduler: Any, going: Mapping[str, list[Any]], reason: str = MESSAGE
) -> None:
    """Release keys by client, and drain the lists; their futures are cancelled."""
    for client, keys in going.items():
        async for some in in_turns(batches(drained(keys))):
            scheduler.client_releases_keys(
                keys=some, client=client, stimulus_id=f"clustertune-release-{time()}"
            )
            message = {"op": "cancelled-keys", "keys": some}
            scheduler.report(message | {"reason": REASON, "msg": reason}, client=client)


# --- published names ------------------------------------------------------------------


def unpublish_all(scheduler: Any) -> list[str]:
    """Remove all published names that hold keys, before all keys are lost."""
    datasets = getattr(scheduler.extensions.get("publish"), "datasets", {})
    names = [name for name, entry in datasets.items() if entry["keys"]]
    for name in names:
        del datasets[name]
    return [str(name) for name in names]
