"""How the cluster managers scale: one file each; this module finds the right one.

An adapter has ``matches(cluster)``, ``obstacle(cluster, n_workers)`` (why it cannot
have that many, or None), ``scale(cluster, n_workers, there)`` (asks for more, does not
wait), ``state(cluster)`` (what the manager says of its workers, in words) and
``bounds(cluster)`` (the least and most workers of its adaptive scaling; None: that is
off) and ``adapt(cluster, minimum, maximum)``, which sets them while it is on.
``resized(cluster, id, size)``: a worker that it starts again has the size that its own
nanny gives it now. ``retired(cluster, id)``: it does not start that worker again.

A manager whose clusters can be reached by name has ``attach(name, stack)`` too: a
client with the cluster object, which the stack closes. The cluster runs on. One that
takes a worker for lost while its nanny restarts it has ``restart_obstacle(cluster)``.

All are called in the client's event loop. ``matches`` and ``obstacle`` answer from what
the object knows; the others may ask its manager, and go through :func:`off_loop` where
the object's methods wait. None imports a manager's library before the user has.

Other packages add adapters through the entry point group ``clustertune.adapters``: the
entry's name is the manager's, its value the module. They are asked after those here,
but for ``spec_cluster``, which takes whatever is a ``SpecCluster``.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import pkgutil
import sys
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
)
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from functools import cache
from typing import Any, Protocol

from distributed import Client

from clustertune.core import plugins
from clustertune.core.model import Size, Unknown
from clustertune.core.wording import printable
from clustertune.errors import ScaleError

#: Comes last: managers of their own derive from it.
MOST_GENERAL = "spec_cluster"

#: What is to be installed to reach clusters by name.
LIBRARIES = {
    "coiled": "coiled",
    "gateway": "dask-gateway",
    "kubernetes": "dask-kubernetes",
}

Bounds = tuple[int, float]
Attach = Callable[[str, AsyncExitStack], Awaitable[Client]]


class Adapter(Protocol):
    """The contract of a module here."""

    def matches(self, cluster: Any) -> bool: ...
    def obstacle(self, cluster: Any, n_workers: int) -> str | None: ...
    async def scale(self, cluster: Any, n_workers: int, there: int) -> None: ...
    async def state(self, cluster: Any) -> str: ...
    async def bounds(self, cluster: Any) -> Bounds | Unknown | None: ...
    async def adapt(self, cluster: Any, minimum: int, maximum: float) -> None: ...
    def resized(self, cluster: Any, id: str | int, size: Size) -> None: ...
    async def retired(self, cluster: Any, id: str | int) -> None: ...


@cache
def available() -> Mapping[str, Adapter]:
    """Every adapter by its name, the most general last."""
    own: dict[str, Any] = {
        info.name: importlib.import_module(f"{__name__}.{info.name}")
        for info in pkgutil.iter_modules(__path__)
    }
    most_general = {MOST_GENERAL: own.pop(MOST_GENERAL)}
    return {**own, **_others(), **most_general}


def _others() -> Mapping[str, Any]:
    """Those of other packages; none takes the name of one that is here."""
    here = {info.name for info in pkgutil.iter_modules(__path__)}
    found = plugins.of("adapters")
    return {name: found[name] for name in found if name not in here}


def attachable() -> Mapping[str, Attach]:
    """How to reach a cluster by name, by the kind of its manager."""
    return {n: a.attach for n, a in available().items() if hasattr(a, "attach")}


async def attach(kind: str, name: str, stack: AsyncExitStack) -> Client:
    """Reach a running cluster by its name, through the manager's own library.

    Raises
    ------
    ValueError
        There is no such cluster, or the library is not installed.
    ConnectionLostError
        The manager, or the cluster's scheduler, does not answer.
    """
    try:
        return await attachable()[kind](name, stack)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{kind}:{name} needs a library that is not installed ({error}); "
            f"pip install {LIBRARIES.get(kind, kind)}"
        ) from error


def find(cluster: Any) -> Adapter | None:
    """The adapter for a cluster object, or None."""
    return next((a for a in available().values() if a.matches(cluster)), None)


async def bounds(cluster: Any) -> Bounds | Unknown | None:
    """Least and most workers of a cluster that scales by itself; None: it does not.

    Of a cluster object that is not known here, or that is not there, nothing is known.
    """
    adapter = find(cluster)
    return None if adapter is None else await adapter.bounds(cluster)


async def adapt(cluster: Any, minimum: int, maximum: float) -> None:
    """Set the bounds of adaptive scaling that is on; it goes on within them.

    Raises
    ------
    ScaleError
        It is not on, or cannot be reached from here.
    """
    adapter = find(cluster)
    if adapter is None:
        raise ScaleError(
            f"there is no adapter for {type(cluster).__name__}; type "
            f"cluster.adapt(minimum={minimum}, maximum={maximum})"
        )
    await adapter.adapt(cluster, minimum, maximum)


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


def expecting(cluster: Any, ids: Collection[str | int]) -> AbstractContextManager[None]:
    """Keep a cluster object from giving workers up that are restarted meanwhile."""
    own = getattr(find(cluster), "expecting", None)
    found: AbstractContextManager[None] = nullcontext()
    return found if own is None else own(cluster, ids)


def restart_obstacle(cluster: Any) -> str | None:
    """Why nannies must not start workers again; None: they may, or it is not known."""
    own = getattr(find(cluster), "restart_obstacle", None)
    return None if own is None else str(own(cluster))


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


# --- for the adapters -----------------------------------------------------------------


def is_instance(cluster: Any, module: str, name: str) -> bool:
    """Whether it is of that class, of a library that need not be there.

    Who has an object of a class has imported it; so nothing is imported here.
    """
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(cluster, kind)


async def off_loop(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a cluster object's method, be it synchronous or not, without stopping us.

    A synchronous one waits for the object's event loop, which may be ours: called from
    it, it would wait for ever. So it waits in a thread.
    """
    return await settled(await asyncio.to_thread(method, *args, **kwargs))


def brought(bounds: Bounds | Unknown | None, n_workers: int) -> bool:
    """Whether adaptive scaling brings so many; for managers that end it when asked.

    Raises
    ------
    ScaleError
        It is on, or might be, and its least number is smaller.
    """
    if bounds is None:
        return False
    if isinstance(bounds, Unknown):
        raise ScaleError(f"n_workers={n_workers}: {bounds.reason}")
    least, most = bounds
    if least < n_workers:
        raise ScaleError(
            f"the cluster is adaptive ({least} to {most:g} workers), and scaling by "
            f"hand would end that; type cluster.adapt(minimum={n_workers}, "
            f"maximum={max(n_workers, most):g}) instead"
        )
    return True


def unknown_name(kind: str, name: str, known: Iterable[str]) -> ValueError:
    """An error that says which names there are."""
    names = printable(", ".join(sorted(known)), longest=500) or "none"
    return ValueError(
        f"no {kind} cluster runs that is called {name!r}; there are: {names}"
    )


async def settled(answer: Any) -> Any:
    """What a method answers that is awaited only with an asynchronous object."""
    return await answer if inspect.isawaitable(answer) else answer
