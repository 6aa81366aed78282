"""Actions of the live cluster on data: load and rechunk.

Each action replaces the collections that it makes. :class:`CallData` keeps which
collections the call has made, and which keys other clients hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import dask.array as da
import numpy as np

from clustertune.actions.cluster import ownership
from clustertune.actions.cluster.computing import POLL, RELEASE, Computing
from clustertune.actions.cluster.lease import Lease
from clustertune.actions.cluster.ownership import Claims
from clustertune.collections import contents, graphs, inputs, partitions
from clustertune.core.model import (
    CollectionInfo,
    Key,
    Layout,
    Load,
    Moves,
    Notify,
    Rechunk,
    Result,
    View,
)
from clustertune.core.wording import names_text
from clustertune.monitor import inquiry
from clustertune.planner.contents import read_groups
from clustertune.planner.layouts import home_workers
from clustertune.planner.memory import refuse_overfull
from clustertune.remote import keys


class _Found(NamedTuple):
    """Facts about a collection that are read once, because some take a while."""

    keys: list[Key]
    futures: list[Any] | None  # None: the collection is not loaded
    rows: Any  # of every partition before it is loaded, if known
    derived: bool = False  # lazy, but made of data in memory
    embedded: int | None = None  # bytes of data in the graph of lazy data


class CallData:
    """The collections of a call, and the actions that load or cut them.

    ``given`` has the collections after the actions so far. ``group_sizes`` has the
    sizes of groups by label of the collection of group ids.
    """

    def __init__(self, lease: Lease, given: inputs.Inputs):
        self.client = lease.client
        self.given = given
        self._lease = lease
        self.computing = Computing(lease)
        self.claims = Claims(lease.client)
        self._found: dict[str, _Found] = {}
        self._ours: set[str] = set()  # labels of collections that this call has made
        self._shared: set[str] = set()  # those of them with keys that others hold
        self._lent: set[str] = set()  # labels of the caller's data that was released
        self._left: list[ownership.Release] = []  # of the cut that is running
        self.values = contents.Values()
        self._copies: list[Any] = []  # futures of copies for the time of a fit
        self.group_sizes: dict[str, Any] = {}

    async def _partitions(self, given: inputs.Given) -> _Found:
        if given.label not in self._found:
            find = partial(_find, given.collection, self.claims)
            collection, found = await asyncio.to_thread(find)
            if collection is not given.collection:
                now = {given.label: collection}
                every = [now.get(x.label, x.collection) for x in self.given]
                self.given = self.given.with_collections(every)
            self._found[given.label] = found
        return self._found[given.label]

    def _collection(self, x: inputs.Given, found: _Found) -> CollectionInfo:
        loaded = found.futures is not None
        return replace(
            graphs.describe(x.label, x.collection, found.keys, loaded, found.rows),
            made_here=x.label in self._ours,
            shared=x.label in self._shared,
            derived=found.derived,
            embedded=found.embedded,
        )

    async def describe(self) -> tuple[list[CollectionInfo], list[Any]]:
        """Return metadata of the collections, and the futures of loaded ones."""
        infos: list[CollectionInfo] = []
        futures: list[Any] = []
        for x in self.given:
            found = await self._partitions(x)
            infos.append(self._collection(x, found))
            futures += found.futures or ()
        return infos, futures

    def layouts(self, infos: tuple[CollectionInfo, ...]) -> tuple[Layout, ...]:
        rest = iter(infos)
        return tuple(
            Layout(label=g.label, collections=tuple(next(rest) for _ in g.given))
            for g in self.given.groups
        )

    async def futures(self) -> dict[str, list[Any]]:
        """Futures of loaded collections by label, in the order of partitions."""
        found = {x.label: (await self._partitions(x)).futures for x in self.given}
        return {label: own for label, own in found.items() if own is not None}

    async def load(self, load: Load, notify: Notify) -> Result:
        """Load lazy collections in one graph, each partition on its worker."""
        lazy = [
            partitions.Lazy(
                x.label,
                x.collection,
                _targets(load, x.label),
                found.rows,
            )
            for x in self.given
            if (found := await self._partitions(x)).futures is None
        ]
        # making the graph takes a while, and must not block the event loop
        graph = await asyncio.to_thread(partitions.loading_graph, lazy)
        judge = None
        if load.free_memory is not None:
            labels = [x.label for x in lazy]
            judge = partial(refuse_overfull, labels, load.free_memory)
        futures = await self.computing.partitions(graph, notify, "loading", judge)
        make = partial(partitions.loaded_collections, lazy, graph, futures)
        made = await asyncio.to_thread(make)
        # a persisted or an earlier prepared collection may have the same keys
        shared = await ownership.shared(self.client, graph.partitions)
        self._replace(made, shared)
        return Result(count=len(lazy))

    def _replace(self, now: Mapping[str, Any], shared: Collection[str] = ()) -> None:
        """Replace collections, by label, with collections that this call has made."""
        collections = [now.get(x.label, x.collection) for x in self.given]
        self.given = self.given.with_collections(collections)
        self._found = {k: v for k, v in self._found.items() if k not in now}
        self._ours.update(now)
        self._shared = (self._shared - now.keys()) | set(shared)

    async def rechunk(self, recut: Rechunk, notify: Notify) -> Result:
        """Make new partitions on their workers; release old ones if requested.

        Tasks are bound to their workers until all have ended. If a worker is lost or
        paused meanwhile, its tasks run anywhere. An old partition is released when all
        new partitions that need it exist.
        """
        given = {x.label: x.collection for x in self.given}
        old = {c.label: self._found[c.label].futures or [] for c in recut.cuts}
        lent = {x for x in recut.released if x not in self._ours or x in self._shared}
        kept = [c.label for c in recut.cuts if c.label in self._shared - lent]
        others = {k: f.futures or () for k, f in self._found.items() if k not in lent}
        mine = [f for label in lent for f in old[label]]
        await ownership.refuse_shared(self.client, mine, others)
        types = await self._types(old)
        graph = await asyncio.to_thread(partitions.cutting_graph, recut, given, types)
        async with self.computing.pinned(graph) as pin:
            futures = await asyncio.to_thread(graphs.submit, self.client, graph)
            make = partial(partitions.recut_collections, recut, given, graph, futures)
            now = await asyncio.to_thread(make)
            made = {k: [futures[x] for x in own] for k, own in graph.partitions.items()}
            releases = [
                ownership.Release(cut, old[cut.label], made[cut.label])
                for cut in recut.cuts
                if cut.label in recut.released
            ]

            async def release() -> None:
                released = [r.advance() for r in releases]
                if any(released):
                    self._lent |= lent

            self._left = [r for r in releases if r.label in lent]
            self._replace(now)
            await self.computing.settle(
                list(futures.values()),
                notify,
                "cutting",
                pin,
                release if releases else None,
                RELEASE if releases else POLL,
            )
            self._left = []
        if graph.ends:
            wanted = {k: [futures[key] for key in own] for k, own in graph.ends.items()}
            ends = await self.client.gather(wanted, asynchronous=True)
            self._replace(await asyncio.to_thread(make, ends))
        sent = await inquiry.received(self.client, sorted(graph.sent))
        return Result(nbytes=sent, details=_kept_text(kept))

    async def copy(self, moves: Moves, notify: Notify) -> Result:
        """Make copies of partitions on their targets, which replace the collections."""
        given = {x.label: x.collection for x in self.given}
        targets = {
            one.label: (one.keys, [moves.workers[i] for i in one.targets.tolist()])
            for one in moves.moves
        }
        # a task that copies leaves a replica; Dask could drop the given one instead
        await self._lease.ask(
            "move",
            workers=list(moves.workers),
            ceilings=[0] * len(moves.workers),
            moves=[(keys.pack(m.keys), m.targets.tobytes()) for m in moves.kept],
            deadline=0,
        )
        graph = graphs.copies(targets)
        futures = await self.computing.partitions(graph, notify, "copying")
        made = {
            label: graphs.copied(given[label], [futures[key] for key in keys])
            for label, keys in graph.partitions.items()
        }
        self._replace(made)
        self._copies += futures.values()
        return Result(nbytes=await inquiry.received(self.client, sorted(graph.sent)))

    def drop_copies(self) -> None:
        """Release the copies that :meth:`copy` made, which nothing may use then."""
        for future in self._copies:
            future.release()
        self._copies = []

    async def _types(self, labels: Iterable[str]) -> dict[str, list[str]]:
        """The types of the chunks of Arrays, which metadata may not have."""
        arrays = {
            x.label: self._found[x.label].keys
            for x in self.given
            if x.label in labels and isinstance(x.collection, da.Array)
        }
        return await inquiry.chunk_types(self.client, arrays)

    async def rescue(self) -> str:
        """Publish new partitions of released ones; return where, or an empty text."""
        if not self._lent:
            return ""
        made = [x.collection for x in self.given if x.label in self._lent]
        left = [f for r in self._left for f in r.held()]
        return await ownership.rescue(self.client, self._lease.token, made, left)

    async def size_groups(self, view: View) -> None:
        """Make group sizes, partitioned and placed like the group ids."""
        for layout in view.layouts:
            info = read_groups(layout)
            if info is None:
                continue
            assert info.contents is not None
            sizes = [partition["counts"] for partition in info.contents.partitions]
            home = home_workers(layout, len(view.now.workers)).tolist()
            workers = [view.now.workers[i].address for i in home]
            graph = graphs.constants(info.label, sizes, workers)
            work = self.computing.partitions(graph, lambda *_: None, "counting")
            futures = await work
            first: Any = graph.partitions[info.label][0]
            chunks = (tuple(map(len, sizes)),)
            made = da.Array(futures, first[0], chunks, dtype=np.int64)
            self.group_sizes[info.label] = made

    def tell_rows(self, view: View) -> None:
        """Set the known rows of arrays to the counted rows."""
        rows = {m.label: m.rows for m in view.collections if m.loaded}
        told = [graphs.with_rows(x.collection, rows.get(x.label)) for x in self.given]
        self.given = self.given.with_collections(told)


def _find(collection: Any, claims: Claims) -> tuple[Any, _Found]:
    """The collection with the client's own futures, and facts about it.

    Runs in a separate thread.
    """
    names, futures = graphs.partitions(collection)
    if futures is None:
        asynchronous = claims.client.asynchronous
        rows = partitions.lengths(collection, asynchronous=asynchronous)
        return collection, _Found(names, None, rows, *graphs.origin(collection))
    collection, own = claims.own(collection, futures)
    return collection, _Found(names, own, None)


def _kept_text(kept: Sequence[str]) -> str:
    """Why old partitions stay in memory, by label; empty if none do."""
    text = f"the old partitions of {names_text(kept)} stay in memory, because another "
    return f"{text}collection or client holds them" if kept else ""


def _targets(load: Load, label: str) -> list[str] | None:
    """Addresses of the workers for the partitions of a collection."""
    targets = load.targets.get(label)
    return None if targets is None else [load.workers[i] for i in targets.tolist()]
