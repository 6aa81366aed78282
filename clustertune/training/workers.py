"""Rules about workers that the patterns share: there are none, or a task ends them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distributed import Client, KilledWorker

from clustertune.core.wording import printable, workers_text
from clustertune.errors import FunctionError, NoWorkersError
from clustertune.monitor import monitor


async def running_workers(client: Client) -> dict[str, Mapping[str, Any]]:
    """Return the scheduler's entries of usable workers by address; refuse none."""
    entries, running = await monitor.running_workers(client)
    if not running:
        scheduler: Any = client.scheduler
        raise NoWorkersError(
            f"the cluster {printable(scheduler.address)} has no running worker that "
            f"can run code of this client (of {len(entries)} workers). Start one, or "
            "wait: client.wait_for_workers(1)"
        )
    return {address: entries[address] for address in running}


def killed(error: KilledWorker, work: str) -> FunctionError:
    """Return the error for work during which several workers ended."""
    worker = str(error.last_worker.address)
    failure = FunctionError(
        f"{error.allowed_failures + 1} workers ended while they worked on {work}, the "
        f"last one {workers_text([printable(worker)])}. They may have exceeded their "
        "memory, or native code crashed; see the logs of workers and nannies. Use "
        "workers with more memory (clustertune.resize_workers), or less data"
    )
    failure.worker = worker
    return failure
