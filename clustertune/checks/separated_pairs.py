"""Pieces whose members lie on different workers.

A fit brings X_i, y_i and what belongs to them to one worker before it starts, every
time. Dask chooses the less busy holder, so with X_i on one worker and y_i on another it
may ship the large X_i to the small y_i: of 10 pieces of 8 MB, 5 travelled so. Two
collections that were persisted together, but from different sources, had 44 of 100
pairs together; ``client.rebalance()`` tears pairs apart too.

Remedy: ``X, y = clustertune.prepare(client, X, y)`` brings every y_i to its X_i; to
keep them together from the start, take X and y from one frame and persist both in one
call.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clustertune.core.model import Finding, Int64s, Layout, Severity, View
from clustertune.core.wording import bytes_text
from clustertune.planner.layouts import apart, held, piece_bytes


def find(view: View) -> Iterator[Finding]:
    """Find pieces that are on no worker as a whole."""
    n_workers = len(view.now.workers)
    for layout in view.layouts:
        if not layout.loaded or not layout.aligned:
            continue
        filled = layout.rows > 0
        torn = apart(layout, n_workers) & filled
        count, total = int(torn.sum()), int(filled.sum())
        if not count:
            continue
        nbytes = int(_missing(layout, n_workers)[torn].sum())
        yield Finding(
            severity=Severity.warning,
            message=f"{count:,} of {total:,} pieces ({count / total:.0%}) of the "
            f"{layout.label} are not on one worker as a whole; a fit ships at least "
            f"{bytes_text(nbytes)} to join them",
            subject=tuple(m.label for m in layout.members),
            evidence={"apart": count, "pieces": total, "bytes": nbytes},
        )


def _missing(layout: Layout, n_workers: int) -> Int64s:
    """Bytes of every piece that are not on the worker that holds most of it."""
    spread = held(layout, n_workers)
    most = np.zeros(layout.members[0].n_pieces, dtype=np.int64)
    np.maximum.at(most, spread.piece, spread.nbytes)
    return piece_bytes(layout) - most
