"""Workers that hold no rows of the training data.

XGBoost and LightGBM train where the data is: one training task for every worker that
holds a piece. A worker without any takes no part, without a word, and the others do its
work: with 16 pieces on one of two workers a fit took 5.3 s, with 8 on each 3.2 s. New
workers start out empty, ``client.rebalance()`` mostly moves nothing, and LightGBM fails
where a worker holds only pieces without rows.

Workers that cannot all have a piece, because there are fewer pieces than workers, are
the subject of ``too_few_pieces``.

Remedy: call ``X, y = clustertune.prepare(client, X, y)``, which moves whole pieces
until every worker holds its share; to leave workers out on purpose, name the others in
``workers=``.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.facts.layouts import shares
from clustertune.model import Finding, Severity, View
from clustertune.wording import plural, workers_text


def find(view: View) -> Iterator[Finding]:
    """Find eligible workers without rows, where there are pieces for all of them."""
    layout = view.layouts[0] if view.layouts else None
    eligible = {w.id for w in view.eligible_workers}
    if layout is None or not layout.loaded or not layout.aligned:
        return
    n_pieces = int((layout.rows > 0).sum())
    empty = tuple(
        s.worker for s in shares(layout, view) if s.worker in eligible and not s.rows
    )
    if empty and n_pieces >= len(eligible):
        yield Finding(
            severity=Severity.warning,
            message=f"no rows of the {layout.label} on {workers_text(empty)}: only "
            f"{len(eligible) - len(empty):,} of {plural(len(eligible), 'worker')} will "
            "train",
            subject=empty,
            evidence={
                "empty": len(empty),
                "workers": len(eligible),
                "pieces": n_pieces,
            },
        )
