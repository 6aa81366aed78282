"""Count the files of clustertune that run in the client before its first move.

``python -m tests.operations.first_move`` prints their number and their names. Scheduler
and workers are other processes, so that the profiler sees the code of the client only.
"""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import dask.array as da
from distributed import Client, wait

import clustertune
from tests.processes import cluster

PACKAGE = str(Path(clustertune.__file__).parent)


def load_everything() -> None:
    """Import all modules, whose own code must not count."""
    for module in pkgutil.walk_packages([PACKAGE], "clustertune."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def asks_for_a_move(frame: Any) -> bool:
    """Whether the client asks the scheduler plugin to move keys."""
    where = frame.f_globals.get("__name__"), frame.f_code.co_name
    names = ("clustertune.actions.cluster.lease", "job")
    return where == names and frame.f_locals["method"] == "move"


async def executed(scheduler_file: str) -> set[str]:
    """Prepare data in memory that is on one of two workers; return the files."""
    load_everything()
    found: set[str] = set()
    moved = False

    def profile(frame: Any, event: str, _: Any) -> None:
        nonlocal moved
        code, module = frame.f_code, str(frame.f_globals.get("__name__"))
        if event != "call" or not module.startswith("clustertune") or moved:
            return
        if code.co_name != "<module>":
            found.add(module)
        moved = asks_for_a_move(frame)

    async with Client(scheduler_file=scheduler_file, asynchronous=True) as client:
        await client.wait_for_workers(2)
        first = next(iter(client.scheduler_info()["workers"]))
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
    with TemporaryDirectory() as folder, cluster(Path(folder), 2) as file:
        files = sorted(asyncio.run(executed(file)))
    sys.stdout.write("\n".join([str(len(files)), *files, ""]))
