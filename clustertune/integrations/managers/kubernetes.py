"""Clusters of Dask's operator in Kubernetes (dask_kubernetes).

The operator keeps the number of workers of a ``DaskWorkerGroup``. All clients share the
autoscaler, the resource ``DaskAutoscaler``; scaling by hand would delete it. A worker
is a deployment, which starts it again when its process ends. New workers have the size
that their group was made with.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from clustertune.core.model import Unknown
from clustertune.errors import NoWorkersError
from clustertune.integrations.managers.adapter import (
    MAX_WORKERS,
    off_loop,
    starts_by_itself,
)
from clustertune.remote.ending import within

ANSWER_TIMEOUT = 5  # seconds for a request in each snapshot


def obstacle(cluster: Any, n_workers: int) -> str | None:
    """Return why it cannot have so many workers."""
    if cluster.status.name != "running":
        return f"the cluster object is {cluster.status.name}; connect to it again"
    return None


async def bounds(cluster: Any) -> tuple[int, float] | Unknown | None:
    """Return the bounds in the autoscaler's resource, if there is one."""
    import httpx
    import kr8s

    try:
        asked = off_loop(cluster.sync, _bounds, cluster)
        found: tuple[int, float] | None = await within(asked, ANSWER_TIMEOUT)
    except (httpx.HTTPError, kr8s.ServerError, asyncio.TimeoutError) as error:
        return Unknown(f"Kubernetes did not answer ({error!r})")
    return found


async def adapt(cluster: Any, minimum: int, maximum: float) -> None:
    """Set the bounds in the autoscaler's resource."""
    if await bounds(cluster) is None:
        raise NoWorkersError(f"the cluster {cluster.name} does not scale by itself")
    most = MAX_WORKERS if math.isinf(maximum) else int(maximum)
    await off_loop(cluster.adapt, minimum=minimum, maximum=most)


async def scale(cluster: Any, n_workers: int, there: int) -> None:
    """Add the missing workers to the group that the cluster was made with.

    The operator counts workers that are starting. Adaptive scaling starts its minimum
    by itself, and a request would end it.
    """
    if starts_by_itself(await bounds(cluster), n_workers):
        return
    replicas: Mapping[str, int] = await off_loop(cluster.sync, _replicas, cluster)
    missing = n_workers - sum(replicas.values())
    if missing > 0:
        await off_loop(cluster.scale, replicas[f"{cluster.name}-default"] + missing)


async def retired(cluster: Any, id: str | int) -> None:
    """Delete the deployment, then reduce the number, or another worker would close."""
    await off_loop(cluster.sync, _remove, cluster, str(id))


# --- in the cluster object's event loop -----------------------------------------------


async def _bounds(cluster: Any) -> tuple[int, float] | None:
    from dask_kubernetes.operator._objects import DaskAutoscaler

    # get(name) would wait for a missing resource
    name = {"metadata.name": cluster.name}
    found = DaskAutoscaler.list(namespace=cluster.namespace, field_selector=name)
    async for autoscaler in found:
        return int(autoscaler.spec.minimum), int(autoscaler.spec.maximum)
    return None


async def _replicas(cluster: Any) -> Mapping[str, int]:
    from dask_kubernetes.operator._objects import DaskWorkerGroup

    groups = DaskWorkerGroup.list(namespace=cluster.namespace)
    return {g.name: g.replicas async for g in groups if g.spec.cluster == cluster.name}


async def _remove(cluster: Any, worker: str) -> None:
    import kr8s
    from dask_kubernetes.operator._objects import DaskWorkerGroup
    from kr8s.asyncio.objects import Deployment

    # another client may have deleted it and reduced the number
    with suppress(kr8s.NotFoundError):
        deployment = await Deployment.get(worker, namespace=cluster.namespace)
        group = deployment.labels["dask.org/workergroup-name"]
        await deployment.delete()
        workers = await DaskWorkerGroup.get(group, namespace=cluster.namespace)
        await workers.scale(workers.replicas - 1)
