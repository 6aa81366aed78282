"""Scale the cluster to the requested number of workers, and wait for them.

New workers hold no data, and do not train until ``rebalance`` places data on them. No
data is at risk: workers are only added.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.actions import by_port
from clustertune.core.model import Finding, Price, Step, View
from clustertune.planner.forecast import wanted_workers


def propose(findings: tuple[Finding, ...], view: View) -> Iterator[Step]:
    """Propose one step if workers are missing."""
    wanted = wanted_workers(view)
    # paused workers count: additional workers would not help them
    there = sum(w.is_counted for w in view.now.workers)
    missing = any(f.check == "missing_workers" for f in findings)
    if wanted is None or there >= wanted or not missing:
        return
    yield step(there, wanted)


def step(there: int, wanted: int) -> Step:
    """Return a step from one number of workers to another."""
    return Step(
        action="scale",
        summary=f"scale from {there} to {wanted} workers and wait for them",
        price=Price(nbytes=0),
        gain=f"{wanted} workers can train instead of {there}",
        args=wanted,
    )


enact = by_port("scale")
