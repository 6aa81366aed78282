"""Forecast the memory of a fit on every worker, and the changes that reduce it (pure).

The forecast for the process of a worker is the sum of

- its unmanaged memory, but at least ``Profile.base_bytes``, which a process needs that
  has imported the library;
- Dask's other keys;
- a multiple of its share of the given data, or of all eval sets if the library copies
  them to all workers. For training data of libraries with ``Profile.fit_memory`` it is
  the data and that memory, between a least and a most.

The sum may be at most ``memory_fraction`` of the worker's memory limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np

from clustertune.core.model import (
    Float64s,
    Int64s,
    Unknown,
    View,
    WorkerSnapshot,
)
from clustertune.core.profiles import ByteRange, TrainingShare
from clustertune.core.wording import bytes_text, plural, variable
from clustertune.planner import contents, remedies
from clustertune.planner.layouts import (
    collection_bytes,
    held_bytes,
    held_bytes_by_worker,
    largest_held,
    sum_bytes,
    weights,
)
from clustertune.planner.memory import limit, other_bytes, unmanaged_bytes

_ROUNDING = 0.5  # bytes
UNCERTAIN = 0.15  # part of a prediction by which the truth may differ
MOST_WORKERS = 2**16
FLOAT64 = 8  # bytes


class Demand(NamedTuple):
    """Bytes that a fit takes for its data."""

    divided: float  # in total, divided among the workers by their threads
    copied: float  # on every worker


class Need(NamedTuple):
    """Bytes on one worker."""

    lacking: float  # beyond what the fit may fill
    total: float  # of the process during the fit
    most: float  # that the total may be
    free: float  # for the data and what the fit makes of it
    worker: WorkerSnapshot

    @property
    def may_lack(self) -> bool:
        """Whether the most is beyond what the fit may fill."""
        return self.lacking + self.most - self.total > _ROUNDING


# --- how much -------------------------------------------------------------------------


def demand(view: View) -> Demand | Unknown:
    """Return the bytes that a fit takes for all given data, wherever that is."""
    profile = view.goal.workload
    divided = copied = 0.0
    bounded = _fit_memory(view) is not None
    for number, layout in enumerate(view.layouts):
        amount = sum_bytes(layout.collections)
        if isinstance(amount, Unknown):
            return amount
        multiple = 1.0
        if number or not bounded:
            multiple = profile.multiple(layout.collections[0].itemsize)
        if number and profile.eval_copies:
            copied += amount * multiple
        else:
            divided += amount * multiple
    return Demand(divided, copied)


def _fit_memory(view: View) -> Callable[[float, int, int], ByteRange] | None:
    """Return the memory of a fit, besides the data, of one worker.

    The arguments are its part of the training data, its threads and the number of
    workers that train. None means that the library's profile has a multiple only, or
    that the shape of the data is unknown.
    """
    memory = view.goal.workload.fit_memory
    if memory is None or not view.layouts:
        return None
    X = view.layouts[0].collections[0]
    size, itemsize = collection_bytes(X), X.itemsize
    if isinstance(size, Unknown) or not X.columns or itemsize is None:
        return None
    rows = X.rows.sum() if X.rows is not None else size / (X.columns * itemsize)
    whole = TrainingShare(
        rows=float(rows),
        all_rows=float(rows),
        columns=X.columns,
        itemsize=itemsize,
        threads=1,
        workers=1,
    )
    outputs = cache(lambda: contents.outputs(view))  # it reads all partitions

    def of_worker(part: float, threads: int, n_workers: int) -> ByteRange:
        own = replace(whole, rows=whole.all_rows * part, outputs=outputs())
        return memory(replace(own, threads=threads, workers=n_workers))

    return of_worker


def needs(view: View, n_workers: int | None = None) -> list[Need] | Unknown:
    """Return the need of each worker that may train and whose memory is known.

    ``n_workers`` workers like the present ones train; None: the expected number.
    """
    wanted = demand(view)
    if isinstance(wanted, Unknown):
        return wanted
    n_workers = max(1, n_workers or expected_workers(view))
    claim = weights(view)
    parts = claim * (np.count_nonzero(claim) / n_workers / max(claim.sum(), 1.0))
    base = np.maximum(unmanaged_bytes(view), view.goal.workload.base_bytes)
    fixed = base + wanted.copied + _other_keys(view)
    memory = _fit_memory(view)
    found = []
    for worker, nbytes, part in zip(
        view.now.workers, fixed.tolist(), parts.tolist(), strict=True
    ):
        available = limit(worker, view)
        if not part or isinstance(available, Unknown):
            continue
        extra = ByteRange(0, 0)
        if memory is not None:
            extra = memory(part, worker.nthreads, n_workers)
        allowed = available * view.goal.memory_fraction
        total, most = (nbytes + wanted.divided * part + n for n in extra)
        found.append(Need(total - allowed, total, most, allowed - nbytes, worker))
    return found


def short(found: list[Need]) -> list[Need]:
    """Return the needs of workers that lack memory."""
    return [need for need in found if need.lacking > _ROUNDING]


def peaks(view: View) -> dict[str | int, int]:
    """Predict the process memory of each worker during a fit, by id.

    The prediction uses the present placement. It is empty if data is not loaded, and
    has no worker whose memory may differ by more than ``UNCERTAIN``.
    """
    loaded = view.layouts and all(x.loaded for x in view.layouts)
    if not loaded or not view.now.workers:
        return {}
    wanted, profile = demand(view), view.goal.workload
    copied = 0.0 if isinstance(wanted, Unknown) else wanted.copied
    n_workers = len(view.now.workers)
    training = held_bytes(view.layouts[:1], n_workers)
    divided = view.layouts[:1] if profile.eval_copies else view.layouts
    taken = np.zeros(n_workers)
    threads = np.array([w.nthreads for w in view.now.workers], dtype=np.float64)
    bounds = _held_bounds(view, training)
    for layout in divided:
        of_all, of_partitions = profile.parts(layout.collections[0].itemsize)
        if bounds is not None and layout is view.layouts[0]:
            of_all, of_partitions = 1.0, 0.0
        held = held_bytes((layout,), n_workers)
        largest = largest_held(held_bytes_by_worker(layout, n_workers), n_workers)
        # each thread is assumed to process the largest partition of its worker
        processed = np.minimum(held, threads * largest)
        taken += of_all * held + of_partitions * processed
    trains = training > 0
    base = np.maximum(unmanaged_bytes(view), profile.base_bytes * trains)
    total = base + _other_keys(view) + taken + copied * trains
    least, most = np.zeros((2, n_workers)) if bounds is None else bounds
    total += (least + most) / 2
    known = most - least <= 2 * UNCERTAIN * total
    workers = zip(view.now.workers, total.tolist(), known.tolist(), strict=True)
    return {w.id: round(nbytes) for w, nbytes, is_known in workers if is_known}


def _held_bounds(view: View, training: Int64s) -> tuple[Float64s, Float64s] | None:
    """Return the least and the most bytes besides the data, by worker as placed."""
    memory = _fit_memory(view)
    if memory is None:
        return None
    trains = training > 0
    found = [
        memory(part, worker.nthreads, int(trains.sum()))
        for worker, part in zip(
            view.now.workers, (training / max(1, training.sum())).tolist(), strict=True
        )
    ]
    least, most = np.array(found, dtype=np.float64).T
    return least * trains, most * trains


def _other_keys(view: View) -> Float64s:
    """Return the bytes on every worker of other keys that remain during the fit."""
    replaced = [view.replaced.get(w.id, 0) for w in view.now.workers]
    return np.maximum(0.0, other_bytes(view) - np.array(replaced, dtype=np.float64))


# --- how many workers -----------------------------------------------------------------


def workers_needed(view: View) -> int | Unknown | None:
    """Return the fewest workers with which the fit has enough memory.

    New workers are assumed to be like the present ones. None means that no number is
    enough, because a present worker has no free memory.
    """
    if not view.layouts:
        return Unknown("no data is given")
    found = needs(view, 1)
    if isinstance(found, Unknown):
        return found
    if not found:
        return Unknown("the memory of no worker is known")
    if min(need.free for need in found) <= 0:
        return None
    few, enough = 0, 1  # the first is too few
    while short(_known(view, enough)):
        few, enough = enough, 2 * enough
        if enough > MOST_WORKERS:
            return None
    while enough - few > 1:
        middle = (few + enough) // 2
        if short(_known(view, middle)):
            few = middle
        else:
            enough = middle
    return enough


def wanted_workers(view: View) -> int | None:
    """Return the requested number of workers; None: none, or not known yet."""
    wanted = view.goal.n_workers
    if not isinstance(wanted, str):
        return wanted
    if not any(w.is_counted for w in view.now.workers):
        return 1  # its memory decides about further ones
    enough = workers_needed(view)
    there = len(view.eligible_workers)
    if not isinstance(enough, int):
        return None
    bounds = view.now.adaptive
    if wanted == "adaptive" and isinstance(bounds, tuple):
        enough = int(min(enough, bounds[1]))
    return max(there, enough)


def expected_workers(view: View) -> int:
    """Return how many workers will train, including those not started yet."""
    now = len(view.eligible_workers)
    if view.goal.workers is not None or view.trainers is not None:
        return now  # these alone train
    return max(now, wanted_workers(view) or 0)


# --- changes that help ----------------------------------------------------------------


def ways(view: View) -> tuple[str, ...]:
    """Describe changes that give a fit enough memory, each alone, with their result."""
    found = []
    enough, asked = workers_needed(view), view.goal.n_workers
    least = max(expected_workers(view), asked if isinstance(asked, int) else 0)
    if isinstance(enough, int) and enough > least:
        more = f"start {plural(enough, 'worker')} of this size"
        if view.goal.workers is None and view.now.can_scale is None:
            more = f"`{remedies.prepare(view, n_workers=enough)}`"
        found.append(f"{more} {_result(view, enough)}")
    nbytes = needed_limit(view)
    size = bytes_text(nbytes)
    larger = f"start workers with --memory-limit {size.replace(' ', '')}"
    lacking = [need.worker for need in short(_known(view))]
    may = remedies.may_restart(view, lacking)
    share = remedies.host_share(lacking, view.now.workers)
    if may and not isinstance(share, Unknown) and share >= nbytes:
        # a limit for all would be lower than that of larger workers
        every = len(lacking) == sum(w.is_counted for w in view.now.workers)
        ids = () if every else [w.id for w in lacking]
        call = remedies.on_workers("resize_workers", ids, memory_limit=size)
        larger = f"`{call.remedy}`"
    found.append(f"{larger} {_result(view)}")
    return tuple(found)


def _result(view: View, n_workers: int | None = None) -> str:
    fullest = max((need.total for need in _known(view, n_workers)), default=0.0)
    return f"(then at most {bytes_text(round(fullest))} per worker)"


def savings(view: View) -> tuple[str, ...]:
    """Return lines that lower the need of a fit, maybe by too little."""
    X = view.layouts[0].collections[0]
    found = []
    if X.itemsize == FLOAT64 and variable(X.label) == "X":
        found.append(remedies.to_float32(X))
    line = remedies.release(view)
    if line and _other_keys(view)[weights(view) > 0].any():
        found.append(line)
    return tuple(found)


def needed_limit(view: View) -> int:
    """Return the memory limit that is enough for every worker, rounded up."""
    lacking = short(_known(view))
    most = max((n.total for n in lacking), default=0.0) / view.goal.memory_fraction
    # rounded to one decimal, as bytes_text shows it
    step = max(1.0, 1024.0 ** int(math.log(max(1.0, most), 1024)) / 10)
    return round(math.ceil((most + 1) / step) * step)


def _known(view: View, n_workers: int | None = None) -> list[Need]:
    found = needs(view, n_workers)
    return [] if isinstance(found, Unknown) else found
