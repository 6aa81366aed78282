"""Clusters of Saturn Cloud (dask_saturn).

The cluster object requests everything from Saturn's server, also its status, so its
methods are not called in the event loop. A client cannot read whether the server scales
the cluster by itself. New workers have the size that the cluster was made with.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dask.utils import parse_bytes

from clustertune.core.model import Unknown
from clustertune.core.wording import bytes_text, plural, printable
from clustertune.errors import ConnectionLostError, RecreateError
from clustertune.integrations.managers.adapter import (
    MAX_WORKERS,
    is_instance,
    off_loop,
)

# "Large - 2 cores - 16 GB RAM"; "GB" means the Gi of Kubernetes
_DISPLAY = re.compile(r"([\d.]+) cores?\b.*?([\d.]+) GB")


def matches(cluster: Any) -> bool:
    """Return whether it is a cluster of Saturn Cloud."""
    return is_instance(cluster, "dask_saturn", "SaturnCluster")


def obstacle(cluster: Any, n_workers: int) -> str | None:
    """Return why it cannot have so many workers. The server may still refuse."""
    return None if cluster.cluster_url else "the cluster was closed; make a new one"


async def bounds(cluster: Any) -> Unknown:
    """Return Unknown: a client cannot read the bounds."""
    return Unknown("only Saturn's server knows the bounds")


async def adapt(cluster: Any, minimum: int, maximum: float) -> None:
    """Set the bounds. This also turns adaptive scaling on."""
    await off_loop(cluster.adapt, minimum, int(min(maximum, MAX_WORKERS)))


async def scale(cluster: Any, n_workers: int, there: int) -> None:
    """Request this many; the server counts workers that are starting."""
    await off_loop(cluster.scale, n_workers)


async def state(cluster: Any) -> str:
    """Describe the cluster as the server reports it, and its workers."""
    status, there = await off_loop(lambda: (cluster.status, _names(cluster)))
    return f"Saturn reports the cluster as {status}, with {len(there)} workers"


async def retired(cluster: Any, id: str | int) -> None:
    """Request the remaining number, or the server would replace the worker."""
    left = await off_loop(lambda: _names(cluster) - {id})
    await off_loop(cluster.scale, len(left))


def _names(cluster: Any) -> set[str]:
    return {worker["name"] for worker in cluster.scheduler_info["workers"].values()}


# --- another size ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedSize:
    """A size that Saturn offers; None: its description has no such number."""

    name: str
    cores: float | None = None
    memory: int | None = None  # bytes

    def __str__(self) -> str:
        facts = [] if self.cores is None else [plural(self.cores, "core")]
        facts += [] if self.memory is None else [bytes_text(self.memory)]
        name = printable(self.name, longest=60)
        return f"{name} ({', '.join(facts)})" if facts else name


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedSizes:
    """Arguments for a recreated cluster; None: Saturn's default."""

    worker_size: str | None = None
    scheduler_size: str | None = None
    n_workers: int | None = None
    nthreads: int | None = None


def of_this_resource() -> Any:
    """Return the cluster of this Saturn environment; start it if needed."""
    try:
        from dask_saturn import SaturnCluster

        return SaturnCluster()
    except (ImportError, RuntimeError, ValueError, LookupError, OSError) as error:
        raise ConnectionLostError(
            f"no cluster of Saturn Cloud: {_text(error)}"
        ) from error


def sizes() -> tuple[OfferedSize, ...]:
    """Return the sizes that this installation offers."""
    from dask_saturn import describe_sizes

    try:
        described = describe_sizes()
    except (RuntimeError, ValueError, LookupError, TypeError, OSError) as error:
        raise RecreateError(f"Saturn did not list its sizes: {_text(error)}") from error
    return tuple(_offered_size(name, text) for name, text in described.items())


def _offered_size(name: str, display: str) -> OfferedSize:
    found = _DISPLAY.search(str(display))
    if found is None:
        return OfferedSize(name=name)
    cores, memory = found.groups()
    return OfferedSize(
        name=name, cores=float(cores), memory=parse_bytes(f"{memory}GiB")
    )


def unknown_size(wanted: RequestedSizes, offers: Sequence[OfferedSize]) -> str | None:
    """Return an error text if Saturn does not offer a size, else None."""
    for argument in ("worker_size", "scheduler_size"):
        name = getattr(wanted, argument)
        if name is not None and name not in {offer.name for offer in offers}:
            known = ", ".join(map(str, offers)) or "none"
            return f"{argument}={name!r} is not offered; sizes are: {known}"
    return None


def recreate(cluster: Any, wanted: RequestedSizes) -> Any:
    """Destroy the cluster and start one with the requested sizes."""
    try:
        new = type(cluster).reset(**asdict(wanted))
    except (RuntimeError, ValueError, LookupError, TypeError, OSError) as error:
        raise RecreateError(f"Saturn: {_text(error)}") from error
    new.shutdown_on_close = cluster.shutdown_on_close
    return new


def _text(error: Exception) -> str:
    return printable(str(error) or repr(error), longest=500)
