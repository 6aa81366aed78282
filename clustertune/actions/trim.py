"""Have workers give back memory that they do not need, without a restart.

Python's garbage is collected, and the C library's free memory is returned to the host
(``malloc_trim``, on Linux with glibc). That takes well under a second for each worker
and risks nothing; what is still in use, or leaks, stays. So it is the first thing to
try where unmanaged memory is high.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from clustertune.model import (
    Cluster,
    Finding,
    Notify,
    Price,
    Result,
    Severity,
    Step,
    Trim,
    View,
)
from clustertune.wording import bytes_text, workers_text

CURED = ("unmanaged_memory", "memory_pressure", "paused_workers", "memory_growth")


def propose(findings: tuple[Finding, ...], view: View) -> Iterator[Step]:
    """One step for all workers that a finding about memory names."""
    named = {
        id
        for f in findings
        if f.check in CURED and f.severity >= Severity.warning
        for id in f.subject
    }
    yield from steps(view, named)


def steps(view: View, ids: Collection[str | int]) -> Iterator[Step]:
    """One step for these workers together."""
    workers = [w for w in view.now.workers if w.id in ids]
    if workers:
        unmanaged = sum(w.unmanaged for w in workers)
        yield Step(
            action="trim",
            summary=f"have {workers_text([w.id for w in workers])} give memory back",
            price=Price(nbytes=0, seconds=None),
            gain=f"some of {bytes_text(unmanaged)} that no key of Dask's accounts for",
            args=Trim(workers={w.address: w.id for w in workers}),
        )


async def enact(step: Step, cluster: Cluster, notify: Notify) -> Result:
    """Trim them, all at once."""
    assert isinstance(step.args, Trim)
    return await cluster.trim(step.args, notify)
