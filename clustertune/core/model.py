"""What clustertune sees, says and does, as plain frozen data.

Units, everywhere in the package: bytes, seconds, epoch seconds, rows, fractions from
0 to 1. Sizes and durations as text (``"2 GiB"``, ``"30s"``) are converted where they
enter. Nothing here imports Dask: monitor and executor translate, and everything in
between (checks, planner, placement, report) is a pure function over these values.

What is not known is :class:`Unknown` with the reason, never a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from clustertune.core import environment
from clustertune.core.profiles import Profile as Profile
from clustertune.core.snapshots import Burden as Burden
from clustertune.core.snapshots import ClientFacts as ClientFacts
from clustertune.core.snapshots import Details as Details
from clustertune.core.snapshots import Holder as Holder
from clustertune.core.snapshots import Holding as Holding
from clustertune.core.snapshots import Pool as Pool
from clustertune.core.snapshots import Prefix as Prefix
from clustertune.core.snapshots import Published as Published
from clustertune.core.snapshots import Room as Room
from clustertune.core.snapshots import Run as Run
from clustertune.core.snapshots import Snapshot as Snapshot
from clustertune.core.snapshots import Survey as Survey
from clustertune.core.snapshots import Thresholds as Thresholds
from clustertune.core.snapshots import Unknown as Unknown
from clustertune.core.snapshots import Unmet as Unmet
from clustertune.core.snapshots import WorkerFacts as WorkerFacts
from clustertune.core.snapshots import WorkerSnapshot as WorkerSnapshot
from clustertune.core.wording import bytes_text, plural

Key = str | int | float | tuple[Any, ...]
"""A Dask key."""

ORDER = "row_order"
"""Label of the numbers that rows had before they were put in another order."""

COPIED = "copied"
"""Start of the names of collections that every worker has a replica of."""

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.float64]

Notify = Callable[[str, "float | None"], None]
"""Told of progress on long work: what is going on, and the fraction done or None."""


# --- what we see: the data ----------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """What a collection has to become, where it is not what was asked for."""

    kind: str  # "array", "dataframe" or "series"
    dtype: str  # of its numbers
    row_bytes: int | None  # bytes of a row then; None: unknown
    columns: tuple[Any, ...] = ()  # of a frame that stays one: those that change
    categories: tuple[tuple[Any, Any], ...] = ()  # and (column, type) of categories
    nullable: bool = False  # may lack values, which become NaN
    fixed: int = 0  # bytes of each piece of a frame besides its rows

    def __str__(self) -> str:
        kinds = {
            "array": f"an Array of {self.dtype}",
            "dataframe": f"a DataFrame with {self.dtype} for numbers",
            "series": f"a Series of {self.dtype}",
        }
        if not self.categories:
            return kinds[self.kind]
        lists = "one list of categories for each column"
        return f"{kinds[self.kind]} and {lists}" if self.columns else f"with {lists}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What the values of a collection are like, by piece.

    As far as ``deep=True``, or the workload, asks for it: what functions of
    :mod:`clustertune.remote.worker.content` answer, under the same names.
    """

    pieces: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Member:
    """One of the row-aligned collections of a layout: X, or y, or a weight.

    Arrays have one entry per piece, in row order. ``rows`` is None as long as they are
    unknown (data that is not loaded and does not say). ``nbytes`` and the holders are
    None as long as the data is not in memory. ``holders`` is a pair of arrays
    (piece index, worker index into ``Snapshot.workers``), one entry per copy.
    """

    label: str  # "X", "y", "sample_weight", "eval_set[0].X", ...
    kind: str  # "array", "dataframe" or "series"
    keys: tuple[Key, ...]
    loaded: bool
    rows: Int64s | None
    nbytes: Int64s | None
    holders: tuple[Int64s, Int64s] | None
    columns: int | None  # columns of a row; None: unknown
    column_blocks: int = 1  # 1: every piece has all columns
    itemsize: int | None = None  # bytes of the widest number in a row; None: no number
    fixed: int = 0  # bytes of each piece of a frame besides its rows: index, names
    total_bytes: int | None = None  # what the collection says of itself before loading
    conversion: Conversion | None = None  # what it has to become
    derived: bool = False  # not loaded, but made of data that is in memory
    embedded: int | None = None  # bytes of data in the graph of one that is not loaded
    scattered: int = 0  # pieces in memory that cannot be computed again
    #: of a frame: by type of column, how many there are and the name of the first
    types: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    contents: Contents | None = None  # None: not asked
    # made by this call: its pieces are freed once nothing needs them,
    ours: bool = False
    # unless another collection or client holds some of them
    shared: bool = False
    aside: int = 0  # rows that are set aside, so that workers have as many

    @property
    def n_pieces(self) -> int:
        return len(self.keys) // self.column_blocks


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """Pieces of one set of row-aligned collections: rows, bytes, holders."""

    label: str  # "training data" or "eval_set[0]"
    members: tuple[Member, ...]

    @property
    def loaded(self) -> bool:
        return all(m.loaded for m in self.members)

    @property
    def aligned(self) -> bool:
        """Whether every member is known to have the same rows in every piece."""
        first = self.members[0].rows
        return (
            first is not None
            and all(m.column_blocks == 1 for m in self.members)
            and all(
                m.rows is not None and np.array_equal(m.rows, first)
                for m in self.members
            )
        )

    @property
    def rows(self) -> Int64s:
        """Rows per piece, of a layout that is aligned."""
        rows = self.members[0].rows
        if rows is None or not self.aligned:
            raise ValueError(f"{self.label} has no common row boundaries")
        return rows

    @property
    def nbytes(self) -> int:
        """Bytes of all members, of a layout that is loaded."""
        return sum(int(m.nbytes.sum()) for m in self.members if m.nbytes is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What the user asked for, already checked and in plain units."""

    workload: Profile
    chosen: bool = True  # the workload was, by name or estimator
    imported: frozenset[str] = frozenset()  # libraries that the client's process has
    n_workers: int | str | None = None  # "fit": as many as memory needs
    workers: frozenset[str | int] | None = None  # ids; None: all
    tolerance: float = 0.05  # rows of the fullest worker above its share
    memory_fraction: float = 0.7  # of a worker's limit that a fit may fill
    strict: bool = False  # what the fit will lack in memory is an error
    persist: bool | None = None  # load what is not; None: as the workload needs it
    rechunk: bool | int = True  # cut where needed; never; or into so many pieces
    kept: tuple[int, int] | None = None  # rows and pieces of the fit before this one
    order: str = ""  # of rows: "sort" by qid, shuffle "rows" or "pieces"; "": as it is
    seed: int = 0  # of the shuffle
    restart: bool | str = False  # all workers; "auto": those that findings name; none
    restarted: frozenset[str | int] = frozenset()  # ids, in this call
    trimmed: frozenset[str | int] = frozenset()  # ids, in this call
    release_inputs: bool = False  # free old pieces that are cut, one by one
    evaluated: tuple[str, ...] = ()  # eval sets that are the training data
    to: str | None = None  # "array": frames and series become arrays
    dtype: str | None = None  # of the numbers in features
    only: frozenset[str] = frozenset()  # actions that may be taken; none: all

    def allows(self, action: str) -> bool:
        """Whether this call may take an action."""
        return not self.only or action in self.only

    @property
    def changes(self) -> bool:
        """Whether something was asked for that only loaded data can become."""
        pieces = not isinstance(self.rechunk, bool) or self.release_inputs
        return bool(self.to or self.dtype or self.order or pieces)

    @property
    def cutting(self) -> str:
        """The action that cuts pieces, if cutting is allowed; for ``fixed_by``."""
        return "" if self.rechunk is False else "rechunk"


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a check sees."""

    snapshots: tuple[Snapshot, ...]  # oldest first; at least one
    goal: Goal
    layouts: tuple[Layout, ...] = ()  # the training data first, then eval sets
    runs: tuple[Run, ...] | None = None  # past ones, oldest first; None: not asked
    #: bytes on workers, by id, of given pieces of which this call has made others: in
    #: memory until the caller's names let them go
    replaced: Mapping[str | int, int] = field(default_factory=dict)
    #: partitions of the training data as it was given; None: not known
    given: int | None = None
    #: ids of the workers that train, where too little data is there for all; None: all
    trainers: frozenset[str | int] | None = None

    @property
    def now(self) -> Snapshot:
        return self.snapshots[-1]

    @property
    def loads(self) -> bool:
        """Whether what is not in memory is to be loaded.

        A library that reads its data once takes it as it comes, unless some of it is
        there already.
        """
        if self.goal.persist is not None:
            return self.goal.persist
        there = any(m.loaded for x in self.layouts for m in x.members)
        return self.goal.workload.persist or there or self.goal.changes

    def eligible(self, worker: WorkerSnapshot) -> bool:
        """Whether this worker may hold training data: wanted, running, and needed."""
        wanted = self.goal.workers is None or worker.id in self.goal.workers
        needed = self.trainers is None or worker.id in self.trainers
        return wanted and needed and worker.running

    def lasting(
        self, which: Callable[[Snapshot], Iterable[str | int]]
    ) -> tuple[frozenset[str | int], float]:
        """Of the ids that ``which`` names, those that it has named for longest.

        Returns
        -------
        ids, seconds
            Named in every snapshot of the last ``seconds``, as far as they go back.
        """
        longest = still = frozenset(which(self.now))
        since = self.now.time
        for snapshot in reversed(self.snapshots):
            still &= frozenset(which(snapshot))
            if not still:
                break
            longest, since = still, snapshot.time
        return longest, self.now.time - since

    @property
    def eligible_workers(self) -> tuple[WorkerSnapshot, ...]:
        return tuple(w for w in self.now.workers if self.eligible(w))


# --- what we say --------------------------------------------------------------------


class Severity(IntEnum):
    """How bad a finding is; ``unknown`` is one that could not be decided."""

    unknown = 0
    info = 1
    warning = 2
    critical = 3

    def __str__(self) -> str:
        return self.name


Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One condition that a check found, on some subject.

    A check gives severity, message and evidence; the name of the check and its remedy
    are added by the engine, which knows them.
    """

    severity: Severity
    message: str
    subject: tuple[str | int, ...] = ()  # worker ids, or labels of collections
    evidence: Mapping[str, Scalar] = field(default_factory=dict)
    check: str = ""
    remedy: str = ""
    fixed_by: str = ""  # the action that can put it right in this call, if one can


# --- what we do ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Flow:
    """What travels and is copied in a step, by worker in the order of the snapshot."""

    into: Int64s  # bytes that it receives
    out: Int64s  # bytes that it sends
    made: Int64s  # bytes that it copies, or makes anew
    seconds: float  # that the step takes besides


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What a step is predicted to cost; None is not known beforehand."""

    nbytes: int | None  # bytes that travel between workers
    seconds: float | None
    peak: int | None = None  # bytes by which one worker's memory rises at most
    at_risk: str = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Move:
    """Where the keys of one collection go; they keep their names."""

    label: str
    keys: tuple[Key, ...]
    targets: Int64s  # per key: index into ``Moves.workers``


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moves:
    """A set of moves that belong together."""

    workers: tuple[str, ...]  # addresses
    ceilings: tuple[int, ...]  # bytes of process memory to fill at most; 0: any
    moves: tuple[Move, ...]

    @property
    def count(self) -> int:
        return sum(len(m.keys) for m in self.moves)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cut:
    """The new pieces of one collection, as row ranges of the keys that it has.

    Arrays have one entry per part, in the order of new pieces, then rows, then blocks
    of columns.
    """

    label: str
    keys: tuple[Key, ...]
    new: Int64s  # index of the new piece
    key: Int64s  # index into ``keys``
    start: Int64s  # first row in that key
    stop: Int64s  # one past the last
    owner: Int64s  # index into ``Recut.workers``: who holds that key
    conversion: Conversion | None = None  # what its pieces become on the way


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recut:
    """New pieces of collections that belong together, and where each is to be."""

    workers: tuple[str, ...]  # addresses
    rows: Int64s  # of every new piece
    targets: Int64s  # per new piece: index into ``workers``
    cuts: tuple[Cut, ...]
    freed: tuple[str, ...] = ()  # labels of which the old pieces go as they are cut
    aside: int = 0  # rows of the last new piece, which is no part of the data then
    copies: int = 1  # how often each row is in the new pieces
    shortage: str = ""  # why it does not fit the workers' memory, if it does not
    moves: Moves | None = None  # of what stays as it is, to beside the new pieces


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Source:
    """The pieces of a collection and a worker that holds each."""

    label: str
    keys: tuple[Key, ...]
    owner: Int64s  # per key: index into ``Reorder.workers``


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reorder:
    """Another order of all rows of collections that belong together.

    Every old piece is put in order by itself, and each new one takes some of its rows
    from each: those from ``starts[old, new]`` to ``starts[old, new + 1]``. Then the new
    piece is put in order. With ``by`` that order is the one of a collection's values,
    of equal ones as they were; else it is random.
    """

    layout: str  # label
    workers: tuple[str, ...]  # addresses
    sources: tuple[Source, ...]
    old: Int64s  # rows of every old piece
    rows: Int64s  # of every new piece
    targets: Int64s  # per new piece: index into ``workers``
    starts: Int64s  # (old pieces, new pieces + 1)
    by: str = ""  # label
    seed: int = 0
    whole: Int64s | None = None  # old pieces in their new order; no row changes place


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Load:
    """Where pieces that are not in memory yet are to be loaded.

    Collections that are not named here are loaded where Dask puts them.
    """

    workers: tuple[str, ...]  # addresses
    targets: Mapping[str, Int64s]  # by label, per key: index into ``workers``
    #: bytes for all of it on each worker that may have some; None: it fits, as its size
    #: says, or it is not known when workers will spill
    room: Float64s | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """With what a worker is to be started; None, and no variable: as it was."""

    nthreads: int | None = None
    memory_limit: int | None = None  # bytes
    env: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [] if self.nthreads is None else [plural(self.nthreads, "thread")]
        parts += [] if self.memory_limit is None else [bytes_text(self.memory_limit)]
        parts += environment.text(self.env)
        return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """One worker that is to be restarted without losing what it holds."""

    id: str | int
    address: str
    ceilings: Mapping[str | int, int]  # by id of the others: process bytes to fill
    wait: float  # seconds that running tasks are waited for
    collections: tuple[tuple[Key, ...], ...] = ()  # row-aligned: pieces go together
    beside: tuple[str, ...] = ()  # addresses of others that are away at the same time
    size: Size | None = None  # with what it is started from then on; None: as it was
    #: bytes of process memory with a lower limit: with all its keys, while they return
    lines: tuple[int, int] = (0, 0)  # 0: any
    retire: bool = False  # it is closed instead, and what it held stays on the others
    parking: bool = False  # what it holds is kept in its nanny meanwhile
    #: only while its memory needs it, growing by so many bytes in a run; None: anyway
    growth: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Least and most workers that adaptive scaling is to keep."""

    least: int
    most: float  # inf: any number


@dataclass(frozen=True, slots=True, kw_only=True)
class Trim:
    """Workers whose memory is to be given back to their hosts."""

    workers: Mapping[str, str | int]  # ids by address


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Keys in memory with some prefix that are to be released."""

    prefix: str
    kept: tuple[Key, ...] = ()  # of these none
    include_other_clients: bool = False  # else only what no other client wants
    together: tuple[str, ...] = ()  # all prefixes that are released in this call


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """All workers restarted at once, with the loss of all that they hold."""

    workers: Mapping[str, str | int]  # ids by address
    wait: float  # seconds that running tasks are waited for
    include_other_clients: bool = False  # else only where nobody else has data


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One action on named workers or pieces, with its price."""

    action: str
    summary: str  # what it does, in words
    price: Price
    gain: str = ""  # what it is good for, in words
    args: object = None  # what the action itself needs to enact it


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
    needs: tuple[str, ...] = ()  # what must be known before more can be planned
    notes: tuple[str, ...] = ()  # what it would interrupt or wait for


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Bytes of a worker's process around a step, as it measured them itself."""

    worker: str | int  # id
    before: int | None  # None: not known
    after: int | None
    keys: int | None = None  # that a restart moved away and back


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What an action says after enacting a step."""

    nbytes: int | None = None  # bytes that travelled
    undone: str = ""  # what could not be done, and why; empty: all was done
    said: str = ""  # what there is to say of what was done
    count: int | None = None  # workers, keys or collections that were finished
    lost: int | None = None  # keys; None: not known, or the action can lose none
    unchanged: bool = False  # nothing was changed, or what was begun is undone
    measured: tuple[Measured, ...] = ()  # workers before and after


def land(error: BaseException, result: Result) -> None:
    """Note on an error what became of the step that it has interrupted."""
    error.clustertune_result = result  # type: ignore[attr-defined]


def landed(error: BaseException) -> Result | None:
    """Return what became of the step that this error has interrupted, if known."""
    result: Result | None = getattr(error, "clustertune_result", None)
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a step."""

    step: Step
    status: str  # done, partly, skipped, not needed, failed
    seconds: float | None = None
    nbytes: int | None = None
    reason: str = ""
    count: int | None = None  # workers, keys or collections that were finished
    lost: int | None = None  # keys; None: not known
    measured: tuple[Measured, ...] = ()  # workers before and after


# --- the door to a cluster ----------------------------------------------------------


class Cluster(Protocol):
    """The port: all that actions and the main loop need of a cluster.

    There are two: the live one (:mod:`clustertune.actions.cluster.live`) and the
    in-memory one (:mod:`clustertune.testing`).
    """

    async def look(self, notify: Notify) -> View:
        """See the cluster and the data as they are now."""

    async def overhead(self, view: View) -> float | None:
        """Seconds that a task takes beside its work; None: it cannot be told now."""

    async def persist(self, load: Load, notify: Notify) -> Result:
        """Load everything given that is not in memory yet, jointly."""

    async def scale(self, n_workers: int, notify: Notify) -> Result:
        """Bring the cluster to ``n_workers`` and wait until they run."""

    async def adapt(self, bounds: Bounds, notify: Notify) -> Result:
        """Have adaptive scaling keep to other bounds."""

    async def recut(self, recut: Recut, notify: Notify) -> Result:
        """Make the new pieces, each on its target; they replace those that were."""

    async def reorder(self, reorder: Reorder, notify: Notify) -> Result:
        """Put rows in another order; ``row_order`` says which one they had."""

    async def move(self, moves: Moves, notify: Notify) -> Result:
        """Copy, confirm, drop: bring every key to its target and to it alone."""

    async def restart(self, restart: Restart, notify: Notify) -> Result:
        """Empty a worker, restart it, and bring back what it held; or close it."""

    async def trim(self, trim: Trim, notify: Notify) -> Result:
        """Have workers give memory back that they do not need."""

    async def release(self, release: Release, notify: Notify) -> Result:
        """Have clients want keys no more."""

    async def drop(self, drop: Drop, notify: Notify) -> Result:
        """Restart all workers at once, and forget what they held."""


class Action(Protocol):
    """The contract of a module in ``actions/``."""

    def propose(self, findings: tuple[Finding, ...], view: View) -> Iterator[Step]:
        """Steps that would remedy the findings (pure)."""

    async def enact(self, step: Step, cluster: Cluster, notify: Notify) -> Result:
        """Carry one of them out."""
