"""The state of a cluster and the layout of its data, as frozen data.

Units are those of :mod:`clustertune.core.model`.

A snapshot is cheap: the scheduler already has most of it. Details and a survey cost a
call on every worker and some time on the scheduler, so only diagnoses read them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from clustertune.core.wording import are, names_text, plural


@dataclass(frozen=True, slots=True)
class Unknown:
    """A fact that could not be read, with the reason."""

    reason: str

    def __str__(self) -> str:
        return f"unknown: {self.reason}"


@dataclass(frozen=True, slots=True)
class OtherVersions(Unknown):
    """Facts of a worker that gets no code, because of its versions."""


# --- workers --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Fractions of a worker's memory limit at which it acts; None: switched off."""

    target: float | None  # of managed memory: the worker spills down to it
    spill: float | None  # of process memory: the worker spills until below target
    pause: float | None  # of process memory: the worker starts no more tasks
    terminate: float | Unknown | None  # of process memory: the nanny kills the worker


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    """Facts of a worker and its host; read once per process."""

    thresholds: Thresholds
    affinity: frozenset[int]  # CPUs on which this process may run
    quotas: tuple[tuple[str, float], ...]  # (cgroup, CPUs) of each level with a quota
    host_memory: int  # most bytes that this process can use: RAM or cgroup limit
    #: (cgroup, bytes) of each level with a memory limit, and ("", bytes) of the RAM
    memory_limits: tuple[tuple[str, int], ...] = ()
    machine: str = ""  # the same in containers on one machine; empty: unknown
    hostname: str = ""
    #: resources, preloads, variables and container, by name; equal in workers that can
    #: replace each other
    setup: Mapping[str, str] = field(default_factory=dict)

    @property
    def memory_levels(self) -> tuple[tuple[str, int], ...]:
        return self.memory_limits or (("", self.host_memory),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """Facts of a worker that only a diagnosis needs."""

    #: threads of each native library's pool; None: threadpoolctl is not installed there
    thread_pools: tuple[int, ...] | None
    disk_free: int  # bytes, of the disk to which the worker spills
    expires: float | None  # epoch seconds at which its lifetime ends; None: never
    packages: Mapping[str, str]  # versions by name of distribution
    #: seconds for which it has run a task that was cancelled; None: it runs none
    cancelled: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldData:
    """Data that a restart of a worker has to save."""

    keys: int  # keys on the worker
    unique: int  # keys without another replica
    nbytes: int  # bytes of the unique keys
    scattered: int  # unique keys that cannot be recomputed
    actors: int
    copied: int = 0  # bytes of the other keys


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkingSpace:
    """Bytes that a worker's nanny may fill with keys while the worker restarts."""

    memory: int
    disk: int
    obstacle: str = ""  # why the nanny cannot run two processes of the worker
    second: int = 0  # bytes of another process of the worker, without keys


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSnapshot:
    """One worker at one moment.

    ``id`` is the name, or the nanny's host and port. Unlike ``address`` it survives a
    restart.
    """

    id: str | int
    address: str
    host: str
    nanny: str | None
    nthreads: int
    status: str  # Dask's: running, paused, closing_gracefully, ...
    memory_limit: int  # bytes; 0: none is set
    process: int  # bytes: resident memory of the worker process
    managed: int  # bytes of managed memory, at most those of the process
    spilled: int  # bytes of keys on disk
    facts: WorkerFacts | Unknown
    #: sum of the sizes of keys in memory; data that keys share counts for each key
    counted: int = 0
    heartbeat_age: float = 0.0  # seconds since its last heartbeat
    loop_delay: float = 0.0  # seconds between two ticks of its event loop; idle: 0.02
    cpu: float = 0.0  # CPUs that its process used before its last heartbeat
    processing: int = 0  # tasks that the scheduler has assigned to it
    executing: int = 0  # running tasks, by its last heartbeat
    details: Details | Unknown | None = None  # None: not read
    held_data: HeldData | None = None  # None: not read
    resources: bool = False  # whether tasks may require resources of it
    parking: bool = False  # keeps the keys of a worker in its nanny during its restart
    parking_space: ParkingSpace | Unknown | None = None  # in its nanny; None: not read
    #: least bytes that its process has had; None: unknown
    least_memory: int | None = None

    @property
    def running(self) -> bool:
        return self.status == "running"

    @property
    def objection(self) -> str:
        """Return why its versions forbid to send it code; empty if they do not."""
        return self.facts.reason if isinstance(self.facts, OtherVersions) else ""

    @property
    def busy(self) -> bool:
        """Whether it runs tasks or will start some; a paused worker starts none."""
        return bool(self.executing or (self.processing and self.status != "paused"))

    @property
    def is_counted(self) -> bool:
        """Whether it counts as one of the workers that a user asks for."""
        return self.status in ("running", "paused")

    @property
    def unmanaged(self) -> int:
        """Bytes of unmanaged memory."""
        return max(0, self.process - self.managed)

    @property
    def thresholds(self) -> Thresholds | Unknown:
        return self.facts if isinstance(self.facts, Unknown) else self.facts.thresholds


# --- scheduler ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyGroup:
    """Keys in memory with the same prefix that the same clients want kept."""

    prefix: str  # "": all prefixes beyond a limit
    keys: int
    nbytes: int  # each key counts once, even if it has replicas
    scattered: int  # keys that cannot be recomputed
    mine: bool  # whether the asking client wants them
    others: tuple[str, ...] = ()  # ids of other clients, such as "published-train"

    @property
    def alone(self) -> bool:
        """Whether only the asking client wants these keys."""
        return self.mine and not self.others


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmetRestriction:
    """Restrictions of tasks that no worker meets."""

    kind: str  # "worker", "host" or "resources"
    names: tuple[str, ...]
    tasks: int

    def __str__(self) -> str:
        tasks, names = plural(self.tasks, "task"), names_text(self.names)
        if self.kind == "worker":
            return f"{tasks} may run on {names} only, which {are(self.names)} gone"
        if self.kind == "host":
            return f"{tasks} may run on {names} only: no worker or host is called so"
        return f"{tasks} may run with {names} only: no worker has these resources"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningTask:
    """A task that a worker has run for a while, by its last heartbeat."""

    worker: str  # address
    name: str  # of its prefix
    seconds: float
    usual: float | None  # mean seconds of its kind; None: no other has ended
    training: bool  # whether it belongs to a fit
    lost_member: bool  # whether another task of its fit waits for a worker that is gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Facts of the scheduler that only a diagnosis needs."""

    worker_ttl: float | None  # seconds of silence after which a worker is removed
    loop_delay: float  # seconds between two ticks of the scheduler's event loop
    #: restrictions of tasks that no worker meets
    unmet_restrictions: tuple[UnmetRestriction, ...] = ()
    running: tuple[RunningTask, ...] = ()  # the longest running tasks
    packages: Mapping[str, Mapping[str, str]]  # of "client" and "scheduler"


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The cluster at one moment."""

    time: float  # epoch seconds
    scheduler: str  # its address
    workers: tuple[WorkerSnapshot, ...]
    memory_manager: bool | None = None  # whether Dask's AMM runs; None: there is none
    can_scale: str | None = None  # reason why this client cannot scale it; None: it can
    can_restart: str | None = None  # reason against restarts by nannies; None: none
    #: reason against one worker in place of several on a host, with a fix; the fix may
    #: have the fields ``{nthreads}`` and ``{memory_limit}``; None: none
    can_merge: str | None = None
    #: least and most workers of adaptive scaling; None: it is off
    adaptive: tuple[int, float] | Unknown | None = None
    survey: Survey | None = None  # None: not read
    key_groups: tuple[KeyGroup, ...] | None = None  # None: not read

    @cached_property
    def by_address(self) -> Mapping[str, WorkerSnapshot]:
        return {w.address: w for w in self.workers}

    @cached_property
    def workers_per_host(self) -> Mapping[str, int]:
        return Counter(w.host for w in self.workers)

    @cached_property
    def workers_per_memory(self) -> Mapping[tuple[str, str], int]:
        """The workers that share the memory of a cgroup, by its host and name."""
        known = [(w.host, w.facts) for w in self.workers]
        return Counter(
            (host, name)
            for host, facts in known
            if isinstance(facts, WorkerFacts)
            for name, _ in facts.memory_levels
        )


def is_loopback(host: str) -> bool:
    """Return whether an address is valid on its own machine only."""
    return host in ("::1", "localhost") or host.startswith("127.")


# --- the past -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A span of work; the scheduler plugin keeps the last runs."""

    began: float  # epoch seconds
    ended: float
    #: by worker id: least unmanaged bytes between the end of this run and of the next
    floors: Mapping[str | int, int]
    peaks: Mapping[str | int, int]  # by worker id: most bytes of the process
    #: by worker id: managed bytes at the time of ``floors``
    managed: Mapping[str | int, int] = field(default_factory=dict)
    ended_by: str = "gap"  # or "hold", or "training" (tasks of a training library)


# --- layouts --------------------------------------------------------------------------

Key = str | int | float | tuple[Any, ...]
"""A Dask key."""

COPIED = "copied"
"""Prefix of the names of collections with a replica on every worker."""

PARTS = "parts"
"""Prefix of the names of keys that cuts send to other workers."""

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Facts about the values of a collection, by partition.

    ``deep=True`` or the workload selects them. Names and values are those of the
    functions in :mod:`clustertune.remote.worker.content`.
    """

    partitions: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollectionInfo:
    """One of the row-aligned collections of a layout: X, or y, or a weight.

    Arrays have one entry per partition, in row order. ``rows`` is None if unknown.
    ``nbytes`` and ``holders`` are None for data that is not in memory. ``holders`` is a
    pair of arrays (partition index, worker index into ``Snapshot.workers``) with one
    entry per replica.
    """

    label: str  # "X", "y", "sample_weight", "eval_set[0].X", ...
    kind: str  # "array", "dataframe" or "series"
    keys: tuple[Key, ...]
    loaded: bool
    rows: Int64s | None
    nbytes: Int64s | None
    holders: tuple[Int64s, Int64s] | None
    columns: int | None  # columns of a row; None: unknown
    column_blocks: int = 1  # 1: every partition has all columns
    itemsize: int | None = None  # bytes of the widest number in a row; None: no number
    fixed: int = 0  # bytes of a frame's partition in addition to rows: index, names
    total_bytes: int | None = None  # by the metadata of a lazy collection
    derived: bool = False  # lazy, but made of data in memory
    embedded: int | None = None  # bytes of data in the graph of a lazy collection
    scattered: int = 0  # partitions in memory that cannot be computed again
    #: names of a frame's columns by type
    types: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    contents: Contents | None = None  # None: not read
    #: the error of each partition whose values could not be read
    unreadable: Mapping[int, str] = field(default_factory=dict)
    sources: tuple[str, ...] = ()  # the file of each partition; empty: unknown
    made_here: bool = False  # made by this call, which releases its keys
    shared: bool = False  # made by this call, but others hold keys of it, too
    from_sizes: bool = False  # a qid, made of the sizes of groups in ``group``

    @property
    def argument(self) -> str:
        """The label, with the name of the argument that was given."""
        return self.label[: -len("qid")] + "group" if self.from_sizes else self.label

    @property
    def n_partitions(self) -> int:
        return len(self.keys) // self.column_blocks

    def files(self, numbers: Iterable[int]) -> dict[int, str]:
        """Return the files of these partitions; an empty text: unknown."""
        return {n: self.sources[n] if self.sources else "" for n in numbers}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """Partitions of row-aligned collections: rows, bytes, holders."""

    label: str  # "training data" or "eval_set[0]"
    collections: tuple[CollectionInfo, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(m.label for m in self.collections)

    @property
    def arguments(self) -> tuple[str, ...]:
        return tuple(m.argument for m in self.collections)

    @property
    def loaded(self) -> bool:
        return all(m.loaded for m in self.collections)

    @property
    def aligned(self) -> bool:
        """Whether all collections have the same known rows in every partition."""
        first = self.collections[0].rows
        return first is not None and all(
            m.column_blocks == 1
            and m.rows is not None
            and np.array_equal(m.rows, first)
            for m in self.collections
        )

    @property
    def rows(self) -> Int64s:
        """Rows per partition of an aligned layout."""
        rows = self.collections[0].rows
        if rows is None or not self.aligned:
            raise ValueError(f"{self.label} has no common row boundaries")
        return rows

    @property
    def nbytes(self) -> int:
        """Bytes of all collections of a loaded layout."""
        known = (m.nbytes for m in self.collections if m.nbytes is not None)
        return sum(int(nbytes.sum()) for nbytes in known)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerShare:
    """The part of a layout that one worker holds."""

    worker: str | int  # id
    partitions: int
    rows: int
    nbytes: int
    share: float  # its rows divided by its fair share; 0 if its fair share is 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutSummary:
    """A layout in a few numbers."""

    label: str
    collections: tuple[str, ...]
    partitions: int
    loaded: bool
    rows: int | None  # None: unknown, or not the same for all collections
    nbytes: int | None
    separated: int | None  # pairs
    imbalance: float | None  # rows of the fullest worker divided by its fair share
    workers: tuple[WorkerShare, ...] = ()
