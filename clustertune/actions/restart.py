"""Restart workers one at a time, through their nannies, without losing their keys.

The worker finishes its running tasks. Its nanny starts the next process, and the keys
of all clients move there. Leaked and fragmented memory ends with the former process. If
the nanny cannot run two processes of the worker, the keys move to other workers and
back, or the nanny parks them. A restart that could lose data is refused before anything
changes: other workers or the nanny must have room for the keys.

A trim comes before restarts, and often makes them unnecessary.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from clustertune.core.model import (
    BringBack,
    Finding,
    Key,
    ParkingSpace,
    Price,
    Resize,
    Restart,
    Step,
    Trim,
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
NEW_PROCESS, AND_BACK = "its new process", "other workers and back"


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
    reasons = {
        w.id: memory.restart_reason(w, memory.expected_growth(findings, w))
        for w in view.now.workers
        if w.id in ids and not w.parking
    }
    needed = {id for id, reason in reasons.items() if reason}
    for step in steps(view, needed, wait=wait, most=most):
        summary = step.summary
        if isinstance(step.args, Restart):
            summary += f"; {reasons[step.args.id]}"
        yield replace(step, summary=summary)


def steps(
    view: View,
    ids: Collection[str | int],
    *,
    wait: float = WAIT,
    most: float = 1,
    end_tasks: bool = False,
) -> Iterator[Step]:
    """A step for each of these workers, after those of :func:`bring_back`.

    With ``end_tasks`` all workers restart at the same time, and their tasks end.
    """
    yield from bring_back(view, wait)
    for worker, args in ends(view, ids, wait=wait, most=most, at_once=end_tasks):
        yield Step(
            action="restart",
            summary=summary("restart", worker, _way(worker)),
            price=_price(worker),
            args=Restart(**args, end_tasks=end_tasks),
        )


def resizes(
    view: View,
    ids: Collection[str | int],
    size: WorkerSize,
    *,
    wait: float = WAIT,
    most: float = 1,
    action: str = "restart",
) -> Iterator[Step]:
    """A step for each of these workers that does not have the size yet."""
    going = {w.id for w in view.now.workers if w.id in ids and size.given_to(w) != w}
    for worker, args in ends(view, going, wait=wait, most=most, size=size):
        limit = lower_limit(worker, size)
        limits = (0, 0) if limit is None else lowered_limits(worker, limit)
        yield Step(
            action=action,
            summary=f"{summary('resize', worker, _way(worker))}; to {size}",
            price=_price(worker),
            args=Resize(**args, size=size, lowered_limits=limits),
        )


def bring_back(view: View, wait: float) -> Iterator[Step]:
    """A step for each parking worker with keys that an earlier restart left."""
    limits = _process_limits(view)
    for worker in view.now.workers:
        if worker.parking and worker.held_data is not None:
            unique, nbytes = worker.held_data.unique, worker.held_data.nbytes
            yield Step(
                action="restart",
                summary=f"bring back {plural(unique, 'key')} ({bytes_text(nbytes)}) "
                f"that an earlier restart left on {workers_text([worker.id])}, and "
                "close it",
                price=price(worker),
                args=BringBack(
                    id=worker.id,
                    address=worker.address,
                    process_limits=Others(limits, frozenset((worker.id,))),
                    wait=wait,
                    collections=_aligned(view),
                ),
            )


def ends(
    view: View,
    ids: Collection[str | int],
    *,
    wait: float,
    most: float = 1,
    at_once: bool = False,
    size: WorkerSize | None = None,
    leaving: Collection[str | int] = (),
) -> Iterator[tuple[WorkerSnapshot, dict[str, Any]]]:
    """The workers, and the fields of :class:`WorkerEnd` for each of them.

    Those with the fewest bytes to move come first. At most ``most`` workers (a number,
    or a fraction of all) are away at the same time; ``at_once``: all. Each gets a new
    ``size``. No keys go to ``leaving`` workers.
    """
    collections, limits = _aligned(view), _process_limits(view)
    real = [w for w in view.now.workers if not w.parking]
    going = sorted((w for w in real if w.id in ids), key=_needed)
    resized: dict[str | int, tuple[int, int]] = {}
    n_away = max(1, len(going)) if at_once else number_away(most, len(real))
    starts = range(0, len(going), n_away)
    for number, batch in enumerate(going[i : i + n_away] for i in starts):
        away = frozenset(w.id for w in batch).union(leaving)
        for worker in batch:
            # stuck workers leave one after the other, as far as memory is concerned
            gone = frozenset((worker.id,)) if at_once else away
            yield (
                worker,
                {
                    "id": worker.id,
                    "address": worker.address,
                    "process_limits": Others(limits, gone, resized, number),
                    "wait": wait,
                    "collections": collections,
                    "concurrent": tuple(w.address for w in batch if w is not worker),
                },
            )
        if size is not None and size.memory_limit is not None:
            limit = size.memory_limit
            resized |= {w.id: (number, process_limit(w, limit)) for w in batch}


def _aligned(view: View) -> tuple[tuple[Key, ...], ...]:
    return tuple(m.keys for m in view.collections if m.loaded)


def _process_limits(view: View) -> dict[str | int, int]:
    """Limits of the workers that accept keys; a paused one may run when it has to."""
    return {
        w.id: process_limit(w)
        for w in view.now.workers
        if w.is_counted and not isinstance(w.thresholds, Unknown)
    }


def summary(verb: str, worker: WorkerSnapshot, target: str) -> str:
    """Describe the end of a worker, and the keys that move to the target."""
    text, data = f"{verb} {workers_text([worker.id])}", worker.held_data
    if data is None or not data.unique:
        return text
    keys = plural(data.unique, "unreplicated key")
    return f"{text}; {keys} ({bytes_text(data.nbytes)}) move to {target}"


def price(worker: WorkerSnapshot) -> Price:
    """Return the price of moving all unreplicated keys of a worker."""
    nbytes = None if worker.held_data is None else worker.held_data.nbytes
    return Price(nbytes=nbytes, peak=nbytes)


def _price(worker: WorkerSnapshot) -> Price:
    """Return the price of a restart; keys that make a detour are sent twice.

    The nanny takes over spilled keys as files. Keys with other replicas are sent once.
    """
    data, detour = worker.held_data, _detours(worker)
    if data is None or (data.nbytes and detour is None):
        return replace(price(worker), nbytes=None)
    sent = max(0, data.nbytes - worker.spilled)
    return replace(price(worker), nbytes=(1 + bool(detour)) * sent + data.copied)


def _way(worker: WorkerSnapshot) -> str:
    return AND_BACK if _detours(worker) else NEW_PROCESS


def _detours(worker: WorkerSnapshot) -> bool | None:
    """Whether its nanny cannot run two processes of a worker; None: unknown."""
    space = worker.parking_space
    if worker.resources:
        return True
    if not isinstance(space, ParkingSpace):
        return None
    return bool(space.obstacle) or worker.counted + space.second > space.memory


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


def number_away(most: float, count: int) -> int:
    """The number of workers that may be away: at least one, and not all."""
    wanted = most if isinstance(most, int) else math.floor(most * count)
    return max(1, min(wanted, count - 1))


# --- trims ----------------------------------------------------------------------------


def propose_trims(findings: tuple[Finding, ...], view: View) -> Iterator[Step]:
    """Propose one step for all workers that a finding about memory names.

    Only with ``restart="auto"``, if nothing runs, and once for each worker.
    """
    idle = not any(w.busy for w in view.now.workers)
    if view.goal.restart == "auto" and idle:
        named = memory.warned(findings)
        included = set(filter(view.goal.includes, named))
        yield from trims(view, included - view.goal.trimmed)


def trims(view: View, ids: Collection[str | int]) -> Iterator[Step]:
    """Return one step for all these workers."""
    workers = [w for w in view.now.workers if w.id in ids and not w.parking]
    if workers:
        yield Step(
            action="trim",
            summary=f"trim the memory of {workers_text([w.id for w in workers])}",
            price=Price(nbytes=0),
            args=Trim(workers={w.address: w.id for w in workers}),
        )
