"""Guards: what must hold for a step to be carried out, asked before and once more.

Pure. A guard says why a step must not be done as things are now, or nothing; so what
was planned a while ago is not done to a cluster that has changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from clustertune.core import rules
from clustertune.core.model import (
    Burden,
    Drop,
    Load,
    Moves,
    Recut,
    Refusal,
    Release,
    Reorder,
    Restart,
    Room,
    Step,
    Unknown,
    View,
    WorkerSnapshot,
)
from clustertune.core.wording import bytes_text, names_text, plural, workers_text
from clustertune.planner import holdings, resizing
from clustertune.planner.thresholds import space

NO_NANNY = (
    "it has no nanny that could start it again: restart it by the means with which it "
    "was started; dask worker --nanny gives it one"
)
MIB = 2**20
OTHERS = "include_other_clients=True (--include-other-clients) means them, too"


def sort_out(
    steps: Iterable[Step], view: View
) -> Iterator[tuple[Step, Refusal | None]]:
    """Each step with its refusal, by the view after the steps before it."""
    for step in steps:
        refused = refusal(step, view)
        yield step, refused
        if refused is None:
            view = after(step, view)


def after(step: Step, view: View) -> View:
    """The view as it will be when a step is done, as far as the next steps need it.

    A worker that was restarted runs, in a process that has its keys and no leak.
    """
    restart = step.args
    if not isinstance(restart, Restart) or restart.retire:
        return view
    workers = tuple(
        _restarted(w) if w.address == restart.address else w for w in view.now.workers
    )
    now = replace(view.now, workers=workers)
    return replace(view, snapshots=(*view.snapshots[:-1], now))


def _restarted(worker: WorkerSnapshot) -> WorkerSnapshot:
    """What a new process needs is known only where the old one has been asked."""
    process, data = worker.process, worker.counted + worker.spilled
    if worker.least is not None:
        process = min(process, worker.least + data)
    return replace(worker, status="running", process=process)


def refusal(step: Step, view: View) -> Refusal | None:
    """The first guard that forbids the step, asked again just before it is enacted."""
    for guard in GUARDS:
        reason = guard(step, view)
        if reason is not None:
            return Refusal(step=step, guard=guard.__name__, reason=reason)
    return None


# --- guards: (step, view) -> why not, or None -----------------------------------------


def _targets(step: Step) -> list[str]:
    """Addresses of the workers to which the step brings pieces."""
    args = step.args
    if isinstance(args, Moves):
        used = {i for m in args.moves for i in m.targets.tolist()}
    elif isinstance(args, Recut) or (isinstance(args, Reorder) and args.whole is None):
        used = set(args.targets.tolist())
    elif isinstance(args, Load):
        used = {i for targets in args.targets.values() for i in targets.tolist()}
    else:
        return []
    return [args.workers[i] for i in sorted(used)]


def targets_still_run(step: Step, view: View) -> str | None:
    """A piece sent to a worker that is gone or paused would lie idle, or be lost."""
    workers = view.now.by_address
    addresses = _targets(step)
    away = [a for a in addresses if a not in workers or not view.eligible(workers[a])]
    return f"{names_text(away)} no longer runs" if away else None


def pieces_are_in_memory(step: Step, view: View) -> str | None:
    """A plan that was made while a piece is being computed again would be wrong."""
    if not isinstance(step.args, Moves | Recut | Reorder):
        return None
    for layout in view.layouts:
        for m in layout.members:
            there = set() if m.holders is None else set(m.holders[0].tolist())
            if m.loaded and len(there) < len(m.keys):
                return f"{len(m.keys) - len(there)} pieces of {m.label} are not there"
    return None


def thresholds_are_known(step: Step, view: View) -> str | None:
    """Filling a worker whose limits are not known might make it spill or pause."""
    if isinstance(step.args, Load):
        return None  # it has to be loaded somewhere
    for address in _targets(step):
        worker = view.now.by_address.get(address)
        if worker is not None and isinstance(worker.thresholds, Unknown):
            return f"thresholds of {names_text([worker.id])}: {worker.thresholds}"
    return None


def pieces_are_those_planned(step: Step, view: View) -> str | None:
    """Pieces made of those that another step has replaced would bring old ones back."""
    if isinstance(step.args, Recut):
        planned = {c.label: c.keys for c in step.args.cuts}
    elif isinstance(step.args, Reorder):
        planned = {s.label: s.keys for s in step.args.sources}
    else:
        return None
    now = {m.label: m.keys for x in view.layouts for m in x.members}
    other = [label for label, keys in planned.items() if now.get(label) != keys]
    return (
        f"{', '.join(other)} has other pieces than were planned for" if other else None
    )


def memory_is_enough(step: Step, _view: View) -> str | None:
    """Old and new pieces are in memory at once; workers must not spill for it."""
    return (step.args.shortage or None) if isinstance(step.args, Recut) else None


def manager_allows_restarts(step: Step, view: View) -> str | None:
    """Some managers take a worker for lost while its nanny starts it again."""
    away = isinstance(step.args, Restart) and not step.args.retire
    return view.now.can_restart if away else None


def restart_loses_nothing(step: Step, view: View) -> str | None:
    """What a worker holds must have another place, and somebody must start it again."""
    if not isinstance(step.args, Restart):
        return None
    worker = view.now.by_address.get(step.args.address)
    if worker is None:
        return f"{names_text([step.args.id])} is gone, or was started again meanwhile"
    if worker.nanny is None and not step.args.retire:
        return NO_NANNY
    burden = worker.burden
    if burden is None:
        return "what it holds is unknown"
    if burden.actors:
        return f"it holds {plural(burden.actors, 'actor')}, which cannot be moved"
    return _no_place(step.args, burden, worker, view) if burden.nbytes else None


def _no_place(
    restart: Restart, burden: Burden, worker: WorkerSnapshot, view: View
) -> str | None:
    workers = view.now.by_address
    beside = [workers[a] for a in restart.beside if a in workers]
    needed = burden.nbytes + sum(w.burden.nbytes for w in beside if w.burden)
    free = None
    # those that were restarted before have other addresses now
    for other in view.now.workers:
        if other.running and other.id in restart.ceilings:
            free = (free or 0.0) + space(other, restart.ceilings[other.id])
            if free >= needed:  # a look at all, for each of many, takes long
                return None
    in_memory = max(0, burden.nbytes - worker.spilled)
    why = rules.problem(
        needed, in_memory, free, _room(worker) if restart.parking else None
    )
    if not why:
        return None
    instead = "add workers, or release data"
    if restart.parking:
        instead = "add a worker, save the data first, or give it up with --drop-data"
    return f"{why}: {instead}"


def _room(worker: WorkerSnapshot) -> Mapping[str, int] | str:
    if isinstance(worker.room, Room):
        return {"memory": worker.room.memory, "disk": worker.room.disk}
    return str(worker.room or "unknown")


def size_holds_what_is_there(step: Step, view: View) -> str | None:
    """A lower limit must hold a new process and the data that the worker gets back.

    A worker above its limit spills, pauses, or is killed by its nanny with all it has.
    """
    if not isinstance(step.args, Restart):
        return None
    worker = view.now.by_address.get(step.args.address)
    limit = None if worker is None else resizing.lowered(worker, step.args.size)
    if worker is None or limit is None:
        return None
    thresholds, text = worker.thresholds, bytes_text(limit)
    if isinstance(thresholds, Unknown):
        return f"whether {text} is enough is unknown: {thresholds}"
    target = thresholds.target or thresholds.spill
    most, _ = resizing.lines(worker, limit)
    data = worker.counted + worker.spilled
    # what is unmanaged may be more than a new process needs, and not less
    fresh = worker.unmanaged if worker.least is None else worker.least
    spills = target is not None and worker.counted > target * limit
    if not spills and (not most or fresh + data <= most):
        return None
    needed = max(
        worker.counted / target if target else 0,
        (fresh + data) * limit / most if most else 0,
    )
    enough = math.ceil(needed / MIB) * MIB
    if spills:
        why = (
            f"it holds {bytes_text(worker.counted)}, and would write some of it to "
            f"disk above {target:.0%} of {text}"
        )
    else:
        why = (
            f"its process has {bytes_text(fresh)} without data and gets back "
            f"{bytes_text(data)}, and with a limit of {text} it spills or pauses above "
            f"{bytes_text(most)}"
        )
    if enough >= (worker.memory_limit or math.inf):
        return f"{why}: release data, or keep its limit"
    return f"{why}: release data, or give at least {enough // MIB} MiB"


def release_takes_from_nobody(step: Step, view: View) -> str | None:
    """What other clients want is theirs, unless the caller means them, too."""
    if not isinstance(step.args, Release):
        return None
    prefix = step.args.prefix
    if step.args.include_other_clients:
        return holdings.divided_names(view, prefix, step.args.together) or None
    found = [h for h in view.now.holdings or () if h.prefix == prefix]
    if any(h.alone for h in found):
        return None
    return f"{holdings.whose(found)}: {OTHERS}"


def drop_takes_from_nobody(step: Step, view: View) -> str | None:
    """As for what is released; and all workers must come back."""
    if not isinstance(step.args, Drop):
        return None
    alone = [w.id for w in view.now.workers if w.nanny is None]
    if alone:
        return f"{workers_text(alone)}: {NO_NANNY}"
    if view.now.holdings is None:
        return "what is in memory is unknown"
    actors = sum(w.burden.actors for w in view.now.workers if w.burden is not None)
    if actors:
        return f"the workers hold {plural(actors, 'actor')}, which would be lost"
    others = [h for h in view.now.holdings if h.keys and not h.alone]
    if others and not step.args.include_other_clients:
        return (
            f"what would be lost: {holdings.at_risk(view.now.holdings)}; {OTHERS}, and "
            "restart without drop_data loses nothing"
        )
    return None


GUARDS: tuple[Callable[[Step, View], str | None], ...] = (
    drop_takes_from_nobody,
    release_takes_from_nobody,
    memory_is_enough,
    manager_allows_restarts,
    restart_loses_nothing,
    size_holds_what_is_there,
    targets_still_run,
    pieces_are_those_planned,
    pieces_are_in_memory,
    thresholds_are_known,
)
