"""Rows that are to be shuffled, which was asked for.

``shuffle="rows"`` asks for another order of all rows, ``shuffle="pieces"`` for one of
whole pieces, which moves nothing and helps where pieces differ (by date or source) and
a library takes them one after the other.

Remedy: ``X, y = clustertune.prepare(client, X, y, shuffle="rows")``.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.model import Finding, Severity, View


def find(view: View) -> Iterator[Finding]:
    """Find that a shuffle was asked for and is not done."""
    if view.goal.order in ("rows", "pieces") and view.layouts:
        layout = view.layouts[0]
        yield Finding(
            severity=Severity.info,
            message=f"{view.goal.order} of the {layout.label} are in the order in "
            "which they came; a shuffle was asked for",
            subject=tuple(m.label for m in layout.members),
            fixed_by="reorder",
        )
