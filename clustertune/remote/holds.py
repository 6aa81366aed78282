"""Holds: blocks of a client's in which nothing of ours touches the workers of a fit.

Adaptive scaling takes no worker away meanwhile, and other clients get no lease. A hold
ends with its client, or when the scheduler has not heard of that client for a while.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import time
from typing import Any


class Holds:
    """Of one scheduler, by name."""

    def __init__(self, scheduler: Any, frozen: float):
        self.scheduler = scheduler
        self.frozen = frozen  # seconds without a heartbeat of the client
        self.kept: dict[str, dict[str, Any]] = {}

    def take(self, owner: str, label: str, name: str) -> None:
        self.kept[name] = {"client": owner, "label": label, "since": time()}

    def give_back(self, name: str) -> bool:
        """Whether it was still there."""
        return self.kept.pop(name, None) is not None

    def forget(self, client: str) -> None:
        self.kept = {n: h for n, h in self.kept.items() if h["client"] != client}

    def there(self) -> list[dict[str, Any]]:
        """Those whose clients live, oldest first."""
        for hold in list(self.kept.values()):
            client = self.scheduler.clients.get(hold["client"])
            if client is None or time() - client.last_seen > self.frozen:
                self.forget(hold["client"])
        return list(self.kept.values())

    def of_others(self, owner: str) -> dict[str, Any] | None:
        """One of another client, if there is any."""
        return next((h for h in self.there() if h["client"] != owner), None)


def told(holder: Mapping[str, Any]) -> dict[str, Any]:
    """What others are told of who has a hold or the lease."""
    return {name: holder[name] for name in ("client", "label", "since")}
