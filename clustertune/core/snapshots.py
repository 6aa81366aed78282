"""What is seen of a cluster, as frozen data; units as in :mod:`clustertune.core.model`.

A snapshot is cheap: it is what scheduler and workers say of themselves anyway. Details
and a survey cost a call on every worker and some time on the scheduler; they are asked
for a diagnosis and not while a cluster is watched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from clustertune.core.wording import are, names_text, plural


@dataclass(frozen=True, slots=True)
class Unknown:
    """A fact that could not be learned."""

    reason: str

    def __str__(self) -> str:
        return f"unknown: {self.reason}"


# --- workers --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Fractions of its memory limit at which a worker acts; None is switched off."""

    target: float | None  # of managed memory: spills down to it
    spill: float | None  # of process memory: spills until below target
    pause: float | None  # of process memory: starts no more tasks
    terminate: float | Unknown | None  # of process memory: its nanny kills it


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    """What a worker knows of itself and its host; read once, not at each look."""

    thresholds: Thresholds
    affinity: frozenset[int]  # CPUs on which this process may run
    quotas: tuple[tuple[str, float], ...]  # (cgroup, CPUs): each level that has a quota
    host_memory: int  # bytes that this process could use at most: RAM or cgroup limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Threads that a native library keeps in a process."""

    api: str  # "blas" or "openmp"
    library: str  # its file name's beginning, like "libopenblas"
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """What a worker says when it is asked for a diagnosis."""

    pid: int  # workers without processes of their own share one
    daemon: bool  # such a process may have no children
    child_count: int  # child processes, and theirs
    child_memory: int  # bytes resident in them
    pools: tuple[Pool, ...] | None  # None: threadpoolctl is not installed there
    variables: Mapping[str, str]  # that set numbers of threads, as far as they are set
    disk: str  # kind of file system to which the worker spills
    disk_total: int  # bytes
    disk_free: int
    expires: float | None  # epoch seconds at which its lifetime ends; None: never
    returns: bool  # is started again then
    packages: Mapping[str, str]  # versions by name of distribution
    paused: float | None = None  # seconds since it paused; None: it is not, or unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Burden:
    """What a restart of a worker would have to save."""

    keys: int  # that it holds
    unique: int  # that it alone holds
    nbytes: int  # of these
    scattered: int  # of these, that nobody could compute again
    actors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Bytes that a parking worker in a worker's nanny may fill."""

    memory: int
    disk: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSnapshot:
    """One worker at one moment.

    ``id`` survives a restart (its name, else its nanny's address), unlike ``address``.
    """

    id: str | int
    address: str
    host: str
    nanny: str | None
    nthreads: int
    status: str  # Dask's: running, paused, closing_gracefully, ...
    memory_limit: int  # bytes; 0: none is set
    process: int  # bytes: resident memory of the worker process
    managed: int  # bytes of Dask's keys in memory, but not more than the process has
    spilled: int  # bytes of Dask's keys on disk
    facts: WorkerFacts | Unknown
    #: bytes per second of the last transfers to it; 0: none was measured
    bandwidth: float = 0.0
    #: bytes of these keys by their own sizes: what several share is counted for each
    counted: int = 0
    silent: float = 0.0  # seconds since the scheduler last heard of it
    loop_delay: float = 0.0  # seconds between two ticks of its event loop; idle: 0.02
    cpu: float = 0.0  # CPUs that its process used lately, by its heartbeat
    processing: int = 0  # tasks that the scheduler has given to it
    executing: int = 0  # tasks that it says it runs
    cancelled: int = 0  # tasks that nobody wants any more, and that it cannot stop
    details: Details | Unknown | None = None  # None: it was not asked
    burden: Burden | None = None  # None: the scheduler was not asked
    parking: bool = False  # keeps keys in a nanny while that one's worker is restarted
    room: Room | Unknown | None = None  # beside it; None: its nanny was not asked
    least: int | None = None  # bytes its process had at the least; None: not known
    #: tasks that it runs: prefix and number; None: the scheduler was not asked
    tasks: tuple[tuple[str, int], ...] | None = None

    @property
    def running(self) -> bool:
        return self.status == "running"

    @property
    def busy(self) -> bool:
        """Whether tasks run there, or begin by themselves: a paused one begins none."""
        return bool(self.executing or (self.processing and self.status != "paused"))

    @property
    def stays(self) -> bool:
        """Whether it counts where a number of workers is asked for: paused ones do."""
        return self.status in ("running", "paused")

    @property
    def unmanaged(self) -> int:
        """Bytes of the process that are not Dask's keys."""
        return max(0, self.process - self.managed)

    @property
    def thresholds(self) -> Thresholds | Unknown:
        return self.facts if isinstance(self.facts, Unknown) else self.facts.thresholds


# --- scheduler and clients ------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFacts:
    """A client of the scheduler."""

    id: str
    keys: int  # that it wants kept
    silent: float  # seconds since the scheduler last heard of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Another client's fit, plan or hold, which keeps plans waiting."""

    label: str
    client: str  # id
    seconds: float  # since it began


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A published data set."""

    name: str
    keys: int
    missing: int  # keys that are nowhere, nor being computed


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """Tasks with the same name, but for hashes and numbers."""

    name: str
    memory: int  # tasks, now: in memory
    waiting: int  # waiting, queued, or without a worker
    processing: int
    erred: int
    finished: int  # tasks, so far
    seconds: float  # that all of these took together
    nbytes: int  # bytes of results in memory, about
    inputs: int = 0  # bytes of all that those to come depend on, about


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """Keys in memory with the same prefix that the same clients want kept."""

    prefix: str  # "": of all that there was no more room to tell apart
    keys: int
    nbytes: int  # each key once, whatever copies there are
    scattered: int  # keys that nobody could compute again
    mine: bool  # the client that asks is one of them
    others: tuple[str, ...] = ()  # ids of other clients
    #: (kind, name) of what is shared by name: "published", "variable" or "queue"
    shared: tuple[tuple[str, str], ...] = ()
    coming: int = 0  # tasks besides that are still to be done for them

    @property
    def published(self) -> tuple[str, ...]:
        """Names of data sets."""
        return tuple(name for kind, name in self.shared if kind == "published")

    @property
    def alone(self) -> bool:
        """Whether only the client that asks wants these keys."""
        return self.mine and not self.others and not self.shared


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmet:
    """What tasks wait for that no worker has."""

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
class Survey:
    """What the scheduler says when it is asked for a diagnosis."""

    me: str  # id of the client that asks
    worker_ttl: float | None  # seconds of silence after which a worker is given up
    loop_delay: float  # seconds between two ticks of the scheduler's event loop
    queued: int  # tasks that wait for any worker
    unrunnable: int  # tasks for which there is no worker that runs
    unmet: tuple[Unmet, ...] = ()  # and what they want that no worker has
    actors: int
    clients: tuple[ClientFacts, ...]
    published: tuple[Published, ...]
    prefixes: tuple[Prefix, ...]
    complete: bool  # False: there are more clients, names or prefixes than were read
    packages: Mapping[str, Mapping[str, str]]  # of "client" and "scheduler"


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The cluster at one moment.

    Attributes
    ----------
    by_address : mapping
        Its workers.
    on_host : mapping
        How many of them each host has.
    """

    time: float  # epoch seconds
    scheduler: str  # its address
    workers: tuple[WorkerSnapshot, ...]
    memory_manager: bool | None = None  # whether Dask's own runs; None: it has none
    #: seconds that a task takes beside its work; None: it was not measured
    overhead: float | None = None
    can_scale: str | None = None  # None: it can; else why this client cannot scale it
    can_restart: str | None = None  # None: nannies may; else why its manager minds
    #: least and most workers of its adaptive scaling; None: it is off
    adaptive: tuple[int, float] | Unknown | None = None
    survey: Survey | None = None  # None: it was not asked
    holdings: tuple[Holding, ...] | None = None  # None: it was not asked
    #: seconds from the end of a worker's process to the next, of the last restarts here
    restarts: tuple[float, ...] = ()
    holder: Holder | None = None  # None: there is none, or it was not asked

    @cached_property
    def by_address(self) -> Mapping[str, WorkerSnapshot]:
        return {w.address: w for w in self.workers}

    @cached_property
    def on_host(self) -> Mapping[str, int]:
        return Counter(w.host for w in self.workers)


# --- the past -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A span of work; the scheduler plugin keeps the last ones."""

    began: float  # epoch seconds
    ended: float
    #: by worker id: least unmanaged bytes from its end to the end of the next run
    floors: Mapping[str | int, int]
    peaks: Mapping[str | int, int]  # by worker id: most bytes of its process
    #: by worker id: managed bytes at the moment of the least unmanaged ones
    managed: Mapping[str | int, int] = field(default_factory=dict)
    ended_by: str = "gap"  # or "hold", or "training": the training tasks of a library
