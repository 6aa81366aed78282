"""Workers that take no new tasks: paused, or about to close.

Dask pauses a worker whose process fills too much of its memory limit (0.80 by default).
It starts no task and is given no data until its memory falls, and memory that Dask does
not manage does not fall by itself (distributed#5999). A worker that is paused before
the fit is left out without a word; when one pauses after XGBoost has built its matrix,
the fit hangs. A worker that is ``closing_gracefully`` hands its data to others and
goes.

Paused workers on which the fit was not asked to run are only mentioned.

Remedy: free memory there: ``del`` collections that are no longer needed, then
``clustertune.trim(client)``. Memory that stays only goes with the process:
``clustertune.restart(client, workers=[...])``, which loses nothing. In place of a
worker that closes start another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clustertune.core.model import (
    Details,
    Finding,
    Severity,
    Snapshot,
    View,
    WorkerSnapshot,
)
from clustertune.core.wording import are, bytes_text, seconds_text, workers_text
from clustertune.planner.memory import levels


def find(view: View) -> Iterator[Finding]:
    """Find workers that are paused or closing."""
    wanted = view.goal.workers
    paused = _with_status(view.now, "paused")
    asked = tuple(id for id in paused if wanted is None or id in wanted)
    others = tuple(id for id in paused if id not in asked)
    if asked:
        yield _paused(view, asked, Severity.critical, "a fit that needs them can hang")
    if others:
        yield _paused(view, others, Severity.info, "the fit was not asked to run there")
    if closing := _with_status(view.now, "closing_gracefully"):
        yield Finding(
            severity=Severity.warning,
            message=f"{workers_text(closing)} {are(closing)} about to close and will "
            "not train",
            subject=closing,
        )


def _with_status(snapshot: Snapshot, status: str) -> tuple[str | int, ...]:
    return tuple(w.id for w in snapshot.workers if w.status == status and not w.parking)


def _paused(
    view: View, ids: tuple[str | int, ...], severity: Severity, effect: str
) -> Finding:
    workers = [w for w in view.now.workers if w.id in ids]
    seconds = _seconds(view, workers)
    whose = "" if len(ids) == 1 else "one of them "
    since = f", {whose}for at least {seconds_text(seconds)}" if seconds else ""
    worst = max(workers, key=lambda w: w.process / max(1, w.memory_limit))
    return Finding(
        severity=severity,
        message=f"{workers_text(ids)} {are(ids)} paused{since}: no task starts there "
        f"and no data is placed there; {effect}{_why(worst, len(ids))}",
        subject=ids,
        evidence={"seconds": seconds, "process_bytes": worst.process},
    )


def _seconds(view: View, workers: Sequence[WorkerSnapshot]) -> float:
    """For how long one of them has been paused, as far as anybody knows."""
    ids = {w.id for w in workers}
    _, seen = view.lasting(lambda s: ids & set(_with_status(s, "paused")))
    told = [w.details.paused for w in workers if isinstance(w.details, Details)]
    return max([seen, *(s for s in told if s is not None)])


def _why(worker: WorkerSnapshot, n_paused: int) -> str:
    """What the fullest of them has in memory, beside the threshold."""
    pause = next((x for x in levels(worker) if x.name == "pause"), None)
    if pause is None:
        return ""
    at = f"{pause.fraction:.0%} of its limit of {bytes_text(worker.memory_limit)}"
    which = "it" if n_paused == 1 else f"{workers_text([worker.id])}, the fullest,"
    if pause.room > 0:
        return (
            f"; by its last heartbeat {which} has {bytes_text(worker.process)} in "
            f"memory, below {at}: it has just paused, goes on soon, or was paused by "
            "hand"
        )
    return (
        f"; {which} has {bytes_text(worker.process)} in memory, above {at}: "
        f"{bytes_text(worker.managed)} of keys, {bytes_text(worker.unmanaged)} of "
        "anything else"
    )
