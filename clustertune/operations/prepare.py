"""``prepare``: look, check, plan the first phase that has findings, act; look again.

:func:`prepare` validates the arguments. :func:`tune` is the whole way after that. It
uses only the port ``core.model.Cluster``, so it also runs on the cluster in memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from distributed import Client

from clustertune import checks
from clustertune.actions import ACTIONS
from clustertune.actions.cluster.live import RESTARTABLE, LookOptions
from clustertune.collections import inputs
from clustertune.core import arguments, settings
from clustertune.core.model import (
    Cluster,
    Finding,
    Goal,
    Notify,
    Outcome,
    Plan,
    Profile,
    View,
)
from clustertune.errors import VerificationError
from clustertune.integrations import libraries
from clustertune.monitor import inquiry
from clustertune.monitor.connection import sync
from clustertune.operations import journal as journals
from clustertune.operations.call import Call, RunningCall, check_client, execute
from clustertune.operations.journal import Journal
from clustertune.operations.prepared import Prepared
from clustertune.planner import plan as planner
from clustertune.planner import suitability

Settings = Mapping[str, Mapping[str, Any]]  # by name of check
Placement = Mapping[str, tuple[str | int | None, ...]]  # workers by label of a layout

MAX_ROUNDS = 12  # each phase once, one of them twice, and some for failures
MAX_STALLED_ROUNDS = 2  # rounds in a row without any effect
#: libraries that need more than any other, and whose fits do not name themselves
PACKAGES = {"lightgbm"}


# --- the whole way --------------------------------------------------------------------


async def tune(
    cluster: Cluster,
    journal: Journal,
    *,
    notify: Notify,
    workers: Sequence[str | int] | None = None,
    needs: Collection[str] = ("running",),
    settings: Settings | None = None,
    dry_run: bool = False,
) -> None:
    """Prepare the data on a cluster: the whole way, from the first look to the last.

    A critical finding that no action can fix is an error, before anything is moved.
    """
    stalled, moved = 0, True
    await cluster.open(workers, needs=needs)
    async with nullcontext() if dry_run else cluster.lease("prepare", notify):
        for number in range(MAX_ROUNDS + 1):
            view = suitability.chosen(journal.continued(await cluster.look(notify)))
            journal.add(view, _check(view, settings))
            found = journal.findings[-1]
            plan = _plan(journal)
            stalled = 0 if moved and not _repeats(journal) else stalled + 1
            last = number == MAX_ROUNDS or stalled == MAX_STALLED_ROUNDS
            if last or not plan.steps:
                # rows that would train with wrong labels must not be returned
                _refuse(found)
            if last or dry_run or not plan.steps:
                break
            begun = len(journal.outcomes)
            await execute(plan, view, cluster, journal.outcomes, notify)
            moved = not _made_no_progress(journal.outcomes[begun:])
        if not dry_run:
            await cluster.finish(view)
            _refuse_losses(journal.views)


async def _prepare(call: Call, estimator: object) -> Prepared:
    """Run :func:`tune` within the time limit, report, and make the result."""
    run = RunningCall(call)
    cluster, journal = run.cluster, run.journal
    work = tune(
        cluster,
        journal,
        notify=run.notify,
        workers=call.workers,
        needs=call.needs,
        settings=run.settings,
        dry_run=call.dry_run,
    )
    report = await run.finish(work, journal.status, journals.page_facts)
    # the goal with the ids of workers that the call found, and without finished parts
    goal = replace(journal.views[-1].goal, n_workers=None)
    done = replace(call, given=cluster.data.given, goal=goal, look=LookOptions())
    model = None if isinstance(estimator, str) else estimator
    return Prepared(done, cluster, journal, report, model)


# --- check and plan -------------------------------------------------------------------


def _check(view: View, settings: Settings | None) -> tuple[Finding, ...]:
    return (*checks.run(view, settings), *planner.unmet_goals(view))


def _plan(journal: Journal) -> Plan:
    """Plan the next phase from the last view, and refuse findings that none can fix."""
    view, found = journal.views[-1], journal.findings[-1]
    unfixable = [f for f in found if not f.fixed_by]
    # rows and values of spilled data are unknown until a restart lets workers run again
    if not view.goal.restart or any(w.running for w in view.now.workers):
        _refuse(unfixable)
    plan = planner.make_plan(found, view, ACTIONS)
    if not plan.steps or plan.phase not in ("merge", "trim", "restart"):
        _refuse(unfixable)
    journal.plans.append(plan)
    return plan


def _made_no_progress(outcomes: Sequence[Outcome]) -> bool:
    return all(o.status in ("partly", "skipped") and not o.nbytes for o in outcomes)


def _repeats(journal: Journal) -> bool:
    """Whether a phase is due again, and has left all findings that actions fix."""
    phases = [plan.phase for plan in journal.plans[-2:]]
    last = [[f for f in found if f.fixed_by] for found in journal.findings[-2:]]
    return len(last) > 1 and phases[0] == phases[-1] and last[0] == last[1]


def _refuse(findings: Iterable[Finding]) -> None:
    """Raise one error of all findings that stop ``prepare``."""
    errors = [(checks.error_of(finding), finding) for finding in findings]
    stopping = [(error, finding) for error, finding in errors if error is not None]
    if not stopping:
        return
    texts = []
    for _, finding in stopping:
        # the remedy of a finding that prepare could fix is the call that failed
        helps = finding.remedy and not finding.fixed_by
        texts.append(finding.message + (f". Remedy: {finding.remedy}" if helps else ""))
    raise stopping[0][0]("\n".join(texts))


def _refuse_losses(views: Iterable[View]) -> None:
    """Raise if rows were lost or changed since all data was loaded."""
    loaded = [view for view in views if all(x.loaded for x in view.layouts)]
    wrong = planner.lost_rows(loaded[0], loaded[-1]) if loaded else ()
    if wrong:
        raise VerificationError(f"looking again found: {'; '.join(wrong)}")


# --- the public functions -------------------------------------------------------------


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
    n_workers: int | str | None = None,
    workers: Sequence[str | int] | None = None,
    restart: bool | str = False,
    merge_workers: bool = False,
    rechunk: bool | int = True,
    release_inputs: bool = False,
    persist: bool | None = None,
    on_low_memory: str = "report",
    dry_run: bool = False,
    progress: bool | Callable[[str, float | None], None] | None = None,
    timeout: str | float = "10 minutes",
) -> Prepared:
    """Prepare a cluster and data for a fit: all workers, even rows, paired partitions.

    Lazy data is loaded in one computation. Partitions are cut and joined where their
    rows do not match each other or the workers; rows keep their order. Whole partitions
    are then moved until every worker holds rows in proportion to its threads, and each
    partition of X is on the same worker as its y and companions. Moved keys keep their
    names, so your own collections use the new places. Few bytes move, or none.

    Parameters
    ----------
    client
        A connected client, synchronous or asynchronous (then the call is awaited).
    X, y, *others
        Dask Arrays, DataFrames or Series, lazy or persisted, with the same number of
        rows. Row i of one belongs to row i of the others. The first dimension of an
        Array is that of its rows. For XGBoost's ``survival:aft`` give the lower bounds
        of labels as y, and the upper ones after it.
    sample_weight, qid, base_margin, init_score
        Companions of X, as libraries call them. ``qid`` needs a ranker.
    group
        Instead of ``qid`` for LightGBM's ranker: group sizes in the order of rows, a
        Dask Array or Series. The result has the sizes in new partitions.
    eval_set
        A list of pairs ``(X_valid, y_valid)``, or with companions by name,
        ``(X_valid, y_valid, {"qid": qid_valid})``. Each pair is placed separately.
        NumPy arrays and pandas objects become one partition. The pair of the training
        data, ``(X, y)``, stays the training data.
    estimator
        The model: an estimator of a known library, instance or class, or the name of a
        workload (``"xgboost"``, ``"lightgbm_rank"``, ``"generic"``). It determines the
        needs of the data, the memory of the fit, ``.fit_kwargs`` and
        ``.estimator_params``. A library that takes Arrays only, such as linear models,
        gets Arrays of known chunks, which Dask makes of frames.
    n_workers
        Scale to this many workers first, if the client's cluster object can. ``"fit"``:
        to the fewest workers whose memory suffices for the fit, as far as that can be
        predicted; none are removed. An adaptive cluster keeps that many until the end
        of a ``with`` block or of a failed call. One that has no worker starts as many
        as the data needs, also without ``n_workers``.
    workers
        Names or addresses: place the data on these workers only.
    restart
        False: restart none; findings advise it. ``"auto"``: if nothing runs, trim the
        workers that use too much memory, and restart the ones that still do, or will do
        after the next run. True: restart all. With ``workers``, only these. See
        :func:`clustertune.restart_workers`.
    merge_workers
        First replace the workers of each host by one with all their threads and
        memory, keeping their data; see :func:`clustertune.merge_workers`. Not with
        ``n_workers``.
    rechunk
        True: cut and join partitions if their rows do not match each other or the
        workers; y and companions get the partitions of X. False: never, which is an
        error if partitions do not match each other. A number: that many partitions of
        the training data; not with query groups, which are not cut. With fewer
        partitions, rows or groups than workers, as many workers train.
    release_inputs
        Release the old partitions of collections that are cut as soon as the new ones
        exist, for data that would not fit in memory twice. Do not use those collections
        afterwards, or lazy ones made of them. Refused if another client needs them.
    persist
        Load what is not in memory. None: unless the workload reads its data only once.
    on_low_memory
        What to do if the workers have less memory than the fit needs: ``"report"`` it,
        or ``"raise"`` an error before the data is moved.
    dry_run
        Change nothing; the report has the plan and its cost.
    progress
        None: to stderr in a terminal or notebook, otherwise to the log ``clustertune``.
        True or False: always or never to stderr. Or a function ``(text, fraction)``;
        an error that it raises is logged, and the call continues.
    timeout
        Seconds, or a duration such as ``"10 minutes"``, for the whole call. At the
        limit, the call waits at most 10 s more until copies in flight have arrived and
        a restart that has begun is undone.

    Returns
    -------
    Prepared
        It unpacks into the given collections, in order, except eval sets. These are in
        its ``eval_set``, and together with weights and other arguments of the library's
        ``fit`` in its ``fit_kwargs``. As a context manager it holds workers and
        adaptive scaling until the end of the block, like :func:`clustertune.hold`.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong; nothing was changed.
    AlignmentError
        X, y and companions have different numbers of rows, or partitions that must not
        be cut do not match each other. Query groups are not as the workload needs them,
        or one is too large. Each worker needs all classes, and a class has fewer rows
        than workers.
    CapacityError
        The data, or new partitions together with the old ones, do not fit below the
        thresholds at which workers spill.
    RefusedError
        ``release_inputs`` would release keys that another client or collection needs;
        nothing was changed.
    ConnectionLostError, NoWorkersError, VersionMismatchError, LeaseHeldError
        The cluster cannot carry out the request; the text gives the reason and a fix.
    IncompleteError
        Data was lost with a worker and cannot be computed again, or failed to load.
    VerificationError
        The final look found missing rows, or rows apart from their labels.
    TimedOutError
        The time limit was reached; ``error.report`` lists what was done.

    Examples
    --------
    >>> X, y = clustertune.prepare(client, X, y, estimator=model)   # doctest: +SKIP
    >>> model.fit(X, y)                                             # doctest: +SKIP

    Keep the workers during the fit:

    >>> with clustertune.prepare(client, X, y) as (X, y):           # doctest: +SKIP
    ...     model.fit(X, y)
    """
    given = inputs.gather(
        X,
        y,
        *others,
        sample_weight=sample_weight,
        qid=qid,
        group=group,
        base_margin=base_margin,
        init_score=init_score,
        eval_set=eval_set,
    )
    options = Options(
        estimator=estimator,
        n_workers=n_workers,
        workers=workers,
        restart=restart,
        merge_workers=merge_workers,
        rechunk=rechunk,
        release_inputs=release_inputs,
        persist=persist,
        on_low_memory=on_low_memory,
        dry_run=dry_run,
        progress=progress,
        timeout=timeout,
    )
    return prepare_data(client, given, options)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of :func:`prepare`, and two more that only ``fit`` uses."""

    estimator: object = None
    n_workers: int | str | None = None
    workers: Sequence[str | int] | None = None
    restart: bool | str = False
    merge_workers: bool = False
    rechunk: bool | int = True
    release_inputs: bool = False
    persist: bool | None = None
    on_low_memory: str = "report"
    dry_run: bool = False
    progress: bool | Notify | None = None
    timeout: str | float = "10 minutes"
    one_per_host: bool = False  # place the data on one worker of each host, if possible
    placement: Placement = field(default_factory=dict)  # to restore


def prepare_data(client: Client, given: inputs.Inputs, options: Options) -> Prepared:
    """Validate the options of ``prepare``, and carry it out; awaitable if asynchronous.

    ``fit`` uses this instead of :func:`prepare`.
    """
    check_client(client, given)
    profile = libraries.choose(options.estimator)
    inputs.refuse_groups(given, profile)
    libraries.refuse(profile, inputs.companions(given))
    goal = _goal(given, profile, options)
    inputs.refuse_unfit(given, goal)
    given = inputs.with_arrays(given, profile, asynchronous=client.asynchronous)
    prepared: Prepared = sync(
        client,
        _prepare,
        Call(
            client=client,
            name="prepare",
            given=given,
            goal=goal,
            workers=arguments.names("workers", options.workers),
            timeout=arguments.duration("timeout", options.timeout),
            dry_run=arguments.flag("dry_run", options.dry_run),
            progress=options.progress,
            look=LookOptions(
                held_data=bool(goal.restart or goal.merge_workers),
                least_memory=bool(goal.restart or goal.merge_workers),
                values=True,
            ),
            # a restart lets paused workers run again
            needs=RESTARTABLE if goal.restart else ("running",),
            # the page shows the findings that stopped the call
            keeps_refused=True,
        ),
        options.estimator,
    )
    return prepared


def _goal(given: inputs.Inputs, profile: Profile, options: Options) -> Goal:
    """Check the options, and return the goal that they describe."""
    merges = arguments.flag("merge_workers", options.merge_workers)
    if merges and options.n_workers is not None:
        raise TypeError(
            "merge_workers=True decides the number of workers, so it does not combine "
            "with n_workers; call clustertune.scale(client, ...) before or afterwards"
        )
    fractions = settings.fractions()
    return Goal(
        workload=profile,
        workload_chosen=options.estimator is not None,
        model_given=not isinstance(options.estimator, str | None),
        imported=frozenset(PACKAGES & sys.modules.keys()),
        n_workers=arguments.workers_wanted("n_workers", options.n_workers),
        restart=arguments.restarting("restart", options.restart),
        merge_workers=merges,
        rechunk=arguments.cutting("rechunk", options.rechunk),
        release_inputs=arguments.flag("release_inputs", options.release_inputs),
        persist=arguments.maybe("persist", options.persist),
        training_eval_sets=inputs.evaluated(given),
        tolerance=fractions["tolerance"],
        memory_fraction=fractions["memory_fraction"],
        raise_on_low_memory=arguments.more_than_report(
            "on_low_memory", options.on_low_memory, "raise"
        ),
        one_per_host=options.one_per_host,
        placement=options.placement,
    )


def last_report(client: Client) -> Any:
    """Return the report of the last call on this client's cluster, by any client.

    Scheduled restarts have their result in :func:`clustertune.schedules`.

    Parameters
    ----------
    client
        As for :func:`prepare`.

    Returns
    -------
    Report or None
        None if there was no call since the scheduler started.

    Raises
    ------
    ConnectionLostError, VersionMismatchError
        The cluster cannot be reached; the text gives the reason and a fix.
    TimedOutError
        The scheduler did not answer within a minute.

    Examples
    --------
    >>> clustertune.last_report(client).save("report.html")         # doctest: +SKIP
    """
    check_client(client)
    return sync(client, inquiry.last_report, client)
