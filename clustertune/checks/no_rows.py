"""Collections without a single row.

A frame does not say how many rows it has, so an empty one (a filter that keeps nothing,
a folder without data) is found only when its pieces are counted. No library can train
on it, and their errors speak of shapes.

Remedy: look at what the data is made of: ``X.head()``, ``len(X)``; a filter may be too
strict, or a path may lead to an empty folder.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import Finding, Severity, View

ERROR = ValueError


def find(view: View) -> Iterator[Finding]:
    """Find members whose rows are known to be none."""
    for layout in view.layouts:
        empty = [m for m in layout.members if m.rows is not None and not m.rows.sum()]
        for member in empty:
            yield Finding(
                severity=Severity.critical,
                message=f"{member.label} is empty: it has no rows",
                subject=(member.label,),
                evidence={"pieces": member.n_pieces},
            )
