"""Workers whose memory is at, or close to, a threshold at which Dask acts.

A worker acts at fractions of its own memory limit. At ``target`` (0.60, of *managed*
memory: Dask's keys by their own sizes) it writes a key to disk for each new one; at
``spill`` (0.70, of the *process*) it writes keys until it is below the target; at
``pause`` (0.80, of the process) it starts no more tasks; at ``terminate`` (0.95, of the
process) its nanny kills it. These are defaults: each worker is compared with its own.

During a fit the training task holds the data, so spilling writes files and frees
nothing: at 40 % real data 0.8 GB of useless files were written (XGBoost 3.2). A worker
that pauses when XGBoost's matrix is already built makes the fit hang.

Remedy: ``del`` collections that are no longer needed, or ``clustertune.release(client,
keep=[X, y])``; if process memory stays far above managed, ``clustertune.trim(client)``.
If that is not enough, add workers, or give them a higher limit:
``clustertune.resize(client, memory_limit=...)``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clustertune.core.model import Finding, Severity, View, WorkerFacts, WorkerSnapshot
from clustertune.core.wording import are, bytes_text, workers_text
from clustertune.planner.machines import unknown_findings
from clustertune.planner.memory import Level, levels

_CRITICAL = frozenset(("terminate", "pause"))


def find(view: View, *, near: float = 0.1) -> Iterator[Finding]:
    """Find workers at a threshold, with keys on disk, or close to a threshold.

    Parameters
    ----------
    view
        What is seen.
    near
        How close: fraction of the memory limit below the threshold.
    """
    reached: dict[str, list[Level]] = {}
    close: dict[str, list[Level]] = {}
    spilled: list[WorkerSnapshot] = []
    for worker in view.now.workers:
        at = [level for level in levels(worker) if level.room <= 0]
        below = [level for level in levels(worker) if level.room <= near]
        if at:
            reached.setdefault(at[0].name, []).append(at[0])
        elif worker.spilled:
            spilled.append(worker)
        elif below:
            nearest = min(below, key=lambda level: level.room)
            close.setdefault(nearest.name, []).append(nearest)
    for name, found in reached.items():
        severity = Severity.critical if name in _CRITICAL else Severity.warning
        yield _finding(severity, "at or over", found)
    if spilled:
        yield _on_disk(spilled)
    for found in close.values():
        yield _finding(Severity.info, "close to", found)
    yield from _unknown(view)


def _finding(severity: Severity, place: str, found: Sequence[Level]) -> Finding:
    worst = min(found, key=lambda level: level.room)
    ids = tuple(level.worker.id for level in found)
    whose = f"; {workers_text([worst.worker.id])} most" if len(ids) > 1 else ""
    return Finding(
        severity=severity,
        message=f"{workers_text(ids)} {are(ids)} {place} the {worst.name} "
        f"threshold{whose}: {worst}",
        subject=ids,
        evidence={
            "threshold": worst.name,
            f"{worst.measure}_bytes": worst.used,
            "limit_bytes": worst.worker.memory_limit,
        },
    )


def _on_disk(workers: Sequence[WorkerSnapshot]) -> Finding:
    ids, spilled = tuple(w.id for w in workers), sum(w.spilled for w in workers)
    return Finding(
        severity=Severity.warning,
        message=f"{bytes_text(spilled)} of keys at {workers_text(ids)} are on disk; "
        "whatever uses them reads them back into memory first",
        subject=ids,
        evidence={"spilled_bytes": spilled},
    )


def _unknown(view: View) -> Iterator[Finding]:
    limited = [(w, w.facts) for w in view.now.workers if w.memory_limit]
    terminate = [
        (worker, facts.thresholds.terminate)
        for worker, facts in limited
        if isinstance(facts, WorkerFacts)
    ]
    yield from unknown_findings("memory thresholds", limited)
    yield from unknown_findings("terminate threshold", terminate)
