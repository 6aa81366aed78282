"""How many threads native libraries use for linear algebra, on a worker, for a while.

Of pools that belong to the process (BLAS). OpenMP counts for each thread apart, and
takes from the environment what it begins with, which a nanny sets to 1.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

KEPT = "_clustertune"  # of threadpoolctl in this process: for whom, what was before


async def limit(
    dask_worker: Any, name: str, beside: Mapping[str, int], threads: int | None
) -> int | None:
    """Have BLAS use so many threads until :func:`restore`.

    Parameters
    ----------
    name
        Of who asks; the first one decides, and the last one to end restores.
    beside
        By address of worker, how many tasks run at a time on its machine.
    threads
        How many; None: as many as each of those tasks has CPUs, at least 1.

    Returns
    -------
    int or None
        How many it is now; None where threadpoolctl is not installed.
    """
    import asyncio

    try:
        import threadpoolctl
    except ImportError:
        return None
    from dask.system import CPU_COUNT

    found = threads or max(1, CPU_COUNT // beside[dask_worker.address])
    # several workers may be in one process, and share its pools
    kept = vars(threadpoolctl).setdefault(KEPT, {"names": {}, "before": None})
    kept["names"][name, dask_worker.address] = found
    if len(kept["names"]) > 1:
        return int(next(iter(kept["names"].values())))
    # a library that is loaded later would have the threads that it likes
    await asyncio.to_thread(_load)
    if kept["names"]:
        kept["before"] = threadpoolctl.threadpool_limits(found, user_api="blas")
    return int(found)


async def restore(dask_worker: Any, name: str) -> None:
    """End what :func:`limit` began for ``name``."""
    module: Any = sys.modules.get("threadpoolctl")
    kept = vars(module).get(KEPT) if module is not None else None
    if kept is None:
        return
    kept["names"].pop((name, dask_worker.address), None)
    if not kept["names"]:
        del vars(module)[KEPT]
        if kept["before"] is not None:
            kept["before"].restore_original_limits()


def _load() -> None:
    for module in ("numpy", "scipy.linalg"):
        with suppress(ImportError):  # then no task uses it either
            __import__(module)
