"""Workers from which the scheduler has not heard for a while.

A worker tells the scheduler of itself every second or so. When that stays away for
``distributed.scheduler.worker-ttl`` (5 minutes), the scheduler gives the worker up,
with all that it holds, and the fit fails or hangs (distributed#6324). Native code that
keeps Python's global lock, a host that swaps, and a network that is cut do that.

Remedy: see the worker's log and its host (memory, swap). If native code holds the lock
for minutes, raise ``distributed.scheduler.worker-ttl`` where the scheduler is started.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import Finding, Severity, View
from clustertune.core.wording import are, seconds_text, workers_text

USUAL_TTL = 300.0  # seconds: Dask's default


def find(view: View, *, after: float = 30.0) -> Iterator[Finding]:
    """Find workers that are silent.

    Parameters
    ----------
    view
        What is seen.
    after
        Seconds of silence up to which nothing is said.
    """
    silent = [w for w in view.now.workers if w.silent > after]
    if not silent:
        return
    survey = view.now.survey
    ttl = USUAL_TTL if survey is None else survey.worker_ttl
    longest = max(silent, key=lambda w: w.silent)
    ids = tuple(w.id for w in silent)
    busy = any(w.executing or w.processing for w in silent)
    limit = "" if ttl is None else f"; after {seconds_text(ttl)} it is given up"
    critical = ttl is not None and longest.silent > 0.5 * ttl
    yield Finding(
        severity=Severity.critical if critical else Severity.warning,
        message=f"{workers_text(ids)} {are(ids)} silent, {workers_text([longest.id])} "
        f"for {seconds_text(longest.silent)}{limit}"
        + ("; a task runs there, which may hold Python's global lock" if busy else ""),
        subject=ids,
        evidence={"seconds": longest.silent, "worker_ttl": ttl},
    )
