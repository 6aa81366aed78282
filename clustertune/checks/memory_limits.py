"""Hosts whose workers may use more memory together than there is.

Each worker acts on its own limit and does not know of the others. Where the limits on a
host add up to more than its memory, or than what its container may use, the kernel
kills a process before any worker has reached a threshold: without a warning, and
perhaps not the one that grew. Dask sees the limit of the innermost cgroup only.

Remedy: ``clustertune.resize(client, memory_limit=...)``, or start workers with
``--memory-limit`` at most the host's memory divided by their number, or
``--memory-limit auto``, which does so for the workers of one command.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import Finding, Severity, Unknown, View
from clustertune.core.wording import bytes_text, names_text, plural
from clustertune.planner.machines import by_host, host_memory


def find(view: View, *, slack: float = 0.02) -> Iterator[Finding]:
    """Find hosts where limits add up to more than the memory.

    Parameters
    ----------
    view
        What is seen.
    slack
        By how much they may, as a fraction of the host's memory.
    """
    for host, workers in by_host(view.now.workers).items():
        memory = host_memory(workers)
        limits = sum(w.memory_limit for w in workers)
        if isinstance(memory, Unknown) or limits <= (1 + slack) * memory:
            continue
        yield Finding(
            severity=Severity.warning,
            message=f"limits of {plural(len(workers), 'worker')} on host "
            f"{names_text([host])} add up to {bytes_text(limits)}, but they can have "
            f"{bytes_text(memory)} together",
            subject=tuple(w.id for w in workers),
            evidence={"limits_bytes": limits, "memory_bytes": memory},
        )
