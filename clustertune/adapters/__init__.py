"""How the cluster managers scale: one file each; this module finds the right one.

An adapter has ``matches(cluster)``, ``obstacle(cluster, n_workers)`` (why it cannot
have that many, or None), ``scale(cluster, n_workers, there)`` (asks for more,
does not wait), ``state(cluster)`` (what the manager says of its workers, in words) and
``bounds(cluster)`` (the least and most workers of its adaptive scaling, or None) and
``resized(cluster, id, size)``: a worker that it starts again has the size that its own
nanny gives it now. ``retired(cluster, id)``: it does not start that worker again.

One whose manager can destroy a cluster and make it anew also has ``sizes(cluster)``
(what can be asked for, or None if it does not say) and ``recreate(cluster, wanted)``
(waits, and returns the new cluster object); neither is called in an event loop.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, cast

from clustertune.model import Size
from clustertune.wording import bytes_text, plural, printable


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A size that a manager offers; None: it does not say."""

    name: str
    cores: float | None = None
    memory: int | None = None  # bytes

    def __str__(self) -> str:
        facts = [] if self.cores is None else [plural(self.cores, "core")]
        facts += [] if self.memory is None else [bytes_text(self.memory)]
        name = printable(self.name, longest=60)
        return f"{name} ({', '.join(facts)})" if facts else name


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a cluster that is made anew is to have; None is for the manager to say."""

    worker_size: str | None = None
    scheduler_size: str | None = None
    n_workers: int | None = None
    nthreads: int | None = None


class Adapter(Protocol):
    """The contract of a module here."""

    def matches(self, cluster: Any) -> bool: ...
    def obstacle(self, cluster: Any, n_workers: int) -> str | None: ...
    async def scale(self, cluster: Any, n_workers: int, there: int) -> None: ...
    def state(self, cluster: Any) -> str: ...
    def bounds(self, cluster: Any) -> tuple[int, float] | None: ...
    def resized(self, cluster: Any, id: str | int, size: Size) -> None: ...
    async def retired(self, cluster: Any, id: str | int) -> None: ...


class Recreator(Protocol):
    """What an adapter has besides, whose manager makes clusters anew."""

    def sizes(self, cluster: Any) -> tuple[Offer, ...] | None: ...
    def recreate(self, cluster: Any, wanted: Wanted) -> Any: ...


@cache
def available() -> tuple[Adapter, ...]:
    """Every adapter."""
    names = sorted(info.name for info in pkgutil.iter_modules(__path__))
    return tuple(importlib.import_module(f"{__name__}.{name}") for name in names)


def find(cluster: Any) -> Adapter | None:
    """The adapter for a cluster object, or None."""
    return next((a for a in available() if a.matches(cluster)), None)


def recreator(cluster: Any) -> Recreator | None:
    """Its adapter, if its manager can make the cluster anew."""
    adapter = find(cluster)
    able = hasattr(adapter, "sizes") and hasattr(adapter, "recreate")
    return cast("Recreator", adapter) if able else None


def bounds(cluster: Any) -> tuple[int, float] | None:
    """Least and most workers of a cluster that scales by itself; None: it does not.

    Of a cluster object that is not known here, or that is not there, nothing is known.
    """
    adapter = find(cluster)
    return None if adapter is None else adapter.bounds(cluster)


def resized(cluster: Any, id: str | int, size: Size) -> None:
    """Have a cluster object know the size that a worker of its has now, if it can."""
    adapter = find(cluster)
    if adapter is not None:
        adapter.resized(cluster, id, size)


async def retired(cluster: Any, id: str | int) -> None:
    """Have a cluster object know that a worker of its is gone for good, if it can."""
    adapter = find(cluster)
    if adapter is not None:
        await adapter.retired(cluster, id)


def obstacle(cluster: Any, n_workers: int) -> str | None:
    """Why this client cannot bring its cluster to so many workers; None: it can."""
    if cluster is None:
        return (
            "this client has only the scheduler's address, no cluster object; where "
            f"the cluster was made, type cluster.scale({n_workers}), then call prepare "
            "without n_workers"
        )
    adapter = find(cluster)
    if adapter is None:
        return (
            f"there is no adapter for {type(cluster).__name__}; type "
            f"cluster.scale({n_workers}), wait for the workers, then call prepare "
            "without n_workers"
        )
    return adapter.obstacle(cluster, n_workers)


def unknown_size(wanted: Wanted, offers: Sequence[Offer] | None) -> str | None:
    """What is wrong with the names of sizes; None: nothing, or nobody knows."""
    if offers is None:
        return None
    for argument in ("worker_size", "scheduler_size"):
        name = getattr(wanted, argument)
        if name is not None and name not in {offer.name for offer in offers}:
            known = ", ".join(map(str, offers)) or "none"
            return f"{argument}={name!r} is not offered; sizes are: {known}"
    return None
