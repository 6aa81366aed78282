"""``joblib_backend``: run scikit-learn's searches and ensembles on the workers.

The arrays that all fits share are replicated on every worker in advance, if they fit in
memory. So is the function that runs fits, so that it is not sent with each fit.

The block measures each fit in its worker, and compares the total with the time that
threads of the client's machine would need. It assumes that a fit takes as long on
another machine, and that estimators release Python's lock.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any
from uuid import uuid4

from dask.base import is_dask_collection
from dask.sizeof import sizeof
from distributed import Client, Future

from clustertune.core import arguments
from clustertune.core.wording import (
    bytes_text,
    plural,
    printable,
    seconds_text,
    workers_text,
)
from clustertune.errors import CapacityError, NoWorkersError
from clustertune.monitor import monitor
from clustertune.monitor.connection import sync
from clustertune.operations.call import check_client
from clustertune.remote import ship
from clustertune.remote.worker import probe
from clustertune.training import remote_fits
from clustertune.training.remote_fits import Call

ANSWER_TIMEOUT = 30.0  # seconds in which a worker answers
#: Bytes that a thread copies for a fit, as a multiple of all data: rows to train on,
#: rows to score on, and conversions. Measured with joblib 1.6, cv=4 and one thread per
#: worker: the process had 2.2 times the data.
COPIED = 1.2
#: Fraction of the cluster's seconds below which this machine is called faster. The
#: seconds of this machine are an estimate, and its fits may disturb each other.
CLEARLY_FASTER = 0.8
NOTABLE = 1.0  # seconds from which a remark is worthwhile

logger = logging.getLogger("clustertune")


@dataclass(frozen=True, slots=True)
class WorkerCapacity:
    """A worker that will run fits."""

    address: str
    id: str | int
    host: str
    machine: str  # its identity; empty if unknown
    threads: int
    limit: int  # bytes; 0 means none
    used: int  # bytes of the process


@dataclass(frozen=True, slots=True)
class ClientMachine:
    """The machine of the client."""

    machine: str  # its identity; empty if unknown
    cpus: int  # usable
    free: int  # bytes


@dataclass(frozen=True, slots=True)
class Work:
    """All fits of one function."""

    name: str
    fits: int
    workers: int  # that ran them
    median: float  # seconds of a fit
    longest: float  # seconds of a fit
    spent: float  # seconds of all fits
    seconds: float  # that the caller waited
    widest: int  # largest number of fits in one call


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """Sizes, times and advice of a block of :func:`joblib_backend`; printable.

    It can be read during and after the block. Values about fits cover finished calls of
    joblib.

    Attributes
    ----------
    nbytes
        Bytes of the data, of which each worker has a copy.
    copying
        Seconds for copying the data to the workers.
    """

    nbytes: int
    copying: float
    _workers: tuple[WorkerCapacity, ...] = field(repr=False)
    _client: ClientMachine = field(repr=False)
    _nested: bool = field(repr=False)  # fits may wait for tasks that they made
    _calls: list[Call] = field(repr=False)

    @property
    def threads(self) -> int:
        """Number of concurrent fits when the block began."""
        return sum(worker.threads for worker in self._workers)

    @property
    def works(self) -> tuple[Work, ...]:
        """Fits by the name of their function, with seconds of fits and calls."""
        found: dict[str, list[Call]] = {}
        for call in self._calls:
            if call.ended is not None and call.fits:
                found.setdefault(call.fits[0][0], []).append(call)
        return tuple(_work(name, calls) for name, calls in found.items())

    @property
    def fits(self) -> int:
        """Number of finished fits."""
        return sum(work.fits for work in self.works)

    @property
    def seconds(self) -> float:
        """Seconds that the caller waited for fits, without the copying."""
        return math.fsum(work.seconds for work in self.works)

    @property
    def busy(self) -> float | None:
        """Fraction of the workers' thread time that fits used.

        None if nothing was fitted, or with ``nested=True``.
        """
        available = self.threads * self.seconds
        if self._nested or not available:
            return None
        return math.fsum(work.spent for work in self.works) / available

    @property
    def remarks(self) -> tuple[str, ...]:
        """Advice: general before any fit, measured afterwards."""
        works = self.works
        if not works:
            return tuple(filter(None, [self._general_advice()]))
        found: list[str] = []
        if self.copying > max(self.seconds, NOTABLE):
            found.append(
                f"copying {bytes_text(self.nbytes)} to "
                f"{plural(len(self._workers), 'worker')} took "
                f"{seconds_text(self.copying)}, longer than all fits there "
                f"({seconds_text(self.seconds)}). Fits in this process need no copies"
            )
        if not self._nested:  # seconds of nested fits include waiting for other fits
            found += filter(None, map(self._measured_advice, works))
        return tuple(found)

    def __str__(self) -> str:
        return "\n".join([*self._lines(), *self.remarks])

    def _general_advice(self) -> str | None:
        """Advise to compare with one process if all workers share a machine."""
        machines = {worker.machine for worker in self._workers}
        if len(machines) > 1 or "" in machines:
            return None
        where = "this machine" if machines == {self._client.machine} else "one machine"
        return (
            f"all workers are on {where}, with {plural(self.threads, 'thread')}. A "
            "process there that fits without Dask copies no data to workers (joblib."
            'parallel_config(backend="threading")). The end of the block reports the '
            "measured times"
        )

    def _measured_advice(self, work: Work) -> str | None:
        if work.spent < work.seconds:
            lost = (work.seconds * self.threads - work.spent) / work.fits
            return (
                f"{self._times(work)}, because each fit had an overhead of "
                f"{seconds_text(lost)} of a thread. One after the other in this "
                "process, without joblib_backend, they would have ended sooner"
            )
        threads, seconds = self._on_client(work)
        if seconds < CLEARLY_FASTER * work.seconds:
            return (
                f"{self._times(work)}; {plural(threads, 'thread')} of this machine "
                f"would take about {seconds_text(seconds)} if estimators release "
                "Python's lock, as forests do: joblib.parallel_config("
                f'backend="threading", n_jobs={threads})'
            )
        if work.widest < self.threads and work.seconds > NOTABLE:
            return (
                f"{work.name}: at most {plural(work.widest, 'fit')} in a call, for "
                f"{plural(self.threads, 'thread')}. With nested=True the cluster also "
                "runs the fits inside ensembles as tasks"
            )
        return None

    def _on_client(self, work: Work) -> tuple[int, float]:
        """Return threads and seconds on the client, infinite without memory."""
        copy = COPIED * self.nbytes
        fitting = int(self._client.free / copy) if copy else work.widest
        threads = min(self._client.cpus, fitting, work.widest)
        if threads < 1:
            return 0, math.inf
        return threads, max(work.spent / threads, work.longest)

    def _times(self, work: Work) -> str:
        return (
            f"{plural(work.fits, 'fit')} of {work.name}, {seconds_text(work.median)} "
            f"each, took {seconds_text(work.spent)} in total, and "
            f"{seconds_text(work.seconds)} on {plural(self.threads, 'thread')} of the "
            "cluster"
        )

    def _lines(self) -> Iterator[str]:
        workers, works = plural(len(self._workers), "worker"), self.works
        seconds = seconds_text(self.copying)
        yield f"{bytes_text(self.nbytes)} copied to {workers} in {seconds}"
        for work in works:
            yield (
                f"{self._times(work)}; at most {seconds_text(work.longest)}, on "
                f"{plural(work.workers, 'worker')}"
            )
        if self.busy is not None:
            yield f"threads of workers were fitting {self.busy:.0%} of that time"
        elif works:
            yield "unknown how busy threads were: with nested=True, fits wait for fits"
        else:
            yield "nothing was fitted on the cluster"
        own = (
            f"this machine has {plural(self._client.cpus, 'CPU')} and "
            f"{bytes_text(self._client.free)} free"
        )
        machines = [worker.machine for worker in self._workers]
        if not self._client.machine or "" in machines:
            yield f"{own}; which workers run on it is unknown"
        else:
            shared = machines.count(self._client.machine)
            yield f"{own}; {shared} of {workers} run on it"


def _work(name: str, calls: Sequence[Call]) -> Work:
    fits = [fit for call in calls for fit in call.fits]
    spent = [seconds for _, seconds, _ in fits]
    return Work(
        name=printable(name, longest=60),
        fits=len(fits),
        workers=len({worker for *_, worker in fits}),
        median=median(spent),
        longest=max(spent),
        spent=math.fsum(spent),
        seconds=sum(call.ended - call.begun for call in calls if call.ended),
        widest=max(len(call.fits) for call in calls),
    )


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
    """Run fits of scikit-learn's searches and ensembles on the workers.

    Parameters
    ----------
    client
        A connected synchronous client.
    arrays
        The same objects that ``fit`` receives: NumPy arrays, pandas or SciPy data. Each
        worker gets one copy before the first fit. Data that an estimator converts is
        sent again, so pass the type that it uses (forests: float32 in C order).
    n_workers
        Number of workers to wait for.
    inner_threads
        Threads of each fit for linear algebra (BLAS), OpenMP and its own joblib calls.
        The default shares the machine's CPUs between its concurrent tasks.
    nested
        Whether joblib calls inside a fit, such as the trees of a forest, become tasks
        of the cluster. This pays if there are fewer fits than threads. Otherwise the
        trees of all fits wait for each other, and their data is sent again.
    memory_fraction
        Fraction of its memory limit that a worker may use for present data, the copy,
        and copies of its threads; above 0, up to 1.
    timeout
        Seconds, or a duration, to wait for workers.

    Yields
    ------
    Backend
        Sizes, times and advice, during and after the block.

    Raises
    ------
    TypeError, ValueError
        An argument has a wrong type or value.
    CapacityError
        A copy does not fit a worker's memory; nothing was sent.
    NoWorkersError, ConnectionLostError, VersionMismatchError
        Workers did not join in time; the cluster is gone or cannot run code of this
        client.
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
    arguments.flag("nested", nested)
    _wait_for_workers(client, n_workers, arguments.duration("timeout", timeout))
    workers: list[WorkerCapacity] = sync(client, _workers, client)
    nbytes = sum(sizeof(array) for array in arrays)
    problem = memory_problem(workers, nbytes, fraction)
    if problem is not None:
        raise CapacityError(problem)
    here = ClientMachine(probe.machine(), probe.usable_cpus(), probe.available_memory())
    sharing = _tasks_per_machine(workers)
    runner = ship.function(remote_fits.fit_runner(sharing, threads, nested))
    calls: list[Call] = []
    prefix = f"joblib-{uuid4().hex}"
    with (
        joblib_parallel.limited_threads(client, sharing, threads),
        joblib_parallel.replicated(client, prefix, [runner, *arrays]) as copied,
    ):
        replicas, copying = copied
        backend = Backend(
            nbytes=nbytes,
            copying=copying,
            _workers=tuple(workers),
            _client=here,
            _nested=nested,
            _calls=calls,
        )
        _log(backend, logging.INFO)
        parallel = joblib_parallel.WorkerBackend(replicas, calls)
        with joblib.parallel_config(parallel):
            yield backend
    if backend.fits:
        _log(backend, logging.WARNING)


def _log(backend: Backend, level: int) -> None:
    for remark in backend.remarks:
        logger.log(level, "%s", remark)


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


def _wait_for_workers(client: Client, n_workers: Any, seconds: float) -> None:
    count = arguments.count("n_workers", n_workers)
    try:
        client.wait_for_workers(count or 1, timeout=seconds)
    # two different classes before Python 3.11
    except (TimeoutError, asyncio.TimeoutError) as error:
        raise NoWorkersError(
            f"n_workers={n_workers}, but within {seconds:g} s only "
            f"{len(client.nthreads())} joined. Start more workers, or pass a longer "
            "timeout"
        ) from error


async def _workers(client: Client) -> list[WorkerCapacity]:
    entries, running = await monitor.running_workers(client)
    machines = await ship.on_workers(
        client, probe.machine, running, timeout=ANSWER_TIMEOUT
    )
    return [_capacity(a, entries[a], machines[a]) for a in running]


def _capacity(address: str, entry: Mapping[str, Any], machine: Any) -> WorkerCapacity:
    return WorkerCapacity(
        address=address,
        id=monitor.worker_id(address, entry),
        host=str(entry["host"]),
        machine=machine if isinstance(machine, str) else "",  # no answer
        threads=int(entry["nthreads"]),
        limit=int(entry["memory_limit"] or 0),
        used=int(entry["metrics"].get("memory", 0)),
    )


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
