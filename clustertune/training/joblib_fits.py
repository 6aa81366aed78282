"""``joblib_backend``: run scikit-learn's searches and ensembles on the workers.

The arrays that all fits share are replicated on every worker in advance, if they fit in
memory. So is the function that runs fits, so that it is not sent with each fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dask.base import is_dask_collection
from dask.sizeof import sizeof
from distributed import Client, Future

from clustertune.core import arguments
from clustertune.core.wording import bytes_text, plural, workers_text
from clustertune.errors import CapacityError, NoWorkersError
from clustertune.monitor import monitor
from clustertune.monitor.connection import sync
from clustertune.operations.call import check_client
from clustertune.remote import ship
from clustertune.training import remote_sums

#: Bytes that a thread copies for a fit, as a multiple of all data: rows to train on,
#: rows to score on, and conversions. Measured with joblib 1.6, cv=4 and one thread per
#: worker: the process had 2.2 times the data.
COPIED = 1.2


@dataclass(frozen=True, slots=True)
class WorkerCapacity:
    """A worker that will run fits."""

    address: str
    id: str | int
    host: str
    threads: int
    limit: int  # bytes; 0 means none
    used: int  # bytes of the process


@dataclass(slots=True, kw_only=True)
class Backend:
    """A block of :func:`joblib_backend`, during and after it.

    Attributes
    ----------
    fits
        Number of finished fits.
    """

    fits: int = 0


@contextmanager
def joblib_backend(
    client: Client,
    *arrays: Any,
    inner_threads: int | None = None,
    memory_fraction: float = 0.7,
) -> Iterator[Backend]:
    """Run fits of scikit-learn's searches and ensembles on the workers.

    Parameters
    ----------
    client
        A connected synchronous client.
    arrays
        The same objects that ``fit`` receives: NumPy arrays, pandas or SciPy data. Each
        worker gets one copy before the first fit. Data that an estimator converts is
        sent again, so pass the type that it uses (forests: float32 in C order).
    inner_threads
        Threads of each fit for linear algebra (BLAS), OpenMP and its own joblib calls.
        The default shares the machine's CPUs between its concurrent tasks.
    memory_fraction
        Fraction of its memory limit that a worker may use for present data, the copy,
        and copies of its threads; above 0, up to 1.

    Yields
    ------
    Backend
        The number of finished fits.

    Raises
    ------
    TypeError, ValueError
        An argument has a wrong type or value.
    CapacityError
        A copy does not fit a worker's memory; nothing was sent.
    NoWorkersError, ConnectionLostError, VersionMismatchError
        No worker runs, or none came back within 5 minutes; the cluster is gone or
        cannot run code of this client.
    FunctionError
        Raised by ``fit``: a fit has ended all workers on which it was tried.
    IncompleteError
        Raised by ``fit``: all workers that held the data were lost again and again.
    ImportError
        joblib is not installed.

    Examples
    --------
    >>> with clustertune.training.joblib_backend(client, X, y):
    ...     search.fit(X, y)                                    # doctest: +SKIP
    """
    try:
        import joblib
    except ImportError as error:
        raise ImportError(
            "joblib_backend needs joblib, which is not installed here. Install "
            "scikit-learn here and on the workers"
        ) from error
    # joblib may not be installed, and this module imports it
    from clustertune.training import joblib_parallel

    check_client(client)
    _check_arrays(client, arrays)
    fraction = arguments.fraction("memory_fraction", memory_fraction)
    threads = arguments.count("inner_threads", inner_threads)
    workers: list[WorkerCapacity] = sync(client, _workers, client)
    problem = memory_problem(workers, sum(map(sizeof, arrays)), fraction)
    if problem is not None:
        raise CapacityError(problem)
    sharing = _tasks_per_machine(workers)
    runner = ship.function(remote_sums.fit_runner(sharing, threads))
    backend = Backend()

    def count(fits: int) -> None:
        backend.fits += fits

    there = joblib_parallel.answering(client, list(sharing))
    with joblib_parallel.replicated(client, there, [runner, *arrays]) as replicas:
        parallel = joblib_parallel.WorkerBackend(replicas, count)
        with joblib.parallel_config(parallel):
            yield backend


def _check_arrays(client: Client, arrays: tuple[Any, ...]) -> None:
    if client.asynchronous:
        raise TypeError(
            "client is asynchronous, and scikit-learn cannot await; pass one made by "
            "Client(address)"
        )
    for i, array in enumerate(arrays):
        if is_dask_collection(array) or isinstance(array, Future):
            raise TypeError(
                f"arrays[{i}] is a {type(array).__name__}, but a search needs all data "
                "in one object; pass the result of compute() or result()"
            )


# --- workers --------------------------------------------------------------------------


async def _workers(client: Client) -> list[WorkerCapacity]:
    entries, running = await monitor.running_workers(client)
    if not running:
        raise NoWorkersError(
            "the cluster has no running worker that can run code of this client (of "
            f"{len(entries)} workers). Start workers, and wait for them: "
            "client.wait_for_workers(n)"
        )
    return [
        WorkerCapacity(
            address=a,
            id=monitor.worker_id(a, entries[a]),
            host=str(entries[a]["host"]),
            threads=int(entries[a]["nthreads"]),
            limit=int(entries[a]["memory_limit"] or 0),
            used=int(entries[a]["metrics"].get("memory", 0)),
        )
        for a in running
    ]


def _tasks_per_machine(workers: Sequence[WorkerCapacity]) -> dict[str, int]:
    """Return by address of worker the number of concurrent tasks on its machine."""
    hosts = Counter[str]()
    for worker in workers:
        hosts[worker.host] += worker.threads
    return {worker.address: hosts[worker.host] for worker in workers}


# --- memory ---------------------------------------------------------------------------


def needed_memory(nbytes: int, threads: int) -> int:
    """Return the bytes of a worker's copy and the copies of its threads."""
    return int(nbytes * (1 + COPIED * threads))


def memory_problem(
    workers: Sequence[WorkerCapacity], nbytes: int, fraction: float
) -> str | None:
    """Explain why the data exceeds the memory of workers; None if it fits."""

    def excess(worker: WorkerCapacity) -> float:
        needed = needed_memory(nbytes, worker.threads)
        return worker.used + needed - fraction * worker.limit

    full = [worker for worker in workers if worker.limit and excess(worker) > 0]
    if not full:
        return None
    worst = max(full, key=excess)
    return (
        f"{workers_text([w.id for w in full])}: a copy of the data "
        f"({bytes_text(nbytes)}) and the copies of {plural(worst.threads, 'thread')} "
        f"of {workers_text([worst.id])} for fits take about "
        f"{bytes_text(needed_memory(nbytes, worst.threads))}; it uses "
        f"{bytes_text(worst.used)} and may fill {fraction:.0%} of its limit of "
        f"{bytes_text(worst.limit)}. Give workers more memory or fewer threads "
        "(clustertune.resize_workers), convert the data to float32, or fit a sample"
    )
