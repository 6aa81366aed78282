"""``recreate_cluster``: destroy a Saturn Cloud cluster and create it with other sizes.

The cluster loses all data in memory, so the call first lists the data and its owners.
It continues only if all of it is saved, or if the arguments allow the loss.
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
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, TypeVar

from distributed import Client

from clustertune import checks
from clustertune.actions.cluster.live import LiveCluster
from clustertune.collections import inputs
from clustertune.core import arguments
from clustertune.core.model import (
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
from clustertune.core.report import Report
from clustertune.core.sections import headlines
from clustertune.core.wording import bytes_text, plural, printable, seconds_text
from clustertune.errors import (
    ClustertuneError,
    RecreateError,
    RefusedError,
    TimedOutError,
)
from clustertune.integrations.managers import saturn
from clustertune.integrations.managers.saturn import OfferedSize, RequestedSizes
from clustertune.monitor import inquiry, monitor
from clustertune.monitor.connection import sync
from clustertune.operations import event_log, manifests, publishing, saving
from clustertune.operations.call import check_client
from clustertune.operations.history import recording
from clustertune.operations.journal import Journal
from clustertune.operations.lost_data import LostData, lost_data, objection

Confirm = Callable[[Report], bool]
T = TypeVar("T")

POLL = 0.2  # seconds between two checks for workers
RELEASE_DELAY = 5.0  # seconds until the scheduler has processed a release of futures
RESERVE = 2.0  # seconds before the timeout at which waiting for the new cluster ends


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
        The data at risk and the steps, printable.
    """

    client: Client
    cluster: Any
    collections: tuple[Any, ...]
    report: Report

    def __repr__(self) -> str:
        # the text of a client may send a request to the cluster manager
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

    **All data in memory is lost** unless ``save_to`` saves it. The report lists the
    data and its owners. :func:`clustertune.resize_workers` changes threads and memory
    of running workers without losing data.

    Parameters
    ----------
    client
        A client of the cluster object, ``Client(cluster)``; await the call if it is
        asynchronous. It is closed when the new client is connected.
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
        Function of the plan, called before any change; False ends the call.
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
        Saturn does not offer this size. The message lists all sizes.
    RefusedError
        This is not a Saturn cluster, a collection cannot be saved, or more data would
        be lost than the arguments allow. Nothing was changed.
    SaveError
        Saving failed. Nothing was destroyed.
    RecreateError
        The new cluster did not start, or is not ready. The message has the path of the
        saved data and the call that loads it.

    Examples
    --------
    >>> client, X, y = clustertune.recreate_cluster(  # doctest: +SKIP
    ...     client, X, y, worker_size="2xlarge", save_to="/shared/save")
    """
    names = _dataset_names(datasets)
    if save_to is None and (collections or names) and not drop_data:
        raise TypeError(
            "save_to is missing: give a folder that all workers see, or drop_data=True "
            "to lose the collections"
        )
    sizes = RequestedSizes(
        worker_size=_size_name("worker_size", worker_size),
        scheduler_size=_size_name("scheduler_size", scheduler_size),
        n_workers=arguments.count("n_workers", n_workers),
        nthreads=arguments.count("nthreads", nthreads),
    )
    if sizes == RequestedSizes():
        raise TypeError(
            "there is nothing to change: give worker_size, scheduler_size, n_workers "
            "or nthreads"
        )
    target = None
    if save_to is not None:
        target = manifests.target("save_to", save_to, storage_options)
    run = _Recreation(
        client=client,
        given=collections,
        datasets=names,
        sizes=sizes,
        target=target,
        overwrite=arguments.flag("overwrite", overwrite),
        drop_data=arguments.flag("drop_data", drop_data),
        include_others=arguments.flag("include_other_clients", include_other_clients),
        confirm=confirm,
        dry_run=arguments.flag("dry_run", dry_run),
        asynchronous=isinstance(client, Client) and client.asynchronous,
        timeout=arguments.duration("timeout", timeout),
        display=Progress(progress),
    )
    check_client(client)
    # an asynchronous client returns an awaitable
    found: Recreated = sync(client, run.finish)
    if not run.asynchronous and found.client is not client:
        client.close()  # not in its own event loop, which ends with it
    return found


def _size_name(argument: str, value: Any) -> str | None:
    if value is None or (isinstance(value, str) and value):
        return value
    raise TypeError(f"{argument}={value!r} must be the name of a size, or None")


def _dataset_names(datasets: Any) -> tuple[str, ...]:
    is_list = isinstance(datasets, list | tuple)
    if is_list and all(isinstance(name, str) for name in datasets):
        return arguments.distinct("datasets", datasets)
    raise TypeError(f"datasets={datasets!r} must be a list of names of data sets")


# --- the call -------------------------------------------------------------------------


@dataclass(kw_only=True, eq=False)
class _Recreation:
    """One call while it runs, with its checked arguments."""

    client: Client
    given: tuple[Any, ...]
    datasets: tuple[str, ...]
    sizes: RequestedSizes
    target: manifests.Target | None
    overwrite: bool
    drop_data: bool
    include_others: bool
    confirm: Confirm | None
    dry_run: bool
    asynchronous: bool
    timeout: float
    display: Progress
    journal: Journal = field(default_factory=Journal)
    start: float = field(default_factory=monotonic)

    def remaining(self) -> float:
        return self.start + self.timeout - monotonic()

    async def finish(self) -> Recreated:
        """Do the work within the time limit, report, and log the call."""
        try:
            found = await asyncio.wait_for(self._work(), self.timeout)
        except BaseException as error:
            ours = self._explained(error)
            report = await self._report("failed", str(ours) or repr(ours))
            if isinstance(ours, ClustertuneError):
                ours.report = report
            if ours is error:
                raise
            raise ours from error
        cluster, collections = found
        client = cluster.client
        status = "planned" if self.dry_run else "done"
        report = await self._report(status)
        if not self.dry_run:
            await self._on_loop_of(client, cluster.keep, report.to_json())
            event = (client, "recreate", status, report.seconds, self.journal)
            await self._on_loop_of(client, event_log.log_call, *event)
        if self.asynchronous and client is not self.client:
            await self.client.close()
        return Recreated(
            client=client,
            cluster=client.cluster,
            collections=collections,
            report=report,
        )

    async def _report(self, status: str, error: str = "") -> Report:
        """Make the report, add it to the history, and show its headlines."""
        report = self.journal.report(status, monotonic() - self.start, error)
        report = await recording.note_call("recreate", self.journal, report)
        self.display.finish(headlines(report))
        return report

    def _explained(self, error: BaseException) -> BaseException:
        """Return the error; it names the saved data if the cluster may be destroyed."""
        statuses = {o.step.action: o.status for o in self.journal.outcomes}
        late = isinstance(error, asyncio.TimeoutError)
        limit = seconds_text(self.timeout)
        if "recreate" not in statuses:
            if late and not isinstance(error, ClustertuneError):
                return TimedOutError(
                    f"recreate_cluster did not finish within {limit}; nothing was "
                    "destroyed; give a longer timeout"
                )
            return error
        if not isinstance(error, Exception):
            return error  # such as ^C
        reason = f"no answer within {limit}" if late else str(error)
        is_there = statuses["recreate"] == "done"
        state = "recreated, but is not ready" if is_there else "not recreated"
        saved = "nothing was saved"
        if self.target is not None and statuses.get("save") == "done":
            path = self.target.path
            saved = (
                f"the data is saved in {path}: connect a client to a cluster, then "
                f"load it with clustertune.load_data(client, {path!r})"
            )
        text = printable(reason, longest=800)
        return RecreateError(f"the cluster was {state}: {text}; {saved}")

    async def _work(self) -> tuple[LiveCluster, tuple[Any, ...]]:
        _refuse_other_manager(self.client.cluster)
        offers = await asyncio.to_thread(saturn.sizes)
        if wrong := saturn.unknown_size(self.sizes, offers):
            raise ValueError(wrong)
        published = await publishing.fetch(self.client, self.datasets)
        collections = (*self.given, *published)
        given = inputs.of_rows(collections)
        opening = saving.open_cluster(self.client, given, self.remaining, needs=())
        cluster = await opening
        if self.dry_run:
            await self._plan(cluster, offers)
            return cluster, collections
        async with cluster.lease("recreate", self.display.notify):
            plan, sizes = await self._plan(cluster, offers)
            if plan.refused:
                reasons = "; ".join(no.reason for no in plan.refused)
                raise RefusedError(f"refused, and nothing was changed: {reasons}")
            await self._ask_user()
            if self.target is not None and collections:
                with self._outcome("save") as known:
                    known["nbytes"] = await saving.write(
                        cluster,
                        self.target,
                        overwrite=self.overwrite,
                        notify=self.display.notify,
                    )
                await self._check_losses_again(cluster)
            with self._outcome("recreate") as known:
                self.display.notify("waiting for Saturn to recreate the cluster")
                new = await asyncio.to_thread(
                    saturn.recreate, self.client.cluster, sizes
                )
                cluster.forget()
                client = await self._connect(new)
                async with self._closed_by_error(client):
                    waiting = (self._wait, client, sizes.n_workers or 1)
                    known["reason"] = await self._on_loop_of(client, *waiting)
        async with self._closed_by_error(client):
            return await self._on_loop_of(client, self._load, client)

    async def _look(self, cluster: LiveCluster) -> View:
        view = await cluster.look(self.display.notify)
        self.journal.add(view, checks.run(view, checks.configured()))
        return view

    # --- plan and consent -------------------------------------------------------------

    async def _plan(
        self, cluster: LiveCluster, offers: Sequence[OfferedSize]
    ) -> tuple[Plan, RequestedSizes]:
        view, target = await self._look(cluster), self.target
        if target is not None:
            await saving.check(cluster, target, overwrite=self.overwrite)
        lost = await self._lost_data(cluster)
        sizes = self.sizes
        if sizes.n_workers is None:
            sizes = replace(sizes, n_workers=max(1, len(view.now.workers)))
        step = _recreate_step(sizes, offers, lost)
        steps = [step]
        if target is not None and view.layouts:
            nbytes = sum(layout.nbytes for layout in view.layouts)
            price, size = Price(nbytes=nbytes), bytes_text(nbytes)
            save = f"save {size} to {target.path}"
            load = f"load {size} from {target.path}"
            steps = [
                Step(action="save", summary=save, price=price),
                step,
                Step(action="load", summary=load, price=price),
            ]
        plan = Plan(phase="recreate", steps=tuple(steps))
        if reason := self._objection(lost):
            refused = Refusal(step=step, guard="lost_data", reason=reason)
            plan = Plan(phase="recreate", refused=(refused,))
        self.journal.plans.append(plan)
        return plan, sizes

    async def _lost_data(self, cluster: LiveCluster) -> tuple[LostData, ...]:
        saved: list[Key] = []
        restored: tuple[str, ...] = ()
        if self.target is not None:
            loaded = await cluster.futures()
            saved = [f.key for futures in loaded.values() for f in futures]
            restored = self.datasets
        return lost_data(await inquiry.holdings(cluster.client, saved), restored)

    def _objection(self, lost: Sequence[LostData]) -> str | None:
        return objection(
            lost, drop_data=self.drop_data, include_others=self.include_others
        )

    async def _ask_user(self) -> None:
        if self.confirm is None:
            return
        report = self.journal.report("planned", 0.0)
        if not await asyncio.to_thread(self.confirm, report):
            raise RefusedError("the plan was not confirmed, and nothing was changed")

    async def _check_losses_again(self, cluster: LiveCluster) -> None:
        """Refuse if other clients have loaded data while this one saved."""
        end = monotonic() + RELEASE_DELAY
        while reason := self._objection(await self._lost_data(cluster)):
            # the scheduler learns with a delay that this client has released futures
            if monotonic() > end:
                raise RefusedError(
                    "data was loaded while this call saved; nothing was destroyed: "
                    f"{reason}"
                )
            await asyncio.sleep(POLL)

    @contextmanager
    def _outcome(self, action: str) -> Iterator[dict[str, Any]]:
        """Add the outcome of a step of the plan to the journal.

        The block may add attributes of the outcome of a completed step.
        """
        step = next(s for s in self.journal.plans[-1].steps if s.action == action)
        known: dict[str, Any] = {"status": "done"}
        start = monotonic()
        try:
            yield known
        except BaseException as error:
            known = {"status": "failed", "reason": str(error) or type(error).__name__}
            raise
        finally:
            outcome = Outcome(step=step, seconds=monotonic() - start, **known)
            self.journal.outcomes.append(outcome)

    # --- the new cluster --------------------------------------------------------------
    #
    # Each synchronous client has its own event loop, in which it must send requests.

    async def _connect(self, cluster: Any) -> Client:
        if self.asynchronous:
            client: Client = await Client(cluster, asynchronous=True)
            return client
        return await asyncio.to_thread(Client, cluster)

    async def _on_loop_of(
        self, client: Client, work: Callable[..., Awaitable[T]], *args: Any
    ) -> T:
        if self.asynchronous or client is self.client:
            return await work(*args)
        answer: T = await asyncio.to_thread(client.sync, work, *args)
        return answer

    @asynccontextmanager
    async def _closed_by_error(self, client: Client) -> AsyncIterator[None]:
        try:
            yield
        except BaseException:  # also if the time limit has cancelled the work
            if self.asynchronous:
                await client.close()
            else:
                await asyncio.to_thread(client.close)
            raise

    async def _wait(self, client: Client, n_workers: int) -> str:
        """Wait for the workers; return their number and sizes as text."""
        while True:
            workers = list((await monitor.identify(client))["workers"].values())
            joined = f"{len(workers)} of {plural(n_workers, 'worker')} joined"
            if len(workers) >= n_workers:
                break
            # end before the call does, because the call waits for this thread
            if self.remaining() < RESERVE:
                raise RecreateError(f"{joined} in time")
            self.display.notify(joined, len(workers) / n_workers)
            await asyncio.sleep(POLL)
        sizes = {(w["nthreads"], w["memory_limit"] or 0) for w in workers}
        texts = [f"{plural(n, 'thread')} and {bytes_text(m)}" for n, m in sorted(sizes)]
        return f"{plural(len(workers), 'worker')} with {' or '.join(texts)}"

    async def _load(self, client: Client) -> tuple[LiveCluster, tuple[Any, ...]]:
        """Load the saved data, publish the data sets again, and look at the cluster."""
        loaded: tuple[Any, ...] = ()
        if self.target is not None and (self.given or self.datasets):
            notify = self.display.notify
            with self._outcome("load"):
                work = saving.read(client, self.target, notify, self.remaining)
                limit = max(1.0, self.remaining() - RESERVE)
                loaded = await asyncio.wait_for(work, limit)
        # the data sets follow the given collections; without a save there are none
        published = loaded[len(self.given) :]
        for name, data in zip(self.datasets, published, strict=False):
            await client.publish_dataset(data, name=name)
        given = inputs.of_rows(loaded)
        cluster = await saving.open_cluster(client, given, self.remaining)
        await self._look(cluster)
        self.journal.plans.append(Plan(phase="recreate"))
        return cluster, loaded


def _refuse_other_manager(cluster: Any) -> None:
    if cluster is None:
        raise RefusedError(
            "this client has no cluster object, only the scheduler's address; make it "
            "with Client(cluster)"
        )
    if not saturn.matches(cluster):
        raise RefusedError(
            f"{type(cluster).__name__} cannot be recreated by clustertune, which "
            "supports Saturn Cloud only; clustertune.resize_workers changes threads "
            "and memory of running workers; clustertune.save_data and "
            "clustertune.load_data keep data for another cluster"
        )


def _recreate_step(
    sizes: RequestedSizes, offers: Sequence[OfferedSize], lost: Sequence[LostData]
) -> Step:
    at_risk = "; ".join(map(str, lost)) or "nothing"
    texts = {offer.name: str(offer) for offer in offers}
    cluster = plural(sizes.n_workers or 0, "worker")
    if sizes.worker_size is not None:
        cluster += f" of size {texts[sizes.worker_size]}"
    if sizes.nthreads is not None:
        cluster += f" with {plural(sizes.nthreads, 'thread')} each"
    if sizes.scheduler_size is not None:
        cluster += f" and a scheduler of size {texts[sizes.scheduler_size]}"
    return Step(
        action="recreate",
        summary=f"destroy the cluster and recreate it with {cluster}; this loses "
        f"{at_risk}",
        price=Price(nbytes=None, at_risk=at_risk),
    )
