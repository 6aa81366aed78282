"""Replace the workers of each host by one with all their threads and memory.

On each host the worker with the most bytes of unreplicated keys is resized to the
threads and memory limits of all workers there. Then the other workers move their keys
to it, and are retired. If it lacks memory, they also move keys to other hosts. At any
moment of an interruption all data is in memory, and the next merge goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from clustertune.actions import restart
from clustertune.core.model import (
    Finding,
    Retire,
    Step,
    View,
    WorkerSize,
    WorkerSnapshot,
)
from clustertune.errors import RefusedError
from clustertune.planner import guards
from clustertune.planner.machines import (
    Workers,
    merge_obstacle,
    merged_size,
    shared_hosts,
)
from clustertune.planner.memory import free_below

_REFUSED = "refused, and nothing was changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """The workers of a host that become one."""

    kept: WorkerSnapshot
    others: Workers
    size: WorkerSize  # of the kept worker


def propose(findings: tuple[Finding, ...], view: View) -> Iterator[Step]:
    """Propose the steps of :func:`steps` if the goal requests them.

    Raises
    ------
    RefusedError
        A guard refuses a step. Half a merge would leave a host with more threads.
    """
    if not view.goal.merge_workers:
        return
    yield from _allowed(steps(view, view.goal.workers), view)


def _allowed(proposed: Iterable[Step], view: View) -> list[Step]:
    """Return the steps if no guard refuses one of them; otherwise raise the refusal."""
    found = list(guards.sort_out(proposed, view))
    for step, refusal in found:
        if refusal is not None:
            raise RefusedError(f"{_REFUSED}: {step.summary}: {refusal.reason}")
    return [step for step, _ in found]


def steps(
    view: View,
    ids: Collection[str | int] | None = None,
    *,
    wait: float = restart.WAIT,
    most: float = 1,
) -> Iterator[Step]:
    """Return the resizes of the kept workers, then the retirements of the others.

    ``ids`` are of the workers that may become one; None means all. At most ``most``
    workers are resized at the same time.

    Raises
    ------
    RefusedError
        One worker cannot replace those of a host; the text has a fix.
    """
    merges = _merges(view, ids)
    if merges:
        yield from restart.bring_back(view, wait)
    sizes = [m.size for m in merges]
    for size in [size for i, size in enumerate(sizes) if size not in sizes[:i]]:
        kept = {m.kept.id for m in merges if m.size == size}
        yield from restart.resizes(
            view, kept, size, wait=wait, most=most, action="merge"
        )
    yield from _retirements(merges, view, wait)


def _merges(view: View, ids: Collection[str | int] | None) -> list[Merge]:
    """Return the merge of each host with several of these workers."""
    merges = []
    for workers in shared_hosts(view.now, ids):
        reason = merge_obstacle(workers, view.now)
        size = merged_size(workers)
        if reason is not None or size is None:
            raise RefusedError(f"{_REFUSED}: {reason}")
        kept = min(workers, key=lambda w: _rank(w, size))
        others = tuple(w for w in workers if w is not kept)
        merges.append(Merge(kept=kept, others=others, size=size))
    return merges


def _rank(worker: WorkerSnapshot, size: WorkerSize) -> tuple[bool, int, bool, int, str]:
    """Sort key of the workers of a host; the first one is kept."""
    whole = size.given_to(worker) == worker  # left by an interrupted merge
    data = worker.held_data
    number = worker.id if isinstance(worker.id, int) else 0
    named = isinstance(worker.id, str)
    return not whole, -data.nbytes if data else 0, named, number, str(worker.id)


def _retirements(merges: list[Merge], view: View, wait: float) -> Iterator[Step]:
    """Return the retirement of each worker that is not kept, after the resizes."""
    sizes = {m.kept.id: m.size for m in merges}
    workers = tuple(
        sizes[w.id].given_to(w) if w.id in sizes else w for w in view.now.workers
    )
    later = guards.with_workers(view, workers)
    by_id = {w.id: m for m in merges for w in m.others}
    for worker, args in restart.ends(later, by_id, wait=wait, leaving=by_id):
        merge = by_id[worker.id]
        id = merge.kept.id
        limits = _limits(merge, args["process_limits"])
        where = f"worker {id}" if len(limits) == 1 else restart.OTHERS
        yield Step(
            action="merge",
            summary=restart.summary("retire", worker, where),
            price=restart.price(worker),
            args=Retire(
                **args | {"process_limits": limits}, replaced_by=(id, merge.size)
            ),
        )


def _limits(merge: Merge, limits: Mapping[str | int, int]) -> Mapping[str | int, int]:
    """Return the limit of the kept worker only, if it has room for all keys."""
    id = merge.kept.id
    if id in limits:
        needed = sum(w.held_data.nbytes for w in merge.others if w.held_data)
        if free_below(merge.size.given_to(merge.kept), limits[id]) >= needed:
            return {id: limits[id]}
    return limits
