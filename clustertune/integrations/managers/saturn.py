"""Clusters of Saturn Cloud: dask_saturn's.

All that its object knows it asks Saturn's server for, also its status, so nothing is
asked in the event loop. The server does not say whether it scales the cluster by
itself. New workers have the size that the cluster was made with: a resize holds for
those that are there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dask.utils import parse_bytes

from clustertune.core.model import Size, Unknown
from clustertune.core.wording import bytes_text, plural, printable
from clustertune.errors import ConnectionLostError, RecreateError
from clustertune.integrations.managers import is_instance, off_loop

# "Large - 2 cores - 16 GB RAM"; what "GB" is there, Kubernetes calls Gi
_DISPLAY = re.compile(r"([\d.]+) cores?\b.*?([\d.]+) GB")

#: For the server a bound is a number.
MOST = 2**31 - 1


def matches(cluster: Any) -> bool:
    """Whether it is a cluster of this kind."""
    return is_instance(cluster, "dask_saturn", "SaturnCluster")


def obstacle(cluster: Any, n_workers: int) -> str | None:
    """Why it cannot have so many workers; what only the server knows comes later."""
    return None if cluster.cluster_url else "the cluster was closed; make a new one"


async def bounds(cluster: Any) -> Unknown:
    """Nobody can ask for them."""
    return Unknown("only Saturn's server knows")


async def adapt(cluster: Any, minimum: int, maximum: float) -> None:
    """Set the bounds; where adaptive scaling was off, it is on then."""
    await off_loop(cluster.adapt, minimum, int(min(maximum, MOST)))


async def scale(cluster: Any, n_workers: int, there: int) -> None:
    """Ask for so many; the server counts those that are on their way itself."""
    await off_loop(cluster.scale, n_workers)


async def state(cluster: Any) -> str:
    """What the server says of the cluster, and how many workers have come."""
    status, there = await off_loop(lambda: (cluster.status, _names(cluster)))
    return (
        f"Saturn says that the cluster is {status}, and {len(there)} workers are there"
    )


def resized(cluster: Any, id: str | int, size: Size) -> None:
    """The size of new workers is the server's."""


async def retired(cluster: Any, id: str | int) -> None:
    """Ask for as many as are left: the server would replace the one that went."""
    left = await off_loop(lambda: _names(cluster) - {id})
    await off_loop(cluster.scale, len(left))


def _names(cluster: Any) -> set[str]:
    return {worker["name"] for worker in cluster.scheduler_info["workers"].values()}


# --- another size ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
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
class Wanted:
    """Sizes of a recreated cluster; None: Saturn's default."""

    worker_size: str | None = None
    scheduler_size: str | None = None
    n_workers: int | None = None
    nthreads: int | None = None


def of_this_resource() -> Any:
    """The cluster of this Jupyter server, job or deployment; started if it is not.

    Raises
    ------
    ConnectionLostError
        This is none of Saturn's environments, or it does not answer.
    """
    try:
        from dask_saturn import SaturnCluster

        return SaturnCluster()
    except (ImportError, RuntimeError, ValueError, LookupError, OSError) as error:
        raise ConnectionLostError(f"no cluster of Saturn's: {_text(error)}") from error


def sizes() -> tuple[Offer, ...]:
    """The sizes that this installation offers.

    Raises
    ------
    RecreateError
        It does not answer.
    """
    from dask_saturn import describe_sizes

    try:
        described = describe_sizes()
    except (RuntimeError, ValueError, LookupError, TypeError, OSError) as error:
        raise RecreateError(f"Saturn did not say its sizes: {_text(error)}") from error
    return tuple(_offer(name, text) for name, text in described.items())


def _offer(name: str, display: str) -> Offer:
    found = _DISPLAY.search(str(display))
    if found is None:
        return Offer(name=name)
    cores, memory = found.groups()
    return Offer(name=name, cores=float(cores), memory=parse_bytes(f"{memory}GiB"))


def unknown_size(wanted: Wanted, offers: Sequence[Offer]) -> str | None:
    """The error text if Saturn does not offer a size; None if it does."""
    for argument in ("worker_size", "scheduler_size"):
        name = getattr(wanted, argument)
        if name is not None and name not in {offer.name for offer in offers}:
            known = ", ".join(map(str, offers)) or "none"
            return f"{argument}={name!r} is not offered; sizes are: {known}"
    return None


def recreate(cluster: Any, wanted: Wanted) -> Any:
    """Destroy the cluster and start one that is as wanted.

    Raises
    ------
    RecreateError
        It was refused, or did not start.
    """
    try:
        new = type(cluster).reset(
            n_workers=wanted.n_workers,
            worker_size=wanted.worker_size,
            scheduler_size=wanted.scheduler_size,
            nthreads=wanted.nthreads,
        )
    except (RuntimeError, ValueError, LookupError, TypeError, OSError) as error:
        raise RecreateError(f"Saturn: {_text(error)}") from error
    new.shutdown_on_close = cluster.shutdown_on_close
    return new


def _text(error: Exception) -> str:
    return printable(str(error) or repr(error), longest=500)
