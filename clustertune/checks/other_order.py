"""Rows that are to be shuffled, which was asked for.

``shuffle="rows"`` asks for another order of all rows, ``shuffle="pieces"`` for one of
whole pieces, which moves nothing and helps where pieces differ (by date or source) and
a library takes them one after the other.

Remedy: ``X, y = clustertune.prepare(client, X, y, shuffle="rows")``.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import Finding, Layout, Severity, View
from clustertune.errors import RefusedError

ERROR = RefusedError
TOO_MANY = 10**9  # rows: NumPy's multivariate_hypergeometric draws from fewer only


def find(view: View) -> Iterator[Finding]:
    """Find that a shuffle was asked for and is not done."""
    if view.goal.order in ("rows", "pieces") and view.layouts:
        layout = view.layouts[0]
        if view.goal.order == "rows" and _rows(layout) >= TOO_MANY:
            yield Finding(
                severity=Severity.critical,
                message=f"the {layout.label} has {_rows(layout):,} rows, and "
                f'shuffle="rows" can draw a uniform order of fewer than {TOO_MANY:,}; '
                "nothing was shuffled",
                subject=tuple(m.label for m in layout.members),
                evidence={"rows": _rows(layout), "limit": TOO_MANY},
                remedy='put the partitions in random order, shuffle="pieces", or '
                "shuffle the rows before they are loaded",
            )
            return
        yield Finding(
            severity=Severity.info,
            message=f"{view.goal.order} of the {layout.label} are in the order in "
            "which they came; a shuffle was asked for",
            subject=tuple(m.label for m in layout.members),
            fixed_by="reorder",
        )


def _rows(layout: Layout) -> int:
    """Rows of the layout as far as they are known, else 0."""
    rows = layout.members[0].rows
    return 0 if rows is None else int(rows.sum())
