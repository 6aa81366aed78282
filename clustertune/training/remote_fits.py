"""Tasks of ``joblib_backend``: run fits with a limited number of threads.

BLAS pools and the CPU count of joblib belong to a process, so :func:`limit_threads`
sets them once. LightGBM takes its threads from that count. OpenMP keeps its number of
threads for each calling thread, so each fit sets it in its own thread.

This module travels by value. It may import Dask and other travelling modules.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from distributed import get_worker

LIMITS = "_clustertune"  # attribute of threadpoolctl: active limits of this process
OPENMP = "_clustertune_openmp"  # attribute of threadpoolctl: OpenMP libraries
CPU_COUNT = "LOKY_MAX_CPU_COUNT"  # variable: largest CPU count that joblib reports

#: a function, its positional and its keyword arguments
Fit = tuple[Callable[..., Any], list[Any], dict[str, Any]]
Run = Callable[[list[Fit]], list[Any]]


# --- fits in threads of a worker ------------------------------------------------------


def fit_runner(
    tasks_per_machine: Mapping[str, int], threads: int | None, nested: bool
) -> Run:
    """Return a function that runs fits.

    ``threads`` limits native libraries; None means an equal share of the CPUs among
    the concurrent tasks of the machine. With ``nested``, joblib calls inside a fit
    become tasks of the cluster. Otherwise they run in the fit's threads.
    """

    def run(fits: list[Fit]) -> list[Any]:
        share = thread_share(get_worker(), tasks_per_machine, threads)
        with _openmp_threads(share), _inner_joblib(share, nested):
            return [function(*args, **kwargs) for function, args, kwargs in fits]

    return run


@contextmanager
def _openmp_threads(threads: int) -> Iterator[None]:
    """Limit OpenMP in this thread. Libraries loaded later are not limited."""
    try:
        import threadpoolctl
    except ImportError:  # scikit-learn requires it
        yield
        return
    # kept in the module: a closure would travel to other workers with its pointers
    seen = vars(threadpoolctl).setdefault(OPENMP, {})
    if seen.get("modules") != len(sys.modules):  # new modules may load new libraries
        found = threadpoolctl.ThreadpoolController().select(user_api="openmp")
        seen.update(modules=len(sys.modules), found=found)
    with seen["found"].limit(limits=threads):
        yield


def _inner_joblib(threads: int, nested: bool) -> AbstractContextManager[Any]:
    """Return the joblib configuration for calls inside a fit."""
    import joblib

    if nested:
        config: AbstractContextManager[Any] = joblib.parallel_config("dask")
    elif threads == 1:
        config = joblib.parallel_config("sequential")
    else:
        config = joblib.parallel_config("threading", n_jobs=threads)
    return config


# --- workers that ended ---------------------------------------------------------------


async def ended_workers(dask_scheduler: Any, keys: list[str]) -> list[tuple[str, str]]:
    """Return the workers that ended unexpectedly with a task of ``keys``, and why.

    Dask keeps the last events only. Any client may log any event.
    """

    def events(topic: str) -> list[dict[str, Any]]:
        logged = dask_scheduler.get_events(topic)
        return [event for _, event in logged if type(event) is dict]

    exceeded = {str(event.get("worker")) for event in events("worker-restart-memory")}
    found = []
    for event in events("all"):
        is_end = event.get("action") == "remove-worker" and not event.get("expected")
        if is_end and not event.get("processing-tasks", set()).isdisjoint(keys):
            memory = event["worker"] in exceeded
            reason = "exceeded its memory limit" if memory else "its process ended"
            found.append((event["worker"], reason))
    return found


# --- threads of a process -------------------------------------------------------------


def thread_share(
    dask_worker: Any, tasks_per_machine: Mapping[str, int], threads: int | None
) -> int:
    """Return the threads of each fit; a worker that joined later gets all CPUs."""
    from dask import system

    tasks = tasks_per_machine.get(dask_worker.address, dask_worker.state.nthreads)
    return int(threads or max(1, system.CPU_COUNT // tasks))


async def limit_threads(
    dask_worker: Any,
    name: str,
    tasks_per_machine: Mapping[str, int],
    threads: int | None,
) -> int | None:
    """Limit threads of native libraries in this process until ``restore_threads``.

    Several workers and several calls may share the process. The first call sets the
    limit, and the last call to end restores it. Returns the limit; None without
    threadpoolctl.
    """
    import asyncio

    try:
        import threadpoolctl
    except ImportError:
        return None
    share = thread_share(dask_worker, tasks_per_machine, threads)
    state = vars(threadpoolctl).setdefault(LIMITS, {"names": {}, "before": None})
    state["names"][name, dask_worker.address] = share
    if len(state["names"]) > 1:
        return int(next(iter(state["names"].values())))
    # libraries that are loaded later would not be limited
    await asyncio.to_thread(_load_libraries)
    if state["names"]:
        limits = threadpoolctl.threadpool_limits(share, user_api="blas")
        state["before"] = limits, os.environ.get(CPU_COUNT)
        os.environ[CPU_COUNT] = str(share)
    return share


async def restore_threads(dask_worker: Any, name: str) -> None:
    """End the limit of a call."""
    module: Any = sys.modules.get("threadpoolctl")
    state = vars(module).get(LIMITS) if module is not None else None
    if state is None:
        return
    state["names"].pop((name, dask_worker.address), None)
    if state["names"]:
        return
    del vars(module)[LIMITS]
    vars(module).pop(OPENMP, None)
    if state["before"] is not None:
        limits, cpus = state["before"]
        limits.restore_original_limits()
        if cpus is None:
            os.environ.pop(CPU_COUNT, None)
        else:
            os.environ[CPU_COUNT] = cpus


def _load_libraries() -> None:
    for module in ("numpy", "scipy.linalg", "sklearn.utils._openmp_helpers"):
        with suppress(ImportError):  # tasks cannot use it either
            __import__(module)
    helpers = sys.modules.get("sklearn.utils._openmp_helpers")
    if helpers is not None:
        # scikit-learn counts CPUs once, so it must count before the limit is set
        for physical in (True, False):
            helpers._openmp_effective_n_threads(only_physical_cores=physical)
