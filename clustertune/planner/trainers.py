"""Which workers train where the data cannot be shared out to all of them (pure).

A row is on one worker, and so is a group where groups stay whole, or a partition that
may not be cut. With fewer of these than workers the others get no rows: training
libraries train on the workers that hold some.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import NamedTuple

import numpy as np

from clustertune.core.model import Float64s, Int64s, Layout, View
from clustertune.planner import grouping, layouts


class Units(NamedTuple):
    """What a worker gets as a whole: how many there are, and the name of one."""

    number: int
    name: str  # "row", "group" or "partition"
    least: int = 1  # that a worker needs to train

    @property
    def workers(self) -> int:
        """How many workers can train."""
        return max(1, self.number // self.least)


def units(view: View) -> Units | None:
    """Of the training data; None: unknown, none, or each worker must have rows."""
    layout = view.layouts[0] if view.layouts else None
    if layout is None or view.goal.workload.exact_rows:
        return None
    counted = [m.rows for m in layout.members if m.rows is not None]
    found = []
    if counted:
        rows = int(counted[0].sum())
        found.append(Units(rows, "row", view.goal.workload.min_rows))
    wanted = view.goal.rechunk
    if wanted is not True and wanted:
        found.append(Units(int(wanted), "partition"))
    # whole partitions of one collection are none of another that is cut elsewhere
    if wanted is False and layout.aligned:
        found.append(Units(int((layout.rows > 0).sum()), "partition"))
    found += _of_groups(layout, view, counted)
    return min((u for u in found if u.number), key=lambda u: u.workers, default=None)


def _of_groups(layout: Layout, view: View, counted: list[Int64s]) -> list[Units]:
    groups = grouping.of(layout) if view.goal.workload.groups else None
    if groups is not None:
        return [Units(len(np.unique(groups.values)), "group")]
    named = any(m.label.rpartition(".")[2] == "qid" for m in layout.members)
    if view.goal.workload.groups or not named or len(counted) < len(layout.members):
        return []
    # a library that knows no groups gets joined partitions, of which none is cut
    ends = reduce(np.intersect1d, [np.cumsum(rows) for rows in counted])
    return [Units(int((ends > 0).sum()), "partition")]


def chosen(view: View) -> View:
    """The view in which only as many workers train as can have a part of the data.

    They are the workers that hold most rows already, of these with most threads, so
    that another look chooses the same ones.
    """
    found, able = units(view), view.eligible_workers
    if found is None or found.workers >= len(able):
        return view
    layout = view.layouts[0]
    rows: Float64s = np.zeros(len(view.now.workers))
    if layout.loaded and layout.aligned:
        home = layouts.homes(layout, len(rows))
        np.add.at(rows, home[home >= 0], layout.rows[home >= 0])
    held = dict(zip((w.id for w in view.now.workers), rows.tolist(), strict=True))
    best = sorted(able, key=lambda w: (-held[w.id], -w.nthreads))[: found.workers]
    return replace(view, trainers=frozenset(w.id for w in best))
