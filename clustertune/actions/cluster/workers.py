"""Actions of the live cluster on its workers: scale, adapt, restart, resize, trim."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from distributed import Client

from clustertune.actions.cluster.lease import LANDING, Lease
from clustertune.core.model import (
    Bounds,
    Drop,
    Notify,
    Resize,
    Restart,
    Result,
    Retire,
    Trim,
    WorkerEnd,
    WorkerSize,
    attach_result,
)
from clustertune.core.wording import bytes_text, names_text, plural, printable
from clustertune.errors import NoWorkersError
from clustertune.integrations import managers
from clustertune.monitor import monitor
from clustertune.planner import machines
from clustertune.remote import ship
from clustertune.remote.ending import within
from clustertune.remote.worker import park, process

logger = logging.getLogger("clustertune")

POLL = 0.2  # seconds between two looks for workers
MANAGER_SECONDS = 30.0  # for a cluster manager to answer after an error
LOOKS = 25  # between two requests to start ended workers again
JOB_SHARE = 0.9  # of the remaining time; the rest is for the answer and the report


# --- how many -------------------------------------------------------------------------


async def refuse_scale(client: Client, wanted: int, workers: Mapping[str, Any]) -> None:
    """Refuse a number of workers that the cluster cannot have.

    Raises ``NoWorkersError`` if the cluster cannot scale up, or has more workers;
    the text has a fix.
    """
    there = _to_stay(workers)
    if wanted == there:
        return
    if wanted < there:
        raise NoWorkersError(
            f"n_workers={wanted}, but the cluster has {there}: prepare only adds "
            "workers. To train on fewer, give workers=[...]"
        )
    reason = managers.find(client.cluster).obstacle(wanted)
    if client.cluster is None:
        snapshot, _ = await monitor.look(client, [])
        reason = machines.start_by_hand(snapshot, wanted - there)
    if reason is not None:
        raise NoWorkersError(f"n_workers={wanted}: {reason}")


async def scale(lease: Lease, n_workers: int, notify: Notify) -> Result:
    """Request workers from the cluster object and wait until they run.

    Raises ``NoWorkersError`` if the cluster cannot scale, or workers did not start
    in time.
    """
    cluster = lease.client.cluster
    adapter = managers.find(cluster)
    reason = adapter.obstacle(n_workers)
    if reason is not None:
        raise NoWorkersError(f"n_workers={n_workers}: {reason}")
    await adapter.scale(n_workers, await _there(lease.client))
    looks = 0
    while (there := await _there(lease.client)) < n_workers:
        # repeated, because Dask notices the end of a worker late
        if looks % LOOKS == 0:
            await adapter.correct_state(n_workers - there)
        looks += 1
        notify(f"{there} of {n_workers} workers run", there / n_workers)
        if lease.remaining() < 1:
            text = await managers.off_loop(repr, cluster)
            raise NoWorkersError(
                f"requested {n_workers} workers, {there} run: "
                f"{printable(text, longest=200)}. Ask the manager for the reason, read "
                "the workers' logs, or give a longer timeout"
            )
        await asyncio.sleep(POLL)
    return Result(nbytes=0, count=there)


async def _there(client: Client) -> int:
    identity = await monitor.identify(client)
    return _to_stay(identity["workers"])


async def adapt(
    client: Client, bounds: Bounds, note: Callable[[managers.Bounds], None]
) -> Result:
    """Change the bounds of adaptive scaling.

    ``note`` gets the previous ones before the change. A cancelled change ends first:
    a thread cannot be cancelled, and would replace the bounds that are put back.
    """
    adapter = managers.find(client.cluster)
    was = await adapter.bounds()
    if not isinstance(was, tuple):
        kind = type(client.cluster).__name__
        return Result(not_done=f"{kind} does not scale adaptively")
    note(was)
    change = asyncio.ensure_future(adapter.adapt(bounds.minimum, bounds.maximum))
    try:
        await asyncio.shield(change)
    finally:
        await asyncio.wait([change], timeout=LANDING)
    return Result(nbytes=0, details=_bounds_text(*was))


async def put_bounds_back(client: Client, was: managers.Bounds) -> None:
    """Restore the bounds from before :func:`adapt`.

    A failure is logged only, so it hides no error of the call.
    """
    try:
        await within(managers.find(client.cluster).adapt(*was), MANAGER_SECONDS)
    # managers raise errors of their own
    except Exception as error:  # noqa: BLE001
        text = _bounds_text(*was)
        logger.warning("adaptive scaling may have other bounds (%r); %s", error, text)


# --- restart --------------------------------------------------------------------------


async def restart(
    lease: Lease, args: WorkerEnd, packed: list[Any], notify: Notify
) -> Result:
    """Have the scheduler plugin restart a worker; a cancelled restart is undone.

    ``packed`` are the packed keys of the aligned collections.
    """
    identity = await monitor.identify(lease.client)
    ids = {a: monitor.worker_id(a, e) for a, e in identity["workers"].items()}
    limits = args.process_limits
    returns = isinstance(args, Restart)
    verb = "restarting" if returns else "closing"
    what = f"{verb} worker {names_text([args.id])}"
    ended: list[dict[str, Any]] = []
    refused = args.address in monitor.known(lease.client).refused
    job = lease.job(
        "restart",
        lambda state: notify(f"{what}: {state['doing']}", None),
        ended,
        address=args.address,
        collections=packed,
        process_limits={a: limits[i] for a, i in ids.items() if i in limits},
        wait=args.wait,
        timeout=JOB_SHARE * max(0.0, lease.remaining()),
        retire=not returns,
        parking=b"" if refused else ship.pickled(park.act),
        resizing=_resize_terms(args),
        end_tasks=isinstance(args, Restart) and args.end_tasks,
    )
    try:
        state = await job
    except BaseException as error:
        if ended:
            attach_result(error, _restarted(args, ended[0], ids))
            update = _update_manager(lease.client, args, ended[0])
            await asyncio.shield(_logged(update))
        raise
    result = _restarted(args, state, ids)
    try:  # ^C may come now, and the cluster object must not start another worker
        await asyncio.shield(_update_manager(lease.client, args, state))
    except BaseException as error:
        attach_result(error, result)
        raise
    if not (isinstance(args, Resize) and state["resized"] and state["address"]):
        return result
    try:
        workers = (await monitor.identify(lease.client))["workers"]
    except BaseException as error:
        attach_result(error, result)
        raise
    other = _differences(workers.get(state["address"]), args.size)
    undone = "; ".join(filter(None, [result.not_done, other]))
    return replace(result, not_done=undone, details=f"{result.details}; {args.size}")


async def _update_manager(
    client: Client, args: WorkerEnd, state: Mapping[str, Any]
) -> None:
    """Give the cluster object the changes of a job that has ended."""
    adapter = managers.find(client.cluster)
    if isinstance(args, Resize) and state["resized"]:
        adapter.resized(args.id, args.size)
    if isinstance(args, Retire) and state["finished"] and not state["error"]:
        await adapter.retired(args.id)


async def _logged(update: Awaitable[None]) -> None:
    """Wait for an update of the cluster object, which must not hide another error."""
    try:
        await within(update, MANAGER_SECONDS)
    # managers raise errors of their own
    except Exception as error:  # noqa: BLE001
        logger.warning(
            "the cluster object was not updated, and may start former workers: %r",
            error,
        )


def _restarted(
    args: WorkerEnd, state: Mapping[str, Any], ids: Mapping[str, str | int]
) -> Result:
    """Return the result of a restart from the last state of its job."""
    if not state["finished"]:
        continues = f"the scheduler continues after this call: {state['doing']}"
        return Result(nbytes=state["nbytes"], not_done=continues, count=0)
    returns = isinstance(args, Restart)
    way = "away and back" if returns else "away"
    if state["direct"]:
        way = "to its new process"
    elif state["detour"]:
        why = printable(state["detour"], longest=200)
        way += f" (because its nanny cannot run two processes: {why})"
    lost = "an unknown number" if state["lost"] is None else f"{state['lost']:,}"
    keys = "keys to move" if state["error"] else "keys moved"
    said = f"{state['keys']:,} {keys} {way}; lost {lost}"
    if ended := state["ended_tasks"]:
        said += f"; ended {plural(ended, 'task')}"
    if dropped := state["unsendable"]["dropped"]:
        said += (
            f"; dropped {plural(dropped, 'key')} of failed tasks, such as open "
            "sockets, which cannot be sent"
        )
    undone = "; ".join(filter(None, [state["error"], *_missing(state, ids)]))
    finished = bool(state["address"]) or (not returns and not state["error"])
    return Result(
        nbytes=state["nbytes"],
        not_done=undone,
        details=said,
        count=int(finished),
        lost=state["lost"],
        unchanged=not finished and state["unchanged"],
    )


async def drop(lease: Lease, drop: Drop, notify: Notify) -> Result:
    """Restart workers at once; cancelled while it waits, it loses nothing."""
    ended: list[dict[str, Any]] = []
    job = lease.job(
        "restart",
        lambda state: notify(str(state["doing"]), None),
        ended,
        drop={
            "owner": lease.client.id,
            "others": drop.include_other_clients,
            "workers": None if drop.all else list(drop.workers),
            "parking": ship.pickled(park.act),
            "wait": drop.wait,
            "timeout": JOB_SHARE * max(0.0, lease.remaining()),
        },
    )
    try:
        return _dropped(drop, await job)
    except BaseException as error:
        if ended:
            attach_result(error, _dropped(drop, ended[0]))
        raise


def _dropped(drop: Drop, state: Mapping[str, Any]) -> Result:
    """Return the result of a restart without data from the last state of its job."""
    # The keys were counted before the restart. They are lost once it has begun.
    began = state["began"]
    if not state["finished"]:
        continues = f"the scheduler continues after this call: {state['doing']}"
        lost = state["keys"] if began else None
        return Result(nbytes=0, not_done=continues, count=None, lost=lost)
    if state["error"]:
        return Result(
            nbytes=0,
            not_done=printable(state["error"], longest=500),
            count=None if began else 0,
            lost=state["keys"] if began else 0,
            unchanged=not began,
        )
    details = f"{plural(state['keys'], 'key')} ({bytes_text(state['nbytes'])}) dropped"
    if cancelled := state["cancelled"]:
        details += f"; {plural(cancelled, 'task')} cancelled"
    return Result(
        nbytes=0,
        details=details,
        count=len(drop.workers),
        lost=state["keys"],
    )


# --- memory ---------------------------------------------------------------------------


async def trim(client: Client, trim: Trim) -> Result:
    """Have workers collect garbage and return unused memory to their hosts."""
    approved = monitor.known(client).addresses
    answers = await ship.on_workers(
        client,
        process.trim,
        [a for a in trim.workers if a in approved],
        timeout=monitor.PATIENCE,
    )
    mute = trim.workers.keys() - approved
    undone = [f"{len(mute)} gave no or other versions"] if mute else []
    said = []
    for address, answer in answers.items():
        id = trim.workers[address]
        who = names_text([id])
        if isinstance(answer, BaseException):
            undone.append(f"worker {who}: {printable(repr(answer), longest=200)}")
            continue
        before, after = answer
        said.append(f"worker {who}: {bytes_text(before)} to {bytes_text(after)}")
    return Result(
        nbytes=0,
        not_done="; ".join(undone),
        details="; ".join(said),
        count=len(said),
    )


def _missing(state: Mapping[str, Any], ids: Mapping[str, str | int]) -> Iterator[str]:
    """Yield the numbers of lost and recomputed keys of a restart, with reasons."""
    if state["lost"] is None:
        yield "a client restarted the cluster meanwhile, so lost keys are unknown"
    if lost := state["lost"]:
        ended = [ids.get(address, address) for address in state["ended"]]
        why = f" with worker {names_text(ended)}, which ended meanwhile"
        yield f"lost {plural(lost, 'key')}{why if ended else ''}"
    if again := state["again"]:
        yield f"{plural(again, 'key')} recomputed, because their workers ended"
    if again := state["unsendable"]["recomputed"]:
        yield f"{plural(again, 'key')} recomputed, because they could not be sent"


def _to_stay(workers: Mapping[str, Mapping[str, Any]]) -> int:
    """Count the workers that remain; paused workers do."""
    states = [w["status"] for w in workers.values()]
    return states.count("running") + states.count("paused")


def _bounds_text(least: int, most: float) -> str:
    text = 'float("inf")' if math.isinf(most) else f"{most:g}"
    line = f"cluster.adapt(minimum={least}, maximum={text})"
    return f"{line} restores the previous bounds; so does the end of a `with` block"


def _resize_terms(args: WorkerEnd) -> dict[str, Any] | None:
    """The arguments of ``remote.scheduler.nanny.Resizing``; None: the size stays."""
    if not isinstance(args, Resize):
        return None
    size = args.size
    line, most = args.lowered_limits
    return {
        "change": ship.pickled(process.change),
        "settle": ship.pickled(process.settle),
        "wanted": {"nthreads": size.nthreads, "memory_limit": size.memory_limit},
        "line": line,
        "most": most,
    }


def _differences(entry: Mapping[str, Any] | None, size: WorkerSize) -> str:
    """Describe how a restarted worker differs from its requested size.

    ``entry`` is its registration at the scheduler; None: it is gone.
    """
    if entry is None:
        return "the resized worker left again"
    wanted = {"nthreads": size.nthreads, "memory_limit": size.memory_limit}
    return "; ".join(
        printable(f"{name} is {entry[name]!r}, not {want!r}", longest=200)
        for name, want in wanted.items()
        if want is not None and entry[name] != want
    )
