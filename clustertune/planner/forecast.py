"""Forecast the memory of a fit on every worker, and the changes that reduce it (pure).

During a fit, a worker's process has its unmanaged memory, or that of a process that has
imported the library if that is more. It also has Dask's other keys that are not
released by then, and a multiple of its share of the given data. If the library copies
eval sets to all workers, each has all of them. The sum may be ``memory_fraction`` of
the worker's limit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

import numpy as np

from clustertune.core.model import (
    CollectionInfo,
    Float64s,
    Layout,
    Profile,
    Unknown,
    View,
    WorkerSnapshot,
)
from clustertune.core.wording import bytes_text, plural, variable
from clustertune.planner import remedies
from clustertune.planner.layouts import collection_bytes, held_bytes, weights
from clustertune.planner.layouts import held_bytes_by_worker as partitions_held
from clustertune.planner.memory import limit, other_bytes, unmanaged_bytes

_ROUNDING = 0.5  # bytes
FLOAT32 = 4  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Changes before a fit; the default changes nothing."""

    float32: bool = False  # cast features of float64
    frugal: bool = False  # use the workload that needs less memory
    release: bool = False  # release all keys except the given data
    n_workers: int | None = None  # like the present ones; None: the expected number
    memory_limit: float = 0.0  # minimum bytes of every worker


AS_IT_IS = Change()


class Demand(NamedTuple):
    """Bytes that a fit takes for its data."""

    divided: float  # in total, divided among the workers by their threads
    copied: float  # on every worker


class Need(NamedTuple):
    """Bytes on one worker."""

    lacking: float  # beyond what the fit may fill
    total: float  # of the process during the fit
    free: float  # for the worker's share of the data
    worker: WorkerSnapshot


class Way(NamedTuple):
    """A change that gives the fit enough memory, and its description."""

    change: Change
    text: str


# --- how much -------------------------------------------------------------------------


def demand(view: View, change: Change = AS_IT_IS) -> Demand | Unknown:
    """Return what the fit takes for all given data, independent of its placement."""
    profile = _profile(view, change)
    divided = copied = 0.0
    for number, layout in enumerate(view.layouts):
        amount = 0.0
        for collection in layout.collections:
            size = _size(collection, change)
            if isinstance(size, Unknown):
                return size
            amount += size
        amount *= profile.multiple(_itemsize(layout.collections[0], change))
        if number and profile.eval_copies:
            copied += amount
        else:
            divided += amount
    return Demand(divided, copied)


def needs(view: View, change: Change = AS_IT_IS) -> list[Need] | Unknown:
    """Return the need of each worker that may train and whose memory is known."""
    wanted = demand(view, change)
    if isinstance(wanted, Unknown):
        return wanted
    due = change.n_workers or expected_workers(view)
    each = wanted.divided * len(view.eligible_workers) / max(1, due)
    threads = weights(view).sum()
    found = []
    for worker, fixed, free in _rooms(view, change, wanted):
        share = each * worker.nthreads / threads
        found.append(Need(share - free, share + fixed, free, worker))
    return found


def _rooms(
    view: View, change: Change, wanted: Demand
) -> Iterator[tuple[WorkerSnapshot, float, float]]:
    """Yield (worker, bytes independent of the number of workers, free bytes)."""
    for worker, other in zip(view.now.workers, _fixed(view, change), strict=True):
        most = limit(worker, view)
        if view.eligible(worker) and not isinstance(most, Unknown):
            may = max(most, change.memory_limit) * view.goal.memory_fraction
            fixed = float(other) + wanted.copied
            yield worker, fixed, may - fixed


def short(found: list[Need]) -> list[Need]:
    """Return the needs of workers that lack memory."""
    return [need for need in found if need.lacking > _ROUNDING]


def peaks(view: View) -> dict[str | int, int]:
    """Predict the process memory of each worker during a fit, by id.

    The prediction uses the present placement. It is empty if data is not loaded.
    """
    if not view.layouts or not all(x.loaded for x in view.layouts):
        return {}
    wanted, profile = demand(view), view.goal.workload
    copied = 0.0 if isinstance(wanted, Unknown) else wanted.copied
    n_workers = len(view.now.workers)
    training = held_bytes(view.layouts[:1], n_workers)
    divided = view.layouts[:1] if profile.eval_copies else view.layouts
    taken = np.zeros(n_workers)
    for layout in divided:
        size = _itemsize(layout.collections[0], AS_IT_IS)
        of_all, of_partitions = profile.parts(size)
        held = held_bytes((layout,), n_workers)
        taken += of_all * held + of_partitions * np.minimum(
            held, _in_work(layout, view)
        )
    trains = training > 0
    base = np.maximum(unmanaged_bytes(view), profile.base_bytes * trains)
    total = base + _kept_bytes(view) + taken + copied * trains
    return {w.id: round(n) for w, n in zip(view.now.workers, total, strict=True)}


def _in_work(layout: Layout, view: View) -> Float64s:
    """Return the bytes that each worker's threads process at a time, at most.

    Each thread is assumed to process the largest partition of its worker.
    """
    there = partitions_held(layout, len(view.now.workers))
    largest = np.zeros(len(view.now.workers), dtype=np.float64)
    np.maximum.at(largest, there.worker, there.nbytes)
    threads = [w.nthreads for w in view.now.workers]
    return largest * np.array(threads, dtype=np.float64)


def _fixed(view: View, change: Change) -> Float64s:
    """Return the bytes of every process during the fit that are not given data."""
    base = np.maximum(unmanaged_bytes(view), _profile(view, change).base_bytes)
    return base if change.release else base + _kept_bytes(view)


def _kept_bytes(view: View) -> Float64s:
    """Return the bytes on every worker of other keys that remain during the fit."""
    replaced = [view.replaced.get(w.id, 0) for w in view.now.workers]
    return np.maximum(0.0, other_bytes(view) - np.array(replaced, dtype=np.float64))


def _profile(view: View, change: Change) -> Profile:
    profile = view.goal.workload
    return profile.frugal or profile if change.frugal else profile


def _size(collection: CollectionInfo, change: Change) -> float | Unknown:
    """Return the bytes of a collection during the fit, after its conversion."""
    size = collection_bytes(collection)
    if isinstance(size, Unknown):
        return size
    wanted = collection.conversion
    if wanted is not None and collection.loaded and collection.rows is not None:
        if wanted.row_bytes is not None:
            size = wanted.row_bytes * int(collection.rows.sum())
    elif change.float32 and _is_wide(collection):
        return size - size * _wide_share(collection) / 2
    return size


def _itemsize(collection: CollectionInfo, change: Change) -> int | None:
    if collection.conversion is not None and collection.loaded:
        return np.dtype(collection.conversion.dtype).itemsize
    if change.float32 and _is_wide(collection):
        return FLOAT32
    return collection.itemsize


def _is_wide(collection: CollectionInfo) -> bool:
    """Return whether ``dtype="float32"`` makes it smaller; it applies to features."""
    features = variable(collection.label) == "X"
    return (
        features
        and collection.conversion is None
        and collection.itemsize == 2 * FLOAT32
    )


def _wide_share(collection: CollectionInfo) -> float:
    """Return the fraction of columns that are cast: those of eight-byte numbers."""
    counts = {name: count for name, (count, _) in collection.types.items()}
    wide = sum(n for name, n in counts.items() if name.lower().endswith("64"))
    return wide / sum(counts.values()) if counts else 1.0


# --- how many workers -----------------------------------------------------------------


def workers_needed(view: View, change: Change = AS_IT_IS) -> int | Unknown | None:
    """Return the fewest workers with which the fit has enough memory.

    New workers are assumed to be like the present ones. None means that no number is
    enough, because a present worker has no free memory.
    """
    if not view.layouts:
        return Unknown("no data is given")
    wanted = demand(view, change)
    if isinstance(wanted, Unknown):
        return wanted
    rooms = [(w.nthreads, free) for w, _, free in _rooms(view, change, wanted)]
    if not rooms:
        return Unknown("the memory of no worker is known")
    if min(free for _, free in rooms) <= 0:
        return None
    each = wanted.divided * len(view.eligible_workers)
    threads = float(weights(view).sum())
    # as many bytes may be missing as in `short`
    limits = [(n, threads * (free + _ROUNDING)) for n, free in rooms]
    return max(1, *(math.ceil(each * n / most) for n, most in limits))


def wanted_workers(view: View) -> int | None:
    """Return the requested number of workers; None: none, or not known yet."""
    wanted = view.goal.n_workers
    if not isinstance(wanted, str):
        return wanted
    enough = workers_needed(view)
    there = len(view.eligible_workers)
    return max(there, enough) if isinstance(enough, int) else None


def expected_workers(view: View) -> int:
    """Return how many workers will train, including those not started yet."""
    now = len(view.eligible_workers)
    return now if view.goal.workers is not None else max(now, wanted_workers(view) or 0)


# --- changes that help ----------------------------------------------------------------


def options(view: View) -> dict[str, Change]:
    """Return possible changes that keep the workers, cheapest first."""
    found = {}
    kept = view.goal.workload.feature_bytes
    collections = [m for x in view.layouts for m in x.collections]
    if any(map(_is_wide, collections)) and (kept is None or kept <= FLOAT32):
        found["float32"] = Change(float32=True)
    if view.goal.workload.frugal is not None:
        found["frugal"] = Change(frugal=True)
    if _other(view):
        found["release"] = Change(release=True)
    return found


def ways(view: View) -> tuple[Way, ...]:
    """Return ways to give a fit enough memory, cheapest first.

    Each way is a single change if one is enough, otherwise a smallest combination.
    """
    changes = [*_same_workers(view), *_more_workers(view), larger_workers(view)]
    return tuple(Way(change, _text(change, view)) for change in changes)


def _same_workers(view: View) -> Iterator[Change]:
    for number, together in enumerate(_together(view)):
        enough = [c for c in together if not short(_known(view, c))]
        if enough:
            yield from enough if number == 1 else enough[:1]
            return


def _more_workers(view: View) -> Iterator[Change]:
    for together in _together(view):
        for change in together:
            n_workers = workers_needed(view, change)
            if isinstance(n_workers, int):
                if n_workers > expected_workers(view):
                    yield replace(change, n_workers=n_workers)
                return


def larger_workers(view: View) -> Change:
    """Return the memory limit that is enough for every worker, rounded up."""
    lacking = short(_known(view, AS_IT_IS))
    most = max((n.total for n in lacking), default=0.0) / view.goal.memory_fraction
    # rounded to one decimal, as bytes_text shows it
    step = max(1.0, 1024.0 ** int(math.log(max(1.0, most), 1024)) / 10)
    return Change(memory_limit=math.ceil((most + 1) / step) * step)


def _together(view: View) -> Iterator[list[Change]]:
    """Yield no change, then each option, then each pair of options, and so on."""
    known = list(options(view).values())
    for size in range(len(known) + 1):
        yield [
            Change(
                float32=any(c.float32 for c in some),
                frugal=any(c.frugal for c in some),
                release=any(c.release for c in some),
            )
            for some in combinations(known, size)
        ]


def fullest(view: View, change: Change) -> int:
    """Return the bytes that the fullest worker needs after the change."""
    return round(max((need.total for need in _known(view, change)), default=0.0))


def _known(view: View, change: Change) -> list[Need]:
    found = needs(view, change)
    return [] if isinstance(found, Unknown) else found


def _other(view: View) -> float:
    """Return the bytes of other keys on workers that may train."""
    return float(_kept_bytes(view)[weights(view) > 0].sum())


def _text(change: Change, view: View) -> str:
    """Describe the change in code that makes it, and its result."""
    arguments = {"dtype": '"float32"'} if change.float32 else {}
    parts = []
    if change.frugal:
        frugal = _profile(view, change)
        arguments["estimator"] = remedies.text(frugal.name)
        parameters = view.goal.workload.frugal_parameters
        parts.append(f"train with {parameters} ({frugal.title})")
    if change.release:
        parts.append(f"`{remedies.release(view)}` for {bytes_text(_other(view))}")
    if change.n_workers is not None:
        if view.goal.workers is None and view.now.can_scale is None:
            arguments["n_workers"] = str(change.n_workers)
        else:
            parts.append(f"start {plural(change.n_workers, 'worker')} of this size")
    if change.memory_limit:
        size = bytes_text(change.memory_limit)
        if _hosts_have(change.memory_limit, view):
            call = f'clustertune.resize_workers(client, memory_limit="{size}")'
            parts.append(f"`{call}`")
        else:
            parts.append(f"start workers with --memory-limit {size.replace(' ', '')}")
    if arguments:
        parts.append(f"`{remedies.prepare(view, **arguments)}`")
    most = bytes_text(fullest(view, change))
    return f"{' and '.join(parts)} (then at most {most} per worker)"


def _hosts_have(size: float, view: View) -> bool:
    """Return whether nannies can set this limit and the hosts have the memory."""
    wanted: Counter[str] = Counter()
    there: dict[str, int] = {}
    for w in view.now.workers:
        if isinstance(w.facts, Unknown) or not w.memory_limit or w.nanny is None:
            return False
        wanted[w.host] += math.ceil(max(size, w.memory_limit))
        there[w.host] = max(there.get(w.host, 0), w.facts.host_memory)
    return all(wanted[host] <= there[host] for host in wanted)
