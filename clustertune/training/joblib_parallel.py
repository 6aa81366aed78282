"""joblib's backend that runs fits on workers, and its replicas and thread limits there.

joblib's own backend for Dask has three faults. It waits forever if an argument or
result does not pickle, or if workers die. It scatters arrays that fits share to one
worker, and a search fails with that worker. It makes tasks of all joblib calls inside
fits. This backend raises any error in the fit. It sends data that is used once with its
task, and makes a task of other data, which Dask can run again.

This module imports joblib, which may not be installed.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from time import perf_counter
from typing import Any
from uuid import uuid4

from dask._task_spec import Task
from dask.sizeof import sizeof
from dask.utils import apply, funcname
from distributed import Client, Future
from distributed.client import FutureCancelledError
from joblib.parallel import AutoBatchingMixin, ParallelBackendBase
from tlz import identity  # type: ignore[import-untyped]

from clustertune.collections import graphs
from clustertune.core.wording import printable
from clustertune.errors import IncompleteError
from clustertune.monitor.connection import sync
from clustertune.remote import ship
from clustertune.remote.scheduler import replicas as copies
from clustertune.training import remote_fits
from clustertune.training.remote_fits import Call

LOAD_TIMEOUT = 30.0  # seconds in which a worker loads NumPy and SciPy
SMALL = 1000  # bytes up to which a value always travels with its task
LARGE = 2**20  # bytes above which it never does: Dask warns from ten times that

logger = logging.getLogger("clustertune")


class WorkerBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]
    """Send batches of fits to ``run``, a future of ``remote_fits.fit_runner``.

    ``data`` has the future of an array by its ``id``. Replicas of keys with ``prefix``
    are kept. Each call of joblib is added to ``calls`` with its fits.
    """

    supports_retrieve_callback = True
    default_n_jobs = -1
    MAX_IDEAL_BATCH_DURATION = 1.0  # seconds, as in joblib's own backend for Dask

    def __init__(
        self,
        client: Client,
        prefix: str,
        run: Future[Any],
        data: dict[int, Future[Any]],
        calls: list[Call],
    ):
        super().__init__()
        self.client: Any = client
        self.loop: Any = client.loop
        self.run = run
        self.data = data
        self.calls = calls
        self._names = (f"{prefix}-call-{i}" for i in count())
        #: by ``id`` the values of this call, with a future after the second use
        self._used: dict[int, tuple[Any, Future[Any] | None]] = {}
        self._waiting: set[asyncio.Task[Any]] = set()

    def effective_n_jobs(self, n_jobs: Any) -> int:  # noqa: ARG002
        # with one job, joblib would fit in this process
        threads: int = sum(self.client.nthreads().values())
        return max(2, threads)

    def configure(self, n_jobs: Any = 1, parallel: Any = None, **_: Any) -> int:
        self.parallel = parallel
        return self.effective_n_jobs(n_jobs)

    def start_call(self) -> None:
        self.calls.append(Call(begun=perf_counter()))

    def stop_call(self) -> None:
        self._used.clear()
        self.calls[-1].ended = perf_counter()

    def submit(
        self, func: Any, callback: Callable[[Any], None]
    ) -> concurrent.futures.Future[Any]:
        outcome: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self.loop.add_callback(self._fit, func.items, outcome, callback)
        return outcome

    apply_async = submit  # before joblib 1.5

    def abort_everything(self, ensure_ready: bool = True) -> None:  # noqa: ARG002
        for task in list(self._waiting):
            self.loop.add_callback(task.cancel)

    def retrieve_result_callback(self, out: Any) -> list[Any]:
        if isinstance(out, BaseException):
            raise out
        self.calls[-1].fits.extend(fit for _, fit in out)
        return [result for result, _ in out]

    async def _fit(
        self,
        items: list[Any],
        outcome: concurrent.futures.Future[Any],
        callback: Callable[[Any], None],
    ) -> None:
        """Run a batch of fits and pass on the results or the error."""
        task: Any = asyncio.current_task()
        self._waiting.add(task)
        result: Any
        future: Future[Any] | None = None
        try:
            key = f"{funcname(items[0][0])}-{uuid4().hex}"
            batch = [self._prepared(*item) for item in items]
            future = self.client.submit(apply, self.run, [batch], key=key)
            (result,) = await self.client.gather([future], asynchronous=True)
        except FutureCancelledError as error:
            result = IncompleteError(
                f"{funcname(items[0][0])}: all workers that held the data or values "
                "that fits share are gone, or the cluster was restarted. Enter the "
                "block again, which sends the data again"
            )
            result.__cause__ = error
        # any error is the fit's; otherwise the caller would wait forever
        except Exception as error:  # noqa: BLE001
            result = error
        finally:
            self._waiting.discard(task)
            # at once, because a traceback would keep the future
            if future is not None:
                future.release()
        outcome.set_result(result)
        callback(result)

    def _prepared(self, function: Any, args: Any, kwargs: Any) -> tuple[Any, ...]:
        """Return a fit with futures instead of shared and large values."""
        return (
            function,
            [self._value_or_future(value) for value in args],
            {name: self._value_or_future(value) for name, value in kwargs.items()},
        )

    def _value_or_future(self, value: Any) -> Any:
        future = self.data.get(id(value))
        if future is not None:
            return future
        nbytes = sizeof(value)
        try:
            reference = weakref.ref(value)
        except TypeError:  # a number or a list, for example
            return value
        if nbytes <= SMALL:
            return value
        used, sent = self._used.get(id(value), (None, None))
        again = used is not None and used() is value  # else another object had this id
        if not again:
            sent = None
        if sent is None and (again or nbytes > LARGE):
            sent = self._as_task(value)
        self._used[id(value)] = reference, sent
        return value if sent is None else sent

    def _as_task(self, value: Any) -> Future[Any]:
        """Return a future of a task that Dask can run again after a loss.

        Scattered data would be lost with its worker. A worker that dies while data is
        copied to another one can also block the scheduler.
        """
        name = next(self._names)
        graph = graphs.Graph(tasks={name: Task(name, identity, value)})
        graph.partitions["value"] = [name]
        future: Future[Any] = graphs.submit(self.client, graph)[name]
        return future


# --- on the workers -------------------------------------------------------------------


@contextmanager
def limited_threads(
    client: Client, sharing: Mapping[str, int], threads: int | None
) -> Iterator[None]:
    """Limit the threads of native libraries on workers until the block ends."""
    name, addresses = uuid4().hex, list(sharing)
    limits = {"name": name, "tasks_per_machine": sharing, "threads": threads}
    try:
        _on_workers(client, remote_fits.limit_threads, addresses, **limits)
        yield
    finally:
        if client.status == "running":
            left = [a for a in addresses if a in client.nthreads()]
            _on_workers(client, remote_fits.restore_threads, left, name=name)


def _on_workers(
    client: Client, function: Any, workers: list[str], **arguments: Any
) -> None:
    arguments = {"timeout": LOAD_TIMEOUT, **arguments}
    answers = sync(client, ship.on_workers, client, function, workers, **arguments)
    for address, answer in answers.items():
        if isinstance(answer, BaseException):
            text = printable(repr(answer), longest=300)
            logger.warning(
                "worker %s keeps its number of BLAS threads, because the call failed: "
                "%s",
                printable(address),
                text,
            )


@contextmanager
def replicated(
    client: Client, prefix: str, arrays: Sequence[Any]
) -> Iterator[tuple[list[Any], float]]:
    """Replicate objects on all workers; yield their futures and the seconds it took."""
    futures: list[Future[Any]] = []
    try:
        start = perf_counter()
        # before the first replica exists, because the memory manager may run any time
        keep: dict[str, Any] = {"name": prefix, "owner": client.id, "prefix": prefix}
        sync(client, ship.on_scheduler, client, copies.keep, **keep)
        for i, array in enumerate(arrays):
            key = f"{prefix}-{i}"
            found = client.scatter({key: array}, broadcast=True, hash=False)
            futures.append(found[key])
        yield futures, perf_counter() - start
    finally:
        for future in futures:
            future.release()
        if client.status == "running":
            # ^C must not skip it, as it does in sync
            client.sync(ship.on_scheduler, client, copies.stop_keeping, name=prefix)
