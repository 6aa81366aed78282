"""joblib's backend that runs fits on workers, and its replicas there.

joblib's own backend for Dask has three faults. It waits forever if an argument or
result does not pickle, or if workers die. It scatters arrays that fits share to one
worker, and a search fails with that worker. It makes tasks of all joblib calls inside
fits. This backend raises any error in the fit. It sends small data with each task, and
makes a task of other data, which Dask can run again. If all replicas of the shared
arrays are lost, it sends the arrays again and submits the cancelled fits again.

This module imports joblib, which may not be installed.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from time import monotonic
from typing import Any
from uuid import uuid4

import dask
from dask._task_spec import Task
from dask.sizeof import sizeof
from dask.utils import apply, funcname
from distributed import Client, Future
from distributed.client import FutureCancelledError
from distributed.scheduler import KilledWorker
from joblib.parallel import AutoBatchingMixin, ParallelBackendBase
from tlz import identity  # type: ignore[import-untyped]

from clustertune.collections import graphs
from clustertune.core.wording import plural, printable, seconds_text, workers_text
from clustertune.errors import FunctionError, IncompleteError, NoWorkersError
from clustertune.monitor import monitor
from clustertune.monitor.connection import sync
from clustertune.remote import ship
from clustertune.remote.ending import within
from clustertune.remote.scheduler import bindings as copies
from clustertune.training import remote_sums

ANSWER_TIMEOUT = 30.0  # seconds in which a worker answers
SEND_TIMEOUT = 15.0  # seconds in which a worker gets lost data again, and
SEND_RATE = 1e7  # bytes per second of a slow network
RETURN_TIMEOUT = 300.0  # seconds in which a worker comes back after the loss of all
LARGE = 100_000  # bytes above which a value is a separate task
POLL_INTERVAL = 0.5  # seconds between two looks for a worker
TRIES = 10  # times that a batch of fits is submitted while its data is lost

logger = logging.getLogger("clustertune")


class WorkerBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]
    """Send batches of fits to the first replica, ``remote_sums.run_fits``.

    The other replicas are the shared arrays.
    """

    supports_retrieve_callback = True
    default_n_jobs = -1
    MAX_IDEAL_BATCH_DURATION = 1.0  # seconds, as in joblib's own backend for Dask

    def __init__(self, replicas: Replicas):
        super().__init__()
        self.client: Any = replicas.client
        self.loop: Any = self.client.loop
        self.replicas = replicas
        self._names = (f"{replicas.prefix}-call-{i}" for i in count())
        #: by ``id`` the large values of this call, while they exist, and their futures
        self._sent: dict[int, tuple[weakref.ref[Any], Future[Any]]] = {}
        self._waiting: set[asyncio.Task[Any]] = set()

    def effective_n_jobs(self, n_jobs: Any) -> int:  # noqa: ARG002
        # with one job, joblib would fit in this process
        threads: int = sum(self.client.nthreads().values())
        return max(2, threads)

    def configure(self, n_jobs: Any = 1, parallel: Any = None, **_: Any) -> int:
        self.parallel = parallel
        return self.effective_n_jobs(n_jobs)

    def stop_call(self) -> None:
        self._sent.clear()

    def submit(
        self, func: Any, callback: Callable[[Any], None]
    ) -> concurrent.futures.Future[Any]:
        outcome: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self.loop.add_callback(self._fit, func.items, outcome, callback)
        return outcome

    apply_async = submit  # before joblib 1.5

    def abort_everything(self, ensure_ready: bool = True) -> None:  # noqa: ARG002
        for task in list(self._waiting):
            self._waiting.discard(task)
            self.loop.add_callback(task.cancel)

    def retrieve_result_callback(self, out: Any) -> list[Any]:
        if isinstance(out, BaseException):
            raise out
        return list(out)

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
        try:
            result = await self._run(items)
        # any error is the fit's; otherwise the caller would wait forever
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and task not in self._waiting:
                raise  # the call was aborted
            result = error
        finally:
            self._waiting.discard(task)
        outcome.set_result(result)
        callback(result)

    async def _run(self, items: list[Any]) -> Any:
        """Run a batch, again if workers took it or its data with them.

        Dask runs a task again that was lost with its worker, unless its scattered data
        is lost too. It gives a task up after ``allowed-failures`` ended workers, and
        that number holds here for all tries together.
        """
        name = funcname(items[0][0])
        keys: list[str] = []
        while True:
            keys.append(f"{name}-{uuid4().hex}")
            future = self._submitted(keys[-1], items)
            try:
                (result,) = await self.client.gather([future], asynchronous=True)
            except (FutureCancelledError, KilledWorker) as error:
                await self._refuse_repetition(name, keys, error)
            else:
                return result
            finally:
                # at once, because a traceback would keep the future
                future.release()
            await self.replicas.send_lost()

    def _submitted(self, key: str, items: list[Any]) -> Future[Any]:
        # apart, because the traceback of a lost try keeps the variables of its frame
        batch = [self._prepared(*item) for item in items]
        run = self.replicas.futures[0]
        future: Future[Any] = self.client.submit(apply, run, [batch], key=key)
        return future

    async def _refuse_repetition(
        self, name: str, keys: list[str], cause: FutureCancelledError | KilledWorker
    ) -> None:
        """Raise an error for a batch that shall not run again."""
        ends: list[tuple[str, str]] = []
        if self.client.status == "running":
            ends = await ship.on_scheduler(
                self.client, remote_sums.ended_workers, keys=keys
            )
        allowed = dask.config.get("distributed.scheduler.allowed-failures")
        if isinstance(cause, KilledWorker) or len(ends) > allowed:
            worker, reason = ends[-1] if ends else ("unknown", str(cause))
            error = FunctionError(
                f"{name}: {plural(len(ends), 'worker')} ended while running this fit, "
                f"the last one {workers_text([printable(worker)])} ({reason}), so it "
                "is not run again. The logs of worker and nanny have more. If the fit "
                "needs too much memory, run clustertune.resize_workers, or fit a sample"
            )
            error.worker = worker
            raise error from cause
        if self.client.status != "running" or len(keys) >= TRIES:
            raise IncompleteError(
                f"{name}: all workers that held the data or values that fits share "
                f"were lost ({plural(len(keys), 'try', 'tries')}), or the client was "
                "closed. Enter the block again when the workers are stable"
            ) from cause

    def _prepared(self, function: Any, args: Any, kwargs: Any) -> tuple[Any, ...]:
        """Return a fit with futures instead of shared and large values."""
        return (
            function,
            [self._value_or_future(value) for value in args],
            {name: self._value_or_future(value) for name, value in kwargs.items()},
        )

    def _value_or_future(self, value: Any) -> Any:
        future = self.replicas.future_of(value)
        if future is not None:
            return future
        if sizeof(value) <= LARGE:
            return value
        try:
            forget = partial(self._forget, id(value))
            reference = weakref.ref(value, forget)
        except TypeError:  # a list, for example
            return value
        sent = self._sent.get(id(value))
        # another object may have had this id
        if sent is None or sent[0]() is not value or sent[1].cancelled():
            sent = self._sent[id(value)] = reference, self._as_task(value)
        return sent[1]

    def _forget(self, number: int, reference: weakref.ref[Any]) -> None:
        """Release the future of a value that is gone; its batches have ended."""
        if self._sent.get(number, (None,))[0] is reference:
            del self._sent[number]

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


def answering(client: Client, workers: list[str]) -> list[str]:
    """Return the workers that answer.

    A frozen worker would delay a transfer to all workers without a limit.
    """
    limit, ready = ANSWER_TIMEOUT, remote_sums.ready
    answers = sync(client, ship.on_workers, client, ready, workers, timeout=limit)
    silent = [a for a in workers if answers.get(a, "it has left") is not None]
    names = workers_text([printable(a) for a in silent])
    if silent == workers:
        raise NoWorkersError(
            f"{names} did not answer within {seconds_text(limit)}. Wait until a "
            "worker is idle, or restart them: clustertune.restart_workers(client)"
        )
    if silent:
        why = printable(repr(answers.get(silent[0])), longest=300)
        logger.warning("the data is not sent to %s, without an answer: %s", names, why)
    return [a for a in workers if a not in silent]


class Replicas:
    """Objects of which workers have replicas, and their futures.

    The scheduler keeps all replicas of keys with the prefix.
    """

    def __init__(self, client: Any, workers: Sequence[str], values: Sequence[Any]):
        self.client = client
        self.workers = workers  # that have answered
        self.prefix = f"joblib-{uuid4().hex}"
        self.values = values
        self.missing_since: float | None = None
        self.futures: list[Future[Any]] = []
        self._index = {id(value): i for i, value in enumerate(values)}
        self._names = (f"{self.prefix}-{i}" for i in count())
        self._sending = asyncio.Lock()

    def future_of(self, value: Any) -> Future[Any] | None:
        i = self._index.get(id(value))
        return None if i is None else self.futures[i]

    def send(self) -> None:
        """Send all objects to all workers that have answered and are still there."""
        for value in self.values:
            key = next(self._names)
            there = [a for a in self.workers if a in self.client.nthreads()]
            found = self.client.scatter(
                {key: value}, workers=there, broadcast=True, hash=False
            )
            self.futures.append(found[key])

    async def send_lost(self) -> None:
        """Send objects that no worker has to one worker; others copy from there.

        Raises
        ------
        NoWorkersError
            No worker came back in time. Batches that wait here raise it, too.
        """
        async with self._sending:
            await self._wait_for_worker()
            keys = [future.key for future in self.futures]
            holders = await self.client.scheduler.who_has(keys=keys)
            for i, future in enumerate(self.futures):
                if holders.get(future.key):
                    continue
                key = next(self._names)
                data = {key: self.values[i]}
                sending = self.client.scatter(data, hash=False, asynchronous=True)
                # a worker that ends now costs a try: the next one sends again
                with suppress(OSError, asyncio.TimeoutError):
                    limit = SEND_TIMEOUT + sizeof(self.values[i]) / SEND_RATE
                    found = await within(sending, limit)
                    self.futures[i] = found[key]

    async def _wait_for_worker(self) -> None:
        self.missing_since = self.missing_since or monotonic()
        while not (await monitor.running_workers(self.client))[1]:
            if monotonic() - self.missing_since > RETURN_TIMEOUT:
                raise NoWorkersError(
                    "all workers ended during the fits, and none came back within "
                    f"{seconds_text(RETURN_TIMEOUT)}. Their nannies may have given up; "
                    "see their logs, start workers and enter the block again"
                )
            await asyncio.sleep(POLL_INTERVAL)
        self.missing_since = None

    def release(self) -> None:
        for future in self.futures:
            future.release()


@contextmanager
def replicated(
    client: Client, workers: Sequence[str], values: Sequence[Any]
) -> Iterator[Replicas]:
    """Replicate objects on workers and yield them."""
    replicas = Replicas(client, workers, values)
    prefix = replicas.prefix
    try:
        # before the first replica exists, because the memory manager may run any time
        keep: dict[str, Any] = {"name": prefix, "owner": client.id, "prefix": prefix}
        sync(client, ship.on_scheduler, client, copies.keep, **keep)
        replicas.send()
        yield replicas
    finally:
        replicas.release()
        if client.status == "running":
            # ^C must not skip it, as it does in sync
            client.sync(ship.on_scheduler, client, copies.stop_keeping, name=prefix)
