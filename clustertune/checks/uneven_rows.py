"""Rows of the training data that lie unevenly on the workers.

Each worker trains on the rows that it holds, and every round ends when the slowest is
done, so the fullest worker sets the pace: with 12 and 4 of 16 pieces on two workers a
fit took 4.3 s, with 8 and 8 it took 3.2 s. The share of a worker is by its threads.
Rows on a worker that may not train (paused, or not in ``workers=``) are always wrong.

The tolerance is the one that was asked for (0.05: the fullest worker may hold 5 % more
than its share). Where pieces are too large or too few to do better, this is said as
information; ``too_few_pieces`` says how to cut them.

Remedy: ``X, y = clustertune.prepare(client, X, y)`` moves whole pieces, with all that
belongs to their rows, until each worker holds its share. ``client.rebalance()`` looks
at bytes, not rows, moves nothing below 30 % of memory and separates X from y.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import Finding, Layout, Severity, View
from clustertune.core.wording import are, plural, times_text, workers_text
from clustertune.planner.layouts import shares
from clustertune.planner.suitability import attainable

_ROUNDING = 1e-9


def find(view: View) -> Iterator[Finding]:
    """Find a worker with too many rows, and rows on workers that may not train."""
    for number, layout in enumerate(view.layouts):
        if not layout.loaded or not layout.aligned:
            continue
        yield from _misplaced(layout, view)
        if number == 0:  # eval sets are only scored, their evenness matters little
            yield from _uneven(layout, view)


def _misplaced(layout: Layout, view: View) -> Iterator[Finding]:
    eligible = {w.id for w in view.eligible_workers}
    wrong = [s for s in shares(layout, view) if s.rows and s.worker not in eligible]
    if wrong:
        ids, rows = tuple(s.worker for s in wrong), sum(s.rows for s in wrong)
        yield Finding(
            severity=Severity.warning,
            message=f"{plural(rows, 'row')} of the {layout.label} on "
            f"{workers_text(ids)}, which {are(ids)} not running or not asked to train",
            subject=ids,
            evidence={"rows": rows, "of_rows": int(layout.rows.sum())},
        )


def _uneven(layout: Layout, view: View) -> Iterator[Finding]:
    fullest = max(shares(layout, view), key=lambda s: s.share, default=None)
    if fullest is None or fullest.share <= 1 + view.goal.tolerance + _ROUNDING:
        return
    best = attainable(layout, view)
    movable = best < fullest.share - _ROUNDING
    total = int(layout.rows.sum())
    remark = f"moving whole pieces can bring that down to {best:.3g}"
    yield Finding(
        severity=Severity.warning if movable else Severity.info,
        message=f"{workers_text([fullest.worker])} holds {times_text(fullest.share)} "
        f"its share of rows: {fullest.rows:,} of {total:,} of the {layout.label}; "
        + (remark if movable else "whole pieces cannot lie more evenly"),
        subject=(fullest.worker,),
        evidence={
            "imbalance": fullest.share,
            "best": best,
            "tolerance": view.goal.tolerance,
        },
    )
