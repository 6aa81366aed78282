"""Choose targets for the keys of a worker before it restarts.

Some keys cannot be sent. Such a key that no client and no task needs is dropped. So is
a key that only failed tasks used: LightGBM leaves open sockets when a fit fails. A
value that cannot be read, but computed, is computed again. The others stay where they
are, and are named.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Iterable, Mapping
from time import time
from typing import Any

from distributed.core import Status

from clustertune.core.rules import is_parked_first, restart_refusal
from clustertune.core.wording import printable
from clustertune.remote.keys import Places, in_turns
from clustertune.remote.scheduler.nanny import Parking, Refused, set_status
from clustertune.remote.scheduler.release import release_for
from clustertune.remote.scheduler.state import (
    COMING,
    free_bytes,
    is_coming,
    is_computable,
    is_late,
    is_lost,
)

MOVING_AWAY = "moving away its keys"


class NotEnoughMemory(Refused):
    """The other workers have too little memory for the keys of a worker."""


class HeldKeys:
    """The keys that a worker held before its restart, and which of them were lost."""

    def __init__(self, scheduler: Any, address: str):
        self.scheduler = scheduler
        self.away: dict[Any, str] = {}  # targets of keys without another replica
        self.copied: set[Any] = set()  # keys with replicas on other workers
        self.targets: set[str] = set()  # workers that received keys of ``away``
        self.own = {address}  # current addresses of the worker and its parking worker
        self.former = {address}  # all addresses of these two so far
        self.ended: set[str] = set()  # other workers that ended and lost such keys
        #: addresses of workers, and the computed and the scattered keys that each lost
        self.removals: list[tuple[str, set[Any], set[Any]]] = []
        self.cleared = False  # a client has restarted the cluster: losses are unknown

    def __len__(self) -> int:
        return len(self.away) + len(self.copied)

    def __contains__(self, key: object) -> bool:
        return key in self.away or key in self.copied

    def note_away(self, away: Mapping[Any, str]) -> None:
        self.away |= away
        self.copied.difference_update(away)  # their replicas have disappeared
        self.targets |= set(away.values())

    def holders(self, key: Any) -> set[str]:
        """Return the addresses of the workers that hold a key; empty if released."""
        ts = self.scheduler.tasks.get(key)
        in_memory = ts is not None and ts.state == "memory"
        return {ws.address for ws in ts.who_has} if in_memory else set()

    async def to_return(self, address: str) -> tuple[list[Any], list[Any]]:
        """Return keys, with this target, that move there, and that are copied there.

        Workers that were asked to hold a key drop it, if no others have it.
        """
        moved, copied = list[Any](), list[Any]()
        async for key in in_turns([*self.away, *self.copied]):
            holders = self.holders(key)
            if not holders:
                continue
            ours = key in self.away and holders <= self.targets | {address}
            # another holder may be frozen or restarting, or have copied it meanwhile
            (moved if ours else copied).append((key, address))
        return moved, copied

    def nbytes(self) -> int:
        """Bytes of the keys that are still in memory."""
        held = (self.scheduler.tasks.get(key) for key in (*self.away, *self.copied))
        return sum(ts.nbytes for ts in held if ts is not None and ts.who_has)

    def worker_removed(
        self, address: str, computed: set[Any], scattered: set[Any]
    ) -> tuple[set[Any], set[Any]]:
        """Record the held keys that a worker lost; return the other keys."""
        if address in self.own:
            self.own.discard(address)  # another worker may get the same address
            self.removals.append((address, computed, scattered))
            return set(), set()
        ours = {k for k in computed if k in self}, {k for k in scattered if k in self}
        if any(ours):
            self.removals.append((address, *ours))
        return computed - ours[0], scattered - ours[1]

    def count_lost(self) -> int | None:
        """Count the lost keys, without recomputed ones; None: unknown."""
        if self.cleared:
            return None
        lost = 0
        for address, computed, scattered in self.removals:
            gone = sum(is_lost(self.scheduler, key) for key in computed)
            if gone or scattered:
                lost += gone + len(scattered)
                self.ended |= {address} - self.former
        return lost

    def count_recomputed(self) -> int:
        """Count the held keys that are recomputed."""
        keys = {*self.away, *self.copied}
        keys.update(*(computed for _, computed, _ in self.removals))
        return sum(is_coming(self.scheduler, key) for key in keys)


class Evacuation:
    """Choose a target for each key of a worker; arguments as of ``WorkerRestart``.

    An open parking worker gets all keys without another replica.
    """

    def __init__(
        self,
        scheduler: Any,
        address: str,
        partitions: Places,
        process_limits: Mapping[str, int],
        parking: Parking,
        held: HeldKeys,
    ):
        self.scheduler = scheduler
        self.address = address
        self.partitions = partitions
        self.process_limits = process_limits
        self.parking = parking
        self.held = held

    async def targets(
        self,
        worker: Any,
        status: str,
        staying: Container[Any],
        seconds: float,
        note: Callable[[str], None],
    ) -> list[tuple[Any, str]]:
        """Return a target for each key: another worker or the parking worker.

        A paused or spilling worker uses the parking worker first, so that it need not
        read its spilled keys. Other workers use it only if the others lack memory.
        ``status`` is the worker's own. ``seconds`` limit the start of a parking worker,
        and ``note`` gets what is done.
        """
        why = ""
        first = is_parked_first(status, worker.memory.spilled)
        if self.parking.may_open() and first:
            why = await self._park(worker, seconds, note)
        try:
            return await self.assign(worker, staying)
        except NotEnoughMemory as error:
            if not self.parking.may_open():
                raise
            why = why or await self._park(worker, seconds, note)
            if why:
                raise Refused(f"{error}; {why}") from error
        return await self.assign(worker, staying)

    async def away_from_parking(
        self, process_limits: Mapping[str, int], staying: Container[Any]
    ) -> list[tuple[Any, str]]:
        """Return a target below these limits for each key of the parking worker.

        Without room for all of them: no targets. ``staying`` keys cannot be sent.
        """
        parked, none = self.parking.worker, Parking(self.scheduler, b"")
        rest = Evacuation(
            self.scheduler,
            parked.address,
            self.partitions,
            process_limits,
            none,
            self.held,
        )
        try:
            return await rest.assign(parked, staying)
        except NotEnoughMemory:
            return []

    async def assign(
        self, worker: Any, staying: Container[Any] = ()
    ) -> list[tuple[Any, str]]:
        """Return a target for each key: largest groups first, on empty workers.

        Workers on the same host come first, because their bytes use no network.
        ``staying`` keys stay on the worker, because they cannot be sent.
        """
        groups: dict[Any, list[Any]] = {}
        wanted, copied = [], set()
        async for ts in in_turns(list(worker.has_what)):
            if ts.key in staying:
                continue
            copy = self.copy(ts)
            if copy is not None:
                wanted.append((ts.key, copy.address))
                if ts.key not in self.held.away:  # an earlier round made that copy
                    copied.add(ts.key)
                continue
            place = self.partitions.get(ts.key)
            name = (ts.key,) if place is None else place
            groups.setdefault(name, []).append(ts)
        free_memory = self._free_memory(worker)
        heaps = self._by_distance(worker, free_memory)
        sizes = {name: sum(ts.nbytes for ts in some) for name, some in groups.items()}
        away: dict[Any, str] = {}
        async for name in in_turns(sorted(groups, key=lambda n: -sizes[n])):
            fitting = (h for h in heaps if free_memory[h[0][2]] >= sizes[name])
            order = next(fitting, None)
            if order is None:
                raise NotEnoughMemory(
                    restart_refusal(
                        needed=sizes[name],
                        free=max(free_memory.values(), default=None),
                    )
                )
            target = order[0][2]
            away |= {ts.key: target for ts in groups[name]}
            free_memory[target] -= sizes[name]
            turn = order[0][1] + len(free_memory)
            heapq.heapreplace(order, (-free_memory[target], turn, target))
        self.held.copied |= copied
        self.held.note_away(away)
        return [*wanted, *away.items()]

    def copy(self, ts: Any) -> Any:
        """Return another worker that has a key and may keep it, or None."""
        running = self.scheduler.running
        for ws in ts.who_has or ():
            if ws.address == self.address:
                continue
            other = ws.address in self.process_limits and ws in running
            other = other and not is_late(ws, self.scheduler)
            if ws is self.parking.worker or other:
                return ws
        return None

    async def note_kept(self, worker: Any) -> None:
        """Record the keys that a former process keeps for the next one."""
        async for ts in in_turns(list(worker.has_what)):
            if ts.key in self.held:
                continue
            if self.copy(ts) is None:
                self.held.note_away({ts.key: worker.address})
            else:
                self.held.copied.add(ts.key)

    def _by_distance(
        self, worker: Any, free_memory: Mapping[str, float]
    ) -> list[list[tuple[float, int, str]]]:
        """Return heaps of the workers on the same host, and of the others.

        The emptiest worker comes first; workers without bounds take turns.
        """
        near: list[tuple[float, int, str]] = []
        far: list[tuple[float, int, str]] = []
        for i, (address, free) in enumerate(free_memory.items()):
            same = self.scheduler.workers[address].host == worker.host
            heapq.heappush(near if same else far, (-free, i, address))
        return [heap for heap in (near, far) if heap]

    def _free_memory(self, worker: Any) -> dict[str, float]:
        """Return the free bytes of each of the other workers."""
        parked = self.parking.worker
        if parked is not None:
            return {parked.address: float("inf")} if self.parking.is_open() else {}
        running = [ws for ws in self.scheduler.running if ws is not worker]
        others = {w.address: w for w in running if not is_late(w, self.scheduler)}
        return {
            address: free_bytes(others[address], most)
            for address, most in self.process_limits.items()
            if address in others
        }

    async def _park(
        self, worker: Any, seconds: float, note: Callable[[str], None]
    ) -> str:
        """Open a parking worker and link spilled keys there; return a problem."""
        note("opening a parking worker in its nanny")
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
        note(MOVING_AWAY)
        return ""

    async def spilled_files(self, worker: Any) -> list[Any]:
        """Return the files of a worker's spilled keys without another replica."""
        tasks = self.scheduler.tasks
        return [
            file
            for file in await self.parking.spilled_files(worker)
            if (ts := tasks.get(file[0])) is not None
            and ts in worker.has_what
            and (worker is self.parking.worker or self.copy(ts) is None)
        ]


# --- keys that cannot be sent ---------------------------------------------------------

MAX_NAMED = 5  # keys in a message


class UnsendableKeys:
    """The keys of one worker that cannot be sent, and the reasons."""

    def __init__(self, scheduler: Any, parking: Parking):
        self.scheduler = scheduler
        self.parking = parking
        self.staying: dict[Any, str] = {}  # reasons
        self.dropped = 0  # that no client and no task needed
        self.recomputed = 0

    def state(self) -> dict[str, int]:
        return {"dropped": self.dropped, "recomputed": self.recomputed}

    async def find(
        self, worker: Any, keys: Iterable[Any] | None = None, *, ending: bool = False
    ) -> None:
        """Drop and recompute keys of a worker; the others are ``staying``.

        With ``keys`` only these are tested, but all of their values. ``ending``: the
        worker ends in any case, so that every key is recomputed if possible.
        """
        unneeded: dict[str, list[Any]] = {}
        released = []
        for key, problem, readable in await self.parking.unsendable(worker, keys):
            ts = self.scheduler.tasks.get(key)
            if ts is None or worker not in (ts.who_has or ()):
                continue
            if not readable and (len(ts.who_has) > 1 or is_computable(ts)):
                # a worker whose spill file is gone ends if Dask tells it to delete
                # that key, so it is not told
                self.scheduler.remove_replica(ts, worker)
                if not ts.who_has:
                    self.recomputed += is_needed(ts)
                    self._release(ts.key)
                continue
            if len(ts.who_has) > 1:
                continue
            if not is_needed(ts):
                self.dropped += 1
                released.append(key)
                for client in ts.who_wants:
                    unneeded.setdefault(client.client_key, []).append(key)
            elif is_computable(ts) and ending:
                self.recomputed += 1
                released.append(key)
            else:
                self.staying[key] = problem
        await release_for(self.scheduler, unneeded)
        async for key in in_turns(released):
            self._release(key)

    def _release(self, key: Any) -> None:
        """Have Dask forget a key, or compute it again if it is needed."""
        ts = self.scheduler.tasks.get(key)
        if ts is not None and ts.state == "memory":
            name = f"clustertune-unsendable-{time()}"
            self.scheduler.transitions({key: "released"}, name)

    def __str__(self) -> str:
        """Name keys and reasons, as in a message."""
        there = self.scheduler.tasks
        named = [
            f"{printable(str(key), longest=80)} ({printable(why, longest=120)})"
            for key, why in self.staying.items()
            if key in there
        ]
        more = f" and {len(named) - MAX_NAMED} more" if len(named) > MAX_NAMED else ""
        return ", ".join(named[:MAX_NAMED]) + more


def is_needed(ts: Any) -> bool:
    """Whether a client or an unfinished task needs a key.

    A computed key that only failed tasks used is not needed, although the client may
    still refer to it: its traceback keeps the futures of a failed fit.
    """
    if any(dependent.state in COMING for dependent in ts.dependents):
        return True
    failed = [d for d in ts.dependents if d.state == "erred"]
    if is_computable(ts) and failed and len(failed) == len(ts.dependents):
        return False
    return bool(ts.who_wants)
