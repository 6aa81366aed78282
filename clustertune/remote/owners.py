"""Clients that own the lease or a hold, and whether the scheduler still hears of them.

Dask removes a client as soon as its connection breaks, even if the client reconnects a
moment later under the same id. A broken connection therefore starts a grace period. A
client that closes is gone at once.
"""

from __future__ import annotations

from time import time
from typing import Any

GRACE = 15.0  # seconds without a sign of a client after which it counts as gone


class Owners:
    """When each client gave its last sign: a heartbeat, a request or a connection.

    Parameters
    ----------
    scheduler
        The scheduler.
    grace
        Seconds.
    """

    def __init__(self, scheduler: Any, grace: float = GRACE):
        self.scheduler = scheduler
        self.grace = grace
        self.seen: dict[str, float] = {}  # epoch seconds, without heartbeats

    def note(self, client: str) -> None:
        """A client that Dask knows, or that is in its grace period, gave a sign."""
        if client in self.scheduler.clients or client in self.seen:
            self.seen[client] = time()

    def begin_grace(self, client: str) -> None:
        """The connection of this client has just broken."""
        self.seen[client] = time()

    def forget(self, client: str) -> None:
        self.seen.pop(client, None)

    def is_alive(self, client: str) -> bool:
        """Whether it gave a sign within the grace period."""
        state = self.scheduler.clients.get(client)
        heartbeat = 0.0 if state is None else state.last_seen
        return time() - max(heartbeat, self.seen.get(client, 0.0)) <= self.grace

    def silence(self) -> str:
        """Why a client counts as gone."""
        return f"no sign of its client for {self.grace:g} s"


def has_closed(scheduler: Any, client: str) -> bool:
    """Whether the client that Dask is removing has closed, rather than lost contact.

    A client that closes asks to be removed over its connection, which is still open at
    that moment.
    """
    comm = scheduler.client_comms.get(client)
    return comm is not None and not comm.closed()
