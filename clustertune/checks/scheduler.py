"""Checks of tasks, of data from the client, and of other keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from clustertune.core.model import (
    Details,
    Finding,
    RunningTask,
    Severity,
    Snapshot,
    View,
    WorkerSnapshot,
    info,
    unknown,
    warning,
)
from clustertune.core.wording import (
    are,
    bytes_text,
    code,
    names_text,
    plural,
    printable,
    seconds_text,
    verb,
    workers_text,
)
from clustertune.planner import remedies
from clustertune.planner.layouts import held_bytes

FROM_STORAGE = (
    "Let the workers read the data from storage, for example with "
    "`dask.dataframe.read_parquet(path)` or `dask.array.from_zarr(path)`."
)
ABANDONED = 10.0  # seconds: shorter tasks end before a restart would help
TIMES = 20.0  # times the mean duration of a kind of tasks: equal tasks differ by less
EMBEDDED = 2**24  # bytes in a graph: near 10 MB, from which Dask warns
MUCH_EMBEDDED = 2**30  # bytes in graphs, which the scheduler keeps in its memory
#: fractions of all memory limits, for information and for a warning
UNRELATED, MUCH_UNRELATED = 0.1, 0.3
Ids = tuple[str | int, ...]


# --- tasks ----------------------------------------------------------------------------


def abandoned_tasks(view: View) -> Iterator[Finding]:
    """Find workers that run tasks for which no client waits.

    When a client leaves while its training task runs, the worker cannot stop the
    thread. XGBoost or LightGBM wait in it for partners that never connect, and keep
    data and CPUs. Tasks shorter than 10 s end soon, so the check needs the duration.

    Remedy: If the tasks may be interrupted, run ``clustertune.restart_workers(client,
    workers=[...])`` for these workers. It loses no data.
    """
    now = _with_cancelled(view.now)
    if not now:
        return
    lasting, seconds = view.longest_lasting(_with_cancelled)
    reported = {w.id: n for w in view.now.workers if (n := _cancelled_for(w)) > seconds}
    if reported:
        lasting = frozenset(id for id in reported if reported[id] >= ABANDONED)
        seconds = max(reported.values())
    elif len(view.snapshots) == 1:
        yield unknown(
            message=f"{workers_text(now)} {verb(now, 'runs')} tasks for which no "
            "client waits; one reading cannot show for how long",
            subject=now,
            remedy=f"Run `clustertune watch {printable(view.now.scheduler)}` in a "
            "shell.",
        )
        return
    if seconds < ABANDONED:
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
        **fix._asdict(),
        fixed_by="restart" if view.goal.may_restart(ids) else "",
    )


def _with_cancelled(snapshot: Snapshot) -> Ids:
    return tuple(w.id for w in snapshot.workers if w.cancelled)


def _cancelled_for(worker: WorkerSnapshot) -> float:
    """For how long it runs a cancelled task, as it reported; 0: unknown, or none."""
    known = isinstance(worker.details, Details) and worker.details.cancelled
    return known or 0.0


def stuck_tasks(view: View, *, min_seconds: float = 60.0) -> Iterator[Finding]:
    """Find workers with a task that may never end.

    A training task waits without an end if another member of its fit is bound to a
    worker that has left, as LightGBM's are. Another task that runs 20 times as long
    as those of its kind waits for a lock, a file or a network that does not answer.
    Dask cannot stop a thread.

    Remedy: Run ``clustertune.restart_workers(client, workers=[...], end_tasks=True)``
    for these workers. It loses no data; the tasks run again, or are cancelled if they
    belong to such a fit.

    Parameters
    ----------
    min_seconds
        Seconds from which the check reports a task that is no training task.
    """
    survey = view.now.survey
    if survey is None:
        return
    long = [x for x in survey.running if not x.training and x.seconds >= min_seconds]
    yield from _stuck(
        view,
        [x for x in survey.running if x.lost_member],
        "of a fit that has lost a worker, and may wait for it without an end",
    )
    yield from _stuck(
        view,
        [x for x in long if x.usual is not None and x.seconds >= TIMES * x.usual],
        f"at least {TIMES:g} times as long as others of its kind",
    )
    yield from _stuck(
        view,
        [x for x in long if x.usual is None],
        "which may be stuck, and no other of its kind has ended",
        unknown,
    )


def _stuck(
    view: View,
    tasks: Sequence[RunningTask],
    what: str,
    severity: Callable[..., Finding] = warning,
) -> Iterator[Finding]:
    found = {w.id: w for x in tasks for w in [view.now.by_address.get(x.worker)] if w}
    if not found:
        return
    longest = max(tasks, key=lambda x: x.seconds)
    fix = remedies.restart(
        view,
        list(found.values()),
        "If these tasks may be ended, ",
        end_tasks=True,
    )
    name, ids = printable(longest.name, longest=60), tuple(found)
    yield severity(
        message=f"{workers_text(ids)} {verb(ids, 'runs')} a task {what}: {name!r} for "
        f"{seconds_text(longest.seconds)}",
        subject=ids,
        evidence={"tasks": len(tasks), "seconds": longest.seconds},
        **fix._asdict(),
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


# --- data and other keys --------------------------------------------------------------


def data_from_client(view: View) -> Iterator[Finding]:
    """Find given data that the client has sent, or will send.

    ``da.from_array`` of an array in memory, ``dd.from_pandas`` and
    ``delayed(f)(array)`` put the data itself into the graph. The client sends it
    through the scheduler, which keeps it (distributed#8814: "Sending large graph").
    The check reports more than 16 MiB; above 1 GiB the finding is a warning.

    Dask cannot recompute such partitions, or scattered ones. If their worker dies they
    are lost, with all data made of them (distributed#3149). ``prepare`` keeps them safe
    while it moves them.

    Remedy: Let the workers read the data from storage, for example with
    ``dd.read_parquet(path)`` or ``da.from_zarr(path)``. Large data in a graph you can
    also send to the workers once, with ``client.scatter(array)``, and make the
    collection from the future.
    """
    embedded = [m for m in view.collections if (m.embedded or 0) > EMBEDDED]
    if embedded:
        total = sum(m.embedded or 0 for m in embedded)
        labels = tuple(m.label for m in embedded)
        yield Finding(
            severity=Severity.warning if total > MUCH_EMBEDDED else Severity.info,
            message=f"{names_text(labels)} {verb(labels, 'has')} {bytes_text(total)} "
            "of data in the graph, which the client sends through the scheduler",
            subject=labels,
            evidence={"bytes": total},
            remedy=f"{FROM_STORAGE} Or send it to the workers once with "
            "`client.scatter(array)`, and make the collection from the future.",
        )
    scattered = [m for m in view.collections if m.scattered]
    if scattered:
        partitions = sum(m.scattered for m in scattered)
        labels = tuple(m.label for m in scattered)
        yield info(
            message=f"{plural(partitions, 'partition')} of {names_text(labels)} "
            f"{are(range(partitions))} lost if a worker dies, since Dask cannot "
            "recompute data that the client sent",
            subject=labels,
            evidence={"partitions": partitions},
            remedy=FROM_STORAGE,
        )


def unrelated_keys(view: View) -> Iterator[Finding]:
    """Find memory of keys that belong to none of the given collections.

    A fit cannot use this memory. Often it is an earlier version of the same data, which
    a variable, ``_`` or ``Out`` of a notebook, or a shown exception holds. The check
    reports more than 10 % of all memory limits; above 30 % the finding is a warning.

    Remedy: Delete the variables that hold the keys with ``del`` (in IPython also
    ``%reset_selective -f name`` and ``%xdel``). If no variable is left, run
    ``clustertune.release_data(client, keep=[X, y])``.
    """
    survey = view.now.survey
    limits = sum(w.memory_limit for w in view.now.workers)
    if survey is None or not view.layouts or not limits:
        return
    given = int(held_bytes(view.layouts, len(view.now.workers)).sum())
    other = sum(w.managed + w.spilled for w in view.now.workers) - given
    if other <= UNRELATED * limits:
        return
    largest = sorted(survey.prefixes, key=lambda p: -p.nbytes if p.keys else 0)[:3]
    kinds = names_text([f"{p.name} ({bytes_text(p.nbytes)})" for p in largest])
    yield Finding(
        severity=Severity.warning if other > MUCH_UNRELATED * limits else Severity.info,
        message=f"{bytes_text(other)} of keys belong to none of the given collections, "
        f"and a fit cannot use this memory; largest kinds of all keys: {kinds}",
        evidence={"bytes": other, "limits_bytes": limits},
        remedy="Delete the variables that hold them with `del`. To release all other "
        f"data of this client, run `{remedies.release(view)}`.",
    )
