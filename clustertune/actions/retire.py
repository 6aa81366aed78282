"""Retire workers one at a time, after their keys have moved to the others.

A retirement begins like a restart; the empty worker is then closed. Workers with the
fewest bytes of unreplicated keys go first. Their keys move to wherever memory is free;
``prepare`` distributes them evenly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from clustertune.actions import by_port, restart
from clustertune.core.model import Finding, Price, Restart, Step, View, WorkerSnapshot
from clustertune.core.wording import bytes_text, plural, workers_text


def propose(findings: tuple[Finding, ...], view: View) -> Iterator[Step]:
    """Propose nothing: fewer workers fix no finding."""
    yield from ()


def steps(view: View, n_workers: int, *, wait: float = restart.WAIT) -> Iterator[Step]:
    """Return a step for each worker beyond ``n_workers``."""
    there = [w for w in view.now.workers if w.is_counted]
    least = sorted(there, key=_weight)
    going = least[: max(0, len(there) - n_workers)]
    leaving = frozenset(w.id for w in going)
    yield from of(view, leaving, wait=wait)


def of(
    view: View, leaving: frozenset[str | int], *, wait: float = restart.WAIT
) -> Iterator[Step]:
    """Return a step for each of these workers."""
    for step in restart.steps(view, leaving, wait=wait):
        yield _retired(step, view, leaving)


def _weight(worker: WorkerSnapshot) -> tuple[int, int, str]:
    """Sort key; workers with actors go last, because actors cannot be moved."""
    data = worker.held_data
    held = (0, 0) if data is None else (data.actors, data.nbytes)
    return *held, str(worker.id)


def _retired(step: Step, view: View, leaving: frozenset[str | int]) -> Step:
    assert isinstance(step.args, Restart)
    id = step.args.id
    data = view.now.by_address[step.args.address].held_data
    what = ""
    if data is not None and data.unique:
        what = (
            f"; {plural(data.unique, 'unreplicated key')} "
            f"({bytes_text(data.nbytes)}) move to the other workers"
        )
    nbytes = None if data is None else data.nbytes
    return replace(
        step,
        action="retire",
        summary=f"retire {workers_text([id])}{what}",
        gain="the cluster has the requested number of workers",
        price=Price(nbytes=nbytes, peak=nbytes),
        args=replace(
            step.args,
            retire=True,
            parking=False,
            process_limits=restart.Others(step.args.process_limits, leaving),
        ),
    )


enact = by_port("restart")
