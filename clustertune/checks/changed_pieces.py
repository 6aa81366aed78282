"""Training data in another number of pieces than the fit before had.

ADMM solves one problem a piece and divides its penalty by their number, so its
coefficients depend on it: 61.67, 61.85 and 63.07 for the same data in 2, 8 and 40
pieces. With another number the model is another one.

Remedy: ``clustertune.prepare(client, X, y, estimator=model)`` keeps the number of the
last call for as many rows where there are no more workers than that; or name it,
``rechunk=8``.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.model import Finding, Severity, View
from clustertune.rows.boundaries import wanted_pieces
from clustertune.wording import plural


def find(view: View) -> Iterator[Finding]:
    """Find that the model would be made of another number of pieces."""
    layout = view.layouts[0] if view.layouts else None
    if layout is None or view.goal.kept is None or not view.goal.workload.keeps_pieces:
        return
    rows, pieces = view.goal.kept
    if not layout.aligned or int(layout.rows.sum()) != rows:
        return
    now = len(layout.rows)
    if now != pieces:
        yield Finding(
            severity=Severity.warning,
            message=f"the {layout.label} is in {plural(now, 'piece')}, for the fit "
            f"before it was in {pieces:,}: {view.goal.workload.title} would make "
            "another model of it",
            subject=tuple(m.label for m in layout.members),
            evidence={"pieces": now, "before": pieces},
            fixed_by=view.goal.cutting if wanted_pieces(view, rows) == pieces else "",
        )
