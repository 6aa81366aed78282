"""Scale the cluster to the requested number of workers, and wait for them.

New workers hold no data, and do not train until ``rebalance`` places data on them. No
data is at risk: workers are only added. Adaptive scaling counts tasks, and would close
idle workers before the fit begins. So its bounds are raised, and restored at the end of
a ``with`` block.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import Bounds, Finding, Price, Step, View
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
        args=wanted,
    )


# --- bounds of adaptive scaling -------------------------------------------------------


def propose_bounds(findings: tuple[Finding, ...], view: View) -> Iterator[Step]:
    """Propose one step if the bounds allow fewer workers than requested."""
    wanted = wanted_workers(view)
    was = view.now.adaptive
    if wanted is not None and isinstance(was, tuple) and was[0] < wanted:
        yield bounds_step(was, wanted, max(was[1], wanted))


def exact_bounds(view: View, n_workers: int) -> Iterator[Step]:
    """Return one step if the bounds allow another number of workers."""
    was = view.now.adaptive
    if isinstance(was, tuple) and was != (n_workers, n_workers):
        yield bounds_step(was, n_workers, n_workers)


def bounds_step(was: tuple[int, float], least: int, most: float) -> Step:
    """Return a step that changes the bounds."""
    return Step(
        action="adapt",
        summary="set the bounds of adaptive scaling to "
        f"{_bounds_text(least, most)} workers instead of {_bounds_text(*was)}",
        price=Price(nbytes=0),
        args=Bounds(minimum=least, maximum=most),
    )


def _bounds_text(least: int, most: float) -> str:
    return f"{least}" if least == most else f"{least} to {most:g}"
