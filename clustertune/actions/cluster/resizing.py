"""Other threads, memory or variables for a worker: what the scheduler needs for that.

The scheduler changes the nanny once the worker is empty, and undoes the change if the
restart does not come about. The client checks what the new process has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distributed import Client

from clustertune.core import environment
from clustertune.core.model import Restart, Size
from clustertune.core.wording import printable
from clustertune.monitor import monitor
from clustertune.remote import ship
from clustertune.remote.worker import process as remote


def terms(restart: Restart) -> dict[str, Any] | None:
    """Those of ``remote.restart.Resizing``; None: the size stays."""
    size = restart.size
    if size is None:
        return None
    wanted = {
        "nthreads": size.nthreads,
        "memory_limit": size.memory_limit,
        "env": dict(size.env) or None,
    }
    line, most = restart.lines
    return {
        "change": ship.pickled(remote.change),
        "settle": ship.pickled(remote.settle),
        "wanted": wanted,
        "line": line,
        "most": most,
    }


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
