"""scikit-learn's searches and ensembles on workers: ``joblib_backend``.

joblib sends a task for each fit and, with it, a reference to arrays that it knows by
identity. Here they are put on every worker before, where there is room, and the
scheduler's memory manager is kept from deleting the copies.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import distributed
from dask.base import is_dask_collection
from dask.sizeof import sizeof
from distributed import Client, Future

from clustertune import arguments, inputs, monitor
from clustertune.errors import CapacityError, NoWorkersError
from clustertune.remote import copies, pools, ship
from clustertune.training import room
from clustertune.training.room import Seat
from clustertune.wording import printable

PATIENCE = 30.0  # seconds in which a worker loads NumPy and SciPy

logger = logging.getLogger("clustertune")


@dataclass(frozen=True, slots=True)
class Backend:
    """What a block of :func:`joblib_backend` has prepared.

    Attributes
    ----------
    nbytes
        Of the data, of which each worker has a copy.
    threads
        How many models are fitted at a time.
    remarks
        What would be faster; it is logged, too.
    """

    nbytes: int
    threads: int
    remarks: tuple[str, ...]


@contextmanager
def joblib_backend(
    client: Client,
    *arrays: Any,
    n_workers: int = 1,
    inner_threads: int | None = None,
    memory_fraction: float = 0.7,
    timeout: str | float = "5 minutes",
) -> Iterator[Backend]:
    """Fit scikit-learn's searches and ensembles on the workers while a block lasts.

    Parameters
    ----------
    client
        A connected client that is not asynchronous.
    arrays
        What is handed to ``fit``, the same objects: NumPy arrays, pandas or SciPy data.
        Each worker gets one copy, before the first fit. What an estimator converts
        itself is sent again: hand over what it works with (forests: float32, in
        C order).
    n_workers
        How many workers to wait for.
    inner_threads
        How many threads linear algebra (BLAS) uses in each fit; by default as many as
        there are CPUs for each task that runs on the same machine. OpenMP has what the
        worker's environment says.
    memory_fraction
        How much of its memory limit a worker may fill with the copy, with what its
        threads copy, and with what it has now: above 0, up to 1.
    timeout
        Seconds, or a duration, to wait for workers.

    Yields
    ------
    Backend
        What was prepared, and remarks.

    Raises
    ------
    TypeError, ValueError
        An argument is not what it should be.
    CapacityError
        A worker has no room for a copy; nothing was sent.
    NoWorkersError, ConnectionLostError, VersionMismatchError
        Workers did not come in time; there is no cluster, or none to which code may be
        sent.
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
            "joblib_backend needs joblib, which comes with scikit-learn: install it "
            "here and on the workers"
        ) from error
    inputs.check_client(client, inputs.NOTHING)
    _refuse_arrays(client, arrays)
    fraction = arguments.fraction("memory_fraction", memory_fraction)
    inner = arguments.count("inner_threads", inner_threads)
    _wait(client, n_workers, arguments.duration("timeout", timeout))
    seats: list[Seat] = client.sync(_seats, client)
    nbytes = sum(sizeof(array) for array in arrays)
    obstacle = room.obstacle(seats, nbytes, fraction)
    if obstacle is not None:
        raise CapacityError(obstacle)
    remarks = room.remarks(seats)
    for remark in remarks:
        logger.warning("%s", remark)
    threads = sum(seat.threads for seat in seats)
    with (
        _pools(client, seats, inner),
        _copied(client, arrays) as futures,
        joblib.parallel_config("dask", client=client),
    ):
        backend, _ = joblib.parallel.get_active_backend()
        # joblib's own scatter= names data by its content, and the end of one block
        # would take it from another
        backend.data_futures = {
            id(array): future for array, future in zip(arrays, futures, strict=True)
        }
        yield Backend(nbytes, threads, tuple(remarks))


def _refuse_arrays(client: Client, arrays: tuple[Any, ...]) -> None:
    if client.asynchronous:
        raise TypeError(
            "client is asynchronous, and scikit-learn cannot await; give one made by "
            "Client(address)"
        )
    for i, array in enumerate(arrays):
        if is_dask_collection(array) or isinstance(array, Future):
            raise TypeError(
                f"arrays[{i}] is a {type(array).__name__}: a search needs all data in "
                "one object; give what compute() or result() returns"
            )


def _wait(client: Client, n_workers: Any, seconds: float) -> None:
    count = arguments.count("n_workers", n_workers)
    try:
        client.wait_for_workers(count or 1, timeout=seconds)
    except (TimeoutError, asyncio.TimeoutError) as error:  # others before Python 3.11
        raise NoWorkersError(
            f"n_workers={n_workers}, but within {seconds:g} s only "
            f"{len(client.nthreads())} came; start some, or give a longer timeout"
        ) from error


async def _seats(client: Client) -> list[Seat]:
    entries: Mapping[str, Any] = (await monitor.identify(client))["workers"]
    approved = await monitor.approve(client, entries)
    return [
        Seat(
            address=address,
            id=monitor.worker_id(address, entry),
            host=str(entry["host"]),
            threads=int(entry["nthreads"]),
            limit=int(entry["memory_limit"] or 0),
            used=int(entry["metrics"].get("memory", 0)),
        )
        for address, entry in entries.items()
        if address in approved and entry["status"] == "running"
    ]


@contextmanager
def _pools(client: Client, seats: Sequence[Seat], inner: int | None) -> Iterator[None]:
    """Threads for linear algebra in each fit, as long as the block lasts."""
    name, addresses = uuid4().hex, [seat.address for seat in seats]
    hosts = Counter[str]()
    for seat in seats:
        hosts[seat.host] += seat.threads
    beside = {seat.address: hosts[seat.host] for seat in seats}
    try:
        more = {"beside": beside, "threads": inner}
        _tell(client.sync(_ask, client, pools.limit, addresses, name=name, **more))
        yield
    finally:
        if client.status == "running":
            # those that are gone have nothing to put back
            there = [a for a in addresses if a in client.nthreads()]
            _tell(client.sync(_ask, client, pools.restore, there, name=name))


async def _ask(
    client: Client, function: Any, workers: list[str], **more: Any
) -> dict[str, Any]:
    return await ship.on_workers(client, function, workers, timeout=PATIENCE, **more)


def _tell(answers: Mapping[str, Any]) -> None:
    for address, answer in answers.items():
        if isinstance(answer, BaseException):
            who, text = printable(address), printable(repr(answer), longest=300)
            logger.warning("worker %s keeps its threads for BLAS: %s", who, text)


@contextmanager
def _copied(client: Client, arrays: tuple[Any, ...]) -> Iterator[list[Any]]:
    """One copy of each array on every worker, as long as the block lasts."""
    name = uuid4().hex
    futures: list[distributed.Future[Any]] = []
    try:
        # kept before they are there: the manager may look at any moment
        names = [f"joblib-{name}-{i}" for i in range(len(arrays))]
        client.sync(_keep, client, name, names)
        for key, array in zip(names, arrays, strict=True):
            found = client.scatter({key: array}, broadcast=True, hash=False)
            futures.append(found[key])
        yield futures
    finally:
        for future in futures:
            future.release()
        if client.status == "running":
            client.sync(_let_go, client, name)


async def _keep(client: Client, name: str, names: list[str]) -> None:
    await ship.on_scheduler(client, copies.keep, name=name, owner=client.id, keys=names)


async def _let_go(client: Client, name: str) -> None:
    await ship.on_scheduler(client, copies.let_go, name=name)
