"""Take workers away, one at a time, after their keys have moved to the others.

Like a restart up to the moment at which a worker is empty; then it is closed instead.
Those go first that alone hold least. What only they held lies on the others afterwards,
as room allows; ``prepare`` places it evenly again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from clustertune.actions import restart
from clustertune.core.model import (
    Cluster,
    Finding,
    Notify,
    Price,
    Restart,
    Result,
    Step,
    View,
    WorkerSnapshot,
)
from clustertune.core.wording import bytes_text, plural, workers_text


def propose(findings: tuple[Finding, ...], view: View) -> Iterator[Step]:
    """None: no finding is put right by having fewer workers."""
    yield from ()


def steps(view: View, n_workers: int, *, wait: float = restart.WAIT) -> Iterator[Step]:
    """A step for each worker that has to go for so many to remain."""
    there = [w for w in view.now.workers if w.stays]
    least = sorted(there, key=_weight)
    going = least[: max(0, len(there) - n_workers)]
    leaving = frozenset(w.id for w in going)
    for step in restart.steps(view, leaving, wait=wait):
        yield _retired(step, view, leaving)


def _weight(worker: WorkerSnapshot) -> tuple[int, int, str]:
    """Actors cannot be moved, so their workers go last."""
    burden = worker.burden
    held = (0, 0) if burden is None else (burden.actors, burden.nbytes)
    return *held, str(worker.id)


def _retired(step: Step, view: View, leaving: frozenset[str | int]) -> Step:
    assert isinstance(step.args, Restart)
    id = step.args.id
    burden = view.now.by_address[step.args.address].burden
    what = ""
    if burden is not None and burden.unique:
        what = (
            f"; {plural(burden.unique, 'key')} that only it holds "
            f"({bytes_text(burden.nbytes)}) go to the others"
        )
    nbytes = None if burden is None else burden.nbytes
    return replace(
        step,
        action="retire",
        summary=f"take {workers_text([id])} away{what}",
        gain="as was asked for",
        price=Price(nbytes=nbytes, seconds=None, peak=nbytes),
        args=replace(
            step.args,
            retire=True,
            parking=False,
            ceilings=restart.Others(step.args.ceilings, leaving),
        ),
    )


async def enact(step: Step, cluster: Cluster, notify: Notify) -> Result:
    """Empty it and close it, as the resident carries it out."""
    assert isinstance(step.args, Restart)
    return await cluster.restart(step.args, notify)
