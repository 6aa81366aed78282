"""``prepare``: look, plan the first phase that has findings, act; look again.

The loop itself (:func:`tune`) sees only the port, so that it runs against a live
cluster and against one in memory alike. Around it: the arguments, the lease, the time
limit, and the report, which is made whichever way the call ends.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import Any

from distributed import Client

from clustertune import actions, checks
from clustertune.actions.cluster.live import RESTARTABLE, Asked, LiveCluster
from clustertune.collections import conversion, inputs
from clustertune.core import arguments
from clustertune.core.model import Cluster, Finding, Goal, Notify, Outcome, Plan, View
from clustertune.core.progress import Progress
from clustertune.core.report import Report, headlines
from clustertune.core.wording import seconds_text
from clustertune.errors import (
    ClustertuneError,
    LayoutChanged,
    TimedOutError,
    VerificationError,
)
from clustertune.integrations import libraries
from clustertune.monitor import connection, monitor
from clustertune.operations import approval, entrance, events, executor, handover
from clustertune.operations.history import noting
from clustertune.operations.journal import Journal, error_text
from clustertune.operations.prepared import Again, Prepared
from clustertune.operations.procedure import attach
from clustertune.planner import (
    layouts,
    pricing,
    suitability,
    verification,
)
from clustertune.planner import (
    plan as planner,
)

logger = logging.getLogger("clustertune")

ROUNDS = 12  # all phases, one of them twice, and some for what goes wrong
PACKAGES = {"lightgbm"}  # libraries that need more than any other, and say nothing
DROPS = 5.0  # seconds in which Dask's memory manager has dropped surplus copies
GLANCE = 0.25  # seconds between two looks whether it has
VAIN = 2  # rounds in a row without any effect, after which no other is tried


# --- the loop -------------------------------------------------------------------------


async def tune(
    cluster: Cluster,
    journal: Journal,
    *,
    notify: Notify,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    clock: Callable[[], float] = monotonic,
    dry_run: bool = False,
) -> None:
    """Bring a cluster and its data to where nothing is left to do, in a few rounds.

    Raises
    ------
    AlignmentError, CapacityError, NoWorkersError
        A critical finding that nothing here can remedy; before anything is moved.
    """
    vain = 0
    for _ in range(ROUNDS):
        plan = await _look_and_plan(cluster, journal, notify, settings)
        if dry_run or not plan.steps:
            return
        if vain == VAIN:
            break
        done = len(journal.outcomes)
        await executor.execute(
            plan,
            journal.views[-1],
            cluster,
            notify=notify,
            clock=clock,
            record=journal.outcomes.append,
        )
        vain = vain + 1 if _in_vain(journal.outcomes[done:]) else 0
    else:
        await _look_and_plan(cluster, journal, notify, settings)
    # out of rounds: what would train on wrong labels must not be handed over
    _refuse_left(journal.findings[-1], journal.views[-1])


def _in_vain(outcomes: Sequence[Outcome]) -> bool:
    """Whether a round had no effect: the next one has another plan, or none will do."""
    return all(
        o.status in ("partly", "skipped", "not needed") and not o.nbytes
        for o in outcomes
    )


async def _look_and_plan(
    cluster: Cluster,
    journal: Journal,
    notify: Notify,
    settings: Mapping[str, Mapping[str, Any]] | None,
) -> Plan:
    view = await cluster.look(notify)
    given = journal.given(view)
    view = replace(view, replaced=journal.replaced(view), given=given)
    view = suitability.chosen(view)
    found = checks.run(view, settings)
    journal.views.append(view)
    journal.findings.append(found)
    wrong = [f for f in found if not f.fixed_by]
    # rows and values of spilled data are unknown until a restart has workers run again
    restarts = bool(view.goal.restart) and not any(w.running for w in view.now.workers)
    if not restarts:
        _refuse(wrong)
    plan = planner.make_plan(found, view, actions.available())
    if restarts and not (plan.steps and plan.phase in ("trim", "restart")):
        _refuse(wrong)
    if plan.steps and plan.phase == "cut":
        # into how many pieces depends on what a task costs; so do texts of checks
        view = _timed(view, await cluster.overhead(view))
        found = checks.run(view, settings)
        journal.views[-1], journal.findings[-1] = view, found
        plan = planner.make_plan(found, view, actions.available())
    if flows := pricing.worth_timing(plan):
        plan = pricing.again(plan, await cluster.speeds(view, flows))
    journal.plans.append(plan)
    if not plan.steps:
        _refuse_left(found, view)
    approval.of_plan(view, found, plan)
    return plan


def _timed(view: View, overhead: float | None) -> View:
    """The view in which it is known what a task costs."""
    now = replace(view.now, overhead=overhead)
    return replace(view, snapshots=(*view.snapshots[:-1], now))


def _refuse_left(findings: Iterable[Finding], view: View) -> None:
    """Raise for what could have been put right by this call, and was not.

    What only an action would put right that comes after all that this call may take is
    left to a later call: data is loaded before it is cut.
    """
    order = [name for _, name in planner.PHASES]
    last = max((order.index(name) for name in view.goal.only), default=len(order))
    _refuse(f for f in findings if f.fixed_by not in order[last + 1 :])


def _refuse(findings: Iterable[Finding]) -> None:
    """Raise the error of the first finding that stops ``prepare``."""
    for finding in findings:
        error = checks.error_of(finding)
        if error is not None:
            raise error(f"{finding.message}. Remedy: {finding.remedy}")


# --- the public call ------------------------------------------------------------------


def prepare(
    client: Client,
    X: Any,
    y: Any = None,
    *others: Any,
    sample_weight: Any = None,
    qid: Any = None,
    group: Any = None,
    base_margin: Any = None,
    init_score: Any = None,
    eval_set: Any = None,
    estimator: object = None,
    workload: str | None = None,
    n_workers: int | str | None = None,
    workers: Sequence[str | int] | None = None,
    restart: bool | str = False,
    rechunk: bool | int = True,
    to: str | None = None,
    dtype: Any = None,
    release_inputs: bool = False,
    persist: bool | None = None,
    shuffle: bool | str = False,
    sort: bool = False,
    random_state: int = 0,
    tolerance: float = 0.05,
    memory_fraction: float = 0.7,
    strict: bool = False,
    only: Collection[str] | None = None,
    dry_run: bool = False,
    progress: bool | Callable[[str, float | None], None] | None = None,
    timeout: str | float = "10 minutes",
) -> Prepared:
    """Get cluster and data ready for a fit: on all workers, rows even, pairs together.

    Everything given is loaded jointly, unless it is persisted already. Where the rows
    of pieces do not fit each other or the workers, they are cut and joined; rows keep
    their order, and what is returned has the new pieces. Then whole pieces are moved so
    that every worker holds rows in proportion to its threads and every X_i lies with
    its y_i and companions, moving as few bytes as that takes. Keys that are only moved
    keep their names: the names that you hold see the data in its new place too. If
    everything is fine already, nothing moves.

    Parameters
    ----------
    client
        A connected client, synchronous or asynchronous (then the call is awaited).
    X, y, *others
        Dask Arrays, DataFrames or Series, lazy or persisted, with as many rows each;
        row i of one belongs to row i of the others. The first dimension of an Array is
        that of its rows.
    sample_weight, qid, base_margin, init_score
        Companions of X, by the names that training libraries give them.
    group
        In place of ``qid`` for LightGBM's ranker: the sizes of the groups in the order
        of rows, a Dask Array or Series. The result has the sizes in new partitions.
    eval_set
        A list of pairs ``(X_valid, y_valid)``, or with companions by name,
        ``(X_valid, y_valid, {"qid": qid_valid})``; each is placed by itself. A pair
        of the training data, ``(X, y)``, stays the training data.
    estimator, workload
        What will train: an estimator of a known library, instance or class, or the name
        of a workload (``"xgboost"``, ``"lightgbm_rank"``, ``"generic"``). It decides
        what the data has to be like, how much memory the fit will need, and what
        ``.fit_kwargs`` and ``.estimator_params`` are.
    n_workers
        Bring the cluster to so many workers first, where the client's cluster object
        can. ``"fit"``: to the fewest on which the fit has the memory that it needs, as
        far as that is known before it; none are taken away. A cluster that scales by
        itself is told to keep that many; at the end of a ``with`` block, or of a call
        that fails, it gets back the bounds that it had.
    workers
        Names or addresses: place on these workers only.
    restart
        False: only advise. ``"auto"``: only if nothing runs, first trim the workers
        that findings about memory name, then restart the ones that are still above a
        threshold, or will be after the next run, one at a time and keeping their data.
        True: all. See :func:`clustertune.restart`.
    rechunk
        True: cut and join pieces where their rows do not fit each other or the
        workers; y and companions are cut where X is. False: never, which is an error
        where pieces do not fit each other. A number: cut the training data into so
        many. With fewer pieces, rows or groups than workers as many workers train.
    to
        ``"array"``: DataFrames and Series become Arrays of known chunks, in the same
        pass in which they are loaded or cut. A lacking value becomes NaN. That is so
        without being asked for where the library takes Arrays only, as linear models.
    dtype
        The number type of the features (X, and X of eval sets), such as ``"float32"``.
        Columns of a DataFrame that are not numbers stay as they are.
    release_inputs
        Free the pieces of collections that are cut one by one, as soon as each is, for
        data that would not fit twice. Those collections, and what is made of them
        and not computed yet, must not be used then: Dask computes them anew, if it
        can, or says ``lost dependencies``. Refused where another client needs them.
        Where rows are sorted or shuffled every new piece is made of all old ones, so
        these stay as long as you hold them, and have to fit beside the new ones.
    persist
        Load what is not in memory. None: unless the workload reads its data only once.
    shuffle
        ``"rows"``: put all rows in a random order, all of them travel. ``"pieces"``:
        only the pieces, none travels. ``.row_order`` of the result says where each row
        was.
    sort
        Sort rows by query group (``qid``) where they are not, those of a group as they
        were; ``.row_order`` says where each was. Without it that is an error for a
        workload that needs it, but for XGBoost's ranker, which sorts rows itself: for
        it ``prepare`` sorts them unless ``rechunk=False``.
    random_state
        Seed of the shuffle: the same one gives the same order for the same pieces.
    tolerance
        By how much the fullest worker may exceed its share of rows, as a fraction.
    memory_fraction
        How much of a worker's memory limit the fit may fill, as a fraction.
    strict
        Raise if the fit will lack memory, instead of reporting it.
    only
        Of what this call may do, only this, by the names that steps have in a report:
        ``"trim"``, ``"restart"``, ``"adapt"``, ``"scale"``, ``"persist"``,
        ``"reorder"``, ``"rechunk"``, ``"rebalance"``, ``"replicate"``; they come in
        this order. What only a later one would put right stays as it is: for a fit,
        call again without.
    dry_run
        Change nothing; the report says what would be done and what it would cost.
    progress
        None: to stderr in a terminal or notebook, else to the log ``clustertune``;
        True or False: always or never to stderr; or a function ``(text, fraction)``.
    timeout
        Seconds, or a duration such as ``"10 minutes"``, for everything together.

    Returns
    -------
    Prepared
        It unpacks into what was given, in order, but for eval sets: these are in its
        ``eval_set``, and with weights and what else the library's ``fit`` takes in its
        ``fit_kwargs``. As a context manager it holds workers
        and adaptive scaling until the end of the block, as :func:`clustertune.hold`.

    Raises
    ------
    TypeError, ValueError
        An argument is not what it must be; nothing was changed.
    AlignmentError
        X, y and companions have other numbers of rows, or pieces that were not to be
        cut do not fit each other.
    GroupOrderError, GroupSplitError
        Query groups are not as the workload needs them, or one is too large.
    ClassCoverageError
        A class has fewer rows than there are workers, and each needs all classes.
    CapacityError
        The data, or new pieces beside the old ones, do not fit below the lines at which
        workers spill.
    SharedDataError
        ``release_inputs`` would free what somebody else needs; nothing was changed.
    ConnectionLostError, NoWorkersError, VersionMismatchError, ScaleError, \
LeaseHeldError
        The cluster cannot do what was asked; the text says why and what to do.
    IncompleteError
        Data was lost with a worker and cannot be computed again, or failed to load.
    VerificationError
        Looking again showed rows that were missing or apart from their labels.
    TimedOutError
        The time was over. The data is whole; ``error.report`` says what was done.

    Examples
    --------
    >>> X, y = clustertune.prepare(client, X, y, estimator=model)   # doctest: +SKIP
    >>> model.fit(X, y)                                             # doctest: +SKIP

    Workers stay during the fit:

    >>> with clustertune.prepare(client, X, y) as (X, y):           # doctest: +SKIP
    ...     model.fit(X, y)
    """
    companions = {
        "sample_weight": sample_weight,
        "qid": qid,
        "group": group,
        "base_margin": base_margin,
        "init_score": init_score,
    }
    given = inputs.gather(X, y, others, companions, eval_set)
    entrance.check_client(client, given)
    profile = libraries.choose(workload, estimator)
    inputs.refuse_sizes(given, profile)
    libraries.refuse(profile, inputs.companions(given))
    spread = arguments.fraction("tolerance", tolerance, zero=True)
    goal = Goal(
        workload=profile,
        chosen=workload is not None or estimator is not None,
        imported=frozenset(PACKAGES & sys.modules.keys()),
        n_workers=arguments.workers_wanted("n_workers", n_workers),
        restart=arguments.restarting("restart", restart),
        rechunk=arguments.cutting("rechunk", rechunk),
        release_inputs=arguments.flag("release_inputs", release_inputs),
        to=arguments.kind("to", to),
        dtype=arguments.number_type("dtype", dtype),
        persist=arguments.maybe("persist", persist),
        order=arguments.order(shuffle, sort),
        seed=arguments.seed("random_state", random_state),
        evaluated=inputs.evaluated(given),
        # to the row means that no tolerance is left
        tolerance=0.0 if profile.exact_rows else spread,
        memory_fraction=arguments.fraction("memory_fraction", memory_fraction),
        strict=arguments.flag("strict", strict),
        only=arguments.some_of("only", only, [name for _, name in planner.PHASES]),
    )
    if inputs.wants_arrays(given, profile) and persist is not False:
        goal = replace(goal, to="array")
    inputs.refuse_unfit(given, goal)
    for x in given:
        conversion.asked(x.label, x.collection, goal)  # refuses what cannot be
    request = Request(
        client=client,
        given=given,
        goal=goal,
        workers=arguments.names("workers", workers),
        timeout=arguments.duration("timeout", timeout),
        progress=progress,
        estimator=estimator,
    )
    dry = arguments.flag("dry_run", dry_run)
    prepared: Prepared = client.sync(_prepare, request, dry)
    return prepared


@dataclass(frozen=True, kw_only=True)
class Request:
    """A call of ``prepare``, its arguments checked as far as they can be alone."""

    client: Client
    given: inputs.Inputs
    goal: Goal
    workers: tuple[str | int, ...] | None
    timeout: float
    progress: bool | Notify | None
    estimator: object = None


async def _prepare(request: Request, dry_run: bool) -> Prepared:
    progress, journal, start = Progress(request.progress), Journal(), monotonic()
    cluster = _cluster(request, start)
    try:
        work = _work(request, cluster, journal, progress.notify, dry_run)
        await asyncio.wait_for(work, request.timeout)
        report = journal.report(journal.status(dry_run), monotonic() - start)
    except BaseException as error:  # whatever it is goes on, after the report
        ours = _explain(error, cluster, request.timeout)
        text = error_text(ours)
        await asyncio.shield(cluster.staff.put_bounds_back())
        if where := await asyncio.shield(cluster.rescue()):
            text += where
            _tell(ours, where)
        journal.stop()
        report = journal.report("failed", monotonic() - start, text)
        report = await noting.note_call("prepare", journal, report)
        attach(ours, report)
        await _conclude(cluster, report, journal, progress, dry_run)
        if ours is error:
            raise
        raise ours from error
    report = await noting.note_call("prepare", journal, report)
    await _conclude(cluster, report, journal, progress, dry_run)
    again = Again(
        client=request.client,
        prepare=partial(_prepare, replace(request, given=cluster.given), False),
        verify=partial(
            _verify, replace(request, given=cluster.given, goal=cluster.goal)
        ),
        put_bounds_back=cluster.staff.put_bounds_back,
        workload=request.goal.workload,
        estimator=request.estimator,
        aside=cluster.aside,
        group_sizes=cluster.group_sizes,
    )
    return Prepared(cluster.given, journal, report, again)


def _cluster(request: Request, start: float) -> LiveCluster:
    # what lives as long as Prepared does keeps no request: that has the old collections
    deadline = start + request.timeout

    def remaining() -> float:
        return deadline - monotonic()

    return LiveCluster(
        request.client,
        request.given,
        request.goal,
        remaining,
        asked=Asked(
            burdens=bool(request.goal.restart),
            least=bool(request.goal.restart),
            values=True,
        ),
    )


async def _work(
    request: Request,
    cluster: LiveCluster,
    journal: Journal,
    notify: Notify,
    dry_run: bool,
) -> None:
    settings = checks.configured()
    # a restart has paused workers run again
    needs = RESTARTABLE if request.goal.restart else ("running",)
    await cluster.open(request.workers, needs=needs)
    await cluster.recall_pieces()
    if dry_run:
        await tune(cluster, journal, notify=notify, settings=settings, dry_run=True)
        return
    async with cluster.lease("prepare", notify):
        await tune(cluster, journal, notify=notify, settings=settings)
        await cluster.stay(journal.views[-1])
        if request.goal.workload.group_sizes:
            await cluster.size_groups(journal.views[-1])
    cluster.tell_rows(journal.views[-1])
    loaded = [v for v in journal.views if all(x.loaded for x in v.layouts)]
    wrong = verification.losses(loaded[0], loaded[-1]) if loaded else ()
    if wrong:
        raise VerificationError(f"looking again found: {'; '.join(wrong)}")


def _explain(
    error: BaseException, cluster: LiveCluster, timeout: float
) -> BaseException:
    """The time limit as an error of ours; every other one as it is."""
    if isinstance(error, asyncio.TimeoutError) and cluster.remaining() <= 0:
        return TimedOutError(
            f"timeout={seconds_text(timeout)} is over; what was in memory before, and "
            "was not released, is whole, and lies as the report says as far as it was "
            "moved; what this call was loading is let go; give a longer timeout"
        )
    return connection.lost(cluster.client, error) or error


def _tell(error: BaseException, where: str) -> None:
    """Have whoever gets the error learn where the data is now."""
    if isinstance(error, ClustertuneError):
        error.args = (f"{error}{where}",)
    elif hasattr(error, "add_note"):  # from Python 3.11 on
        error.add_note(where.removeprefix("; "))
    logger.warning("clustertune was stopped%s", where)


async def _conclude(
    cluster: LiveCluster,
    report: Report,
    journal: Journal,
    progress: Progress,
    dry_run: bool,
) -> None:
    progress.finish(headlines(report))
    if not dry_run:
        last = [handover.facts(v, report.left) for v in journal.views[-1:]]
        await cluster.keep(report.to_json(), *last)
    noted = events.log_call(cluster.client, "prepare", report.status, journal)
    # even where this call is being cancelled: others are to learn what was done
    await asyncio.shield(noted)


async def _verify(request: Request, journal: Journal) -> Report:
    start = monotonic()
    cluster, seen = _cluster(request, start), Journal()
    cluster.asked = Asked()
    await cluster.open(request.workers)
    now = await cluster.look(lambda *_: None)
    while _drops_copies(now) and monotonic() < start + DROPS:
        await asyncio.sleep(GLANCE)
        now = await cluster.look(lambda *_: None)
    now = suitability.chosen(now)
    seen.views.append(now)
    seen.findings.append(checks.run(now, checks.configured()))
    # memory is no part of it: what other work has taken since is no fault of ours
    was = verification.without_aside(journal.views[-1])
    wrong = (
        *verification.losses(was, now),
        *verification.separations(was, now),
        *verification.moves(was, now),
    )
    status = "failed" if wrong else "fine"
    report = seen.report(status, monotonic() - start, "; ".join(wrong))
    if wrong:
        error = LayoutChanged(f"looking again found: {'; '.join(wrong)}")
        error.report = report
        raise error
    return report


def _drops_copies(view: View) -> bool:
    """Whether Dask's memory manager is about to drop copies of the data."""
    known = [x for x in view.layouts if x.loaded and x.aligned]
    return bool(view.now.memory_manager) and any(layouts.copied(x).any() for x in known)


def last_report(client: Client) -> Any:
    """The report of what was done last on this client's cluster, whoever called it.

    Parameters
    ----------
    client
        A connected client, synchronous or asynchronous (then the call is awaited).

    Returns
    -------
    Report or None
        None if there was none since the scheduler started.

    Raises
    ------
    ConnectionLostError, VersionMismatchError
        The cluster cannot be asked; the text says why and what to do.

    Examples
    --------
    >>> clustertune.last_report(client).save("report.html")         # doctest: +SKIP
    """
    return client.sync(monitor.last_report, client)
