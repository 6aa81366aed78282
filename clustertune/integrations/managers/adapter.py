"""Define what an adapter of a cluster manager has, and helpers for adapters.

An adapter is a module with the functions of :class:`Adapter`. All are called in the
client's event loop. ``obstacle`` uses only the state of the object. The others may ask
the manager, and call methods that block through :func:`off_loop`. No adapter imports a
manager's library before the user has imported it.

An adapter may also have these functions:

``resized(cluster, id, size)``
    Start this worker with the size that its nanny has, if it starts again. Without the
    function, new workers keep the size that the cluster was made with.
``resize_obstacle(cluster, size, workers)``
    Why these workers cannot have this size; None: they can.
``restart_obstacle(cluster)``
    Why nannies must not restart workers.
``merge_obstacle(cluster)``
    Why one worker cannot replace several on a host, as of ``Snapshot.can_merge``.
    Without the function, an adapter with ``resized`` allows it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, Protocol

from clustertune.core.model import Unknown
from clustertune.errors import NoWorkersError

Bounds = tuple[int, float]

#: for servers that need a number as the upper bound of adaptive scaling
MAX_WORKERS = 2**31 - 1


class Adapter(Protocol):
    """The functions of every adapter."""

    def obstacle(self, cluster: Any, n_workers: int) -> str | None:
        """Return why the cluster cannot have so many workers."""

    async def scale(self, cluster: Any, n_workers: int, there: int) -> None:
        """Request workers without waiting; the scheduler has ``there`` workers."""

    async def bounds(self, cluster: Any) -> Bounds | Unknown | None:
        """Return the bounds of adaptive scaling; None: it is off."""

    async def adapt(self, cluster: Any, minimum: int, maximum: float) -> None:
        """Set the bounds of adaptive scaling that is on."""

    async def retired(self, cluster: Any, id: str | int) -> None:
        """Prevent the manager from starting this worker again."""


async def off_loop(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a synchronous or asynchronous method in a thread.

    A synchronous method waits for the event loop of its object. In that event loop, it
    would wait forever.
    """
    return await await_if_needed(await asyncio.to_thread(method, *args, **kwargs))


async def await_if_needed(answer: Any) -> Any:
    """Await the answer of a method if the cluster object is asynchronous."""
    return await answer if inspect.isawaitable(answer) else answer


def starts_by_itself(bounds: Bounds | Unknown | None, n_workers: int) -> bool:
    """Return whether adaptive scaling starts this many workers by itself.

    It is for managers whose ``scale`` ends adaptive scaling. Raise NoWorkersError if
    adaptive scaling is on, or may be on, and its minimum is smaller.
    """
    if bounds is None:
        return False
    if isinstance(bounds, Unknown):
        raise NoWorkersError(f"n_workers={n_workers}: {bounds.reason}")
    least, most = bounds
    if least < n_workers:
        raise NoWorkersError(
            f"the cluster is adaptive ({least} to {most:g} workers), and scaling by "
            f"hand would end that; run cluster.adapt(minimum={n_workers}, "
            f"maximum={max(n_workers, most):g}) instead"
        )
    return True
