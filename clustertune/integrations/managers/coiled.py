"""Clusters in a cloud account: coiled's.

Coiled starts and stops virtual machines; its object scales adaptively in the process
that asked for it, as those of distributed do, and whoever asks it for a number ends
that. New workers have the size that the cluster was made with: a resize holds for those
that are there.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from distributed import Client

from clustertune.core.model import Size
from clustertune.errors import ConnectionLostError
from clustertune.integrations.managers import (
    brought,
    is_instance,
    off_loop,
    unknown_name,
)
from clustertune.integrations.managers.spec_cluster import adapt as adapt
from clustertune.integrations.managers.spec_cluster import bounds as bounds


def matches(cluster: Any) -> bool:
    """Whether it is a cluster of this kind."""
    return is_instance(cluster, "coiled", "Cluster")


def obstacle(cluster: Any, n_workers: int) -> str | None:
    """Why it cannot have so many workers."""
    if cluster.status.name != "running":
        return f"the cluster object is {cluster.status.name}; make a new one"
    return None


async def scale(cluster: Any, n_workers: int, there: int) -> None:
    """Ask for so many; Coiled counts those that are on their way itself.

    Adaptive scaling, which that would end, brings its least number by itself.
    """
    if not brought(await bounds(cluster), n_workers):
        await off_loop(cluster.scale, n_workers)


async def state(cluster: Any) -> str:
    """What the cluster object knows of its workers."""
    return (
        f"coiled cluster {cluster.name} ({cluster.status.name}) has asked for "
        f"{len(cluster.requested)} and seen {len(cluster.observed)} workers"
    )


def resized(cluster: Any, id: str | int, size: Size) -> None:
    """The size of new workers is that of the machines."""


async def retired(cluster: Any, id: str | int) -> None:
    """Stop its machine."""
    await off_loop(cluster.sync, cluster.scale_down, [str(id)], reason="clustertune")


async def attach(name: str, stack: AsyncExitStack) -> Client:
    """Connect to a running cluster of the workspace of Coiled's configuration."""
    import aiohttp
    import coiled
    from coiled.errors import ClusterCreationError, ServerError
    from coiled.exceptions import CoiledException

    class Running(coiled.Cluster):  # type: ignore[misc]
        """Only what is there: coiled would make a cluster of an unknown name."""

        async def _check_create_or_reuse(self) -> bool:
            if await super()._check_create_or_reuse():
                known = await self.cloud._list_clusters()
                raise unknown_name("coiled", name, [c["name"] for c in known])
            return False

    try:
        # synchronous: of asynchronous ones some coroutines are never awaited
        cloud = await asyncio.to_thread(coiled.Cloud)
        stack.push_async_callback(asyncio.to_thread, cloud.close)
        cluster = await asyncio.to_thread(
            Running,
            name=name,
            cloud=cloud,
            shutdown_on_close=False,
            credentials=None,  # those that it was made with stay
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
    client: Client = await stack.enter_async_context(
        Client(
            cluster.scheduler_address,
            security=cluster.security,
            asynchronous=True,
            set_as_default=False,
        )
    )
    client.cluster = cluster
    return client
