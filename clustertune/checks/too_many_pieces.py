"""Pieces that are so many and so small that handling them costs more than their work.

Every piece is a task to schedule, a key to keep and a block to join before the fit. Up
to 32 pieces a worker LightGBM took as long as with one; with 256 of 0.16 MB on workers
of one thread the fit took 40 % longer, and XGBoost spent 0.6 s more on a fit of 1.5 s
before it began. Many pieces are harmless while they are large, and small pieces while
they are few, so both limits must be exceeded. Eight times the limit (``excess``) is
critical for training data: the scheduler then has more to do than the workers. Not so
where that number was asked for (``rechunk=80``), or is kept as the model depends on it.

Remedy: ``X, y = clustertune.prepare(client, X, y)`` joins them. By hand, before
loading, arrays with ``X = X.rechunk({0: rows})``, frames with
``X = X.repartition(partition_size="100MB")``, all of them at the same rows; one piece a
thread is enough.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import Finding, Layout, Severity, Unknown, View
from clustertune.core.wording import bytes_text, plural
from clustertune.errors import AlignmentError
from clustertune.planner import suitability
from clustertune.planner.layouts import layout_bytes

ERROR = AlignmentError


def find(
    view: View, *, small: int = suitability.SMALL, excess: float = 8.0
) -> Iterator[Finding]:
    """Find layouts with too many pieces for each thread, all of them small.

    Parameters
    ----------
    view
        What is seen.
    small
        Bytes of a mean piece from which on no number of pieces is too large.
    excess
        Times the workload's limit of pieces at which it is critical.
    """
    threads = sum(w.nthreads for w in view.eligible_workers)
    limit = view.goal.workload.max_pieces_per_thread
    for number, layout in enumerate(view.layouts):
        if not suitability.too_many(layout, view, small):
            continue
        n_pieces = max(m.n_pieces for m in layout.members)
        size = layout_bytes(layout)
        if isinstance(size, Unknown):
            yield _finding(layout, Severity.unknown, n_pieces, threads, size, "")
        else:
            wanted = number == 0 and _is_wanted(n_pieces, layout, view)
            worse = number == 0 and n_pieces > excess * limit * threads and not wanted
            severity = Severity.critical if worse else Severity.warning
            cutting = "" if wanted else view.goal.cutting
            yield _finding(layout, severity, n_pieces, threads, size, cutting)


def _is_wanted(n_pieces: int, layout: Layout, view: View) -> bool:
    """Whether so many were asked for, or made the model before: they are not joined."""
    if not isinstance(view.goal.rechunk, bool):
        return n_pieces == view.goal.rechunk
    n_rows = int(layout.rows.sum()) if layout.aligned else None
    return view.goal.workload.keeps_pieces and view.goal.kept == (n_rows, n_pieces)


def _finding(
    layout: Layout,
    severity: Severity,
    n_pieces: int,
    threads: int,
    size: int | Unknown,
    cutting: str,
) -> Finding:
    if isinstance(size, Unknown):
        text = f"their size is {size}"
    else:
        text = f"{bytes_text(size / n_pieces)} each"
    return Finding(
        severity=severity,
        message=f"the {layout.label} is in {plural(n_pieces, 'piece')} for "
        f"{plural(threads, 'thread')}: {text}",
        subject=tuple(m.label for m in layout.members),
        evidence={"pieces": n_pieces, "threads": threads},
        fixed_by=cutting,
    )
