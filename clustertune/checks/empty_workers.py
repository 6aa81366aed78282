"""Workers that hold no rows of the training data.

XGBoost and LightGBM train where the data is: one training task for every worker that
holds a piece. A worker without any takes no part, without a word, and the others do its
work: with 16 pieces on one of two workers a fit took 5.3 s, with 8 on each 3.2 s. New
workers start out empty, ``client.rebalance()`` mostly moves nothing, and LightGBM fails
where a worker holds only pieces without rows.

With fewer rows than workers, fewer groups, or fewer partitions that may not be cut,
``prepare`` places them on as many workers as can have some, and the others train
nothing. A library may need some rows on each worker that trains: LightGBM needs two.

Remedy: call ``X, y = clustertune.prepare(client, X, y)``, which moves whole pieces
until every worker holds its share; to leave workers out on purpose, name the others in
``workers=``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from clustertune.core.model import Finding, Severity, View
from clustertune.core.wording import plural, workers_text
from clustertune.planner.layouts import shares
from clustertune.planner.suitability import units


def find(view: View) -> Iterator[Finding]:
    """Find eligible workers without rows, where there are pieces for all of them."""
    layout = view.layouts[0] if view.layouts else None
    if view.trainers is not None:
        yield _not_needed(view)
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


_MORE = {
    "row": "for workers that all train, give more rows; else start fewer workers",
    "group": "groups stay whole: for workers that all train, give more groups; else "
    "start fewer workers",
    "partition": "leave rechunk= out, so that partitions are cut where groups (qid) "
    "allow it; or load the data in more partitions",
}


def _not_needed(view: View) -> Finding:
    """The workers that get no rows, since there are too few for all."""
    found = units(view)
    assert found is not None
    able = replace(view, trainers=None).eligible_workers
    idle = tuple(w.id for w in able if not view.eligible(w))
    needs = f", and a worker needs {found.least:,} of them" if found.least > 1 else ""
    return Finding(
        severity=Severity.warning,
        message=f"the {view.layouts[0].label} has {plural(found.number, found.name)}"
        f"{needs}: only {found.workers:,} of {plural(len(able), 'worker')} will train, "
        f"without {workers_text(idle)}",
        subject=idle,
        evidence={
            "empty": len(idle),
            "workers": len(able),
            f"{found.name}s": found.number,
        },
        remedy=_MORE[found.name],
    )
