"""``reset``: destroy a Saturn Cloud cluster and create it again with other sizes.

All data in its memory is lost. The call therefore lists what would be lost, and whose
it is. It continues only if everything is saved first, or if the user agrees to lose it.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, TypeVar

from distributed import Client

from clustertune import checks
from clustertune.actions.cluster.live import LiveCluster
from clustertune.collections import inputs
from clustertune.core import arguments
from clustertune.core.model import (
    Goal,
    Key,
    Notify,
    Outcome,
    Plan,
    Price,
    Refusal,
    Step,
    View,
)
from clustertune.core.progress import Progress
from clustertune.core.report import Report, headlines
from clustertune.core.wording import bytes_text, plural, printable, seconds_text
from clustertune.errors import (
    ClustertuneError,
    RecreateError,
    RefusedError,
    TimedOutError,
)
from clustertune.integrations import libraries
from clustertune.integrations.managers import saturn
from clustertune.integrations.managers.saturn import Offer, Wanted
from clustertune.monitor import inquiry, monitor
from clustertune.operations import events, manifests, publishing, saving
from clustertune.operations.call import check_client
from clustertune.operations.history import noting
from clustertune.operations.journal import Journal
from clustertune.operations.losses import Loss, losses, objection

Confirm = Callable[[Report], bool]
T = TypeVar("T")

POLL = 0.2  # seconds between two checks for workers
HEARD = 5.0  # seconds until the scheduler has processed a release of futures
SPARE = 2.0  # seconds before the timeout at which waiting for the new cluster ends


@dataclass(frozen=True, kw_only=True, repr=False)
class Recreated:
    """A recreated cluster; unpacks into its client and the collections.

    Attributes
    ----------
    client
        A client of the new cluster; after a dry run the given client.
    cluster
        The new cluster object.
    collections
        The loaded collections in the order in which they were given, then the data
        sets. Empty if nothing was saved. After a dry run the given collections.
    report
        Printable; the data at risk and the steps.
    """

    client: Client
    cluster: Any
    collections: tuple[Any, ...]
    report: Report

    def __repr__(self) -> str:
        # the text of a client may need an answer of the cluster manager
        return f"<Recreated: {printable(headlines(self.report)[0])}>"

    def __iter__(self) -> Iterator[Any]:
        yield self.client
        yield from self.collections


def recreate_cluster(
    client: Client,
    *collections: Any,
    worker_size: str | None = None,
    scheduler_size: str | None = None,
    n_workers: int | None = None,
    nthreads: int | None = None,
    save_to: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    datasets: Sequence[str] = (),
    drop_data: bool = False,
    include_other_clients: bool = False,
    confirm: Confirm | None = None,
    dry_run: bool = False,
    progress: bool | Notify | None = None,
    timeout: str | float = "1 hour",
) -> Recreated:
    """Destroy a Saturn Cloud cluster and create it again with other sizes.

    **All data in memory is lost** unless it is saved: the report lists the data and its
    owners. To change threads or memory of running workers without losing data, use
    :func:`clustertune.resize_workers`.

    Parameters
    ----------
    client
        A client that was made from the cluster object, synchronous or asynchronous
        (then the call is awaited). It is closed when the new client is connected.
    *collections
        Persisted collections that are saved first and loaded afterwards.
    worker_size, scheduler_size
        Names of Saturn's sizes; None: Saturn's default.
    n_workers
        Number of workers; by default the current number.
    nthreads
        Threads of each worker; by default Saturn's number for that size.
    save_to
        Folder for the saved data, as for :func:`clustertune.save_data`. It is kept.
    storage_options, overwrite
        As for :func:`clustertune.save_data`.
    datasets
        Names of published data sets that are also saved, and published again.
    drop_data
        Whether other data of this client may be lost.
    include_other_clients
        Whether data of other clients, and published names, may be lost.
    confirm
        Called with the plan before anything is changed; False ends the call.
    dry_run
        Change nothing; the report has the steps and the data at risk.
    progress, timeout
        As for :func:`clustertune.prepare`.

    Returns
    -------
    Recreated
        Unpacks into the new client and the collections.

    Raises
    ------
    ValueError
        Saturn does not offer this size; the text lists all sizes.
    RefusedError
        This is not a Saturn cluster, a collection cannot be saved, or more data would
        be lost than the arguments allow. Nothing was changed.
    SaveError
        Saving failed. Nothing was destroyed.
    RecreateError
        The new cluster did not start, or is not ready. The text has the path of the
        saved data and the call that loads it.

    Examples
    --------
    >>> client, X, y = clustertune.recreate_cluster(  # doctest: +SKIP
    ...     client, X, y, worker_size="2xlarge", save_to="/shared/save")
    """
    names = _names(datasets)
    if save_to is None and (collections or names) and not drop_data:
        raise TypeError(
            "save_to is missing: give a folder that all workers see, or drop_data=True "
            "to lose the collections"
        )
    wanted = Wanted(
        worker_size=_name("worker_size", worker_size),
        scheduler_size=_name("scheduler_size", scheduler_size),
        n_workers=arguments.count("n_workers", n_workers),
        nthreads=arguments.count("nthreads", nthreads),
    )
    if wanted == Wanted():
        raise TypeError(
            "there is nothing to change: give worker_size, scheduler_size, n_workers "
            "or nthreads"
        )
    operation = _Reset(
        client=client,
        given=collections,
        datasets=names,
        wanted=wanted,
        target=None
        if save_to is None
        else manifests.target("save_to", save_to, storage_options),
        overwrite=arguments.flag("overwrite", overwrite),
        drop_data=arguments.flag("drop_data", drop_data),
        include_others=arguments.flag("include_other_clients", include_other_clients),
        confirm=confirm,
        dry_run=arguments.flag("dry_run", dry_run),
        asynchronous=isinstance(client, Client) and client.asynchronous,
        timeout=arguments.duration("timeout", timeout),
        progress=progress,
    )
    check_client(client)
    if operation.asynchronous:
        return _awaited(operation)  # type: ignore[return-value] # an awaitable
    found: Recreated = client.sync(_carry_out, operation)
    if found.client is not client:
        client.close()  # not in its own event loop, which ends with it
    return found


async def _awaited(operation: _Reset) -> Recreated:
    found = await _carry_out(operation)
    if found.client is not operation.client:
        await operation.client.close()
    return found


def _name(argument: str, value: Any) -> str | None:
    if value is None or (isinstance(value, str) and value):
        return value
    raise TypeError(f"{argument}={value!r} must be the name of a size, or None")


def _names(datasets: Any) -> tuple[str, ...]:
    listed = isinstance(datasets, list | tuple)
    if listed and all(isinstance(name, str) for name in datasets):
        return arguments.distinct("datasets", datasets)
    raise TypeError(f"datasets={datasets!r} must be a list of names of data sets")


# --- the call -------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Reset:
    """The checked arguments of a call."""

    client: Client
    given: tuple[Any, ...]
    datasets: tuple[str, ...]
    wanted: Wanted
    target: manifests.Target | None
    overwrite: bool
    drop_data: bool
    include_others: bool
    confirm: Confirm | None
    dry_run: bool
    asynchronous: bool
    timeout: float
    progress: bool | Notify | None


async def _carry_out(operation: _Reset) -> Recreated:
    progress, journal, start = Progress(operation.progress), Journal(), monotonic()

    def remaining() -> float:
        return start + operation.timeout - monotonic()

    try:
        work = _work(operation, journal, progress.notify, remaining)
        cluster, collections = await asyncio.wait_for(work, operation.timeout)
    except BaseException as error:
        ours = _explained(error, operation, journal)
        report = journal.report("failed", monotonic() - start, str(ours) or repr(ours))
        report = await noting.note_call("reset", journal, report)
        if isinstance(ours, ClustertuneError):
            ours.report = report
        progress.finish(headlines(report))
        if ours is error:
            raise
        raise ours from error
    status = "planned" if operation.dry_run else "done"
    report = journal.report(status, monotonic() - start)
    report = await noting.note_call("reset", journal, report)
    progress.finish(headlines(report))
    client = cluster.client
    if not operation.dry_run:
        await _over(client, operation, cluster.keep, report.to_json())
        noted = (client, "reset", status, report.seconds, journal)
        await _over(client, operation, events.log_call, *noted)
    return Recreated(
        client=client, cluster=client.cluster, collections=collections, report=report
    )


def _explained(
    error: BaseException, operation: _Reset, journal: Journal
) -> BaseException:
    """The error with the path of the saved data, if the cluster may be destroyed."""
    done = [o.step.action for o in journal.outcomes if o.status == "done"]
    late = isinstance(error, asyncio.TimeoutError)
    if not any(o.step.action == "reset" for o in journal.outcomes):
        if late and not isinstance(error, ClustertuneError):
            return TimedOutError(
                f"reset did not end within {seconds_text(operation.timeout)}; nothing "
                "was destroyed; give a longer timeout"
            )
        return error
    if not isinstance(error, Exception):
        return error  # such as ^C
    why = f"no answer within {seconds_text(operation.timeout)}" if late else str(error)
    what = "was recreated, but is not ready" if "reset" in done else "was not recreated"
    where = "nothing was saved"
    if operation.target is not None and "save" in done:
        path = operation.target.path
        where = (
            f"the data is saved in {path}: connect a client to a cluster, then load it "
            f"with clustertune.load_data(client, {path!r})"
        )
    return RecreateError(f"the cluster {what}: {printable(why, longest=800)}; {where}")


async def _work(
    operation: _Reset,
    journal: Journal,
    notify: Notify,
    remaining: Callable[[], float],
) -> tuple[LiveCluster, tuple[Any, ...]]:
    client = operation.client
    _refuse_other_manager(client.cluster)
    offers = await asyncio.to_thread(saturn.sizes)
    if wrong := saturn.unknown_size(operation.wanted, offers):
        raise ValueError(wrong)
    published = await publishing.fetch(client, operation.datasets)
    collections = (*operation.given, *published)
    cluster = await _opened(client, collections, remaining, needs=())
    if operation.dry_run:
        await _plan(operation, cluster, offers, journal, notify)
        return cluster, collections
    async with cluster.lease("reset", notify):
        plan, wanted = await _plan(operation, cluster, offers, journal, notify)
        if plan.refused:
            reasons = "; ".join(no.reason for no in plan.refused)
            raise RefusedError(f"refused, and nothing was changed: {reasons}")
        await _ask(operation, journal)
        if operation.target is not None and collections:
            await _save(operation, cluster, journal, notify)
            await _check_losses_again(operation, cluster)
        with _outcome(journal, "reset") as made:
            notify("waiting for Saturn to recreate the cluster", None)
            recreated = await asyncio.to_thread(saturn.recreate, client.cluster, wanted)
            cluster.forget()
            new = await _connect(operation, recreated)
            async with _closed_by_error(operation, new):
                rest = (new, wanted.n_workers or 1, notify, remaining)
                made.reason = await _over(new, operation, _wait, *rest)
    async with _closed_by_error(operation, new):
        more = (new, bool(collections), journal, notify, remaining)
        return await _over(new, operation, _arrive, operation, *more)


def _refuse_other_manager(cluster: Any) -> None:
    if cluster is None:
        raise RefusedError(
            "this client has no cluster object, only the scheduler's address; make it "
            "with Client(cluster)"
        )
    if not saturn.matches(cluster):
        raise RefusedError(
            f"{type(cluster).__name__} cannot be recreated by clustertune, which does "
            "this for Saturn Cloud only; clustertune.resize_workers changes threads "
            "and memory of running workers; clustertune.save_data and "
            "clustertune.load_data keep data for another cluster"
        )


async def _opened(
    client: Client,
    collections: tuple[Any, ...],
    remaining: Callable[[], float],
    **how: Any,
) -> LiveCluster:
    given = inputs.of_rows(collections)
    check_client(client, given)
    goal = Goal(workload=libraries.choose(None))
    cluster = LiveCluster(client, given, goal, remaining)
    await cluster.open(None, **how)
    return cluster


async def _look(cluster: LiveCluster, journal: Journal, notify: Notify) -> View:
    view = await cluster.look(notify)
    journal.views.append(view)
    journal.findings.append(checks.run(view, checks.configured()))
    return view


async def _plan(
    operation: _Reset,
    cluster: LiveCluster,
    offers: Sequence[Offer],
    journal: Journal,
    notify: Notify,
) -> tuple[Plan, Wanted]:
    view = await _look(cluster, journal, notify)
    if operation.target is not None:
        await saving.check(cluster, operation.target, overwrite=operation.overwrite)
    lost = await _lost(operation, cluster)
    wanted = operation.wanted
    if wanted.n_workers is None:
        wanted = replace(wanted, n_workers=max(1, len(view.now.workers)))
    step = _reset_step(wanted, offers, lost)
    steps = [step]
    if operation.target is not None and view.layouts:
        nbytes = sum(layout.nbytes for layout in view.layouts)
        price, path = Price(nbytes=nbytes, seconds=None), operation.target.path
        size = bytes_text(nbytes)
        save = Step(action="save", summary=f"save {size} to {path}", price=price)
        load = Step(action="load", summary=f"load {size} from {path}", price=price)
        steps = [save, step, load]
    plan = Plan(phase="reset", steps=tuple(steps))
    if no := _objection(operation, lost):
        refused = Refusal(step=step, guard="losses", reason=no)
        plan = Plan(phase="reset", refused=(refused,))
    journal.plans.append(plan)
    return plan, wanted


def _reset_step(wanted: Wanted, offers: Sequence[Offer], lost: Sequence[Loss]) -> Step:
    at_risk = "; ".join(map(str, lost)) or "nothing"
    sizes = {offer.name: str(offer) for offer in offers}
    what = [plural(wanted.n_workers or 0, "worker")]
    if wanted.worker_size is not None:
        what.append(f"of size {sizes[wanted.worker_size]}")
    if wanted.nthreads is not None:
        what.append(f"with {plural(wanted.nthreads, 'thread')} each")
    if wanted.scheduler_size is not None:
        what.append(f"and a scheduler of size {sizes[wanted.scheduler_size]}")
    return Step(
        action="reset",
        summary=f"destroy the cluster and recreate it with {' '.join(what)}; this "
        f"loses {at_risk}",
        price=Price(nbytes=None, seconds=None, at_risk=at_risk),
    )


async def _lost(operation: _Reset, cluster: LiveCluster) -> tuple[Loss, ...]:
    saved: list[Key] = []
    if operation.target is not None:
        loaded = await cluster.futures()
        saved = [f.key for own in loaded.values() for f in own]
    restored = operation.datasets if operation.target is not None else ()
    return losses(await inquiry.holdings(cluster.client, saved), restored)


def _objection(operation: _Reset, lost: Sequence[Loss]) -> str | None:
    return objection(
        lost, drop_data=operation.drop_data, include_others=operation.include_others
    )


async def _ask(operation: _Reset, journal: Journal) -> None:
    if operation.confirm is None:
        return
    report = journal.report("planned", 0.0)
    if not await asyncio.to_thread(operation.confirm, report):
        raise RefusedError("the plan was not confirmed, and nothing was changed")


async def _save(
    operation: _Reset, cluster: LiveCluster, journal: Journal, notify: Notify
) -> None:
    assert operation.target is not None
    with _outcome(journal, "save") as made:
        made.nbytes = await saving.write(
            cluster, operation.target, overwrite=operation.overwrite, notify=notify
        )


async def _check_losses_again(operation: _Reset, cluster: LiveCluster) -> None:
    """Other clients may have loaded data while this one saved."""
    end = monotonic() + HEARD
    while no := _objection(operation, await _lost(operation, cluster)):
        # the scheduler learns with a delay that this client has released futures
        if monotonic() > end:
            raise RefusedError(
                f"data was loaded while this call saved; nothing was destroyed: {no}"
            )
        await asyncio.sleep(POLL)


@dataclass
class _Made:
    """The result of a completed step."""

    nbytes: int | None = None
    reason: str = ""


@contextmanager
def _outcome(journal: Journal, action: str) -> Iterator[_Made]:
    """Note the outcome of a step of the plan."""
    step = next(s for s in journal.plans[-1].steps if s.action == action)
    made, status, start = _Made(), "failed", monotonic()
    try:
        yield made
        status = "done"
    except BaseException as error:
        made = _Made(reason=str(error) or type(error).__name__)
        raise
    finally:
        outcome = Outcome(
            step=step,
            status=status,
            seconds=monotonic() - start,
            nbytes=made.nbytes,
            reason=made.reason,
        )
        journal.outcomes.append(outcome)


# --- the new cluster ------------------------------------------------------------------
#
# Each synchronous client has its own event loop, and its requests must be made there.


async def _connect(operation: _Reset, cluster: Any) -> Client:
    if operation.asynchronous:
        client: Client = await Client(cluster, asynchronous=True)
        return client
    return await asyncio.to_thread(Client, cluster)


async def _over(
    client: Client,
    operation: _Reset,
    work: Callable[..., Awaitable[T]],
    *args: Any,
) -> T:
    """Run a coroutine function in the event loop of a client."""
    if operation.asynchronous or client is operation.client:
        return await work(*args)
    answer: T = await asyncio.to_thread(client.sync, work, *args)
    return answer


@asynccontextmanager
async def _closed_by_error(operation: _Reset, client: Client) -> AsyncIterator[None]:
    """Close the new client if the call fails, because the caller does not get it."""
    try:
        yield
    except Exception:
        if operation.asynchronous:
            await client.close()
        else:
            await asyncio.to_thread(client.close)
        raise


async def _wait(
    client: Client, n_workers: int, notify: Notify, remaining: Callable[[], float]
) -> str:
    """Wait for the workers; return their number and sizes as text."""
    while True:
        workers = list((await monitor.identify(client))["workers"].values())
        joined = f"{len(workers)} of {plural(n_workers, 'worker')} joined"
        if len(workers) >= n_workers:
            break
        # end before the call does, because the call waits for this thread
        if remaining() < SPARE:
            raise RecreateError(f"{joined} in time")
        notify(joined, len(workers) / n_workers)
        await asyncio.sleep(POLL)
    sizes = {(w["nthreads"], w["memory_limit"] or 0) for w in workers}
    each = [f"{plural(n, 'thread')} and {bytes_text(m)}" for n, m in sorted(sizes)]
    return f"{plural(len(workers), 'worker')} with {' or '.join(each)}"


async def _arrive(
    operation: _Reset,
    client: Client,
    collections: bool,
    journal: Journal,
    notify: Notify,
    remaining: Callable[[], float],
) -> tuple[LiveCluster, tuple[Any, ...]]:
    """Load the saved data, publish the data sets again, and look at the cluster."""
    loaded: tuple[Any, ...] = ()
    target = operation.target
    if target is not None and collections:
        with _outcome(journal, "load"):
            work = saving.read(client, target, notify, remaining)
            loaded = await asyncio.wait_for(work, max(1.0, remaining() - SPARE))
    rest = loaded[len(loaded) - len(operation.datasets) :] if loaded else ()
    for name, data in zip(operation.datasets, rest, strict=False):
        await client.publish_dataset(data, name=name)
    cluster = await _opened(client, loaded, remaining)
    await _look(cluster, journal, notify)
    journal.plans.append(Plan(phase="reset"))
    return cluster, loaded
