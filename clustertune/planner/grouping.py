"""Find where query groups (``qid``) begin and whether they are in order (pure).

The values come from :func:`clustertune.remote.worker.content.runs`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from clustertune.core.model import CollectionInfo, Int64s, Layout
from clustertune.core.wording import variable
from clustertune.planner import layouts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Groups:
    """Runs of rows of one group, in the order of rows."""

    label: str  # of the collection with the groups
    values: npt.NDArray[Any]  # (runs,) group of each run
    counts: Int64s  # (runs,) rows; meaningless if rows of a group are scattered
    together: bool  # every group is one run

    @property
    def edges(self) -> Int64s:
        """First rows of all runs but the first, at which a cut is allowed."""
        return np.cumsum(self.counts)[:-1]


def has_groups(layout: Layout) -> bool:
    """Return whether a layout has query groups, which may be unread."""
    return any(variable(m.label) == "qid" for m in layout.collections)


def collection_of(layout: Layout) -> CollectionInfo | None:
    """Return the collection with the groups, if its values were read."""
    for m in layout.collections:
        if variable(m.label) == "qid" and m.contents is not None:
            is_read = all("counts" in p for p in m.contents.partitions)
            return m if is_read else None
    return None


def of(layout: Layout) -> Groups | None:
    """Return the groups of a layout; None: it has none, or they were not read.

    A replicated layout has None: each partition with rows has all groups in order.
    """
    collection = collection_of(layout)
    if collection is None or layouts.is_copied(layout):
        return None
    assert collection.contents is not None
    partitions = [p for p in collection.contents.partitions if len(p["counts"])]
    if not partitions:
        return None
    values = np.concatenate([p["values"] for p in partitions])
    counts = np.concatenate([p["counts"] for p in partitions]).astype(np.int64)
    starts = np.flatnonzero(np.append(True, values[1:] != values[:-1]))
    values, counts = values[starts], np.add.reduceat(counts, starts)
    scattered = any(p["scattered"] for p in partitions)
    return Groups(
        label=collection.label,
        values=values,
        counts=counts,
        together=not scattered and len(np.unique(values)) == len(values),
    )


def cut(layout: Layout, groups: Groups) -> Int64s:
    """Return the rows within a group at which some collection is divided."""
    found = [np.cumsum(m.rows)[:-1] for m in layout.collections if m.rows is not None]
    inner = np.unique(np.concatenate(found)) if found else np.zeros(0, dtype=np.int64)
    ends = np.array([0, int(groups.counts.sum())])
    return np.setdiff1d(inner, np.concatenate([groups.edges, ends]))
