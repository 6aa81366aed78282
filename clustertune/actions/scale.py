"""Bring the cluster to the number of workers that was asked for, and wait for them.

New workers hold no data and take no part in training until it is placed on them,
which is what ``rebalance`` does next. Nothing is at risk: workers are only added.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import Cluster, Finding, Notify, Price, Result, Step, View
from clustertune.planner.forecast import wanted_workers


def propose(findings: tuple[Finding, ...], view: View) -> Iterator[Step]:
    """One step, if workers are missing."""
    wanted = wanted_workers(view)
    # one that is paused counts: more workers than were asked for would not mend it
    there = sum(w.stays for w in view.now.workers)
    missing = any(f.check == "missing_workers" for f in findings)
    if wanted is None or there >= wanted or not missing:
        return
    yield step(there, wanted)


def step(there: int, wanted: int) -> Step:
    """From so many workers to so many more."""
    return Step(
        action="scale",
        summary=f"scale from {there} to {wanted} workers and wait for them",
        price=Price(nbytes=0, seconds=None),
        gain=f"{wanted} workers can train instead of {there}",
        args=wanted,
    )


async def enact(step: Step, cluster: Cluster, notify: Notify) -> Result:
    """Scale and wait."""
    assert isinstance(step.args, int)
    return await cluster.scale(step.args, notify)
