"""The data of a call on the live cluster: load, rechunk, release; and its holders.

Each action replaces the collections that it makes. :class:`CallData` keeps which
collections the call has made, and which keys other clients hold.

:class:`Release` releases old partitions while new ones are made of them. Only the
futures of this call are released, and every row stays in a partition that is held. If
the call fails, :func:`rescue` publishes the new partitions.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from distributed import Client, futures_of

from clustertune.actions.cluster.lease import POLL, RELEASE, Computing, Lease
from clustertune.collections import contents, graphs, inputs, partitions
from clustertune.core.model import (
    CollectionInfo,
    Cut,
    Key,
    Layout,
    Load,
    Moves,
    Notify,
    Rechunk,
    Result,
    View,
)
from clustertune.core.wording import plural, printable
from clustertune.errors import IncompleteError, RefusedError
from clustertune.monitor import connection, inquiry
from clustertune.planner import remedies
from clustertune.planner.contents import read_groups
from clustertune.planner.layouts import home_workers
from clustertune.planner.memory import refuse_overfull
from clustertune.remote import keys
from clustertune.remote.ending import within

# --- holders --------------------------------------------------------------------------

logger = logging.getLogger("clustertune")

RESCUE_SECONDS = 60.0  # time limit for publishing new partitions
UNKNOWN_SECONDS = 10.0  # for the scheduler to read a graph that names unknown keys


class Release:
    """Releases old partitions of a collection when all new ones of them exist."""

    def __init__(self, cut: Cut, old: Sequence[Any], new: Sequence[Any]):
        self.label = cut.label
        self._old = dict(enumerate(old))
        self._waiting = dict(enumerate(new))
        self._parts = np.split(cut.key, np.searchsorted(cut.new, range(1, len(new))))
        self._uses = np.bincount(cut.key, minlength=len(old))
        # partitions without rows
        self._unused = np.flatnonzero(self._uses == 0).tolist()

    def advance(self) -> bool:
        """Release old partitions that no new one needs; return whether there were any.

        The client counts its futures. It sends the release of a key after its last
        future, in order with all other messages to the scheduler.
        """
        there = [n for n, f in self._waiting.items() if f.status == "finished"]
        for number in there:
            del self._waiting[number]
            self._uses[self._parts[number]] -= 1
        if not there:
            return False
        parts = np.unique(np.concatenate([self._parts[n] for n in there]))
        done = [*parts[self._uses[parts] == 0].tolist(), *self._unused]
        self._unused = []
        for number in done:
            self._old.pop(number).release()
        return bool(done)

    def held(self) -> list[Any]:
        """Old partitions that are not released yet."""
        return list(self._old.values())


async def shared_labels(
    client: Client, partitions: Mapping[str, Sequence[Key]]
) -> set[str]:
    """Labels of collections with a key that something else holds, too.

    The client has one future of this call for each key of ``partitions``.
    """
    labels = Counter(key for own in partitions.values() for key in own)
    found = set()
    for label, own in partitions.items():
        here = any(labels[key] > 1 or client.refcount.get(key, 0) > 1 for key in own)
        if here or (await inquiry.look_at_keys(client, own))["others"]:
            found.add(label)
    return found


async def refuse_shared(
    client: Client, freed: Sequence[Any], others: Mapping[str, Sequence[Any]]
) -> None:
    """Refuse to release keys of the caller that anything else needs.

    ``freed`` has the futures of the keys, ``others`` the futures of other data of the
    same call by label. Raises ``RefusedError`` if something else needs a key;
    nothing was released.
    """
    if not freed:  # most calls release nothing, and need no request
        return
    wanted = {f.key for f in freed}
    for label, futures in others.items():
        if not wanted.isdisjoint(f.key for f in futures):
            raise RefusedError(
                f"release_inputs=True would release partitions that {label} needs, "
                "too; give a copy of it, or omit release_inputs"
            )
    # one future of each is the caller's own
    here = sum(client.refcount.get(f.key, 0) > 1 for f in freed)
    # a published data set is a client
    there = (await inquiry.look_at_keys(client, [f.key for f in freed]))["others"]
    if here or there:
        who = "another client or a published data set"
        who = "another collection in this process" if here else who
        raise RefusedError(
            "release_inputs=True would release "
            f"{plural(max(here, there), 'partition')} that {who} needs, too, so it "
            "releases none. Call prepare without "
            "release_inputs, or delete the other names of this data first"
        )


async def rescue(
    client: Client, token: str, made: Sequence[Any], left: Sequence[Any]
) -> str:
    """Publish the new partitions of released ones; return where, as text.

    Old partitions that are not cut yet are published under a second name.
    """
    name = f"clustertune-{token[:8]}"
    try:
        await within(_publish(client, name, made, left), RESCUE_SECONDS)
    # any error: it must not hide the error of the call
    except Exception as error:  # noqa: BLE001
        logger.warning("clustertune could not publish %s: %r", name, error)
        return "; the new partitions of released ones could not be published"
    rest = f"; partitions that were not cut yet in {name + '-left'!r}" if left else ""
    return (
        "; the old partitions are released; the new ones are in "
        f"client.get_dataset({name!r}), in the order of the arguments{rest}"
    )


async def _publish(
    client: Client, name: str, made: Sequence[Any], left: Sequence[Any]
) -> None:
    await client.publish_dataset(list(made), name=name)
    if left:
        await client.publish_dataset(list(left), name=f"{name}-left")


# --- keys that are gone ---------------------------------------------------------------


async def refuse_gone(client: Client, futures: Sequence[Any]) -> None:
    """Raise ``IncompleteError`` if partitions will never be in memory.

    A key may belong to a graph that is still on its way. So an answer counts only if a
    later message of the client has arrived since, and if the scheduler reads no graph.
    That of a finished future was read.
    """
    sent, end = None, monotonic() + UNKNOWN_SECONDS
    while futures and monotonic() < end:
        found = await inquiry.look_at_keys(client, [f.key for f in futures])
        gone = np.frombuffer(found["gone"], dtype=np.int64).tolist()
        if not gone:
            return
        read = any(futures[i].status == "finished" for i in gone)
        if found["reading"] and not read:
            sent = None
        elif sent is None and not read:
            sent = found["heartbeat"]
            client._send_to_scheduler({"op": "heartbeat-client"})  # noqa: SLF001
        elif read or found["heartbeat"] > sent:
            raise IncompleteError(
                f"{plural(len(gone), 'partition')} of the data "
                f"{'is' if len(gone) == 1 else 'are'} gone, such as "
                f"{printable(str(futures[gone[0]].key))}: released or cancelled, or "
                "lost by client.restart() or a restart of the scheduler. Load the data "
                "again"
            )
        await asyncio.sleep(POLL)


# --- data of a call -------------------------------------------------------------------


class _Found(NamedTuple):
    """Facts about a collection that are read once, because some take a while."""

    keys: list[Key]
    futures: list[Any] | None  # None: the collection is not loaded
    rows: Any  # of every partition before it is loaded, if known
    sources: tuple[str, ...] = ()  # files of the partitions, if known
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
        self._found: dict[str, _Found] = {}
        self._ours: set[str] = set()  # labels of collections that this call has made
        self._shared: set[str] = set()  # those of them with keys that others hold
        self._lent: set[str] = set()  # labels of the caller's data that was released
        self._left: list[Release] = []  # of the cut that is running
        self._sources: dict[str, tuple[str, ...]] = {}  # files of loaded partitions
        self.values = contents.Values()
        self._copies: list[Any] = []  # futures of copies for the time of a fit
        self.group_sizes: dict[str, Any] = {}

    async def _partitions(self, given: inputs.Given) -> _Found:
        if given.label not in self._found:
            find = partial(_find, given, self.client)
            self._found[given.label] = await asyncio.to_thread(find)
        return self._found[given.label]

    def _collection(self, x: inputs.Given, found: _Found) -> CollectionInfo:
        loaded = found.futures is not None
        return replace(
            graphs.describe(x.label, x.collection, found.keys, loaded, found.rows),
            made_here=x.label in self._ours,
            shared=x.label in self._shared,
            from_sizes=x.label in self.given.sizes,
            sources=found.sources or self._sources.get(x.label, ()),
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
                found.sources,
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
        with connection.no_shuffle_logs():
            futures = await self.computing.partitions(graph, notify, "loading", judge)
        make = partial(partitions.loaded_collections, lazy, graph, futures)
        made = await asyncio.to_thread(make)
        # a persisted or an earlier prepared collection may have the same keys
        shared = await shared_labels(self.client, graph.partitions)
        self._replace(made, shared)
        self._sources |= {x.label: tuple(x.sources) for x in lazy}
        return Result(count=len(lazy))

    def _replace(self, now: Mapping[str, Any], shared: Collection[str] = ()) -> None:
        """Replace collections, by label, with collections that this call has made."""
        collections = [now.get(x.label, x.collection) for x in self.given]
        self.given = self.given.with_collections(collections)
        self._found = {k: v for k, v in self._found.items() if k not in now}
        self._ours.update(now)
        self._shared = (self._shared - now.keys()) | set(shared)
        self._sources = {k: v for k, v in self._sources.items() if k not in now}

    async def rechunk(self, recut: Rechunk, notify: Notify) -> Result:
        """Make new partitions on their workers; release old ones if requested.

        Tasks are bound to their workers until all have ended. If a worker is lost or
        paused meanwhile, its tasks run anywhere. An old partition is released when all
        new partitions that need it exist.
        """
        given = {x.label: x.collection for x in self.given}
        old = {c.label: self._found[c.label].futures or [] for c in recut.cuts}
        lent = {x for x in recut.released if x not in self._ours or x in self._shared}
        others = {k: f.futures or () for k, f in self._found.items() if k not in lent}
        mine = [f for label in lent for f in old[label]]
        await refuse_shared(self.client, mine, others)
        types = await self._types(old)
        graph = await asyncio.to_thread(partitions.cutting_graph, recut, given, types)
        before = await inquiry.last_transfers(self.client)
        async with self.computing.pinned(graph) as pin:
            futures = await asyncio.to_thread(graphs.submit, self.client, graph)
            make = partial(partitions.recut_collections, recut, given, graph, futures)
            now = await asyncio.to_thread(make)
            made = {k: [futures[x] for x in own] for k, own in graph.partitions.items()}
            releases = [
                Release(cut, old[cut.label], made[cut.label])
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
                graph.partitions,
                pin,
                release if releases else None,
                RELEASE if releases else POLL,
            )
            self._left = []
        if graph.ends:
            wanted = {k: [futures[key] for key in own] for k, own in graph.ends.items()}
            ends = await self.client.gather(wanted, asynchronous=True)
            self._replace(await asyncio.to_thread(make, ends))
        sent = await inquiry.received(self.client, sorted(graph.sent), before)
        return Result(nbytes=sent)

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
        before = await inquiry.last_transfers(self.client)
        futures = await self.computing.partitions(graph, notify, "copying")
        made = {
            label: graphs.copied(given[label], [futures[key] for key in keys])
            for label, keys in graph.partitions.items()
        }
        self._replace(made)
        self._copies += futures.values()
        sent = await inquiry.received(self.client, sorted(graph.sent), before)
        return Result(nbytes=sent)

    def drop_made(self) -> None:
        """Release what this call has made, since it failed and no caller gets it.

        A traceback may keep the collections. A later call with the same lazy data would
        find their old values.
        """
        made = [x.collection for x in self.given if x.label in self._ours]
        for future in futures_of(made):
            future.release()

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
        return await rescue(self.client, self._lease.token, made, left)

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


def _find(given: inputs.Given, client: Client) -> _Found:
    """Facts about a collection. Runs in a separate thread."""
    collection = given.collection
    names, futures = graphs.partitions(collection)
    if futures is not None and len(set(names)) < len(names):
        name = remedies.name_of(given.label)
        line = f"{name} = {name}.map_partitions(lambda p: p)"
        raise RefusedError(
            f"{given.label} has the same partition in memory several times, and one "
            "partition has only one worker. Make a partition of each: "
            f"`{remedies.edit([given.label], line)}`"
        )
    if futures is not None:
        return _Found(names, futures, None)
    asynchronous = client.asynchronous  # in the event loop, it is true of any client
    rows = partitions.lengths(collection, asynchronous=asynchronous)
    files = given.sources or partitions.files_of(collection)
    return _Found(names, None, rows, files, *graphs.origin(collection))


def _targets(load: Load, label: str) -> list[str] | None:
    """Addresses of the workers for the partitions of a collection."""
    targets = load.targets.get(label)
    return None if targets is None else [load.workers[i] for i in targets.tolist()]
