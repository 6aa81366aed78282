"""How many threads native libraries use, on a worker, for a while.

Of what belongs to the process: pools for linear algebra (BLAS), and the number of CPUs
that joblib counts there, which LightGBM takes for its threads. OpenMP counts for each
thread apart (``fits``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

KEPT = "_clustertune"  # of threadpoolctl in this process: for whom, what was before
SEEN = "_clustertune_openmp"  # there, too: libraries that use OpenMP
COUNTED = "LOKY_MAX_CPU_COUNT"  # CPUs that joblib counts at most


def share(dask_worker: Any, beside: Mapping[str, int], threads: int | None) -> int:
    """How many threads each fit on a worker may have; one that came later is alone."""
    from dask.system import CPU_COUNT

    tasks = beside.get(dask_worker.address, dask_worker.state.nthreads)
    return int(threads or max(1, CPU_COUNT // tasks))


async def limit(
    dask_worker: Any, name: str, beside: Mapping[str, int], threads: int | None
) -> int | None:
    """Have libraries of this process use so many threads until :func:`restore`.

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
    found = share(dask_worker, beside, threads)
    # several workers may be in one process, and share its pools
    kept = vars(threadpoolctl).setdefault(KEPT, {"names": {}, "before": None})
    kept["names"][name, dask_worker.address] = found
    if len(kept["names"]) > 1:
        return int(next(iter(kept["names"].values())))
    # a library that is loaded later would have the threads that it likes
    await asyncio.to_thread(_load)
    if kept["names"]:
        limits = threadpoolctl.threadpool_limits(found, user_api="blas")
        kept["before"] = limits, os.environ.get(COUNTED)
        os.environ[COUNTED] = str(found)
    return found


async def restore(dask_worker: Any, name: str) -> None:
    """End what :func:`limit` began for ``name``."""
    module: Any = sys.modules.get("threadpoolctl")
    kept = vars(module).get(KEPT) if module is not None else None
    if kept is None:
        return
    kept["names"].pop((name, dask_worker.address), None)
    if not kept["names"]:
        del vars(module)[KEPT]
        vars(module).pop(SEEN, None)
        if kept["before"] is not None:
            limits, counted = kept["before"]
            limits.restore_original_limits()
            if counted is None:
                os.environ.pop(COUNTED, None)
            else:
                os.environ[COUNTED] = counted


def _load() -> None:
    for module in ("numpy", "scipy.linalg", "sklearn.utils._openmp_helpers"):
        with suppress(ImportError):  # then no task uses it either
            __import__(module)
    helpers = sys.modules.get("sklearn.utils._openmp_helpers")
    if helpers is not None:
        # it counts CPUs once and keeps that, so not while the count is limited
        for physical in (True, False):
            helpers._openmp_effective_n_threads(only_physical_cores=physical)
