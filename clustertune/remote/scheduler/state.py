"""Facts about workers and keys that follow from the scheduler's own state."""

from __future__ import annotations

from collections.abc import Mapping
from time import time
from typing import Any, NamedTuple

from distributed.core import Status
from distributed.scheduler import heartbeat_interval

from clustertune.core import rules
from clustertune.core.wording import plural
from clustertune.remote.ship import objections

PARKING_PREFIX = "clustertune-parking-"  # of the names of parking workers
WAITING = ("waiting", "no-worker", "queued")
LATE = 10.0  # seconds since the last heartbeat of a worker that may be frozen
COMING = (*WAITING, "processing")  # states of tasks that have no result yet

Id = str | int


# --- names ----------------------------------------------------------------------------


def worker_id(address: str, name: Any, nanny: str | None) -> Id:
    """Return an id that survives a restart: the name, or the nanny's host and port."""
    if isinstance(name, str | int) and name not in ("", address):
        return name
    return (nanny or address).rpartition("://")[2]


def id_of(worker: Any) -> Id:
    """Return the id of a ``WorkerState``."""
    return worker_id(worker.address, worker.name, worker.nanny)


def identity(worker: Any) -> tuple[str | None, Any]:
    """Return the nanny and the name, which survive a restart."""
    return worker.nanny, None if worker.name == worker.address else worker.name


def is_parking(name: Any) -> bool:
    """Whether a worker's name is that of a parking worker."""
    return isinstance(name, str) and name.startswith(PARKING_PREFIX)


def training_workers(scheduler: Any) -> list[Any]:
    """Return all workers except parking workers, which run in nannies."""
    return [ws for ws in scheduler.workers.values() if not is_parking(ws.name)]


def by_name(name: object) -> tuple[int, str]:
    """Sort key of workers: ``worker-2`` comes before ``worker-10``."""
    return len(str(name)), str(name)


def is_late(worker: Any, scheduler: Any) -> bool:
    """Whether a worker may be frozen: its last heartbeat is old.

    Dask asks for fewer heartbeats in large clusters. A scheduler that was suspended
    finds all workers late until it has read the waiting heartbeats.
    """
    late = max(LATE, 3 * heartbeat_interval(len(scheduler.workers)))
    return bool(time() - worker.last_seen > late)


def is_only_on(ts: Any, worker: Any, scheduler: Any, *others: Any) -> bool:
    """Whether a key would be lost, or not readable, without a worker that has it.

    Its other holders are paused, frozen or restarting. ``others`` count in any state.
    """
    return not any(
        ws in others or (ws in scheduler.running and not is_late(ws, scheduler))
        for ws in ts.who_has
        if ws is not worker
    )


def other_versions(worker: Any, ours: Mapping[str, Any]) -> str:
    """Return why a worker's nanny gets no code, or "".

    The code comes from a client with the versions of the scheduler. Workers send their
    versions when they join.
    """
    theirs = worker.versions.get("packages", {})
    return "; ".join(f"it {why}" for why in objections(ours, theirs, "the scheduler"))


# --- memory ---------------------------------------------------------------------------


class Memory(NamedTuple):
    """Bytes on one worker."""

    process: int  # resident memory, brought up to date
    managed: int  # keys in memory, at most the memory of the process
    spilled: int  # keys on disk
    counted: int  # keys in memory, by Dask's sizes

    @property
    def unmanaged(self) -> int:
        return self.process - self.managed


def counted_bytes(worker: Any) -> int:
    """Bytes of a worker's keys in memory, by Dask's sizes."""
    on_disk = worker.metrics.get("spilled_bytes", {}).get("memory", 0)
    in_memory: int = worker.nbytes - on_disk
    return max(0, in_memory)


def memory_of(worker: Any) -> Memory:
    """Return the memory of a worker, with the changes since its last heartbeat.

    The scheduler learns of every key at once, and of the process with each heartbeat.
    Without the correction, keys that just left a worker would look like unmanaged
    memory until the next heartbeat.
    """
    came: int = worker.nbytes - worker.metrics.get("managed_bytes", worker.nbytes)
    # a worker without a heartbeat yet has 0 bytes, and keeps them
    reported: int = worker.metrics.get("memory", 0)
    process = max(0, reported + came) if reported else 0
    counted = counted_bytes(worker)
    return Memory(process, min(process, counted), worker.memory.spilled, counted)


def free_bytes(worker: Any, ceiling: int) -> float:
    """Bytes of keys that a worker can take below a ceiling; 0: any."""
    return rules.free_bytes(ceiling, worker.memory.process, counted_bytes(worker))


# --- tasks ----------------------------------------------------------------------------


def is_gone(scheduler: Any, key: Any) -> bool:
    """Whether a key is neither in memory nor going to be computed."""
    ts = scheduler.tasks.get(key)
    return ts is None or ts.state in ("released", "forgotten")


def is_lost(scheduler: Any, key: Any) -> bool:
    """Whether a key that was in memory is gone, or could not be computed again."""
    return is_gone(scheduler, key) or scheduler.tasks[key].state == "erred"


def is_coming(scheduler: Any, key: Any) -> bool:
    """Whether a key is going to be computed."""
    ts = scheduler.tasks.get(key)
    return ts is not None and ts.state in COMING


def waits_for_gone(scheduler: Any, ts: Any) -> bool:
    """Whether a task can only run on workers that have left."""
    bound = ts.state in WAITING and not ts.loose_restrictions and ts.worker_restrictions
    return bool(bound) and scheduler.workers.keys().isdisjoint(bound)


def is_computable(ts: Any) -> bool:
    """Whether Dask can compute a task again: it has a graph, whose inputs are known.

    Dask forgets scattered inputs that no client wants, although tasks came from them.
    """
    return ts.run_spec is not None and not ts.has_lost_dependencies


def begun_tasks(worker: Any) -> int:
    """Count the tasks that a worker runs or will run; a paused one starts none."""
    if worker.status is Status.running:
        return len(worker.processing)
    return sum(ts in worker.executing for ts in worker.processing)


def shuffles(scheduler: Any, worker: Any) -> list[str]:
    """Return ids of P2P shuffles that keep rows in a worker's process."""
    active = getattr(scheduler.plugins.get("shuffle"), "active_shuffles", {})
    address = worker.address
    return [str(i) for i, s in active.items() if address in s.participating_workers]


def begun_work(scheduler: Any, worker: Any) -> str:
    """Return the work that has begun on a worker meanwhile."""
    if worker.processing:
        return "tasks have begun there meanwhile"
    if shuffles(scheduler, worker):
        return "a P2P shuffle has begun there meanwhile"
    return ""


def still_busy(scheduler: Any, worker: Any, seconds: float) -> str:
    """Return the shuffles or tasks that keep a worker busy after a wait."""
    some = shuffles(scheduler, worker)
    if some:
        return (
            f"{len(some)} P2P shuffles still keep rows in its process after "
            f"{seconds:g} s, such as {some[0][:200]}: they would start again "
            "after a restart"
        )
    tasks = len(worker.processing)
    keys = sorted(str(ts.key) for ts in worker.processing)[:3]
    age = time() - worker.last_seen
    late = f"; its last heartbeat was {age:.0f} s ago" if age > LATE else ""
    return (
        f"{plural(tasks, 'task')} still {'runs' if tasks == 1 else 'run'} after "
        f"{seconds:g} s, such as {', '.join(keys)[:200]}{late}"
    )
