"""scikit-learn's searches and ensembles on workers: ``joblib_backend``.

joblib sends a task for each fit and, with it, a reference to arrays that it knows by
identity. Here they are put on every worker before, where there is room, and the
scheduler's memory manager is kept from deleting the copies. With them goes the function
that runs a fit there, so that nothing more travels with each.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any
from uuid import uuid4

import distributed
from dask.base import is_dask_collection
from dask.sizeof import sizeof
from distributed import Client, Future

from clustertune.core import arguments
from clustertune.core.wording import printable
from clustertune.errors import CapacityError, NoWorkersError
from clustertune.monitor import monitor
from clustertune.operations import entrance
from clustertune.remote import fits, pools, ship
from clustertune.remote.scheduler import replicas as copies
from clustertune.remote.worker import probe
from clustertune.training import room, worth
from clustertune.training.room import Seat
from clustertune.training.worth import Block, Call, Here, Work

PATIENCE = 30.0  # seconds in which a worker loads NumPy and SciPy

logger = logging.getLogger("clustertune")


@dataclass(frozen=True, slots=True)
class Backend:
    """What a block of :func:`joblib_backend` has prepared, and what became of it.

    What is about fits covers the calls of joblib that are done; it can be read during
    the block and after it. As text, it says all of it.
    """

    _block: Block
    _calls: list[Call] = field(repr=False)

    @property
    def nbytes(self) -> int:
        """Of the data, of which each worker has a copy."""
        return self._block.nbytes

    @property
    def copying(self) -> float:
        """Seconds that it took to put the copies there."""
        return self._block.copying

    @property
    def threads(self) -> int:
        """How many models workers could fit at a time when the block began."""
        return self._block.threads

    @property
    def works(self) -> tuple[Work, ...]:
        """What was fitted, by the name of the function; seconds of fits and calls."""
        return worth.works(self._calls)

    @property
    def fits(self) -> int:
        """How many fits are done, whatever they fitted."""
        return sum(work.fits for work in self.works)

    @property
    def seconds(self) -> float:
        """For which the caller has waited for fits; the copying comes before that."""
        return math.fsum(work.seconds for work in self.works)

    @property
    def busy(self) -> float | None:
        """The share of these seconds in which threads of workers were fitting.

        None: unknown, since nothing was fitted, or fits have waited for tasks of their
        own.
        """
        return worth.busy(self._block, self.works)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What would be faster.

        As far as can be told before anything is fitted; then, as was measured.
        """
        return tuple(worth.remarks(self._block, self.works))

    def __str__(self) -> str:
        return "\n".join([*worth.lines(self._block, self.works), *self.remarks])


@contextmanager
def joblib_backend(
    client: Client,
    *arrays: Any,
    n_workers: int = 1,
    inner_threads: int | None = None,
    nested: bool = False,
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
        How many threads a fit may use: in linear algebra (BLAS), with OpenMP, and for
        what it runs with joblib itself. By default as many as there are CPUs for each
        task that runs on the same machine.
    nested
        Have what a fit runs with joblib itself, as the trees of a forest, become tasks
        of the cluster. That pays where there are fewer fits than threads; else the
        trees of all fits wait for each other, and their data travels.
    memory_fraction
        How much of its memory limit a worker may fill with the copy, with what its
        threads copy, and with what it has now: above 0, up to 1.
    timeout
        Seconds, or a duration, to wait for workers.

    Yields
    ------
    Backend
        What was prepared, and, when the block has ended, what became of it.

    Raises
    ------
    TypeError, ValueError
        An argument is not what it should be.
    CapacityError
        A worker has no room for a copy; nothing was sent.
    NoWorkersError, ConnectionLostError, VersionMismatchError
        Workers did not come in time; there is no cluster, or none to which code may be
        sent.
    IncompleteError
        In the block, from ``fit``: all workers that held the data are gone.
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
    from clustertune.training.fitting import Fitting

    entrance.check_client(client)
    _refuse_arrays(client, arrays)
    fraction = arguments.fraction("memory_fraction", memory_fraction)
    inner = arguments.count("inner_threads", inner_threads)
    arguments.flag("nested", nested)
    _wait(client, n_workers, arguments.duration("timeout", timeout))
    seats: list[Seat] = client.sync(_seats, client)
    nbytes = sum(sizeof(array) for array in arrays)
    obstacle = room.obstacle(seats, nbytes, fraction)
    if obstacle is not None:
        raise CapacityError(obstacle)
    here = Here(probe.machine(), probe.usable_cpus(), probe.available_memory())
    beside = _beside(seats)
    runner = ship.function(fits.runner(beside, inner, nested))
    calls: list[Call] = []
    prefix = f"joblib-{uuid4().hex}"
    with (
        _pools(client, beside, inner),
        _copied(client, prefix, [runner, *arrays]) as (futures, copying),
    ):
        backend = Backend(Block(tuple(seats), here, nbytes, copying, nested), calls)
        _say(backend, logging.INFO)
        run, *there = futures
        data = {id(a): future for a, future in zip(arrays, there, strict=True)}
        with joblib.parallel_config(Fitting(client, prefix, run, data, calls)):
            yield backend
    if backend.fits:
        _say(backend, logging.WARNING)


def _say(backend: Backend, level: int) -> None:
    for remark in backend.remarks:
        logger.log(level, "%s", remark)


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
    running = [
        address
        for address, entry in entries.items()
        if address in approved and entry["status"] == "running"
    ]
    machines = await _ask(client, probe.machine, running)
    return [_seat(address, entries[address], machines[address]) for address in running]


def _seat(address: str, entry: Mapping[str, Any], machine: Any) -> Seat:
    return Seat(
        address=address,
        id=monitor.worker_id(address, entry),
        host=str(entry["host"]),
        machine=machine if isinstance(machine, str) else "",  # it did not answer
        threads=int(entry["nthreads"]),
        limit=int(entry["memory_limit"] or 0),
        used=int(entry["metrics"].get("memory", 0)),
    )


def _beside(seats: Sequence[Seat]) -> dict[str, int]:
    """By address of worker, how many tasks run at a time on its machine."""
    hosts = Counter[str]()
    for seat in seats:
        hosts[seat.host] += seat.threads
    return {seat.address: hosts[seat.host] for seat in seats}


@contextmanager
def _pools(
    client: Client, beside: Mapping[str, int], inner: int | None
) -> Iterator[None]:
    """Threads for linear algebra in each fit, as long as the block lasts."""
    name, addresses = uuid4().hex, list(beside)
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
def _copied(
    client: Client, prefix: str, arrays: Sequence[Any]
) -> Iterator[tuple[list[Any], float]]:
    """One copy of each object on every worker while the block lasts; and seconds."""
    futures: list[distributed.Future[Any]] = []
    try:
        start = perf_counter()
        # kept before they are there: the manager may look at any moment
        client.sync(_keep, client, prefix)
        for i, array in enumerate(arrays):
            key = f"{prefix}-{i}"
            found = client.scatter({key: array}, broadcast=True, hash=False)
            futures.append(found[key])
        yield futures, perf_counter() - start
    finally:
        for future in futures:
            future.release()
        if client.status == "running":
            client.sync(_let_go, client, prefix)


async def _keep(client: Client, prefix: str) -> None:
    await ship.on_scheduler(
        client, copies.keep, name=prefix, owner=client.id, prefix=prefix
    )


async def _let_go(client: Client, name: str) -> None:
    await ship.on_scheduler(client, copies.let_go, name=name)
