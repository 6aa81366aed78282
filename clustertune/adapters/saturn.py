"""Saturn Cloud's clusters (dask-saturn)."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from dask.utils import parse_bytes

from clustertune.adapters import Offer, Wanted
from clustertune.errors import ConnectionLostError, RecreateError
from clustertune.model import Size
from clustertune.wording import printable

# "Large - 2 cores - 16 GB RAM"; what "GB" is there, Kubernetes calls Gi
_DISPLAY = re.compile(r"([\d.]+) cores?\b.*?([\d.]+) GB")


def matches(cluster: Any) -> bool:
    """Whether it is a cluster of this kind; dask-saturn need not be installed."""
    return any(
        kind.__name__ == "SaturnCluster" and kind.__module__.startswith("dask_saturn")
        for kind in type(cluster).__mro__
    )


def obstacle(cluster: Any, n_workers: int) -> str | None:
    """Why it cannot have so many workers: only Saturn could say."""
    return None


def bounds(cluster: Any) -> tuple[int, float] | None:
    """Saturn does not say whether a cluster is adaptive."""
    return None


async def scale(cluster: Any, n_workers: int, there: int) -> None:
    """Ask Saturn for them."""
    await asyncio.to_thread(cluster.scale, n_workers)


def state(cluster: Any) -> str:
    """Its address; what becomes of its workers is shown by Saturn."""
    return f"SaturnCluster at {printable(cluster.cluster_url)}"


def resized(cluster: Any, id: str | int, size: Size) -> None:
    """Saturn starts workers as it was told when the cluster was made."""


async def retired(cluster: Any, id: str | int) -> None:
    """Saturn is told the number of workers, by ``scale``."""


# --- another size ---------------------------------------------------------------------


def attach() -> Any:
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


def sizes(cluster: Any) -> tuple[Offer, ...] | None:
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
