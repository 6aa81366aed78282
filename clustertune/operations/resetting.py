"""``reset``: a cluster that its manager destroys and makes anew, with other sizes.

Everything in its memory is lost with it, whoever wants it. So it is the last thing to
do, no part of ``prepare``, and done only where all that would be lost is either saved
first and loaded afterwards, or named by whoever says that it may go.
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
from clustertune.integrations import libraries, managers
from clustertune.integrations.managers import Offer, Wanted
from clustertune.monitor import inquiry, monitor
from clustertune.operations import entrance, events, manifests, publishing, saving
from clustertune.operations.history import noting
from clustertune.operations.journal import Journal
from clustertune.operations.losses import Loss, losses, objection

Confirm = Callable[[Report], bool]
T = TypeVar("T")

POLL = 0.2  # seconds between two looks for workers
HEARD = 5.0  # seconds in which the scheduler hears that something was released
SPARE = 2.0  # seconds by which waiting for the new cluster ends before the call


@dataclass(frozen=True, kw_only=True, repr=False)
class Recreated:
    """A cluster that was made anew; unpacks into its client and the collections.

    Attributes
    ----------
    client
        Connected to the new cluster; after a dry run the one that was given.
    cluster
        The new cluster object.
    collections
        Loaded again, in the order in which they were given, then the data sets; empty
        where nothing was saved. After a dry run as they were given.
    report
        Printable; what was at risk, and what was done.
    """

    client: Client
    cluster: Any
    collections: tuple[Any, ...]
    report: Report

    def __repr__(self) -> str:
        # a manager may be asked, and not answer, for the text of a client
        return f"<Recreated: {printable(headlines(self.report)[0])}>"

    def __iter__(self) -> Iterator[Any]:
        yield self.client
        yield from self.collections


def reset(
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
    """Have the manager destroy the cluster and make it anew, with other sizes.

    Only for managers that can, like Saturn Cloud. **Everything in memory is lost** but
    for what is saved: the report says what, and whose. To give running workers other
    threads or memory without losing anything use :func:`clustertune.resize`.

    Parameters
    ----------
    client
        A connected client, synchronous or asynchronous (then the call is awaited), made
        of the cluster object. It is closed when the new one is connected.
    *collections
        Persisted collections that are saved first and loaded afterwards.
    worker_size, scheduler_size
        Names of the manager's; None: as it has them by default.
    n_workers
        How many workers; as many as there are by default.
    nthreads
        Threads of each; by default what the manager gives a worker of that size.
    save_to
        The folder for what is saved, as for :func:`clustertune.save`. It stays there.
    storage_options, overwrite
        As for :func:`clustertune.save`.
    datasets
        Names of published data sets that are saved too, and published again.
    drop_data
        Whether what this client has in memory besides may be lost.
    include_other_clients
        Whether the data of other clients, and published names, may be lost.
    confirm
        Called with the plan before anything is touched; False ends it.
    dry_run
        Change nothing; the report says what would be done and lost.
    progress, timeout
        As for :func:`clustertune.prepare`.

    Returns
    -------
    Recreated
        Unpacks into the new client and the collections.

    Raises
    ------
    ValueError
        There is no such size; the text says which there are.
    RefusedError
        The manager cannot do it, something cannot be saved, or more would be lost than
        was agreed to; nothing was touched.
    SaveError
        Saving failed; nothing was destroyed.
    RecreateError
        The cluster was not made anew, or is not as it should be. The text says where
        the data lies that was saved, and how to load it.

    Examples
    --------
    >>> client, X, y = clustertune.reset(                       # doctest: +SKIP
    ...     client, X, y, worker_size="2xlarge", save_to="/shared/save")
    """
    names = _names(datasets)
    if save_to is None and (collections or names) and not drop_data:
        raise TypeError(
            "save_to is missing: the folder where the collections are saved, which "
            "all workers see; or drop_data=True, then they are lost"
        )
    wanted = Wanted(
        worker_size=_name("worker_size", worker_size),
        scheduler_size=_name("scheduler_size", scheduler_size),
        n_workers=arguments.count("n_workers", n_workers),
        nthreads=arguments.count("nthreads", nthreads),
    )
    if wanted == Wanted():
        raise TypeError(
            "nothing is to be changed: give worker_size, scheduler_size, n_workers or "
            "nthreads"
        )
    operation = _Reset(
        client=client,
        given=collections,
        datasets=names,
        wanted=wanted,
        place=None
        if save_to is None
        else manifests.place("save_to", save_to, storage_options),
        overwrite=arguments.flag("overwrite", overwrite),
        drop_data=arguments.flag("drop_data", drop_data),
        include_others=arguments.flag("include_other_clients", include_other_clients),
        confirm=confirm,
        dry_run=arguments.flag("dry_run", dry_run),
        asynchronous=isinstance(client, Client) and client.asynchronous,
        timeout=arguments.duration("timeout", timeout),
        progress=progress,
    )
    entrance.check_client(client)
    if operation.asynchronous:
        return _awaited(operation)  # type: ignore[return-value] # to be awaited
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


# --- doing it -------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Reset:
    """A call, its arguments checked."""

    client: Client
    given: tuple[Any, ...]
    datasets: tuple[str, ...]
    wanted: Wanted
    place: manifests.Target | None
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
        noted = (client, "reset", status, journal)
        await _over(client, operation, events.log_call, *noted)
    return Recreated(
        client=client, cluster=client.cluster, collections=collections, report=report
    )


def _explained(
    error: BaseException, operation: _Reset, journal: Journal
) -> BaseException:
    """The error that says where the data is, if it is on no cluster any more."""
    done = [o.step.action for o in journal.outcomes if o.status == "done"]
    late = isinstance(error, asyncio.TimeoutError)
    began = any(o.step.action == "reset" for o in journal.outcomes)
    if not began:
        if late and not isinstance(error, ClustertuneError):
            return TimedOutError(
                f"reset was not done within {seconds_text(operation.timeout)}; nothing "
                "was destroyed; give a longer timeout"
            )
        return error
    if not isinstance(error, Exception):
        return error  # ^C, say
    why = f"no answer within {seconds_text(operation.timeout)}" if late else str(error)
    what = "is there, but not ready" if "reset" in done else "was not made anew"
    where = "nothing was saved"
    if operation.place is not None and "save" in done:
        path = operation.place.path
        where = (
            f"the data lies in {path}: connect a client to a cluster, then "
            f"clustertune.load(client, {path!r}) loads it"
        )
    return RecreateError(f"the cluster {what}: {printable(why, longest=800)}; {where}")


async def _work(
    operation: _Reset,
    journal: Journal,
    notify: Notify,
    remaining: Callable[[], float],
) -> tuple[LiveCluster, tuple[Any, ...]]:
    client = operation.client
    recreator = _recreator(client.cluster)
    offers = await asyncio.to_thread(recreator.sizes, client.cluster)
    wrong = managers.unknown_size(operation.wanted, offers)
    if wrong:
        raise ValueError(wrong)
    collections = (
        *operation.given,
        *await publishing.fetch(client, operation.datasets),
    )
    given = inputs.of_rows(collections)
    entrance.check_client(client, given)
    goal = Goal(workload=libraries.choose(None))
    cluster = LiveCluster(client, given, goal, remaining)
    await cluster.open(None, needs=())
    if operation.dry_run:
        await _plan(operation, cluster, offers, journal, notify)
        return cluster, collections
    async with cluster.lease("reset", notify):
        plan, wanted = await _plan(operation, cluster, offers, journal, notify)
        if plan.refused:
            raise RefusedError(
                "refused, and nothing was touched: "
                + "; ".join(no.reason for no in plan.refused)
            )
        await _ask(operation, journal)
        if operation.place is not None and collections:
            await _save(operation, cluster, journal, notify)
            await _look_again(operation, cluster)
        with _outcome(journal, "reset") as made:
            make = recreator.recreate
            notify("waiting for the manager to make the cluster anew", None)
            anew = await asyncio.to_thread(make, client.cluster, wanted)
            cluster.forget()
            new = await _connect(operation, anew)
            async with _closed_by_error(operation, new):
                rest = (new, wanted.n_workers or 1, notify, remaining)
                made.reason = await _over(new, operation, _wait, *rest)
    async with _closed_by_error(operation, new):
        return await _over(
            new,
            operation,
            _arrive,
            operation,
            new,
            bool(collections),
            journal,
            notify,
            remaining,
        )


def _recreator(cluster: Any) -> managers.Recreator:
    """The adapter of a manager that can do it.

    Raises
    ------
    RefusedError
        It cannot.
    """
    if cluster is None:
        raise RefusedError(
            "this client has only the scheduler's address; make it of the cluster "
            "object: Client(cluster)"
        )
    found = managers.recreator(cluster)
    if found is None:
        raise RefusedError(
            f"{type(cluster).__name__} cannot be made anew with other sizes here; "
            "clustertune.resize gives running workers other threads and memory without "
            "losing data, clustertune.scale other numbers of them"
        )
    return found


async def _plan(
    operation: _Reset,
    cluster: LiveCluster,
    offers: Sequence[Offer] | None,
    journal: Journal,
    notify: Notify,
) -> tuple[Plan, Wanted]:
    view = await cluster.look(notify)
    if operation.place is not None:
        await saving.check(cluster, operation.place, overwrite=operation.overwrite)
    lost = await _lost(operation, cluster)
    wanted = operation.wanted
    if wanted.n_workers is None:
        wanted = replace(wanted, n_workers=max(1, len(view.now.workers)))
    save, step, load = _steps(operation, wanted, offers, lost, view)
    no = objection(
        lost, drop_data=operation.drop_data, include_others=operation.include_others
    )
    refused = () if no is None else (Refusal(step=step, guard="losses", reason=no),)
    saves = operation.place is not None and view.layouts
    steps = (save, step, load) if saves else (step,)
    plan = Plan(phase="reset", steps=() if refused else steps, refused=refused)
    journal.views.append(view)
    journal.findings.append(checks.run(view, checks.configured()))
    journal.plans.append(plan)
    return plan, wanted


async def _lost(operation: _Reset, cluster: LiveCluster) -> tuple[Loss, ...]:
    saved: list[Key] = []
    if operation.place is not None:
        loaded = await cluster.futures()
        saved = [f.key for own in loaded.values() for f in own]
    restored = operation.datasets if operation.place is not None else ()
    return losses(await inquiry.holdings(cluster.client, saved), restored)


def _steps(
    operation: _Reset,
    wanted: Wanted,
    offers: Sequence[Offer] | None,
    lost: Sequence[Loss],
    view: View,
) -> tuple[Step, Step, Step]:
    nbytes = sum(layout.nbytes for layout in view.layouts)
    path = operation.place.path if operation.place is not None else ""
    at_risk = "; ".join(map(str, lost)) or "nothing"
    sizes = {offer.name: str(offer) for offer in offers or ()}
    what = [plural(wanted.n_workers or 0, "worker")]
    if wanted.worker_size is not None:
        what.append(f"of size {sizes.get(wanted.worker_size, wanted.worker_size)}")
    if wanted.nthreads is not None:
        what.append(f"with {plural(wanted.nthreads, 'thread')} each")
    if wanted.scheduler_size is not None:
        name = sizes.get(wanted.scheduler_size, wanted.scheduler_size)
        what.append(f"and a scheduler of size {name}")
    return (
        Step(
            action="save",
            summary=f"save {bytes_text(nbytes)} to {path}",
            price=Price(nbytes=nbytes, seconds=None),
        ),
        Step(
            action="reset",
            summary=f"destroy the cluster and make it anew: {' '.join(what)}; lost "
            f"with it: {at_risk}",
            price=Price(nbytes=None, seconds=None, at_risk=at_risk),
        ),
        Step(
            action="load",
            summary=f"load {bytes_text(nbytes)} from {path}",
            price=Price(nbytes=nbytes, seconds=None),
        ),
    )


async def _ask(operation: _Reset, journal: Journal) -> None:
    if operation.confirm is None:
        return
    report = journal.report("planned", 0.0)
    if not await asyncio.to_thread(operation.confirm, report):
        raise RefusedError("it was not confirmed, and nothing was touched")


async def _save(
    operation: _Reset, cluster: LiveCluster, journal: Journal, notify: Notify
) -> None:
    assert operation.place is not None
    with _outcome(journal, "save") as made:
        made.nbytes = await saving.write(
            cluster, operation.place, overwrite=operation.overwrite, notify=notify
        )


async def _look_again(operation: _Reset, cluster: LiveCluster) -> None:
    """Saving takes a while, in which others go on.

    Raises
    ------
    RefusedError
        More would be lost now than was agreed to.
    """
    end = monotonic() + HEARD
    while True:
        lost = await _lost(operation, cluster)
        no = objection(
            lost, drop_data=operation.drop_data, include_others=operation.include_others
        )
        if no is None:
            return
        # that this client has released something is heard of a moment later
        if monotonic() > end:
            raise RefusedError(f"meanwhile there is more; nothing was destroyed: {no}")
        await asyncio.sleep(POLL)


@dataclass
class _Made:
    """What there is to say of a step that is done."""

    nbytes: int | None = None
    reason: str = ""


@contextmanager
def _outcome(journal: Journal, action: str) -> Iterator[_Made]:
    """Note what becomes of a step of the plan."""
    step = next(s for s in journal.plans[-1].steps if s.action == action)
    made, start = _Made(), monotonic()
    try:
        yield made
    except BaseException as error:
        reason = str(error) or type(error).__name__
        took = monotonic() - start
        journal.outcomes.append(
            Outcome(step=step, status="failed", seconds=took, reason=reason)
        )
        raise
    journal.outcomes.append(
        Outcome(
            step=step,
            status="done",
            seconds=monotonic() - start,
            nbytes=made.nbytes,
            reason=made.reason,
        )
    )


# --- the new cluster ------------------------------------------------------------------
#
# A synchronous client has an event loop of its own, in which its requests are made.


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
    """Work in the event loop of a client."""
    if operation.asynchronous or client is operation.client:
        return await work(*args)
    answer: T = await asyncio.to_thread(client.sync, work, *args)
    return answer


@asynccontextmanager
async def _closed_by_error(operation: _Reset, client: Client) -> AsyncIterator[None]:
    """Nobody will have the client of a call that fails."""
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
    """Wait for the workers; what they have, in words.

    Raises
    ------
    RecreateError
        They did not come in time.
    """
    while True:
        workers = list((await monitor.identify(client))["workers"].values())
        if len(workers) >= n_workers:
            break
        # so that this ends before the call does: its thread is waited for
        if remaining() < SPARE:
            raise RecreateError(
                f"{len(workers)} of {plural(n_workers, 'worker')} came in time"
            )
        there = f"{len(workers)} of {plural(n_workers, 'worker')} are there"
        notify(there, len(workers) / n_workers)
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
    """Load what was saved, publish it again, and look."""
    loaded: tuple[Any, ...] = ()
    place = operation.place
    if place is not None and collections:
        with _outcome(journal, "load"):
            work = saving.read(client, place, notify, remaining)
            loaded = await asyncio.wait_for(work, max(1.0, remaining() - SPARE))
    rest = loaded[len(loaded) - len(operation.datasets) :] if loaded else ()
    for name, data in zip(operation.datasets, rest, strict=False):
        await client.publish_dataset(data, name=name)
    given = inputs.of_rows(loaded)
    goal = Goal(workload=libraries.choose(None))
    cluster = LiveCluster(client, given, goal, remaining)
    await cluster.open(None)
    view = await cluster.look(notify)
    journal.views.append(view)
    journal.findings.append(checks.run(view, checks.configured()))
    journal.plans.append(Plan(phase="reset"))
    return cluster, loaded
