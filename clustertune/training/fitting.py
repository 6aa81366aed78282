"""A backend of joblib's that fits on workers: ``joblib_backend`` has it in its block.

joblib's own backend for Dask waits for ever where a task's argument or result cannot be
pickled, or its workers have died; scatters each array that fits share, as the rows of a
fold, to one worker, and with that the search is lost; and makes tasks of whatever a fit
runs with joblib itself. Here an error of any kind is the fit's, and what is used once
goes with its task, and the rest is a task of its own, which is run again if need be.

joblib may be missing, so this module is imported where it is needed.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import weakref
from collections.abc import Callable
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
from clustertune.errors import IncompleteError
from clustertune.training.worth import Call

SMALL = 1000  # bytes that always go with a task
LARGE = 2**20  # bytes that never do: Dask warns of tasks of ten times that


class Fitting(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]
    """Sends batches of fits to :func:`clustertune.remote.fits.runner`'s function.

    Parameters
    ----------
    client
        That sends tasks.
    prefix
        Keys that begin so keep their copies.
    run
        The function, on all workers.
    data
        By ``id`` of an array, what is on all workers.
    calls
        To which each call of joblib is added, with its fits.
    """

    supports_retrieve_callback = True
    default_n_jobs = -1
    MAX_IDEAL_BATCH_DURATION = 1.0  # seconds, as in joblib's own for Dask

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
        #: by ``id``: what was used in this call, and its future when it was used again
        self._met: dict[int, tuple[Any, Future[Any] | None]] = {}
        self._waiting: set[asyncio.Task[Any] | None] = set()

    def effective_n_jobs(self, n_jobs: Any) -> int:  # noqa: ARG002
        # joblib fits in this process where there is one thread, which is the cluster's
        threads: int = sum(self.client.nthreads().values())
        return max(2, threads)

    def configure(self, n_jobs: Any = 1, parallel: Any = None, **_: Any) -> int:
        self.parallel = parallel
        return self.effective_n_jobs(n_jobs)

    def start_call(self) -> None:
        self.calls.append(Call(begun=perf_counter()))

    def stop_call(self) -> None:
        self._met.clear()
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
            if task is not None:
                self.loop.add_callback(task.cancel)

    def retrieve_result_callback(self, out: Any) -> list[Any]:
        if isinstance(out, BaseException):
            raise out
        self.calls[-1].fitted.extend(fitted for _, fitted in out)
        return [result for result, _ in out]

    async def _fit(
        self,
        items: list[Any],
        outcome: concurrent.futures.Future[Any],
        callback: Callable[[Any], None],
    ) -> None:
        """Have a batch of fits run, and hand over results, or the error."""
        here = asyncio.current_task()
        self._waiting.add(here)
        result: Any
        future: Future[Any] | None = None
        try:
            key = f"{funcname(items[0][0])}-{uuid4().hex}"
            batch = [self._sent(*item) for item in items]
            future = self.client.submit(apply, self.run, [batch], key=key)
            (result,) = await self.client.gather([future], asynchronous=True)
        except FutureCancelledError as error:
            result = IncompleteError(
                f"{funcname(items[0][0])}: all workers that held the data or what fits "
                "share are gone, or the cluster was restarted; enter the block again, "
                "which sends the data again"
            )
            result.__cause__ = error
        # whatever it is, it is the fit's, or the caller would wait for ever
        except Exception as error:  # noqa: BLE001
            result = error
        finally:
            self._waiting.discard(here)
            # an error keeps the frames that it passed, and they what they know of
            if future is not None:
                future.release()
        outcome.set_result(result)
        callback(result)

    def _sent(self, function: Any, args: Any, kwargs: Any) -> tuple[Any, ...]:
        """A fit, with futures in the place of what its worker has or fetches."""
        return (
            function,
            [self._there(value) for value in args],
            {name: self._there(value) for name, value in kwargs.items()},
        )

    def _there(self, value: Any) -> Any:
        future = self.data.get(id(value))
        if future is not None:
            return future
        nbytes = sizeof(value)
        try:
            reference = weakref.ref(value)
        except TypeError:  # a number or a list, say
            return value
        if nbytes <= SMALL:
            return value
        met, sent = self._met.get(id(value), (None, None))
        again = met is not None and met() is value  # else the id is that of another
        if not again:
            sent = None
        if sent is None and (again or nbytes > LARGE):
            sent = self._task_of(value)
        self._met[id(value)] = reference, sent
        return value if sent is None else sent

    def _task_of(self, value: Any) -> Future[Any]:
        """A task that has the value: made again where its worker is lost.

        What is scattered would be lost with it; and a worker that dies while data is
        copied to another can keep the scheduler at it for ever.
        """
        name = next(self._names)
        graph = graphs.Graph(tasks={name: Task(name, identity, value)})
        graph.pieces["value"] = [name]
        future: Future[Any] = graphs.submit(self.client, graph)[name]
        return future
