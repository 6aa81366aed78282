"""What a role's function is given: who it is, its rows, and its line to the client."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from time import monotonic
from typing import Any, Protocol

from distributed import Status
from distributed.protocol import pickle

from clustertune.remote import batches

Script = Mapping[str, Any]

AHEAD = 4  # batches that are read before they are asked for
LOOK = 0.5  # seconds between two looks whether anybody still wants the task


class Line(Protocol):
    """Connects a role with its client (:class:`clustertune.remote.roles.Part`)."""

    loop: asyncio.AbstractEventLoop
    stopped: threading.Event
    broken: threading.Event

    def say(self, kind: str, data: bytes) -> None:
        """Send a score or a log line to the client."""


class Context:
    """What a role's function is given.

    Attributes
    ----------
    role : str
        Its name.
    rank, size : int
        Its number within the role, from 0, and how many have that role.
    spec : dict
        Of every role a list of ``host:port``, by rank.
    target : str or None
        The address that the framework needs of this role; None without a framework.
    threads : int
        Of the worker, all of which are the role's.
    batch_size : int or None
        Rows of a batch, as given to ``run_roles``.
    steps : int or None
        Batches in an epoch that every rank of the role has; None without data.
    """

    def __init__(self, worker: Any, part: Line, key: str, script: Script):
        self.role: str = script["role"]
        self.rank: int = script["rank"]
        self.size: int = script["size"]
        self.spec: dict[str, list[str]] = {r: list(p) for r, p in script["spec"]}
        self.target: str | None = script["target"]
        self.batch_size: int | None = script["batch_size"]
        self.threads: int = worker.state.nthreads
        #: of one rank's wish to stop, what all ranks do; a framework may set it
        self.agree: Callable[[bool], bool] = bool
        #: set when another role has failed, for whom a call of the framework may wait
        self.broken = part.broken
        self._worker = worker
        self._part = part
        self._key = key
        self._pieces: list[tuple[Any, ...]] | None = script["pieces"]
        self._equal: bool = script["equal"]
        self._rows: list[list[int]] = script["rows"]
        self._feeds: list[batches.Feed] = []

    @property
    def steps(self) -> int | None:
        return self._steps(self.batch_size)

    def _steps(self, batch_size: int | None) -> int | None:
        """Batches of which every rank has as many, in an epoch."""
        if self._pieces is None:
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
    ) -> Iterator[tuple[Any, ...]]:
        """Rows of the data that lies on this worker, with their labels.

        Parameters
        ----------
        epochs
            How often to go over the data.
        batch_size
            Rows of a batch; by default that of ``run_roles``, or a piece each.
        equal
            Whether every rank gets ``steps`` full batches in each epoch, so that none
            waits for another; rows beyond them are left out. By default as the
            framework needs it.

        Yields
        ------
        tuple
            Of each collection the rows of the batch, as arrays or frames.
        """
        if self._pieces is None:
            raise RuntimeError(
                f"role {self.role} has no data: run_roles places it on the workers of "
                "target_role, and only if data= is given"
            )
        size = self.batch_size if batch_size is None else batch_size
        if size is not None and size < 1:
            raise ValueError(f"batch_size={size} must be at least 1")
        equally = self._equal if equal is None else equal
        steps = self._steps(size) if equally else None
        return self._fed(
            batch
            for _ in range(epochs)
            for batch in batches.cut(self._read(), size, steps)
        )

    def _fed(self, source: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        feed = batches.Feed(source, AHEAD)
        self._feeds.append(feed)
        try:
            yield from feed
        finally:
            feed.close()
            self._feeds.remove(feed)

    def _read(self) -> Iterator[tuple[Any, ...]]:
        for keys in self._pieces or ():
            yield self._on_loop(self._take, keys)

    def _take(self, keys: tuple[Any, ...]) -> tuple[Any, ...]:
        """From the worker's memory, or from its disk."""
        gone = [key for key in keys if key not in self._worker.data]
        if gone:
            raise RuntimeError(
                f"piece {gone[0]} is not on this worker any more: something has moved "
                "it since the roles began; run_roles again"
            )
        return tuple(self._worker.data[key] for key in keys)

    def _on_loop(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call it where nothing else changes the worker's data meanwhile."""

        async def call() -> Any:
            return function(*arguments)

        future = asyncio.run_coroutine_threadsafe(call(), self._part.loop)
        while not futures.wait([future], LOOK).done:
            if not self.wanted():  # a loop that has ended never answers
                raise RuntimeError("this role has ended; nothing is read any more")
        return future.result()

    def report(self, score: Any) -> None:
        """Hand a score to the client: to ``scores`` of what ``run_roles`` returned.

        Parameters
        ----------
        score
            A number, or anything that pickles.
        """
        self._part.say("score", pickle.dumps(score))

    def log(self, text: object) -> None:
        """Hand a line to the client: to ``logs`` of what ``run_roles`` returned."""
        self._part.say("log", pickle.dumps(str(text)))

    def should_stop(self) -> bool:
        """Whether the client, or what became of it, tells this role to end.

        Where ranks work in step (torch), all of them have to ask in the same step, and
        all get the same answer.
        """
        return self.agree(self._told())

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until this role is told to stop, or for so long; whether it was told."""
        end = math.inf if seconds is None else monotonic() + seconds
        while not self._told() and (left := end - monotonic()) > 0:
            self._part.stopped.wait(min(LOOK, left))
        return self._told()

    def _told(self) -> bool:
        return self._part.stopped.is_set() or not self.wanted()

    def wanted(self) -> bool:
        """Whether somebody waits for this task: its client may be gone."""
        task = self._worker.state.tasks.get(self._key)
        there = task is not None and task.state in ("executing", "long-running")
        return there and self._worker.status not in (Status.closing, Status.closed)

    def close(self) -> None:
        """End the threads that read ahead."""
        for feed in list(self._feeds):
            feed.close()
