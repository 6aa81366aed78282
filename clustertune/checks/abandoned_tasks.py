"""Workers that run tasks which nobody waits for any more.

When a client goes while its training task runs, the scheduler forgets the task, but the
thread on the worker cannot be stopped: it goes on, keeps its data and CPUs, and XGBoost
or LightGBM wait there for partners that will never come. The worker calls such a task
cancelled. A short one ends by itself, so it must hold over several looks.

Remedy: ``clustertune.restart(client, workers=[...])`` for these workers, once what they
still run may be cut off; they lose nothing of what they hold.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import Finding, Severity, Snapshot, View
from clustertune.core.wording import plural, seconds_text, workers_text


def find(view: View, *, after: float = 10.0) -> Iterator[Finding]:
    """Find workers that do what nobody asks for.

    Parameters
    ----------
    view
        What is seen.
    after
        Seconds for which it must have been so.
    """
    now = _abandoned(view.now)
    if not now:
        return
    if len(view.snapshots) == 1:
        yield Finding(
            severity=Severity.unknown,
            message=f"whether {workers_text(now)} run tasks that nobody waits for for "
            "long is unknown: one reading; use watch",
            subject=now,
        )
        return
    lasting, seconds = view.lasting(_abandoned)
    if seconds < after:
        return
    ids = tuple(i for i in now if i in lasting)
    tasks = sum(w.cancelled for w in view.now.workers if w.id in ids)
    yield Finding(
        severity=Severity.warning,
        message=f"{workers_text(ids)} have run {plural(tasks, 'task')} that nobody "
        f"waits for, for at least {seconds_text(seconds)}",
        subject=ids,
        evidence={"tasks": tasks, "seconds": seconds},
    )


def _abandoned(snapshot: Snapshot) -> tuple[str | int, ...]:
    return tuple(w.id for w in snapshot.workers if w.cancelled)
