"""Release old pieces while new ones are made of them: for data that does not fit twice.

Every row is at any time in an old piece that is held or in a new one that is there.
Only the call's own futures are released, so a piece that another collection or client
holds stays in memory. If the call fails, the new pieces of released ones are published,
because the caller has no name for them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from distributed import Client

from clustertune.core.model import Cut, Key
from clustertune.core.wording import plural
from clustertune.errors import SharedDataError
from clustertune.monitor import monitor
from clustertune.remote import keys

logger = logging.getLogger("clustertune")

RESCUE = 60.0  # seconds in which what took the place of released pieces is published


class Release:
    """Releases old pieces of one collection as soon as all new ones of them exist."""

    def __init__(self, cut: Cut, old: Sequence[Any], new: Sequence[Any]):
        self.label = cut.label
        self._old = dict(enumerate(old))
        self._waiting = dict(enumerate(new))
        self._parts = np.split(cut.key, np.searchsorted(cut.new, range(1, len(new))))
        self._uses = np.bincount(cut.key, minlength=len(old))
        self._unused = np.flatnonzero(self._uses == 0).tolist()  # without rows

    def go_on(self) -> bool:
        """Release what no new piece needs any more; whether that was anything.

        The client counts its futures. It tells the scheduler only after the last future
        of a key is released, in order with everything else that it sends.
        """
        there = [n for n, f in self._waiting.items() if f.status == "finished"]
        for number in there:
            del self._waiting[number]
            self._uses[self._parts[number]] -= 1
        if not there:
            return False
        parts = np.unique(np.concatenate([self._parts[n] for n in there]))
        done = [*parts[self._uses[parts] == 0].tolist(), *self._unused]
        self._unused = []
        for number in done:
            self._old.pop(number).release()
        return bool(done)

    def held(self) -> list[Any]:
        """Old pieces that have not been released."""
        return list(self._old.values())


async def shared(client: Client, pieces: Mapping[str, Sequence[Key]]) -> set[str]:
    """Labels of collections with a piece that is held by anything else too.

    Parameters
    ----------
    client
        Each key has one future of this call.
    pieces
        Keys by label.
    """
    labels = Counter(key for own in pieces.values() for key in own)
    found = set()
    for label, own in pieces.items():
        here = any(labels[key] > 1 or client.refcount.get(key, 0) > 1 for key in own)
        if here or await _wanted_by_others(client, own):
            found.add(label)
    return found


async def _wanted_by_others(client: Client, wanted: Sequence[Key]) -> int:
    """How many of these keys other clients want; a published data set is a client."""
    packed = await asyncio.to_thread(keys.pack, wanted)
    count: int = await monitor.ask(client, "wanted", keys=packed, owner=client.id)
    return count


async def refuse_shared(
    client: Client, freed: Sequence[Any], others: Mapping[str, Sequence[Any]]
) -> None:
    """Refuse to free pieces of the caller's that anything else needs.

    Parameters
    ----------
    client
        Whose call it is.
    freed
        Futures of the pieces.
    others
        By label, futures of other data of the same call.

    Raises
    ------
    SharedDataError
        Something does; nothing was freed.
    """
    wanted = {f.key for f in freed}
    for label, futures in others.items():
        if not wanted.isdisjoint(f.key for f in futures):
            raise SharedDataError(
                f"release_inputs=True would free pieces that {label} needs too; "
                "give a copy of it, or leave release_inputs out"
            )
    # one future of each is the caller's own
    here = sum(client.refcount.get(f.key, 0) > 1 for f in freed)
    there = await _wanted_by_others(client, [f.key for f in freed])
    if here or there:
        who = (
            "another collection in this process"
            if here
            else "another client or a published data set"
        )
        raise SharedDataError(
            f"release_inputs=True would free {plural(max(here, there), 'piece')} that "
            f"{who} needs too, so it frees none of them; call prepare without "
            "release_inputs, or delete the other names of this data first"
        )


async def rescue(
    client: Client, token: str, made: Sequence[Any], left: Sequence[Any]
) -> str:
    """Publish what is made of released pieces; says where.

    Whoever called has names for pieces that are gone, and none for what took their
    place. What is not cut yet is published beside it.
    """
    name = f"clustertune-{token[:8]}"
    try:
        await asyncio.wait_for(_publish(client, name, made, left), RESCUE)
    # whatever it is, it must not hide what the caller has to say
    except Exception as error:  # noqa: BLE001
        logger.warning("clustertune could not publish %s: %r", name, error)
        return "; what was cut of released pieces could not be published"
    rest = f"; pieces that were not cut yet in {name + '-left'!r}" if left else ""
    return (
        "; old pieces of what was cut are released: the new ones are in "
        f"client.get_dataset({name!r}), in the order given{rest}"
    )


async def _publish(
    client: Client, name: str, made: Sequence[Any], left: Sequence[Any]
) -> None:
    await client.publish_dataset(list(made), name=name)
    if left:
        await client.publish_dataset(list(left), name=f"{name}-left")
