"""Have workers give back memory that they do not need, without a restart.

Python's garbage is collected, and the C library's free memory is returned to the host
(``malloc_trim``, on Linux with glibc). That takes well under a second for each worker
and risks nothing; what is still in use, or leaks, stays. So it is the first thing to
try where unmanaged memory is high.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from clustertune.core.model import (
    Cluster,
    Finding,
    Notify,
    Price,
    Result,
    Step,
    Trim,
    View,
)
from clustertune.core.wording import bytes_text, workers_text
from clustertune.planner import memory


def propose(findings: tuple[Finding, ...], view: View) -> Iterator[Step]:
    """One step for all workers that a finding about memory names.

    Only before restarts by need, if nothing runs, and once.
    """
    idle = not any(w.busy for w in view.now.workers)
    if view.goal.restart == "auto" and idle:
        named = memory.warned(findings, memory.MEMORY)
        yield from steps(view, named - view.goal.trimmed)


def steps(view: View, ids: Collection[str | int]) -> Iterator[Step]:
    """One step for these workers together."""
    workers = [w for w in view.now.workers if w.id in ids and not w.parking]
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
