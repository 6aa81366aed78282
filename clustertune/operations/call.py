"""One shell for every public call: validate, limit the time, act, report, note.

A public function validates its arguments and makes a :class:`Call`.
:class:`RunningCall` limits its time, cleans up after errors, makes the report, and
notes the call in the history and in Dask's event log. :func:`execute` carries out its
plans step by step.

:func:`operate` is for calls that act on workers by name, or release data. They look,
plan, refuse what cannot be done safely before anything changes, act step by step, look
again, and report what was done and left.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import groupby
from time import monotonic
from typing import Any

from distributed import Client

from clustertune import checks
from clustertune.actions import ACTIONS
from clustertune.actions.cluster.live import (
    RESTARTABLE,
    LiveCluster,
    LookOptions,
    ids_of,
)
from clustertune.collections import graphs, inputs
from clustertune.collections.inputs import Inputs
from clustertune.core import arguments, settings
from clustertune.core.model import (
    Cluster,
    Finding,
    Goal,
    Notify,
    Outcome,
    Plan,
    Result,
    Step,
    View,
    WorkerEnd,
    attached_result,
)
from clustertune.core.progress import Progress
from clustertune.core.report import Report
from clustertune.core.results import summary_line
from clustertune.core.sections import headlines
from clustertune.core.wording import seconds_text
from clustertune.errors import (
    AlignmentError,
    ClustertuneError,
    RefusedError,
    TimedOutError,
)
from clustertune.integrations import libraries
from clustertune.monitor import connection, inquiry
from clustertune.monitor.connection import sync
from clustertune.operations import history
from clustertune.operations import journal as journals
from clustertune.operations.journal import Journal, error_text
from clustertune.planner import guards
from clustertune.planner import plan as planner
from clustertune.remote.ending import whole, within

logger = logging.getLogger("clustertune")

STUCK_SECONDS = 5.0  # to find stuck workers after the time limit
LEAST_STUCK = 2.0  # seconds: shorter tasks are not stuck

#: makes what the dashboard page shows after a call
Facts = Callable[[View, Sequence[Finding]], Mapping[str, Any]]


# --- validation -----------------------------------------------------------------------


def refuse_wrong_settings() -> None:
    """Raise ValueError for an unknown or wrong setting, or an ignored variable."""
    settings.refuse_unknown()
    settings.fractions()
    checks.configured()
    settings.history()


def check_client(client: Any, given: Inputs = inputs.NOTHING) -> None:
    """Refuse wrong settings, a closed client, and data of another client."""
    refuse_wrong_settings()
    if not isinstance(client, Client):
        raise TypeError(
            f"client must be a dask.distributed.Client; it was {type(client).__name__}"
        )
    connection.refuse_closed(client)
    for x in given:
        if lost := graphs.missing_rows(x.collection):
            promised = x.collection.npartitions
            raise AlignmentError(
                f"{x.label} has {promised} partitions by its metadata, but only "
                f"{promised - lost} were persisted: Dask joins small partitions of "
                f"Parquet data when it loads them. Nothing can use {x.label} in this "
                f"state. Give prepare the lazy {x.label}, from before it was persisted"
            )
        _, futures = graphs.partitions(x.collection)
        if futures:
            _refuse_futures(x.label, futures, client)


def _refuse_futures(label: str, futures: Sequence[Any], client: Client) -> None:
    """Refuse partitions that are released, or that another client has loaded.

    The partitions of another client would become invalid when that client closes.
    """
    owner = next((f.client for f in futures if f.client is not client), client)
    # futures that were unpickled elsewhere have no client
    theirs = getattr(getattr(owner, "scheduler", None), "address", None)
    if theirs is None:
        raise ValueError(
            f"{label} was persisted by a client that is closed, and is gone with it, "
            "or its futures were unpickled; load it again with this client"
        )
    if futures[0].key not in futures[0].client.futures:
        raise ValueError(
            f"{label} is released: its partitions are gone, as after "
            "release_inputs=True; give what prepare returned then, or load it again"
        )
    if owner is not client:
        scheduler: Any = client.scheduler
        raise ValueError(
            f"{label} was loaded with another client, connected to {theirs}; client is "
            f"connected to {scheduler.address}. Give the client that loaded {label}, "
            "or load it again with this one"
        )


# --- steps --------------------------------------------------------------------------


async def execute(
    plan: Plan,
    view: View,
    cluster: Cluster,
    outcomes: list[Outcome],
    notify: Notify,
) -> None:
    """Carry out the steps of a plan in order.

    ``view`` is the view from which the plan was made. The outcome of each step is added
    to ``outcomes`` as soon as it is known, also before the error of a step that fails
    or is interrupted is raised.
    """
    for number, step in enumerate(plan.steps):
        if number:
            view = await cluster.look(notify)
        action = ACTIONS[step.action]
        refused = guards.refusal(step, view)
        if refused is not None:
            reason = refused.reason
            outcomes.append(Outcome(step=step, status="skipped", reason=reason))
            continue
        start = monotonic()
        notify(step.summary, None)
        try:
            result = await action.enact(step, cluster, notify)
        except BaseException as error:
            known, text = attached_result(error), error_text(error)
            outcomes.append(_outcome(step, known, monotonic() - start, text))
            raise
        outcomes.append(_outcome(step, result, monotonic() - start))


def _outcome(
    step: Step, result: Result | None, seconds: float, error: str = ""
) -> Outcome:
    """The outcome of a step; ``error`` has interrupted it. None: no known result."""
    if result is None:
        return Outcome(step=step, status="failed", seconds=seconds, reason=error)
    status = "partly" if result.not_done else "done"
    reason = result.not_done
    if result.not_done and result.unchanged:
        # a worker that ended by itself has lost keys
        status = "failed" if result.lost else "skipped"
        reason = f"{error}, and undone" if error else reason
    return Outcome(
        step=step, status=status, seconds=seconds, reason=reason, **asdict(result)
    )


# --- the shell ------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Call:
    """One public call with validated arguments."""

    client: Client
    name: str  # of the public function: "prepare", "restart"
    goal: Goal = field(default_factory=lambda: Goal(workload=libraries.choose(None)))
    timeout: float
    dry_run: bool
    progress: bool | Notify | None
    given: Inputs = inputs.NOTHING
    workers: tuple[str | int, ...] | None = None
    look: LookOptions = field(default_factory=LookOptions)
    #: some worker must have one of these statuses; empty: no worker is needed
    needs: tuple[str, ...] = ("running",)
    keeps_refused: bool = False  # the scheduler stores the report of a refused call


class RunningCall:
    """One call while it runs: its live cluster, journal and progress."""

    def __init__(self, call: Call):
        self.call = call
        self.journal = Journal(call=call.name)
        self.settings = checks.configured()
        self._progress = Progress(call.progress)
        self.notify: Notify = self._progress.notify
        self._start = monotonic()
        end = self._start + call.timeout
        # Prepared keeps the cluster, so the cluster must not keep the old collections
        self.cluster = LiveCluster(
            call.client,
            call.given,
            call.goal,
            lambda: end - monotonic(),
            options=call.look,
        )

    async def finish(
        self,
        work: Coroutine[Any, Any, None],
        status: Callable[[bool], str],
        facts: Facts,
    ) -> Report:
        """Do the work within the time limit, report, and note the call.

        ``status`` returns the status of a call that did not fail; its argument is
        whether this is a dry run. ``facts`` makes the state of the dashboard page. An
        error that ended the work is raised; those of clustertune carry the report.
        """
        try:
            await within(work, self.call.timeout, once=True)
        except BaseException as error:
            ours, stopped = await whole(self._failed(error, facts))
            _stop(ours, stopped)
            if ours is error:
                raise
            raise ours from error
        self.journal.note_losses(self.cluster.lost)
        try:
            return await self._conclude(status(self.call.dry_run), facts)
        except BaseException as error:  # the caller gets no result
            _, stopped = await whole(self._clean_up(error))
            _stop(error, stopped)
            raise

    async def _failed(self, error: BaseException, facts: Facts) -> BaseException:
        """Clean up after an error, and report; return the error for the caller."""
        self.journal.note_losses(self.cluster.lost)
        ours = await self._explained(error)
        text = error_text(ours) + await self._clean_up(ours)
        self.journal.stop()
        # the caller sees an error itself, with what was done until then
        shown = not isinstance(ours, Exception)
        report = await self._conclude("failed", facts, text, shown=shown)
        _attach(ours, report)
        return ours

    async def _clean_up(self, error: BaseException) -> str:
        """Restore bounds, and keep or drop what was made; return where the data is."""
        await self.cluster.put_bounds_back()
        if place := await self.cluster.data.rescue():
            _add_place(error, place)
        else:
            self.cluster.data.drop_made()
        return place

    async def _explained(self, error: BaseException) -> BaseException:
        """The time limit and a lost connection as errors of clustertune."""
        if isinstance(error, asyncio.TimeoutError) and self.cluster.remaining() <= 0:
            causes = await stuck_workers(self.call.client, self.call.timeout)
            texts = [f"{f.message}. {f.remedy}".rstrip(".") for f in causes]
            advice = "; ".join(["Give a longer timeout", *texts])
            return TimedOutError(
                f"{self.call.name} did not finish within "
                f"{seconds_text(self.call.timeout)}. The report lists what was done. "
                f"{advice}"
            )
        return connection.lost(self.call.client, error) or error

    async def _conclude(
        self, status: str, facts: Facts, error: str = "", *, shown: bool = True
    ) -> Report:
        call, journal = self.call, self.journal
        report = journal.report(status, monotonic() - self._start, error)
        report = await history.note_call(call.name, journal, report)
        self._progress.finish(headlines(report) if shown else ())
        if call.dry_run:
            return report
        if journal.outcomes or not error or call.keeps_refused:
            page = [facts(view, report.left) for view in journal.views[-1:]]
            await asyncio.shield(self.cluster.keep(report.to_json(), *page))
        # even if this call is being cancelled: others must learn what was done
        noted = journals.log_call(call.client, call.name, report, journal, error)
        await asyncio.shield(noted)
        return report


async def stuck_workers(client: Client, seconds: float) -> Sequence[Finding]:
    """Find workers that may have kept a call from ending within ``seconds``."""
    try:
        work = inquiry.with_running_tasks(client)
        snapshot = await within(work, STUCK_SECONDS)
    # the caller raises the error of the call
    except (ClustertuneError, OSError, asyncio.TimeoutError) as error:
        logger.info("clustertune could not look for stuck workers: %r", error)
        return []
    view = View(snapshots=(snapshot,), goal=Goal(workload=libraries.choose(None)))
    return checks.stuck(view, max(LEAST_STUCK, seconds / 2))


def _stop(error: BaseException, stopped: bool) -> None:
    """Raise ``CancelledError`` if the call was stopped while it cleaned up."""
    if stopped and not isinstance(error, asyncio.CancelledError):
        raise asyncio.CancelledError(*error.args) from error


def _add_place(error: BaseException, place: str) -> None:
    """Add to an error where the data is."""
    if isinstance(error, ClustertuneError):
        error.args = (f"{error}{place}",)
    elif hasattr(error, "add_note"):  # from Python 3.11 on
        error.add_note(place.removeprefix("; "))
    logger.warning("clustertune was stopped%s", place)


def _attach(error: BaseException, report: Report) -> None:
    """Add the report to an error, and a line of what was finished and undone."""
    account = summary_line(report.steps, report.error, report.lost)
    if isinstance(error, ClustertuneError):
        error.report = report
        error.args = (f"{error}; {account}",) if account else error.args
    elif isinstance(error, asyncio.CancelledError) and account:
        error.args = (account,)  # the command line prints it after ^C
    elif account and hasattr(error, "add_note"):  # from Python 3.11 on
        error.add_note(account)


# --- calls that propose their own steps -----------------------------------------------

#: returns steps, from a view, the ids of the named workers, and the findings
Steps = Callable[[View, Collection[str | int], tuple[Finding, ...]], Iterator[Step]]


@dataclass(frozen=True, kw_only=True)
class Procedure(Call):
    """A call for which the caller proposes the steps."""

    steps: Steps
    then: Steps | None = None  # the steps that follow, from another look
    needs: tuple[str, ...] = RESTARTABLE
    #: guards whose refusal stops one worker only, unless the caller named it for the
    #: only steps; with ``then``, the steps are for the named workers that need them
    skips: tuple[str, ...] = ()
    patience: float = math.inf  # seconds to wait for the plan of another client
    despite_holds: bool = False  # of other clients


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
    given = inputs.of_rows(collections)
    check_client(client, given)
    procedure = Procedure(
        client=client,
        name=name,
        steps=steps,
        given=given,
        workers=arguments.names("workers", workers),
        timeout=arguments.duration("timeout", timeout),
        dry_run=arguments.flag("dry_run", dry_run),
        **fields,
    )
    report: Report = sync(client, carry_out, procedure)
    return report


async def carry_out(procedure: Procedure) -> Report:
    """Carry out a procedure, and report; errors carry the report so far."""
    run = RunningCall(procedure)
    return await run.finish(
        _work(procedure, run),
        partial(_status, run.journal),
        # findings that the page shows of data stay
        lambda view, _: journals.worker_facts(view),
    )


async def _work(procedure: Procedure, run: RunningCall) -> None:
    cluster, journal, notify = run.cluster, run.journal, run.notify
    ids: frozenset[str | int] = frozenset()

    async def look() -> None:
        nonlocal ids
        view = journal.continued(await cluster.look(notify))
        journal.add(view, checks.run(view, run.settings))
        # a named worker may be away at a later look
        if procedure.workers is None or not ids:
            ids = ids_of(procedure.workers, view)

    await cluster.open(None, needs=procedure.needs)
    if procedure.dry_run:
        await look()
        _plan(procedure, journal, ids, procedure.steps, procedure.then)
        return
    patience, despite_holds = procedure.patience, procedure.despite_holds
    async with cluster.lease(procedure.name, notify, patience, despite_holds):
        unchanged = "nothing was changed"
        for propose in filter(None, (procedure.steps, procedure.then)):
            await look()
            plan = _plan(procedure, journal, ids, propose)
            for note in plan.notes:
                notify(note, None)
            if plan.refused:
                raise RefusedError(_reasons(plan, unchanged))
            await _act(plan, cluster, journal, notify)
            unchanged = "nothing else was changed"
        await look()
        journal.plans.append(Plan(phase=procedure.name))


def _plan(
    procedure: Procedure,
    journal: Journal,
    ids: Collection[str | int],
    propose: Steps,
    then: Steps | None = None,
) -> Plan:
    """Plan from the last view; ``then`` follows it, as far as that is known.

    ``ids`` are those of the named workers, or of all.

    Refused steps that do not stop the others are outcomes; the plan has no others then.
    """
    view, found = journal.views[-1], journal.findings[-1]
    proposed = list(guards.sort_out(propose(view, ids, found), view))
    later = [] if then is None else list(then(view, ids, found))
    steps = tuple(step for step, no in proposed if no is None)
    refused = tuple(no for _, no in proposed if no is not None)
    chosen = procedure.workers is not None and procedure.then is None
    if steps and not chosen and all(no.guard in procedure.skips for no in refused):
        journal.outcomes += [
            Outcome(step=no.step, status="skipped", reason=no.reason) for no in refused
        ]
        refused = ()
    plan = Plan(
        phase=procedure.name,
        steps=steps,
        refused=refused,
        needs=() if then is None else (planner.known_after_trim(later),),
        notes=guards.notes((*steps, *later), view),
    )
    journal.plans.append(plan)
    return plan


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
    left = {o.status for o in journal.outcomes}
    if not left:
        return "fine"
    unknown = journal.losses is None
    lost = unknown or any(loss.keys for loss in journal.losses or ())
    return "done" if left == {"done"} and not lost else "left"


def _reasons(plan: Plan, unchanged: str) -> str:
    texts = [f"{r.step.summary}: {r.reason}" for r in plan.refused]
    more = f"; and {len(texts) - 3} more" if len(texts) > 3 else ""
    return f"refused, and {unchanged}: {'; '.join(texts[:3])}{more}"
