"""Event loops of workers or of the scheduler that come to nothing else.

Workers and scheduler talk, transfer and keep time in one thread each. A tick that
should come every 0.02 s and takes long means that something blocks it: a task that
holds Python's global lock, very large messages, or a host with too little CPU or
memory. Transfers, heartbeats and restarts then wait as well.

Remedy: fewer threads per worker for code that holds the global lock
(``--nthreads 1 --nworkers 8``); fewer and larger tasks where it is the scheduler; more
CPUs or memory where the host is short of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import Finding, Severity, View
from clustertune.core.wording import seconds_text, workers_text


def find(view: View, *, most: float = 0.5) -> Iterator[Finding]:
    """Find event loops that are blocked.

    Parameters
    ----------
    view
        What is seen.
    most
        Seconds between two ticks up to which nothing is said.
    """
    blocked = [w for w in view.now.workers if w.loop_delay > most]
    if blocked:
        worst = max(blocked, key=lambda w: w.loop_delay)
        yield Finding(
            severity=Severity.warning,
            message=f"the event loop of {workers_text([w.id for w in blocked])} is "
            f"blocked: {seconds_text(worst.loop_delay)} between two ticks of 0.02 s",
            subject=tuple(w.id for w in blocked),
            evidence={"seconds": worst.loop_delay, "executing": worst.executing},
        )
    survey = view.now.survey
    if survey is not None and survey.loop_delay > most:
        yield Finding(
            severity=Severity.warning,
            message="the scheduler's event loop is blocked: "
            f"{seconds_text(survey.loop_delay)} between two ticks of 0.02 s",
            subject=("scheduler",),
            evidence={"seconds": survey.loop_delay},
        )
