"""The live cluster: the port through which the main loop sees and changes it.

It translates between Dask's collections and the plain members of the model, holds the
lease, and cleans up after itself whichever way a call ends: a move that is cancelled
lands what is in flight and stops, and the lease is given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import dask.array as da
import dask.dataframe as dd
import numpy as np
from distributed import Client

from clustertune.actions.cluster import releasing
from clustertune.actions.cluster.claiming import Claims
from clustertune.actions.cluster.computing import POLL, RELEASE, Computing
from clustertune.actions.cluster.lease import Lease
from clustertune.actions.cluster.staff import Staff
from clustertune.collections import (
    contents,
    cutting,
    graphs,
    inputs,
    loading,
    reordering,
)
from clustertune.core.model import (
    ORDER,
    Bounds,
    Drop,
    Flow,
    Goal,
    Key,
    Layout,
    Load,
    Member,
    Moves,
    Notify,
    Recut,
    Release,
    Reorder,
    Restart,
    Result,
    Trim,
    View,
    land,
)
from clustertune.core.wording import bytes_text, names_text, plural, printable
from clustertune.errors import NoWorkersError
from clustertune.monitor import inquiry, monitor
from clustertune.planner import grouping
from clustertune.planner.layouts import homes
from clustertune.planner.memory import refuse_overfull
from clustertune.remote import keys


class _Found(NamedTuple):
    """What is found out once about a collection: some of it takes a while."""

    keys: list[Key]
    futures: list[Any] | None  # None: it is not loaded
    rows: Any  # of every piece, before it is loaded, if known
    derived: bool = False  # is lazy, but made of data that is in memory
    embedded: int | None = None  # bytes of data in the graph of what is lazy


#: statuses of workers that can be restarted, or that another plan restarts just now
RESTARTABLE = ("running", "paused", "closing_gracefully")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What looks are to tell besides; the time that it takes grows with all keys."""

    burdens: bool = False  # what each worker alone holds, and past runs
    limit: int | None = None  # bytes of memory that workers are going to have
    least: bool = False  # the least memory that each worker's process has had
    holdings: bool = False  # which keys are in memory, and who wants them
    kept: tuple[Key, ...] = ()  # that are no holdings
    values: bool = False  # what the workload must know of the values of the data
    by_task: bool = True  # rows of spilled partitions: a task reads each into memory


class LiveCluster:
    """One client's cluster and the data that ``prepare`` was given.

    Parameters
    ----------
    client
        A connected client.
    given
        What the user gave, checked; :attr:`given` is replaced as data is loaded.
    goal
        What the user asked for.
    remaining
        Seconds that are left for everything.
    asked
        What looks are to tell besides.
    """

    def __init__(
        self,
        client: Client,
        given: inputs.Inputs,
        goal: Goal,
        remaining: Callable[[], float],
        *,
        asked: Asked = Asked(),
    ):
        self.client = client
        self.given = given
        self.goal = goal
        self.remaining = remaining
        self.asked = asked
        self._lease = Lease(client, remaining)
        self.staff = Staff(self._lease)
        self._computing = Computing(self._lease)
        self._claims = Claims(client)
        self._found: dict[str, _Found] = {}
        self._ours: set[str] = set()  # labels of what this call has made
        self._shared: set[str] = set()  # of these, with pieces that are held elsewhere
        self._lent: set[str] = set()  # labels of the caller's that were released
        self._left: list[releasing.Release] = []  # of the cut that is going on
        self._values = contents.Values()
        self.aside: dict[str, Any] = {}  # rows that are no part of the data, by label
        self._rows_aside = 0
        self.group_sizes: dict[str, Any] = {}  # by label of what names the groups
        self._looked = False
        self._computes = True  # some worker runs, or one may come

    # --- begin ------------------------------------------------------------------------

    async def open(
        self,
        workers: Sequence[str | int] | None,
        *,
        needs: Collection[str] = ("running",),
    ) -> None:
        """See that code may be sent, and that what was asked for is possible.

        ``needs`` are statuses, in one of which some worker has to be; none: no worker
        has to be there.

        Raises
        ------
        NoWorkersError, VersionMismatchError, ScaleError, ValueError
            As the case may be; nothing was changed.
        """
        identity = await monitor.identify(self.client)
        statuses = {w["status"] for w in identity["workers"].values()}
        if needs and statuses.isdisjoint(needs):
            raise NoWorkersError(_no_worker(identity, statuses))
        self._computes = _can_compute(statuses)
        entries = identity["workers"].items()
        known = {a: monitor.worker_id(a, entry) for a, entry in entries}
        wanted = None if workers is None else _named(workers, known)
        if isinstance(self.goal.n_workers, int):
            self.staff.refuse_scale(self.goal.n_workers, identity["workers"])
        self.goal = replace(self.goal, workers=wanted)
        await monitor.open_door(self.client, identity)
        self._lease.opened = True

    def lease(self, label: str, notify: Notify) -> AbstractAsyncContextManager[None]:
        """Hold the cluster's lease; waits while another plan holds it."""
        return self._lease.held(label, notify)

    # --- look -------------------------------------------------------------------------

    async def look(self, notify: Notify) -> View:
        """See cluster and data; waits until what was submitted has been computed."""
        members: list[Member] = []
        futures: list[Any] = []
        for x in self.given:
            found = await self._pieces(x)
            members.append(self._member(x, found))
            futures += found.futures or ()
        renew = self._claims.renew if self._claims else None
        if self._computes:
            await self._computing.settle(futures, notify, "loading", meanwhile=renew)
        if self._looked:  # and has acted since
            await monitor.hear(self.client)
        self._looked = True
        snapshot, seen = await monitor.look(
            self.client, members, by_task=self.asked.by_task
        )
        self._computes = _can_compute(w.status for w in snapshot.workers)
        while self._computes and any(_is_missing_pieces(m) for m in seen):
            # a worker died between the two: what it held is being computed again,
            # unless its futures were finished and the scheduler has forgotten it
            await self._claims.refuse_gone([(f, f) for f in futures])
            await asyncio.sleep(POLL)
            await self._computing.settle(futures, notify, "loading")
            snapshot, seen = await monitor.look(
                self.client, members, by_task=self.asked.by_task
            )
        layouts = self._layouts(seen)
        if self.asked.values and self._computes:
            layouts = await self._values.look(
                self.client,
                self.given,
                await self.futures(),
                View(snapshots=(snapshot,), goal=self.goal, layouts=layouts),
                approved=monitor.known(self.client).addresses,
            )
        runs = None
        if self.asked.burdens:
            snapshot = await monitor.with_burdens(
                self.client, snapshot, self.asked.limit
            )
            snapshot = await inquiry.with_work(self.client, snapshot)
            runs = await inquiry.past_runs(self.client)
        if self.asked.least:
            snapshot = await monitor.with_least_memory(self.client, snapshot)
        if self.asked.holdings:
            holdings = await monitor.holdings(self.client, self.asked.kept)
            snapshot = replace(snapshot, holdings=holdings)
        return View(snapshots=(snapshot,), goal=self.goal, layouts=layouts, runs=runs)

    async def overhead(self, view: View) -> float | None:
        """Seconds that a task takes beside its work; measured once for all looks."""
        return await monitor.overhead(self.client, view.now)

    async def speeds(self, view: View, flows: Sequence[Flow]) -> View:
        """Ask workers how fast they are; the first time bytes may be sent for it."""
        now = await monitor.speeds(self.client, view.now, flows)
        return replace(view, snapshots=(*view.snapshots[:-1], now))

    async def _pieces(self, given: inputs.Given) -> _Found:
        if given.label not in self._found:
            find = partial(_find, given.collection, self._claims)
            collection, found = await asyncio.to_thread(find)
            if collection is not given.collection:
                now = {given.label: collection}
                every = [now.get(x.label, x.collection) for x in self.given]
                self.given = self.given.with_collections(every)
            self._found[given.label] = found
        return self._found[given.label]

    def _member(self, x: inputs.Given, found: _Found) -> Member:
        member = inputs.member(
            x,
            found.keys,
            found.futures is not None,
            found.rows,
            self._values.conversion(x, self.goal),
        )
        return replace(
            member,
            ours=x.label in self._ours,
            shared=x.label in self._shared,
            aside=self._rows_aside if x.label in self.aside else 0,
            derived=found.derived,
            embedded=found.embedded,
        )

    def _layouts(self, members: tuple[Member, ...]) -> tuple[Layout, ...]:
        rest = iter(members)
        return tuple(
            Layout(label=g.label, members=tuple(next(rest) for _ in g.given))
            for g in self.given.groups
        )

    async def futures(self) -> dict[str, list[Any]]:
        """Of what is loaded, by label, in the order of pieces."""
        found = {x.label: (await self._pieces(x)).futures for x in self.given}
        return {label: own for label, own in found.items() if own is not None}

    # --- act --------------------------------------------------------------------------

    async def persist(self, load: Load, notify: Notify) -> Result:
        """Load what is not, in one graph, each piece where it is to be."""
        lazy = [
            loading.Lazy(
                x.label,
                x.collection,
                _targets(load, x.label),
                self._values.conversion(x, self.goal),
                found.rows,
            )
            for x in self.given
            if (found := await self._pieces(x)).futures is None
        ]
        # making the graph takes a while, in which the event loop must go on
        graph = await asyncio.to_thread(loading.build, lazy)
        judge = None
        if load.room is not None:
            labels = [x.label for x in lazy]
            judge = partial(refuse_overfull, labels, load.room)
        futures = await self._computing.pieces(graph, notify, "loading", judge)
        make = partial(loading.collections, lazy, graph, futures)
        made = await asyncio.to_thread(make)
        # a persisted copy has the same keys, and so has an earlier prepared one
        shared = await releasing.shared(self.client, graph.pieces)
        self._replace(made, shared)
        return Result(count=len(lazy))

    def _replace(self, now: Mapping[str, Any], shared: Collection[str] = ()) -> None:
        """Collections, by label, that this call has made in place of those given."""
        collections = [now.get(x.label, x.collection) for x in self.given]
        self.given = self.given.with_collections(collections)
        self._found = {k: v for k, v in self._found.items() if k not in now}
        self._ours.update(now)
        self._shared = (self._shared - now.keys()) | set(shared)

    async def recut(self, recut: Recut, notify: Notify) -> Result:
        """Make new pieces where they are to be; old ones are freed if that was asked.

        The tasks are bound to their workers until all is done; one whose worker is
        lost or paused meanwhile runs anywhere. This call releases an old piece when all
        new pieces of it exist.
        """
        given = {x.label: x.collection for x in self.given}
        old = {c.label: self._found[c.label].futures or [] for c in recut.cuts}
        lent = {x for x in recut.freed if x not in self._ours or x in self._shared}
        kept = [c.label for c in recut.cuts if c.label in self._shared - lent]
        others = {k: f.futures or () for k, f in self._found.items() if k not in lent}
        mine = [f for label in lent for f in old[label]]
        await releasing.refuse_shared(self.client, mine, others)
        types = await self._types(old)
        graph = await asyncio.to_thread(cutting.build, recut, given, types)
        async with self._computing.pinned(graph) as pin:
            futures = await asyncio.to_thread(graphs.submit, self.client, graph)
            now = await asyncio.to_thread(
                cutting.collections, recut, given, graph, futures
            )
            releases = [
                releasing.Release(
                    cut, old[cut.label], [futures[k] for k in graph.pieces[cut.label]]
                )
                for cut in recut.cuts
                if cut.label in recut.freed
            ]

            async def release() -> None:
                released = [r.go_on() for r in releases]
                if any(released):
                    self._lent |= lent

            self._left = [r for r in releases if r.label in lent]
            self._replace(now)
            if recut.aside:
                more = cutting.set_aside(recut, given, graph, futures)
                self.aside = {k: _joined(x, self.aside.get(k)) for k, x in more.items()}
                self._rows_aside += recut.aside
            await self._computing.settle(
                list(futures.values()),
                notify,
                "cutting",
                pin,
                release if releases else None,
                RELEASE if releases else POLL,
            )
            self._left = []
        if graph.ends:
            wanted = {
                label: [futures[key] for key in own]
                for label, own in graph.ends.items()
            }
            ends = await self.client.gather(wanted, asynchronous=True)
            make = partial(cutting.collections, recut, given, graph, futures, ends)
            self._replace(await asyncio.to_thread(make))
        sent = cutting.sent(graph)
        return Result(
            nbytes=await monitor.received(self.client, sent),
            said=_said(kept),
        )

    async def reorder(self, reorder: Reorder, notify: Notify) -> Result:
        """Put rows in another order; old pieces stay as long as somebody has them."""
        given = {x.label: x.collection for x in self.given}
        old = {s.label: self._found[s.label].futures or [] for s in reorder.sources}
        types = await self._types(old)
        graph = await asyncio.to_thread(reordering.build, reorder, given, types)
        futures = await self._computing.pieces(graph, notify, "ordering")
        make = partial(reordering.collections, reorder, given, old, graph, futures)
        made = await asyncio.to_thread(make)
        numbers = made.pop(ORDER, None)
        if reorder.layout == self.given.groups[0].label:
            if numbers is not None and ORDER not in given:
                self.given = self.given.with_companion(ORDER, numbers)
            if not reorder.by:
                self.goal = replace(self.goal, order="")
        # whole pieces in another order are the futures that the caller holds
        whole = reorder.whole is not None
        callers = {x for x in made.keys() & old if whole and x not in self._ours}
        self._replace(made, callers | (made.keys() & self._shared if whole else set()))
        sent = reordering.sent(graph)
        return Result(nbytes=await monitor.received(self.client, sent) if sent else 0)

    async def _types(self, labels: Iterable[str]) -> dict[str, list[str]]:
        """The types of the chunks of Arrays, which their metadata may not tell."""
        arrays = {
            x.label: self._found[x.label].keys
            for x in self.given
            if x.label in labels and isinstance(x.collection, da.Array)
        }
        return await monitor.chunk_types(self.client, arrays)

    async def rescue(self) -> str:
        """Publish what is made of released pieces; says where, or nothing."""
        if not self._lent:
            return ""
        made = [x.collection for x in self.given if x.label in self._lent]
        left = [f for r in self._left for f in r.held()]
        return await releasing.rescue(self.client, self._lease.token, made, left)

    async def move(self, moves: Moves, notify: Notify) -> Result:
        """Have the resident move keys; cancelled, it lands what is in flight."""

        def tell(state: Mapping[str, Any]) -> None:
            done = state["done"] / max(1, state["total"])
            notify(f"moving {state['total']} keys", done)

        ended: list[dict[str, Any]] = []
        job = self._lease.job(
            "move",
            tell,
            ended,
            workers=list(moves.workers),
            ceilings=list(moves.ceilings),
            moves=[
                (keys.pack(m.keys), np.asarray(m.targets, dtype=np.int64).tobytes())
                for m in moves.moves
            ],
            deadline=max(1.0, self.remaining()),
        )
        try:
            return _moved(await job)
        except BaseException as error:
            if ended and ended[0]["finished"]:
                land(error, _moved(ended[0]))
            raise

    async def stay(self, view: View) -> None:
        """Have Dask's memory manager keep prepared pieces on their workers."""
        places = await asyncio.to_thread(_places, view)
        workers = [w.address for w in view.now.workers]
        await self._lease.ask("stay", workers=workers, places=places)

    async def release(self, release: Release, notify: Notify) -> Result:  # noqa: ARG002
        """Have clients want keys no more; their futures are cancelled."""
        count, nbytes, names = await self._lease.ask(
            "release_keys",
            owner=self.client.id,
            prefix=release.prefix,
            kept=keys.pack(release.kept),
            others=release.include_other_clients,
            together=list(release.together),
        )
        said = f"{plural(count, 'key')} ({bytes_text(nbytes)}) released"
        said += f"; unpublished {names_text(names)}" if names else ""
        return Result(nbytes=0, said=said, count=count)

    async def scale(self, n_workers: int, notify: Notify) -> Result:
        """Ask the cluster object for workers and wait until they are there."""
        return await self.staff.scale(n_workers, notify)

    async def adapt(self, bounds: Bounds, notify: Notify) -> Result:  # noqa: ARG002
        """Have adaptive scaling keep to other bounds; what they were is remembered."""
        return await self.staff.adapt(bounds)

    async def restart(self, restart: Restart, notify: Notify) -> Result:
        """Have the resident restart a worker; cancelled, it undoes what it began."""
        tried = self.goal.restarted | {restart.id}
        self.goal = replace(self.goal, restarted=tried)
        return await self.staff.restart(restart, notify)

    async def trim(self, trim: Trim, notify: Notify) -> Result:  # noqa: ARG002
        """Have workers collect garbage and return free memory."""
        trimmed = self.goal.trimmed | set(trim.workers.values())
        self.goal = replace(self.goal, trimmed=trimmed)
        return await self.staff.trim(trim)

    async def drop(self, drop: Drop, notify: Notify) -> Result:
        """Restart all workers at once; cancelled while it waits, nothing is lost."""
        return await self.staff.drop(drop, notify)

    # --- what prepare hands over ------------------------------------------------------

    async def recall_pieces(self) -> None:
        """Learn of how many pieces the fit before was made, where that counts."""
        if not self.goal.workload.keeps_pieces:
            return
        report = await monitor.last_report(self.client)
        if report is None or report.workload != self.goal.workload.name:
            return
        before = next(iter(report.after), None)
        if before is not None and before.rows is not None:
            self.goal = replace(self.goal, kept=(before.rows, before.pieces))

    async def size_groups(self, view: View) -> None:
        """Make the sizes of groups, pieced like what names them and beside it."""
        for layout in view.layouts:
            member = grouping.member_of(layout)
            if member is None:
                continue
            assert member.contents is not None
            sizes = [piece["counts"] for piece in member.contents.pieces]
            home = homes(layout, len(view.now.workers)).tolist()
            workers = [view.now.workers[i].address for i in home]
            graph = graphs.constants(member.label, sizes, workers)
            futures = await self._computing.pieces(graph, lambda *_: None, "counting")
            first: Any = graph.pieces[member.label][0]
            chunks = (tuple(map(len, sizes)),)
            made = da.Array(futures, first[0], chunks, dtype=np.int64)
            self.group_sizes[member.label] = made

    def tell_rows(self, view: View) -> None:
        """Have arrays know the rows that were counted, whatever was said before."""
        rows = {m.label: m.rows for x in view.layouts for m in x.members if m.loaded}
        told = [graphs.with_rows(x.collection, rows.get(x.label)) for x in self.given]
        self.given = self.given.with_collections(told)

    def forget(self) -> None:
        """Ask nothing more: the scheduler is gone, and the lease with it."""
        self._lease.opened = False

    async def keep(self, report: str, facts: Mapping[str, Any] | None = None) -> None:
        """Leave the report, and what the panel shows, for whoever asks later."""
        await self._lease.quietly("keep", report=report)
        if facts is not None:
            await self._lease.quietly("keep_facts", facts=facts)


def _moved(state: Mapping[str, Any]) -> Result:
    """What a move came to, from its last state."""
    reasons = [f"{n} keys: {reason}" for reason, n in state["left"].items()]
    if state["waiting"]:
        reasons.append(f"{state['waiting']} keys: the move was stopped before them")
    reasons += [state["error"]] if state["error"] else []
    return Result(
        nbytes=state["nbytes"],
        undone="; ".join(reasons),
        count=state["total"] - sum(state["left"].values()) - state["waiting"],
    )


def _joined(first: Any, then: Any) -> Any:
    """Two collections of the same kind, one after the other; the second may be None."""
    if then is None:
        return first
    array = isinstance(first, da.Array)
    return da.concatenate([first, then]) if array else dd.concat([first, then])


def _find(collection: Any, claims: Claims) -> tuple[Any, _Found]:
    """The collection with the client's own futures, and what it shows of itself.

    Runs in a separate thread.
    """
    names, futures = inputs.pieces(collection)
    if futures is None:
        asynchronous = claims.client.asynchronous
        rows = loading.lengths(collection, asynchronous=asynchronous)
        return collection, _Found(names, None, rows, *inputs.origin(collection))
    collection, own = claims.own(collection, futures)
    return collection, _Found(names, own, None)


def _said(kept: Sequence[str]) -> str:
    """That old pieces are not freed, by label; nothing if all are."""
    if not kept:
        return ""
    return (
        f"the old pieces of {names_text(kept)} stay in memory, because another "
        "collection or client holds them"
    )


def _targets(load: Load, label: str) -> list[str] | None:
    """Addresses of the workers for the pieces of one collection."""
    targets = load.targets.get(label)
    return None if targets is None else [load.workers[i] for i in targets.tolist()]


def _places(view: View) -> list[tuple[Any, bytes]]:
    """Packed keys of what is loaded and aligned, and by key the index of its worker."""
    found = []
    for layout in view.layouts:
        if not (layout.loaded and layout.aligned):
            continue
        home = homes(layout, len(view.now.workers))
        known = np.flatnonzero(home >= 0)
        for member in layout.members:
            packed = keys.pack([member.keys[i] for i in known.tolist()])
            found.append((packed, home[known].tobytes()))
    return found


def _can_compute(statuses: Iterable[str]) -> bool:
    """Whether some worker runs, or may come: paused workers start no tasks."""
    found = set(statuses)
    return not found or "running" in found


def _is_missing_pieces(member: Member) -> bool:
    """Whether a loaded member has a piece that nobody holds."""
    if not member.loaded or member.holders is None:
        return False
    return not np.bincount(member.holders[0], minlength=len(member.keys)).all()


def ids_of(names: Sequence[str | int] | None, view: View) -> frozenset[str | int]:
    """The ids of workers that were named, by name or by address; None: of all.

    Raises
    ------
    ValueError
        There is no such worker.
    """
    known = {w.address: w.id for w in view.now.workers}
    return frozenset(known.values()) if names is None else _named(names, known)


def _named(
    names: Sequence[str | int], known: Mapping[str, str | int]
) -> frozenset[str | int]:
    """The ids of workers that were named, among those known by address.

    Raises
    ------
    ValueError
        There is no such worker; the text names those that there are.
    """
    by_any: dict[str | int, str | int] = {i: i for i in known.values()}
    by_any |= {str(i): i for i in known.values() if str(i) not in by_any}  # of a shell
    by_any.update(known)
    unknown = [w for w in names if w not in by_any]
    if unknown:
        raise ValueError(
            f"workers: there is no {names_text(unknown)} in this cluster; its workers "
            f"are {names_text(sorted(set(known.values()), key=str), most=8)}"
        )
    return frozenset(by_any[w] for w in names)


def _no_worker(identity: Mapping[str, Any], statuses: Collection[str]) -> str:
    """Why nothing can run, and a fix that works then."""
    shown = printable(", ".join(sorted(statuses))) or "none"
    fix = "start one, or wait: client.wait_for_workers(1)"
    if "paused" in statuses:
        fix = (
            "their memory is full. Restart them, which keeps their data: "
            "clustertune.restart(client), or `clustertune restart`"
        )
    return (
        f"the cluster {printable(identity['address'])} has no running worker "
        f"(workers: {shown}); {fix}"
    )
