"""Count the files of clustertune that run from ``prepare()`` to the first moved key.

``python -m tests.operations.first_move`` prints their number and their names. Client,
scheduler and workers are in one process, so that one profiler sees all of them.
"""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
import sys
import threading
from pathlib import Path
from typing import Any

import dask.array as da
from distributed import Client, LocalCluster, wait

import clustertune

PACKAGE = str(Path(clustertune.__file__).parent)
#: Dask's methods that have a worker fetch keys
MOVES = ("gather_on_worker", "request_acquire_replicas")


def load_everything() -> None:
    """Import all modules, whose own code must not count."""
    for module in pkgutil.walk_packages([PACKAGE], "clustertune."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


async def executed() -> set[str]:
    """Prepare data in memory that is on one of two workers; return the files."""
    load_everything()
    found: set[str] = set()
    moved = False

    def profile(frame: Any, event: str, _: Any) -> None:
        nonlocal moved
        code, module = frame.f_code, str(frame.f_globals.get("__name__"))
        moved = moved or code.co_name in MOVES
        ours = module.startswith("clustertune") and code.co_name != "<module>"
        if event == "call" and ours and not moved:
            found.add(module)

    options: dict[str, Any] = {"n_workers": 2, "threads_per_worker": 1}
    options |= {"processes": False, "dashboard_address": None, "asynchronous": True}
    async with (
        LocalCluster(**options) as cluster,
        Client(cluster, asynchronous=True) as client,
    ):
        first = next(iter(cluster.scheduler.workers))
        X, y = client.persist(
            [da.ones((800, 4), chunks=(100, 4)), da.ones(800, chunks=100)],
            workers=[first],
            allow_other_workers=True,
        )
        await wait([X, y])
        threading.setprofile(profile)
        sys.setprofile(profile)
        try:
            prepared: Any = clustertune.prepare(client, X, y, rechunk=False)
            await prepared
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
    assert moved
    return found


if __name__ == "__main__":
    files = sorted(asyncio.run(executed()))
    sys.stdout.write("\n".join([str(len(files)), *files, ""]))
