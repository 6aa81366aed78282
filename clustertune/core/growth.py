"""Whether the unmanaged memory of a worker grows from run to run (pure).

The check ``memory_growth``, the condition ``leak`` of scheduled restarts and the trends
of the history all use this rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

#: how a run ends, the most explicit way first
ENDS = ("hold", "training", "gap")
ENOUGH = 3  # runs: two steps
LAST = 10  # runs, so that a leak which begins late is found
MOSTLY = 0.8  # of the steps have to be that large


class Left(NamedTuple):
    """Bytes that a worker kept after a run."""

    run: int  # its number
    unmanaged: int
    managed: int = 0


def alike(ends: Sequence[str]) -> list[list[int]]:
    """Group the positions of runs by how they ended; small groups are left out.

    A fit and the computation after it are two runs. Compared with each other, a leak
    in each fit would show only in every second step.
    """
    groups = [[i for i, end in enumerate(ends) if end == way] for way in ENDS]
    return [group[-LAST:] for group in groups if len(group) >= ENOUGH]


def step(left: Sequence[Left], least: float) -> float | None:
    """Return the bytes by which memory grows per run, or None if it does not.

    Parameters
    ----------
    left
        Memory of one worker after runs that ended alike, oldest first. Runs after
        which it sent no heartbeat in time are left out.
    least
        Bytes that nearly every step must have.
    """
    if len(left) < ENOUGH:
        return None
    # Unmanaged memory that arrives together with data is no leak.
    steps = [
        (then.unmanaged - before.unmanaged - max(0, then.managed - before.managed))
        / (then.run - before.run)
        for before, then in pairwise(left)
    ]
    large = sum(one >= least and one > 0 for one in steps)
    return median(steps) if large >= MOSTLY * len(steps) else None
