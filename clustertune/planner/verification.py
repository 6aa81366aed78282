"""Whether everything that must hold after clustertune has acted does hold (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from clustertune.core.model import Layout, Member, View
from clustertune.core.wording import plural, workers_text
from clustertune.planner import layouts, replicas
from clustertune.planner.memory import room
from clustertune.planner.sizes import held_bytes


def problems(before: View, after: View) -> tuple[str, ...]:
    """What went wrong between two views of the same data; empty if nothing did.

    Nothing is lost (every piece is there with the rows it had, or new ones with as many
    rows in all), no pair is wrong (members share their row boundaries, as they did),
    none is apart that was not, Dask's memory manager is as it was, and no worker holds
    more than fits below its spill line unless it did before.
    """
    return (
        *losses(before, after),
        *separations(before, after),
        *_left_behind(before, after),
        *_over_budget(before, after),
    )


def losses(before: View, after: View) -> tuple[str, ...]:
    """What of it breaks a promise: rows lost, changed, or paired with others."""
    found: list[str] = []
    for old, new in zip(before.layouts, after.layouts, strict=True):
        found += _lost(old, new)
        if old.aligned and not new.aligned:
            found.append(f"{new.label}: row boundaries agreed before and do not now")
    return tuple(found)


def separations(before: View, after: View) -> tuple[str, ...]:
    """Which pairs are apart that were not."""
    pairs = zip(before.layouts, after.layouts, strict=True)
    return tuple(text for o, n in pairs for text in _apart(o, n, before, after))


def moves(before: View, after: View) -> tuple[str, ...]:
    """Which pieces the workers no longer hold that held them, and who lacks them.

    A surplus copy on another worker is no move.
    """
    found: list[str] = []
    for old, new in zip(before.layouts, after.layouts, strict=True):
        if not (old.loaded and old.aligned and new.loaded and new.aligned):
            continue
        if len(old.rows) != len(new.rows):
            continue
        was, now = _places(old, before), _places(new, after)
        whole = _whole(new, after)
        gone = [i for i, (a, b) in enumerate(zip(was, now, strict=True)) if a != b]
        gone = [i for i in gone if (i, was[i]) not in whole]
        found += _lacking(new, was, {i for i in range(len(was)) if i not in gone})
        if gone:
            i = gone[0]
            found.append(
                f"{plural(len(gone), 'piece')} of the {new.label} moved, for example "
                f"number {i} from {workers_text([was[i]])} to {workers_text([now[i]])}"
            )
    return tuple(found)


def without_aside(view: View) -> View:
    """The view of the data alone, without the rows that were set aside of it."""
    layouts = tuple(
        replace(x, members=tuple(replace(m, aside=0) for m in x.members))
        for x in view.layouts
    )
    return replace(view, layouts=layouts)


def _whole(layout: Layout, view: View) -> set[tuple[int, str | int]]:
    """Pieces and ids of workers that hold all of it."""
    there = layouts.held(layout, len(view.now.workers))
    whole = there.nbytes == layouts.piece_bytes(layout)[there.piece]
    ids = [view.now.workers[i].id for i in there.worker[whole].tolist()]
    return set(zip(there.piece[whole].tolist(), ids, strict=True))


def _lacking(layout: Layout, was: list[str | int], stay: set[int]) -> Iterator[str]:
    """Which workers lack an eval set of which each had a copy."""
    if not replicas.is_copied(layout):
        return
    given = np.flatnonzero(layout.rows > 0).tolist()
    lacking = {was[i] for i in given} - {was[i] for i in given if i in stay}
    if lacking:
        ids = sorted(lacking, key=str)
        yield f"{workers_text(ids)} lost the copy of {layout.label}"


def _places(layout: Layout, view: View) -> list[str | int]:
    """By piece the id of the worker that holds most of it."""
    home = layouts.homes(layout, len(view.now.workers)).tolist()
    return [view.now.workers[i].id if i >= 0 else "none" for i in home]


def _lost(old: Layout, new: Layout) -> Iterator[str]:
    before = {m.label: m for m in old.members}
    for label in before.keys() - {m.label for m in new.members}:
        yield f"{label} was there and is not now"
    times = replicas.copies(new) / replicas.copies(old)
    for now in new.members:
        was = before.get(now.label)
        if was is None:
            continue  # was made by this call
        if not now.loaded:
            if was.loaded:
                yield f"{now.label} was in memory and is not now"
            continue
        there = np.zeros(len(now.keys), dtype=bool)
        if now.holders is not None:
            there[now.holders[0]] = True
        if not there.all():
            yield f"{int((~there).sum())} pieces of {now.label} are nowhere in memory"
        if was.loaded and was.keys != now.keys and not now.ours:
            yield f"{now.label} has other keys than before"
        yield from _other_rows(was, now, times)


def _other_rows(was: Member, now: Member, times: float) -> Iterator[str]:
    """Rows that are not there any more, but for those set aside, and copies."""
    if was.rows is None:
        return
    if now.rows is None:
        yield f"rows of {now.label} were known before and cannot be counted now"
        return
    if was.keys == now.keys and not np.array_equal(was.rows, now.rows):
        yield f"pieces of {now.label} have other rows than before"
        return
    had = int((was.rows.sum() + was.aside) * times)
    has = int(now.rows.sum() + now.aside)
    if had != has:
        yield f"{now.label} had {had:,} rows and has {has:,}"


def _apart(old: Layout, new: Layout, before: View, after: View) -> Iterator[str]:
    if not (new.loaded and new.aligned):
        return
    apart = int(layouts.apart(new, len(after.now.workers)).sum())
    known = old.loaded and old.aligned
    was = int(layouts.apart(old, len(before.now.workers)).sum()) if known else 0
    if apart > was:
        yield f"{new.label}: {apart} pairs are apart, {was} were before"


def _left_behind(before: View, after: View) -> Iterator[str]:
    was, now = before.now.memory_manager, after.now.memory_manager
    if was != now:
        state = "runs" if now else "does not run"
        yield f"Dask's memory manager {state}, unlike before"


def _over_budget(before: View, after: View) -> Iterator[str]:
    if not all(x.loaded for x in after.layouts):
        return
    had = dict(
        zip(
            (w.id for w in before.now.workers),
            held_bytes(before.layouts, len(before.now.workers)).tolist(),
            strict=True,
        )
    )
    has = held_bytes(after.layouts, len(after.now.workers))
    for worker, most, n in zip(after.now.workers, room(after), has, strict=True):
        if n > most and n > had.get(worker.id, 0):
            yield f"worker {worker.id} holds {n:,} bytes, {int(most):,} fit"
