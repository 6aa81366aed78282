"""Sends code to other processes; all code goes through this module.

A function is sent as cloudpickle bytes. Every module in ``TRAVELLING`` is pickled by
value, so the code runs where clustertune is not installed. Distributed compares exact
module names, so registering the package would not suffice. The wrapper pickles as a
plain call of ``cloudpickle.loads``, which references no class of clustertune. The
registration is global and would change how the user's objects are pickled. So it lasts
for one ``dumps`` only, under a lock. Each function of clustertune is pickled once.

Callers first check with ``versions`` that the other side can run the code.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import TYPE_CHECKING, Any

import cloudpickle
from dask._task_spec import List, Task
from dask.utils import apply

if TYPE_CHECKING:
    from distributed import Client

#: prefixes of the names of modules that travel
TRAVELLING = (
    "clustertune.remote.",
    "clustertune.dashboard.",
    "clustertune.core.rules",
    "clustertune.core.tables",
    "clustertune.core.wording",
    "clustertune.training.frameworks",
    "clustertune.training.remote_",
)
FEW = 32  # up to so many workers get one call each

_lock = threading.Lock()
#: bytes of functions of clustertune, which are the same for each call
_codes: dict[Callable[..., Any], bytes] = {}


class _Shipped:
    """A function that pickles as bytes; workers of this process just call it."""

    def __init__(self, function: Callable[..., Any]):
        self._function = function
        self.bytes = _pickled_once(function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[bytes]]:
        return cloudpickle.loads, (self.bytes,)


def _pickled_once(function: Callable[..., Any]) -> bytes:
    """Return a function as bytes; keep them unless it is a closure or the user's."""
    own = isinstance(function, FunctionType) and function.__closure__ is None
    if not (own and _travels(function.__module__)):
        return _pickled(function)
    if function not in _codes:
        _codes[function] = _pickled(function)
    return _codes[function]


def _pickled(function: Callable[..., Any]) -> bytes:
    with _by_value():
        code: bytes = cloudpickle.dumps(function)
    return code


@contextmanager
def _by_value() -> Iterator[None]:
    with _lock:
        # code cannot refer to modules that are not loaded
        modules = [m for name, m in list(sys.modules.items()) if _travels(name)]
        for module in modules:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in modules:
                cloudpickle.unregister_pickle_by_value(module)


def _travels(name: str) -> bool:
    return name.startswith(TRAVELLING)


class Tasks:
    """Makes tasks that call a function of ``clustertune.remote``.

    The code stays bytes until a task runs. A scheduler that unpickled the function
    would pickle it again for each task, which takes longer than a small task. In a
    graph all tasks of one maker share the bytes.
    """

    def __init__(self, function: Callable[..., Any]):
        code = _Shipped(function).bytes
        self._function = Task(None, cloudpickle.loads, code)

    def __call__(self, key: Any, *arguments: Any) -> Task:
        """Return a task with this key; arguments are those of Dask's own tasks."""
        # as a list, because Dask would take a single list for the arguments
        return Task(key, apply, self._function, List(list(arguments)))


def function(shipped: Callable[..., Any]) -> Any:
    """A function of ``clustertune.remote`` that can be sent as a value."""
    return _Shipped(shipped)


def pickled(function: Callable[..., Any]) -> bytes:
    """A function of ``clustertune.remote`` as bytes, which the scheduler sends on."""
    code: bytes = cloudpickle.dumps(_Shipped(function))
    return code


async def on_scheduler(
    client: Client, function: Callable[..., Any], **arguments: Any
) -> Any:
    """Run a function on the scheduler; arguments are plain types."""
    shipped: Any = _Shipped(function)
    return await client.run_on_scheduler(shipped, **arguments)


async def on_workers(
    client: Client,
    function: Callable[..., Any],
    workers: list[str],
    *,
    timeout: float,
    nanny: bool = False,
    again: bool = True,
    **arguments: Any,
) -> dict[str, Any]:
    """Run a function on workers or on their nannies; an error is an answer.

    A few workers get one call each, so that one that hangs hides no other's answer.
    Many workers share one call. If one delays the others for ``timeout`` seconds, each
    is asked alone, unless ``again`` is False because the caller needs no answers. The
    result of :func:`function` is not pickled again.

    Returns by address of worker its answer, or the exception.
    """
    if not workers:
        return {}
    shipped = function if isinstance(function, _Shipped) else _Shipped(function)

    async def call(some: list[str]) -> dict[str, Any]:
        work = client.run(
            shipped, workers=some, nanny=nanny, on_error="return", **arguments
        )
        try:
            answers: dict[str, Any] = await asyncio.wait_for(work, timeout)
        except asyncio.TimeoutError:
            return dict.fromkeys(some, TimeoutError(f"no answer within {timeout:g} s"))
        # for example of a worker that has left; an error is an answer
        except Exception as error:  # noqa: BLE001
            return dict.fromkeys(some, error)
        return answers

    if len(workers) > FEW:
        answers = await call(workers)
        if not (again and all(isinstance(a, Exception) for a in answers.values())):
            return answers
    each = await asyncio.gather(*(call([worker]) for worker in workers))
    return {worker: answer for one in each for worker, answer in one.items()}
