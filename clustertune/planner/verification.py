"""Compare two views of a cluster and its data (pure).

:func:`problems` finds violated promises after clustertune has acted.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clustertune.core.model import CollectionInfo, Layout, View
from clustertune.core.wording import plural, workers_text
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
    """Yield changes of row counts; a rechunk is no change.

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
    had, has = int(was.rows.sum() * times), int(now.rows.sum())
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
