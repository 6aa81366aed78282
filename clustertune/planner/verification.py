"""Compare two views of a cluster and its data (pure).

:func:`problems` finds violated promises after clustertune has acted. A fingerprint is
small enough for a file: it has the workers one by one, and digests of the data's keys,
bytes and holders. Memory, queues and speeds change all the time and are no part of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import sha256

import numpy as np

from clustertune.core.model import CollectionInfo, Layout, View
from clustertune.core.wording import are, bytes_text, plural, printable, workers_text
from clustertune.planner import layouts
from clustertune.planner.memory import free_memory

# --- problems -------------------------------------------------------------------------


def problems(before: View, after: View) -> tuple[str, ...]:
    """Return what went wrong between two views of the same data.

    - Rows were lost or changed.
    - Collections that had the same row boundaries differ in them.
    - More partitions are spread over several workers than before.
    - Dask's memory manager was left in another state.
    - A worker holds more than fits below its spill threshold, and did not before.
    """
    return (
        *losses(before, after),
        *separations(before, after),
        *_memory_manager(before, after),
        *_over_budget(before, after),
    )


def losses(before: View, after: View) -> tuple[str, ...]:
    """Return which rows were lost, changed, or paired with other rows."""
    found: list[str] = []
    for old, new in zip(before.layouts, after.layouts, strict=True):
        found += _lost(old, new)
        if old.aligned and not new.aligned:
            found.append(f"{new.label}: row boundaries differ, and they agreed before")
    return tuple(found)


def separations(before: View, after: View) -> tuple[str, ...]:
    """Return which layouts have more separated pairs than before."""
    found = []
    for old, new in zip(before.layouts, after.layouts, strict=True):
        if new.loaded and new.aligned:
            now, was = _separated(new, after), _separated(old, before)
            if now > was:
                found.append(
                    f"{new.label}: {now} pairs are separated, {was} were before"
                )
    return tuple(found)


def _separated(layout: Layout, view: View) -> int:
    known = layout.loaded and layout.aligned
    return int(layouts.separated(layout, len(view.now.workers)).sum()) if known else 0


def moves(before: View, after: View) -> tuple[str, ...]:
    """Return which partitions left their workers, and which replicas are missing.

    A surplus replica on another worker is not a move.
    """
    found: list[str] = []
    for old, new in zip(before.layouts, after.layouts, strict=True):
        if not (old.loaded and old.aligned and new.loaded and new.aligned):
            continue
        if len(old.rows) != len(new.rows):
            continue
        was, now = _home_ids(old, before), _home_ids(new, after)
        whole = _whole(new, after)
        pairs = enumerate(zip(was, now, strict=True))
        moved = [i for i, (a, b) in pairs if a != b and (i, a) not in whole]
        found += _missing_replicas(new, was, moved)
        if moved:
            i = moved[0]
            places = f"{workers_text([was[i]])} to {workers_text([now[i]])}"
            found.append(
                f"{plural(len(moved), 'partition')} of the {new.label} moved, for "
                f"example number {i} from {places}"
            )
    return tuple(found)


def without_remainder(view: View) -> View:
    """Return the view without the rows that were left out as a remainder."""
    layouts = tuple(
        replace(x, collections=tuple(replace(m, remainder=0) for m in x.collections))
        for x in view.layouts
    )
    return replace(view, layouts=layouts)


def _whole(layout: Layout, view: View) -> set[tuple[int, str | int]]:
    """Return pairs of a partition and the id of a worker that holds all of it."""
    there = layouts.held_bytes_by_worker(layout, len(view.now.workers))
    whole = there.nbytes == layouts.partition_bytes(layout)[there.partition]
    ids = [view.now.workers[i].id for i in there.worker[whole].tolist()]
    return set(zip(there.partition[whole].tolist(), ids, strict=True))


def _missing_replicas(
    layout: Layout, was: list[str | int], moved: list[int]
) -> Iterator[str]:
    """Yield the workers that lost their replica of an eval set."""
    if not layouts.is_copied(layout):
        return
    full = set(np.flatnonzero(layout.rows > 0).tolist())
    missing = {was[i] for i in full} - {was[i] for i in full.difference(moved)}
    if missing:
        ids = sorted(missing, key=str)
        yield f"{workers_text(ids)} lost the replica of {layout.label}"


def _home_ids(layout: Layout, view: View) -> list[str | int]:
    """Return the id of the home of each partition."""
    home = layouts.home_workers(layout, len(view.now.workers)).tolist()
    return [view.now.workers[i].id if i >= 0 else "none" for i in home]


def _lost(old: Layout, new: Layout) -> Iterator[str]:
    before = {m.label: m for m in old.collections}
    for label in before.keys() - {m.label for m in new.collections}:
        yield f"{label} is missing"
    times = layouts.copies(new) / layouts.copies(old)
    for now in new.collections:
        was = before.get(now.label)
        if was is None:
            continue  # this call has made the collection
        if not now.loaded:
            if was.loaded:
                yield f"{now.label} is not in memory, and it was before"
            continue
        n_held = 0
        if now.holders is not None:  # np.unique takes ten times as long
            n_held = int(np.count_nonzero(np.bincount(now.holders[0])))
        if n_held < len(now.keys):
            lost = plural(len(now.keys) - n_held, "partition")
            yield f"no worker holds {lost} of {now.label}"
        if was.loaded and was.keys != now.keys and not now.made_here:
            yield f"{now.label} has other keys than before"
        yield from _changed_rows(was, now, times)


def _changed_rows(
    was: CollectionInfo, now: CollectionInfo, times: float
) -> Iterator[str]:
    """Yield changes of row counts; the remainder and a rechunk are no change.

    ``times`` is the expected ratio of row counts, because eval sets may be replicated.
    """
    if was.rows is None:
        return
    if now.rows is None:
        yield f"rows of {now.label} were known before and cannot be counted now"
        return
    if was.keys == now.keys and not np.array_equal(was.rows, now.rows):
        yield f"partitions of {now.label} have other rows than before"
        return
    had = int((was.rows.sum() + was.remainder) * times)
    has = int(now.rows.sum() + now.remainder)
    if had != has:
        yield f"{now.label} had {had:,} rows and has {has:,}"


def _memory_manager(before: View, after: View) -> Iterator[str]:
    if before.now.memory_manager != after.now.memory_manager:
        state = "runs" if after.now.memory_manager else "does not run"
        yield f"Dask's memory manager {state}, unlike before"


def _over_budget(before: View, after: View) -> Iterator[str]:
    if not all(x.loaded for x in after.layouts):
        return
    ids = [w.id for w in before.now.workers]
    amounts = layouts.held_bytes(before.layouts, len(ids)).tolist()
    had = dict(zip(ids, amounts, strict=True))
    has = layouts.held_bytes(after.layouts, len(after.now.workers))
    for worker, most, n in zip(after.now.workers, free_memory(after), has, strict=True):
        if n > most and n > had.get(worker.id, 0):
            yield f"worker {worker.id} holds {n:,} bytes, but only {int(most):,} fit"


# --- fingerprints ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenWorker:
    """A worker in a fingerprint."""

    id: str | int
    address: str  # another one after a restart
    status: str
    nthreads: int
    memory_limit: int  # bytes; 0: none is set

    @property
    def state(self) -> str:
        """Describe what may change while the process continues."""
        limit = bytes_text(self.memory_limit) if self.memory_limit else "no limit"
        return f"{printable(self.status)}, {plural(self.nthreads, 'thread')}, {limit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenData:
    """A collection; values that are unknown before it is loaded are empty."""

    label: str
    partitions: int
    loaded: bool
    keys: str  # digest of its keys, in order
    nbytes: str  # digest of the bytes of each partition
    holders: str  # digest of the workers, by id, that hold each partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """The cluster and the data for which a plan was made."""

    scheduler: str  # its id, which each start changes
    address: str
    workers: tuple[SeenWorker, ...]
    data: tuple[SeenData, ...]
    #: task overhead in seconds, which decides the number of partitions; None: unknown
    overhead: float | None


def fingerprint(scheduler: str, view: View) -> Fingerprint:
    """Return the fingerprint of a view of the scheduler with this id."""
    now = view.now
    return Fingerprint(
        scheduler=scheduler,
        address=now.scheduler,
        workers=tuple(
            SeenWorker(
                id=w.id,
                address=w.address,
                status=w.status,
                nthreads=w.nthreads,
                memory_limit=w.memory_limit,
            )
            for w in now.workers
            if not w.parking
        ),
        data=tuple(_seen_data(m, view) for x in view.layouts for m in x.collections),
        overhead=now.overhead,
    )


def _seen_data(collection: CollectionInfo, view: View) -> SeenData:
    holders = ""
    if collection.holders is not None:
        ids = [str(w.id) for w in view.now.workers]
        partition, worker = (x.tolist() for x in collection.holders)
        holders = _digest(sorted(zip(partition, (ids[w] for w in worker), strict=True)))
    known = collection.nbytes is not None
    return SeenData(
        label=collection.label,
        partitions=collection.n_partitions,
        loaded=collection.loaded,
        keys=_digest([str(key) for key in collection.keys]),
        nbytes=_digest(np.asarray(collection.nbytes).tolist()) if known else "",
        holders=holders,
    )


def _digest(things: object) -> str:
    return sha256(repr(things).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def differences(was: Fingerprint, now: Fingerprint) -> Iterator[str]:
    """Yield the differences of two fingerprints of one scheduler as texts."""
    before = {w.id: w for w in was.workers}
    after = {w.id: w for w in now.workers}
    if gone := [id for id in before if id not in after]:
        yield f"{workers_text(gone)} {are(gone)} gone"
    if new := [id for id in after if id not in before]:
        yield f"{workers_text(new)} {are(new)} new"
    both = [(before[id], after[id]) for id in before if id in after]
    if restarted := [w.id for w, x in both if w.address != x.address]:
        verb = "was" if len(restarted) == 1 else "were"
        yield f"{workers_text(restarted)} {verb} restarted"
    for w, x in both:
        if w.state != x.state:
            yield f"{workers_text([w.id])} is now {x.state}, and was {w.state}"
    data = {d.label: d for d in now.data}
    for d in was.data:
        if d.label not in data:
            yield f"{printable(d.label)} is missing"
        elif text := _changed(d, data[d.label]):
            yield f"{printable(d.label)} {text}"


def _changed(was: SeenData, now: SeenData) -> str:
    if was.keys != now.keys:
        return f"has other partitions: {now.partitions}, and it had {was.partitions}"
    if was.loaded != now.loaded:
        return "is now in memory" if now.loaded else "is no longer in memory"
    if was.nbytes != now.nbytes:
        return "has partitions of other sizes"
    return "is on other workers" if was.holders != now.holders else ""
