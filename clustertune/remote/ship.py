"""Sends code to other processes, after it has read whether they can run it.

Python's bytecode differs between minor releases: a function that one release has
pickled can crash a process of another. So the versions are read first, through calls of
distributed that carry no code. Before the scheduler plugin is installed, a small
function then looks for the private names of distributed that the plugin needs.

All code goes through this module. A function is sent as cloudpickle bytes. Every module
in ``TRAVELLING`` is pickled by value, so the code runs where clustertune is not
installed. Distributed compares exact module names, so registering the package would not
suffice. The wrapper pickles as a plain call of ``cloudpickle.loads``, which references
no class of clustertune. The registration is global and would change how the user's
objects are pickled. So it lasts for one ``dumps`` only, under a lock. Each function of
clustertune is pickled once.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from itertools import takewhile
from types import FunctionType
from typing import Any

import cloudpickle
from dask._task_spec import List, Task
from dask.utils import apply
from distributed import Client
from distributed.versions import get_versions

from clustertune.remote.ending import within

# --- code -----------------------------------------------------------------------------

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
            answers: dict[str, Any] = await within(work, timeout)
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


# --- versions of the other side -------------------------------------------------------

OLDEST_DISTRIBUTED = 2025, 5  # release whose scheduler the plugin knows
TESTED = ("2025.5.0", "2026.8.0")  # oldest and newest release in the tests
MAX_NAMES = 3  # of missing names in a message

#: names that the scheduler plugin needs, by the object or class that has them
REQUIRED: Mapping[str, tuple[str, ...]] = {
    "Scheduler": (
        "_active_graph_updates", "_replica_lock", "_tick_interval_observed",
        "add_keys", "add_plugin", "address", "aliases", "client_comms",
        "client_releases_keys", "clients", "coerce_hostname", "extensions",
        "gather_on_worker", "get_events",
        "handle_worker_status_change", "handlers", "host_info", "log_event",
        "periodic_callbacks", "plugins", "queued", "remove_plugin",
        "remove_replica", "remove_worker",
        "report", "request_acquire_replicas", "restart", "restart_workers",
        "retire_workers", "rpc", "running", "status", "tasks",
        "transition_counter", "transitions", "unrunnable", "worker_ttl", "workers",
    ),
    "WorkerState": (
        "actors", "address", "executing", "has_what", "host", "identity", "last_seen",
        "memory", "memory_limit", "metrics", "name", "nanny", "nbytes", "nthreads",
        "pid", "processing", "resources", "status", "time_delay", "versions",
    ),
    "MemoryState": ("managed", "process", "spilled"),
    "TaskState": (
        "actor", "annotations", "dependencies", "dependents", "has_lost_dependencies",
        "host_restrictions", "key", "loose_restrictions", "nbytes", "prefix",
        "priority", "processing_on", "resource_restrictions", "run_spec", "state",
        "type", "waiters", "waiting_on", "who_has", "who_wants", "worker_restrictions",
    ),
    "ClientState": ("client_key", "last_seen", "wants_what"),
    "TaskPrefix": ("all_durations", "name", "state_counts"),
    "active_memory_manager": (
        "ActiveMemoryManagerExtension", "ActiveMemoryManagerPolicy", "ReduceReplicas",
        "RetireWorker", "Suggestion",
    ),
    "memory manager": ("add_policy", "policies", "run_once", "running"),
    "work stealing": ("move_task_request",),
    "publish extension": ("datasets",),
}  # fmt: skip


@dataclass(frozen=True)
class Sides:
    """Versions of packages by name (``python``, ``distributed``, ...), by side."""

    client: Mapping[str, str | None]
    scheduler: Mapping[str, str | None]
    workers: Mapping[str, Mapping[str, str | None]]  # by address
    silent: tuple[str, ...] = ()  # workers that did not answer

    def scheduler_objection(self) -> str:
        """Return why code must not go to the scheduler; empty if it may."""
        text = "; it ".join(objections(self.client, self.scheduler))
        return f"the scheduler {text}" if text else ""

    def worker_objections(self) -> dict[str, str]:
        """Return why code must not go to some workers, by address.

        The texts are predicates, such as "runs Python 3.12, ...".
        """
        found = {
            address: "; it ".join(objections(self.client, packages))
            for address, packages in self.workers.items()
        }
        return {address: text for address, text in found.items() if text}


# --- versions of all sides ------------------------------------------------------------

TOGETHER = 3.0  # seconds for the answers of all workers to one request
ALONE = 10.0  # seconds for the answer of one; without it, the worker counts as silent


async def read_versions(client: Client, workers: Iterable[str]) -> Sides:
    """Read the versions of client, scheduler and these workers; no code is sent."""
    remote: Any = client.scheduler  # distributed has no types for its calls
    here = get_versions()["packages"]
    scheduler = (await remote.versions())["packages"]
    asked = list(workers)
    # one silent worker delays the answers of all: then ask each alone
    found = await _ask(remote, asked, TOGETHER if len(asked) > 1 else ALONE)
    if len(asked) > 1 and all(answer is None for answer in found.values()):
        each = await asyncio.gather(*(_ask(remote, [a], ALONE) for a in asked))
        found = {a: answer for one in each for a, answer in one.items()}
    return Sides(
        here,
        scheduler,
        {address: answer for address, answer in found.items() if answer is not None},
        tuple(address for address, answer in found.items() if answer is None),
    )


async def _ask(
    scheduler: Any, workers: list[str], timeout: float
) -> dict[str, Mapping[str, str | None] | None]:
    """Versions by address of worker; None if a worker did not answer."""
    call = scheduler.broadcast(
        msg={"op": "versions"}, workers=workers, on_error="ignore"
    )
    try:
        answers: dict[str, Any] = await within(call, timeout)
    except asyncio.TimeoutError:
        return dict.fromkeys(workers)
    return {w: _packages(answers.get(w)) for w in workers}


def _packages(answer: Any) -> Mapping[str, str | None] | None:
    """Versions by name; None if the answer has another form."""
    found = answer.get("packages") if isinstance(answer, dict) else None
    if isinstance(found, dict) and all(
        isinstance(v, str | None) for v in found.values()
    ):
        return found
    return None


def own_release() -> str:
    """Return the release of clustertune in this process."""
    try:
        return metadata.version("clustertune")
    except metadata.PackageNotFoundError:
        return "an unknown release"


def objections(
    ours: Mapping[str, str | None],
    theirs: Mapping[str, str | None],
    here: str = "this client",
) -> Iterable[str]:
    """Yield why code must not go to a process of these versions, as predicates."""
    python, cloudpickle, distributed = map(
        theirs.get, ("python", "cloudpickle", "distributed")
    )
    if _numbers(ours.get("python"))[:2] != _numbers(python)[:2]:
        yield (
            f"runs Python {_shown(python)}, {here} {ours.get('python')}: code of "
            "another Python minor can crash it, so none is sent; use the same Python "
            "minor on all sides"
        )
    if _numbers(ours.get("cloudpickle"))[:1] != _numbers(cloudpickle)[:1]:
        yield (
            f"has cloudpickle {_shown(cloudpickle)}, {here} "
            f"{ours.get('cloudpickle')}: install the same major release on all sides"
        )
    if _numbers(distributed)[:2] < OLDEST_DISTRIBUTED:
        yield (
            f"has distributed {_shown(distributed)}: clustertune needs "
            f"{'.'.join(map(str, OLDEST_DISTRIBUTED))} or later on all sides"
        )


def _shown(version: str | None) -> str:
    """A version that another process has sent, as text without control characters."""
    return ascii(version)[:40].strip("'")


def _numbers(version: str | None) -> tuple[int, ...]:
    """The leading numbers of a version; empty if it is unknown."""
    parts = takewhile(str.isdigit, (version or "").split("."))
    return tuple(map(int, parts))


# --- private names of distributed -----------------------------------------------------


def missing_names(dask_scheduler: Any) -> dict[str, Any]:
    """Return names that the scheduler plugin needs and this scheduler does not have.

    The answer has the ``version`` of distributed, and the ``missing`` names.
    """
    import distributed
    from distributed import active_memory_manager, scheduler

    extensions = getattr(dask_scheduler, "extensions", {})
    things = {
        "Scheduler": dask_scheduler,
        "active_memory_manager": active_memory_manager,
        "memory manager": extensions.get("amm"),
        "work stealing": extensions.get("stealing"),
        "publish extension": extensions.get("publish"),
    }
    for owner in REQUIRED.keys() - things.keys():
        things[owner] = getattr(scheduler, owner, owner)
    missing = [
        f"{owner}.{name}"
        for owner, names in REQUIRED.items()
        if things[owner] is not None  # extensions may be switched off
        for name in names
        if not hasattr(things[owner], name)
    ]
    version = getattr(distributed, "__version__", None)  # as its types do not have it
    return {"version": version, "missing": missing}


def missing_names_text(version: str | None, missing: Sequence[str]) -> str:
    """The message for a scheduler that lacks names."""
    names = [ascii(name).strip("'") for name in missing[:MAX_NAMES]]
    more = len(missing) - len(names)
    shown = ", ".join(names) + (f" and {more} more" if more else "")
    oldest, newest = TESTED
    return (
        f"distributed {_shown(version)} on the scheduler has no {shown}, which "
        "clustertune needs. So clustertune was not installed on the scheduler, and "
        "nothing was changed. clustertune is tested with distributed "
        f"{oldest} to {newest}: use one of these releases on all sides"
    )
