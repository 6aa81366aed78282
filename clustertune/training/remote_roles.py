"""A role on a worker: a long-running task and its connection with the client.

:func:`register` makes an :class:`Endpoint` before the task begins, so its port is known
to the client. The endpoint has a handler on the worker, by which the client waits for
news, and starts, stops and forgets the role. The task, :func:`run_role`, calls the
function only after the client has started all roles. A task that runs again, on this or
another worker, finds no endpoint and ends.

This module travels by value. It may import Dask and other travelling modules.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent import futures
from contextlib import contextmanager, suppress
from itertools import islice
from time import monotonic
from typing import Any

from distributed import Status, get_worker
from distributed.comm.addressing import get_address_host, unparse_host_port
from distributed.protocol import pickle

from clustertune.remote.ending import within
from clustertune.training.remote_sums import error_location, picklable_error

# --- the context of a role ------------------------------------------------------------

Settings = dict[str, Any]
Rows = tuple[Any, ...]  # the same rows of each collection

POLL_INTERVAL = 0.5  # seconds between two checks whether the task is still wanted


class Context:
    """Argument of a role's function.

    Attributes
    ----------
    role : str
        Name of the role.
    rank, size : int
        Number within the role, from 0, and the number of members of the role.
    spec : dict
        By role a list of ``host:port``, by rank.
    threads : int
        Threads of the worker, all of which the role may use.
    steps : int or None
        Batches per epoch that every rank of the role has; None without data.
    state : object
        What this rank has saved in the earlier attempt; None if nothing.
    """

    def __init__(self, worker: Any, endpoint: Endpoint, key: str, given: Settings):
        self.role: str = given["role"]
        self.rank: int = given["rank"]
        self.size: int = given["size"]
        self.spec: dict[str, list[str]] = {r: list(p) for r, p in given["spec"]}
        self.threads: int = worker.state.nthreads
        self.steps: int | None = given["steps"]
        self.state: Any = None  # unpickled before the function is called
        #: combines the stop requests of all ranks; a framework may replace it
        self.agree: Callable[[bool], bool] = bool
        #: set when another role failed; a framework's collective calls must end then
        self.aborted = endpoint.aborted
        self._worker = worker
        self._endpoint = endpoint
        self._key = key
        self._given = given

    def batches(self, epochs: int = 1) -> Iterator[Rows]:
        """Iterate over the rows on this worker with their labels.

        Each epoch is one pass over the data. A batch has the ``batch_size`` of
        ``run_roles``, else it is one partition. If ranks run in step, every rank gets
        ``steps`` full batches per epoch, so no rank waits for another. Further rows
        are left out.

        Yields
        ------
        tuple
            The rows of the batch from each collection: read-only arrays, or frames.
        """
        partitions, size = self._given["partitions"], self._given["batch_size"]
        if partitions is None:
            raise RuntimeError(
                f"role {self.role} has no data: run_roles places data= on the workers "
                'of the only role, or of the role "worker". Pass data= to run_roles'
            )
        steps = self.steps if self._given["synchronous"] else None
        return (
            batch
            for _ in range(epochs)
            for batch in split_rows(map(self._take, partitions), size, steps)
        )

    def _take(self, keys: tuple[Any, ...]) -> Rows:
        """Read a partition on the event loop, which alone changes the worker's data."""
        reading = asyncio.run_coroutine_threadsafe(
            self._read(keys), self._endpoint.loop
        )
        while not futures.wait([reading], POLL_INTERVAL).done:
            if not self.is_wanted():  # a stopped event loop never answers
                raise RuntimeError("this role has ended, so it reads no more data")
        return reading.result()

    async def _read(self, keys: tuple[Any, ...]) -> Rows:
        """Read a partition from the worker's memory or disk."""
        gone = [key for key in keys if key not in self._worker.data]
        if gone:
            raise RuntimeError(
                f"partition {gone[0]} left this worker after the roles began, so the "
                "role has no complete data. Call run_roles again"
            )
        return tuple(_protected(self._worker.data[key]) for key in keys)

    def report(self, score: Any) -> None:
        """Send any object that pickles to the ``scores`` of ``run_roles``.

        If 10,000 scores wait for the client, the oldest one is dropped.
        """
        self._endpoint.send("score", pickle.dumps(score))

    def save(self, state: Any) -> None:
        """Send a state, any object that pickles, to ``states`` of ``run_roles``.

        The client keeps the last one of each rank. ``run_roles(..., states=...)`` gives
        it to the next attempt, as :attr:`state`.
        """
        self._endpoint.send("state", pickle.dumps(state))

    def should_stop(self) -> bool:
        """Return whether this role should end.

        If ranks run in step (torch), all ranks must call this in the same step. All
        get the same answer.
        """
        return self.agree(self._stop_requested())

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the stop request, at most some seconds; return whether it came."""
        end = math.inf if seconds is None else monotonic() + seconds
        while not self._stop_requested() and (left := end - monotonic()) > 0:
            self._endpoint.stopped.wait(min(POLL_INTERVAL, left))
        return self._stop_requested()

    def _stop_requested(self) -> bool:
        return self._endpoint.stopped.is_set() or not self.is_wanted()

    def is_wanted(self) -> bool:
        """Return whether a client still waits for this task."""
        task = self._worker.state.tasks.get(self._key)
        runs = task is not None and task.state in ("executing", "long-running")
        return runs and self._worker.status not in (Status.closing, Status.closed)


# --- batches --------------------------------------------------------------------------


def split_rows(
    partitions: Iterable[Rows], size: int | None, steps: int | None
) -> Iterator[Rows]:
    """Split partitions into at most ``steps`` batches, in the order of the rows.

    Batches have ``size`` rows, across partitions; the last one may be smaller. With
    ``size=None`` each partition is a batch.
    """
    batches = (
        (p for p in partitions if _row_count(p))
        if size is None
        else _split(partitions, size)
    )
    # partitions after the last batch are not read
    return islice(batches, steps)


def _protected(x: Any) -> Any:
    """Return the array or frame so that a role does not change the worker's data."""
    if hasattr(x, "iloc"):
        return x.copy(deep=False)  # pandas copies it when it is changed
    if hasattr(x, "setflags"):
        x = x.view()
        x.setflags(write=False)
    return x


def _row_count(rows: Rows) -> int:
    return int(rows[0].shape[0])  # a sparse matrix has no len()


def _split(partitions: Iterable[Rows], size: int) -> Iterator[Rows]:
    held: list[Rows] = []
    missing = size
    for partition in partitions:
        start, total = 0, _row_count(partition)
        while start < total:
            stop = min(start + missing, total)
            held.append(tuple(_slice(x, start, stop) for x in partition))
            missing -= stop - start
            start = stop
            if not missing:
                yield _joined(held)
                held, missing = [], size
    if held:
        yield _joined(held)


def _slice(x: Any, start: int, stop: int) -> Any:
    return x.iloc[start:stop] if hasattr(x, "iloc") else x[start:stop]


def _joined(held: list[Rows]) -> Rows:
    if len(held) == 1:
        return held[0]
    return tuple(_concatenated(list(x)) for x in zip(*held, strict=True))


def _concatenated(slices: list[Any]) -> Any:
    """Concatenate with Dask's functions, which support other libraries' types."""
    if hasattr(slices[0], "iloc"):
        from dask.dataframe.dispatch import concat

        return concat(slices)
    from dask.array.dispatch import concatenate_lookup

    return concatenate_lookup.dispatch(type(slices[0]))(slices, axis=0)


# --- a role on a worker ---------------------------------------------------------------

ENDPOINT = "clustertune_roles-"  # and a name: a handler of a worker
VARIABLE = "CLUSTERTUNE_ROLE"  # variable of a process whose environment a role has set
MAX_LINES = 10_000  # scores that wait for the client
STOP_TIMEOUT = 5.0  # seconds in which the client answers a failure with a stop

#: stages of a role, in order
REGISTERED, READY, RUNNING, ENDED, FAILED = (
    "registered",
    "ready",
    "running",
    "ended",
    "failed",
)


def handler_name(name: str) -> str:
    """Return the name of an endpoint among the handlers of its worker."""
    return ENDPOINT + name


# --- called by the client, on the worker's event loop ---------------------------------


def describe_worker(dask_worker: Any, modules: list[str]) -> dict[str, Any]:
    """Return the facts that decide whether this worker can take a role."""
    import sys
    from importlib.util import find_spec

    import psutil

    state = dask_worker.state
    started = psutil.Process().create_time()
    return {
        "process": f"{os.getpid()}-{started}",
        "tasks": len(state.executing) + len(state.long_running) + len(state.ready),
        "missing": [
            m for m in modules if m not in sys.modules and find_spec(m) is None
        ],
    }


def register(dask_worker: Any, name: str, expiry: float) -> str:
    """Make an endpoint and return its address, ``host:port``.

    Without a task it expires ``expiry`` seconds after the last message of its client.
    Only the client has the name.
    """
    return Endpoint(dask_worker, name, expiry).address


class Endpoint:
    """The state of a role on its worker: stage, news for the client, commands.

    Its timer or its task refers to it.
    """

    def __init__(self, worker: Any, name: str, expiry: float):
        self.worker = worker
        self.name = name
        self.expiry = expiry
        self.stage = REGISTERED
        self.error: bytes | None = None  # pickled, with its file and line
        self.commanded = threading.Event()  # the client has sent start or stop
        self.stopped = threading.Event()  # the client has sent stop
        self.aborted = threading.Event()  # the client has sent abort
        self.lines: deque[tuple[int, str, bytes]] = deque()
        self.version = 0  # counts the news
        self.lock = threading.Lock()
        self.loop = asyncio.get_running_loop()
        self.changed = asyncio.Event()
        self.forgotten = False
        # bound but not listening: the port stays reserved until the function begins
        self.port: socket.socket | None = socket.socket(_family(worker.address))
        self.port.bind(("", 0))
        host = get_address_host(worker.address)
        self.address = unparse_host_port(host, self.port.getsockname()[1])
        self.timer = self.loop.call_later(self.expiry, self.forget)
        worker.handlers[handler_name(name)] = _handler(self)

    async def answer(self, command: str, seen: int, timeout: float) -> dict[str, Any]:
        """Carry out a command; ``listen`` waits for news and returns it."""
        if self.stage == REGISTERED:
            self._restart_timer()
        if command == "start":
            self.commanded.set()
        elif command in ("stop", "abort"):
            if command == "abort":
                self.aborted.set()
            self.stop()
        elif command == "forget":
            self.forget()
        else:
            await self._wait_for_news(seen, timeout)
            return self._news(seen)
        return {}

    async def _wait_for_news(self, seen: int, timeout: float) -> None:
        end = self.loop.time() + timeout
        while self.version <= seen and self.loop.time() < end and not self.forgotten:
            self.changed.clear()
            with suppress(asyncio.TimeoutError):  # there is no news
                await within(self.changed.wait(), end - self.loop.time())

    def _news(self, seen: int) -> dict[str, Any]:
        with self.lock:
            while self.lines and self.lines[0][0] <= seen:
                self.lines.popleft()
            return {
                "stage": self.stage,
                "error": self.error,
                "lines": [list(line[1:]) for line in self.lines],
                "version": self.version,
            }

    def stop(self) -> None:
        self.stopped.set()
        self.commanded.set()

    def forget(self) -> None:
        """Stop the role and remove the endpoint from the worker."""
        self.forgotten = True
        self.changed.set()
        self.stop()
        self.timer.cancel()
        self.close_port()
        self.worker.handlers.pop(handler_name(self.name), None)

    # --- called in the thread of the task ---------------------------------------------

    def enter(self, stage: str, error: BaseException | None = None) -> None:
        if error is not None:
            found = picklable_error(error), error_location(error)
            self.error = pickle.dumps(found)
        with self.lock:
            self.stage = stage
            self.version += 1
        self._on_loop(self.changed.set)

    def send(self, kind: str, data: bytes) -> None:
        """Add a score or a state for the client.

        A full queue drops the oldest score. Only the last state waits.
        """
        with self.lock:
            if kind == "state" or len(self.lines) >= MAX_LINES:
                former = next((x for x in self.lines if x[1] == kind), None)
                if former is not None:
                    self.lines.remove(former)
            self.version += 1
            self.lines.append((self.version, kind, data))
        self._on_loop(self.changed.set)

    def _on_loop(self, function: Callable[[], None]) -> None:
        # a closed event loop has no client
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(function)

    def close_port(self) -> None:
        """Release the port for a server of the role."""
        found, self.port = self.port, None
        if found is not None:
            found.close()

    def begin(self) -> None:
        """Set the stage, and stop the timer: Dask ends a task with its client."""
        self.enter(READY)
        self._on_loop(self._cancel_timer)

    def end(self, wanted: bool) -> None:
        """Start the timer, because the client may still have to read the news."""
        if not wanted or self.forgotten:
            self._on_loop(self.forget)
        else:
            self._on_loop(self._restart_timer)

    def _cancel_timer(self) -> None:
        self.timer.cancel()

    def _restart_timer(self) -> None:
        self.timer.cancel()
        self.timer = self.loop.call_later(self.expiry, self.forget)


def _handler(endpoint: Endpoint) -> Callable[..., Any]:
    """Return a handler with a weak reference, because distributed caches handlers."""

    async def answer(
        command: str, seen: int = 0, timeout: float = 0
    ) -> dict[str, Any] | None:
        found = reference()
        return None if found is None else await found.answer(command, seen, timeout)

    reference = vars(answer)["endpoint"] = weakref.ref(endpoint)
    return answer


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in get_address_host(address) else socket.AF_INET


# --- the task -------------------------------------------------------------------------


def run_role(name: str, key: str, pickled: bytes) -> Any:
    """Wait for the start command and return the result of a role's function.

    The name is that of the endpoint, the key that of this task. Settings are the values
    that :class:`Context` reads, such as ``partitions`` (keys), and ``code`` (the
    pickled function), ``state`` (pickled, or None), ``around`` (a pickled context
    manager) and ``environment``.
    """
    worker: Any = get_worker()
    handler = worker.handlers.get(handler_name(name))
    endpoint = None if handler is None else handler.endpoint()
    if endpoint is None or endpoint.stage != REGISTERED:
        raise RuntimeError(
            "clustertune: this role has ended, or this worker process is not the one "
            "that was chosen, and a role is not started again. Call run_roles again"
        )
    settings = pickle.loads(pickled)
    context = Context(worker, endpoint, key, settings)
    endpoint.begin()
    try:
        while not endpoint.commanded.wait(POLL_INTERVAL) and context.is_wanted():
            pass
        result = None
        if not context.should_stop():
            endpoint.close_port()
            endpoint.enter(RUNNING)
            result = _call(endpoint, context, settings)
        endpoint.enter(ENDED)
    # user code may raise anything; SystemExit would end the worker's thread
    except BaseException as error:  # noqa: BLE001
        if endpoint.stage != FAILED:
            endpoint.enter(FAILED, error)
        # Dask sends an error too, and logs at length if it does not pickle
        raise RuntimeError(f"{type(error).__name__}: {error}") from None
    else:
        return result
    finally:
        endpoint.close_port()
        endpoint.end(context.is_wanted())


def _call(endpoint: Endpoint, context: Context, settings: Settings) -> Any:
    function = pickle.loads(settings["code"])
    around = pickle.loads(settings["around"])
    with environment(settings["environment"]), around(context):
        try:
            if settings["state"] is not None:
                context.state = pickle.loads(settings.pop("state"))
            return function(context)
        except BaseException as error:
            # The context manager closes connections, and other roles fail at that.
            # The client must learn the first cause before; it answers with a stop.
            endpoint.enter(FAILED, error)
            context.wait(STOP_TIMEOUT)
            raise


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for one role; a process can have one such role."""
    if not variables:
        yield
        return
    other = os.environ.setdefault(VARIABLE, variables[VARIABLE])
    if other != variables[VARIABLE]:
        raise RuntimeError(
            f"this process runs {other} already, and roles of a framework cannot share "
            "an environment. Give each worker its own process: "
            "LocalCluster(processes=True)"
        )
    before = {name: os.environ.get(name) for name in variables if name != VARIABLE}
    os.environ.update(variables)
    try:
        yield
    finally:
        for variable, value in before.items():
            if value is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = value
        os.environ.pop(VARIABLE, None)
