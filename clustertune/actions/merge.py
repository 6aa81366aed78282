"""Replace the workers of each host by one with all their threads and memory.

On each host the worker with the most bytes of unreplicated keys is resized to the
threads and memory limits of all workers there. Then the other workers move their keys
to it, and are retired. If it lacks memory, they also move keys to other hosts. At any
moment of an interruption all data is in memory, and the next merge goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from clustertune.actions import by_port, restart, retire
from clustertune.core.model import (
    Finding,
    Restart,
    Step,
    View,
    WorkerSize,
    WorkerSnapshot,
)
from clustertune.core.wording import workers_text
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
    sizes = [m.size for m in merges]
    sizes = [size for i, size in enumerate(sizes) if size not in sizes[:i]]
    for size in sizes:
        some = {m.kept.id: m for m in merges if m.size == size}
        for step in restart.steps(view, some.keys(), wait=wait, size=size, most=most):
            assert isinstance(step.args, Restart)
            merge = some.get(step.args.id)
            if merge is None:  # keys of an earlier restart are brought back, once
                if size == sizes[0]:
                    yield step
                continue
            yield replace(step, action="merge")
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
    for step in retire.of(later, frozenset(by_id), wait=wait):
        assert isinstance(step.args, Restart)
        merge = by_id.get(step.args.id)
        if merge is not None:
            yield _merged(step, merge)


def _merged(step: Step, merge: Merge) -> Step:
    """Return the retirement, with the kept worker as the target of the keys."""
    assert isinstance(step.args, Restart)
    args, id = step.args, merge.kept.id
    limits = args.process_limits
    if id in limits:
        needed = sum(w.held_data.nbytes for w in merge.others if w.held_data)
        kept = merge.size.given_to(merge.kept)
        if free_below(kept, limits[id]) >= needed:
            limits = {id: limits[id]}
    where = f"worker {id}" if len(limits) == 1 else "the other workers"
    return replace(
        step,
        action="merge",
        summary=step.summary.replace("the other workers", where),
        gain=f"{workers_text([id])} has its threads and its memory limit",
        args=replace(args, process_limits=limits, replaced_by=(id, merge.size)),
    )


enact = by_port("restart")
