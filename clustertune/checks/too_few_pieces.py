"""Pieces that are too few, or too large, for every worker to have its share.

A piece is on one worker as a whole. With fewer pieces than workers some worker has none
and takes no part in the fit (``empty_workers`` where no cut can change that). With a
few more, some have a piece more than others: 5 equal pieces on 4 workers make one
worker do the work of two, and the fit takes 1.6 times as long as with an even cut. One
piece a thread keeps all busy; a few more are good, while a piece is a long task
compared with the time that the cluster takes for any task.

Eval sets may be smaller than that: they are scored, not trained on. Pieces whose rows
are unknown, or differ between X and y, are the subject of ``differing_boundaries``.

Remedy: ``X, y = clustertune.prepare(client, X, y)`` cuts them, where memory allows. By
hand, before loading, arrays with ``X = X.rechunk({0: rows})``, frames with
``X = X.repartition(npartitions=n)``, all of them alike; or train on fewer workers,
named in ``workers=``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from clustertune.core.model import Finding, Layout, Member, Severity, Unknown, View
from clustertune.core.wording import plural, times_text, variable
from clustertune.errors import AlignmentError
from clustertune.planner import chunking, suitability
from clustertune.planner.layouts import layout_bytes

ERROR = AlignmentError


def find(view: View) -> Iterator[Finding]:
    """Find that the pieces of the training data cannot be shared out evenly."""
    layout = view.layouts[0] if view.layouts else None
    if layout is None or not layout.aligned:
        return
    best = suitability.fullest_share(layout, view)
    if not suitability.is_uneven(best, view):
        return
    n_workers = suitability.n_training(view)
    n_pieces, rows = int((layout.rows > 0).sum()), int(layout.rows.sum())
    evidence: dict[str, float] = {"pieces": n_pieces, "workers": n_workers}
    severity, cutting = Severity.critical, view.goal.cutting
    text = f"{plural(n_pieces, 'piece')} of the {layout.label}"
    if rows < n_workers:  # only if each worker must have some
        text = (
            f"{plural(rows, 'row')} of the {layout.label} for {n_workers:,} workers: "
        )
        text += f"{view.goal.workload.title} needs as many on each, and cutting makes "
        text += "no more rows"
        cutting = ""
    elif n_pieces < n_workers:
        text += f" with rows for {n_workers:,} workers: "
        text += f"{plural(n_workers - n_pieces, 'worker')} cannot take part"
    else:
        text += f", the largest {int(layout.rows.max()):,} rows: one of "
        text += f"{plural(n_workers, 'worker')} has {times_text(best)} its share at "
        text += "best, and each round of a fit takes that much longer"
        severity, evidence["best"] = Severity.info, best
    yield Finding(
        severity=severity,
        message=text,
        subject=tuple(m.label for m in layout.members),
        evidence=evidence,
        remedy=_remedy(layout, view, n_workers),
        fixed_by=cutting,
    )


def _remedy(layout: Layout, view: View, n_workers: int) -> str:
    total = int(layout.rows.sum())
    if total < n_workers:
        return f"for {plural(total, 'row')} in all name fewer workers in workers="
    if any(m.label == "qid" for m in layout.members):
        return "groups are not cut: name fewer workers in workers=, or load more pieces"
    size, now = layout_bytes(layout), view.eligible_workers
    # workers to come are taken to be like those that there are
    threads = math.ceil(sum(w.nthreads for w in now) * n_workers / max(1, len(now)))
    known = None if isinstance(size, Unknown) else size
    n_pieces = chunking.piece_count(known, view, max(n_workers, threads))
    return "; ".join(_cut(m, total, n_pieces) for m in layout.members)


def _cut(member: Member, total: int, n_pieces: int) -> str:
    name = variable(member.label)
    if member.kind == "array":
        return f"{name} = {name}.rechunk({{0: {-(-total // n_pieces)}}})"
    return f"{name} = {name}.repartition(npartitions={n_pieces})"
