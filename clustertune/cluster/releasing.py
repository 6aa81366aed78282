"""Lets old pieces go while new ones are made of them: for data that does not fit twice.

Every row is at any time in an old piece that is held or in a new one that is there.
Pieces that somebody else needs are not released; and what took the place of released
ones is published if the call fails, since nobody has a name for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from distributed import Client

from clustertune.cluster import monitor
from clustertune.errors import SharedDataError
from clustertune.model import Cut, Key
from clustertune.remote import keys

logger = logging.getLogger("clustertune")

RESCUE = 60.0  # seconds in which what took the place of released pieces is published


class Release:
    """Lets go of old pieces of one collection as soon as nothing is made of them."""

    def __init__(self, cut: Cut, old: Sequence[Any], new: Sequence[Any]):
        self.label = cut.label
        self._old = dict(enumerate(old))
        self._waiting = dict(enumerate(new))
        self._parts = np.split(cut.key, np.searchsorted(cut.new, range(1, len(new))))
        self._uses = np.bincount(cut.key, minlength=len(old))
        self._unused = np.flatnonzero(self._uses == 0).tolist()  # without rows
        self._gone: list[Any] = []

    def go_on(self) -> list[Key]:
        """The keys that nothing needs any more, which were not told before."""
        there = [n for n, f in self._waiting.items() if f.status == "finished"]
        for number in there:
            del self._waiting[number]
            self._uses[self._parts[number]] -= 1
        if not there:
            return []
        parts = np.unique(np.concatenate([self._parts[n] for n in there]))
        done = [*parts[self._uses[parts] == 0].tolist(), *self._unused]
        self._unused = []
        gone = [self._old.pop(k) for k in done]
        self._gone += gone
        return [f.key for f in gone]

    def end(self) -> None:
        """Release what was told: one message for each, so not while others wait."""
        for future in self._gone:
            future.release()

    def held(self) -> list[Any]:
        """Old pieces that have not been let go, if new ones are still to be made."""
        return list(self._old.values())


async def refuse_shared(
    client: Client, freed: Sequence[Any], others: Mapping[str, Sequence[Any]]
) -> None:
    """See that nobody else needs pieces of the caller's that will be freed.

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
        Somebody does; nothing was freed.
    """
    wanted = {f.key for f in freed}
    for label, futures in others.items():
        if not wanted.isdisjoint(f.key for f in futures):
            raise SharedDataError(
                f"release_inputs=True would free pieces that {label} needs too; "
                "give a copy of it, or leave release_inputs out"
            )
    # one future of each is the caller's own
    here = sum(client.refcount[f.key] > 1 for f in freed)
    packed = keys.pack([f.key for f in freed])
    owner = client.id
    there = await monitor.ask(client, "wanted", keys=packed, owner=owner)
    if here or there:
        who = "another collection in this process" if here else "another client"
        raise SharedDataError(
            f"release_inputs=True would free {max(here, there)} pieces that {who} "
            "needs too (a published data set counts as one); let go of it there, "
            "or leave release_inputs out"
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
