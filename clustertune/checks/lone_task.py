"""One worker works while all others wait.

A step that has one task only (a join of all pieces, a function of one big argument, a
library that trains on one worker) keeps one worker busy, and what comes after it waits.
It must be so for a while: every computation begins and ends with few tasks.

Remedy: cut the step into pieces; for a fit ``clustertune.prepare`` spreads the data,
and ``training`` has patterns for the rest.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import Finding, Severity, Snapshot, View
from clustertune.core.wording import plural, seconds_text, workers_text


def find(view: View, *, after: float = 30.0) -> Iterator[Finding]:
    """Find that a single worker has been at work.

    Parameters
    ----------
    view
        What is seen.
    after
        Seconds for which it must have been so.
    """
    alone = _alone(view.now)
    if not alone:
        return
    if len(view.snapshots) == 1:
        yield Finding(
            severity=Severity.unknown,
            message=f"whether {workers_text(alone)} works alone for long is unknown: "
            "one reading; use watch",
            subject=alone,
        )
        return
    _, seconds = view.lasting(_alone)
    if seconds >= after:
        others = len(view.now.workers) - 1
        yield Finding(
            severity=Severity.info,
            message=f"{workers_text(alone)} works alone for at least "
            f"{seconds_text(seconds)}; "
            f"{plural(others, 'worker waits', 'workers wait')}",
            subject=alone,
            evidence={"seconds": seconds, "waiting": others},
        )


def _alone(snapshot: Snapshot) -> tuple[str | int, ...]:
    """The only worker that has tasks, if there are several workers."""
    busy = tuple(w.id for w in snapshot.workers if w.processing)
    return busy if len(busy) == 1 and len(snapshot.workers) > 1 else ()
