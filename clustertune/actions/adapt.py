"""Raise the bounds of adaptive scaling to the requested number of workers.

Adaptive scaling counts tasks, and would close idle workers before the fit begins. The
previous bounds are restored at the end of a ``with`` block. No data is at risk.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.actions import by_port
from clustertune.core.model import Bounds, Finding, Price, Step, View
from clustertune.planner.forecast import wanted_workers


def propose(findings: tuple[Finding, ...], view: View) -> Iterator[Step]:
    """Propose one step if the bounds allow fewer workers than requested."""
    wanted = wanted_workers(view)
    was = view.now.adaptive
    if wanted is not None and isinstance(was, tuple) and was[0] < wanted:
        yield step(was, wanted, max(was[1], wanted))


def exactly(view: View, n_workers: int) -> Iterator[Step]:
    """Return one step if the bounds allow another number of workers."""
    was = view.now.adaptive
    if isinstance(was, tuple) and was != (n_workers, n_workers):
        yield step(was, n_workers, n_workers)


def step(was: tuple[int, float], least: int, most: float) -> Step:
    """Return a step that changes the bounds."""
    return Step(
        action="adapt",
        summary=f"set the bounds of adaptive scaling to {_text(least, most)} workers "
        f"instead of {_text(*was)}",
        price=Price(nbytes=0),
        gain="no worker is closed before the fit",
        args=Bounds(minimum=least, maximum=most),
    )


def _text(least: int, most: float) -> str:
    return f"{least}" if least == most else f"{least} to {most:g}"


enact = by_port("adapt")
