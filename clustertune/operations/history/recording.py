"""Add records of calls and runs to the user's history file.

A thread writes records after the work. If it fails, the report or the log has a note,
and the call still succeeds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import time
from typing import TYPE_CHECKING, TypeVar

from distributed import Client

from clustertune.core.model import Finding, Run, Severity, Snapshot, Unknown
from clustertune.core.report import Report
from clustertune.core.wording import printable, workers_text
from clustertune.errors import HistoryError
from clustertune.monitor import inquiry, monitor
from clustertune.operations.history.store import (
    Measures,
    Record,
    Store,
    WorkerMemory,
    configured,
)
from clustertune.operations.journal import Journal
from clustertune.planner import machines
from clustertune.planner.machines import Workers

if TYPE_CHECKING:
    from clustertune.operations.watch import Monitor

N = TypeVar("N", int, float)

logger = logging.getLogger("clustertune")

MAX_ERROR_LENGTH = 500  # characters
MAX_STEPS = 20


# --- records of calls and runs (pure) -------------------------------------------------


def of_call(kind: str, journal: Journal, report: Report, began: float) -> Record:
    """Return the record of a call; a dry run is a ``plan``."""
    dry = report.status == "planned"
    steps = [s for s in report.steps if s.status in ("done", "partly", "planned")]
    seconds = [s.seconds for s in steps if s.seconds is not None]
    nbytes = _costs([(s.predicted_bytes, s.nbytes) for s in steps], dry)
    return replace(
        of_data(journal, report),
        kind="plan" if dry else kind,
        began=began,
        seconds=report.seconds,
        status=report.status,
        findings=_named(report.found),
        steps=tuple(s.summary for s in steps[:MAX_STEPS]),
        actual_seconds=sum(seconds) if seconds else None,
        predicted_bytes=nbytes[0],
        actual_bytes=nbytes[1],
        predicted_peak=max(report.forecast.values(), default=None),
        error=printable(report.error, longest=MAX_ERROR_LENGTH),
    )


def of_data(journal: Journal, report: Report) -> Record:
    """Return the record of a future fit: its data and its cluster."""
    view = journal.views[-1] if journal.views else None
    layout = view.layouts[0] if view and view.layouts else None
    record = Record(kind="fit", began=0.0, seconds=0.0)
    if layout:
        columns = layout.collections[0].columns
        record = replace(record, workload=report.workload, columns=columns)
    for data in report.after[:1]:
        rows, partitions = data.rows, data.partitions
        record = replace(record, rows=rows, partitions=partitions, nbytes=data.nbytes)
    return _on(record, view.now, view.eligible_workers) if view else record


def _named(findings: Sequence[Finding]) -> tuple[tuple[str, str], ...]:
    known = [f for f in findings if f.severity is not Severity.unknown]
    return tuple(dict.fromkeys((str(f.severity), f.check) for f in known))


def _costs(
    pairs: Sequence[tuple[N | None, N | None]], dry: bool
) -> tuple[N | None, N | None]:
    """Sum predicted and actual costs over the steps for which both are known.

    A plan has predicted costs only.
    """
    known = [(p, a or 0) for p, a in pairs if p is not None and (dry or a is not None)]
    if not known:
        return None, None
    return sum(p for p, _ in known), None if dry else sum(a for _, a in known)


def _on(record: Record, snapshot: Snapshot, workers: Workers) -> Record:
    """Add the sizes of the cluster; count only these workers."""
    hosts = machines.by_host(workers)
    cpus = [machines.host_cpus(group) for group in hosts.values()]
    known = [c.usable for c in cpus if not isinstance(c, Unknown)]
    return replace(
        record,
        cluster=snapshot.scheduler,
        workers=len(workers),
        threads=sum(w.nthreads for w in workers),
        hosts=len(hosts),
        host_cpus=sum(known) if known and len(known) == len(hosts) else None,
    )


def of_hold(
    about: Record | None,
    label: str,
    began: float,
    measures: Measures,
    watched: Monitor,
    error: BaseException | None,
) -> Record:
    """Return the record of a held block.

    ``about`` is the record of :func:`of_data`. If it is None, the record counts all
    running workers. A single snapshot of the monitor shows only the state before the
    block.
    """
    snapshots = watched.snapshots
    was_sampled = len(snapshots) > 1
    text = "" if error is None else f"{type(error).__name__}: {error}"
    if measures.gone and not text:
        text = f"{workers_text(measures.gone)} left meanwhile"
    record = about or Record(kind="fit", job=label, began=began, seconds=0.0)
    if about is None and snapshots:
        running = tuple(w for w in snapshots[0].workers if w.running)
        record = _on(record, snapshots[0], running)
    return replace(
        record,
        began=began,
        seconds=measures.seconds,
        status="failed" if error is not None else "left" if measures.gone else "done",
        findings=_named(watched.findings),
        predicted_peak=measures.predicted,
        memory=tuple(
            WorkerMemory(
                worker=id,
                limit=measures.limits.get(id) or None,
                idle=measures.idle.get(id),
                peak=peak if was_sampled else None,
            )
            for id, peak in measures.peaks.items()
        ),
        spilled=measures.spilled if was_sampled else None,
        busy=sum(measures.busy.values()) if measures.busy else None,
        error=printable(text, longest=MAX_ERROR_LENGTH),
    )


def of_run(
    run: Run, cluster: str, scheduler: str, limits: dict[str | int, int]
) -> Record:
    """Return the record of a run that the scheduler plugin has seen.

    ``scheduler`` is the id of the scheduler's process.
    """
    return Record(
        kind="run",
        began=run.began,
        seconds=run.ended - run.began,
        status="done",
        cluster=cluster,
        workers=len(run.peaks),
        memory=tuple(
            WorkerMemory(
                worker=id,
                limit=limits.get(id) or None,
                idle=run.floors.get(id),
                peak=peak,
                managed=run.managed.get(id),
            )
            for id, peak in run.peaks.items()
        ),
        ended_by=run.ended_by,
        key=f"{scheduler}:{run.began!r}",
    )


def with_job(record: Record, job: str | None) -> Record:
    """Add the configured job, or one that is derived from the data."""
    if job is None and not record.job and record.workload:
        job = record.workload
        job += f"-{record.columns}" if record.columns else ""
    return replace(record, job=job) if job is not None else record


# --- writing --------------------------------------------------------------------------


async def note_call(kind: str, journal: Journal, report: Report) -> Report:
    """Add the record of a call; return the report, with a note if that failed."""
    began = time() - report.seconds
    text = await note(lambda: of_call(kind, journal, report, began))
    return replace(report, notes=(*report.notes, text)) if text else report


async def note(make: Callable[[], Record]) -> str:
    """Add a record if the history is enabled; return the problem, or ""."""
    try:
        history = configured()
        if history.enabled:
            record = with_job(make(), history.job)
            store = Store(history.path)
            await asyncio.to_thread(store.add, [record], keep=history.keep)
    except (HistoryError, ValueError) as error:
        return f"not added to the history: {error}"
    except Exception as error:  # the finished work must not fail for its record
        logger.exception("clustertune could not add a call or a run to the history")
        return f"not added to the history: {printable(repr(error), longest=200)}"
    return ""


async def collect(client: Client) -> int:
    """Add the runs that the scheduler plugin has seen; return how many are new."""
    history = configured()
    identity = await monitor.identify(client)
    await monitor.install_plugin(client, identity)
    limits = {
        monitor.worker_id(address, entry): int(entry.get("memory_limit") or 0)
        for address, entry in identity["workers"].items()
    }
    seen = await inquiry.past_runs(client)
    cluster, scheduler = str(identity["address"]), str(identity["id"])
    store = Store(history.path)

    def add() -> int:
        known = [r for r in store.read() if r.cluster == cluster and r.job]
        runs = (of_run(run, cluster, scheduler, limits) for run in seen)
        jobs = [with_job(_with_job_of(run, known), history.job) for run in runs]
        return store.add(jobs, keep=history.keep)

    return await asyncio.to_thread(add)


def _with_job_of(run: Record, known: Sequence[Record]) -> Record:
    """Add the job of the latest record that overlaps with the run."""
    for other in reversed(known):
        if other.began <= run.ended and run.began <= other.ended:
            return replace(run, job=other.job)
    return run
