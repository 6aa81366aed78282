"""What is done to workers by name: ``restart``, ``resize``, ``scale``, ``trim``.

Each looks, plans, refuses before anything is touched, acts step by step through the
port, looks again, and reports what was seen, done and left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from distributed import Client

from clustertune import (
    adapters,
    arguments,
    checks,
    executor,
    inputs,
    planner,
    workloads,
)
from clustertune.actions import restart as restarting
from clustertune.actions import retire as retiring
from clustertune.actions import scale as scaling
from clustertune.actions import trim as trimming
from clustertune.errors import (
    ClustertuneError,
    RefusedError,
    ScaleError,
    TimedOutError,
)
from clustertune.journal import Journal
from clustertune.live import LiveCluster, ids_of
from clustertune.model import Goal, Notify, Outcome, Plan, Size, Step, View
from clustertune.progress import Progress
from clustertune.report import Report, headlines
from clustertune.settings import of_checks
from clustertune.wording import seconds_text

Steps = Callable[[View, Collection[str | int]], Iterator[Step]]


def restart(
    client: Client,
    *collections: Any,
    workers: Sequence[str | int] | None = None,
    wait: str | float = "1 minute",
    dry_run: bool = False,
    progress: bool | Notify | None = None,
    timeout: str | float = "30 minutes",
) -> Report:
    """Restart workers one after the other, without losing what they hold.

    Each worker in turn gets no new tasks, ends those that it has, hands its keys to the
    others, is started again by its nanny, and gets its keys back. The scheduler carries
    that out: if this process ends, the worker whose turn it is is finished with.

    Parameters
    ----------
    client
        A connected client, synchronous or asynchronous (then the call is awaited).
    *collections
        Row-aligned collections whose pieces are to stay together meanwhile. What any
        client holds is kept, whether it is named here or not.
    workers
        Names or addresses; all by default.
    wait
        Seconds, or a duration, that the tasks of each worker are waited for.
    dry_run
        Change nothing; the report says what would be done and what it would cost.
    progress
        As for :func:`clustertune.prepare`.
    timeout
        Seconds, or a duration, for everything together.

    Returns
    -------
    Report
        ``steps`` say for each worker how many keys were moved away and back, and how
        many were lost by the scheduler's own count. Status ``left``: not all was done.

    Raises
    ------
    RefusedError
        A worker cannot be restarted without loss (no nanny, actors, no room on the
        others); nothing was touched.
    ConnectionLostError, LeaseHeldError, NoWorkersError, VersionMismatchError
        The cluster cannot do what was asked; the text says why and what to do.
    TimedOutError
        The time was over; nothing is lost.

    Examples
    --------
    >>> print(clustertune.restart(client, workers=[3]))         # doctest: +SKIP
    """
    seconds = arguments.duration("wait", wait)
    operation = Operation(
        client=client,
        name="restart",
        given=_given(collections),
        workers=arguments.names("workers", workers),
        steps=lambda view, ids: restarting.steps(view, ids, wait=seconds),
        timeout=arguments.duration("timeout", timeout),
        dry_run=arguments.flag("dry_run", dry_run),
        progress=progress,
        burdened=True,
    )
    report: Report = client.sync(_carry_out, operation)
    return report


def resize(
    client: Client,
    *collections: Any,
    nthreads: int | None = None,
    memory_limit: str | int | None = None,
    env: Mapping[str, str] | None = None,
    workers: Sequence[str | int] | None = None,
    wait: str | float = "1 minute",
    dry_run: bool = False,
    progress: bool | Notify | None = None,
    timeout: str | float = "30 minutes",
) -> Report:
    """Give running workers other threads, memory or variables, without losing data.

    Their nannies are told, and the workers restarted one after the other as
    :func:`clustertune.restart` does. What they have then is asked of them, and holds
    for every later start by the same nanny. Workers that have it are left alone.

    Parameters
    ----------
    client, *collections, workers, wait, dry_run, progress, timeout
        As for :func:`clustertune.restart`.
    nthreads
        Threads of each worker.
    memory_limit
        Bytes, or text such as ``"4 GiB"``, for each worker.
    env
        Variables, set before the worker's process starts: ``{"OMP_NUM_THREADS": "2"}``.

    Returns
    -------
    Report
        As of :func:`clustertune.restart`.

    Raises
    ------
    TypeError
        Nothing is to be changed.
    RefusedError
        As for :func:`clustertune.restart`; or what a worker holds does not fit the new
        limit. Nothing was touched.

    Examples
    --------
    >>> clustertune.resize(client, X, y, nthreads=4)            # doctest: +SKIP
    """
    size = Size(
        nthreads=arguments.count("nthreads", nthreads),
        memory_limit=arguments.nbytes("memory_limit", memory_limit),
        env=arguments.variables("env", env),
    )
    if size == Size():
        raise TypeError("nothing is to be changed: give nthreads, memory_limit or env")
    seconds = arguments.duration("wait", wait)
    operation = Operation(
        client=client,
        name="resize",
        given=_given(collections),
        workers=arguments.names("workers", workers),
        steps=lambda view, ids: restarting.steps(view, ids, wait=seconds, size=size),
        timeout=arguments.duration("timeout", timeout),
        dry_run=arguments.flag("dry_run", dry_run),
        progress=progress,
        burdened=True,
    )
    report: Report = client.sync(_carry_out, operation)
    return report


def scale(
    client: Client,
    n_workers: int,
    *collections: Any,
    wait: str | float = "1 minute",
    dry_run: bool = False,
    progress: bool | Notify | None = None,
    timeout: str | float = "10 minutes",
) -> Report:
    """Bring a cluster to so many workers, without losing data.

    More are asked of the client's cluster object, and waited for. Of those that are too
    many the ones that alone hold least go, one after the other: each ends its tasks and
    hands its keys to those that stay, and is closed then.

    Parameters
    ----------
    client, *collections, wait, dry_run, progress, timeout
        As for :func:`clustertune.restart`.
    n_workers
        How many there are to be, at least one.

    Returns
    -------
    Report
        As of :func:`clustertune.restart`. New workers hold no data, and what was moved
        lies where there was room: :func:`clustertune.prepare` places it evenly.

    Raises
    ------
    ScaleError
        The cluster cannot have more, or they did not come in time.
    RefusedError
        A worker holds actors, or more than those that stay have room for; nothing was
        touched.
    """
    wanted = arguments.count("n_workers", n_workers)
    if wanted is None:
        raise ValueError("n_workers=None must be a whole number of at least 1")
    seconds = arguments.duration("wait", wait)

    def steps(view: View, _ids: Collection[str | int]) -> Iterator[Step]:
        there = sum(w.status in ("running", "paused") for w in view.now.workers)
        if there < wanted:
            reason = adapters.obstacle(client.cluster, wanted)
            if reason is not None:
                raise ScaleError(f"n_workers={wanted}: {reason}")
            yield scaling.step(there, wanted)
        else:
            yield from retiring.steps(view, wanted, wait=seconds)

    operation = Operation(
        client=client,
        name="scale",
        given=_given(collections),
        workers=None,
        steps=steps,
        timeout=arguments.duration("timeout", timeout),
        dry_run=arguments.flag("dry_run", dry_run),
        progress=progress,
        burdened=True,
        may_be_empty=True,
    )
    report: Report = client.sync(_carry_out, operation)
    return report


def trim(
    client: Client,
    *,
    workers: Sequence[str | int] | None = None,
    dry_run: bool = False,
    progress: bool | Notify | None = None,
    timeout: str | float = "1 minute",
) -> Report:
    """Have workers give memory back that their processes do not need.

    Python's garbage is collected and the C library's free memory returned to the host,
    on all workers at once. Nothing is at risk.

    Parameters
    ----------
    client
        A connected client, synchronous or asynchronous (then the call is awaited).
    workers
        Names or addresses; all by default.
    dry_run
        Change nothing.
    progress
        As for :func:`clustertune.prepare`.
    timeout
        Seconds, or a duration, for everything together.

    Returns
    -------
    Report
        Its step says for each worker the memory of its process before and after.
    """
    operation = Operation(
        client=client,
        name="trim",
        given=inputs.NOTHING,
        workers=arguments.names("workers", workers),
        steps=trimming.steps,
        timeout=arguments.duration("timeout", timeout),
        dry_run=arguments.flag("dry_run", dry_run),
        progress=progress,
    )
    report: Report = client.sync(_carry_out, operation)
    return report


# --- the way of all of them -----------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A call, its arguments checked."""

    client: Client
    name: str
    given: inputs.Inputs
    workers: tuple[str | int, ...] | None
    steps: Steps
    timeout: float
    dry_run: bool
    progress: bool | Notify | None
    burdened: bool = False
    may_be_empty: bool = False


def _given(collections: Sequence[Any]) -> inputs.Inputs:
    if not collections:
        return inputs.NOTHING
    X, y, *others = (*collections, None) if len(collections) == 1 else collections
    return inputs.gather(X, y, others, {}, None)


async def _carry_out(operation: Operation) -> Report:
    progress, journal, start = Progress(operation.progress), Journal(), monotonic()
    inputs.check_client(operation.client, operation.given)

    def remaining() -> float:
        return start + operation.timeout - monotonic()

    cluster = LiveCluster(
        operation.client,
        operation.given,
        Goal(workload=workloads.choose(None)),
        remaining,
        burdened=operation.burdened,
    )
    try:
        work = _work(operation, cluster, journal, progress.notify)
        await asyncio.wait_for(work, operation.timeout)
    except BaseException as error:
        ours = _explained(error, operation)
        report = journal.report("failed", monotonic() - start, str(ours) or repr(ours))
        if isinstance(ours, ClustertuneError):
            ours.report = report
        progress.finish(headlines(report))
        if ours is error:
            raise
        raise ours from error
    report = journal.report(_status(operation, journal), monotonic() - start)
    progress.finish(headlines(report))
    if not operation.dry_run:
        await cluster.keep(report.to_json())
    return report


async def _work(
    operation: Operation, cluster: LiveCluster, journal: Journal, notify: Notify
) -> None:
    settings = of_checks()
    await cluster.open(None, may_be_empty=operation.may_be_empty)
    if operation.dry_run:
        await _plan(operation, cluster, journal, notify, settings)
        return
    async with cluster.lease(operation.name, notify):
        plan = await _plan(operation, cluster, journal, notify, settings)
        if plan.refused:
            raise RefusedError(_reasons(plan))
        await _act(plan, cluster, journal, notify)
        view = await cluster.look(notify)
        journal.views.append(view)
        journal.findings.append(checks.run(view, settings))
        journal.plans.append(Plan(phase=operation.name))


async def _plan(
    operation: Operation,
    cluster: LiveCluster,
    journal: Journal,
    notify: Notify,
    settings: Any,
) -> Plan:
    view = await cluster.look(notify)
    ids = ids_of(operation.workers, view)
    proposed = [(s, planner.refusal(s, view)) for s in operation.steps(view, ids)]
    plan = Plan(
        phase=operation.name,
        steps=tuple(step for step, no in proposed if no is None),
        refused=tuple(no for _, no in proposed if no is not None),
    )
    journal.views.append(view)
    journal.findings.append(checks.run(view, settings))
    journal.plans.append(plan)
    return plan


async def _act(
    plan: Plan, cluster: LiveCluster, journal: Journal, notify: Notify
) -> None:
    """One step after the other; what comes after one that was not done is not begun."""
    for number, step in enumerate(plan.steps):
        if journal.outcomes and journal.outcomes[-1].status != "done":
            reason = "not begun, as the one before was not done"
            journal.outcomes.append(Outcome(step=step, status="skipped", reason=reason))
            continue
        view = await cluster.look(notify) if number else journal.views[-1]
        await executor.execute(
            Plan(phase=plan.phase, steps=(step,)),
            view,
            cluster,
            notify=notify,
            clock=monotonic,
            record=journal.outcomes.append,
        )


def _status(operation: Operation, journal: Journal) -> str:
    if operation.dry_run:
        return "planned"
    if not journal.outcomes:
        return "fine"
    return "done" if all(o.status == "done" for o in journal.outcomes) else "left"


def _reasons(plan: Plan) -> str:
    texts = [f"{r.step.summary}: {r.reason}" for r in plan.refused]
    more = f"; and {len(texts) - 3} more" if len(texts) > 3 else ""
    return f"refused, and nothing was touched: {'; '.join(texts[:3])}{more}"


def _explained(error: BaseException, operation: Operation) -> BaseException:
    if isinstance(error, asyncio.TimeoutError) and not isinstance(
        error, ClustertuneError
    ):
        return TimedOutError(
            f"{operation.name} was not done within {seconds_text(operation.timeout)}; "
            "nothing is lost, and what was begun is undone; give a longer timeout"
        )
    return error
