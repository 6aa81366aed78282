"""Public calls on workers, such as ``restart_workers``; and ``release_data``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from distributed import Client, futures_of

from clustertune.actions import release as releasing
from clustertune.actions import restart as restarting
from clustertune.actions import scale as scaling
from clustertune.actions.cluster.live import LookOptions
from clustertune.core import arguments
from clustertune.core.model import Notify, Step, View, WorkerSize
from clustertune.core.report import Report
from clustertune.core.wording import plural
from clustertune.errors import NoWorkersError, RefusedError
from clustertune.integrations import managers
from clustertune.operations.call import check_client, operate
from clustertune.planner import machines

#: what restarts need in addition to a snapshot
RESTART_LOOK = LookOptions(held_data=True, least_memory=True, task_seconds=0.0)
#: guards that refuse to restart one worker, but not the others
SKIPS = ("worker_can_restart",)


def restart_workers(
    client: Client,
    *collections: Any,
    workers: Sequence[str | int] | None = None,
    max_unavailable: float | str = 1,
    if_needed: bool = False,
    end_tasks: bool = False,
    drop_data: bool = False,
    include_other_clients: bool = False,
    wait: str | float | None = None,
    dry_run: bool = False,
    progress: bool | Notify | None = None,
    timeout: str | float = "30 minutes",
) -> Report:
    """Restart workers one at a time without losing their data.

    Each worker in turn gets no new tasks and finishes its running tasks. Its nanny
    starts the next process, and its keys move there, or to other workers and back. The
    scheduler carries this out. If this process ends, the scheduler still finishes the
    current worker.

    With ``drop_data`` the workers restart at once without their data and running tasks,
    as with ``client.restart()``. This ends tasks that never end by themselves. The
    report lists the lost data first.

    Parameters
    ----------
    client, dry_run, progress
        As for :func:`clustertune.prepare`.
    *collections
        Row-aligned collections whose partitions stay together meanwhile. The keys of
        all clients are kept, also those of other collections.
    workers
        Names or addresses; all by default. Without names, or with ``if_needed``, the
        call skips workers that have no nanny, or versions that forbid to send them
        code.
    max_unavailable
        How many workers may be away at the same time: a number, or a fraction of all,
        such as ``0.25`` or ``"25%"`` (rounded down, at least one). Their keys have to
        fit into the memory of the others. Not with ``end_tasks`` or ``drop_data``.
    if_needed
        First trim the workers, then restart only workers that are still above a
        threshold at which they spill or pause, or will be after the next run.
    end_tasks
        End tasks that never end by themselves, without losing data: the keys of all
        these workers move to their next processes while the tasks still run. Then the
        former processes end, and their tasks with them. The tasks run again elsewhere.
        Tasks of a fit that has lost a worker are cancelled before. Not with
        ``drop_data`` or ``if_needed``.
    drop_data
        Restart the workers at once, and lose their data. Their running tasks and the
        tasks that wait for these are cancelled. With ``workers`` Dask computes lost
        keys again, except scattered ones. Without, all data in memory is lost, and
        parking workers that earlier restarts left end, too. Not with collections or
        ``if_needed``.
    include_other_clients
        Allow ``drop_data`` to destroy published data and keys that other clients hold.
        Otherwise the error lists both.
    wait
        Seconds, or a duration: how long to wait for the running tasks of each worker.
        Default: one minute; with ``end_tasks`` or ``drop_data`` no time.
    timeout
        Seconds, or a duration, for the whole call. At the limit, a restart that has
        begun is undone. The call waits for that for at most 10 s more; the scheduler
        completes it in any case.

    Returns
    -------
    Report
        ``steps`` has for each worker the number of keys that were moved, how they
        moved, and the number of lost keys by the scheduler's count. Moved keys have one
        replica. If the worker that holds it dies meanwhile, the key is lost unless it
        can be computed again. Status ``left``: not all steps were done, or keys were
        lost. ``workers`` has the process memory of each worker before and after the
        call.

    Raises
    ------
    RefusedError
        A worker cannot be restarted without loss (actors, too little memory on the
        others), a named worker or all have no nanny, or other clients would lose data.
        Nothing was changed.
    ConnectionLostError, LeaseHeldError, NoWorkersError, VersionMismatchError
        The cluster cannot carry out the request; the text gives the reason and a fix.
    TimedOutError
        The time limit was reached. Without ``drop_data`` no data is lost.

    Examples
    --------
    >>> print(clustertune.restart_workers(client, workers=[1]))         # doctest: +SKIP
    """
    most = arguments.part("max_unavailable", max_unavailable)
    others = arguments.flag("include_other_clients", include_other_clients)
    dropped = arguments.flag("drop_data", drop_data)
    by_need = arguments.flag("if_needed", if_needed)
    ended = arguments.flag("end_tasks", end_tasks)
    if ended and (dropped or by_need):
        raise TypeError(
            "end_tasks=True keeps the data; it does not combine with drop_data or "
            "if_needed"
        )
    default = 0.0 if dropped or ended else restarting.WAIT
    seconds = default if wait is None else arguments.duration("wait", wait)
    if dropped and (collections or by_need):
        raise TypeError(
            "drop_data=True keeps no data; it does not combine with collections or "
            "if_needed"
        )
    if (dropped or ended) and most != 1:
        raise TypeError(
            "end_tasks=True and drop_data=True restart all these workers at once; "
            "leave max_unavailable out"
        )
    if others and not dropped:
        raise TypeError(
            "include_other_clients=True is only for drop_data=True; without it no "
            "client loses data"
        )

    def steps(view: View, ids: Collection[str | int], _: object) -> Iterator[Step]:
        if dropped:
            yield from releasing.drops(
                view, ids, wait=seconds, include_other_clients=others
            )
        elif by_need:
            yield from restarting.trims(view, ids)
        else:
            yield from restarting.steps(
                view, ids, wait=seconds, most=most, end_tasks=ended
            )

    restarts_by_need = partial(restarting.steps_by_need, wait=seconds, most=most)
    return operate(
        client,
        "restart",
        steps,
        *collections,
        then=restarts_by_need if by_need else None,
        workers=workers,
        dry_run=dry_run,
        progress=progress,
        timeout=timeout,
        look=replace(RESTART_LOOK, holdings=dropped),
        skips=SKIPS,
    )


def resize_workers(
    client: Client,
    *collections: Any,
    nthreads: int | None = None,
    memory_limit: str | int | None = None,
    workers: Sequence[str | int] | None = None,
    max_unavailable: float | str = 1,
    wait: str | float = "1 minute",
    dry_run: bool = False,
    progress: bool | Notify | None = None,
    timeout: str | float = "30 minutes",
) -> Report:
    """Change threads or memory limit of workers without losing data.

    Workers restart one at a time, as with :func:`clustertune.restart_workers`. Each
    nanny gets the new size when its worker is empty, and keeps it for later starts. A
    worker that does not start with the new size gets its old size again. Workers that
    already have the size do not restart.

    Parameters
    ----------
    client, *collections, workers, max_unavailable, wait, dry_run, progress, timeout
        As for :func:`clustertune.restart_workers`.
    nthreads
        Threads of each worker.
    memory_limit
        Bytes, or text such as ``"4 GiB"``, for each worker.

    Returns
    -------
    Report
        As of :func:`clustertune.restart_workers`.

    Raises
    ------
    TypeError
        No change is given.
    RefusedError
        As for :func:`clustertune.restart_workers`; or a worker's process and data do
        not fit a lower limit. Nothing was changed.
    ConnectionLostError, LeaseHeldError, NoWorkersError, VersionMismatchError, \
TimedOutError
        As for :func:`clustertune.restart_workers`.

    Examples
    --------
    >>> clustertune.resize_workers(client, X, y, nthreads=4)            # doctest: +SKIP
    """
    size = WorkerSize(
        nthreads=arguments.count("nthreads", nthreads),
        memory_limit=arguments.nbytes("memory_limit", memory_limit),
    )
    if size == WorkerSize():
        raise TypeError("no change is given: give nthreads or memory_limit")
    seconds = arguments.duration("wait", wait)
    most = arguments.part("max_unavailable", max_unavailable)

    def steps(view: View, ids: Collection[str | int], _: object) -> Iterator[Step]:
        named = [w for w in view.now.workers if w.id in ids]
        if reason := managers.find(client.cluster).resize_obstacle(size, named):
            raise RefusedError(f"refused, and nothing was changed: {reason}")
        yield from restarting.bring_back(view, seconds)
        yield from restarting.resizes(view, ids, size, wait=seconds, most=most)

    return operate(
        client,
        "resize",
        steps,
        *collections,
        workers=workers,
        dry_run=dry_run,
        progress=progress,
        timeout=timeout,
        look=RESTART_LOOK,
        skips=SKIPS,
    )


def merge_workers(
    client: Client,
    *collections: Any,
    workers: Sequence[str | int] | None = None,
    max_unavailable: float | str = 1,
    wait: str | float = "1 minute",
    dry_run: bool = False,
    progress: bool | Notify | None = None,
    timeout: str | float = "30 minutes",
) -> Report:
    """Replace the workers of each host by one with all their threads and memory.

    XGBoost, LightGBM and PyTorch train with all threads of a worker, so one process per
    host can train with less communication and memory. On each host the worker with the
    most unreplicated data is resized to the threads and memory limits of all workers
    there, as by :func:`clustertune.resize_workers`. The others move their keys to it
    and are retired, as by :func:`clustertune.scale`. The client's cluster object does
    not start them again, and gives new workers the new size.

    Parameters
    ----------
    client, *collections, max_unavailable, wait, dry_run, progress, timeout
        As for :func:`clustertune.restart_workers`.
    workers
        Names or addresses of the workers that may become one; all by default.

    Returns
    -------
    Report
        As of :func:`clustertune.restart_workers`.

    Raises
    ------
    RefusedError
        A cluster manager or adaptive scaling would start the workers again, the workers
        of a host differ, or a worker cannot be restarted or retired without loss. The
        text has the line that starts one worker. Nothing was changed.
    ConnectionLostError, LeaseHeldError, NoWorkersError, VersionMismatchError, \
TimedOutError
        As for :func:`clustertune.restart_workers`. The next call completes a merge that
        was interrupted.

    Examples
    --------
    >>> print(clustertune.merge_workers(client))                       # doctest: +SKIP
    """
    seconds = arguments.duration("wait", wait)
    most = arguments.part("max_unavailable", max_unavailable)
    return operate(
        client,
        "merge",
        lambda view, ids, _: scaling.merges(view, ids, wait=seconds, most=most),
        *collections,
        workers=workers,
        dry_run=dry_run,
        progress=progress,
        timeout=timeout,
        look=RESTART_LOOK,
    )


def scale(
    client: Client,
    n_workers: int,
    *collections: Any,
    wait: str | float = "1 minute",
    dry_run: bool = False,
    progress: bool | Notify | None = None,
    timeout: str | float = "10 minutes",
) -> Report:
    """Scale a cluster to a number of workers without losing data.

    The client's cluster object starts more workers, and the call waits for them. To
    remove workers, the call retires those with the fewest bytes of unreplicated keys,
    one at a time: each finishes its running tasks and moves its keys to the remaining
    workers. One running worker stays. The bounds of an adaptive cluster are set to the
    number; the report has the line that restores them.

    Parameters
    ----------
    client, *collections, wait, dry_run, progress, timeout
        As for :func:`clustertune.restart_workers`.
    n_workers
        The number of workers, at least one.

    Returns
    -------
    Report
        As of :func:`clustertune.restart_workers`. New workers hold no data, and moved
        keys are where memory was free. :func:`clustertune.prepare` distributes them
        evenly.

    Raises
    ------
    NoWorkersError
        The cluster cannot have more workers, or they did not start in time. If the
        client has no cluster object, the text ends with the line that starts them.
    RefusedError
        A worker holds actors, or its keys do not fit the remaining workers; nothing was
        changed.
    ConnectionLostError, LeaseHeldError, VersionMismatchError, TimedOutError
        As for :func:`clustertune.restart_workers`.

    Examples
    --------
    >>> clustertune.scale(client, 3)                            # doctest: +SKIP
    >>> X, y = clustertune.prepare(client, X, y)                # doctest: +SKIP
    """
    wanted = arguments.number("n_workers", n_workers)
    seconds = arguments.duration("wait", wait)

    def steps(view: View, *_: object) -> Iterator[Step]:
        yield from scaling.exact_bounds(view, wanted)
        there = sum(w.is_counted for w in view.now.workers)
        if there < wanted:
            reason = managers.find(client.cluster).obstacle(wanted)
            if client.cluster is None:
                reason = machines.start_by_hand(view.now, wanted - there)
            if reason is not None:
                raise NoWorkersError(f"n_workers={wanted}: {reason}")
            yield scaling.step(there, wanted)
        else:
            yield from scaling.retirements(view, wanted, wait=seconds)

    return operate(
        client,
        "scale",
        steps,
        *collections,
        dry_run=dry_run,
        progress=progress,
        timeout=timeout,
        look=LookOptions(held_data=True),
        needs=(),
    )


def trim_memory(
    client: Client,
    *,
    workers: Sequence[str | int] | None = None,
    dry_run: bool = False,
    progress: bool | Notify | None = None,
    timeout: str | float = "1 minute",
) -> Report:
    """Return free memory of worker processes to their hosts.

    All workers collect Python's garbage and return the C library's free memory. No data
    is at risk.

    Parameters
    ----------
    client, workers, dry_run, progress, timeout
        As for :func:`clustertune.restart_workers`.

    Returns
    -------
    Report
        ``workers`` has the process memory of each worker before and after.

    Raises
    ------
    ConnectionLostError, LeaseHeldError, NoWorkersError, VersionMismatchError, \
TimedOutError
        As for :func:`clustertune.restart_workers`.

    Examples
    --------
    >>> print(clustertune.trim_memory(client))                         # doctest: +SKIP
    """
    return operate(
        client,
        "trim",
        lambda view, ids, _: restarting.trims(view, ids),
        workers=workers,
        dry_run=dry_run,
        progress=progress,
        timeout=timeout,
    )


# --- release --------------------------------------------------------------------------


def release_data(
    client: Client,
    *collections: Any,
    keep: Any = (),
    dry_run: bool = False,
    progress: bool | Notify | None = None,
    timeout: str | float = "1 minute",
) -> Report:
    """Release data in memory: the given collections, or all except those to keep.

    Keys that another client, a published name or another collection of this process
    holds stay in memory.

    Parameters
    ----------
    client, progress, timeout
        As for :func:`clustertune.prepare`.
    *collections
        Collections or futures to release.
    keep
        Instead of collections to release: collections or futures, or a list of them,
        whose keys stay. All other keys that only this client holds are released.
    dry_run
        Change nothing; the report lists the keys by prefix. Without collections and
        ``keep``, it lists all keys of this client.

    Returns
    -------
    Report
        Its steps have for each prefix the number of released keys and bytes. Futures
        and collections of these keys are cancelled; later use raises an error.

    Raises
    ------
    TypeError
        Collections and ``keep`` are both given, or neither.
    RefusedError
        All keys of the collections are also needed elsewhere; nothing was changed.
    ConnectionLostError, LeaseHeldError, VersionMismatchError, TimedOutError
        As for :func:`clustertune.restart_workers`.

    Examples
    --------
    >>> print(clustertune.release_data(client, dry_run=True))        # doctest: +SKIP
    >>> clustertune.release_data(client, keep=[X, y])                # doctest: +SKIP
    >>> clustertune.release_data(client, X, y)                       # doctest: +SKIP
    """
    check_client(client)
    kept = {f.key for f in futures_of(keep)}
    going = Counter(f.key for f in {id(f): f for f in futures_of(collections)}.values())
    if collections and kept:
        raise TypeError("give the data to release, or keep=[...], and not both")
    if not (collections or kept) and not arguments.flag("dry_run", dry_run):
        nothing = isinstance(keep, list | tuple) and not keep
        why = "" if nothing else ", because nothing in keep= is in memory"
        raise TypeError(
            f"release_data would release all data of this client{why}. Give the data "
            "to release, or the data to keep: keep=[X, y]"
        )
    if collections:
        counts = dict(client.refcount)
        kept = {key for key in client.futures if counts.get(key, 0) != going[key]}
        if going and kept.issuperset(going):
            raise RefusedError(
                "refused, and nothing was changed: other collections in this process "
                f"hold all of the {plural(len(going), 'key')}; delete them, or give "
                "them, too"
            )
    excluded = tuple(kept)

    def steps(view: View, *_: object) -> Iterator[Step]:
        yield from releasing.steps(view, excluded, named=bool(collections))

    return operate(
        client,
        "release",
        steps,
        look=LookOptions(holdings=True, kept=excluded),
        needs=(),
        dry_run=dry_run,
        progress=progress,
        timeout=timeout,
    )
