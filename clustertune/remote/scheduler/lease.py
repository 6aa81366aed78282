"""Clients that own the lease or a hold, and whether the scheduler still hears of them.

Dask removes a client as soon as its connection breaks, even if the client reconnects a
moment later under the same id. A broken connection therefore starts a grace period. A
client that closes is gone at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import time
from typing import Any

GRACE = 15.0  # seconds without a sign of a client after which it counts as gone
TOPIC = "clustertune"  # of Dask's events


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


class Holds:
    """Of one scheduler, by name."""

    def __init__(self, owners: Owners):
        self.owners = owners
        self.kept: dict[str, dict[str, Any]] = {}

    def take(self, owner: str, label: str, name: str) -> None:
        self.kept[name] = {"client": owner, "label": label, "since": time()}

    def give_back(self, name: str) -> bool:
        """Whether it was still there."""
        return self.kept.pop(name, None) is not None

    def forget(self, client: str, problem: str = "") -> None:
        """End all holds of a client; with a problem the loss is logged."""
        gone = {n: h for n, h in self.kept.items() if h["client"] == client}
        self.kept = {n: h for n, h in self.kept.items() if n not in gone}
        for hold in gone.values() if problem else ():
            log_loss(self.owners.scheduler, "hold", hold, problem)

    def there(self) -> list[dict[str, Any]]:
        """The holds of living clients, oldest first; the others end here."""
        for client in {h["client"] for h in self.kept.values()}:
            if not self.owners.is_alive(client):
                self.forget(client, self.owners.silence())
        return list(self.kept.values())

    def of_others(self, owner: str) -> dict[str, Any] | None:
        """One of another client, if there is any."""
        return next((h for h in self.there() if h["client"] != owner), None)


def told(holder: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a lease or a hold that other clients may read: not its token."""
    return {name: holder[name] for name in ("client", "label", "since")}


def log_loss(scheduler: Any, kind: str, holder: Mapping[str, Any], why: str) -> None:
    """Log in Dask's event log that a lease or a hold ended without its client."""
    event = {"action": f"{kind} lost", "label": holder["label"], "problem": why}
    scheduler.log_event(TOPIC, event | {"client": holder["client"]})
