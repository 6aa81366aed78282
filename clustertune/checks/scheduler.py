"""Checks of tasks, and of data from the client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from clustertune.core.model import (
    Finding,
    RunningTask,
    Severity,
    View,
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
from clustertune.planner.machines import details_of

FROM_STORAGE = (
    "Let the workers read the data from storage, for example with "
    "`dask.dataframe.read_parquet(path)` or `dask.array.from_zarr(path)`."
)
TIMES = 20.0  # times the mean duration of a kind of tasks: equal tasks differ by less
EMBEDDED = 2**24  # bytes in a graph: near 10 MB, from which Dask warns
MUCH_EMBEDDED = 2**30  # bytes in graphs, which the scheduler keeps in its memory


# --- tasks ----------------------------------------------------------------------------


def stuck_tasks(view: View, *, min_seconds: float = 60.0) -> Iterator[Finding]:
    """Find workers with a task that may never end.

    A training task waits without an end if another member of its fit is bound to a
    worker that has left, as LightGBM's are. Another task that runs 20 times as long
    as those of its kind waits for a lock, a file or a network that does not answer. If
    a client leaves, its running tasks go on without it: Dask cannot stop a thread. A
    training task may then wait for partners that never connect.

    Remedy: Run ``clustertune.restart_workers(client, workers=[...], end_tasks=True)``
    for these workers. It loses no data; the tasks run again, or are cancelled if they
    belong to such a fit. Tasks that no client waits for end without ``end_tasks``.

    Parameters
    ----------
    min_seconds
        Seconds from which the check reports a task, except for a training task that a
        client waits for.
    """
    yield from _unwanted(view, min_seconds)
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


def _unwanted(view: View, min_seconds: float) -> Iterator[Finding]:
    """Report tasks for which no client waits; a restart does not wait for them."""
    lasting = [(w, d.cancelled) for w, d in details_of(view) if d.cancelled is not None]
    found = [(w, seconds) for w, seconds in lasting if seconds >= min_seconds]
    if not found:
        return
    ids, seconds = tuple(w.id for w, _ in found), max(x for _, x in found)
    fix = remedies.restart(view, [w for w, _ in found], "If these tasks may be ended, ")
    yield warning(
        message=f"{workers_text(ids)} {verb(ids, 'runs')} tasks for which no client "
        f"waits, for up to {seconds_text(seconds)}; no other task gets these threads",
        subject=ids,
        evidence={"seconds": seconds},
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


# --- data -----------------------------------------------------------------------------


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
