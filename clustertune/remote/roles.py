"""A role on a worker: a long-running task, and what its client hears of it.

A *part* is what the worker keeps of a role: it is made by :func:`hire` before the task
begins, so the client knows the port that was found; it has a handler of its own, by
which the client listens (the answer comes when there is news) and tells it to go, to
stop, and that it is forgotten. The task (:func:`play`) is not called before all roles
are there. Nothing but the part knows the role, so a task that is started again, on
this worker or elsewhere, finds none and ends.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from time import time
from typing import Any

from distributed import get_worker
from distributed.comm.addressing import get_address_host, unparse_host_port
from distributed.protocol import pickle

from clustertune.remote.context import LOOK, Context, Script
from clustertune.remote.failures import sendable, where

PARTS = "clustertune_roles"  # attribute of a worker: its parts by name
VARIABLE = "CLUSTERTUNE_ROLE"  # of the environment, where a role has set some
KEPT = 10_000  # lines that wait for a client
ANSWER = 5.0  # seconds in which the client answers a failure by a stop

HERE, PLAYING, ENDED, FAILED = "here", "playing", "ended", "failed"


def handler_name(name: str) -> str:
    """Of a part, among the handlers of its worker."""
    return f"{PARTS}-{name}"


# --- asked by the client, on the worker's event loop ----------------------------------


def interview(dask_worker: Any, modules: list[str]) -> dict[str, Any]:
    """What decides whether this worker can take a role; plain types."""
    import sys
    from importlib.util import find_spec

    import psutil

    state = dask_worker.state
    born = psutil.Process().create_time()
    return {
        "process": f"{os.getpid()}-{born}",
        "busy": len(state.executing) + len(state.long_running) + len(state.ready),
        "lacks": [m for m in modules if m not in sys.modules and find_spec(m) is None],
        "role": os.environ.get(VARIABLE),
    }


def hire(dask_worker: Any, name: str, linger: float) -> str:
    """Make a part, and find a port for it; ``host:port`` by which others reach it.

    Until its task begins it is there as long as its client listens.

    Parameters
    ----------
    name
        Of the part, known to nobody else.
    linger
        Seconds for which it waits for its client while it has no task.
    """
    part = Part(dask_worker, name, linger)
    vars(dask_worker).setdefault(PARTS, {})[name] = part
    return part.place


def dismiss(dask_worker: Any, names: list[str]) -> None:
    """Let parts go whose roles do not begin."""
    parts = getattr(dask_worker, PARTS, {})
    for part in [parts[name] for name in names if name in parts]:
        part.forget()


class Part:
    """A role as its worker knows it: how far it is, what it said, what it was told."""

    def __init__(self, worker: Any, name: str, linger: float):
        self.worker = worker
        self.linger = linger
        self.name = name
        self.stage = "hired"
        self.failure: bytes | None = None  # a pickled error
        self.where = ""  # file and line at which it arose
        self.told = threading.Event()  # to go, or to stop
        self.stopped = threading.Event()  # to stop
        self.broken = threading.Event()  # that another role has failed, too
        self.lines: deque[tuple[int, str, float, bytes]] = deque(maxlen=KEPT)
        self.dropped = 0  # lines, since so many waited
        self.version = 0  # counts what there is to tell
        self.lock = threading.Lock()
        self.loop = asyncio.get_running_loop()
        self.changed = asyncio.Event()
        self.forgotten = False
        # bound until the function begins, so that nobody else is given the same, and
        # not listened on
        self.port: socket.socket | None = socket.socket(_family(worker.address))
        self.port.bind(("", 0))
        host = get_address_host(worker.address)
        self.place = unparse_host_port(host, self.port.getsockname()[1])
        self.expiry = self.loop.call_later(self.linger, self.forget)
        worker.handlers[handler_name(name)] = _handler(self)

    async def answer(self, say: str, seen: int, patience: float) -> dict[str, Any]:
        """Do what the client says; where it listens, what is new to it."""
        if self.stage == "hired":
            self._linger()
        if say == "go":
            self.told.set()
        elif say in ("stop", "break"):
            if say == "break":
                self.broken.set()
            self.tell_to_stop()
        elif say == "forget":
            self.forget()
        else:
            await self._news(seen, patience)
            return self._state(seen)
        return {}

    async def _news(self, seen: int, patience: float) -> None:
        end = self.loop.time() + patience
        while self.version <= seen and self.loop.time() < end and not self.forgotten:
            self.changed.clear()
            with suppress(asyncio.TimeoutError):  # then there is no news
                await asyncio.wait_for(self.changed.wait(), end - self.loop.time())

    def _state(self, seen: int) -> dict[str, Any]:
        with self.lock:
            while self.lines and self.lines[0][0] <= seen:
                self.lines.popleft()
            return {
                "stage": self.stage,
                "failure": self.failure,
                "where": self.where,
                "lines": [list(line[1:]) for line in self.lines],
                "dropped": self.dropped,
                "version": self.version,
            }

    def tell_to_stop(self) -> None:
        self.stopped.set()
        self.told.set()

    def forget(self) -> None:
        """Nobody will ask any more."""
        self.forgotten = True
        self.changed.set()
        self.tell_to_stop()
        self.expiry.cancel()
        self.close_port()
        self.worker.handlers.pop(handler_name(self.name), None)
        parts = getattr(self.worker, PARTS, {})
        parts.pop(self.name, None)
        if not parts:
            vars(self.worker).pop(PARTS, None)

    # --- from the thread of the task --------------------------------------------------

    def enter(self, stage: str, error: BaseException | None = None) -> None:
        """Say how far the role is."""
        if error is not None:
            self.failure = pickle.dumps(sendable(error))
            self.where = where(error)
        self._tell(lambda: setattr(self, "stage", stage))

    def say(self, kind: str, value: bytes) -> None:
        """Say what the client collects; of very much that waits, the oldest goes."""

        def append() -> None:
            self.dropped += len(self.lines) == KEPT
            self.lines.append((self.version + 1, kind, time(), value))

        self._tell(append)

    def _tell(self, change: Callable[[], Any]) -> None:
        with self.lock:
            change()
            self.version += 1
        self._on_loop(self.changed.set)

    def _on_loop(self, function: Callable[..., Any], *arguments: Any) -> None:
        # a loop that is closed has no client to be told
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(function, *arguments)

    def close_port(self) -> None:
        """Let the port be taken by what the role starts."""
        found, self.port = self.port, None
        if found is not None:
            found.close()

    def begin(self) -> None:
        """A task is there, which ends when its client does."""
        self.enter(HERE)
        self._on_loop(self._stay)

    def end(self, wanted: bool) -> None:
        """The task ends. Its client may not know that yet."""
        if not wanted or self.name not in getattr(self.worker, PARTS, {}):
            self._on_loop(self.forget)
        else:
            self._on_loop(self._linger)

    def _stay(self) -> None:
        self.expiry.cancel()

    def _linger(self) -> None:
        self.expiry.cancel()
        self.expiry = self.loop.call_later(self.linger, self.forget)


def _handler(part: Part) -> Callable[..., Any]:
    """A handler that keeps no part alive: distributed caches what it has called."""
    known = weakref.ref(part)

    async def answer(
        say: str, seen: int = 0, patience: float = 0
    ) -> dict[str, Any] | None:
        found = known()
        return None if found is None else await found.answer(say, seen, patience)

    return answer


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in get_address_host(address) else socket.AF_INET


# --- the task -------------------------------------------------------------------------


def play(name: str, key: str, pickled: bytes) -> Any:
    """Be a role: wait for the others, call the function, and put things back.

    Parameters
    ----------
    name
        Of the part.
    key
        Of this task.
    pickled
        The script, what is known of the role: ``role``, ``rank``, ``size``, ``spec``,
        ``target``, ``code`` (the function, pickled), ``environment``, ``around`` (what
        surrounds the call, pickled), ``batch_size``, ``equal`` (whether ranks work in
        step), ``pieces`` (keys) and ``rows`` (of each piece, by rank).

    Returns
    -------
    object
        What the function returned; None where it was stopped before it began.

    Raises
    ------
    RuntimeError
        Its part is gone: this is another process than the one that was hired, or the
        task was started again.
    """
    worker: Any = get_worker()
    part = getattr(worker, PARTS, {}).get(name)
    if part is None or part.stage != "hired":
        raise RuntimeError(
            "clustertune: this role has ended, or its worker is not the one that was "
            "chosen; a role is not started again"
        )
    script = pickle.loads(pickled)
    context = Context(worker, part, key, script)
    part.begin()
    try:
        while not part.told.wait(LOOK) and context.wanted():
            pass
        result = None
        if not context.should_stop():
            part.close_port()
            part.enter(PLAYING)
            result = _called(part, context, script)
        part.enter(ENDED)
    # whatever the user's code raises; SystemExit would end the worker's thread
    except BaseException as error:
        if part.stage != FAILED:
            part.enter(FAILED, error)
        # Dask sends it, too, and says at length what of it does not pickle
        if isinstance(error, Exception) and _keeps_its_kind(error, part.failure):
            raise
        raise RuntimeError(f"{type(error).__name__}: {error}") from None
    else:
        return result
    finally:
        context.close()
        part.close_port()
        part.end(context.wanted())


def _called(part: Part, context: Context, script: Script) -> Any:
    function = pickle.loads(script["code"])
    around = pickle.loads(script["around"])
    with environment(script["environment"]), around(context):
        try:
            return function(context)
        except BaseException as error:
            # What surrounds the call closes connections, at which other roles fail.
            # The first cause is to be known before: the client answers by a stop.
            part.enter(FAILED, error)
            context.wait(ANSWER)
            raise


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Variables of this process for a while, as one role in it at a time can have."""
    if not variables:
        yield
        return
    other = os.environ.setdefault(VARIABLE, variables[VARIABLE])
    if other != variables[VARIABLE]:
        raise RuntimeError(
            f"this process is {other} already: roles of a framework share its "
            "environment, so each needs a process of its own"
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


def _keeps_its_kind(error: BaseException, pickled: bytes | None) -> bool:
    return pickled is not None and type(pickle.loads(pickled)) is type(error)
