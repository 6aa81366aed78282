"""Keep loaded data that the caller gave for the caller's own client.

Futures of another client are worth nothing once that client closes. So the collections
that ``prepare`` hands back hold futures of the client that it was given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any

import numpy as np
from distributed import Client, Future

from clustertune.collections import graphs
from clustertune.core.model import Key
from clustertune.core.wording import printable
from clustertune.errors import IncompleteError
from clustertune.monitor import monitor
from clustertune.remote import keys

GLANCE = 0.2  # seconds between two requests which pieces are gone, at least
RARELY = 20  # times as long as the request took, at least


class Claims:
    """Pieces of other clients that the caller's client wants too."""

    def __init__(self, client: Client):
        self.client = client
        self._pairs: list[tuple[Any, Any]] = []  # the given future, and our own
        self._next = 0.0

    def __bool__(self) -> bool:
        return bool(self._pairs)

    def own(self, collection: Any, futures: Sequence[Any]) -> tuple[Any, list[Any]]:
        """The same collection and its pieces, as futures of the caller's client."""
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
        """Have the scheduler keep pieces for the client; refuse ones that are gone.

        A new future of a known key does not do that.

        Raises
        ------
        IncompleteError
            Their client was closed, or has released or cancelled them.
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
        self._next = monotonic() + max(GLANCE, RARELY * (monotonic() - start))

    async def refuse_gone(self, pairs: Sequence[tuple[Any, Any]]) -> list[Key]:
        """The keys that the scheduler has and the client does not want.

        Raises
        ------
        IncompleteError
            A piece will never be in memory. A pending future may be of a graph that
            the scheduler has not read yet.
        """
        names = [own.key for _, own in pairs]
        packed = await asyncio.to_thread(keys.pack, names)
        found: Mapping[str, bytes] = await monitor.ask(
            self.client, "claims", owner=self.client.id, keys=packed
        )
        for i in np.frombuffer(found["gone"], dtype=np.int64).tolist():
            given, own = pairs[i]
            if given.status != "pending":
                raise IncompleteError(
                    f"the piece {printable(str(own.key))} is gone: its client was "
                    "closed, or has released or cancelled it; load the data again, "
                    "and keep its client open until prepare has returned"
                )
        return [names[i] for i in np.frombuffer(found["unwanted"], dtype=np.int64)]
