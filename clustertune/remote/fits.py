"""One fit in the thread of a worker: with the threads that it may have, and timed.

Pools of BLAS belong to a process and are set once (``pools``). How many threads OpenMP
uses is a property of each thread that calls it, so it is set in the very thread, for as
long as the fit takes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter
from typing import Any

from distributed import get_worker

from clustertune.remote import pools

#: a function, its arguments, those by name
Fit = tuple[Callable[..., Any], list[Any], dict[str, Any]]
#: name of the function, seconds, address of the worker
Fitted = tuple[str, float, str]
Run = Callable[[list[Fit]], list[tuple[Any, Fitted]]]


def runner(beside: Mapping[str, int], threads: int | None, nested: bool) -> Run:
    """A function that runs fits, and says of each how long it took and where.

    Parameters
    ----------
    beside
        By address of worker, how many tasks run at a time on its machine.
    threads
        For native libraries in each fit; None: as many as each of those tasks has CPUs.
    nested
        Whether what the fit itself runs with joblib becomes tasks of the cluster. If
        not, it stays in the fit's thread, or in as many as it has for native libraries.
    """

    def run(fits: list[Fit]) -> list[tuple[Any, Fitted]]:
        worker = get_worker()
        inner = pools.share(worker, beside, threads)
        with _openmp(inner), _parallel(inner, nested):
            return [_run(fit, worker.address) for fit in fits]

    return run


def _run(fit: Fit, address: str) -> tuple[Any, Fitted]:
    function, args, kwargs = fit
    start = perf_counter()
    result = function(*args, **kwargs)
    seconds = perf_counter() - start
    name = getattr(function, "__name__", type(function).__name__)
    return result, (name, seconds, address)


@contextmanager
def _openmp(threads: int) -> Iterator[None]:
    """Threads for OpenMP in this thread; what was loaded later has what it likes."""
    try:
        import threadpoolctl
    except ImportError:  # scikit-learn itself needs it
        yield
        return
    # what a function keeps would go with it to another worker, and has pointers
    seen = vars(threadpoolctl).setdefault(pools.SEEN, {})
    if seen.get("modules") != len(sys.modules):  # libraries come with modules
        found = threadpoolctl.ThreadpoolController().select(user_api="openmp")
        seen.update(modules=len(sys.modules), found=found)
    with seen["found"].limit(limits=threads):
        yield


def _parallel(threads: int, nested: bool) -> AbstractContextManager[Any]:
    """Where what a fit runs with joblib itself runs."""
    import joblib

    if nested:
        within: AbstractContextManager[Any] = joblib.parallel_config("dask")
    elif threads == 1:
        within = joblib.parallel_config("sequential")
    else:
        within = joblib.parallel_config("threading", n_jobs=threads)
    return within
