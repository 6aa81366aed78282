"""Idle workers whose process holds much memory that is no key of Dask's.

What tasks and native libraries leave behind (caches, fragmented heaps, leaks) is
unmanaged: Dask can neither move nor spill it, and it comes off what a fit may use. Some
is normal: Python and the usual libraries take 0.2 to 0.3 GiB. Only workers without
tasks are looked at, since a task that runs may need its memory.

One look cannot tell a leak from a cache; ``memory_growth`` compares runs.

Remedy: ``clustertune.trim(client)``. What stays goes only with the process:
``clustertune.restart(client)``, which loses nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import Finding, Severity, View, WorkerSnapshot
from clustertune.core.wording import are, bytes_text, workers_text

USUAL = 300 * 2**20  # bytes: Python, Dask, NumPy, pandas, pyarrow and a library


def find(view: View, *, share: float = 0.3) -> Iterator[Finding]:
    """Find idle workers with too much unmanaged memory.

    Parameters
    ----------
    view
        What is seen.
    share
        How much of its limit a worker may hold beyond what is usual, as a fraction.
    """
    found = [w for w in view.now.workers if _beyond(w) > share]
    if not found:
        return
    worst = max(found, key=_beyond)
    ids = tuple(w.id for w in found)
    whose = f"; {workers_text([worst.id])} most" if len(ids) > 1 else ""
    yield Finding(
        severity=Severity.warning,
        message=f"{workers_text(ids)} {are(ids)} idle, with much memory "
        f"that is no key of Dask's{whose}: {bytes_text(worst.unmanaged)} of the limit "
        f"of {bytes_text(worst.memory_limit)}",
        subject=ids,
        evidence={
            "unmanaged_bytes": worst.unmanaged,
            "limit_bytes": worst.memory_limit,
        },
    )


def _beyond(worker: WorkerSnapshot) -> float:
    """Unmanaged memory beyond the usual over the limit; 0 where it may be in use.

    Workers without processes of their own share one with the client.
    """
    busy = worker.processing or worker.executing
    if busy or not worker.memory_limit or worker.address.startswith("inproc://"):
        return 0.0
    return max(0, worker.unmanaged - USUAL) / worker.memory_limit
