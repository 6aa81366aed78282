"""A cluster in memory that implements the cluster port, for tests.

The main loop runs against it as against a live cluster. Tests can inject faults.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from clustertune.collections.contents import of_need
from clustertune.core.model import (
    COPIED,
    Bounds,
    CollectionInfo,
    Contents,
    Cut,
    Drop,
    Goal,
    Int64s,
    Layout,
    Load,
    Move,
    Moves,
    Notify,
    Rechunk,
    Release,
    Resize,
    Restart,
    Result,
    Snapshot,
    Trim,
    View,
    WorkerEnd,
    WorkerSnapshot,
)
from clustertune.errors import NoWorkersError
from clustertune.planner.layouts import held_bytes, part_bytes
from clustertune.planner.memory import refuse_overfull
from tests.builders import indices, worker

Homes = dict[str, list[set[str]]]
"""By label of a collection, for each partition the addresses of its holders."""

FRESH = 200 * 2**20  # bytes of a new process without data, at most
Row = int
"""Number of a row in the whole collection."""


class MemoryCluster:
    """A cluster in memory. Effects are immediate.

    Parameters
    ----------
    start
        The first view: workers, goal and data.
    arrives
        Function of the numbers of partitions and workers. It returns the index of the
        worker that loads each partition. The default is round robin.
    most
        Largest number of workers to which ``scale`` succeeds.
    fault
        Function called with the cluster before a key is loaded, moved or computed. It
        may remove or pause workers.
    values
        By label of a collection the value of each row. Checks read these values.
    """

    def __init__(
        self,
        start: View,
        *,
        arrives: Callable[[int, int], Int64s] = lambda n, w: np.arange(n) % w,
        most: int = 16,
        fault: Callable[[MemoryCluster], None] | None = None,
        values: Mapping[str, npt.NDArray[Any]] | None = None,
    ):
        self.workers = {w.address: w for w in start.now.workers}
        self.layouts = start.layouts
        self.goal: Goal = start.goal
        self.arrives = arrives
        self.most = most
        self.fault = fault
        self.values = values or {}
        self.adaptive = start.now.adaptive
        self.moved = 0  # bytes moved between workers
        self.calls: list[str] = []  # changes of the cluster, in order
        addresses = tuple(self.workers)
        self.homes: Homes = {m.label: _homes(m, addresses) for m in start.collections}
        # by label, for each partition the numbers of its rows
        self.contents = {m.label: _contents(m) for m in start.collections}
        self.recuts = 0
        given = held_bytes(start.layouts, len(self.workers)).tolist()
        self._other_bytes = {  # bytes of keys outside the layouts
            w.address: max(0, w.managed - n)
            for w, n in zip(start.now.workers, given, strict=True)
        }

    # --- faults -----------------------------------------------------------------------

    def kill(self, address: str) -> None:
        """Remove a worker. Another worker recomputes the partitions it alone held."""
        del self.workers[address]
        refuge = self._fallback_worker()
        for places in self.homes.values():
            for holders in places:
                if holders:
                    holders.discard(address)
                    if not holders:
                        holders.add(refuge)

    def pause(self, address: str) -> None:
        self.workers[address] = replace(self.workers[address], status="paused")

    # --- the port ---------------------------------------------------------------------

    async def open(
        self, workers: Sequence[str | int] | None, *, needs: Collection[str]
    ) -> None: ...

    def lease(self, label: str, notify: Notify) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def finish(self, view: View) -> None: ...

    async def look(self, notify: Notify) -> View:
        addresses = list(self.workers)
        training = self.layouts[0] if self.layouts else None
        layouts = tuple(
            _with_collections(x, partial(self._collection, addresses, x is training))
            for x in self.layouts
        )
        held = held_bytes(layouts, len(addresses)).tolist()
        workers = tuple(map(self._worker, self.workers.values(), held))
        now = Snapshot(
            time=0.0, scheduler="memory://", workers=workers, adaptive=self.adaptive
        )
        return View(snapshots=(now,), goal=self.goal, layouts=layouts)

    async def load(self, load: Load, notify: Notify) -> Result:
        self.calls.append("load")
        lazy = [m for m in self._collections if not m.loaded]
        self._refuse_overfull(load, lazy)
        for m in lazy:
            addresses, target = load.workers, load.targets.get(m.label)
            if target is None:
                addresses = tuple(self.workers)
                target = self.arrives(len(m.keys), len(addresses))
            places = self.homes[m.label] = []
            for i in target.tolist():
                self._inject_fault()
                places.append({self._running_or_fallback(addresses[i])})
        self.layouts = tuple(_with_collections(x, _loaded) for x in self.layouts)
        return Result(count=len(load.targets))

    def _refuse_overfull(self, load: Load, lazy: list[CollectionInfo]) -> None:
        if load.free_memory is None or not lazy:
            return
        labels = [m.label for m in lazy]
        taken = np.cumsum(np.concatenate([_loaded(m).nbytes for m in lazy]))
        for there, nbytes in enumerate(taken.tolist(), 1):
            refuse_overfull(labels, load.free_memory, len(taken), there, nbytes)

    async def scale(self, n_workers: int, notify: Notify) -> Result:
        self.calls.append(f"scale {n_workers}")
        if n_workers > self.most:
            raise NoWorkersError(f"asked for {n_workers} workers, {self.most} run")
        free = (w for w in map(worker, count()) if w.address not in self.workers)
        while len(self.workers) < n_workers:
            new = next(free)
            self.workers[new.address] = new
        return Result(nbytes=0, count=len(self.workers))

    async def adapt(self, bounds: Bounds, notify: Notify) -> Result:
        self.calls.append(f"adapt {bounds.minimum} to {bounds.maximum:g}")
        self.adaptive = (bounds.minimum, bounds.maximum)
        return Result(nbytes=0)

    async def rechunk(self, recut: Rechunk, notify: Notify) -> Result:
        self.calls.append(f"recut {len(recut.rows)}")
        before = self.moved
        cuts = {c.label: c for c in recut.cuts}

        def cut(m: CollectionInfo) -> CollectionInfo:
            return self._recut(m, cuts[m.label], recut) if m.label in cuts else m

        self.layouts = tuple(_with_collections(x, cut) for x in self.layouts)
        return Result(nbytes=self.moved - before)

    async def move(self, moves: Moves, notify: Notify) -> Result:
        self.calls.append(f"move {moves.count}")
        before = self.moved
        left = [
            reason
            for one in moves.moves
            for i in range(len(one.keys))
            if (reason := self._move(one, i, moves.workers))
        ]
        return Result(nbytes=self.moved - before, not_done="; ".join(sorted(set(left))))

    async def restart(self, args: WorkerEnd, notify: Notify) -> Result:
        self.calls.append(f"restart {args.id}")
        if args.address not in self.workers:
            return Result(nbytes=0, not_done="it is gone")
        before, old = self.moved, self.workers[args.address]
        self.workers[old.address] = replace(old, status="closing_gracefully")
        away = self._drain(args)
        if self.workers.pop(old.address, None) is None:
            return Result(nbytes=self.moved - before, not_done="it is gone")
        if isinstance(args, Restart):
            new = f"{old.address}'"
            fresh = replace(old, address=new, process=old.managed + _fresh(old))
            if isinstance(args, Resize):
                fresh = args.size.given_to(fresh)
            self.workers[new] = fresh
            self._other_bytes[new] = self._other_bytes.pop(old.address, 0)
            self._return_keys(away, old.address, new)
        elif any({old.address} == h for places in self.homes.values() for h in places):
            self.workers[old.address] = old
            return Result(nbytes=self.moved - before, not_done="no other worker runs")
        return Result(nbytes=self.moved - before, details="lost 0", count=1, lost=0)

    async def trim(self, trim: Trim, notify: Notify) -> Result:
        self.calls.append(f"trim {len(trim.workers)}")
        return Result(nbytes=0)

    async def release(self, release: Release, notify: Notify) -> Result:
        self.calls.append(f"release {release.prefix}")
        self._other_bytes = dict.fromkeys(self._other_bytes, 0)
        return Result(nbytes=0)

    async def drop(self, drop: Drop, notify: Notify) -> Result:
        self.calls.append(f"drop {len(drop.workers)}")
        self.layouts, self.homes, self.contents = (), {}, {}
        old, self.workers = self.workers, {}
        for address, w in old.items():
            new = f"{address}'"
            self.workers[new] = replace(w, address=new, process=_fresh(w))
        self._other_bytes = {}
        return Result(nbytes=0)

    # --- inside -----------------------------------------------------------------------

    @property
    def _collections(self) -> Iterator[CollectionInfo]:
        return (m for x in self.layouts for m in x.collections)

    def _inject_fault(self) -> None:
        if self.fault is not None:
            self.fault(self)

    def _fallback_worker(self) -> str:
        """Return the worker on which Dask would recompute a lost key."""
        running = (a for a, w in self.workers.items() if w.running)
        return next(running, next(iter(self.workers)))

    def _running_or_fallback(self, address: str) -> str:
        return address if self._runs(address) else self._fallback_worker()

    def _homes_on(self, addresses: Sequence[str], targets: Int64s) -> list[set[str]]:
        """Return the holder of each partition by its target's index."""
        wanted = [addresses[i] for i in targets.tolist()]
        return [{self._running_or_fallback(a)} for a in wanted]

    def _drain(self, args: WorkerEnd) -> list[tuple[CollectionInfo, int]]:
        """Move partitions that only this worker holds to another worker.

        Without another worker they stay with the worker's nanny.
        """
        others = [a for a, w in self.workers.items() if w.id in args.process_limits]
        away = []
        for m in [m for m in self._collections if m.loaded]:
            for i, holders in enumerate(self.homes[m.label]):
                if holders == {args.address}:
                    self._inject_fault()
                running = (a for a in others if self._runs(a))
                if holders == {args.address}:  # still true after the fault
                    away.append((m, i))
                    self.homes[m.label][i] = {next(running, args.address)}
                    self._add_moved(m, i)
                holders.discard(args.address)
        return away

    def _return_keys(
        self, away: list[tuple[CollectionInfo, int]], old: str, new: str
    ) -> None:
        for places in self.homes.values():
            for holders in places:
                if old in holders:  # the nanny returns the partition
                    holders.remove(old)
                    holders.add(new)
        for m, i in away:
            self._inject_fault()
            if new in self.workers and self.homes[m.label][i] != {new}:
                self.homes[m.label][i] = {new}
                self._add_moved(m, i)

    def _runs(self, address: str) -> bool:
        return address in self.workers and self.workers[address].running

    def _add_moved(self, m: CollectionInfo, i: int) -> None:
        assert m.nbytes is not None
        self.moved += int(m.nbytes[i])

    def _move(self, move: Move, i: int, addresses: Sequence[str]) -> str:
        """Copy, confirm and drop one key; return the reason if that fails."""
        self._inject_fault()
        target = addresses[int(move.targets[i])]
        if not self._runs(target):
            return f"{target} is gone or paused"
        found = next(m for m in self._collections if m.label == move.label)
        position = found.keys.index(move.keys[i])
        holders = self.homes[move.label][position]
        if target not in holders and found.nbytes is not None:
            self.moved += int(found.nbytes[position])
        self.homes[move.label][position] = {target}
        return ""

    def _recut(self, m: CollectionInfo, cut: Cut, recut: Rechunk) -> CollectionInfo:
        """Build the new partitions; partitions of a lost target go to the fallback.

        Every row range is followed, so a wrong range shows in ``contents``.
        """
        assert m.rows is not None
        assert m.nbytes is not None
        old, blocks = self.contents[m.label], m.column_blocks
        new: list[list[Row]] = [[] for _ in recut.rows]
        nbytes = np.zeros(len(recut.rows), dtype=np.int64)
        for _ in recut.rows:
            self._inject_fault()
        homes = self._homes_on(recut.workers, recut.targets)
        columns = (cut.new, cut.key, cut.start, cut.stop)
        for partition, key, start, stop in zip(
            *(c.tolist() for c in columns), strict=True
        ):
            if key % blocks == 0:
                new[partition] += old[key // blocks][start:stop]
            (part,) = part_bytes(m, np.array([key]), np.array([stop - start])).tolist()
            nbytes[partition] += part
            if self.homes[m.label][key].isdisjoint(homes[partition]):
                self.moved += part
        self.contents[m.label] = new
        self.homes[m.label] = homes
        self.recuts += 1
        name = f"{COPIED}-" * (recut.copies > 1) + f"{m.label}-{self.recuts}"
        return replace(
            m,
            keys=tuple((name, i) for i in range(len(new))),
            rows=np.array([len(rows) for rows in new], dtype=np.int64),
            nbytes=nbytes,
            column_blocks=1,
            made_here=True,
            contents=None,
        )

    def _collection(
        self, addresses: Sequence[str], training: bool, m: CollectionInfo
    ) -> CollectionInfo:
        if not m.loaded:
            return m
        look = of_need(m, self.goal, len(addresses), training=training)
        if look is not None and m.label in self.values:
            values = self.values[m.label]
            found = tuple(look(values[rows]) for rows in self.contents[m.label])
            m = replace(m, contents=Contents(partitions=found))
        index = {a: i for i, a in enumerate(addresses)}
        homes = [[index[a] for a in sorted(held)] for held in self.homes[m.label]]
        return replace(m, holders=indices(homes))

    def _worker(self, w: WorkerSnapshot, held: int) -> WorkerSnapshot:
        """Return the worker with the memory of the keys that it holds at present."""
        managed = held + self._other_bytes.get(w.address, 0)
        process = w.unmanaged + managed
        return replace(w, managed=managed, counted=managed, process=process)


def _fresh(old: WorkerSnapshot) -> int:
    """Bytes of a worker's next process without data; small workers stay small."""
    return min(FRESH, old.unmanaged)


def _with_collections(
    layout: Layout, change: Callable[[CollectionInfo], CollectionInfo]
) -> Layout:
    """Return the layout with each collection changed by a function."""
    return replace(layout, collections=tuple(map(change, layout.collections)))


def _contents(m: CollectionInfo) -> list[list[Row]]:
    """Return the row numbers of each partition; empty if rows are unknown."""
    if m.rows is None:
        return [[] for _ in range(m.n_partitions)]
    ends = np.cumsum(m.rows).tolist()
    return [
        list(range(end - n, end)) for end, n in zip(ends, m.rows.tolist(), strict=True)
    ]


def _homes(m: CollectionInfo, addresses: Sequence[str]) -> list[set[str]]:
    found: list[set[str]] = [set() for _ in m.keys]
    if m.holders is not None:
        for partition, holder in zip(*(x.tolist() for x in m.holders), strict=True):
            found[partition].add(addresses[holder])
    return found


def _loaded(m: CollectionInfo) -> CollectionInfo:
    """Return the collection as loaded: its rows and bytes are known."""
    if m.loaded:
        return m
    rows = np.zeros(len(m.keys), dtype=np.int64) if m.rows is None else m.rows
    width = 8 if m.total_bytes is None else m.total_bytes // max(1, rows.sum())
    nbytes = np.repeat(rows * width, m.column_blocks) // m.column_blocks
    return replace(m, loaded=True, rows=rows, nbytes=nbytes, made_here=True)
