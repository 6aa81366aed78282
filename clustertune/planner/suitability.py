"""Decide whether partitions suit the workers, and which workers train (pure).

The checks of too few, too many and too large partitions report these rules. The planner
applies them to partitions that it could make.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from clustertune.core.model import Layout, Unknown, View, WorkerSnapshot
from clustertune.planner import contents, forecast, layouts, machines
from clustertune.planner.forecast import expected_workers
from clustertune.planner.placement import place

LARGE = 0.25  # of the smallest memory limit
SMALL = 2**20  # bytes of a mean partition
_ROUNDING = 1e-9


# --- sizes ----------------------------------------------------------------------------


def too_large(layout: Layout, view: View) -> bool | Unknown:
    """Return whether a partition exceeds a fraction of the smallest memory limit."""
    limits = [w.memory_limit for w in view.eligible_workers if w.memory_limit]
    if not limits:
        return False
    largest = layouts.largest_partition(layout)
    return largest if isinstance(largest, Unknown) else largest > LARGE * min(limits)


def too_many(layout: Layout, view: View) -> bool | Unknown:
    """Return whether each thread has too many partitions whose mean size is small."""
    threads = sum(w.nthreads for w in view.eligible_workers)
    n_partitions = max(m.n_partitions for m in layout.collections)
    most = view.goal.workload.max_partitions_per_thread * threads
    if not threads or n_partitions <= most:
        return False
    size = layouts.sum_bytes(layout.collections)
    return size if isinstance(size, Unknown) else size / n_partitions < SMALL


# --- evenness -------------------------------------------------------------------------


def attainable(layout: Layout, view: View) -> float:
    """Return the rows of the fullest worker over its share, at the best placement.

    The result is at most ``1 + tolerance`` if whole partitions allow it, otherwise as
    low as they allow. The layout must be aligned; it need not be loaded.
    """
    weights, rows = layouts.weights(view), layout.rows
    positive = weights[weights > 0]
    if not len(positive) or not rows.sum():
        return 1.0
    # filling the emptiest worker next exceeds a share by one partition at most
    smallest_share = rows.sum() * positive.min() / positive.sum()
    excess = float(rows.max() / smallest_share)
    if excess <= view.goal.tolerance:
        return 1.0 + excess
    no_bytes, tolerance = np.zeros_like(rows), view.goal.tolerance
    return place(rows, None, weights, nbytes=no_bytes, tolerance=tolerance).imbalance


def n_training(view: View) -> int:
    """Return how many workers are to have a share of the training data."""
    n_workers, found = expected_workers(view), units(view)
    return n_workers if found is None else min(n_workers, found.workers)


def fullest_share(layout: Layout, view: View) -> float:
    """Return the best share of the fullest worker of an aligned layout.

    The result is infinite if fewer partitions have rows than workers are to train, and
    0 if no worker is to train.
    """
    n_workers = n_training(view)
    if not n_workers:
        return 0.0
    if int((layout.rows > 0).sum()) < n_workers:
        return math.inf
    return attainable(layout, view)


def is_uneven(share: float, view: View) -> bool:
    """Return whether the fullest worker's share exceeds the goal's tolerance."""
    return share > 1 + view.goal.tolerance + _ROUNDING


# --- workers that train ---------------------------------------------------------------
#
# A worker gets whole rows; whole groups if groups stay together; whole partitions if
# they may not be cut. Workers without any get no rows and do not train. If the library
# can use all threads of a host in one task, one worker of each host trains.


class Units(NamedTuple):
    """Indivisible units of the data: how many there are, and what they are."""

    number: int
    name: str  # "row", "group" or "partition"
    least: int = 1  # that a worker needs to train

    @property
    def workers(self) -> int:
        """How many workers can train."""
        return max(1, self.number // self.least)


def units(view: View) -> Units | None:
    """Return the units of the training data that allow the fewest workers.

    None means that they are unknown, or that each worker must have rows.
    """
    layout = view.layouts[0] if view.layouts else None
    if layout is None:
        return None
    counted = [m.rows for m in layout.collections if m.rows is not None]
    found = []
    if counted:
        rows = int(counted[0].sum())
        found.append(Units(rows, "row", view.goal.workload.min_rows))
    wanted = view.goal.rechunk
    if wanted is not True and wanted:
        found.append(Units(int(wanted), "partition"))
    # collections that are not aligned have no common partitions
    if wanted is False and layout.aligned:
        found.append(Units(int((layout.rows > 0).sum()), "partition"))
    if view.goal.workload.whole_groups and (groups := contents.groups_of(layout)):
        found.append(Units(len(np.unique(groups.values)), "group"))
    return min((u for u in found if u.number), key=lambda u: u.workers, default=None)


def chosen(view: View) -> View:
    """Return the view in which only the workers train that should.

    They are the workers with most rows, and among these with most threads. So a second
    view leads to the same choice.
    """
    most = enough_for(view)
    if most is None:
        return _one_per_host(view) if view.goal.one_per_host else view
    return replace(view, trainers=frozenset(w.id for w in _fullest_first(view)[:most]))


def enough_for(view: View) -> int | None:
    """Return how many workers can have a unit of the data; None: all."""
    found = units(view)
    able = replace(view, trainers=None).eligible_workers
    return None if found is None or found.workers >= len(able) else found.workers


def _fullest_first(view: View) -> list[WorkerSnapshot]:
    """Return the workers that may train, those with most rows first."""
    layout, rows = view.layouts[0], dict[str | int, int]()
    if layout.loaded and layout.aligned:
        rows = {s.worker: s.rows for s in layouts.shares(layout, view)}
    return sorted(
        view.eligible_workers, key=lambda w: (-rows.get(w.id, 0), -w.nthreads)
    )


def _one_per_host(view: View) -> View:
    """Return the view in which one worker of each host trains, if its memory allows."""
    # before the data is loaded, all workers load it
    if not view.layouts or not all(x.loaded for x in view.layouts):
        return view
    if machines.threads_per_host(view.eligible_workers) is None:
        return view
    groups = machines.by_host(_fullest_first(view)).values()
    fewer = replace(view, trainers=frozenset(group[0].id for group in groups))
    found = forecast.needs(fewer)
    if isinstance(found, Unknown) or len(found) < len(groups) or forecast.short(found):
        return view
    return fewer


def threads_of_task(view: View) -> int | None:
    """Return the threads of a training task that uses a whole host; None: its worker's.

    All rows must be on the workers that train.
    """
    if not view.goal.one_per_host or view.trainers is None:
        return None
    trains = {w.id: w.id in view.trainers for w in view.now.workers}
    able = replace(view, trainers=None).eligible_workers
    hosts = [w.host for w in able if trains[w.id]]
    if sorted(hosts) != sorted(machines.by_host(able)):
        return None
    apart = ~np.array(list(trains.values()))
    for layout in view.layouts:
        if not (layout.loaded and layout.aligned):
            return None
        home = layouts.home_workers(layout, len(apart))
        if (home < 0).any() or apart[home].any():
            return None
    return machines.threads_per_host(able)
