"""Checks of the scheduler's tasks, clients and names."""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.findings import code, critical, info, unknown, warning
from clustertune.core.model import Finding, Severity, Snapshot, View
from clustertune.core.wording import (
    are,
    bytes_text,
    names_text,
    plural,
    printable,
    seconds_text,
    verb,
    workers_text,
)
from clustertune.planner import remedies

JOINING = ("finalize", "repartitiontofewer")  # how names of such tasks begin
NOT_CLIENTS = ("published-", "fire-and-forget")  # how ids of no real client begin

Ids = tuple[str | int, ...]


# --- tasks ----------------------------------------------------------------------------


def abandoned_tasks(view: View, *, min_seconds: float = 10.0) -> Iterator[Finding]:
    """Find workers that run tasks for which no client waits.

    When a client leaves while its training task runs, the worker cannot stop the
    thread. XGBoost or LightGBM wait in it for partners that never connect, and keep
    data and CPUs. Short tasks end soon, so the check needs several readings.

    Remedy: If the tasks may be interrupted, run ``clustertune.restart_workers(client,
    workers=[...])`` for these workers. It loses no data.

    Parameters
    ----------
    min_seconds
        Seconds from which the check reports such tasks.
    """
    now = _with_cancelled(view.now)
    if not now:
        return
    if len(view.snapshots) == 1:
        what = f"{workers_text(now)} {verb(now, 'runs')} tasks for which no client "
        yield _one_reading(f"{what}waits", now, view)
        return
    lasting, seconds = view.longest_lasting(_with_cancelled)
    if seconds < min_seconds:
        return
    found = [w for w in view.now.workers if w.id in lasting and w.cancelled]
    ids, tasks = tuple(w.id for w in found), sum(w.cancelled for w in found)
    fix = remedies.restart(view, found, "If these tasks may be interrupted, ")
    yield warning(
        message=f"{workers_text(ids)} {verb(ids, 'runs')} {plural(tasks, 'task')} for "
        f"which no client waits, for at least {seconds_text(seconds)}; no other task "
        "gets these threads",
        subject=ids,
        evidence={"tasks": tasks, "seconds": seconds},
        remedy=fix.python,
        command=fix.command,
        fixed_by="restart" if view.goal.may_restart(ids) else "",
    )


def _with_cancelled(snapshot: Snapshot) -> Ids:
    return tuple(w.id for w in snapshot.workers if w.cancelled)


def _one_reading(what: str, subject: Ids, view: View) -> Finding:
    return unknown(
        message=f"{what}; one reading cannot show for how long",
        subject=subject,
        remedy=f"Run `clustertune watch {printable(view.now.scheduler)}` in a shell.",
    )


def single_busy_worker(view: View, *, min_seconds: float = 30.0) -> Iterator[Finding]:
    """Find that one worker works while all others wait.

    Examples are a join of all partitions, a function of one big argument, and a library
    that trains on one worker. Every computation begins and ends with few tasks, so the
    check needs several readings.

    Remedy: Split the step into more partitions. For a fit ``clustertune.prepare``
    spreads the data, and ``clustertune.training`` has patterns for other code.

    Parameters
    ----------
    min_seconds
        Seconds from which the check reports such a worker.
    """
    busy = _only_busy(view.now)
    if not busy:
        return
    if len(view.snapshots) == 1:
        yield _one_reading(f"only {workers_text(busy)} has tasks", busy, view)
        return
    _, seconds = view.longest_lasting(_only_busy)
    if seconds >= min_seconds:
        others = len(view.now.workers) - 1
        yield info(
            message=f"only {workers_text(busy)} has had tasks for at least "
            f"{seconds_text(seconds)}; "
            f"{plural(others, 'worker waits', 'workers wait')}",
            subject=busy,
            evidence={"seconds": seconds, "waiting_workers": others},
            remedy="Split this step into more partitions. Before a fit, run "
            f"`{remedies.prepare(view)}`, which spreads the data over all workers.",
        )


def _only_busy(snapshot: Snapshot) -> Ids:
    """The only worker that has tasks, if there are several workers."""
    busy = tuple(w.id for w in snapshot.workers if w.processing)
    return busy if len(busy) == 1 and len(snapshot.workers) > 1 else ()


def short_tasks(
    view: View, *, min_task_seconds: float = 0.02, max_tasks: int = 50_000
) -> Iterator[Finding]:
    """Find many tasks that are too short for the cost of scheduling them.

    One scheduler serves all workers, at a cost of 0.2 to 1 ms per task. Dask's
    documentation advises tasks that take at least 100 times as long. The figures are
    sums over all tasks since the scheduler started.

    Remedy: Make partitions larger with ``X = X.rechunk({0: rows})`` or ``X =
    X.repartition(npartitions=n)``. With ``client.map`` use ``batch_size=``, or make
    many small calls in one function.

    Parameters
    ----------
    min_task_seconds
        Mean seconds below which tasks are too short.
    max_tasks
        Number of short tasks above which the check reports them.
    """
    survey = view.now.survey
    if survey is None:
        return
    found = [
        p
        for p in survey.prefixes
        if p.finished > max_tasks and p.seconds < min_task_seconds * p.finished
    ]
    if not found:
        return
    worst = max(found, key=lambda p: p.finished)
    seconds = worst.seconds / worst.finished
    factor = max(2, round(min_task_seconds / max(seconds, 1e-6)))
    yield warning(
        message=f"{plural(worst.finished, 'task')} "
        f"{printable(worst.name, longest=60)!r} took {seconds_text(seconds)} each, so "
        "workers wait for the scheduler; tasks should take at least "
        f"{seconds_text(min_task_seconds)}",
        subject=tuple(printable(p.name, longest=60) for p in found),
        evidence={
            "tasks": worst.finished,
            "seconds_per_task": seconds,
            "factor": factor,
        },
        remedy=f"Make partitions {factor:,} times as large, with `X.rechunk` or "
        f"`X.repartition`. With `client.map` use `batch_size={factor}`.",
    )


def unrunnable_tasks(view: View) -> Iterator[Finding]:
    """Find tasks that wait for a worker, host or resource that does not exist.

    Such a task waits without an error. A restarted worker has another address, so data
    that was persisted with ``workers=`` cannot be recomputed after a loss. Dask takes a
    misspelt worker name for a host.

    Remedy: Cancel these tasks (``client.cancel(futures)``) and submit them again,
    without ``workers=`` or with ``allow_other_workers=True``. For resources start a
    worker that has them: ``dask worker tcp://scheduler:8786 --resources "GPU=1"``.
    """
    survey = view.now.survey
    for unmet in () if survey is None else survey.unmet_restrictions:
        # a host or resource can still come, a worker of that address cannot
        gone = unmet.kind == "worker"
        remedy = "Cancel these tasks with `client.cancel(futures)`. Submit them again "
        remedy += "without `workers=`, or with `allow_other_workers=True`."
        if unmet.kind == "resources":
            wanted = ",".join(name.replace(": ", "=") for name in unmet.names)
            remedy = "Start a worker that has them: `dask worker "
            remedy += f"{printable(view.now.scheduler)} --resources "
            remedy += f"{code(wanted)}`."
        yield Finding(
            severity=Severity.critical if gone else Severity.warning,
            message=str(unmet),
            subject=unmet.names,
            evidence={"tasks": unmet.tasks, unmet.kind: ", ".join(unmet.names)},
            remedy=remedy,
        )


# --- data through client and scheduler ------------------------------------------------


def large_results(view: View, *, max_bytes: float = 2**30) -> Iterator[Finding]:
    """Find large results that are joined on one worker.

    ``compute()`` joins the partitions of a collection on one worker and sends the
    result to the client. A result that does not fit makes the worker pause or die. A
    scheduler that gathers it can fail in the same way (distributed#7964).

    Remedy: Keep large results on the workers with ``persist()``. Compute only small
    results (sums, samples). Write large ones from the workers with
    ``X.to_parquet(...)`` or ``X.to_zarr(...)``.

    Parameters
    ----------
    max_bytes
        Bytes of one result above which the check reports it.
    """
    survey = view.now.survey
    if survey is None:
        return
    joining = [p for p in survey.prefixes if p.name.startswith(JOINING)]
    held = sum(p.memory for p in joining)
    coming = sum(p.waiting + p.processing for p in joining)
    if held and (nbytes := sum(p.nbytes for p in joining)) / held > max_bytes:
        yield _joined("was joined" if held == 1 else "were joined", held, nbytes)
    if coming and (nbytes := sum(p.inputs for p in joining)) / coming > max_bytes:
        yield _joined(f"{are(range(coming))} about to be joined", coming, nbytes)


def _joined(verb: str, count: int, nbytes: int) -> Finding:
    return warning(
        message=f"{plural(count, 'result')} of {bytes_text(nbytes)} in all {verb} "
        "on one worker each, as compute() does before it sends them to the client; "
        "that worker may run out of memory",
        evidence={"results": count, "bytes": nbytes},
        remedy="Keep large results on the workers with `persist()` instead of "
        "`compute()`, or write them with `X.to_parquet(path)` or `X.to_zarr(path)`.",
    )


def data_in_graph(
    view: View, *, info_bytes: float = 2**24, warning_bytes: float = 2**30
) -> Iterator[Finding]:
    """Find lazy collections that have their data in their graph.

    ``da.from_array`` of an array in memory, ``dd.from_pandas`` and
    ``delayed(f)(array)`` put the data itself into the graph. The client sends it
    through the scheduler, which keeps it (distributed#8814: "Sending large graph").

    Remedy: Let the workers read the data from storage, for example with
    ``dd.read_parquet(path)``. Or scatter it once with ``client.scatter(array)``, and
    make the collection from the future.

    Parameters
    ----------
    info_bytes, warning_bytes
        Bytes from which the finding is information, and from which it is a warning.
    """
    collections = view.collections
    found = [m for m in collections if (m.embedded or 0) > info_bytes]
    if not found:
        return
    total = sum(m.embedded or 0 for m in found)
    labels = tuple(m.label for m in found)
    yield Finding(
        severity=Severity.warning if total > warning_bytes else Severity.info,
        message=f"{names_text(labels)} {verb(labels, 'has')} {bytes_text(total)} of "
        "data in the graph, which the client sends through the scheduler",
        subject=labels,
        evidence={"bytes": total},
        remedy="Let the workers read the data from storage, for example with "
        "`dask.dataframe.read_parquet(path)`. Or send it to the workers once with "
        "`client.scatter(array)`, and make the collection from the future.",
    )


# --- clients and names ----------------------------------------------------------------


def actors(view: View) -> Iterator[Finding]:
    """Find actors on the workers.

    Dask can neither move nor recompute the state of an actor. A worker with an actor
    cannot be retired, and a restart ends the actor.

    Remedy: Delete the actors (``del``) before you restart workers or scale down.
    """
    survey = view.now.survey
    if survey is not None and survey.actors:
        yield info(
            message=f"{plural(survey.actors, 'actor is', 'actors are')} on the "
            "workers; Dask cannot move actors, so a restart ends them",
            evidence={"actors": survey.actors},
            remedy="Delete the actors with `del` before you restart workers or scale "
            "down.",
        )


def lost_datasets(view: View) -> Iterator[Finding]:
    """Find published data sets whose data is gone.

    ``client.restart()`` frees all keys but keeps the names of published data sets, and
    workers that die lose scattered data. A collection from such a name fails when it is
    used (distributed#1823).

    Remedy: Run ``client.unpublish_dataset("name")``, load the data, and publish it
    again.
    """
    survey = view.now.survey
    gone = [] if survey is None else [p for p in survey.published if p.missing]
    if gone:
        missing = sum(p.missing for p in gone)
        yield critical(
            message=f"published data {'set' if len(gone) == 1 else 'sets'} "
            f"{names_text([p.name for p in gone])}: {plural(missing, 'key')} of "
            f"{sum(p.keys for p in gone):,} {are(range(missing))} gone, so any use of "
            "the data fails",
            subject=tuple(p.name for p in gone),
            evidence={"datasets": len(gone), "missing_keys": missing},
            remedy=f"Run `client.unpublish_dataset({code(gone[0].name)})`, "
            "load the data, and publish it again.",
        )


def other_clients(view: View) -> Iterator[Finding]:
    """Find other clients that work on this cluster.

    Their data uses memory and their tasks use threads. ``clustertune.restart_workers``
    keeps their data and waits for their tasks. Dask's ``client.restart()`` drops both.
    The check does not count published data sets, which belong to no client.

    Remedy: Ask their owners before you release data or remove workers. A client that
    has been silent for long may be a notebook that was left open.
    """
    survey = view.now.survey
    if survey is None:
        return
    others = [
        c
        for c in survey.clients
        if c.keys and c.id != survey.client and not c.id.startswith(NOT_CLIENTS)
    ]
    if not others:
        return
    longest = max(c.heartbeat_age for c in others)
    keys = sum(c.keys for c in others)
    silent = f"; one is silent for {seconds_text(longest)}" if longest > 60 else ""
    yield info(
        message=f"{plural(len(others), 'other client')} of this cluster "
        f"{verb(others, 'keeps')} {plural(keys, 'key')}{silent}",
        evidence={"clients": len(others), "keys": keys},
        remedy="Ask their owners before you release data or remove workers.",
    )
