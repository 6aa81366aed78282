"""The types that all rooms exchange, as plain frozen data.

Units in the whole package: bytes, seconds, epoch seconds, rows, fractions from 0 to 1.
Text such as ``"2 GiB"`` or ``"30s"`` is converted at the public calls. Nothing here
imports Dask: the monitor and the live cluster translate, and checks, planner and report
are pure functions over these values. Unknown values are :class:`Unknown` with a reason.
"""

from __future__ import annotations

from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import partial
from typing import Protocol

from clustertune.core.profiles import Profile as Profile
from clustertune.core.snapshots import COPIED as COPIED
from clustertune.core.snapshots import PARTS as PARTS
from clustertune.core.snapshots import Bools as Bools
from clustertune.core.snapshots import CollectionInfo as CollectionInfo
from clustertune.core.snapshots import Contents as Contents
from clustertune.core.snapshots import Details as Details
from clustertune.core.snapshots import Float64s as Float64s
from clustertune.core.snapshots import HeldData as HeldData
from clustertune.core.snapshots import Int64s as Int64s
from clustertune.core.snapshots import Key as Key
from clustertune.core.snapshots import KeyGroup as KeyGroup
from clustertune.core.snapshots import Layout as Layout
from clustertune.core.snapshots import LayoutSummary as LayoutSummary
from clustertune.core.snapshots import OtherVersions as OtherVersions
from clustertune.core.snapshots import ParkingSpace as ParkingSpace
from clustertune.core.snapshots import Run as Run
from clustertune.core.snapshots import RunningTask as RunningTask
from clustertune.core.snapshots import Snapshot as Snapshot
from clustertune.core.snapshots import Survey as Survey
from clustertune.core.snapshots import Thresholds as Thresholds
from clustertune.core.snapshots import Unknown as Unknown
from clustertune.core.snapshots import UnmetRestriction as UnmetRestriction
from clustertune.core.snapshots import WorkerFacts as WorkerFacts
from clustertune.core.snapshots import WorkerShare as WorkerShare
from clustertune.core.snapshots import WorkerSnapshot as WorkerSnapshot
from clustertune.core.snapshots import is_loopback as is_loopback
from clustertune.core.wording import bytes_text, plural

Notify = Callable[[str, "float | None"], None]
"""Shows the progress of long work: a text, and the finished fraction or None."""


# --- findings -------------------------------------------------------------------------

Scalar = str | int | float | bool | None

#: the end of commands in findings, where commands name their cluster
ADDRESS = " ADDRESS`"


class Severity(IntEnum):
    """The severity of a finding; ``unknown``: the check could not decide."""

    unknown = 0
    info = 1
    warning = 2
    critical = 3

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One condition that a check found; ``checks.run`` adds the name of the check."""

    severity: Severity
    message: str
    subject: tuple[str | int, ...] = ()  # worker ids, or labels of collections
    evidence: Mapping[str, Scalar] = field(default_factory=dict)
    check: str = ""
    remedy: str = ""
    command: str = ""  # the remedy as a command; empty: no command does the same
    fixed_by: str = ""  # the action that can fix it in this call, if there is one

    def as_command(self, cluster: str) -> Finding:
        """Return the finding with the command as its remedy, if it has one.

        ``cluster`` are the words that name the cluster.
        """
        if not self.command:
            return self
        named = self.command.replace(ADDRESS, f" {cluster}".rstrip() + "`")
        return replace(self, remedy=named, command="")


unknown = partial(Finding, severity=Severity.unknown)
info = partial(Finding, severity=Severity.info)
warning = partial(Finding, severity=Severity.warning)
critical = partial(Finding, severity=Severity.critical)


# --- goal and view --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """The request of the user, validated and in plain units."""

    workload: Profile
    workload_chosen: bool = True  # whether the user named the workload
    #: whether the workload is that of a model, whose parameters change its profile
    model_given: bool = False
    imported: frozenset[str] = frozenset()  # libraries imported in the client's process
    #: "fit": as many as the memory of the fit needs; "adaptive": within the bounds of
    #: adaptive scaling, for this call
    n_workers: int | str | None = None
    workers: frozenset[str | int] | None = None  # ids; None: all
    tolerance: float = 0.05  # excess rows of the fullest worker
    memory_fraction: float = 0.7  # of a worker's limit that a fit may fill
    #: whether too little memory for the fit is an error
    raise_on_low_memory: bool = False
    persist: bool | None = None  # load lazy data; None: as the workload needs it
    rechunk: bool | int = True  # where needed; never; or a number of partitions
    merge_workers: bool = False  # replace the workers of each host by one
    #: train on one worker of each host, with the threads of all, if its memory allows
    one_per_host: bool = False
    restart: bool | str = False  # all workers; "auto": workers named in findings
    restarted: frozenset[str | int] = frozenset()  # ids, in this call
    trimmed: frozenset[str | int] = frozenset()  # ids, in this call
    release_inputs: bool = False  # release old partitions one by one
    training_eval_sets: tuple[str, ...] = ()  # eval sets that are the training data
    #: worker id of each partition in an earlier placement, by layout, to be restored
    placement: Mapping[str, tuple[str | int | None, ...]] = field(default_factory=dict)

    def includes(self, id: str | int) -> bool:
        """Whether the request is about this worker."""
        return self.workers is None or id in self.workers

    def may_restart(self, ids: Collection[str | int]) -> bool:
        """Whether this call can still restart one of these workers."""
        included = {id for id in ids if self.includes(id)}
        return bool(self.restart) and not self.restarted.issuperset(included)

    @property
    def changes_data(self) -> bool:
        """Whether the request changes the data, which requires loaded data."""
        return self.partitions is not None or self.release_inputs

    @property
    def partitions(self) -> int | None:
        """The requested number of partitions; None: any."""
        return None if isinstance(self.rechunk, bool) else self.rechunk

    @property
    def cutting_action(self) -> str:
        """The action that cuts partitions, if permitted; for ``fixed_by``."""
        return "" if self.rechunk is False else "rechunk"


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The input of checks and planner: snapshots, data and goal."""

    snapshots: tuple[Snapshot, ...]  # oldest first; at least one
    goal: Goal
    layouts: tuple[Layout, ...] = ()  # the training data first, then eval sets
    runs: tuple[Run, ...] | None = None  # past runs, oldest first; None: not read
    #: bytes by worker id of given partitions that this call has replaced; the caller's
    #: collections keep them in memory
    replaced: Mapping[str | int, int] = field(default_factory=dict)
    #: partitions of the training data as given; None: unknown
    given_partitions: int | None = None
    #: ids of the workers that train, if there is too little data for all, or if one of
    #: each host does; None: all
    trainers: frozenset[str | int] | None = None
    #: why a check could not read the data, and a fix; None: it did
    unread: tuple[str, str] | None = None

    @property
    def now(self) -> Snapshot:
        return self.snapshots[-1]

    @property
    def collections(self) -> Iterator[CollectionInfo]:
        """The collections of all layouts."""
        return (m for layout in self.layouts for m in layout.collections)

    @property
    def loads_data(self) -> bool:
        """Whether lazy data is loaded.

        A library that reads its data once gets lazy data, unless some data is loaded.
        """
        if self.goal.persist is not None:
            return self.goal.persist
        there = any(m.loaded for m in self.collections)
        return self.goal.workload.persist or there or self.goal.changes_data

    def eligible(self, worker: WorkerSnapshot) -> bool:
        """Whether this worker may hold training data: requested, running, needed.

        A worker whose versions forbid code is not eligible.
        """
        needed = self.trainers is None or worker.id in self.trainers
        wanted = self.goal.includes(worker.id)
        return wanted and needed and worker.running and not worker.objection

    @property
    def eligible_workers(self) -> tuple[WorkerSnapshot, ...]:
        return tuple(w for w in self.now.workers if self.eligible(w))


# --- steps ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The predicted cost of a step; None: unknown."""

    nbytes: int | None  # bytes transferred between workers
    peak: int | None = None  # greatest rise of one worker's memory, in bytes
    at_risk: str = ""  # data that would be lost, as text


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Move:
    """The targets of the keys of one collection; keys keep their names."""

    label: str
    keys: tuple[Key, ...]
    targets: Int64s  # per key: index into ``Moves.workers``


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moves:
    """The moves of a layout."""

    workers: tuple[str, ...]  # addresses
    process_limits: tuple[int, ...]  # greatest process memory in bytes; 0: no limit
    moves: tuple[Move, ...]
    #: whether the given partitions stay, and new keys are made on the targets
    copies: bool = False
    kept: tuple[Move, ...] = ()  # where the given partitions stay meanwhile

    @property
    def count(self) -> int:
        return sum(len(m.keys) for m in self.moves)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cut:
    """The new partitions of one collection, as row ranges of its keys.

    Arrays have one entry per part, in the order of new partitions, then rows, then
    blocks of columns.
    """

    label: str
    keys: tuple[Key, ...]
    new: Int64s  # index of the new partition
    key: Int64s  # index into ``keys``
    start: Int64s  # first row in that key
    stop: Int64s  # one past the last
    owner: Int64s  # index into ``Rechunk.workers`` of a holder of that key


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rechunk:
    """New partitions of row-aligned collections, and their workers."""

    workers: tuple[str, ...]  # addresses
    rows: Int64s  # of every new partition
    targets: Int64s  # per new partition: index into ``workers``
    cuts: tuple[Cut, ...]
    released: tuple[str, ...] = ()  # labels whose old partitions are released meanwhile
    copies: int = 1  # replicas of each row in the new partitions
    shortage: str = ""  # why it does not fit in memory; empty if it does
    moves: Moves | None = None  # of collections that are not cut


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Load:
    """The workers on which lazy partitions are loaded; Dask places the others."""

    workers: tuple[str, ...]  # addresses
    targets: Mapping[str, Int64s]  # by label, per key: index into ``workers``
    #: free bytes on each worker that may hold data; None: the data fits by its known
    #: size, or the thresholds are unknown
    free_memory: Float64s | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSize:
    """The size of a worker at its next start; None: unchanged."""

    nthreads: int | None = None
    memory_limit: int | None = None  # bytes

    def __str__(self) -> str:
        parts = [] if self.nthreads is None else [plural(self.nthreads, "thread")]
        parts += [] if self.memory_limit is None else [bytes_text(self.memory_limit)]
        return " and ".join(parts)

    def given_to(self, worker: WorkerSnapshot) -> WorkerSnapshot:
        """Return the worker with this size."""
        nthreads = worker.nthreads if self.nthreads is None else self.nthreads
        limit = worker.memory_limit if self.memory_limit is None else self.memory_limit
        return replace(worker, nthreads=nthreads, memory_limit=limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEnd:
    """The end of one worker's process, without loss of its keys."""

    id: str | int
    address: str
    #: greatest process memory of the others, by id
    process_limits: Mapping[str | int, int]
    wait: float  # seconds to wait for running tasks
    collections: tuple[tuple[Key, ...], ...] = ()  # row-aligned keys stay together
    concurrent: tuple[str, ...] = ()  # addresses of workers that end with it


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart(WorkerEnd):
    """Another process follows and gets the keys; the nanny may keep them meanwhile."""

    end_tasks: bool = False  # end tasks that still run then, with the former process


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize(Restart):
    """The next process has another size."""

    size: WorkerSize
    #: greatest process memory under a lower limit: with all keys, while they return
    lowered_limits: tuple[int, int] = (0, 0)  # 0: no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Retire(WorkerEnd):
    """The keys stay on the others."""

    #: the worker that replaces it, and the size that it must have by then
    replaced_by: tuple[str | int, WorkerSize] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BringBack(WorkerEnd):
    """A parking worker that an earlier restart left; its keys go to the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds of adaptive scaling."""

    minimum: int
    maximum: float  # inf: any number


@dataclass(frozen=True, slots=True, kw_only=True)
class Trim:
    """Workers that return free memory to their hosts."""

    workers: Mapping[str, str | int]  # ids by address


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Keys with a prefix that only this client holds, and that are released."""

    prefix: str
    excluded: tuple[Key, ...] = ()  # keys that stay


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """The restart of workers at once, with loss of their data and tasks."""

    workers: Mapping[str, str | int]  # ids by address
    all: bool  # whether these are all workers of the cluster
    wait: float  # seconds to wait for running tasks, which end then
    include_other_clients: bool = False  # otherwise data of others refuses it


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One action with its arguments and its price."""

    action: str
    summary: str
    price: Price
    args: object = None  # arguments of the action


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A step that a guard forbids, and why."""

    step: Step
    guard: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Ordered steps of one phase, and the refused ones."""

    phase: str = ""
    steps: tuple[Step, ...] = ()
    refused: tuple[Refusal, ...] = ()
    needs: tuple[str, ...] = ()  # facts that further planning needs
    notes: tuple[str, ...] = ()  # running tasks for which it waits


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of an enacted step."""

    nbytes: int | None = None  # transferred bytes
    not_done: str = ""  # what could not be done, and why; empty: all was done
    details: str = ""  # details, as text
    count: int | None = None  # workers, keys or collections that were finished
    lost: int | None = None  # keys; None: not known, or the action can lose none
    unchanged: bool = False  # nothing was changed, or all was undone


def attach_result(error: BaseException, result: Result) -> None:
    """Attach the result of an interrupted step to the error."""
    error.clustertune_result = result  # type: ignore[attr-defined]


def attached_result(error: BaseException) -> Result | None:
    """Return the result of the step that this error has interrupted, if known."""
    result: Result | None = getattr(error, "clustertune_result", None)
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Result):
    """A step and its result, as far as it is known."""

    step: Step
    status: str  # done, partly, skipped, failed
    seconds: float | None = None
    reason: str = ""  # why it was not done, or only in part


# --- the port -------------------------------------------------------------------------


class Cluster(Protocol):
    """The port through which actions and the loop of ``prepare`` use a cluster.

    It has two implementations: :mod:`clustertune.actions.cluster.live` and the cluster
    in memory of the tests.
    """

    async def open(
        self, workers: Sequence[str | int] | None, *, needs: Collection[str]
    ) -> None:
        """Check that the request is possible for these workers; None: for all."""

    def lease(self, label: str, notify: Notify) -> AbstractAsyncContextManager[None]:
        """Let no other plan run during the block."""

    async def look(self, notify: Notify) -> View:
        """Read the current state of cluster and data."""

    async def load(self, load: Load, notify: Notify) -> Result:
        """Load all lazy collections in one computation."""

    async def scale(self, n_workers: int, notify: Notify) -> Result:
        """Scale the cluster to ``n_workers`` and wait until they run."""

    async def adapt(self, bounds: Bounds, notify: Notify) -> Result:
        """Change the bounds of adaptive scaling."""

    async def rechunk(self, recut: Rechunk, notify: Notify) -> Result:
        """Make new partitions, each on its target; they replace the old ones."""

    async def move(self, moves: Moves, notify: Notify) -> Result:
        """Copy, confirm, drop: move every key to its target."""

    async def restart(self, args: WorkerEnd, notify: Notify) -> Result:
        """Empty a worker, restart it, and return its keys; or close it."""

    async def trim(self, trim: Trim, notify: Notify) -> Result:
        """Have workers return free memory."""

    async def release(self, release: Release, notify: Notify) -> Result:
        """Release keys of clients."""

    async def drop(self, drop: Drop, notify: Notify) -> Result:
        """Restart all workers at once, and lose their data."""

    async def finish(self, view: View) -> None:
        """Complete the prepared collections, and keep them on their workers."""


def _proposes_nothing(_: tuple[Finding, ...], __: View) -> Iterator[Step]:
    yield from ()


@dataclass(frozen=True, slots=True)
class Action:
    """One kind of change to a cluster."""

    #: carries out one step
    enact: Callable[[Step, Cluster, Notify], Awaitable[Result]]
    #: returns steps that fix findings (pure)
    propose: Callable[[tuple[Finding, ...], View], Iterator[Step]] = _proposes_nothing
