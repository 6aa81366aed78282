"""The context that a role's function receives: its identity, batches, and reports.

This module travels by value. It may import Dask and other travelling modules.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent import futures
from itertools import islice
from time import monotonic
from typing import Any, Protocol

from distributed import Status
from distributed.protocol import pickle

Settings = Mapping[str, Any]
Rows = tuple[Any, ...]  # the same rows of each collection

POLL_INTERVAL = 0.5  # seconds between two checks whether the task is still wanted


class Connection(Protocol):
    """Connects a role with its client (``clustertune.training.remote_roles``)."""

    loop: asyncio.AbstractEventLoop
    stopped: threading.Event
    aborted: threading.Event

    def send(self, kind: str, data: bytes) -> None:
        """Send a score or a log line to the client."""


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
    target : str or None
        The address that the framework needs; None without a framework.
    threads : int
        Threads of the worker, all of which the role may use.
    batch_size : int or None
        Rows per batch, as passed to ``run_roles``.
    steps : int or None
        Batches per epoch that every rank of the role has; None without data.
    state : object
        What this rank has saved in the earlier attempt; None if nothing.
    """

    def __init__(self, worker: Any, connection: Connection, key: str, given: Settings):
        self.role: str = given["role"]
        self.rank: int = given["rank"]
        self.size: int = given["size"]
        self.spec: dict[str, list[str]] = {r: list(p) for r, p in given["spec"]}
        self.target: str | None = given["target"]
        self.batch_size: int | None = given["batch_size"]
        self.threads: int = worker.state.nthreads
        #: combines the stop requests of all ranks; a framework may replace it
        self.agree: Callable[[bool], bool] = bool
        #: set when another role failed; a framework's collective calls must end then
        self.aborted = connection.aborted
        self._worker = worker
        self._connection = connection
        self._key = key
        self._partitions: list[tuple[Any, ...]] | None = given["partitions"]
        self._synchronous: bool = given["synchronous"]
        self._rows: list[list[int]] = given["rows"]
        saved: bytes | None = given["state"]
        self.state: Any = None if saved is None else pickle.loads(saved)

    @property
    def steps(self) -> int | None:
        return self._steps(self.batch_size)

    def _steps(self, batch_size: int | None) -> int | None:
        """Return the number of batches that every rank has in an epoch."""
        if self._partitions is None:
            return None
        if batch_size is None:
            return min(sum(n > 0 for n in counts) for counts in self._rows)
        return min(sum(counts) // batch_size for counts in self._rows)

    def batches(
        self,
        epochs: int = 1,
        batch_size: int | None = None,
        *,
        equal: bool | None = None,
    ) -> Iterator[Rows]:
        """Iterate over the rows on this worker with their labels.

        Parameters
        ----------
        epochs
            Number of passes over the data.
        batch_size
            Rows per batch. The default is that of ``run_roles``, else one partition.
        equal
            Whether every rank gets ``steps`` full batches per epoch, so no rank waits
            for another. Further rows are left out. The default depends on the
            framework.

        Yields
        ------
        tuple
            The rows of the batch from each collection, as arrays or frames.
        """
        if self._partitions is None:
            raise RuntimeError(
                f"role {self.role} has no data: run_roles places data= on the workers "
                "of target_role only. Pass data= and target_role= to run_roles"
            )
        size = self.batch_size if batch_size is None else batch_size
        if size is not None and size < 1:
            raise ValueError(f"batch_size={size} must be at least 1")
        limited = self._synchronous if equal is None else equal
        steps = self._steps(size) if limited else None
        return (
            batch
            for _ in range(epochs)
            for batch in split_rows(self._read(), size, steps)
        )

    def _read(self) -> Iterator[Rows]:
        for keys in self._partitions or ():
            yield self._on_loop(self._take, keys)

    def _take(self, keys: tuple[Any, ...]) -> Rows:
        """Read a partition from the worker's memory or disk."""
        gone = [key for key in keys if key not in self._worker.data]
        if gone:
            raise RuntimeError(
                f"partition {gone[0]} left this worker after the roles began, so the "
                "role has no complete data. Call run_roles again"
            )
        return tuple(self._worker.data[key] for key in keys)

    def _on_loop(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function on the event loop, which alone changes the worker's data."""

        async def call() -> Any:
            return function(*arguments)

        future = asyncio.run_coroutine_threadsafe(call(), self._connection.loop)
        while not futures.wait([future], POLL_INTERVAL).done:
            if not self.is_wanted():  # a stopped event loop never answers
                raise RuntimeError("this role has ended, so it reads no more data")
        return future.result()

    def report(self, score: Any) -> None:
        """Send a score, any object that pickles, to the ``scores`` of ``run_roles``."""
        self._connection.send("score", pickle.dumps(score))

    def save(self, state: Any) -> None:
        """Send a state, any object that pickles, to ``states`` of ``run_roles``.

        The client keeps the last one of each rank. ``run_roles(..., states=...)`` gives
        it to the next attempt, as :attr:`state`.
        """
        self._connection.send("state", pickle.dumps(state))

    def log(self, text: object) -> None:
        """Send a line to the client: to ``logs`` of the result of ``run_roles``."""
        self._connection.send("log", pickle.dumps(str(text)))

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
            self._connection.stopped.wait(min(POLL_INTERVAL, left))
        return self._stop_requested()

    def _stop_requested(self) -> bool:
        return self._connection.stopped.is_set() or not self.is_wanted()

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
