"""Change the number of workers: add some, retire some, or merge those of a host.

New workers hold no data, and do not train until partitions are moved to them. No data
is at risk: workers are only added. Adaptive scaling counts tasks, and would close idle
workers before the fit begins. So its bounds are raised, and restored at the end of a
``with`` block.

A retirement begins like a restart; the empty worker is then closed.

A merge replaces the workers of each host by one with all their threads and memory. On
each host the worker with the most bytes of unreplicated keys is resized to the threads
and memory limits of all workers there. Then the other workers move their keys to it,
and are retired. If it lacks memory, they also move keys to other hosts. At any moment
of an interruption all data is in memory, and the next merge goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from clustertune.actions import restart
from clustertune.core.model import (
    Bounds,
    Finding,
    Price,
    Retire,
    Step,
    View,
    WorkerSize,
    WorkerSnapshot,
)
from clustertune.errors import RefusedError
from clustertune.planner import guards
from clustertune.planner.forecast import wanted_workers
from clustertune.planner.machines import (
    Workers,
    merge_obstacle,
    merged_size,
    shared_hosts,
)
from clustertune.planner.memory import free_below

OTHERS = "the other workers"
_REFUSED = "refused, and nothing was changed"


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


# --- retirements ----------------------------------------------------------------------


def retirements(
    view: View, n_workers: int, *, wait: float = restart.WAIT
) -> Iterator[Step]:
    """Return a step for each worker beyond ``n_workers``.

    One running worker stays, since a cluster of paused workers runs no task.
    """
    there = [w for w in view.now.workers if w.is_counted]
    running = (w for w in there if w.running)
    stays = max(running, key=_keys_to_move, default=None)
    least = sorted(there, key=lambda w: (w is stays, _keys_to_move(w)))
    going = least[: max(0, len(there) - n_workers)]
    leaving = frozenset(w.id for w in going)
    yield from restart.bring_back(view, wait)
    for worker, args in restart.ends(view, leaving, wait=wait, leaving=leaving):
        yield Step(
            action="retire",
            summary=restart.summary("retire", worker, OTHERS),
            price=restart.price(worker),
            args=Retire(**args),
        )


def _keys_to_move(worker: WorkerSnapshot) -> tuple[int, int, str]:
    """Sort key; workers with actors go last, because actors cannot be moved."""
    data = worker.held_data
    held = (0, 0) if data is None else (data.actors, data.nbytes)
    return *held, str(worker.id)


# --- merges ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """The workers of a host that become one."""

    kept: WorkerSnapshot
    others: Workers
    size: WorkerSize  # of the kept worker


def propose_merges(findings: tuple[Finding, ...], view: View) -> Iterator[Step]:
    """Propose the steps of :func:`merges` if the goal requests them.

    Raises
    ------
    RefusedError
        A guard refuses a step. Half a merge would leave a host with more threads.
    """
    if not view.goal.merge_workers:
        return
    yield from _allowed(merges(view, view.goal.workers), view)


def _allowed(proposed: Iterable[Step], view: View) -> list[Step]:
    """Return the steps if no guard refuses one of them; otherwise raise the refusal."""
    found = list(guards.sort_out(proposed, view))
    for step, refusal in found:
        if refusal is not None:
            raise RefusedError(f"{_REFUSED}: {step.summary}: {refusal.reason}")
    return [step for step, _ in found]


def merges(
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
    found = _by_host(view, ids)
    if found:
        yield from restart.bring_back(view, wait)
    sizes = [m.size for m in found]
    for size in [size for i, size in enumerate(sizes) if size not in sizes[:i]]:
        kept = {m.kept.id for m in found if m.size == size}
        yield from restart.resizes(
            view, kept, size, wait=wait, most=most, action="merge"
        )
    yield from _retired(found, view, wait)


def _by_host(view: View, ids: Collection[str | int] | None) -> list[Merge]:
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


def _rank(worker: WorkerSnapshot, size: WorkerSize) -> tuple[bool, int, str]:
    """Sort key of the workers of a host; the first one is kept."""
    whole = size.given_to(worker) == worker  # left by an interrupted merge
    data = worker.held_data
    return not whole, -data.nbytes if data else 0, str(worker.id)


def _retired(merges: list[Merge], view: View, wait: float) -> Iterator[Step]:
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
        where = f"worker {id}" if len(limits) == 1 else OTHERS
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
