"""The one door through which code goes to other processes.

A function is sent as cloudpickle bytes made while every module that travels
(``clustertune.remote``, ``clustertune.dashboard`` and what they need) is registered to
be pickled by value, so that it runs where clustertune is not installed. Distributed
compares exact module names, so registering the package would not do; and the wrapper
pickles as a plain call of ``cloudpickle.loads``, so that no class of ours is
referenced. The registration is global to the user's process and would change how
*their* objects are pickled: therefore it lasts for one ``dumps`` only, under a lock.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import cloudpickle
from dask._task_spec import List, Task
from dask.utils import apply

if TYPE_CHECKING:
    from distributed import Client

#: beginnings of modules' names
TRAVELLING = (
    "clustertune.remote.",
    "clustertune.dashboard.",
    "clustertune.core.rules",
    "clustertune.core.wording",
)
FEW = 32  # workers, each of which is asked in a call of its own

_lock = threading.Lock()


class _Shipped:
    """Pickles as the bytes of what it holds; workers of this process just call it."""

    def __init__(self, function: Callable[..., Any]):
        self._function = function
        with _by_value():
            self.bytes = cloudpickle.dumps(function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[bytes]]:
        return cloudpickle.loads, (self.bytes,)


@contextmanager
def _by_value() -> Iterator[None]:
    with _lock:
        # what is not loaded here, nothing that is sent can refer to
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

    The code stays bytes until a task runs. A scheduler that has made a function of
    them would pickle it again for each task, which takes longer than a small task. In a
    graph all tasks of one maker share the bytes. The caller has asked the version guard
    of all workers before.

    Parameters
    ----------
    function
        What the tasks call.
    """

    def __init__(self, function: Callable[..., Any]):
        code = _Shipped(function).bytes
        self._function = Task(None, cloudpickle.loads, code)

    def __call__(self, key: Any, *arguments: Any) -> Task:
        """A task of this key; arguments are those of Dask's own tasks."""
        # as a list: if one list is all there is, Dask takes it for the arguments
        return Task(key, apply, self._function, List(list(arguments)))


def function(shipped: Callable[..., Any]) -> Any:
    """A function of ``clustertune.remote`` that is sent as a value: it goes as it is.

    The caller has asked the version guard of where it goes before.
    """
    return _Shipped(shipped)


def pickled(function: Callable[..., Any]) -> bytes:
    """A function of ``clustertune.remote`` for the resident, that sends it on.

    The caller has asked the version guard of where it goes before.
    """
    code: bytes = cloudpickle.dumps(_Shipped(function))
    return code


async def on_scheduler(
    client: Client, function: Callable[..., Any], **arguments: Any
) -> Any:
    """Run a function of ``clustertune.remote`` on the scheduler.

    Arguments are plain types. The caller has asked the version guard before.
    """
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
    """Run a function on workers, or on their nannies; an error is that worker's answer.

    One call for each of a few workers, so that one that hangs hides no other's answer.
    Many are asked in one call; only if somebody keeps the others waiting for
    ``timeout`` seconds, each is asked again; not where ``again`` is False, for whoever
    needs no answers. What :func:`function` has made of a function is not pickled again,
    for whoever asks many workers different things.

    Returns
    -------
    dict
        By address of worker what it answered, or the exception.
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
        # the worker left, say: an answer like any other
        except Exception as error:  # noqa: BLE001
            return dict.fromkeys(some, error)
        return answers

    if len(workers) > FEW:
        answers = await call(workers)
        if not (again and all(isinstance(a, Exception) for a in answers.values())):
            return answers
    each = await asyncio.gather(*(call([worker]) for worker in workers))
    return {worker: answer for one in each for worker, answer in one.items()}
