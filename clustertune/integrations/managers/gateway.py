"""Clusters behind a Dask Gateway: dask_gateway's.

The gateway's server starts and ends workers, on behalf of all clients of a cluster. It
does not say whether it scales the cluster by itself, or within which bounds: a client
only sets them. And whoever asks it for a number of workers ends its adaptive scaling,
as ``cluster.scale`` does. New workers have the size that the cluster was made with: a
resize holds for those that are there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

from distributed import Client

from clustertune.core.model import Size, Unknown
from clustertune.errors import ConnectionLostError
from clustertune.integrations.managers import is_instance, off_loop, unknown_name


def matches(cluster: Any) -> bool:
    """Whether it is a cluster of this kind."""
    return is_instance(cluster, "dask_gateway", "GatewayCluster")


def obstacle(cluster: Any, n_workers: int) -> str | None:
    """Why it cannot have so many workers."""
    if cluster.status != "running":
        return f"the cluster object is {cluster.status}; connect to the cluster again"
    return None


def restart_obstacle(cluster: Any) -> str:
    """A worker that is away for a moment is replaced, under another name."""
    return (
        "a gateway ends a worker that its nanny restarts, and starts another; scale to "
        "one worker more, then back: that moves the data of those that go"
    )


async def bounds(cluster: Any) -> Unknown:
    """Nobody can ask for them."""
    return Unknown(
        "only the gateway's server knows; cluster.adapt(active=False) would end that"
    )


async def adapt(cluster: Any, minimum: int, maximum: float) -> None:
    """Set the bounds; where adaptive scaling was off, it is on then."""
    most = None if math.isinf(maximum) else int(maximum)
    await off_loop(cluster.adapt, minimum=minimum, maximum=most)


async def scale(cluster: Any, n_workers: int, there: int) -> None:
    """Ask for so many; the server counts those that are on their way itself."""
    await off_loop(cluster.scale, n_workers)


async def state(cluster: Any) -> str:
    """What the server says of the cluster, and how many workers have come."""
    report = await off_loop(cluster.gateway.get_cluster, cluster.name)
    return (
        f"the gateway says that the cluster is {report.status.name.lower()}, and "
        f"{len(_workers(cluster))} workers are there; it may be at its limits"
    )


def resized(cluster: Any, id: str | int, size: Size) -> None:
    """The size of new workers is the server's."""


async def retired(cluster: Any, id: str | int) -> None:
    """Ask for as many as are left: the server would replace the one that went."""
    names = {w["name"] for w in _workers(cluster).values()} - {id}
    await off_loop(cluster.scale, len(names))


async def attach(name: str, stack: AsyncExitStack) -> Client:
    """Connect to a running cluster of the gateway that Dask's configuration names."""
    import aiohttp
    import dask_gateway

    gateway = await stack.enter_async_context(dask_gateway.Gateway(asynchronous=True))
    try:
        known = [report.name for report in await gateway.list_clusters("running")]
        if name not in known:
            raise unknown_name("gateway", name, known)
        cluster = gateway.connect(name, shutdown_on_close=False)
        await stack.enter_async_context(cluster)
    except (aiohttp.ClientError, dask_gateway.GatewayServerError) as error:
        raise ConnectionLostError(f"{gateway.address}: {error}") from error
    client = Client(
        cluster, security=cluster.security, asynchronous=True, set_as_default=False
    )
    return await stack.enter_async_context(client)


def _workers(cluster: Any) -> Mapping[str, Any]:
    """Those of the scheduler, of which it is told as they come and go."""
    workers: Mapping[str, Any] = cluster.scheduler_info.get("workers", {})
    return workers
