"""How every operation on workers goes: look, plan, refuse, act, look again, report.

What cannot be done safely is refused before anything is touched; what was begun and
could not be done is in the report.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from time import monotonic
from typing import Any

from distributed import Client

from clustertune import checks
from clustertune.actions.cluster.live import RESTARTABLE, Asked, LiveCluster, ids_of
from clustertune.collections import inputs
from clustertune.core import counts
from clustertune.core.model import (
    Finding,
    Goal,
    Notify,
    Outcome,
    Plan,
    Restart,
    Step,
    View,
)
from clustertune.core.progress import Progress
from clustertune.core.report import Report, headlines
from clustertune.core.wording import seconds_text
from clustertune.errors import ClustertuneError, RefusedError, TimedOutError
from clustertune.integrations import libraries
from clustertune.monitor import connection
from clustertune.operations import approval, entrance, events, executor, handover
from clustertune.operations.history import noting
from clustertune.operations.journal import Journal, error_text
from clustertune.planner import guards
from clustertune.planner import plan as planner

Ids = Collection[str | int]
Steps = Callable[[View, Ids], Iterator[Step]]
Then = Callable[[View, Ids, tuple[Finding, ...]], Iterator[Step]]


@dataclass(frozen=True, kw_only=True)
class Procedure:
    """A call, its arguments checked.

    Attributes
    ----------
    steps
        From what is seen, and the ids of the workers that were named, what to do.
    then
        What to do when ``steps`` are done, from another look and its findings.
    asked
        What looks are to tell besides.
    needs
        Statuses, in one of which some worker has to be; none: no worker has to be
        there.
    """

    client: Client
    name: str
    steps: Steps
    then: Then | None = None
    timeout: float
    dry_run: bool
    progress: bool | Notify | None
    given: inputs.Inputs = inputs.NOTHING
    workers: tuple[str | int, ...] | None = None
    asked: Asked = field(default_factory=Asked)
    needs: tuple[str, ...] = RESTARTABLE


async def carry_out(procedure: Procedure) -> Report:
    """Do it, and report; errors have the report as far as it came."""
    progress, journal, start = Progress(procedure.progress), Journal(), monotonic()
    entrance.check_client(procedure.client, procedure.given)

    def remaining() -> float:
        return start + procedure.timeout - monotonic()

    cluster = LiveCluster(
        procedure.client,
        procedure.given,
        Goal(workload=libraries.choose(None)),
        remaining,
        asked=procedure.asked,
    )
    try:
        work = _work(procedure, cluster, journal, progress.notify)
        await asyncio.wait_for(work, procedure.timeout)
    except BaseException as error:
        await asyncio.shield(cluster.staff.put_bounds_back())
        ours = _explained(error, procedure)
        text = error_text(ours)
        journal.stop()
        report = journal.report("failed", monotonic() - start, text)
        report = await noting.note_call(procedure.name, journal, report)
        attach(ours, report)
        progress.finish(headlines(report))
        if journal.outcomes:  # one that was refused has not done anything
            await asyncio.shield(cluster.keep(report.to_json()))
        await _note(procedure, "failed", journal)
        if ours is error:
            raise
        raise ours from error
    report = journal.report(_status(procedure, journal), monotonic() - start)
    report = await noting.note_call(procedure.name, journal, report)
    progress.finish(headlines(report))
    if not procedure.dry_run:
        # other workers may run now, of which the panel knows nothing
        told = handover.of_workers(journal.views[-1])
        await cluster.keep(report.to_json(), told)
    await _note(procedure, report.status, journal)
    return report


async def _note(procedure: Procedure, status: str, journal: Journal) -> None:
    """Even where this call is being cancelled: others are to learn what was done."""
    noted = events.log_call(procedure.client, procedure.name, status, journal)
    await asyncio.shield(noted)


async def _work(
    procedure: Procedure, cluster: LiveCluster, journal: Journal, notify: Notify
) -> None:
    settings = checks.configured()
    await cluster.open(None, needs=procedure.needs)

    async def plan(propose: Then, then: Then | None = None) -> Plan:
        made = await _plan(procedure, cluster, journal, notify, propose, then)
        for note in () if procedure.dry_run else made.notes:
            notify(note, None)
        return made

    def first(view: View, ids: Ids, _: tuple[Finding, ...]) -> Iterator[Step]:
        return procedure.steps(view, ids)

    if procedure.dry_run:
        await plan(first, procedure.then)
        return
    async with cluster.lease(procedure.name, notify):
        made = await plan(first)
        if made.refused:
            raise RefusedError(_reasons(made, "nothing was touched"))
        await _act(made, cluster, journal, notify)
        if procedure.then is not None:
            made = await plan(procedure.then)
            if made.refused:
                raise RefusedError(_reasons(made, "nothing else was touched"))
            await _act(made, cluster, journal, notify)
        view = await cluster.look(notify)
        journal.views.append(view)
        journal.findings.append(checks.run(view, settings))
        journal.plans.append(Plan(phase=procedure.name))


async def _plan(
    procedure: Procedure,
    cluster: LiveCluster,
    journal: Journal,
    notify: Notify,
    propose: Then,
    then: Then | None = None,
) -> Plan:
    view = await cluster.look(notify)
    ids = ids_of(procedure.workers, view)
    found = checks.run(view, checks.configured())
    proposed = list(guards.sort_out(propose(view, ids, found), view))
    later = [] if then is None else list(then(view, ids, found))
    steps = tuple(step for step, no in proposed if no is None)
    plan = Plan(
        phase=procedure.name,
        steps=steps,
        refused=tuple(no for _, no in proposed if no is not None),
        needs=() if then is None else (planner.known_after_trim(later),),
        notes=guards.notes((*steps, *later), view),
    )
    journal.views.append(view)
    journal.findings.append(found)
    journal.plans.append(plan)
    approval.of_plan(view, found, plan)
    return plan


async def _act(
    plan: Plan, cluster: LiveCluster, journal: Journal, notify: Notify
) -> None:
    """Steps that belong together at once; others one after the other.

    A step that changed nothing, such as the restart of a busy worker, does not stop the
    others. After one that failed or was done in part, no other begins.
    """
    before = len(journal.outcomes)
    for number, steps in enumerate(_together(plan)):
        if any(o.status in ("partly", "failed") for o in journal.outcomes[before:]):
            reason = "not begun, as a step before was not done"
            journal.outcomes += [
                Outcome(step=s, status="skipped", reason=reason) for s in steps
            ]
            continue
        view = await cluster.look(notify) if number else journal.views[-1]
        await _all_of(
            executor.execute(
                Plan(phase=plan.phase, steps=(step,)),
                view,
                cluster,
                notify=notify,
                clock=monotonic,
                record=journal.outcomes.append,
            )
            for step in steps
        )


def _together(plan: Plan) -> Iterator[tuple[Step, ...]]:
    """Steps of workers that may be away at the same time; each other one alone."""
    for _, steps in groupby(plan.steps, _batch):
        yield tuple(steps)


def _batch(step: Step) -> object:
    args = step.args
    if not isinstance(args, Restart) or not args.beside:
        return id(step)
    return frozenset((args.address, *args.beside))


async def _all_of(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """All at once, to their end; then what went wrong with the first of them."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        task.result()


def _status(procedure: Procedure, journal: Journal) -> str:
    if procedure.dry_run:
        return "planned"
    left = {o.status for o in journal.outcomes} - {"not needed"}
    if not left:
        return "fine"
    return "done" if left == {"done"} else "left"


def _reasons(plan: Plan, untouched: str) -> str:
    texts = [f"{r.step.summary}: {r.reason}" for r in plan.refused]
    more = f"; and {len(texts) - 3} more" if len(texts) > 3 else ""
    return f"refused, and {untouched}: {'; '.join(texts[:3])}{more}"


def attach(error: BaseException, report: Report) -> None:
    """Have the caller learn what was finished, undone and left, whatever ended it."""
    account = counts.line(report.steps, report.error)
    if isinstance(error, ClustertuneError):
        error.report = report
        error.args = (f"{error}; {account}",) if account else error.args
    elif isinstance(error, asyncio.CancelledError) and account:
        error.args = (account,)  # the command line prints it after ^C


def _explained(error: BaseException, procedure: Procedure) -> BaseException:
    if found := connection.lost(procedure.client, error):
        return found
    if isinstance(error, asyncio.TimeoutError) and not isinstance(
        error, ClustertuneError
    ):
        return TimedOutError(
            f"{procedure.name} was not done within {seconds_text(procedure.timeout)}; "
            "give a longer timeout"
        )
    return error
