"""Workers that take no new tasks: paused, or about to close.

Dask pauses a worker whose process fills too much of its memory limit (0.80 by default).
It starts no task and is given no data until its memory falls, and memory that Dask does
not manage does not fall by itself (distributed#5999). A worker that is paused before
the fit is left out without a word; when one pauses after XGBoost has built its matrix,
the fit hangs. A worker that is ``closing_gracefully`` hands its data to others and
goes.

Paused workers on which the fit was not asked to run are only mentioned.

Remedy: free memory there: ``del`` collections that are no longer needed, then
``client.run(gc.collect)``. Memory that stays only goes with the process:
``client.restart_workers([address])`` loses what the worker holds, so load the data
again afterwards. In place of a worker that closes start another.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.model import Finding, Severity, View
from clustertune.wording import are, seconds_text, workers_text


def find(view: View) -> Iterator[Finding]:
    """Find workers that are paused or closing."""
    wanted = view.goal.workers
    paused = _with_status(view, "paused")
    asked = tuple(id for id in paused if wanted is None or id in wanted)
    others = tuple(id for id in paused if id not in asked)
    if asked:
        yield _paused(view, asked, Severity.critical, "a fit that needs them can hang")
    if others:
        yield _paused(view, others, Severity.info, "the fit was not asked to run there")
    if closing := _with_status(view, "closing_gracefully"):
        yield Finding(
            severity=Severity.warning,
            message=f"{workers_text(closing)} {are(closing)} about to close and will "
            "not train",
            subject=closing,
        )


def _with_status(view: View, status: str) -> tuple[str | int, ...]:
    return tuple(w.id for w in view.now.workers if w.status == status)


def _paused(
    view: View, ids: tuple[str | int, ...], severity: Severity, effect: str
) -> Finding:
    seconds = _seconds_paused(view, ids)
    whose = "" if len(ids) == 1 else "one of them "
    since = f", {whose}for at least {seconds_text(seconds)}" if seconds else ""
    return Finding(
        severity=severity,
        message=f"{workers_text(ids)} {are(ids)} paused{since}: no task starts there "
        f"and no data is placed there; {effect}",
        subject=ids,
        evidence={"seconds": seconds},
    )


def _seconds_paused(view: View, ids: tuple[str | int, ...]) -> float:
    """How long, as far as the snapshots go back, one of them has been paused."""
    still, since = set(ids), view.now.time
    for snapshot in reversed(view.snapshots):
        still &= {w.id for w in snapshot.workers if w.status == "paused"}
        if not still:
            break
        since = snapshot.time
    return view.now.time - since
