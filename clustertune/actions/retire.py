"""Retire workers one at a time, after their keys have moved to the others.

A retirement begins like a restart; the empty worker is then closed. Workers with the
fewest bytes of unreplicated keys go first. Their keys move to wherever memory is free;
``prepare`` distributes them evenly.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.actions import by_port, restart
from clustertune.core.model import Finding, Retire, Step, View, WorkerSnapshot

OTHERS = "the other workers"


def propose(findings: tuple[Finding, ...], view: View) -> Iterator[Step]:
    """Propose nothing: fewer workers fix no finding."""
    yield from ()


def steps(view: View, n_workers: int, *, wait: float = restart.WAIT) -> Iterator[Step]:
    """Return a step for each worker beyond ``n_workers``."""
    there = [w for w in view.now.workers if w.is_counted]
    least = sorted(there, key=_weight)
    going = least[: max(0, len(there) - n_workers)]
    leaving = frozenset(w.id for w in going)
    yield from restart.bring_back(view, wait)
    for worker, args in restart.ends(view, leaving, wait=wait, leaving=leaving):
        yield Step(
            action="retire",
            summary=restart.summary("retire", worker, OTHERS),
            price=restart.price(worker),
            gain="the cluster has the requested number of workers",
            args=Retire(**args),
        )


def _weight(worker: WorkerSnapshot) -> tuple[int, int, str]:
    """Sort key; workers with actors go last, because actors cannot be moved."""
    data = worker.held_data
    held = (0, 0) if data is None else (data.actors, data.nbytes)
    return *held, str(worker.id)


enact = by_port("restart")
