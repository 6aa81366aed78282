"""Chooses where the keys of a worker go before it restarts."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import Any

from distributed.core import Status

from clustertune.remote.keys import Places, in_turns
from clustertune.remote.scheduler.nanny import Parking, set_status
from clustertune.remote.scheduler.state import COMING, free_bytes, is_gone


class Refused(Exception):  # noqa: N818
    """Why a worker is not restarted; its state is unchanged."""


class NoRoom(Refused):
    """The other workers have no room for the keys of a worker."""


class HeldKeys:
    """The keys that a worker held before its restart, and which of them were lost."""

    def __init__(self, scheduler: Any, address: str):
        self.scheduler = scheduler
        self.away: dict[Any, str] = {}  # keys without another copy, and where they are
        self.copied: set[Any] = set()  # keys that other workers hold as well
        self.targets: set[str] = set()  # workers that were given any of ``away``
        self.own = {address}  # current addresses of the worker and its parking worker
        self.former = {address}  # all addresses that these two have had
        self.ended: set[str] = set()  # other workers that ended with such keys
        self.ended_with_it = 0  # keys that only its own processes had
        self.removals: list[tuple[str, set[Any], set[Any]]] = []  # of other workers
        self.lost_with_others = 0  # keys that it never held

    def __len__(self) -> int:
        return len(self.away) + len(self.copied)

    def __contains__(self, key: object) -> bool:
        # its own copy of a copied key was dropped as well
        return key in self.away or key in self.copied

    def note_away(self, away: Mapping[Any, str]) -> None:
        self.away |= away
        self.targets |= set(away.values())

    def nbytes(self) -> int:
        """Bytes of the keys that are still in memory."""
        held = (self.scheduler.tasks.get(key) for key in (*self.away, *self.copied))
        return sum(ts.nbytes for ts in held if ts is not None and ts.who_has)

    def worker_removed(
        self, address: str, computed: set[Any], scattered: set[Any]
    ) -> tuple[set[Any], set[Any]]:
        """Note the held keys that were lost with a worker; return the other keys."""
        if address in self.own:
            self.own.discard(address)  # another worker may get the same address
            self.ended_with_it += len(computed) + len(scattered)
            return set(), set()
        ours = {k for k in computed if k in self}, {k for k in scattered if k in self}
        if any(ours):
            self.removals.append((address, *ours))
        return computed - ours[0], scattered - ours[1]

    def note_others(self, address: str, keys: Iterable[Any]) -> None:
        """Count keys of no restart that were lost with a worker.

        By now the scheduler has decided which of them it computes again.
        """
        if gone := sum(is_gone(self.scheduler, key) for key in keys):
            self.lost_with_others += gone
            self.ended.add(address)

    def count_lost(self) -> int:
        """Count the held keys that no worker has any more.

        Keys that ended with the worker or its parking worker count in any case. Keys
        that ended with another worker count unless they are computed again.
        """
        lost = self.ended_with_it
        for address, computed, scattered in self.removals:
            gone = sum(is_gone(self.scheduler, key) for key in computed)
            if gone or scattered:
                lost += gone + len(scattered)
                self.ended.add(address)
        return lost

    def count_recomputed(self) -> int:
        """Count the held keys that are computed again."""
        tasks, held = self.scheduler.tasks, (*self.away, *self.copied)
        return sum(key in tasks and tasks[key].state in COMING for key in held)


class Evacuation:
    """Chooses a place for each key of a worker; arguments as of ``WorkerRestart``.

    Once the parking worker is open, it gets all keys without another copy.
    """

    def __init__(
        self,
        scheduler: Any,
        address: str,
        partitions: Places,
        ceilings: Mapping[str, int],
        parking: Parking,
        held: HeldKeys,
    ):
        self.scheduler = scheduler
        self.address = address
        self.partitions = partitions
        self.ceilings = ceilings
        self.parking = parking
        self.held = held

    async def assign(self, worker: Any) -> list[tuple[Any, str]]:
        """A target for each key: groups together, largest first, where most fits."""
        groups: dict[Any, list[Any]] = {}
        wanted, copied = [], set()
        async for ts in in_turns(list(worker.has_what)):
            copy = self.copy(ts)
            if copy is not None:
                wanted.append((ts.key, copy.address))
                if ts.key not in self.held.away:  # that copy is of an earlier round
                    copied.add(ts.key)
                continue
            place = self.partitions.get(ts.key)
            name = (ts.key,) if place is None else place
            groups.setdefault(name, []).append(ts)
        room = self._room(worker)
        # fullest last; workers without bounds take turns
        order = [(-free, i, address) for i, (address, free) in enumerate(room.items())]
        heapq.heapify(order)
        sizes = {name: sum(ts.nbytes for ts in some) for name, some in groups.items()}
        away: dict[Any, str] = {}
        async for name in in_turns(sorted(groups, key=lambda n: -sizes[n])):
            target = order[0][2] if order else None
            if target is None or room[target] < sizes[name]:
                raise _no_room(sizes, room)
            away |= {ts.key: target for ts in groups[name]}
            room[target] -= sizes[name]
            turn = order[0][1] + len(room)
            heapq.heapreplace(order, (-room[target], turn, target))
        self.held.copied |= copied
        self.held.note_away(away)
        return [*wanted, *away.items()]

    def copy(self, ts: Any) -> Any:
        """Another worker that has a key and may keep it, or None."""
        running = self.scheduler.running
        for ws in ts.who_has or ():
            other = ws.address in self.ceilings and ws.address != self.address
            if ws is self.parking.worker or (other and ws in running):
                return ws
        return None

    def _room(self, worker: Any) -> dict[str, float]:
        """Bytes that each of the other workers can take."""
        parked = self.parking.worker
        if parked is not None:
            return {parked.address: float("inf")} if self.parking.is_open() else {}
        others = {ws.address: ws for ws in self.scheduler.running if ws is not worker}
        return {
            address: free_bytes(others[address], most)
            for address, most in self.ceilings.items()
            if address in others
        }

    async def park(self, worker: Any, seconds: float) -> str:
        """Open a parking worker and link spilled keys there; return a problem."""
        files = await self.spilled_files(worker)
        on_disk = {key for key, *_ in files}
        nbytes = 0
        async for ts in in_turns(list(worker.has_what)):
            if ts.key not in on_disk and self.copy(ts) is None:
                nbytes += ts.nbytes
        why = await self.parking.open(worker.nanny, nbytes, seconds)
        if why:
            return why
        parked = self.parking.worker
        self.held.own.add(parked.address)
        self.held.former.add(parked.address)
        set_status(self.scheduler, parked, Status.closing_gracefully)
        taken = await self.parking.adopt(parked, files)
        self.held.note_away(dict.fromkeys(taken, parked.address))
        return ""

    async def spilled_files(self, worker: Any) -> list[Any]:
        """Files of a worker's spilled keys that have no other copy."""
        tasks = self.scheduler.tasks
        return [
            file
            for file in await self.parking.spilled_files(worker)
            if (ts := tasks.get(file[0])) is not None
            and ts in worker.has_what
            and (worker is self.parking.worker or self.copy(ts) is None)
        ]


def _no_room(sizes: Mapping[Any, int], room: Mapping[str, float]) -> NoRoom:
    free = sum(max(0.0, n) for n in room.values())
    return NoRoom(
        f"the others have no room for its keys: {sum(sizes.values()):,} bytes, "
        f"{free:,.0f} bytes free below their thresholds"
    )
