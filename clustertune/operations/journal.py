"""What a run has seen and done so far, and the report that is made of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from clustertune.core import report
from clustertune.core.counts import Done
from clustertune.core.model import Finding, Layout, Outcome, Plan, Trim, View
from clustertune.core.report import Report, WorkerMemory
from clustertune.planner import forecast, layouts
from clustertune.planner.layouts import held_bytes
from clustertune.planner.memory import ceiling


@dataclass
class Journal:
    """Written by the main loop, in order; readable at any moment."""

    views: list[View] = field(default_factory=list)
    findings: list[tuple[Finding, ...]] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)

    def given(self, now: View) -> int | None:
        """Partitions of the training data before this run has cut any."""
        first = next(iter((self.views or [now])[0].layouts), None)
        return None if first is None else first.members[0].n_pieces

    def replaced(self, now: View) -> dict[str | int, int]:
        """Bytes on workers of given pieces of which this call has made others."""
        found: Counter[str | int] = Counter()
        if now.goal.release_inputs:
            return found
        for label in {m.label for x in now.layouts for m in x.members if m.ours}:
            for view in reversed(self.views):
                given = [m for x in view.layouts for m in x.members if m.label == label]
                if given and given[0].loaded and not given[0].ours:
                    only = Layout(label=label, members=(given[0],))
                    held = held_bytes((only,), len(view.now.workers))
                    for worker, nbytes in zip(view.now.workers, held, strict=True):
                        found[worker.id] += int(nbytes)
                    break
        return found

    def stop(self) -> None:
        """Note the steps of the last plan that were not begun when a call ended."""
        if not self.outcomes or not self.plans:
            return
        begun = {id(o.step) for o in self.outcomes}
        self.outcomes += [
            Outcome(step=s, status="skipped", reason="not begun")
            for s in self.plans[-1].steps
            if id(s) not in begun
        ]

    def status(self, dry_run: bool) -> str:
        """How a run that did not fail has ended."""
        last = self.plans[-1]
        if dry_run:
            return "planned"
        # rows that nobody could count are not known to be even, nor to be paired
        view = self.views[-1]
        unknown = any(not (x.loaded and x.aligned) for x in view.layouts)
        # unless only a part of the work was asked for
        unknown = unknown and view.loads and not view.goal.only
        if last.steps or last.refused or unknown:
            return "left"
        return "done" if self.outcomes else "fine"

    def report(self, status: str, seconds: float, error: str = "") -> Report:
        """What was seen, done and left."""
        views, found = self.views, self.findings
        # a part of the work has not prepared for any
        whole = views and not views[0].goal.only
        return Report(
            status=status,
            seconds=seconds,
            workload=views[0].goal.workload.name if whole else "",
            error=error,
            found=found[0] if found else (),
            left=found[-1] if found else (),
            before=_summaries(views[0]) if views else (),
            after=_summaries(views[-1]) if views else (),
            steps=tuple(self._steps(status)),
            needs=self.plans[-1].needs if self.plans else (),
            forecast=forecast.peaks(views[-1]) if views else {},
            memory=memory_of(views, self.outcomes),
            notes=tuple(self._notes(status)),
        )

    def _notes(self, status: str) -> Iterator[str]:
        """What a plan would interrupt, or has been skipped for."""
        skipped = any(o.status == "skipped" for o in self.outcomes)
        if status == "planned" or skipped:
            yield from dict.fromkeys(n for plan in self.plans for n in plan.notes)

    def _steps(self, status: str) -> Iterator[Done]:
        yield from (report.carried_out(outcome) for outcome in self.outcomes)
        if status == "planned":
            yield from report.planned(self.plans[-1])
        elif self.plans:
            yield from report.refusals(self.plans[-1])


def _summaries(view: View) -> tuple[report.LayoutSummary, ...]:
    return tuple(layouts.summarize(layout, view) for layout in view.layouts)


def memory_of(
    views: Sequence[View], outcomes: Sequence[Outcome]
) -> tuple[WorkerMemory, ...]:
    """A row for each worker that a step has measured, in the order of the steps."""
    lines = {w.id: ceiling(w) or None for view in views for w in view.now.workers}
    rows: dict[str | int, WorkerMemory] = {}
    for outcome in outcomes:
        for m in outcome.measured:
            row = rows.get(m.worker) or WorkerMemory(
                worker=m.worker,
                before=m.before,
                after_trim=None,
                after_restart=None,
                threshold=lines.get(m.worker),
                keys=None,
                seconds=None,
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
    """What is said in a report of an error that ended something."""
    if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
        return "interrupted"
    return str(error) or type(error).__name__
