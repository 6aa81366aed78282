"""Have a cluster that scales by itself keep the number of workers that was asked for.

Adaptive scaling counts tasks and would close workers that a fit is to use before it has
begun. So its least number of workers is raised first; the bounds that it had are
remembered, and put back at the end of a ``with`` block. Nothing is at risk.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import (
    Bounds,
    Cluster,
    Finding,
    Notify,
    Price,
    Result,
    Step,
    View,
)
from clustertune.planner.forecast import wanted_workers


def propose(findings: tuple[Finding, ...], view: View) -> Iterator[Step]:
    """One step, if workers were asked for and might be taken away again."""
    wanted = wanted_workers(view)
    was = view.now.adaptive
    if wanted is not None and isinstance(was, tuple) and was[0] < wanted:
        yield step(was, wanted, max(was[1], wanted))


def exactly(view: View, n_workers: int) -> Iterator[Step]:
    """One step, if scaling might leave so many workers, whether up or down."""
    was = view.now.adaptive
    if isinstance(was, tuple) and was != (n_workers, n_workers):
        yield step(was, n_workers, n_workers)


def step(was: tuple[int, float], least: int, most: float) -> Step:
    """From some bounds to others."""
    return Step(
        action="adapt",
        summary=f"have the cluster, which scales by itself, keep {_text(least, most)} "
        f"workers instead of {_text(*was)}",
        price=Price(nbytes=0, seconds=None),
        gain="none of them is closed before the fit",
        args=Bounds(least=least, most=most),
    )


def _text(least: int, most: float) -> str:
    return f"{least}" if least == most else f"{least} to {most:g}"


async def enact(step: Step, cluster: Cluster, notify: Notify) -> Result:
    """Set the bounds."""
    assert isinstance(step.args, Bounds)
    return await cluster.adapt(step.args, notify)
