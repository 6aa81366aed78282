"""Restart workers one at a time, through their nannies, without losing their keys.

The worker finishes its running tasks. Its nanny starts the next process, and the keys
of all clients move there. Leaked and fragmented memory ends with the former process. If
the nanny cannot run two processes of the worker, the keys move to other workers and
back, or the nanny parks them. A restart that could lose data is refused before anything
changes: other workers or the nanny must have room for the keys.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from clustertune.core.model import (
    Cluster,
    Finding,
    Key,
    Notify,
    Price,
    Restart,
    Result,
    Snapshot,
    Step,
    Unknown,
    View,
    WorkerSize,
    WorkerSnapshot,
)
from clustertune.core.rules import needed_elsewhere
from clustertune.core.wording import bytes_text, plural, workers_text
from clustertune.planner import memory
from clustertune.planner.memory import lower_limit, lowered_limits, process_limit

WAIT = 60.0  # seconds to wait for running tasks
TIMEOUT = 1800.0  # seconds for one worker of a scheduled restart


def propose(findings: tuple[Finding, ...], view: View) -> Iterator[Step]:
    """One step for each worker, if the goal requests restarts.

    With ``"auto"``: the workers that a finding names and that need a restart, if
    nothing runs. No worker is restarted twice, and none that the request leaves out.
    """
    goal = view.goal
    if goal.restart == "auto":
        if not any(w.busy for w in view.now.workers):
            ids = set(filter(goal.includes, memory.warned(findings)))
            yield from steps_by_need(view, ids - goal.restarted, findings)
    elif goal.restart:
        ids = {w.id for w in view.now.workers if goal.includes(w.id)}
        yield from steps(view, ids - goal.restarted)


def steps_by_need(
    view: View,
    ids: Collection[str | int],
    findings: tuple[Finding, ...],
    *,
    wait: float = WAIT,
    most: float = 1,
) -> Iterator[Step]:
    """A step for each of these workers that needs a restart; see :func:`steps`."""
    ended = memory.warned(findings, memory.ENDED)
    growth = {w.id: memory.expected_growth(findings, w) for w in view.now.workers}
    reasons = {
        w.id: memory.restart_reason(w, growth[w.id])
        for w in view.now.workers
        if w.id in ids and not w.parking
    }
    needed = {id for id, reason in reasons.items() if reason or id in ended}
    for step in steps(view, needed, wait=wait, most=most):
        assert isinstance(step.args, Restart)
        id = step.args.id
        if id in needed - ended:
            args = replace(step.args, growth=growth[id])
            step = replace(step, gain=reasons[id], args=args)  # noqa: PLW2901
        yield step


def needless(step: Step, view: View) -> str:
    """Why a restart that was planned by need is not needed; empty if it is."""
    args = step.args
    if not isinstance(args, Restart) or args.growth is None:
        return ""
    worker = view.now.by_address.get(args.address)
    if worker is None or memory.restart_reason(worker, args.growth):
        return ""
    return memory.no_restart_reason(worker)


def steps(
    view: View,
    ids: Collection[str | int],
    *,
    wait: float = WAIT,
    size: WorkerSize | None = None,
    most: float = 1,
    end_tasks: bool = False,
) -> Iterator[Step]:
    """A step for each of these workers; those with the fewest bytes to move go first.

    Workers that already have ``size`` are skipped. At most ``most`` workers (a number,
    or a fraction of all) are away at the same time. Keys that an earlier restart left
    on a parking worker are brought back first. With ``end_tasks`` all workers restart
    at the same time, and their tasks end.
    """
    groups = tuple(m.keys for m in view.collections if m.loaded)
    limits = {
        w.id: process_limit(w)
        for w in view.now.workers
        # a paused worker may run when another one needs its memory
        if w.is_counted and not isinstance(w.thresholds, Unknown)
    }
    for worker in view.now.workers:
        if worker.parking and worker.held_data is not None:
            yield _brought_back(worker, limits, groups, wait, view.now)
    real = [w for w in view.now.workers if not w.parking]
    going = [w for w in real if w.id in ids and not (size and _has(w, size))]
    going.sort(key=_needed)
    resized: dict[str | int, tuple[int, int]] = {}
    n_away = max(1, len(going)) if end_tasks else at_once(most, len(real))
    starts = range(0, len(going), n_away)
    for number, batch in enumerate(going[i : i + n_away] for i in starts):
        away = frozenset(w.id for w in batch)
        for worker in batch:
            # stuck workers leave one after the other, as far as memory is concerned
            gone = frozenset((worker.id,)) if end_tasks else away
            ceilings = Others(limits, gone, resized, number)
            step = _step(worker, ceilings, groups, batch, wait, view.now)
            assert isinstance(step.args, Restart)
            step = replace(step, args=replace(step.args, end_tasks=end_tasks))
            yield step if size is None else _resized(step, worker, size)
        if size is not None and size.memory_limit is not None:
            limit = size.memory_limit
            resized |= {w.id: (number, process_limit(w, limit)) for w in batch}


def _needed(worker: WorkerSnapshot) -> int:
    nbytes = 0 if worker.held_data is None else worker.held_data.nbytes
    return needed_elsewhere(worker.status, worker.spilled, nbytes)


class Others(Mapping[str | int, int]):
    """Ceilings in bytes by id, without the workers that are away.

    It is a view, because a dictionary for each of many steps would take much memory.
    ``resized`` has the number of the batch and the new ceiling of each worker that an
    earlier batch resized; ``number`` is the number of this batch.
    """

    def __init__(
        self,
        every: Mapping[str | int, int],
        away: Collection[str | int],
        resized: Mapping[str | int, tuple[int, int]] | None = None,
        number: int = 0,
    ) -> None:
        self._every, self._away = every, away
        self._resized, self._number = resized or {}, number

    def __getitem__(self, id: str | int) -> int:
        if id in self._away:
            raise KeyError(id)
        number, most = self._resized.get(id, (self._number, 0))
        return most if number < self._number else self._every[id]

    def __iter__(self) -> Iterator[str | int]:
        return (id for id in self._every if id not in self._away)

    def __len__(self) -> int:
        return len(self._every) - sum(id in self._every for id in self._away)


def at_once(most: float, count: int) -> int:
    """The number of workers that may be away: at least one, and not all."""
    wanted = most if isinstance(most, int) else math.floor(most * count)
    return max(1, min(wanted, count - 1))


def _has(worker: WorkerSnapshot, size: WorkerSize) -> bool:
    """Whether the worker has that size; variables are not known beforehand."""
    return (
        not size.env
        and size.nthreads in (None, worker.nthreads)
        and size.memory_limit in (None, worker.memory_limit)
    )


def _resized(step: Step, worker: WorkerSnapshot, size: WorkerSize) -> Step:
    assert isinstance(step.args, Restart)
    was = f"{plural(worker.nthreads, 'thread')}, {bytes_text(worker.memory_limit)}"
    limit = lower_limit(worker, size)
    return replace(
        step,
        summary=f"{step.summary.replace('restart', 'resize', 1)}; to {size}",
        gain=f"now {was}",
        args=replace(
            step.args,
            size=size,
            lowered_limits=(0, 0) if limit is None else lowered_limits(worker, limit),
        ),
    )


def _step(
    worker: WorkerSnapshot,
    ceilings: Mapping[str | int, int],
    groups: tuple[tuple[Key, ...], ...],
    batch: list[WorkerSnapshot],
    wait: float,
    now: Snapshot,
) -> Step:
    data = worker.held_data
    nbytes = None if data is None else data.nbytes
    what = ""
    if data is not None and data.unique:
        what = (
            f"; {plural(data.unique, 'unreplicated key')} "
            f"({bytes_text(data.nbytes)}) move to its new process"
        )
    return Step(
        action="restart",
        summary=f"restart {workers_text([worker.id])}{what}",
        price=Price(
            nbytes=nbytes,
            peak=None if data is None else data.nbytes,
        ),
        gain=f"its process has {bytes_text(worker.unmanaged)} of unmanaged memory",
        args=Restart(
            id=worker.id,
            address=worker.address,
            process_limits=ceilings,
            wait=wait,
            collections=groups,
            concurrent=tuple(w.address for w in batch if w.id != worker.id),
            parking=True,
        ),
    )


def _brought_back(
    worker: WorkerSnapshot,
    limits: Mapping[str | int, int],
    groups: tuple[tuple[Key, ...], ...],
    wait: float,
    now: Snapshot,
) -> Step:
    """Empty and close a parking worker that an earlier restart left."""
    others = Others(limits, frozenset((worker.id,)))
    step = _step(worker, others, groups, [worker], wait, now)
    assert isinstance(step.args, Restart)
    assert worker.held_data is not None
    unique, nbytes = worker.held_data.unique, worker.held_data.nbytes
    return replace(
        step,
        summary=f"bring back {plural(unique, 'key')} ({bytes_text(nbytes)}) that an "
        f"earlier restart left on {workers_text([worker.id])}, and close it",
        price=replace(step.price, nbytes=nbytes),
        gain="a parking worker is needed during a restart only",
        args=replace(step.args, retire=True, parking=False),
    )


async def enact(step: Step, cluster: Cluster, notify: Notify) -> Result:
    """Restart the worker."""
    assert isinstance(step.args, Restart)
    return await cluster.restart(step.args, notify)
