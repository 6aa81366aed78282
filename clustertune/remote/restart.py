"""Restarts a worker and loses nothing of what it holds. Runs on the scheduler.

The worker gets no new tasks, hands back those that it has not begun, ends the others,
is emptied by the mover, confirmed to hold nothing, restarted through its nanny,
awaited, and given back its keys, so that afterwards every key is on its worker again.
Whatever goes wrong before the restart is undone. A client that goes meanwhile changes
nothing of this. Where the other workers have no room, a parking worker in the nanny
keeps the keys meanwhile. It also keeps those of a worker that is paused or has spilled:
to send keys to others it would have to read them into memory.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import pickle
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from time import monotonic, time
from types import MappingProxyType
from typing import Any
from uuid import uuid4

from distributed.core import Status

from clustertune.core.rules import is_parked_first
from clustertune.core.wording import plural
from clustertune.remote.bindings import bound_to, follow
from clustertune.remote.keys import Places
from clustertune.remote.memory import counted
from clustertune.remote.move import ManagerHold, Placing, place
from clustertune.remote.park import PREFIX, is_parking, read
from clustertune.remote.survey import COMING, is_gone

logger = logging.getLogger("distributed.clustertune")

LOOK = 0.1  # seconds between two looks whether a worker has ended its tasks
FOLLOWS = 5.0  # seconds in which a worker's process ends after that of its nanny
ROUNDS = 5  # times that a worker is emptied: keys may arrive meanwhile
GRACE = 60.0  # seconds to undo a restart in, where the caller's time has passed
ANSWERS = 5.0  # seconds between two questions whether a nanny is there
SILENCE = 30.0  # seconds without its answer after which a nanny counts as gone
YIELD = 2000  # keys between two yields to the event loop


class Refused(Exception):  # noqa: N818
    """Why a worker is not restarted; everything is as it was."""


class NoRoom(Refused):
    """The others have no room for the keys of a worker."""


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
        Seconds that the caller has left. Emptying and the wait for the new process end
        then. Bringing keys home ends only without progress.
    retire
        Close it instead: what it held stays where it was moved.
    parking
        The pickled ``park.act``, which opens a parking worker in its nanny. Empty: none
        is to be opened.
    turn
        Held while it is emptied: two at once would be given the same room.
    resizing
        How to start the new process with another size; None: with the same.
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
        resizing: Mapping[str, Any] | None = None,
    ):
        self.turn = turn or asyncio.Lock()
        self.resizing = None if resizing is None else Resizing(scheduler, resizing)
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
        self.end = monotonic() + timeout
        self.stopped = False
        self.process: Any = None  # its state on the scheduler; each process has its own
        self.first: Any = None  # of the process that is to be restarted
        self.was = Status.running  # its own status, which ours hides from the scheduler
        self.asked: set[Any] = set()  # keys of tasks that it was asked to hand back
        self.doing = "waiting for its tasks to end"
        self.touched = True  # its keys were moved, or its nanny was asked
        self.keys = 0
        self.nbytes = 0  # that travelled
        self.lost = 0
        self.again = 0  # keys that are computed again
        self.back = ""  # its new address
        self.seconds: float | None = None  # from the end of its process to the next
        self.away: dict[Any, str] = {}  # what it alone held, and where that is now
        self.targets: set[str] = set()  # that were given any of that
        self.own = {address}  # addresses that it has now, or its parking worker
        self.former = {address}  # addresses that it has had, or its parking worker
        self.bound: Collection[Any] = ()  # keys of tasks that were bound to it
        self.copied: set[Any] = set()  # what it held, and others as well
        self.ended: set[str] = set()  # others, with what it had held
        self.ended_with_it = 0  # keys that only its own processes had
        self.removals: list[tuple[str, set[Any], set[Any]]] = []  # of other workers
        self.lost_with_others = 0  # keys that it never held

    async def run(self) -> str:
        """Restart it; answers with why not, or what is left to do, or nothing."""
        self.touched = False
        worker = self.scheduler.workers.get(self.address)
        if worker is None:
            return f"{self.address} is gone"
        self.process = self.first = worker
        self.end = monotonic() + self.timeout
        problem = left = ""
        try:
            problem = await self._run(worker)
        finally:
            self.lost = self._count_lost() + self.lost_with_others
            self.again = self._count_again()
            left = await self._unpark()
        return "; ".join(filter(None, [problem, left]))

    async def _run(self, worker: Any) -> str:
        self.was, who = worker.status, identity(worker)
        try:
            self._refuse(worker)
            await self._idle(worker)
            self.bound = await bound_to(self.scheduler, self.address)
            async with self.turn:
                await self._empty(worker)
                if self.resizing is not None:
                    await self._change(worker.nanny)
                    await self._empty(worker)  # of what came meanwhile
        except BaseException as error:
            # also where the job is cancelled: nothing may stay as it is now
            self.doing = "undoing what it has begun"
            if self.resizing is not None:
                await self.resizing.undo(worker.nanny)
            await self._undo(worker, who)
            if isinstance(error, Refused):
                return str(error)
            raise
        if self.retire:
            self.doing = "closing"
            return await self._close(worker)
        self.doing = "restarting"
        problem, note = await self._restart(who, self.end), ""
        if self.resizing is not None:
            problem, note = await self._settle(who, problem)
        if problem:
            return problem
        self.doing = "bringing back what it held"
        return "; ".join(filter(None, [note, await self._bring_back(who)]))

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

    def _keep_away(self, worker: Any) -> None:
        """Have it get no new tasks; its own status may have changed since."""
        if worker.status in (Status.running, Status.paused):
            self.was = worker.status
            self._set(worker, Status.closing_gracefully)

    def _there(self, worker: Any) -> bool:
        return self.scheduler.workers.get(worker.address) is worker

    async def _idle(self, worker: Any) -> None:
        """Wait for its tasks, and for shuffles that keep rows in its process.

        It gets no new tasks meanwhile, unless a shuffle is among the reasons: the tasks
        that end a shuffle are bound to its workers.
        """
        end = monotonic() + self.wait
        while True:
            if not self._there(worker):
                raise Refused("it went while its tasks were waited for")
            shuffling = bool(shuffles(self.scheduler, worker))
            if not shuffling:
                self._keep_away(worker)
                self._take_back(worker)
            elif worker.status is Status.closing_gracefully:
                self._set(worker, self.was)
            if not shuffling and not worker.processing:
                return
            if self.stopped:
                raise Refused("stopped")
            if monotonic() > end:
                raise Refused(self._still_busy(worker))
            await asyncio.sleep(LOOK)

    def _take_back(self, worker: Any) -> None:
        """Ask it for the tasks that it has not begun: a paused worker begins none.

        As work stealing does: the worker releases a task and confirms, or answers that
        it runs. The scheduler then gives the task to another worker, or keeps it until
        one runs, as the thief of this theft does not exist.
        """
        stealing = self.scheduler.extensions.get("stealing")
        for ts in list(worker.processing) if stealing is not None else ():
            if ts.key not in self.asked:
                self.asked.add(ts.key)
                stealing.move_task_request(ts, worker, NOBODY)

    def _still_busy(self, worker: Any) -> str:
        some = shuffles(self.scheduler, worker)
        if some:
            return (
                f"{len(some)} P2P shuffles still keep rows in its process after "
                f"{self.wait:g} s, such as {some[0][:200]}: a restart would begin them "
                "again"
            )
        keys = sorted(str(ts.key) for ts in worker.processing)[:3]
        return (
            f"{still_run(len(worker.processing), self.wait)}, such as "
            f"{', '.join(keys)[:200]}"
        )

    async def _empty(self, worker: Any) -> None:
        """Move all that it holds; what has copies elsewhere is dropped here only."""
        self.touched = True
        self.doing = "moving away what it holds"
        left: Mapping[str, int] = {}
        for _ in range(ROUNDS):
            self._refuse_late(worker)
            self._keep_away(worker)
            if not worker.has_what:
                break
            wanted = await self._find_places(worker)
            shelters = () if self.parked is None else (self.parked.address,)
            policy = Placing(wanted, self.ceilings, {self.address}, shelters)
            await self._move_away(policy)
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
        if shuffles(self.scheduler, worker):
            raise Refused("a P2P shuffle has begun there meanwhile")

    def _refuse_late(self, worker: Any) -> None:
        if self.stopped:
            raise Refused("stopped")
        if monotonic() > self.end and worker.has_what:
            raise Refused(
                f"{len(worker.has_what)} keys were still there when the time of "
                f"{self.timeout:.0f} s was over"
            )

    async def _move_away(self, policy: Placing) -> None:
        """Run the mover until the job is stopped, or the caller's time is over.

        A copy that is on its way arrives, and its source is dropped, in any case: the
        mover, once stopped, ends when nothing is in flight.
        """
        moving = asyncio.ensure_future(place(self.scheduler, policy, self.hold))
        try:
            while not moving.done():
                await asyncio.wait([moving], timeout=LOOK)
                if self.stopped or monotonic() > self.end:
                    policy.stopped = True
                    if not policy.flying:  # it may wait for Dask's own moves
                        moving.cancel()
        finally:
            moving.cancel()
            await asyncio.gather(moving, return_exceptions=True)
        if not moving.cancelled():
            moving.result()

    async def _find_places(self, worker: Any) -> list[tuple[Any, str]]:
        """A target for each key: other workers, or the parking worker.

        A worker that is paused or has spilled is parked first, so that its keys need
        not be read there. A running one only if the others have no room.
        """
        why = ""
        if self.parking and self.parked is None and self._is_full(worker):
            why = await self._park(worker)
        try:
            return await self._assign(worker)
        except NoRoom as error:
            if not self.parking or self.parked is not None:
                raise
            why = why or await self._park(worker)
            if why:
                raise Refused(f"{error}; {why}") from error
        return await self._assign(worker)

    def _is_full(self, worker: Any) -> bool:
        return is_parked_first(self.was.name, worker.memory.spilled)

    async def _assign(self, worker: Any) -> list[tuple[Any, str]]:
        """A target for each key: groups together, largest first, where most fits."""
        groups: dict[Any, list[Any]] = {}
        wanted, copied = [], set()
        for i, ts in enumerate(list(worker.has_what)):
            if i % YIELD == YIELD - 1:
                await asyncio.sleep(0)
            copy = self._copy(ts)
            if copy is not None:
                wanted.append((ts.key, copy.address))
                if ts.key not in self.away:  # that copy is of an earlier round
                    copied.add(ts.key)
                continue
            place = self.pieces.get(ts.key)
            name = (ts.key,) if place is None else place
            groups.setdefault(name, []).append(ts)
        room = self._room(worker)
        # fullest last; of those without bounds, each in turn
        order = [(-free, i, address) for i, (address, free) in enumerate(room.items())]
        heapq.heapify(order)
        sizes = {name: sum(ts.nbytes for ts in some) for name, some in groups.items()}
        away: dict[Any, str] = {}
        for i, name in enumerate(sorted(groups, key=lambda n: -sizes[n])):
            if i % YIELD == YIELD - 1:
                await asyncio.sleep(0)
            target = order[0][2] if order else None
            if target is None or room[target] < sizes[name]:
                raise self._no_room(sizes, room)
            away |= {ts.key: target for ts in groups[name]}
            room[target] -= sizes[name]
            turn = order[0][1] + len(room)
            heapq.heapreplace(order, (-room[target], turn, target))
        self.copied |= copied
        self._note_away(away)
        return [*wanted, *away.items()]

    def _note_away(self, away: Mapping[Any, str]) -> None:
        self.away |= away
        self.targets |= set(away.values())
        self.keys = len(self.away) + len(self.copied)

    def _copy(self, ts: Any) -> Any:
        """Another worker that has a key and may keep it; None: there is none."""
        running = self.scheduler.running
        for ws in ts.who_has or ():
            other = ws.address in self.ceilings and ws.address != self.address
            if ws is self.parked or (other and ws in running):
                return ws
        return None

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

    def _no_room(self, sizes: Mapping[Any, int], room: Mapping[str, float]) -> NoRoom:
        free = sum(max(0.0, n) for n in room.values())
        return NoRoom(
            f"the others have no room for its keys: {sum(sizes.values()):,} bytes, "
            f"{free:,.0f} bytes free below their thresholds"
        )

    async def _undo(self, worker: Any, who: Any = None) -> None:
        if self.parked is not None and not self._is_parked():
            await self._follows(worker)
        if self._there(worker):
            if worker.status is Status.closing_gracefully:
                self._set(worker, self.was)
            await self._bring_home(self.address)
        elif self._is_parked() and await self._returns(who, self._later()):
            await self._bring_back(who)

    def _later(self) -> float:
        """When to end what must be undone: the caller's time may be over."""
        return max(self.end, monotonic() + GRACE)

    # --- the parking worker -----------------------------------------------------------

    async def _park(self, worker: Any) -> str:
        """Have its nanny open one for its keys; why not, or nothing.

        If it comes too late, it closes by itself. Spilled keys are there when this
        ends: they need no room.
        """
        self.doing = "opening a parking worker in its nanny"
        name = f"{PREFIX}{uuid4().hex[:8]}"
        seconds = max(0.0, self.end - monotonic())
        files = await self._spilled_files(worker)
        on_disk = {key for key, *_ in files}
        nbytes = 0
        for i, ts in enumerate(list(worker.has_what)):
            if i % YIELD == YIELD - 1:
                await asyncio.sleep(0)
            if ts.key not in on_disk and self._copy(ts) is None:
                nbytes += ts.nbytes
        wanted = {"what": "open", "name": name, "nbytes": nbytes, "timeout": seconds}
        _, why = await call(self.scheduler, worker.nanny, self.parking, wanted, seconds)
        self.parked = self.scheduler.workers.get(self.scheduler.aliases.get(name))
        if self.parked is None:
            return f"its nanny opened no parking worker: {why or 'it did not register'}"
        self.own.add(self.parked.address)
        self.former.add(self.parked.address)
        self._set(self.parked, Status.closing_gracefully)
        taken = await self._adopt(self.parked, files)
        self._note_away(dict.fromkeys(taken, self.parked.address))
        self.doing = "moving away what it holds"
        return ""

    async def _spilled_files(self, worker: Any) -> list[Any]:
        """Those of keys of a worker that have no other copy; none if it is silent."""
        files, _ = await call(
            self.scheduler, worker.address, self.parking, {"what": "spilled"}, ANSWERS
        )
        tasks = self.scheduler.tasks
        return [
            file
            for file in files or ()
            if (ts := tasks.get(file[0])) is not None
            and ts in worker.has_what
            and (worker is self.parked or self._copy(ts) is None)
        ]

    async def _adopt(self, worker: Any, files: Sequence[Any]) -> list[Any]:
        """Have a worker on the same host take over files; the keys that it has then."""
        if not files:
            return []
        wanted = {"what": "adopt", "files": files}
        taken, why = await call(
            self.scheduler, worker.address, self.parking, wanted, GRACE
        )
        if why:
            logger.warning("clustertune: keys are read, as links failed: %s", why)
        if taken and self._there(worker):
            self.scheduler.add_keys(worker=worker.address, keys=taken)
        return list(taken or ())

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
        return bool(self.back) and self._there(self.process)

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

    async def _close(self, worker: Any) -> str:
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
        await self._undo(worker)
        return "the scheduler did not close it"

    async def _restart(self, who: Any, end: float) -> str:
        """Have its nanny end its process, and wait for the next one."""
        answer, old, start = "", self.process, monotonic()
        if self._there(old):
            answer = await self._end_process(old.address, max(0.0, end - monotonic()))
        if await self._returns(who, end):
            self.seconds = monotonic() - start
            return ""
        # OK is the nanny's answer about the old process, not about the new one
        nanny = "has ended it" if answer == "OK" else f"answered {answer or 'nothing'}"
        where = "" if self.parked is not None else "; its keys are on the others"
        return (
            f"it did not come back within {self.timeout:g} s (its nanny {nanny}){where}"
        )

    async def _end_process(self, address: str, seconds: float) -> str:
        try:
            answers = await self.scheduler.restart_workers(
                [address],
                timeout=seconds,
                # it would count workers: one that leaves meanwhile is waited for, and
                # one that joins is taken for ours
                wait_for_workers=False,
                on_error="return",
                stimulus_id=f"clustertune-restart-{time()}",
            )
        except asyncio.TimeoutError:
            return "timed out"
        # Dask raises here whatever a nanny answers: the worker may come back yet
        except Exception as error:  # noqa: BLE001, the caller reports it
            return repr(error)
        return str(answers.get(address, ""))

    async def _returns(self, who: Any, end: float) -> bool:
        """Wait for another process of its nanny, and bind to it what was bound to it.

        Its address may be the one that it had. The wait ends early where the nanny does
        not answer any more.
        """
        statuses = [Status.running]
        if self.resizing is not None:  # one that is too small for itself pauses
            statuses.append(Status.paused)
        heard = asked = monotonic()
        while True:
            for ws in list(self.scheduler.workers.values()):
                new = ws is not self.process and identity(ws) == who
                if new and ws.status in statuses:
                    await self._welcome(ws)
                    return True
            now = monotonic()
            if now > end or now - heard > SILENCE:
                return False
            if now - asked > ANSWERS:
                asked = now
                if await self._answers(who[0]):
                    heard = monotonic()
            await asyncio.sleep(LOOK)

    async def _welcome(self, worker: Any) -> None:
        """Take a worker for the next process of ours."""
        self.process, self.back = worker, worker.address
        self.own.add(worker.address)
        gone = self.former - {worker.address}
        await follow(self.scheduler, self.bound, gone, worker.address)
        self.former.add(worker.address)

    async def _answers(self, nanny: str) -> bool:
        try:
            await asyncio.wait_for(self.scheduler.rpc(nanny).identity(), ANSWERS)
        except (OSError, asyncio.TimeoutError):
            return False
        return True

    # --- another size -----------------------------------------------------------------

    async def _change(self, nanny: str) -> None:
        assert self.resizing is not None
        self.doing = "telling its nanny the new size"
        problem = await self.resizing.change(nanny)
        if problem:
            raise Refused(f"its nanny did not take the new size: {problem}")
        self.doing = "moving away what it holds"

    async def _settle(self, who: Any, problem: str) -> tuple[str, str]:
        """Keep the size, or restart the new process with the former one.

        The process that is restarted then is empty. Answers with what ends the job, and
        with what is to be reported though it goes on.
        """
        assert self.resizing is not None
        size, nanny = self.resizing, who[0]
        why = problem or size.shortage(self.process, self._bytes_away())
        if not why:
            size.kept = True
            return "", await size.settle(nanny, keep=True)
        await size.undo(nanny)
        self.doing = "restarting with its former size"
        again = await self._restart(who, self._later())
        if again:
            return f"{why}; with its former size {again}", ""
        return "", f"{why}; it was restarted with its former size"

    def _bytes_away(self) -> int:
        tasks = self.scheduler.tasks
        held = (tasks.get(key) for key in (*self.away, *self.copied))
        return sum(ts.nbytes for ts in held if ts is not None and ts.who_has)

    # --- what was lost ----------------------------------------------------------------

    def removed(
        self, address: str, computed: set[Any], scattered: set[Any]
    ) -> tuple[set[Any], set[Any]]:
        """Note keys of it that only a worker had which the scheduler has just removed.

        Returns
        -------
        tuple
            The other keys that only the removed worker had.
        """
        if address in self.own:
            self.own.discard(address)  # another worker may get the same address
            self.ended_with_it += len(computed) + len(scattered)
            return set(), set()
        ours = (
            {k for k in computed if self._was_there(k)},
            {k for k in scattered if self._was_there(k)},
        )
        if any(ours):
            self.removals.append((address, *ours))
        return computed - ours[0], scattered - ours[1]

    def note_others(self, address: str, keys: Iterable[Any]) -> None:
        """Count the keys of no restart that ended with a worker.

        The scheduler has settled by now which of them it computes again.
        """
        if gone := sum(is_gone(self.scheduler, key) for key in keys):
            self.lost_with_others += gone
            self.ended.add(address)

    def _count_lost(self) -> int:
        """Keys of it that no worker has any more.

        Keys that ended with it, or with a parking worker, count in any case. Keys that
        it held and another worker has ended with count unless they are computed again.
        """
        lost = self.ended_with_it
        for address, computed, scattered in self.removals:
            gone = sum(is_gone(self.scheduler, key) for key in computed)
            if gone or scattered:
                lost += gone + len(scattered)
                self.ended.add(address)
        return lost

    async def _bring_back(self, who: Any) -> str:
        """To the worker that was restarted; again, if it dies and keys are parked."""
        for _ in range(ROUNDS):
            problem = await self._bring_home(self.back)
            if not problem or not self._is_parked() or self._is_back():
                break
            if not await self._returns(who, self._later()):
                break
        return problem

    async def _bring_home(self, address: str) -> str:
        """What was moved away, and copies of what had copies, as far as still there.

        A worker that pauses meanwhile goes on once it has spilled.
        """
        target = self.scheduler.workers.get(address)
        if target is not None and self._is_parked():
            await self._adopt(target, await self._spilled_files(self.parked))
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
        most = self.resizing.most if self.resizing is not None else 0
        for wanted, sources in ((moved, None), (copied, ())):
            ceilings = {address: most} if most else {}
            policy = Placing(wanted, ceilings, sources, (address,))
            await place(self.scheduler, policy, self.hold)  # ends without progress
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

    def _is_unchanged(self) -> bool:
        """Whether nothing was done to it, or all of that is undone.

        It may have ended by itself before, and with it its keys. The address alone does
        not identify a process: its port may be fixed.
        """
        if self.first is None or not self._there(self.first):
            return not self.touched
        return self.lost == self.lost_with_others

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
            "unchanged": self._is_unchanged(),
            "resized": self.resizing is not None and self.resizing.kept,
        }


class Resizing:
    """How a nanny starts its worker with another size, and how that is undone.

    Parameters
    ----------
    scheduler
        The scheduler.
    terms
        ``change``, ``settle``: pickled functions of ``remote/resize.py``. ``wanted``:
        arguments of the first. ``line``, ``most``: bytes of process memory that a
        worker with a lower limit may have with all its keys, and while they return; 0:
        any.
    """

    def __init__(self, scheduler: Any, terms: Mapping[str, Any]):
        self.scheduler = scheduler
        self.functions = terms["change"], terms["settle"]
        self.wanted = dict(terms["wanted"])
        self.line, self.most = int(terms["line"]), int(terms["most"])
        self.changed = False  # the nanny has it, and it may still be undone
        self.kept = False  # the worker has it

    async def change(self, nanny: str) -> str:
        """Have the nanny start the next process with it; why not, or nothing."""
        self.changed = True  # also if the answer is lost
        return await on_nanny(
            self.scheduler, nanny, self.functions[0], self.wanted, GRACE
        )

    async def settle(self, nanny: str, *, keep: bool) -> str:
        """Have the nanny keep it, or undo it; what went wrong, or nothing."""
        self.changed = False
        problem = await on_nanny(
            self.scheduler, nanny, self.functions[1], {"keep": keep}, GRACE
        )
        return f"its nanny did not settle its size: {problem}" if problem else ""

    async def undo(self, nanny: str) -> None:
        """Have the nanny start its worker as before, unless that has been settled."""
        if self.changed:
            problem = await self.settle(nanny, keep=False)
            if problem:
                logger.warning("clustertune: %s", problem)
            self.most = 0

    def shortage(self, worker: Any, nbytes: int) -> str:
        """Why a new process is too small for keys of so many bytes, or nothing."""
        process = worker.memory.process
        if not self.line or process + nbytes <= self.line:
            return ""
        return (
            f"its new process had {process:,} bytes and gets back {nbytes:,}, and it "
            f"spills or pauses above {self.line:,}"
        )


async def on_nanny(
    scheduler: Any,
    nanny: str,
    function: bytes,
    arguments: Mapping[str, Any],
    seconds: float,
) -> str:
    """Run a pickled function on a nanny; what went wrong, or nothing."""
    _, why = await call(scheduler, nanny, function, arguments, seconds, answers=False)
    return why


async def call(
    scheduler: Any,
    address: str,
    function: bytes,
    arguments: Mapping[str, Any],
    seconds: float,
    *,
    answers: bool = True,
) -> tuple[Any, str]:
    """Run a pickled function on a worker or a nanny: its answer, and what went wrong.

    Only ``park.act`` has an answer that is read here.
    """
    work = scheduler.rpc(address).run(
        function=function, kwargs=pickle.dumps(dict(arguments))
    )
    try:
        answer = await asyncio.wait_for(work, seconds)
    except (OSError, asyncio.TimeoutError) as error:
        return None, repr(error)
    why = str(answer.get("exception_text", ""))
    return read(answer["result"]) if answers and not why else None, why


class Nobody:
    """The thief of tasks that a worker hands back: a worker that has ended."""

    address = "clustertune-nobody"
    status = Status.closed
    has_what: Mapping[Any, Any] = MappingProxyType({})
    occupancy = 0.0


NOBODY = Nobody()


def shuffles(scheduler: Any, worker: Any) -> list[str]:
    """P2P shuffles that have rows in a worker's process, where Dask sees no keys."""
    plugin = scheduler.plugins.get("shuffle")
    active = getattr(plugin, "active_shuffles", {})
    return [
        str(i) for i, s in active.items() if worker.address in s.participating_workers
    ]


def begun(worker: Any) -> int:
    """Tasks that a worker has begun, or begins by itself: a paused one begins none."""
    if worker.status is Status.running:
        return len(worker.processing)
    return sum(ts in worker.executing for ts in worker.processing)


def still_run(tasks: int, seconds: float) -> str:
    """Why workers are busy after they were waited for."""
    verb = "runs" if tasks == 1 else "run"
    return f"{plural(tasks, 'task')} still {verb} after {seconds:g} s"


def used(worker: Any) -> int:
    """Bytes of its process; what a heartbeat has not told yet is in its keys."""
    return int(max(worker.memory.process, counted(worker)))


def identity(worker: Any) -> Any:
    """What survives a restart: its name, and its nanny."""
    return worker.nanny, None if worker.name == worker.address else worker.name


async def burdens(scheduler: Any, addresses: Sequence[str]) -> dict[str, list[int]]:
    """By worker: keys, and those that no other running worker holds; actors.

    Of the second: keys, bytes, scattered.

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
            # a copy on a paused worker is at risk, as its nanny may kill that one
            others = (ws for ws in ts.who_has or () if ws is not worker)
            if not any(ws.status is Status.running for ws in others):
                unique += 1
                nbytes += ts.nbytes
                scattered += ts.run_spec is None
        found[address] = [keys, unique, nbytes, scattered, len(worker.actors)]
    return found
