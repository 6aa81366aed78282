"""Decides whether code may be sent to the other processes, and whether it works there.

Python's bytecode differs between minor releases: a function that one release has
pickled can crash a process of another. So the versions are read first, through calls of
distributed that carry no code. Before the scheduler plugin is installed, a small
function then looks for the private names of distributed that the plugin needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from distributed.versions import get_versions

if TYPE_CHECKING:
    from distributed import Client

OLDEST = (2025, 5)  # release of distributed whose scheduler the plugin knows
TESTED = ("2025.5.0", "2026.8.0")  # oldest and newest release in the tests
MAX_NAMES = 3  # of missing names in a message

#: names that the scheduler plugin needs, by the object or class that has them
REQUIRED: Mapping[str, tuple[str, ...]] = {
    "Scheduler": (
        "_active_graph_updates", "_replica_lock", "_tick_interval_observed",
        "add_keys", "add_plugin", "address", "aliases", "client_comms",
        "client_desires_keys", "client_releases_keys",
        "clients", "coerce_hostname", "extensions", "gather_on_worker", "get_events",
        "handle_worker_status_change", "handlers", "host_info", "log_event",
        "periodic_callbacks", "plugins", "queued", "remove_plugin",
        "remove_replica", "remove_worker",
        "report", "request_acquire_replicas", "restart", "restart_workers",
        "retire_workers", "rpc", "running", "status", "task_prefixes", "tasks",
        "transition_counter", "transitions", "unrunnable", "worker_ttl", "workers",
    ),
    "WorkerState": (
        "actors", "address", "executing", "has_what", "host", "last_seen", "memory",
        "memory_limit", "metrics", "name", "nanny", "nbytes", "nthreads", "pid",
        "processing", "resources", "status", "time_delay",
    ),
    "MemoryState": ("managed", "process", "spilled", "unmanaged"),
    "TaskState": (
        "actor", "annotations", "dependents", "host_restrictions", "key",
        "loose_restrictions", "nbytes", "prefix", "priority", "processing_on",
        "resource_restrictions", "run_spec", "state", "type", "waiters", "waiting_on",
        "who_has", "who_wants", "worker_restrictions",
    ),
    "ClientState": ("client_key", "last_seen", "wants_what"),
    "TaskPrefix": ("name", "nbytes_total", "states"),
    "active_memory_manager": (
        "ActiveMemoryManagerExtension", "ActiveMemoryManagerPolicy", "ReduceReplicas",
        "Suggestion",
    ),
    "memory manager": ("add_policy", "policies", "run_once", "running"),
    "work stealing": ("move_task_request",),
    "publish extension": ("datasets",),
    "variables extension": ("variables",),
    "queues extension": ("queues",),
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
        text = "; it ".join(_objections(self.client, self.scheduler))
        return f"the scheduler {text}" if text else ""

    def worker_objections(self) -> dict[str, str]:
        """Return why code must not go to some workers, by address.

        The texts are predicates, such as "runs Python 3.12, ...".
        """
        found = {
            address: "; it ".join(_objections(self.client, packages))
            for address, packages in self.workers.items()
        }
        return {address: text for address, text in found.items() if text}


# --- versions of all sides ------------------------------------------------------------


async def read(
    client: Client,
    workers: Iterable[str] | None = None,
    packages: Iterable[str] = (),
    timeout: float = 10,
) -> Sides:
    """Read the versions of all sides; no code is sent.

    Parameters
    ----------
    client
        A connected client.
    workers
        Addresses to ask; None asks all.
    packages
        Further packages, by the names of their distributions.
    timeout
        Seconds after which a worker that has not answered counts as silent.
    """
    more = list(packages)
    remote: Any = client.scheduler  # distributed has no types for its calls
    here = get_versions(packages=more)["packages"]
    scheduler = (await remote.versions(packages=more))["packages"]
    if workers is None:
        workers = (await remote.identity(n_workers=-1))["workers"]
    asked = list(workers)
    found = await _ask(remote, asked, more, timeout) if asked else {}
    if len(asked) > 1 and all(answer is None for answer in found.values()):
        # one silent worker delays the answers of all: ask each alone
        each = await asyncio.gather(*(_ask(remote, [a], more, timeout) for a in asked))
        found = {a: answer for one in each for a, answer in one.items()}
    return Sides(
        here,
        scheduler,
        {address: answer for address, answer in found.items() if answer is not None},
        tuple(address for address, answer in found.items() if answer is None),
    )


async def _ask(
    scheduler: Any, workers: list[str], packages: list[str], timeout: float
) -> dict[str, Mapping[str, str | None] | None]:
    """Versions by address of worker; None if a worker did not answer."""
    call = scheduler.broadcast(
        msg={"op": "versions", "packages": packages},
        workers=workers,
        on_error="ignore",
    )
    try:
        answers: dict[str, Any] = await asyncio.wait_for(call, timeout)
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


def _objections(
    ours: Mapping[str, str | None], theirs: Mapping[str, str | None]
) -> Iterable[str]:
    python, cloudpickle, distributed = map(
        theirs.get, ("python", "cloudpickle", "distributed")
    )
    if _numbers(ours.get("python"))[:2] != _numbers(python)[:2]:
        yield (
            f"runs Python {_shown(python)}, this client {ours.get('python')}: code of "
            "another Python minor can crash it, so none is sent; use the same Python "
            "minor on all sides"
        )
    if _numbers(ours.get("cloudpickle"))[:1] != _numbers(cloudpickle)[:1]:
        yield (
            f"has cloudpickle {_shown(cloudpickle)}, this client "
            f"{ours.get('cloudpickle')}: install the same major release on all sides"
        )
    if _numbers(distributed)[:2] < OLDEST:
        yield (
            f"has distributed {_shown(distributed)}: clustertune needs "
            f"{'.'.join(map(str, OLDEST))} or later on all sides"
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
        "variables extension": extensions.get("variables"),
        "queues extension": extensions.get("queues"),
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


def refusal(version: str | None, missing: Sequence[str]) -> str:
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
