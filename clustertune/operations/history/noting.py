"""Noting what calls and runs were like, in the history of whoever makes them.

A note is made when the work is done, in a thread. That it could not be written is said,
in the report or the log, and changes nothing else: no call fails for its note.
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
from clustertune.operations.history import settings
from clustertune.operations.history.record import Measures, Record, Store, WorkerMemory
from clustertune.operations.journal import Journal
from clustertune.planner import machines
from clustertune.planner.machines import Workers

if TYPE_CHECKING:
    from clustertune.operations.watch import Monitor

N = TypeVar("N", int, float)

logger = logging.getLogger("clustertune")

LONGEST = 500  # characters of an error
MOST_STEPS = 20  # that are named


# --- what is noted (pure) -------------------------------------------------------------


def of_call(kind: str, journal: Journal, report: Report, began: float) -> Record:
    """What a call has seen and done; a dry run is a ``plan``."""
    view = journal.views[-1] if journal.views else None
    layout = view.layouts[0] if view and view.layouts else None
    summary = report.after[0] if report.after else None
    dry = report.status == "planned"
    steps = [s for s in report.steps if s.status in ("done", "partly", "planned")]
    seconds = _costs([(s.predicted_seconds, s.seconds) for s in steps], dry)
    nbytes = _costs([(s.predicted_bytes, s.nbytes) for s in steps], dry)
    record = Record(
        kind="plan" if dry else kind,
        began=began,
        seconds=report.seconds,
        status=report.status,
        workload=report.workload if layout else "",
        rows=summary.rows if summary else None,
        columns=layout.members[0].columns if layout else None,
        pieces=summary.pieces if summary else None,
        nbytes=summary.nbytes if summary else None,
        findings=_named(report.found),
        steps=tuple(s.summary for s in steps[:MOST_STEPS]),
        predicted_seconds=seconds[0],
        actual_seconds=seconds[1],
        predicted_bytes=nbytes[0],
        actual_bytes=nbytes[1],
        predicted_peak=max(report.forecast.values(), default=None),
        error=printable(report.error, longest=LONGEST),
    )
    return _on(record, view.now, view.eligible_workers) if view else record


def _named(findings: Sequence[Finding]) -> tuple[tuple[str, str], ...]:
    known = [f for f in findings if f.severity is not Severity.unknown]
    return tuple(dict.fromkeys((str(f.severity), f.check) for f in known))


def _costs(
    pairs: Sequence[tuple[N | None, N | None]], dry: bool
) -> tuple[N | None, N | None]:
    """What steps were predicted to cost and did, as sums where both are known.

    Of a plan only the first can be.
    """
    known = [(p, a or 0) for p, a in pairs if p is not None and (dry or a is not None)]
    if not known:
        return None, None
    return sum(p for p, _ in known), None if dry else sum(a for _, a in known)


def _on(record: Record, snapshot: Snapshot, workers: Workers) -> Record:
    """With the shape of a cluster, as far as these workers are it."""
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
    """What a held block took.

    Parameters
    ----------
    about
        What is known of the data, and of the cluster that was prepared; else all
        workers that run.
    label
        What the block is called, if it is called anything.
    watched
        What looked at the cluster meanwhile; one look alone is of what was before.
    """
    snapshots = watched.snapshots
    seen = len(snapshots) > 1
    text = "" if error is None else f"{type(error).__name__}: {error}"
    if measures.gone and not text:
        text = f"{workers_text(measures.gone)} went meanwhile"
    record = about or Record(kind="fit", job=label, began=began, seconds=0.0)
    if about is None and snapshots:
        running = tuple(w for w in snapshots[0].workers if w.running)
        record = _on(record, snapshots[0], running)
    return replace(
        record,
        kind="fit",
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
                peak=peak if seen else None,
            )
            for id, peak in measures.peaks.items()
        ),
        spilled=measures.spilled if seen else None,
        busy=sum(measures.busy.values()) if measures.busy else None,
        error=printable(text, longest=LONGEST),
        # what prepare did is noted as such
        steps=(),
        predicted_seconds=None,
        actual_seconds=None,
        predicted_bytes=None,
        actual_bytes=None,
    )


def of_run(
    run: Run, cluster: str, scheduler: str, limits: dict[str | int, int]
) -> Record:
    """A run as the scheduler has seen it; ``scheduler`` is that process's own id."""
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
    """With the job that is set, or else that the data tells."""
    if job is None and not record.job and record.workload:
        job = (
            f"{record.workload}-{record.columns}" if record.columns else record.workload
        )
    return replace(record, job=job) if job is not None else record


# --- writing it -----------------------------------------------------------------------


async def note_call(kind: str, journal: Journal, report: Report) -> Report:
    """Note a call; the report with what hindered it, if anything did."""
    began = time() - report.seconds
    text = await note(lambda: of_call(kind, journal, report, began))
    return replace(report, notes=(*report.notes, text)) if text else report


async def note(make: Callable[[], Record]) -> str:
    """Note what is made, if there is to be a history; says what hindered it."""
    try:
        history = settings.configured()
        if history.enabled:
            record = with_job(make(), history.job)
            store = Store(history.path)
            await asyncio.to_thread(store.add, [record], keep=history.keep)
    except (HistoryError, ValueError) as error:
        return f"not noted in the history: {error}"
    except Exception as error:  # what is done must not fail for its note
        logger.exception("clustertune could not note a call or a run")
        return f"not noted in the history: {printable(repr(error), longest=200)}"
    return ""


async def collect(client: Client) -> int:
    """Note the runs that the scheduler has seen and that are not noted yet.

    Returns
    -------
    int
        How many these were.

    Raises
    ------
    HistoryError
        They cannot be noted.
    ConnectionLostError, VersionMismatchError
        The scheduler cannot be asked.
    """
    history = settings.configured()
    identity = await monitor.identify(client)
    await monitor.open_door(client, identity)
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
        jobs = [with_job(_of_job(run, known), history.job) for run in runs]
        return store.add(jobs, keep=history.keep)

    return await asyncio.to_thread(add)


def _of_job(run: Record, known: Sequence[Record]) -> Record:
    """With the job of what was noted while it went on."""
    for other in reversed(known):
        if other.began <= run.ended and run.began <= other.ended:
            return replace(run, job=other.job)
    return run
