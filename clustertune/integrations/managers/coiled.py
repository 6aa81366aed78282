"""Coiled's clusters, which run in a cloud account.

Coiled starts and stops virtual machines. Its cluster object scales adaptively in the
process of the user, as those of distributed do. A call of ``scale`` ends adaptive
scaling. New workers have the size that the cluster was made with.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from distributed import Client

from clustertune.errors import ConnectionLostError
from clustertune.integrations.managers.adapter import (
    connect,
    off_loop,
    starts_by_itself,
    unknown_name,
)
from clustertune.integrations.managers.spec_cluster import adapt as adapt
from clustertune.integrations.managers.spec_cluster import bounds as bounds


def obstacle(cluster: Any, n_workers: int) -> str | None:
    """Return why it cannot have so many workers."""
    if cluster.status.name != "running":
        return f"the cluster object is {cluster.status.name}; make a new one"
    return None


async def scale(cluster: Any, n_workers: int, there: int) -> None:
    """Request this many; Coiled counts workers that are starting.

    Adaptive scaling starts its minimum by itself, and a request would end it.
    """
    if not starts_by_itself(await bounds(cluster), n_workers):
        await off_loop(cluster.scale, n_workers)


async def state(cluster: Any) -> str:
    """Describe the workers of the cluster object."""
    return (
        f"coiled cluster {cluster.name} ({cluster.status.name}) has requested "
        f"{len(cluster.requested)} workers, and {len(cluster.observed)} have started"
    )


async def retired(cluster: Any, id: str | int) -> None:
    """Stop the machine of the worker."""
    await off_loop(cluster.sync, cluster.scale_down, [str(id)], reason="clustertune")


async def attach(name: str, stack: AsyncExitStack) -> Client:
    """Connect to a running cluster of the workspace of Coiled's configuration."""
    import aiohttp
    import coiled
    from coiled.errors import ClusterCreationError, ServerError
    from coiled.exceptions import CoiledException

    class Running(coiled.Cluster):  # type: ignore[misc]
        """Never create a cluster, as Coiled does for an unknown name."""

        async def _check_create_or_reuse(self) -> bool:
            if await super()._check_create_or_reuse():
                known = await self.cloud._list_clusters()
                raise unknown_name("coiled", name, [c["name"] for c in known])
            return False

    try:
        # synchronous, because some coroutines of asynchronous objects are never awaited
        cloud = await asyncio.to_thread(coiled.Cloud)
        stack.push_async_callback(asyncio.to_thread, cloud.close)
        cluster = await asyncio.to_thread(
            Running,
            name=name,
            cloud=cloud,
            shutdown_on_close=False,
            credentials=None,  # keep the cluster's credentials
            show_widget=False,
        )
    except (
        aiohttp.ClientError,
        ClusterCreationError,
        CoiledException,
        ServerError,
    ) as error:
        raise ConnectionLostError(f"coiled:{name}: {error}") from error
    stack.push_async_callback(off_loop, cluster.close)
    address = cluster.scheduler_address
    client = await connect(stack, address, security=cluster.security)
    client.cluster = cluster
    return client
