"""Restarts a worker and loses nothing of what it holds. Runs on the scheduler.

The worker gets no new tasks, ends those that it has, is emptied by the mover, confirmed
to hold nothing, restarted through its nanny, awaited, and given back what it held, so
that afterwards everything lies where it lay. Whatever goes wrong before the restart is
undone. A client that goes meanwhile changes nothing of this. Of a worker that is alone
a parking worker in its nanny keeps what it holds meanwhile.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import pickle
from collections import Counter
from collections.abc import Mapping, Sequence
from time import monotonic, time
from typing import Any
from uuid import uuid4

from distributed.core import Status

from clustertune.remote.bindings import follow
from clustertune.remote.keys import Places
from clustertune.remote.memory import counted
from clustertune.remote.move import ManagerHold, Placing, place
from clustertune.remote.park import PREFIX, is_parking
from clustertune.remote.survey import COMING, is_gone

logger = logging.getLogger("distributed.clustertune")

LOOK = 0.1  # seconds between two looks whether a worker has ended its tasks
FOLLOWS = 5.0  # seconds in which a worker's process ends after that of its nanny
ROUNDS = 5  # times that a worker is emptied: keys may arrive meanwhile
YIELD = 2000  # keys between two yields to the event loop


class Refused(Exception):  # noqa: N818
    """Why a worker is not restarted; everything is as it was."""


class Restarting:
    """One worker's restart.

    Parameters
    ----------
    scheduler, hold
        The scheduler, and what holds its memory manager off.
    address
        Of the worker.
    pieces
        Places of keys in row-aligned collections: those with the same place are to stay
        together meanwhile.
    ceilings
        Bytes of process memory to fill at most, by address of the other workers; 0:
        any. Workers that are not named get nothing.
    wait
        Seconds that running tasks are waited for.
    timeout
        Seconds in which the worker has to be back.
    retire
        Close it instead: what it held stays where it was moved.
    parking
        The pickled ``open_parking``: all that the worker holds is parked in its nanny,
        as no other worker can take it. Empty: none is to be opened.
    turn
        Held while it is emptied: two at once would be given the same room.
    """

    def __init__(
        self,
        scheduler: Any,
        hold: ManagerHold,
        address: str,
        pieces: Places,
        ceilings: Mapping[str, int],
        wait: float,
        timeout: float,
        retire: bool = False,
        parking: bytes = b"",
        turn: asyncio.Lock | None = None,
    ):
        self.turn = turn or asyncio.Lock()
        self.retire = retire
        self.parking = parking
        self.parked: Any = None  # the parking worker
        self.scheduler = scheduler
        self.hold = hold
        self.address = address
        self.pieces = pieces
        self.ceilings = dict(ceilings)
        self.wait = wait
        self.timeout = timeout
        self.stopped = False
        self.doing = "waiting for its tasks to end"
        self.keys = 0
        self.nbytes = 0  # that travelled
        self.lost = 0
        self.again = 0  # keys that are computed again
        self.back = ""  # its new address
        self.away: dict[Any, str] = {}  # what it alone held, and where that is now
        self.targets: set[str] = set()  # that were given any of that
        self.own = {address}  # and those of the parking worker, and its later ones
        self.copied: set[Any] = set()  # what it held, and others as well
        self.ended: set[str] = set()  # others, with what it had held
        self.began = time()

    async def run(self) -> str:
        """Restart it; answers with why not, or what is left to do, or nothing."""
        worker = self.scheduler.workers.get(self.address)
        if worker is None:
            return f"{self.address} is gone"
        problem = left = ""
        try:
            problem = await self._run(worker)
        finally:
            self.lost, self.again = self._count_lost(), self._count_again()
            left = await self._unpark()
        return "; ".join(filter(None, [problem, left]))

    async def _run(self, worker: Any) -> str:
        was, who = worker.status, identity(worker)
        try:
            self._refuse(worker)
            self._set(worker, Status.closing_gracefully)
            await self._idle(worker)
            if self.parking and worker.has_what:
                await self._park(worker)
            async with self.turn:
                await self._empty(worker)
        except BaseException as error:
            # also where the job is cancelled: nothing may stay as it is now
            await self._undo(worker, was, who)
            if isinstance(error, Refused):
                return str(error)
            raise
        if self.retire:
            self.doing = "closing"
            return await self._close(worker, was)
        self.doing = "restarting"
        problem = await self._restart(who)
        if problem:
            return problem
        self.doing = "bringing back what it held"
        return await self._bring_back(who)

    # --- before -----------------------------------------------------------------------

    def _refuse(self, worker: Any) -> None:
        if not worker.nanny and not self.retire:
            raise Refused("it has no nanny that could start it again")
        if worker.actors:
            raise Refused(f"it holds {len(worker.actors)} actors, which cannot move")
        stays = is_parking(worker.name) or worker.status in (
            Status.running,
            Status.paused,
        )
        if not stays:
            raise Refused(f"it is {worker.status.name}")

    def _set(self, worker: Any, status: Status) -> None:
        """Tell the scheduler alone: told too, a worker would not end what it has."""
        name = f"clustertune-restart-{time()}"
        self.scheduler.handle_worker_status_change(status, worker, name)

    def _there(self, worker: Any) -> bool:
        return self.scheduler.workers.get(self.address) is worker

    async def _idle(self, worker: Any) -> None:
        end = monotonic() + self.wait
        while worker.processing:
            if not self._there(worker):
                raise Refused("it went while its tasks were waited for")
            if self.stopped:
                raise Refused("stopped")
            if monotonic() > end:
                some = ", ".join(sorted(str(ts.key) for ts in worker.processing)[:3])
                raise Refused(
                    f"{len(worker.processing)} tasks still run after "
                    f"{self.wait:g} s, such as {some[:200]}"
                )
            await asyncio.sleep(LOOK)

    async def _empty(self, worker: Any) -> None:
        """Move all that it holds; what has copies elsewhere is dropped here only."""
        self.doing = "moving away what it holds"
        left: Mapping[str, int] = {}
        for _ in range(ROUNDS):
            if self.stopped:
                raise Refused("stopped")
            if worker.status is Status.running:  # one that was paused has room again
                self._set(worker, Status.closing_gracefully)
            if not worker.has_what:
                break
            wanted = await self._assign(worker)
            shelters = () if self.parked is None else (self.parked.address,)
            policy = Placing(wanted, self.ceilings, {self.address}, shelters)
            await asyncio.wait_for(
                place(self.scheduler, policy, self.hold), self.timeout
            )
            self.nbytes += policy.nbytes
            left = policy.left
            if not self._there(worker):
                # a parking worker closes by itself once it is empty
                if is_parking(worker.name) and not self._count_lost():
                    return
                raise Refused("it went while it was emptied")
            if self.parked is not None and left and not policy.done:
                break  # there is one target only: another round would not help
        if worker.has_what:
            why = "; ".join(f"{n} keys: {reason}" for reason, n in left.items())
            raise Refused(f"{len(worker.has_what)} keys could not be moved away: {why}")
        if worker.processing:
            raise Refused("tasks have begun there meanwhile")

    async def _assign(self, worker: Any) -> list[tuple[Any, str]]:
        """A target for each key: groups together, largest first, where most fits."""
        groups: dict[Any, list[Any]] = {}
        for i, ts in enumerate(list(worker.has_what)):
            if i % YIELD == YIELD - 1:
                await asyncio.sleep(0)
            place = self.pieces.get(ts.key)
            name = (ts.key,) if place is None else place
            groups.setdefault(name, []).append(ts)
        room = self._room(worker)
        # fullest last; of those without bounds, each in turn
        order = [(-free, i, address) for i, (address, free) in enumerate(room.items())]
        heapq.heapify(order)
        sizes = {name: sum(ts.nbytes for ts in some) for name, some in groups.items()}
        wanted = []
        for i, name in enumerate(sorted(groups, key=lambda n: -sizes[n])):
            if i % YIELD == YIELD - 1:
                await asyncio.sleep(0)
            target = order[0][2] if order else None
            for ts in groups[name]:
                copies = [ws.address for ws in ts.who_has or () if ws.address in room]
                if copies:
                    wanted.append((ts.key, copies[0]))
                    if ts.key not in self.away:  # that copy is of an earlier round
                        self.copied.add(ts.key)
                    continue
                if target is None or room[target] < ts.nbytes:
                    raise Refused(self._no_room(worker))
                room[target] -= ts.nbytes
                wanted.append((ts.key, target))
                self.away[ts.key] = target
                self.targets.add(target)
            if target is not None:
                turn = order[0][1] + len(room)
                heapq.heapreplace(order, (-room[target], turn, target))
        self.keys = len(self.away) + len(self.copied)
        return wanted

    def _room(self, worker: Any) -> dict[str, float]:
        """Bytes that each of the others can take."""
        if self.parked is not None:
            return {self.parked.address: float("inf")} if self._is_parked() else {}
        others = {ws.address: ws for ws in self.scheduler.running if ws is not worker}
        return {
            address: float("inf") if not most else most - used(others[address])
            for address, most in self.ceilings.items()
            if address in others
        }

    def _no_room(self, worker: Any) -> str:
        free = sum(max(0.0, n) for n in self._room(worker).values())
        held = sum(ts.nbytes for ts in worker.has_what)
        return (
            f"the others have no room for what it holds: {held:,} bytes in "
            f"{len(worker.has_what)} keys, {max(0.0, free):,.0f} bytes free below "
            "their thresholds"
        )

    async def _undo(self, worker: Any, was: Status, who: Any = None) -> None:
        if self.parked is not None and not self._is_parked():
            await self._follows(worker)
        if self._there(worker):
            if worker.status is Status.closing_gracefully:
                self._set(worker, was)
            await self._bring_home(self.address)
        elif self._is_parked() and await self._returns(who, self.timeout):
            await self._bring_back(who)

    # --- the parking worker -----------------------------------------------------------

    async def _park(self, worker: Any) -> None:
        """Have its nanny open one; if that comes too late, it closes by itself."""
        self.doing = "opening a parking worker in its nanny"
        name = f"{PREFIX}{uuid4().hex[:8]}"
        wanted = {"name": name, "nbytes": worker.nbytes, "timeout": self.timeout}
        call = self.scheduler.rpc(worker.nanny).run(
            function=self.parking, kwargs=pickle.dumps(wanted)
        )
        why = "it did not register"
        try:
            answer = await asyncio.wait_for(call, self.timeout)
        except (OSError, asyncio.TimeoutError) as error:
            why = repr(error)
        else:
            why = answer.get("exception_text", why)
        self.parked = self.scheduler.workers.get(self.scheduler.aliases.get(name))
        if self.parked is None:
            raise Refused(f"its nanny opened no parking worker: {why}")
        self.own.add(self.parked.address)
        self._set(self.parked, Status.closing_gracefully)

    def _is_parked(self) -> bool:
        parked = self.parked
        return parked is not None and (
            self.scheduler.workers.get(parked.address) is parked
        )

    async def _follows(self, worker: Any) -> None:
        """See a worker end whose nanny is gone, with the parking worker in it.

        A moment lies between the two; what is lost with it is lost by this restart.
        """
        end = monotonic() + FOLLOWS
        while monotonic() < end:
            if not self._there(worker):
                return
            await asyncio.sleep(LOOK)

    def _is_back(self) -> bool:
        return self.back in self.scheduler.workers

    async def _unpark(self) -> str:
        """Close the parking worker, unless only it has something; then say so."""
        if not self._is_parked():
            return ""
        alone = sum(len(ts.who_has) == 1 for ts in self.parked.has_what)
        if alone:
            return (
                f"{alone} keys lie on the parking worker {self.parked.name} still: "
                "restart again once its worker runs, to bring them back"
            )
        await self.scheduler.remove_worker(
            self.parked.address,
            stimulus_id=f"clustertune-unpark-{time()}",
            expected=True,
        )
        return ""

    # --- the restart ------------------------------------------------------------------

    async def _close(self, worker: Any, was: Status) -> str:
        if not self._there(worker):
            return ""
        closed = await self.scheduler.retire_workers(
            workers=[self.address],
            close_workers=True,
            remove=True,
            stimulus_id=f"clustertune-retire-{time()}",
        )
        if self.address in closed:
            return ""
        await self._undo(worker, was)
        return "the scheduler did not close it"

    async def _restart(self, who: Any) -> str:
        end = monotonic() + self.timeout
        try:
            answer = await self.scheduler.restart_workers(
                [self.address],
                timeout=self.timeout,
                # it would count workers: one that leaves meanwhile is waited for, and
                # one that joins is taken for ours
                wait_for_workers=False,
                on_error="return",
                stimulus_id=f"clustertune-restart-{time()}",
            )
        except asyncio.TimeoutError:
            answer = {self.address: "timed out"}
        if await self._returns(who, end - monotonic()):
            return ""
        said = answer.get(self.address, "nothing")
        # OK is of the old process: of the new one it says nothing
        nanny = "has ended it" if said == "OK" else f"said {said}"
        where = "" if self.parked is not None else "; what it held lies on the others"
        return (
            f"it did not come back within {self.timeout:g} s (its nanny {nanny}){where}"
        )

    async def _returns(self, who: Any, seconds: float) -> bool:
        """Wait until it runs again, under another address, and what is bound to it."""
        end = monotonic() + seconds
        while True:
            for ws in list(self.scheduler.workers.values()):
                new = ws.address != self.address and identity(ws) == who
                if new and ws.status is Status.running:
                    self.back = ws.address
                    await follow(self.scheduler, self.own - {ws.address}, ws.address)
                    self.own.add(ws.address)
                    return True
            if monotonic() > end:
                return False
            await asyncio.sleep(LOOK)

    def _count_lost(self) -> int:
        """Keys of it that nobody has any more, by the scheduler's own events.

        What ends with it, or with a parking worker, is counted in any case. What it
        held and another worker has ended with is lost unless it is computed again.
        """
        lost = 0
        for when, event in list(self.scheduler.get_events("all")):
            if (
                when < self.began
                or not isinstance(event, dict)
                or event.get("action") != "remove-worker"
            ):
                continue
            computed = event.get("lost-computed-tasks", ())
            scattered = event.get("lost-scattered-tasks", ())
            if event.get("worker") in self.own:
                lost += len(computed) + len(scattered)
                continue
            taken = sum(map(self._was_there, scattered)) + sum(
                self._was_there(key) and is_gone(self.scheduler, key)
                for key in computed
            )
            if taken:
                lost += taken
                self.ended.add(str(event.get("worker")))
        return lost

    async def _bring_back(self, who: Any) -> str:
        """To the worker that was restarted; again, if it dies and keys are parked."""
        for _ in range(ROUNDS):
            problem = await self._bring_home(self.back)
            if not problem or not self._is_parked() or self._is_back():
                break
            if not await self._returns(who, self.timeout):
                break
        return problem

    async def _bring_home(self, address: str) -> str:
        """What was moved away, and copies of what had copies, as far as still there."""
        moved, copied = [], []
        for i, key in enumerate([*self.away, *self.copied]):
            if i % YIELD == YIELD - 1:
                await asyncio.sleep(0)
            ts = self.scheduler.tasks.get(key)
            if ts is None or ts.state != "memory":
                continue
            there = {ws.address for ws in ts.who_has}
            if key in self.copied:
                copied.append((key, address))
            elif there <= self.targets | {address}:
                moved.append((key, address))
        left: Counter[str] = Counter()
        for wanted, sources in ((moved, None), (copied, ())):
            policy = Placing(wanted, {}, sources)
            try:
                await asyncio.wait_for(
                    place(self.scheduler, policy, self.hold), self.timeout
                )
            except asyncio.TimeoutError:
                unmoved = len(policy.waiting) + len(policy.flying)
                left["the time was over"] += unmoved
            self.nbytes += policy.nbytes
            left += policy.left
        # one that was released meanwhile is not missing
        missing = sum(self._is_elsewhere(key, address) for key, _ in [*moved, *copied])
        why = "; ".join(f"{n} keys: {reason}" for reason, n in left.items())
        return f"{missing} keys lie on the others still ({why})" if missing else ""

    def _is_elsewhere(self, key: Any, address: str) -> bool:
        ts = self.scheduler.tasks.get(key)
        if ts is None or ts.state != "memory":
            return False
        return all(ws.address != address for ws in ts.who_has)

    def _count_again(self) -> int:
        """Keys that it held and that are computed again: who had them ended."""
        tasks, held = self.scheduler.tasks, (*self.away, *self.copied)
        return sum(key in tasks and tasks[key].state in COMING for key in held)

    def _was_there(self, key: Any) -> bool:
        """Whether it held a key; of one with copies its own was dropped as well."""
        return key in self.away or key in self.copied

    def state(self) -> dict[str, Any]:
        """How far it is; plain types."""
        return {
            "doing": self.doing,
            "keys": self.keys,
            "nbytes": self.nbytes,
            "lost": self.lost,
            "again": self.again,
            "ended": sorted(self.ended),
            "address": self.back,
        }


def used(worker: Any) -> int:
    """Bytes of its process; what a heartbeat has not told yet is in its keys."""
    return int(max(worker.memory.process, counted(worker)))


def identity(worker: Any) -> Any:
    """What survives a restart: its name, and its nanny."""
    return worker.nanny, None if worker.name == worker.address else worker.name


async def burdens(scheduler: Any, addresses: Sequence[str]) -> dict[str, list[int]]:
    """By worker: keys, and those that only it holds: keys, bytes, scattered; actors.

    Grows with the keys on these workers, in short turns.
    """
    found, seen = {}, 0
    for address in addresses:
        worker = scheduler.workers.get(address)
        if worker is None:
            continue
        keys = unique = nbytes = scattered = 0
        for ts in list(worker.has_what):
            seen += 1
            if seen % YIELD == 0:
                await asyncio.sleep(0)
            keys += 1
            if len(ts.who_has or ()) <= 1:
                unique += 1
                nbytes += ts.nbytes
                scattered += ts.run_spec is None
        found[address] = [keys, unique, nbytes, scattered, len(worker.actors)]
    return found
