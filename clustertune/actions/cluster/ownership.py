"""Which client holds which keys: release old partitions, keep those of other clients.

:class:`Release` releases old partitions while new ones are made of them. Only the
futures of this call are released, and every row stays in a partition that is held. If
the call fails, :func:`rescue` publishes the new partitions. :class:`Claims` makes the
caller's client hold given keys of other clients, since these become invalid when their
client closes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any

import numpy as np
from distributed import Client, Future

from clustertune.collections import graphs
from clustertune.core.model import Cut, Key
from clustertune.core.wording import plural, printable
from clustertune.errors import IncompleteError, RefusedError
from clustertune.monitor import monitor
from clustertune.remote import keys

logger = logging.getLogger("clustertune")

RESCUE_SECONDS = 60.0  # time limit for publishing new partitions
UNKNOWN_SECONDS = 10.0  # for the scheduler to read a graph that names unknown keys
CLAIMS_INTERVAL = 0.2  # least seconds between two requests about claimed keys
CLAIMS_SHARE = 20  # least time between requests, in times of the last request


class Release:
    """Releases old partitions of a collection when all new ones of them exist."""

    def __init__(self, cut: Cut, old: Sequence[Any], new: Sequence[Any]):
        self.label = cut.label
        self._old = dict(enumerate(old))
        self._waiting = dict(enumerate(new))
        self._parts = np.split(cut.key, np.searchsorted(cut.new, range(1, len(new))))
        self._uses = np.bincount(cut.key, minlength=len(old))
        # partitions without rows
        self._unused = np.flatnonzero(self._uses == 0).tolist()

    def advance(self) -> bool:
        """Release old partitions that no new one needs; return whether there were any.

        The client counts its futures. It sends the release of a key after its last
        future, in order with all other messages to the scheduler.
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
        """Old partitions that are not released yet."""
        return list(self._old.values())


async def shared(client: Client, partitions: Mapping[str, Sequence[Key]]) -> set[str]:
    """Labels of collections with a key that something else holds, too.

    The client has one future of this call for each key of ``partitions``.
    """
    labels = Counter(key for own in partitions.values() for key in own)
    found = set()
    for label, own in partitions.items():
        here = any(labels[key] > 1 or client.refcount.get(key, 0) > 1 for key in own)
        if here or await _wanted_by_others(client, own):
            found.add(label)
    return found


async def _wanted_by_others(client: Client, wanted: Sequence[Key]) -> int:
    """Count the keys that other clients hold; a published data set is a client."""
    packed = await asyncio.to_thread(keys.pack, wanted)
    mine = {"owner": client.id, "keys": packed}
    count: int = (await monitor.ask(client, "look_at_keys", **mine))["others"]
    return count


async def refuse_shared(
    client: Client, freed: Sequence[Any], others: Mapping[str, Sequence[Any]]
) -> None:
    """Refuse to release keys of the caller that anything else needs.

    ``freed`` has the futures of the keys, ``others`` the futures of other data of the
    same call by label. Raises ``RefusedError`` if something else needs a key;
    nothing was released.
    """
    wanted = {f.key for f in freed}
    for label, futures in others.items():
        if not wanted.isdisjoint(f.key for f in futures):
            raise RefusedError(
                f"release_inputs=True would release partitions that {label} needs, "
                "too; give a copy of it, or omit release_inputs"
            )
    # one future of each is the caller's own
    here = sum(client.refcount.get(f.key, 0) > 1 for f in freed)
    there = await _wanted_by_others(client, [f.key for f in freed])
    if here or there:
        who = "another client or a published data set"
        who = "another collection in this process" if here else who
        raise RefusedError(
            "release_inputs=True would release "
            f"{plural(max(here, there), 'partition')} that {who} needs, too, so it "
            "releases none. Call prepare without "
            "release_inputs, or delete the other names of this data first"
        )


async def rescue(
    client: Client, token: str, made: Sequence[Any], left: Sequence[Any]
) -> str:
    """Publish the new partitions of released ones; return where, as text.

    Old partitions that are not cut yet are published under a second name.
    """
    name = f"clustertune-{token[:8]}"
    try:
        await asyncio.wait_for(_publish(client, name, made, left), RESCUE_SECONDS)
    # any error: it must not hide the error of the call
    except Exception as error:  # noqa: BLE001
        logger.warning("clustertune could not publish %s: %r", name, error)
        return "; the new partitions of released ones could not be published"
    rest = f"; partitions that were not cut yet in {name + '-left'!r}" if left else ""
    return (
        "; the old partitions are released; the new ones are in "
        f"client.get_dataset({name!r}), in the order of the arguments{rest}"
    )


async def _publish(
    client: Client, name: str, made: Sequence[Any], left: Sequence[Any]
) -> None:
    await client.publish_dataset(list(made), name=name)
    if left:
        await client.publish_dataset(list(left), name=f"{name}-left")


# --- keys of other clients ------------------------------------------------------------


class Claims:
    """Keys of other clients that the caller's client holds, too."""

    def __init__(self, client: Client):
        self.client = client
        # the given future, and that of the caller's client
        self._pairs: list[tuple[Any, Any]] = []
        self._next = 0.0

    def __bool__(self) -> bool:
        return bool(self._pairs)

    def own(self, collection: Any, futures: Sequence[Any]) -> tuple[Any, list[Any]]:
        """The same collection and keys, as futures of the caller's client."""
        client = self.client
        if all(f.client is client for f in futures):
            return collection, list(futures)
        pairs = [
            (f, f if f.client is client else Future(f.key, client=client))
            for f in futures
        ]
        self._pairs += [(given, own) for given, own in pairs if given is not own]
        mine = [own for _, own in pairs]
        return graphs.of_futures(collection, mine), mine

    async def renew(self) -> None:
        """Have the scheduler keep the keys for the client; refuse missing ones.

        A new future of a known key does not do that. Raises ``IncompleteError`` if
        their client was closed, or released or cancelled them.
        """
        start = monotonic()
        if start < self._next:
            return
        waiting = [(g, o) for g, o in self._pairs if o.status in ("pending", "lost")]
        if waiting:
            unwanted = await self.refuse_gone(waiting)
            message = {"op": "client-desires-keys", "keys": unwanted}
            if unwanted:  # in order with the release of the same keys
                mine = {"client": self.client.id}
                self.client._send_to_scheduler(message | mine)  # noqa: SLF001
        took = monotonic() - start
        self._next = monotonic() + max(CLAIMS_INTERVAL, CLAIMS_SHARE * took)

    async def refuse_unknown(self, futures: Sequence[Any]) -> None:
        """Refuse pending futures whose keys the scheduler does not know.

        A pending key may belong to a graph that is still on its way. So an answer
        counts only if a later message of the client has arrived since, and if the
        scheduler reads no graph. Raises ``IncompleteError``.
        """
        others = {id(own) for _, own in self._pairs}
        sent, end = None, monotonic() + UNKNOWN_SECONDS
        while monotonic() < end:
            waiting = [
                f
                for f in futures
                if f.status in ("pending", "lost") and id(f) not in others
            ]
            if not waiting:
                return
            packed = await asyncio.to_thread(keys.pack, [f.key for f in waiting])
            found: Mapping[str, Any] = await monitor.ask(
                self.client, "look_at_keys", owner=self.client.id, keys=packed
            )
            gone = np.frombuffer(found["gone"], dtype=np.int64).tolist()
            if not gone:
                return
            if found["reading"]:
                sent = None
            elif sent is None:
                sent = found["heartbeat"]
                self.client._send_to_scheduler({"op": "heartbeat-client"})  # noqa: SLF001
            elif found["heartbeat"] > sent:
                raise IncompleteError(
                    f"{plural(len(gone), 'partition')} of the data "
                    f"{'is' if len(gone) == 1 else 'are'} gone, such as "
                    f"{printable(str(waiting[gone[0]].key))}: the scheduler does not "
                    "know the key, as after client.restart(), a restart of the "
                    "scheduler, or the end of the client that made it. Load the data "
                    "again"
                )
            await asyncio.sleep(CLAIMS_INTERVAL / 4)

    async def refuse_gone(self, pairs: Sequence[tuple[Any, Any]]) -> list[Key]:
        """The keys that the scheduler has and the client does not hold.

        Raises ``IncompleteError`` if a key will never be in memory. A pending future
        may belong to a graph that the scheduler has not read yet.
        """
        names = [own.key for _, own in pairs]
        packed = await asyncio.to_thread(keys.pack, names)
        found: Mapping[str, bytes] = await monitor.ask(
            self.client, "look_at_keys", owner=self.client.id, keys=packed
        )
        for i in np.frombuffer(found["gone"], dtype=np.int64).tolist():
            given, own = pairs[i]
            if given.status != "pending":
                raise IncompleteError(
                    f"the partition {printable(str(own.key))} is gone: its client was "
                    "closed, or released or cancelled it. Load the data again, and "
                    "keep its client open until prepare has returned"
                )
        return [names[i] for i in np.frombuffer(found["unwanted"], dtype=np.int64)]
