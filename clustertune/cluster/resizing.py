"""Other threads, memory or variables for a worker: told to its nanny, then checked.

The nanny is told before its worker is restarted; if the restart does not come about it
is told what was before. What its own process got of the variables (that of the user,
with a LocalCluster) is put back.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from distributed import Client

from clustertune import environment
from clustertune.cluster import monitor
from clustertune.errors import IncompleteError
from clustertune.model import Size
from clustertune.remote import resize as remote
from clustertune.remote import ship
from clustertune.wording import printable

logger = logging.getLogger("clustertune")


@asynccontextmanager
async def told(
    client: Client, address: str, size: Size, back: Callable[[], str]
) -> AsyncIterator[None]:
    """Have a nanny start its worker with another size from now on.

    ``back`` says the worker's new address once it has been restarted; as long as that
    is empty the nanny is told what was before when the block ends.

    Raises
    ------
    IncompleteError
        The nanny did not take it; nothing was changed.
    """
    wanted: dict[str, Any] = {"nthreads": size.nthreads}
    wanted["memory_limit"] = size.memory_limit
    wanted["env"] = dict(size.env) or None
    was = await _on_nanny(client, address, remote.resize, **wanted)
    if isinstance(was, BaseException):
        raise IncompleteError(
            f"the nanny of {printable(address)} did not take {size}: "
            f"{printable(repr(was), longest=200)}"
        )
    outer = was.pop("outer", {})
    try:
        yield
    finally:
        now = back()
        undone = None if now else await _on_nanny(client, address, remote.resize, **was)
        put = await _on_nanny(client, now or address, remote.put_back, outer=outer)
        for problem in (undone, put):
            if isinstance(problem, BaseException):
                logger.warning("a nanny could not be told what was: %r", problem)


async def differences(client: Client, address: str, size: Size) -> str:
    """Where a worker that was restarted is not as it was to be; nothing: nowhere."""
    answers = await ship.on_workers(
        client,
        remote.started_with,
        [address],
        timeout=monitor.PATIENCE,
        names=list(size.env),
    )
    found = answers[address]
    if isinstance(found, BaseException):
        return f"it did not say what it has: {printable(repr(found), longest=200)}"
    wanted: Mapping[str, Any] = {
        "threads": (size.nthreads, found["nthreads"]),
        "memory limit": (size.memory_limit, found["memory_limit"]),
    }
    wrong = [
        printable(f"{name} is {has!r}, not {want!r}", longest=200)
        for name, (want, has) in wanted.items()
        if want is not None and has != want
    ]
    other = {k: v for k, v in size.env.items() if found["env"].get(k) != v}
    wrong += [f"{variable} was not set" for variable in environment.text(other)]
    return "; ".join(wrong)


async def _on_nanny(
    client: Client, address: str, function: Callable[..., Any], **arguments: Any
) -> Any:
    answers = await ship.on_workers(
        client, function, [address], timeout=monitor.PATIENCE, nanny=True, **arguments
    )
    return answers[address]
