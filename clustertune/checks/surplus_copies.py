"""Pieces of which more than one worker holds a copy.

Dask's memory manager drops surplus copies every 2 s. It keeps the ones that
``clustertune.prepare`` has placed, and of other data the copy on the worker with least
memory. Until then a training library may take any of them, so the place of such a piece
may change, and it may come apart from its pair.

Remedy: ``X, y = clustertune.prepare(client, X, y)`` keeps one copy of each piece, where
it should be; ``client.replicate`` and ``scatter(broadcast=True)`` are of no use for
training data.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import Finding, Severity, View
from clustertune.planner.layouts import copied


def find(view: View) -> Iterator[Finding]:
    """Find pieces with surplus copies."""
    for layout in view.layouts:
        if not layout.loaded or not layout.aligned:
            continue
        count, total = int(copied(layout).sum()), layout.members[0].n_pieces
        if count:
            yield Finding(
                severity=Severity.info,
                message=f"of {count:,} of {total:,} pieces of the {layout.label} more "
                "than one worker holds a copy; Dask will drop some, and which is open",
                subject=tuple(m.label for m in layout.members),
                evidence={"copied": count, "pieces": total},
            )
