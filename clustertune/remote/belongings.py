"""What would be lost with the scheduler and all its workers, and whose it is.

Every key that somebody wants is looked at: this is asked before everything is
destroyed, and at no other time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from clustertune.remote import keys

YIELD = 2000


async def belongings(dask_scheduler: Any, saved: Sequence[Any]) -> dict[str, Any]:
    """By client what it wants of what is in memory and not saved, and shared names.

    Parameters
    ----------
    dask_scheduler
        Given by Dask.
    saved
        Packed keys that need not be counted.
    """
    known = {key for runs in saved for key in keys.unpack(runs)}
    owners = [
        [str(name), *await _of_client(cs, known)]
        for name, cs in list(dask_scheduler.clients.items())
    ]
    extensions = dask_scheduler.extensions
    names = [["published", str(name)] for name in extensions["publish"].datasets]
    names += [["variable", str(name)] for name in extensions["variables"].variables]
    names += [["queue", str(name)] for name in extensions["queues"].queues]
    return {"owners": [o for o in owners if o[1] or o[2]], "names": names}


async def _of_client(client: Any, known: set[Any]) -> tuple[list[list[Any]], int]:
    """(prefix, keys, bytes) of what is in memory; tasks that are still to be done."""
    found: dict[str, list[Any]] = {}
    coming = 0
    for i, ts in enumerate(list(client.wants_what)):
        if i % YIELD == YIELD - 1:
            await asyncio.sleep(0)
        if ts.key in known:
            continue
        if ts.state == "memory":
            row = found.setdefault(ts.prefix.name, [str(ts.prefix.name), 0, 0])
            row[1] += 1
            row[2] += ts.get_nbytes()
        elif ts.state in ("waiting", "no-worker", "queued", "processing"):
            coming += 1
    return sorted(found.values(), key=lambda row: -row[2]), coming
