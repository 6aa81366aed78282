"""Workers without rows of an eval set that has categories, which XGBoost wants.

It learns the lists of categories from the rows of each worker, of every eval set, too.
Where a worker has none it raises ``A worker cannot have empty input when a dataframe
with categorical features is used``, and the others say that the connection has failed.

Remedy: ``prepare`` with ``eval_set=`` and the estimator gives every worker some rows;
one with fewer rows than workers cannot be shared out, so give more of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clustertune.core.model import Finding, Layout, Severity, View
from clustertune.core.wording import workers_text
from clustertune.planner import layouts


def find(view: View) -> Iterator[Finding]:
    """Find eval sets with categories that are not on every worker."""
    if not view.goal.workload.eval_everywhere:
        return
    for layout in view.layouts[1:]:
        listed = any("category" in m.types for m in layout.members)
        if listed and layout.loaded and layout.aligned:
            yield from _of(layout, view)


def _of(layout: Layout, view: View) -> Iterator[Finding]:
    workers = view.now.workers
    held, may = layouts.homes(layout, len(workers)), layouts.weights(view) > 0
    filled = np.zeros(len(workers), dtype=bool)
    filled[held[(layout.rows > 0) & (held >= 0)]] = True
    empty = tuple(workers[i].id for i in np.flatnonzero(may & ~filled).tolist())
    if not empty:
        return
    n_workers = int(may.sum())
    fixed_by = "" if layout.rows.sum() < n_workers else view.goal.cutting
    if (layout.rows > 0).sum() >= n_workers:
        fixed_by = "rebalance"
    yield Finding(
        severity=Severity.warning,
        message=f"no rows of {layout.label} on {workers_text(empty)}: "
        f"{view.goal.workload.title} fails there, as it has categories",
        subject=tuple(m.label for m in layout.members),
        evidence={"empty": len(empty), "workers": n_workers},
        fixed_by=fixed_by,
    )
