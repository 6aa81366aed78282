"""Training data that is not in the number of pieces that was asked for.

``rechunk=80`` asks for 80 pieces of the training data, with rows that differ by one at
most. Without a number the pieces are whatever suits the workers.

Remedy: ``X, y = clustertune.prepare(client, X, y, rechunk=80)`` cuts and joins them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clustertune.core.model import Finding, Severity, View
from clustertune.core.wording import plural
from clustertune.planner.chunking import even


def find(view: View) -> Iterator[Finding]:
    """Find that the first layout has other pieces than were asked for."""
    wanted = view.goal.rechunk
    layout = view.layouts[0] if view.layouts else None
    if isinstance(wanted, bool) or layout is None or layout.members[0].rows is None:
        return
    rows = layout.members[0].rows
    total = int(rows.sum())
    if np.array_equal(rows, even(total, min(wanted, max(1, total)))):
        return
    yield Finding(
        severity=Severity.info,
        message=f"the {layout.label} is in {plural(len(rows), 'piece')} of up to "
        f"{int(rows.max(initial=0)):,} rows; {wanted:,} even ones were asked for",
        subject=tuple(m.label for m in layout.members),
        evidence={"pieces": len(rows), "wanted": wanted},
        fixed_by=view.goal.cutting,
    )
