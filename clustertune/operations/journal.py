"""The journal of a call: views, findings, plans, outcomes; and its report."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from clustertune.core import counts
from clustertune.core.model import (
    Finding,
    Goal,
    Layout,
    Outcome,
    Plan,
    Trim,
    View,
    WorkerEnd,
)
from clustertune.core.report import Report
from clustertune.core.results import (
    Done,
    LayoutSummary,
    Loss,
    WorkerMemory,
    WorkerState,
)
from clustertune.planner import forecast, layouts, suitability
from clustertune.planner.memory import process_limit


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

    def note_losses(self, lost: Mapping[str, int] | None) -> None:
        """Record keys that were lost with workers that ended, by their address.

        If a step was about such a worker, it has failed.
        """
        if lost is None:
            self.losses = None
            return
        ids = {w.address: w.id for view in self.views for w in view.now.workers}
        rest = dict(lost)
        for i, o in enumerate(self.outcomes):
            args, skipped = o.step.args, o.status == "skipped"
            if skipped and isinstance(args, WorkerEnd) and args.address in rest:
                keys = rest.pop(args.address) + (o.lost or 0)
                self.outcomes[i] = replace(o, status="failed", lost=keys)
        self.losses = tuple(Loss(worker=ids.get(a, a), keys=n) for a, n in rest.items())

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
            memory=memory_of(views, self.outcomes),
            workers=states_of(views),
            lost=self.losses,
            host_threads=suitability.threads_of_task(views[-1]) if views else None,
            # running tasks matter only to steps that are planned, or were not done
            notes=tuple(dict.fromkeys(notes)) if skipped or status == "planned" else (),
        )

    def _steps(self, status: str) -> Iterator[Done]:
        yield from map(counts.carried_out, self.outcomes)
        if status == "planned":
            yield from counts.planned(self.plans[-1])
        elif self.plans:
            yield from counts.refusals(self.plans[-1])


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


def memory_of(
    views: Sequence[View], outcomes: Sequence[Outcome]
) -> tuple[WorkerMemory, ...]:
    """Return the memory of each worker that a step measured, in the order of steps."""
    thresholds = {
        w.id: process_limit(w) or None for view in views for w in view.now.workers
    }
    rows: dict[str | int, WorkerMemory] = {}
    for outcome in outcomes:
        for m in outcome.measured:
            row = rows.get(m.worker) or WorkerMemory(
                worker=m.worker,
                before=m.before,
                threshold=thresholds.get(m.worker),
            )
            if isinstance(outcome.step.args, Trim):
                row = replace(row, after_trim=m.after)
            else:
                row = replace(row, after_restart=m.after)
                if outcome.count:  # it was restarted
                    row = replace(row, keys=m.keys, seconds=outcome.seconds)
            rows[m.worker] = row
    return tuple(rows.values())


def error_text(error: BaseException) -> str:
    """Return the text of an error for a report."""
    if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
        return "interrupted"
    return str(error) or type(error).__name__
