"""Pieces that are a large part of a worker's memory.

A piece moves, and is cut, copied and converted, as a whole; while that happens its
bytes are in memory twice. One large piece fills what a worker has left, so that it
spills or pauses, and it can be placed on few workers only. How large pieces make an
even share impossible is the subject of ``too_few_pieces``.

Without a memory limit nothing is compared. Sizes of pieces that are not loaded are
taken to be in proportion to their rows, or equal where those are unknown.

Remedy: ``X, y = clustertune.prepare(client, X, y)`` cuts them, where memory allows. By
hand, before loading, ``X = X.rechunk({0: rows})`` for arrays,
``X = X.repartition(partition_size="100MB")`` for frames, and y at the same rows; pieces
from 16 to 512 MB suit the boosting libraries.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import (
    Finding,
    Layout,
    Severity,
    Unknown,
    View,
    WorkerSnapshot,
)
from clustertune.core.wording import bytes_text, workers_text
from clustertune.planner import suitability
from clustertune.planner.layouts import largest_piece


def find(view: View, *, fraction: float = suitability.LARGE) -> Iterator[Finding]:
    """Find layouts with a piece larger than a fraction of the smallest worker.

    Parameters
    ----------
    view
        What is seen.
    fraction
        Of the smallest memory limit among the workers that may train.
    """
    limited = [w for w in view.eligible_workers if w.memory_limit]
    if not limited:
        return
    smallest = min(limited, key=lambda w: w.memory_limit)
    for layout in view.layouts:
        largest = largest_piece(layout)
        if isinstance(largest, Unknown):
            yield _unknown(layout, largest)
        elif suitability.too_large(layout, view, fraction):
            yield _finding(layout, largest, smallest, view.goal.cutting)


def _unknown(layout: Layout, size: Unknown) -> Finding:
    return Finding(
        severity=Severity.unknown,
        message=f"how large the pieces of the {layout.label} are is {size}",
        remedy="``prepare`` loads them, and cuts those that are too large",
        subject=tuple(m.label for m in layout.members),
    )


def _finding(
    layout: Layout, largest: int, smallest: WorkerSnapshot, cutting: str
) -> Finding:
    limit = smallest.memory_limit
    return Finding(
        severity=Severity.warning,
        message=f"a piece of the {layout.label} has {bytes_text(largest)}, "
        f"{largest / limit:.0%} of the {bytes_text(limit)} that "
        f"{workers_text([smallest.id])} may use",
        subject=tuple(m.label for m in layout.members),
        evidence={"piece_bytes": largest, "limit_bytes": limit},
        fixed_by=cutting,
    )
