"""The lease and the holds: which client may act on the workers.

The lease lets one plan at a time change the cluster. A hold protects the workers of a
fit: adaptive scaling removes none of them, and other clients get no lease. Both end
when their client closes, or after a grace period without a message of the client. Dask
removes a client when its connection breaks, even if the client then reconnects with the
same id. So a broken connection only starts the grace period.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from time import time
from typing import Any

GRACE = 15.0  # seconds without a message after which a client counts as lost
TOPIC = "clustertune"  # of Dask's events
SCHEDULER_OWNER = "clustertune"  # owner of a lease that belongs to no client
MAX_RELEASED = 1000  # tokens


class LeaseEndedError(PermissionError):
    """A request of a call whose lease has ended.

    The handler catches it and answers, because Dask logs a traceback for exceptions.
    """


class Owners:
    """The time of the last message of each client."""

    def __init__(self, scheduler: Any):
        self.scheduler = scheduler
        self.grace = GRACE
        self.seen: dict[str, float] = {}  # epoch seconds, without heartbeats
        self.timers: dict[str, asyncio.TimerHandle] = {}  # ends of grace periods

    def note(self, client: str) -> None:
        """Record a message of a client that is connected or in its grace period."""
        if client in self.scheduler.clients or client in self.seen:
            self.seen[client] = time()

    def begin_grace(self, client: str, on_end: Callable[[], None]) -> None:
        """Call a function unless the client sends a message in the grace period."""

        def end() -> None:
            self.end_grace(client)
            if not self.is_alive(client):
                on_end()

        self.seen[client] = time()
        self.end_grace(client)
        loop = asyncio.get_running_loop()
        self.timers[client] = loop.call_later(self.grace + 0.1, end)

    def end_grace(self, client: str) -> None:
        timer = self.timers.pop(client, None)
        if timer is not None:
            timer.cancel()

    def forget(self, client: str) -> None:
        self.end_grace(client)
        self.seen.pop(client, None)

    def close(self) -> None:
        for client in list(self.timers):
            self.end_grace(client)

    def is_alive(self, client: str) -> bool:
        """Whether a client sent a message within the grace period."""
        state = self.scheduler.clients.get(client)
        heartbeat = 0.0 if state is None else state.last_seen
        return time() - max(heartbeat, self.seen.get(client, 0.0)) <= self.grace

    def silence(self) -> str:
        """Return the reason why a client counts as lost."""
        return f"no message from its client for {self.grace:g} s"


class Holds:
    """The holds of one scheduler, by name."""

    def __init__(self, owners: Owners):
        self.owners = owners
        self.kept: dict[str, dict[str, Any]] = {}

    def begin(self, owner: str, label: str, name: str) -> None:
        self.kept[name] = {"client": owner, "label": label, "since": time()}

    def end(self, name: str) -> bool:
        """End a hold; False if it has ended already."""
        return self.kept.pop(name, None) is not None

    def forget(self, client: str, problem: str = "") -> None:
        """End all holds of a client; log the loss if there is a problem."""
        gone = {n: h for n, h in self.kept.items() if h["client"] == client}
        self.kept = {n: h for n, h in self.kept.items() if n not in gone}
        for hold in gone.values() if problem else ():
            log_loss(self.owners.scheduler, "hold", hold, problem)

    def active(self) -> list[dict[str, Any]]:
        """End holds of lost clients, and return the others, oldest first."""
        for client in {h["client"] for h in self.kept.values()}:
            if not self.owners.is_alive(client):
                self.forget(client, self.owners.silence())
        return list(self.kept.values())

    def of_others(self, owner: str) -> dict[str, Any] | None:
        """A hold of another client, if there is one."""
        return next((h for h in self.active() if h["client"] != owner), None)


class Lease:
    """The lease of one scheduler; ``on_end`` is called whenever a lease ends."""

    def __init__(self, owners: Owners, holds: Holds, on_end: Callable[[], None]):
        self.owners = owners
        self.holds = holds
        self.on_end = on_end
        self.current: dict[str, Any] | None = None
        self.seconds = 0.0  # of ended leases
        self.released: deque[str] = deque(maxlen=MAX_RELEASED)

    def holder(self) -> dict[str, Any] | None:
        """Return the current lease; end it first if its client is lost."""
        if self.current is None or self.current["client"] == SCHEDULER_OWNER:
            return self.current
        if not self.owners.is_alive(self.current["client"]):
            self.end(self.owners.silence())
        return self.current

    def in_use(self) -> dict[str, Any] | None:
        """Return the lease or the oldest hold, or None."""
        holder = self.holder() or next(iter(self.holds.active()), None)
        return holder and public(holder)

    def of_others(self, owner: str) -> dict[str, Any] | None:
        """Return the lease of another client, if there is one."""
        holder = self.holder()
        return None if holder is None or holder["client"] == owner else public(holder)

    def obstacle(self, owner: str, token: str) -> dict[str, Any] | None:
        """Return the lease or hold that prevents a new lease, or None."""
        if token in self.released:
            raise LeaseEndedError("this lease was released before it was granted")
        holder = self.holder()
        return public(holder) if holder is not None else self.holds.of_others(owner)

    def grant(self, owner: str, label: str, token: str) -> None:
        holder = {"client": owner, "label": label, "since": time()}
        self.current = holder | {"token": token}
        self.owners.note(owner)

    def release(self, token: str) -> None:
        """End the lease of a token; refuse it if it is requested later."""
        self.released.append(token)
        if self.current is not None and self.current["token"] == token:
            self.end()

    def check(self, token: str) -> None:
        """Raise an error unless the caller holds the lease."""
        if self.current is None or self.current["token"] != token:
            raise LeaseEndedError(
                "the lease of this call has ended: the scheduler had no message from "
                f"its client for {self.owners.grace:g} s, or the call has ended. The "
                "scheduler starts nothing more for it. Run the call again"
            )

    def is_held(self, name: str) -> bool:
        """Whether the lease with this token, or the hold with this name, is active."""
        holder = self.holder()
        if holder is not None and holder["token"] == name:
            return True
        self.holds.active()  # ends the holds of lost clients
        return name in self.holds.kept

    def end(self, problem: str = "") -> None:
        """End the lease; log the loss if there is a problem."""
        if problem and self.current is not None:
            log_loss(self.owners.scheduler, "lease", self.current, problem)
        self.seconds, self.current = self.total_seconds(), None
        self.on_end()

    def total_seconds(self) -> float:
        """Return for how long there was a lease, since the scheduler started."""
        now = time()
        since = now if self.current is None else self.current["since"]
        return self.seconds + max(0.0, now - since)

    def owns(self, client: str) -> bool:
        """Whether a client has the lease or a hold."""
        owners = [hold["client"] for hold in self.holds.kept.values()]
        owners += [] if self.current is None else [self.current["client"]]
        return client in owners

    def forget(self, client: str, problem: str = "") -> None:
        """End the lease and the holds of a client."""
        self.owners.forget(client)
        self.holds.forget(client, problem)
        if self.current is not None and self.current["client"] == client:
            self.end(problem)


def public(holder: Mapping[str, Any]) -> dict[str, Any]:
    """Return a lease or hold without its token, for other clients."""
    return {name: holder[name] for name in ("client", "label", "since")}


def log_loss(scheduler: Any, kind: str, holder: Mapping[str, Any], why: str) -> None:
    """Log in Dask's event log that a lease or a hold ended without its client."""
    event = {"action": f"{kind} lost", "label": holder["label"], "problem": why}
    scheduler.log_event(TOPIC, event | {"client": holder["client"]})


def has_closed(scheduler: Any, client: str) -> bool:
    """Whether the client that Dask is removing has closed, rather than lost contact.

    A client that closes asks for its removal over its connection, which is still open
    at that moment.
    """
    comm = scheduler.client_comms.get(client)
    return comm is not None and not comm.closed()
