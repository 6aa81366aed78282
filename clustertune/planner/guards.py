"""Guards refuse steps that would lose data or harm the cluster (pure).

Each guard is asked when a step is planned, and again just before it is carried out, so
that an old plan is not applied to a changed cluster. The module also describes the
tasks for which a plan waits, and what data a step would lose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from clustertune.core import rules
from clustertune.core.model import (
    Drop,
    KeyGroup,
    Load,
    Moves,
    ParkingSpace,
    Rechunk,
    Refusal,
    Release,
    Resize,
    Restart,
    Retire,
    Step,
    Unknown,
    View,
    WorkerEnd,
    WorkerSnapshot,
)
from clustertune.core.wording import (
    bytes_text,
    names_text,
    plural,
    seconds_text,
    verb,
    workers_text,
)
from clustertune.planner import memory

MIB = 2**20
OTHERS = "include_other_clients=True (--include-other-clients) includes them"


def sort_out(
    steps: Iterable[Step], view: View
) -> Iterator[tuple[Step, Refusal | None]]:
    """Yield each step with its refusal, judged by the view after the earlier steps."""
    for step in steps:
        refused = refusal(step, view)
        yield step, refused
        if refused is None:
            view = after(step, view)


def after(step: Step, view: View) -> View:
    """Return the view after a step, as far as the next steps need it.

    A restarted worker runs in a process that has its keys and no leak. The keys of a
    retired worker fill the others.
    """
    args = step.args
    if not isinstance(args, WorkerEnd) or args.address not in view.now.by_address:
        return view
    if not isinstance(args, Restart):
        return with_workers(view, _received(args, view))
    workers = (
        _restarted(w, args) if w.address == args.address else w
        for w in view.now.workers
    )
    return with_workers(view, tuple(workers))


def with_workers(view: View, workers: tuple[WorkerSnapshot, ...]) -> View:
    """Return the view with other workers now."""
    now = replace(view.now, workers=workers)
    return replace(view, snapshots=(*view.snapshots[:-1], now))


def _received(args: WorkerEnd, view: View) -> tuple[WorkerSnapshot, ...]:
    """Return the workers after the keys of a retired one have moved to them."""
    held = view.now.by_address[args.address].held_data
    left = held.nbytes if held else 0
    workers = list(view.now.workers)
    for i, w in enumerate(workers):
        if left and w.running and w.id in args.process_limits:
            free = memory.free_below(w, args.process_limits[w.id])
            taken = int(min(left, free))
            left -= taken
            filled = replace(w, process=w.process + taken, counted=w.counted + taken)
            workers[i] = filled
    return tuple(workers)


def _restarted(worker: WorkerSnapshot, args: Restart) -> WorkerSnapshot:
    if isinstance(args, Resize):
        worker = args.size.given_to(worker)
    # the memory of a new process is known only if the worker reported it
    process, data = worker.process, worker.counted + worker.spilled
    if worker.least_memory is not None:
        process = min(process, worker.least_memory + data)
    return replace(worker, status="running", process=process)


def refusal(step: Step, view: View) -> Refusal | None:
    """Return the refusal of the first guard that forbids the step."""
    for kind, guards in GUARDS.items():
        for guard in guards if isinstance(step.args, kind) else ():
            reason = guard(step.args, view)
            if reason is not None:
                return Refusal(step=step, guard=guard.__name__, reason=reason)
    return None


# --- guards: (arguments of a step, view) -> reason for a refusal, or None -------------


def _targets(args: Load | Moves | Rechunk) -> list[str]:
    """Return the addresses of the workers that receive partitions."""
    if isinstance(args, Moves):
        used = {i for m in args.moves for i in m.targets.tolist()}
    elif isinstance(args, Load):
        used = {i for targets in args.targets.values() for i in targets.tolist()}
    else:
        used = set(args.targets.tolist())
    return [args.workers[i] for i in sorted(used)]


def targets_still_run(args: Load | Moves | Rechunk, view: View) -> str | None:
    """Refuse to send partitions to a worker that has left or is paused."""
    running = {w.address for w in view.eligible_workers}
    away = [a for a in _targets(args) if a not in running]
    return f"{names_text(away)} no longer {verb(away, 'runs')}" if away else None


def partitions_are_in_memory(_args: object, view: View) -> str | None:
    """Refuse to move data while some of its partitions are not in memory."""
    for m in view.collections:
        there = set() if m.holders is None else set(m.holders[0].tolist())
        if m.loaded and len(there) < len(m.keys):
            missing = plural(len(m.keys) - len(there), "partition")
            return f"{missing} of {m.label} not in memory"
    return None


def thresholds_are_known(args: Moves | Rechunk, view: View) -> str | None:
    """Refuse to fill a worker whose thresholds are unknown: it might spill or pause."""
    for address in _targets(args):
        worker = view.now.by_address.get(address)
        if worker is not None and isinstance(worker.thresholds, Unknown):
            return f"thresholds of {names_text([worker.id])}: {worker.thresholds}"
    return None


def partitions_are_those_planned(args: Rechunk, view: View) -> str | None:
    """Refuse to rechunk partitions that another step has replaced."""
    now = {m.label: m.keys for m in view.collections}
    other = [x.label for x in args.cuts if now.get(x.label) != x.keys]
    return f"{', '.join(other)} has other partitions than planned" if other else None


def memory_is_enough(args: Rechunk, _view: View) -> str | None:
    """Refuse a rechunk that makes workers spill: old and new partitions coexist."""
    return args.shortage or None


def manager_allows_restarts(_args: Restart, view: View) -> str | None:
    """Refuse restarts if the manager replaces a worker that restarts."""
    return view.now.can_restart


def worker_can_restart(args: Restart, view: View) -> str | None:
    """Refuse to restart a worker without a nanny, or one that must not get code."""
    worker = view.now.by_address.get(args.address)
    if worker is None:
        return None
    refusal = rules.restart_refusal(nanny=worker.nanny is not None)
    return worker.objection or refusal or None


def restart_loses_nothing(args: WorkerEnd, view: View) -> str | None:
    """Refuse a restart that would lose keys."""
    worker = view.now.by_address.get(args.address)
    if worker is None:
        return f"{names_text([args.id])} has left or was restarted in the meantime"
    held = worker.held_data
    if held is None:
        return "its keys are unknown"
    workers = view.now.by_address
    batch = [workers[a] for a in args.concurrent if a in workers]
    needed = held.nbytes + sum(w.held_data.nbytes for w in batch if w.held_data)
    free = None if held.nbytes else math.inf
    # workers restarted earlier in this plan have other addresses, so ids are compared
    for other in view.now.workers:
        if other.running and other.id in args.process_limits:
            free = (free or 0.0) + memory.free_below(
                other, args.process_limits[other.id]
            )
            if free >= needed:  # looking at all workers for each step takes long
                break
    room: Mapping[str, int] | str | None = None
    if isinstance(args, Restart):
        room = str(worker.parking_space or "unknown")
        if isinstance(worker.parking_space, ParkingSpace):
            room = asdict(worker.parking_space)
    refusal = rules.restart_refusal(
        actors=held.actors,
        needed=needed,
        in_memory=max(0, held.nbytes - worker.spilled),
        free=free,
        room=room,
    )
    return refusal or None


def replacement_has_its_size(args: Retire, view: View) -> str | None:
    """Refuse to retire a worker whose replacement is not larger yet."""
    if args.replaced_by is None:
        return None
    id, size = args.replaced_by
    worker = next((w for w in view.now.workers if w.id == id), None)
    if worker is None:
        return f"{names_text([id])}, which would replace it, has left"
    if size.given_to(worker) != worker:
        return f"{names_text([id])}, which would replace it, was not resized"
    return None


def limit_fits_data(args: Resize, view: View) -> str | None:
    """Refuse a memory limit that is too low for a new process and the worker's data.

    A worker above its limit spills, pauses, or is killed by its nanny.
    """
    worker = view.now.by_address.get(args.address)
    limit = None if worker is None else memory.lower_limit(worker, args.size)
    if worker is None or limit is None:
        return None
    if isinstance(worker.thresholds, Unknown):
        return f"whether {bytes_text(limit)} is enough is unknown: {worker.thresholds}"
    target = worker.thresholds.target or worker.thresholds.spill
    most, _ = memory.lowered_limits(worker, limit)
    data = worker.counted + worker.spilled
    # a new process needs at most the unmanaged memory of the old one
    fresh = worker.unmanaged if worker.least_memory is None else worker.least_memory
    if target is not None and worker.counted > target * limit:
        why = (
            f"it holds {bytes_text(worker.counted)}, and would write some of it to "
            f"disk above {target:.0%} of {bytes_text(limit)}"
        )
    elif most and fresh + data > most:
        why = (
            f"its process has {bytes_text(fresh)} without data and gets back "
            f"{bytes_text(data)}, and with a limit of {bytes_text(limit)} it spills or "
            f"pauses above {bytes_text(most)}"
        )
    else:
        return None
    needed = max(
        worker.counted / target if target else 0,
        (fresh + data) * limit / most if most else 0,
    )
    enough = math.ceil(needed / MIB) * MIB
    if enough >= (worker.memory_limit or math.inf):
        return f"{why}: release data, or keep its limit"
    return f"{why}: release data, or set at least {enough // MIB} MiB"


def release_spares_other_clients(args: Release, view: View) -> str | None:
    """Refuse to release data of other clients, or keys of names that are not known."""
    if not args.prefix:
        return (
            "the keys in memory have more different names than the scheduler lists. "
            "Delete your collections with `del`, or drop all data with "
            "`clustertune.restart_workers(client, drop_data=True)`"
        )
    found = [h for h in view.now.key_groups or () if h.prefix == args.prefix]
    if any(h.alone for h in found):
        return None
    return f"data which {owners_text(found)}, so it stays"


def drop_spares_other_clients(args: Drop, view: View) -> str | None:
    """Refuse to drop data of other clients, or to stop workers that cannot restart."""
    workers = [w for w in view.now.workers if w.address in args.workers]
    # a parking worker ends and does not come back
    alone = [w.id for w in workers if w.nanny is None and not w.parking]
    if alone:
        return f"{workers_text(alone)}: {rules.NO_NANNY}"
    if view.now.key_groups is None:
        return "the keys in memory are unknown"
    actors = sum(w.held_data.actors for w in workers if w.held_data)
    if actors:
        return f"the workers hold {plural(actors, 'actor')}, which would be lost"
    others = [h for h in view.now.key_groups if h.keys and not h.alone]
    # the scheduler looks whose keys the named workers hold
    if args.all and others and not args.include_other_clients:
        return (
            f"this data would be lost: {at_risk(view.now.key_groups)}; {OTHERS}, and "
            "restart without drop_data loses nothing"
        )
    return None


#: by the type of a step's arguments, in the order in which they are asked
GUARDS: Mapping[type, tuple[Callable[[Any, View], str | None], ...]] = {
    Drop: (drop_spares_other_clients,),
    Release: (release_spares_other_clients,),
    Restart: (manager_allows_restarts, worker_can_restart),
    Retire: (replacement_has_its_size,),
    WorkerEnd: (restart_loses_nothing,),
    Resize: (limit_fits_data,),
    Load: (targets_still_run,),  # data has to be loaded somewhere
    Moves: (targets_still_run, partitions_are_in_memory, thresholds_are_known),
    Rechunk: (
        memory_is_enough,
        targets_still_run,
        partitions_are_those_planned,
        partitions_are_in_memory,
        thresholds_are_known,
    ),
}


# --- running work ---------------------------------------------------------------------


def notes(steps: Iterable[Step], view: View) -> tuple[str, ...]:
    """Describe running tasks that the steps wait for."""
    waits: dict[str, float] = {}
    for step in steps:
        args = step.args
        if isinstance(args, WorkerEnd):
            waits[args.address] = args.wait
        elif isinstance(args, Drop):
            waits |= dict.fromkeys(args.workers, args.wait)
    # a restart does not wait for tasks for which no client waits
    busy = (w for w in view.now.workers if w.busy and w.processing)
    workers = [w for w in busy if w.address in waits]
    if not workers:
        return ()
    longest = seconds_text(max(waits[w.address] for w in workers))
    run = f"{workers_text([w.id for w in workers])} {verb(workers, 'runs')} tasks"
    return (f"{run}; the plan waits up to {longest} on each",)


# --- data in memory -------------------------------------------------------------------


def key_bytes_text(holdings: Collection[KeyGroup]) -> str:
    """Format the bytes of these keys."""
    return bytes_text(sum(h.nbytes for h in holdings))


def owners_text(holdings: Collection[KeyGroup]) -> str:
    """Describe the other owners of the data, as a clause after "which"."""
    names = sorted({name for h in holdings for name in h.others})
    if not names:
        return "no client has asked for by name"
    return f"other clients or names hold ({names_text(names)})"


def at_risk(holdings: tuple[KeyGroup, ...]) -> str:
    """Describe the data that will be lost; empty: there is none."""
    holdings = tuple(h for h in holdings if h.keys)
    if not holdings:
        return ""
    most = sorted(holdings, key=lambda h: -h.nbytes)
    prefixes = list(dict.fromkeys(h.prefix for h in most if h.prefix))
    text = (
        f"{plural(sum(h.keys for h in holdings), 'key')} ({key_bytes_text(holdings)}), "
        f"named {names_text(prefixes, most=5)}"
    )
    scattered = sum(h.scattered for h in holdings)
    if scattered:
        text += f"; {scattered:,} of them were scattered"
    others = [h for h in holdings if not h.alone]
    if others:
        text += f"; this includes {key_bytes_text(others)} which {owners_text(others)}"
    if any(name.startswith("published-") for h in others for name in h.others):
        text += "; published names will be unpublished"
    return text
