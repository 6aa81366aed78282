"""What a call saw and did, for its report, the dashboard page and Dask's event log.

The scheduler itself has memory, threads and holders for the page. Only a client reads
thresholds, rows of partitions and findings; the plugin keeps them with their age.

``client.get_events("clustertune")`` shows, with Dask alone, each change with its
author, its reason and its steps. The scheduler plugin also logs its work there.
"""

from __future__ import annotations

import asyncio
import getpass
import logging
import os
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import dask
from distributed import Client

from clustertune.core.model import (
    Drop,
    Finding,
    Goal,
    Layout,
    LayoutSummary,
    Outcome,
    Plan,
    Trim,
    Unknown,
    View,
    WorkerEnd,
    WorkerSnapshot,
)
from clustertune.core.report import Report
from clustertune.core.results import (
    Done,
    Loss,
    WorkerState,
    carried_out,
    planned,
    refusals,
)
from clustertune.core.sections import headlines
from clustertune.core.wording import printable
from clustertune.monitor import connection
from clustertune.planner import forecast, layouts, suitability
from clustertune.remote import keys
from clustertune.remote.ending import within
from clustertune.remote.scheduler.page import MOST_KEYS, THRESHOLDS


@dataclass
class Journal:
    """The record of a running call, in order; a report can be made at any moment."""

    call: str = ""  # such as "prepare"
    views: list[View] = field(default_factory=list)
    findings: list[tuple[Finding, ...]] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    losses: tuple[Loss, ...] | None = ()  # apart from outcomes; None: unknown

    def add(self, view: View, found: tuple[Finding, ...]) -> None:
        """Record a view and its findings."""
        self.views.append(view)
        self.findings.append(found)

    def continued(self, now: View) -> View:
        """Return the view with the effects of earlier steps of this call."""
        first = (self.views or [now])[0].layouts[:1]
        return replace(
            now,
            goal=self._goal(now.goal),
            given_partitions=first[0].collections[0].n_partitions if first else None,
            replaced=self._replaced(now),
        )

    def _goal(self, goal: Goal) -> Goal:
        """Return the goal without the parts that this call has finished."""
        args = [o.step.args for o in self.outcomes if o.seconds is not None]
        return replace(
            goal,
            restarted=goal.restarted | {a.id for a in args if isinstance(a, WorkerEnd)},
            trimmed=goal.trimmed.union(
                *(a.workers.values() for a in args if isinstance(a, Trim))
            ),
        )

    def _replaced(self, now: View) -> dict[str | int, int]:
        """Return the bytes by worker of given partitions that were replaced."""
        found: Counter[str | int] = Counter()
        if now.goal.release_inputs:
            return found
        replaced = {m.label for m in now.collections if m.made_here}
        for view in reversed(self.views):
            workers = view.now.workers
            for given in view.collections:
                if given.label in replaced and given.loaded and not given.made_here:
                    replaced.remove(given.label)
                    only = Layout(label=given.label, collections=(given,))
                    held = layouts.held_bytes((only,), len(workers))
                    for worker, nbytes in zip(workers, held, strict=True):
                        found[worker.id] += int(nbytes)
        return found

    def note_losses(self, lost: Mapping[str, tuple[int, int]] | None) -> None:
        """Record lost keys and coming keys of workers that ended, by their address.

        If a step was about a worker that has lost keys, it has failed.
        """
        if lost is None:
            self.losses = None
            return
        ids = {w.address: w.id for view in self.views for w in view.now.workers}
        rest = dict(lost)
        for i, o in enumerate(self.outcomes):
            args, skipped = o.step.args, o.status == "skipped"
            if not (skipped and isinstance(args, WorkerEnd)):
                continue
            keys, coming = rest.get(args.address, (0, 0))
            if keys:
                rest[args.address] = 0, coming
                keys += o.lost or 0
                self.outcomes[i] = replace(o, status="failed", lost=keys)
        self.losses = tuple(
            Loss(worker=ids.get(address, address), keys=keys, coming=coming)
            for address, (keys, coming) in rest.items()
            if keys or coming
        )

    @property
    def lost(self) -> int | None:
        """Keys that were lost during the call; None if they are not known."""
        begun = [o for o in self.outcomes if o.seconds is not None]
        losing = [o for o in begun if isinstance(o.step.args, Drop | WorkerEnd)]
        losing = [o for o in losing if o.status != "skipped"]
        if self.losses is None or any(o.lost is None for o in losing):
            return None
        in_steps = sum(o.lost or 0 for o in self.outcomes)
        return in_steps + sum(x.keys for x in self.losses)

    def stop(self) -> None:
        """Record the steps of the last plan that had not begun when the call ended."""
        if not self.outcomes or not self.plans:
            return
        begun = {id(o.step) for o in self.outcomes}
        self.outcomes += [
            Outcome(step=s, status="skipped", reason="not begun")
            for s in self.plans[-1].steps
            if id(s) not in begun
        ]

    def status(self, dry_run: bool) -> str:
        """Return the status of a ``prepare`` that did not fail."""
        last = self.plans[-1]
        if dry_run:
            return "planned"
        # rows that could not be counted are not known to be even or paired
        view = self.views[-1]
        unknown = any(not (x.loaded and x.aligned) for x in view.layouts)
        unknown = unknown and view.loads_data
        if last.steps or last.refused or unknown:
            return "left"
        return "done" if self.outcomes else "fine"

    def report(self, status: str, seconds: float, error: str = "") -> Report:
        """Return the report of the call so far."""
        views, found = self.views, self.findings
        notes = (note for plan in self.plans for note in plan.notes)
        skipped = any(o.status == "skipped" for o in self.outcomes)
        return Report(
            status=status,
            seconds=seconds,
            call=self.call,
            workload=views[0].goal.workload.name if views else "",
            error=error,
            found=found[0] if found else (),
            left=found[-1] if found else (),
            before=_summaries(views[:1]),
            after=_summaries(views[-1:]),
            steps=tuple(self._steps(status)),
            needs=self.plans[-1].needs if self.plans else (),
            workers=states_of(views),
            lost=self.losses,
            host_threads=suitability.threads_of_task(views[-1]) if views else None,
            # running tasks matter only to steps that are planned, or were not done
            notes=tuple(dict.fromkeys(notes)) if skipped or status == "planned" else (),
        )

    def _steps(self, status: str) -> Iterator[Done]:
        yield from map(carried_out, self.outcomes)
        if status == "planned":
            yield from planned(self.plans[-1])
        elif self.plans:
            yield from refusals(self.plans[-1])


def _summaries(views: Sequence[View]) -> tuple[LayoutSummary, ...]:
    return tuple(layouts.summarize(x, view) for view in views for x in view.layouts)


def states_of(views: Sequence[View]) -> tuple[WorkerState, ...]:
    """Return the memory of each worker in both views, and its predicted peak."""
    if not views:
        return ()
    before = {w.id: w for w in views[0].now.workers}
    after = {w.id: w for w in views[-1].now.workers}
    peaks = forecast.peaks(views[-1])
    return tuple(
        WorkerState(
            worker=id,
            data_before=before[id].managed if id in before else None,
            data_after=after[id].managed if id in after else None,
            process_before=before[id].process if id in before else None,
            process_after=after[id].process if id in after else None,
            limit=worker.memory_limit,
            peak=peaks.get(id),
        )
        for id, worker in (before | after).items()
    )


def error_text(error: BaseException) -> str:
    """Return the text of an error for a report."""
    if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
        return "interrupted"
    return str(error) or type(error).__name__


# --- facts for the page ---------------------------------------------------------------

#: checks of worker processes; a restart makes their findings obsolete
OF_PROCESSES = frozenset(("blocked_event_loops", "memory_growth", "unmanaged_memory"))


def page_facts(view: View, found: Iterable[Finding]) -> dict[str, Any]:
    """Return all facts of a view and its findings.

    Without collections in the view, those of an earlier call stay on the page.
    """
    addresses = {w.id: w.address for w in view.now.workers}
    result = worker_facts(view)
    result["findings"] = {
        "time": view.now.time,
        "command": f"clustertune check {view.now.scheduler}",
        "found": [_finding(f, addresses) for f in found],
    }
    known = [x for x in view.layouts if x.loaded and x.aligned]
    if sum(len(m.keys) for x in known for m in x.collections) > MOST_KEYS:
        known = []
    if view.layouts:
        result["collections"] = [_layout(x, view) for x in known]
    return result


def worker_facts(view: View) -> dict[str, Any]:
    """Return the facts of workers only; findings of an earlier call stay."""
    return {"workers": {w.address: _thresholds(w) for w in view.now.workers}}


def _finding(finding: Finding, addresses: Mapping[Any, str]) -> dict[str, Any]:
    """A finding as in the state of the page; ``addresses`` of workers by id."""
    processes = finding.subject if finding.check in OF_PROCESSES else ()
    return {
        "severity": str(finding.severity),
        "check": finding.check,
        "message": finding.message,
        "remedy": finding.remedy,
        "processes": [addresses[id] for id in processes if id in addresses],
    }


def _thresholds(worker: WorkerSnapshot) -> list[int | None]:
    """Thresholds in bytes, in the order of ``THRESHOLDS``; None: unknown or not set."""
    own, limit = worker.thresholds, worker.memory_limit
    if isinstance(own, Unknown) or not limit:
        return [None] * len(THRESHOLDS)
    fractions = [getattr(own, name) for name in THRESHOLDS]
    return [int(f * limit) if isinstance(f, float | int) else None for f in fractions]


def _layout(layout: Layout, view: View) -> dict[str, Any]:
    some = view.trainers is not None or view.goal.workers is not None
    return {
        "label": layout.label,
        "names": list(layout.arguments),
        "members": [keys.pack(m.keys) for m in layout.collections],
        "rows": layout.rows.tolist(),
        "alike": view.goal.workload.equal_shares,
        # other workers need no rows; None: all workers train
        "trainers": [w.id for w in view.eligible_workers] if some else None,
    }


# --- Dask's event log -----------------------------------------------------------------

logger = logging.getLogger("clustertune")

TOPIC = "clustertune"
LOG_TIMEOUT = 5.0  # seconds
# limits, because the scheduler keeps the log in memory
MAX_STEPS = 50
MAX_TEXT = 500  # characters


async def log_call(
    client: Client,
    action: str,
    report: Report,
    journal: Journal,
    refused: str = "",
) -> None:
    """Log a call that has begun a step, or why it was ``refused`` before.

    Do nothing if the scheduler is gone.
    """
    scheduler: Any = client.scheduler
    begun = bool(journal.outcomes)
    if not (begun or refused) or client.status != "running" or scheduler is None:
        return
    event = {
        "action": action,
        "status": report.status if begun else "refused",
        "summary": printable(headlines(report)[0], longest=MAX_TEXT),
        "seconds": report.seconds,
        "by": user(),
        "pid": os.getpid(),
        "client": client.id,
        "reason": change_reason(),
        "lost": journal.lost,
        "steps": [_step(outcome) for outcome in journal.outcomes[:MAX_STEPS]],
        "more_steps": max(0, len(journal.outcomes) - MAX_STEPS),
    }
    if not begun:
        event["problem"] = printable(refused, longest=MAX_TEXT)
    try:
        logging_event = scheduler.log_event(topic=TOPIC, msg=event)
        await within(logging_event, LOG_TIMEOUT)
    # any error: the operation has ended, and the caller must get its result
    except Exception as error:  # noqa: BLE001
        gone = connection.lost(client, error) is not None
        level = logging.INFO if gone else logging.WARNING
        text = "clustertune could not write to Dask's event log: %r"
        logger.log(level, text, error)


def _step(outcome: Outcome) -> dict[str, Any]:
    return {
        "action": outcome.step.action,
        "summary": printable(outcome.step.summary, longest=MAX_TEXT),
        "status": outcome.status,
        "seconds": outcome.seconds,
        "nbytes": None if outcome.nbytes is None else int(outcome.nbytes),
        "reason": printable(outcome.reason or outcome.details, longest=MAX_TEXT),
    }


def user() -> str:
    """Return the user of this process and its host: ``ada@node7``."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container may run as a user without a name
        user = f"uid {os.getuid()}"
    return printable(f"{user}@{socket.gethostname()}", longest=200)


def change_reason() -> str | None:
    """Return the reason for changes as text for the log."""
    reason = dask.config.get("clustertune.reason", None)
    return None if reason is None else printable(str(reason), longest=1000)
