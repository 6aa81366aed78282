"""Training data in another number of partitions, on which the model depends.

ADMM solves one problem for each partition and divides its penalty by their number, so
its coefficients depend on it: 61.67, 61.85 and 63.07 for the same data in 2, 8 and 40
partitions. ``Incremental`` takes each partition for a mini-batch, and blockwise voting
fits a model to each. With another number the model is another one, whether the number
differs from that of the fit before or from that of the data as it was given.

Remedy: ``clustertune.prepare(client, X, y, estimator=model)`` keeps the number of the
last call for as many rows where there are no more workers than that; or name it,
``rechunk=8``, with which no more workers train than there are partitions.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import Finding, Layout, Severity, View
from clustertune.core.wording import plural
from clustertune.planner.chunking import wanted_pieces


def find(view: View) -> Iterator[Finding]:
    """Find that the model would be made of another number of partitions."""
    layout = view.layouts[0] if view.layouts else None
    if layout is None or not view.goal.workload.keeps_pieces or not layout.aligned:
        return
    now, total = len(layout.rows), int(layout.rows.sum())
    rows, before = view.goal.kept or (0, 0)
    if rows == total:
        if now != before:
            yield _unlike_before(layout, before, view)
    elif view.given not in (None, now):
        yield _unlike_given(layout, view)


def _unlike_before(layout: Layout, before: int, view: View) -> Finding:
    now, rows = len(layout.rows), int(layout.rows.sum())
    return Finding(
        severity=Severity.warning,
        message=f"the {layout.label} is in {plural(now, 'partition')}, for the fit "
        f"before it was in {before:,}: {view.goal.workload.title} would make "
        "another model of it",
        subject=tuple(m.label for m in layout.members),
        evidence={"pieces": now, "before": before},
        fixed_by=view.goal.cutting if wanted_pieces(view, rows) == before else "",
    )


def _unlike_given(layout: Layout, view: View) -> Finding:
    now, given = len(layout.rows), view.given
    return Finding(
        severity=Severity.info,
        message=f"the {layout.label} was given in {plural(given or 0, 'partition')} "
        f"and is in {now:,} now: {view.goal.workload.title} makes another model of it",
        subject=tuple(m.label for m in layout.members),
        evidence={"pieces": now, "given": given},
        remedy=f"for the model of the given partitions give rechunk={given}: then at "
        f"most {plural(given or 0, 'worker')} will train",
    )
