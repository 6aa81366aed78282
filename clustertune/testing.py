"""What tests of clustertune, and of code that uses it, are written with. Public.

Builders make what checks and planner see. :class:`MemoryCluster` is the in-memory port:
the main loop runs against it as against a live cluster, and faults can be put in
between. :func:`verify` tells whether nothing was lost on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from clustertune.builders import details as details
from clustertune.builders import layout as layout
from clustertune.builders import member as member
from clustertune.builders import prefix as prefix
from clustertune.builders import runs as runs
from clustertune.builders import snapshot as snapshot
from clustertune.builders import survey as survey
from clustertune.builders import view as view
from clustertune.builders import worker as worker
from clustertune.collections.contents import of_need
from clustertune.collections.reordering import NEW, OLD
from clustertune.core.model import (
    COPIED,
    ORDER,
    Bounds,
    Contents,
    Cut,
    Drop,
    Flow,
    Goal,
    Int64s,
    Layout,
    Load,
    Member,
    Move,
    Moves,
    Notify,
    Recut,
    Release,
    Reorder,
    Restart,
    Result,
    Snapshot,
    Trim,
    View,
    WorkerSnapshot,
)
from clustertune.errors import ScaleError
from clustertune.planner.layouts import held_bytes, part_bytes
from clustertune.planner.memory import refuse_overfull
from clustertune.planner.verification import problems

Homes = dict[str, list[set[str]]]
"""By label of member, for every piece the addresses of its holders."""

FRESH = 200 * 2**20  # bytes of a worker's process that holds nothing
Row = int
"""A row by its number in the whole collection."""


def verify(before: View, after: View) -> None:
    """Assert that nothing was lost, mispaired, separated, overfilled or left changed.

    Raises
    ------
    AssertionError
        With everything that is wrong.
    """
    wrong = problems(before, after)
    if wrong:
        raise AssertionError("; ".join(wrong))


class MemoryCluster:
    """A cluster in memory: effects are instant, unless a fault is put in between.

    Parameters
    ----------
    start
        Workers, goal and data to begin with. Members that are not loaded come to lie
        as ``arrives`` says once they are persisted.
    arrives
        From the number of pieces and workers, the index of the worker on which each
        piece is loaded; round robin by default.
    most
        How many workers it can be scaled to.
    fault
        Called with the cluster before each key is loaded, moved or made; may remove or
        pause workers.
    overhead
        Seconds that a task takes beside its work; None: it cannot be told.
    values
        By label of member the value of each row, for what a workload must know of them;
        nothing is known of other members.

    Attributes
    ----------
    moved : int
        Bytes that travelled so far.
    calls : list of str
        What was done to it, in order.
    contents : dict
        By label of member, for every piece the numbers of its rows.
    aside : dict
        By label of member the rows that were set aside.
    """

    def __init__(
        self,
        start: View,
        *,
        arrives: Callable[[int, int], Int64s] = lambda n, w: np.arange(n) % w,
        most: int = 16,
        fault: Callable[[MemoryCluster], None] | None = None,
        overhead: float | None = None,
        values: Mapping[str, npt.NDArray[Any]] | None = None,
    ):
        self.workers = {w.address: w for w in start.now.workers}
        self.layouts = start.layouts
        self.goal: Goal = start.goal
        self.arrives = arrives
        self.most = most
        self.fault = fault
        self.task_overhead = overhead
        self.values = values or {}
        self.adaptive = start.now.adaptive
        self.moved = 0
        self.calls: list[str] = []
        self.homes: Homes = {
            m.label: _homes(m, tuple(self.workers))
            for x in start.layouts
            for m in x.members
        }
        self.contents = {
            m.label: _contents(m) for x in start.layouts for m in x.members
        }
        self.aside: dict[str, list[Row]] = {}
        self.recuts = 0
        given = held_bytes(start.layouts, len(self.workers)).tolist()
        self._foreign = {  # bytes of Dask's other keys
            w.address: max(0, w.managed - n)
            for w, n in zip(start.now.workers, given, strict=True)
        }

    # --- faults -----------------------------------------------------------------------

    def kill(self, address: str) -> None:
        """The worker is gone; pieces that only it held are computed elsewhere again."""
        del self.workers[address]
        refuge = self._refuge()
        for places in self.homes.values():
            for holders in places:
                if holders:
                    holders.discard(address)
                    if not holders:
                        holders.add(refuge)

    def pause(self, address: str) -> None:
        self.workers[address] = replace(self.workers[address], status="paused")

    # --- the port ---------------------------------------------------------------------

    async def look(self, notify: Notify) -> View:
        addresses = list(self.workers)
        layouts = tuple(
            replace(
                x,
                members=tuple(
                    self._member(m, addresses, training=x is self.layouts[0])
                    for m in x.members
                ),
            )
            for x in self.layouts
        )
        workers = tuple(self._worker(w, layouts) for w in self.workers.values())
        now = Snapshot(
            time=0.0, scheduler="memory://", workers=workers, adaptive=self.adaptive
        )
        return View(snapshots=(now,), goal=self.goal, layouts=layouts)

    async def overhead(self, view: View) -> float | None:
        return self.task_overhead

    async def speeds(self, view: View, flows: Sequence[Flow]) -> View:
        return view

    async def persist(self, load: Load, notify: Notify) -> Result:
        self.calls.append("persist")
        self._refuse_overfull(load)
        addresses = list(self.workers)
        for x in self.layouts:
            for m in x.members:
                if m.loaded:
                    continue
                target = load.targets.get(m.label)
                if target is None:
                    target = self.arrives(len(m.keys), len(addresses))
                    wanted = [addresses[i] for i in target.tolist()]
                else:
                    wanted = [load.workers[i] for i in target.tolist()]
                places = self.homes[m.label] = []
                for address in wanted:
                    self._strike()
                    places.append({self._there(address)})
        self.layouts = tuple(
            replace(x, members=tuple(_loaded(m) for m in x.members))
            for x in self.layouts
        )
        return Result(count=len(load.targets))

    def _refuse_overfull(self, load: Load) -> None:
        lazy = [m for x in self.layouts for m in x.members if not m.loaded]
        if load.room is None or not lazy:
            return
        labels = [m.label for m in lazy]
        taken = np.cumsum(np.concatenate([_loaded(m).nbytes for m in lazy]))
        for there, nbytes in enumerate(taken.tolist(), 1):
            refuse_overfull(labels, load.room, len(taken), there, nbytes)

    async def scale(self, n_workers: int, notify: Notify) -> Result:
        self.calls.append(f"scale {n_workers}")
        if n_workers > self.most:
            raise ScaleError(f"asked for {n_workers} workers, {self.most} run")
        free = (w for w in map(worker, count()) if w.address not in self.workers)
        while len(self.workers) < n_workers:
            new = next(free)
            self.workers[new.address] = new
        return Result(nbytes=0, count=len(self.workers))

    async def adapt(self, bounds: Bounds, notify: Notify) -> Result:
        self.calls.append(f"adapt {bounds.least} to {bounds.most:g}")
        self.adaptive = (bounds.least, bounds.most)
        return Result(nbytes=0)

    async def recut(self, recut: Recut, notify: Notify) -> Result:
        self.calls.append(f"recut {len(recut.rows)}")
        before = self.moved
        cuts = {c.label: c for c in recut.cuts}
        self.layouts = tuple(
            replace(
                x,
                members=tuple(
                    self._recut(m, cuts[m.label], recut) if m.label in cuts else m
                    for m in x.members
                ),
            )
            for x in self.layouts
        )
        return Result(nbytes=self.moved - before)

    async def reorder(self, reorder: Reorder, notify: Notify) -> Result:
        self.calls.append(f"reorder {len(reorder.rows)}")
        for _ in reorder.rows:
            self._strike()
        before = self.moved
        wanted = [reorder.workers[i] for i in reorder.targets.tolist()]
        homes = [{self._there(a)} for a in wanted]
        number = next(
            i for i, x in enumerate(self.layouts) if x.label == reorder.layout
        )
        sources = {s.label for s in reorder.sources}
        orders = self._orders(reorder)
        members = [m for m in self.layouts[number].members if m.label in sources]
        if not number and ORDER not in sources:
            members.append(self._numbered(members[0]))
        changed = replace(
            self.layouts[number],
            members=tuple(self._reordered(m, reorder, orders, homes) for m in members),
        )
        self.layouts = (*self.layouts[:number], changed, *self.layouts[number + 1 :])
        if not reorder.by and not number:
            self.goal = replace(self.goal, order="")
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
        return Result(nbytes=self.moved - before, undone="; ".join(sorted(set(left))))

    async def restart(self, restart: Restart, notify: Notify) -> Result:
        self.calls.append(f"restart {restart.id}")
        tried = self.goal.restarted | {restart.id}
        self.goal = replace(self.goal, restarted=tried)
        if restart.address not in self.workers:
            return Result(nbytes=0, undone="it is gone")
        before, old = self.moved, self.workers[restart.address]
        self.workers[old.address] = replace(old, status="closing_gracefully")
        away = self._emptied(restart)
        if self.workers.pop(old.address, None) is None:
            return Result(nbytes=self.moved - before, undone="it is gone")
        if not restart.retire:
            new = f"{old.address}'"
            self.workers[new] = replace(old, address=new, process=old.managed + FRESH)
            self._foreign[new] = self._foreign.pop(old.address, 0)
            self._bring_home(away, old.address, new)
        elif any({old.address} == h for places in self.homes.values() for h in places):
            self.workers[old.address] = old
            return Result(nbytes=self.moved - before, undone="no other worker runs")
        return Result(nbytes=self.moved - before, said="lost 0", count=1, lost=0)

    async def trim(self, trim: Trim, notify: Notify) -> Result:
        self.calls.append(f"trim {len(trim.workers)}")
        trimmed = self.goal.trimmed | set(trim.workers.values())
        self.goal = replace(self.goal, trimmed=trimmed)
        return Result(nbytes=0)

    async def release(self, release: Release, notify: Notify) -> Result:
        """Bytes of other keys are all that is known of them here."""
        self.calls.append(f"release {release.prefix}")
        self._foreign = dict.fromkeys(self._foreign, 0)
        return Result(nbytes=0)

    async def drop(self, drop: Drop, notify: Notify) -> Result:
        self.calls.append(f"drop {len(drop.workers)}")
        self.layouts, self.homes, self.contents = (), {}, {}
        new = [
            replace(w, address=f"{a}'", process=FRESH) for a, w in self.workers.items()
        ]
        self.workers = {w.address: w for w in new}
        self._foreign = {}
        return Result(nbytes=0)

    # --- inside -----------------------------------------------------------------------

    def _strike(self) -> None:
        if self.fault is not None:
            self.fault(self)

    def _refuge(self) -> str:
        """Where Dask would compute something again."""
        running = (a for a, w in self.workers.items() if w.running)
        return next(running, next(iter(self.workers)))

    def _there(self, address: str) -> str:
        """That worker, if it runs; else where it would be made instead."""
        return address if self._runs(address) else self._refuge()

    def _emptied(self, restart: Restart) -> list[tuple[Member, int]]:
        """What the worker alone held: it goes to another, or stays with its nanny."""
        others = [a for a, w in self.workers.items() if w.id in restart.ceilings]
        away = []
        for m in (m for x in self.layouts for m in x.members if m.loaded):
            for i, holders in enumerate(self.homes[m.label]):
                if holders == {restart.address}:
                    self._strike()
                running = (a for a in others if self._runs(a))
                if holders == {restart.address}:  # and it was not killed meanwhile
                    away.append((m, i))
                    self.homes[m.label][i] = {next(running, restart.address)}
                    self._count(m, i)
                holders.discard(restart.address)
        return away

    def _bring_home(self, away: list[tuple[Member, int]], old: str, new: str) -> None:
        for places in self.homes.values():
            for holders in places:
                if old in holders:  # its nanny has it, and gives it back
                    holders.remove(old)
                    holders.add(new)
        for m, i in away:
            self._strike()
            if new in self.workers and self.homes[m.label][i] != {new}:
                self.homes[m.label][i] = {new}
                self._count(m, i)

    def _runs(self, address: str) -> bool:
        return address in self.workers and self.workers[address].running

    def _count(self, m: Member, i: int) -> None:
        assert m.nbytes is not None
        self.moved += int(m.nbytes[i])

    def _move(self, move: Move, i: int, addresses: Sequence[str]) -> str:
        """Copy, confirm, drop, for one key; why not, if not."""
        self._strike()
        target = addresses[int(move.targets[i])]
        if not self._runs(target):
            return f"{target} is gone or paused"
        found = next(
            m for x in self.layouts for m in x.members if m.label == move.label
        )
        position = found.keys.index(move.keys[i])
        holders = self.homes[move.label][position]
        if target not in holders and found.nbytes is not None:
            self.moved += int(found.nbytes[position])
        self.homes[move.label][position] = {target}
        return ""

    def _recut(self, m: Member, cut: Cut, recut: Recut) -> Member:
        """The member of its new pieces; a lost target's are made on the first worker.

        Follows every part, so that a wrong one shows in ``contents``.
        """
        assert m.rows is not None
        assert m.nbytes is not None
        old, blocks = self.contents[m.label], m.column_blocks
        new: list[list[Row]] = [[] for _ in recut.rows]
        nbytes = np.zeros(len(recut.rows), dtype=np.int64)
        for _ in recut.rows:
            self._strike()
        wanted = [recut.workers[i] for i in recut.targets.tolist()]
        homes = [{self._there(a)} for a in wanted]
        columns = (cut.new, cut.key, cut.start, cut.stop)
        for piece, key, start, stop in zip(*(c.tolist() for c in columns), strict=True):
            if key % blocks == 0:
                new[piece] += old[key // blocks][start:stop]
            (part,) = part_bytes(m, np.array([key]), np.array([stop - start])).tolist()
            nbytes[piece] += part
            if self.homes[m.label][key].isdisjoint(homes[piece]):
                self.moved += part
        if recut.aside:
            self.aside[m.label] = new.pop() + self.aside.get(m.label, [])
            homes, nbytes = homes[:-1], nbytes[:-1]
        self.contents[m.label] = new
        self.homes[m.label] = homes
        self.recuts += 1
        name = f"{COPIED}-" * (recut.copies > 1) + f"{m.label}-{self.recuts}"
        return replace(
            _converted(m),
            keys=tuple((name, i) for i in range(len(new))),
            rows=np.array([len(rows) for rows in new], dtype=np.int64),
            nbytes=nbytes,
            column_blocks=1,
            ours=True,
            aside=m.aside + recut.aside,
            contents=None,
        )

    def _orders(self, reorder: Reorder) -> tuple[list[Int64s], list[Int64s]]:
        """Of the rows of each old piece, and of each new one once it has them."""
        if reorder.whole is not None:
            return [], []
        if not reorder.by:
            both = ((OLD, reorder.old.tolist()), (NEW, reorder.rows.tolist()))
            drawn = [
                [
                    np.random.default_rng([reorder.seed, k, i]).permutation(n)
                    for i, n in enumerate(sizes)
                ]
                for k, sizes in both
            ]
            return drawn[0], drawn[1]
        values = self.values[reorder.by]
        pieces = [values[rows] for rows in self.contents[reorder.by]]
        first = [np.argsort(x, kind="stable") for x in pieces]
        taken = _taken(reorder, [x[o] for x, o in zip(pieces, first, strict=True)])
        second = [np.argsort(np.concatenate(x), kind="stable") for x in taken]
        return first, second

    def _numbered(self, m: Member) -> Member:
        """The numbers of rows, as a member that is not there yet."""
        self.contents[ORDER] = self.contents[m.label]
        self.homes[ORDER] = self.homes[m.label]
        assert m.rows is not None
        return replace(
            m, label=ORDER, kind="array", columns=1, nbytes=8 * m.rows, types={}
        )

    def _reordered(
        self,
        m: Member,
        reorder: Reorder,
        orders: tuple[list[Int64s], list[Int64s]],
        homes: list[set[str]],
    ) -> Member:
        """The member in its new order; follows every part, as a cut does."""
        assert m.nbytes is not None
        old = [np.array(rows, dtype=np.int64) for rows in self.contents[m.label]]
        if reorder.whole is not None:
            new = [old[i] for i in reorder.whole.tolist()]
        else:
            first, second = orders
            taken = _taken(reorder, [x[o] for x, o in zip(old, first, strict=True)])
            joined = map(np.concatenate, taken)
            new = [rows[o] for rows, o in zip(joined, second, strict=True)]
            size = int(m.nbytes.sum()) // max(1, sum(map(len, old)))
            for parts, home in zip(taken, homes, strict=True):
                held = zip(parts, self.homes[m.label], strict=True)
                away = sum(len(x) for x, places in held if places.isdisjoint(home))
                self.moved += size * away
        width = int(m.nbytes.sum()) // max(1, sum(map(len, new)))
        rows = np.array([len(x) for x in new], dtype=np.int64)
        self.contents[m.label] = [x.tolist() for x in new]
        self.homes[m.label] = [set(h) for h in homes]
        self.recuts += 1
        return replace(
            m,
            keys=tuple((f"{m.label}-{self.recuts}", i) for i in range(len(new))),
            rows=rows,
            nbytes=rows * width,
            ours=True,
            contents=None,
        )

    def _member(self, m: Member, addresses: Sequence[str], *, training: bool) -> Member:
        if not m.loaded:
            return m
        look = of_need(m, self.goal, len(addresses), training=training)
        if look is not None and m.label in self.values:
            values = self.values[m.label]
            pieces = tuple(look(values[rows]) for rows in self.contents[m.label])
            m = replace(m, contents=Contents(pieces=pieces))
        index = {a: i for i, a in enumerate(addresses)}
        pairs = [
            (piece, index[a])
            for piece, holders in enumerate(self.homes[m.label])
            for a in sorted(holders)
        ]
        columns = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        return replace(m, holders=(columns[0], columns[1]))

    def _worker(self, w: WorkerSnapshot, layouts: Iterable[Layout]) -> WorkerSnapshot:
        """Its memory with what it holds now in place of what it held at the start."""
        held = sum(
            int(m.nbytes[i])
            for x in layouts
            for m in x.members
            if m.loaded and m.nbytes is not None
            for i, holders in enumerate(self.homes[m.label])
            if w.address in holders
        )
        managed = held + self._foreign.get(w.address, 0)
        process = w.unmanaged + managed
        return replace(w, managed=managed, counted=managed, process=process)


def _taken(reorder: Reorder, pieces: Sequence[Int64s]) -> list[list[Int64s]]:
    """For each new piece what it gets of every old one."""
    return [
        [x[a:b] for x, (a, b) in zip(pieces, reorder.starts[:, j : j + 2], strict=True)]
        for j in range(len(reorder.rows))
    ]


def _contents(m: Member) -> list[list[Row]]:
    """The numbers of the rows in every piece; of rows that are unknown, none."""
    if m.rows is None:
        return [[] for _ in range(m.n_pieces)]
    ends = np.cumsum(m.rows).tolist()
    return [
        list(range(end - n, end)) for end, n in zip(ends, m.rows.tolist(), strict=True)
    ]


def _homes(m: Member, addresses: Sequence[str]) -> list[set[str]]:
    found: list[set[str]] = [set() for _ in m.keys]
    if m.holders is not None:
        for piece, holder in zip(*(x.tolist() for x in m.holders), strict=True):
            found[piece].add(addresses[holder])
    return found


def _loaded(m: Member) -> Member:
    """Loading tells the bytes of an unloaded member that knew its rows."""
    if m.loaded:
        return m
    rows = np.zeros(len(m.keys), dtype=np.int64) if m.rows is None else m.rows
    width = 8 if m.total_bytes is None else m.total_bytes // max(1, rows.sum())
    nbytes = np.repeat(rows * width, m.column_blocks) // m.column_blocks
    return _converted(replace(m, loaded=True, rows=rows, nbytes=nbytes, ours=True))


def _converted(m: Member) -> Member:
    """The member, which has become what was asked for."""
    if m.conversion is None:
        return m
    return replace(m, kind=m.conversion.kind, conversion=None)
