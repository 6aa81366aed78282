"""Holds: blocks of a client's in which nothing of ours touches the workers of a fit.

Adaptive scaling takes no worker away meanwhile, and other clients get no lease. A hold
ends when its client closes, or after a grace period without a sign of that client.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import time
from typing import Any

from clustertune.remote.owners import Owners

TOPIC = "clustertune"  # of Dask's events


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
