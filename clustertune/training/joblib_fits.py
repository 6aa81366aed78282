"""``joblib_backend``: run scikit-learn's searches and ensembles on the workers.

The arrays that all fits share are replicated on every worker in advance, if they fit in
memory. So is the function that runs fits, so that it is not sent with each fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dask.base import is_dask_collection
from dask.sizeof import sizeof
from distributed import Client, Future

from clustertune.core.wording import bytes_text, workers_text
from clustertune.errors import CapacityError
from clustertune.monitor import monitor
from clustertune.monitor.connection import sync
from clustertune.operations.call import check_client
from clustertune.remote import ship
from clustertune.training import remote_sums

#: Fraction of its limit that the memory of a worker may reach with the copy. Dask
#: pauses a worker at 0.8, and a paused worker runs no fits.
FULL = 0.7


@contextmanager
def joblib_backend(client: Client, *arrays: Any) -> Iterator[None]:
    """Run fits of scikit-learn's searches and ensembles on the workers.

    Parameters
    ----------
    client
        A connected synchronous client.
    arrays
        The same objects that ``fit`` receives: NumPy arrays, pandas or SciPy data. Each
        worker gets one copy before the first fit. Data that an estimator converts is
        sent again, so pass the type that it uses (forests: float32 in C order).

    Raises
    ------
    TypeError
        An argument has a wrong type.
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

    Notes
    -----
    Native code (BLAS, OpenMP) uses the threads that the worker allows: one, if a nanny
    of Dask has started it; otherwise set ``OMP_NUM_THREADS=1`` before. LightGBM counts
    the CPUs instead: pass it ``n_jobs=1``.

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
    running = sync(client, monitor.usable_workers, client)
    _refuse_full(running, sum(map(sizeof, arrays)))
    there = joblib_parallel.answering(client, list(running))
    values = [ship.function(remote_sums.run_fits), *arrays]
    with (
        joblib_parallel.replicated(client, there, values) as replicas,
        joblib.parallel_config(joblib_parallel.WorkerBackend(replicas)),
    ):
        yield


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


def _refuse_full(running: Mapping[str, Mapping[str, Any]], nbytes: int) -> None:
    """Refuse data of which some workers cannot hold a copy."""
    full = [
        monitor.worker_id(address, entry)
        for address, entry in running.items()
        # a limit of 0 means none
        if (limit := int(entry["memory_limit"] or 0))
        and int(entry["metrics"].get("memory", 0)) + nbytes > FULL * limit
    ]
    if full:
        raise CapacityError(
            f"{workers_text(full)}: with a copy of the data ({bytes_text(nbytes)}), "
            f"the memory would exceed {FULL:.0%} of its limit, and fits copy rows, "
            "too. Give workers more memory: clustertune.resize_workers, convert the "
            "data to float32, or fit a sample"
        )
