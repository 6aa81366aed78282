"""Return free memory of workers to their hosts, without a restart.

Workers collect Python's garbage and return the C library's free memory
(``malloc_trim``, on Linux with glibc). This takes well under a second, and no data is
at risk. Memory that is in use or leaks remains.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from clustertune.actions import by_port
from clustertune.core.model import Finding, Price, Step, Trim, View
from clustertune.core.wording import bytes_text, workers_text
from clustertune.planner import memory


def propose(findings: tuple[Finding, ...], view: View) -> Iterator[Step]:
    """Propose one step for all workers that a finding about memory names.

    Only with ``restart="auto"``, if nothing runs, and once for each worker.
    """
    idle = not any(w.busy for w in view.now.workers)
    if view.goal.restart == "auto" and idle:
        named = memory.warned(findings, memory.MEMORY)
        included = set(filter(view.goal.includes, named))
        yield from steps(view, included - view.goal.trimmed)


def steps(view: View, ids: Collection[str | int]) -> Iterator[Step]:
    """Return one step for all these workers."""
    workers = [w for w in view.now.workers if w.id in ids and not w.parking]
    if workers:
        unmanaged = sum(w.unmanaged for w in workers)
        yield Step(
            action="trim",
            summary=f"trim the memory of {workers_text([w.id for w in workers])}",
            price=Price(nbytes=0),
            gain=f"frees some of {bytes_text(unmanaged)} of unmanaged memory",
            args=Trim(workers={w.address: w.id for w in workers}),
        )


enact = by_port("trim")
