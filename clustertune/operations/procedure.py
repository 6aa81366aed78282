"""Calls that act on workers by name, or release data, such as restart and scale.

Each looks, plans, refuses what cannot be done safely before anything changes, acts step
by step, looks again, and reports what was done and left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

from distributed import Client

from clustertune import checks
from clustertune.actions.cluster.live import RESTARTABLE, ids_of
from clustertune.collections import inputs
from clustertune.core import arguments
from clustertune.core.model import (
    Cluster,
    Finding,
    Notify,
    Outcome,
    Plan,
    Step,
    View,
    WorkerEnd,
)
from clustertune.core.report import Report
from clustertune.errors import RefusedError
from clustertune.monitor.connection import sync
from clustertune.operations import journal as journals
from clustertune.operations.call import (
    Call,
    RunningCall,
    check_client,
    execute,
)
from clustertune.operations.journal import Journal
from clustertune.planner import guards
from clustertune.planner import plan as planner

#: returns steps, from a view, the ids of the named workers, and the findings
Steps = Callable[[View, Collection[str | int], tuple[Finding, ...]], Iterator[Step]]


@dataclass(frozen=True, kw_only=True)
class Procedure(Call):
    """A call for which the caller proposes the steps."""

    steps: Steps
    then: Steps | None = None  # the steps that follow, from another look
    needs: tuple[str, ...] = RESTARTABLE
    #: guards whose refusal stops one worker only, if no workers are named
    skips: tuple[str, ...] = ()


def operate(
    client: Client,
    name: str,
    steps: Steps,
    *collections: Any,
    workers: Any = None,
    dry_run: bool,
    timeout: str | float,
    **fields: Any,
) -> Report:
    """Validate the arguments that all these calls have, and carry out the call.

    ``fields`` are further attributes of :class:`Procedure`.
    """
    procedure = Procedure(
        client=client,
        name=name,
        steps=steps,
        given=inputs.of_rows(collections),
        workers=arguments.names("workers", workers),
        timeout=arguments.duration("timeout", timeout),
        dry_run=arguments.flag("dry_run", dry_run),
        **fields,
    )
    report: Report = sync(client, carry_out, procedure)
    return report


async def carry_out(procedure: Procedure) -> Report:
    """Carry out a procedure, and report; errors carry the report so far."""
    check_client(procedure.client, procedure.given)
    run = RunningCall(procedure)
    return await run.finish(
        _work(procedure, run),
        partial(_status, run.journal),
        # findings that the page shows of data stay
        lambda view, _: journals.worker_facts(view),
    )


async def _work(procedure: Procedure, run: RunningCall) -> None:
    cluster, journal, notify = run.cluster, run.journal, run.notify

    async def look() -> None:
        view = journal.continued(await cluster.look(notify))
        journal.add(view, checks.run(view, run.settings))

    await cluster.open(None, needs=procedure.needs)
    if procedure.dry_run:
        await look()
        _plan(procedure, journal, procedure.steps, procedure.then)
        return
    async with cluster.lease(procedure.name, notify):
        unchanged = "nothing was changed"
        for propose in filter(None, (procedure.steps, procedure.then)):
            await look()
            plan = _plan(procedure, journal, propose)
            for note in plan.notes:
                notify(note, None)
            skipped = _skipped(procedure, plan)
            if len(skipped) < len(plan.refused):
                raise RefusedError(_reasons(plan, unchanged))
            await _act(plan, cluster, journal, notify)
            journal.outcomes += skipped
            unchanged = "nothing else was changed"
        await look()
        journal.plans.append(Plan(phase=procedure.name))


def _plan(
    procedure: Procedure, journal: Journal, propose: Steps, then: Steps | None = None
) -> Plan:
    """Plan from the last view; ``then`` follows it, as far as that is known."""
    view, found = journal.views[-1], journal.findings[-1]
    ids = ids_of(procedure.workers, view)
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
    journal.plans.append(plan)
    return plan


def _skipped(procedure: Procedure, plan: Plan) -> list[Outcome]:
    """Return outcomes of refused steps that do not stop the others."""
    if procedure.workers is not None or not plan.steps:
        return []
    return [
        Outcome(step=no.step, status="skipped", reason=no.reason)
        for no in plan.refused
        if no.guard in procedure.skips
    ]


async def _act(plan: Plan, cluster: Cluster, journal: Journal, notify: Notify) -> None:
    """Carry out batches of steps one after the other.

    A step that changed nothing, such as the restart of a worker that is busy or that
    ended by itself, does not stop the others. After a step that failed or was done in
    part, no other begins.
    """
    before = len(journal.outcomes)
    for number, (_, batch) in enumerate(groupby(plan.steps, _batch)):
        steps = tuple(batch)
        new = [o for o in journal.outcomes[before:] if not o.unchanged]
        if any(o.status in ("partly", "failed") for o in new):
            reason = "not begun, because an earlier step was not completed"
            journal.outcomes += [
                Outcome(step=s, status="skipped", reason=reason) for s in steps
            ]
            continue
        view = await cluster.look(notify) if number else journal.views[-1]
        works = [
            execute(
                replace(plan, steps=(step,)), view, cluster, journal.outcomes, notify
            )
            for step in steps
        ]
        # all steps of a batch end before the error of one is raised
        for error in await asyncio.gather(*works, return_exceptions=True):
            if error is not None:
                raise error


def _batch(step: Step) -> object:
    """The batch of a step: workers that may be away together; other steps alone."""
    args = step.args
    if not isinstance(args, WorkerEnd) or not args.concurrent:
        return id(step)
    return frozenset((args.address, *args.concurrent))


def _status(journal: Journal, dry_run: bool) -> str:
    if dry_run:
        return "planned"
    left = {o.status for o in journal.outcomes} - {"not needed"}
    if not left:
        return "fine"
    return "done" if left == {"done"} and not journal.losses else "left"


def _reasons(plan: Plan, unchanged: str) -> str:
    texts = [f"{r.step.summary}: {r.reason}" for r in plan.refused]
    more = f"; and {len(texts) - 3} more" if len(texts) > 3 else ""
    return f"refused, and {unchanged}: {'; '.join(texts[:3])}{more}"
