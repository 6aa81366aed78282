"""Restart or retire a worker without losing its data. Runs on the scheduler.

The worker gets no new tasks. It returns tasks that it has not begun, and finishes the
others. Its nanny starts the next process while the former one keeps its keys. The mover
moves them to the next process on the same host, and the former process ends.

If the nanny cannot run two processes of the worker, the mover moves the keys to other
workers. The nanny restarts the worker, and the mover moves the keys back. A failure
before the restart is undone, even without the client. If the other workers have too
little memory, a parking worker in the nanny holds the keys. It also holds the keys of a
paused or spilling worker, which would have to read them into memory to send them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from time import monotonic, time
from typing import Any

from distributed.core import Status

from clustertune.core.rules import USABLE, restart_refusal
from clustertune.core.wording import plural
from clustertune.remote.ending import within
from clustertune.remote.keys import Places
from clustertune.remote.scheduler.bindings import bound_to, follow, take_tasks_back
from clustertune.remote.scheduler.evacuation import (
    MOVING_AWAY,
    Evacuation,
    HeldKeys,
    UnsendableKeys,
)
from clustertune.remote.scheduler.mover import (
    ManagerHold,
    MovePolicy,
    drop_retirement,
    move_until,
    reasons,
)
from clustertune.remote.scheduler.nanny import (
    GRACE,
    POLL_INTERVAL,
    RELEASE,
    NannyWatch,
    Parking,
    Refused,
    Resizing,
    end_process,
    expecting,
    set_status,
    silence,
    silent_nannies,
    wait_for_end,
)
from clustertune.remote.scheduler.release import cancel, failed_fits
from clustertune.remote.scheduler.state import (
    begun_work,
    counted_bytes,
    identity,
    is_only_on,
    is_parking,
    shuffles,
    still_busy,
)

MAX_ROUNDS = 5  # attempts to empty a worker, which may receive keys meanwhile


class WorkerRestart:
    """One worker's restart.

    Parameters
    ----------
    scheduler, hold
        The scheduler, and the pause of its memory manager.
    address
        Address of the worker.
    partitions
        Positions of keys in row-aligned collections. Keys with the same position move
        to the same worker.
    process_limits
        Greatest process memory in bytes, by address of the other workers; 0: any.
        Other workers get no keys.
    wait
        Seconds to wait for running tasks.
    timeout
        Seconds for moving the keys away and for the start of the new process. Moving
        keys back has no limit while it makes progress.
    retire
        Close the worker instead of restarting it. Its keys stay on the others.
    parking
        The pickled ``park.act``. Empty: the keys move to other workers.
    turn
        Lock that prevents two restarts from using the same free memory.
    resizing
        The terms of ``Resizing`` if the new process has another size.
    end_tasks
        End tasks that still run after ``wait``, with the former process. Their results
        are computed again elsewhere, except those of a failed fit.
    """

    def __init__(
        self,
        scheduler: Any,
        hold: ManagerHold,
        address: str,
        partitions: Places,
        process_limits: Mapping[str, int],
        wait: float,
        timeout: float,
        retire: bool = False,
        parking: bytes = b"",
        turn: asyncio.Lock | None = None,
        resizing: Mapping[str, Any] | None = None,
        end_tasks: bool = False,
    ):
        self.scheduler = scheduler
        self.hold = hold
        self.address = address
        self.process_limits = dict(process_limits)
        self.wait = wait
        self.timeout = timeout
        self.retire = retire
        self.parking = Parking(scheduler, parking, allowed=not retire)
        self.turn = turn or asyncio.Lock()
        self.end_tasks = end_tasks
        self.ended_tasks = 0
        self.not_undone = ""  # what a refused restart has left changed
        self.resizing = None if resizing is None else Resizing(scheduler, resizing)
        self.end = monotonic() + timeout
        self.stopped = False
        self.process: Any = None  # the ``WorkerState`` of the current process
        self.old_process: Any = None
        self.own_status = Status.running  # the worker's, while we set another one
        self.requested_tasks: set[Any] = set()  # keys of tasks that it must return
        self.doing = "waiting for its tasks to end"
        self.touched = True  # whether keys were moved or the nanny got a request
        self.held = HeldKeys(scheduler, address)
        self.evacuation = Evacuation(
            scheduler, address, partitions, self.process_limits, self.parking, self.held
        )
        self.unsendable = UnsendableKeys(scheduler, self.parking)
        self.bound: Collection[Any] = ()  # keys of tasks that were bound to it
        self.nbytes = 0  # transferred bytes
        self.lost: int | None = 0  # None: unknown
        self.recomputed = 0
        self.new_address = ""
        self.detour = ""  # why the keys could not move directly to the next process
        self.event = {"action": "retire" if retire else "restart", "worker": address}

    def state(self) -> dict[str, Any]:
        """Return the progress as plain data."""
        return {
            "doing": self.doing,
            "keys": max(0, len(self.held) - (self.lost or 0)),
            "nbytes": self.nbytes,
            "lost": self.lost,
            "again": self.recomputed,
            "ended_tasks": self.ended_tasks,
            "unsendable": self.unsendable.state(),
            "ended": sorted(self.held.ended),
            "address": self.new_address,
            "direct": self._keeps_keys(self.old_process),
            "detour": self.detour,
            "unchanged": self._is_unchanged(),
            "resized": self.resizing is not None and self.resizing.kept,
        }

    def _is_unchanged(self) -> bool:
        """Whether nothing was changed, or all changes were undone."""
        if self.lost is None or self.not_undone:
            return False
        # an address does not identify a process, because the port may be fixed
        old = self.old_process
        if old is None or self._keeps_keys(old) or not self._is_registered(old):
            return not self.touched
        return self.lost == 0

    # --- the steps --------------------------------------------------------------------

    async def run(self) -> str:
        """Restart the worker; return a refusal, an unfinished part, or ""."""
        self.touched = False
        worker = self.scheduler.workers.get(self.address)
        if worker is None:
            return f"{self.address} has left"
        self.process = self.old_process = worker
        self.end = monotonic() + self.timeout
        try:
            problem = await self._run(worker)
        finally:
            self._count()
            left = await self._end_parking()
            self._count()
        return "; ".join(filter(None, [problem, left]))

    def _count(self) -> None:
        self.lost = self.held.count_lost()
        self.recomputed = self.held.count_recomputed()

    async def _run(self, worker: Any) -> str:
        self.own_status, who = worker.status, identity(worker)
        try:
            self._refuse(worker)
            await self._wait_for_tasks(worker)
            self.doing = "testing whether its keys can be sent"
            await self._refuse_unsendable(worker)
            self.bound = (await bound_to(self.scheduler, [self.address]))[self.address]
            # workers whose tasks are ended start their next processes at once
            async with nullcontext() if self.end_tasks else self.turn:
                replaced = await self._replace(worker)
            if not replaced:
                async with self.turn:
                    await self._empty(worker)
                    if self.resizing is not None:
                        await self._change_size(worker.nanny)
                    await self._refuse_silent_nanny(worker)
                    await self._empty(worker)  # keys may have arrived meanwhile
                    if self._is_registered(worker):
                        self._refuse_late(worker)  # also without keys
        except BaseException as error:
            # also if the job is cancelled: no change of state may remain
            self.doing = "undoing what it has begun"
            if self.resizing is not None:
                await self.resizing.undo(worker.nanny)
            self.not_undone = await self._undo(worker, who)
            if isinstance(error, Refused):
                return "; ".join(filter(None, [str(error), self.not_undone]))
            raise
        if self.retire:
            self.doing = "closing"
            return await self._close(worker)
        self.doing = "restarting"
        problem, note = await self._restart(who, self.end), ""
        if self.resizing is not None:
            problem, note = await self._settle_size(who, problem)
        if problem:
            return problem
        self.doing = "moving its keys to its new process"
        return "; ".join(filter(None, [note, await self._bring_back(who)]))

    async def _undo(self, worker: Any, who: Any = None) -> str:
        """Undo the changes; return the keys that are not back, or ""."""
        if self.parking.worker is not None and not self.parking.is_open():
            await wait_for_end(self.scheduler, worker)
        if self._is_registered(worker) and not self._keeps_keys(worker):
            if worker.status is Status.closing_gracefully:
                set_status(self.scheduler, worker, self.own_status)
            return await self._bring_home(self.address)
        if self.parking.is_open() and await self._returns(who, self._undo_end()):
            return await self._bring_back(who)
        return ""

    def _undo_end(self) -> float:
        """Return the deadline for undoing, which may be after the caller's."""
        return max(self.end, monotonic() + GRACE)

    def _is_registered(self, worker: Any) -> bool:
        return self.scheduler.workers.get(worker.address) is worker

    def _keeps_keys(self, worker: Any) -> bool:
        """Whether a worker is the former process, which keeps the keys for the next."""
        return worker is not None and worker is self.parking.worker

    # --- tasks ------------------------------------------------------------------------

    def _refuse(self, worker: Any) -> None:
        why = restart_refusal(
            nanny=bool(worker.nanny) or self.retire,
            status="running" if is_parking(worker.name) else worker.status.name,
            actors=len(worker.actors),
        )
        if why:
            raise Refused(why)

    async def _refuse_unsendable(self, worker: Any, keys: Any = None) -> None:
        """Find keys that cannot be sent; a former process keeps such keys."""
        await self.unsendable.find(worker, keys, ending=self.end_tasks)
        text = str(self.unsendable)
        if text and not (is_parking(worker.name) or self.end_tasks):
            raise Refused(f"it has keys that cannot be sent: {text}. {RELEASE}")

    def _block_tasks(self, worker: Any) -> None:
        """Stop the assignment of tasks to the worker; save its own status."""
        if worker.status.name in USABLE:
            self.own_status = worker.status
            set_status(self.scheduler, worker, Status.closing_gracefully)

    async def _wait_for_tasks(self, worker: Any) -> None:
        """Wait for its tasks, and for shuffles that keep rows in its process.

        The worker gets new tasks only while a shuffle runs, because the tasks that end
        a shuffle are bound to workers.
        """
        end = monotonic() + self.wait
        while True:
            if not self._is_registered(worker):
                raise Refused("it ended during the wait for its tasks")
            shuffling = bool(shuffles(self.scheduler, worker))
            if not shuffling:
                self._block_tasks(worker)
                take_tasks_back(self.scheduler, worker, self.requested_tasks)
            elif worker.status is Status.closing_gracefully:
                set_status(self.scheduler, worker, self.own_status)
            if not shuffling and not worker.processing:
                break
            if self.stopped:
                raise Refused("stopped")
            if monotonic() > end:
                if not self.end_tasks:
                    raise Refused(still_busy(self.scheduler, worker, self.wait))
                self._block_tasks(worker)
                await cancel(self.scheduler, failed_fits(self.scheduler, worker))
                self.ended_tasks = len(worker.processing)
                break
            await asyncio.sleep(POLL_INTERVAL)
        if frozen := await silence(self.scheduler, worker):
            raise Refused(frozen)
        await self._refuse_silent_nanny(worker)

    async def _refuse_silent_nanny(self, worker: Any) -> None:
        nannies = () if self.retire else (worker.nanny,)
        if silent := await silent_nannies(self.scheduler, nannies):
            raise Refused(silent)

    def _refuse_begun(self, worker: Any) -> None:
        if not self.end_tasks and (begun := begun_work(self.scheduler, worker)):
            raise Refused(begun)

    # --- the next process, while the former one keeps its keys ------------------------

    async def _replace(self, worker: Any) -> bool:
        """Start the next process; return whether the former one keeps the keys for it.

        Other restarts on the same host may still fill memory there.
        """
        if self.retire or not self.parking.may_open() or not worker.has_what:
            return False
        if worker.resources:
            self.detour = "two processes would count its resources twice"
            return False
        self._refuse_late(worker)
        self._block_tasks(worker)
        self._refuse_begun(worker)
        nanny = worker.nanny
        if self.resizing is not None:
            await self._change_size(nanny)
        self.doing = "starting its next process"
        others = self.scheduler.workers.values()
        kept = [w for w in others if w.host == worker.host and is_parking(w.name)]
        nbytes = sum(counted_bytes(w) for w in (worker, *kept))
        seconds = max(0.0, self.end - monotonic())
        self.detour, failure = await self.parking.replace(worker, nbytes, seconds)
        if failure:
            raise Refused(f"its next process did not start: {failure}")
        if self.detour:
            if self.resizing is not None:
                await self.resizing.settle(nanny, keep=False)
            return False
        self.touched = True
        if self.parking.is_open():  # a lower limit must have room for these keys
            await self.evacuation.note_kept(worker)
        return True

    # --- emptying ---------------------------------------------------------------------

    async def _empty(self, worker: Any) -> None:
        """Move all its keys away; keys with other replicas are only dropped here."""
        self.touched = True
        self.doing = MOVING_AWAY
        left: Mapping[str, int] = {}
        for _ in range(MAX_ROUNDS):
            self._refuse_late(worker)
            self._block_tasks(worker)
            if not self._remaining(worker):
                break
            wanted = await self.evacuation.targets(
                worker,
                self.own_status.name,
                self.unsendable.staying,
                max(0.0, self.end - monotonic()),
                partial(setattr, self, "doing"),
            )
            parked = self.parking.worker
            parking = () if parked is None else (parked.address,)
            # tasks that will be ended still need their inputs
            sources = () if self.end_tasks else {self.address}
            policy = MovePolicy(wanted, self.process_limits, sources, parking)
            await move_until(self.scheduler, policy, self.hold, self._is_over)
            self.nbytes += policy.nbytes
            left = policy.left
            if policy.unsent and self._is_registered(worker):
                await self._refuse_unsendable(worker, policy.unsent)
            if not self._is_registered(worker):
                # a parking worker closes by itself once it is empty
                if is_parking(worker.name) and self.held.count_lost() == 0:
                    return
                raise Refused("it ended while its keys were moved away")
            if not wanted:
                break  # only keys that cannot be sent are left
            if self.parking.worker is not None and left and not policy.done:
                break  # there is only one target, so another round would not help
        self._refuse_remaining(worker, left)

    def _refuse_remaining(self, worker: Any, left: Mapping[str, int]) -> None:
        """Refuse to end a worker that still has keys, tasks or shuffles."""
        text = "" if self.end_tasks else str(self.unsendable)
        if text:
            raise Refused(
                f"{plural(len(worker.has_what), 'key')} cannot be sent: {text}. "
                f"{RELEASE}"
            )
        if keys := self._remaining(worker):
            raise Refused(f"{keys} keys could not be moved away: {reasons(left)}")
        self._refuse_begun(worker)

    def _remaining(self, worker: Any) -> int:
        """Count the keys that forbid to end a worker."""
        if not self.end_tasks:
            return len(worker.has_what)
        lost, parked = self.unsendable.staying, self.parking.worker
        return sum(
            t.key not in lost and is_only_on(t, worker, self.scheduler, parked)
            for t in worker.has_what
        )

    def _is_over(self) -> bool:
        """Whether the job was stopped, or the caller's time is over."""
        return self.stopped or monotonic() > self.end

    def _refuse_late(self, worker: Any) -> None:
        if self.stopped:
            raise Refused("stopped")
        if monotonic() > self.end:
            keys = len(worker.has_what)
            left = f"{keys} keys were still there" if keys else "its process still ran"
            raise Refused(f"{left} after {self.timeout:.0f} s")

    # --- the new process --------------------------------------------------------------

    async def _close(self, worker: Any) -> str:
        if not self._is_registered(worker):
            return ""
        closing = self.scheduler.retire_workers(
            workers=[self.address],
            close_workers=True,
            remove=True,
            stimulus_id=f"clustertune-retire-{time()}",
        )
        with suppress(asyncio.TimeoutError):  # another move of Dask may never end
            if self.address in await within(closing, self._undo_end() - monotonic()):
                return ""
        drop_retirement(self.scheduler, self.address)
        self.not_undone = left = await self._undo(worker)
        return "; ".join(filter(None, ["the scheduler did not close it", left]))

    async def _restart(self, who: Any, end: float) -> str:
        """Have the nanny end the process, and wait for the next one."""
        answer, old = "", self.process
        away = [] if self._keeps_keys(old) else [old]
        with expecting(self.scheduler, away):
            if away and self._is_registered(old):
                answer = await end_process(self.scheduler, old.address)
            if await self._returns(who, end):
                return ""
        # OK is the nanny's answer about the old process, not about the new one
        nanny = "has ended it" if answer == "OK" else f"answered {answer or 'nothing'}"
        where = "; its keys are on other workers" if self.parking.worker is None else ""
        return (
            f"it did not come back within {self.timeout:g} s (its nanny {nanny}){where}"
        )

    async def _returns(self, who: Any, end: float) -> bool:
        """Wait for the next process of a nanny, and bind the bound tasks to it.

        The process may have the old address. The wait ends if the nanny is silent.
        """
        statuses = [Status.running]
        if self.resizing is not None:  # a process that is too small pauses
            statuses.append(Status.paused)
        watch = NannyWatch(self.scheduler, who[0])
        while True:
            for ws in list(self.scheduler.workers.values()):
                new = ws is not self.process and identity(ws) == who
                if new and ws.status in statuses:
                    await self._use_process(ws)
                    return True
            if monotonic() > end or await watch.is_silent():
                return False
            await asyncio.sleep(POLL_INTERVAL)

    async def _use_process(self, worker: Any) -> None:
        """Continue with this process of the worker."""
        self.process, self.new_address = worker, worker.address
        self.held.own.add(worker.address)
        gone = self.held.former - {worker.address}
        await follow(self.scheduler, self.bound, gone, worker.address)
        self.held.former.add(worker.address)

    # --- another size -----------------------------------------------------------------

    async def _change_size(self, nanny: str) -> None:
        assert self.resizing is not None
        self.doing = "sending the new size to its nanny"
        problem = await self.resizing.change(nanny)
        if problem:
            raise Refused(f"its nanny did not take the new size: {problem}")

    async def _settle_size(self, who: Any, problem: str) -> tuple[str, str]:
        """Keep the size, or restart the new, empty process with the former size.

        Returns a problem that ends the job, and a note for a job that continues.
        """
        assert self.resizing is not None
        size, nanny = self.resizing, who[0]
        why = problem or size.shortage(self.process, self.held.nbytes())
        if not why:
            size.kept = True
            return "", await size.settle(nanny, keep=True)
        await size.undo(nanny)
        self.doing = "restarting with its former size"
        failure = await self._restart(who, self._undo_end())
        if failure:
            return f"{why}; with its former size {failure}", ""
        return "", f"{why}; it was restarted with its former size"

    # --- bringing keys back -----------------------------------------------------------

    async def _bring_back(self, who: Any) -> str:
        """Move keys to the new process; repeat if it ends and keys are parked."""
        for _ in range(MAX_ROUNDS):
            problem = await self._bring_home(self.new_address)
            is_back = bool(self.new_address) and self._is_registered(self.process)
            if not problem or not self.parking.is_open() or is_back:
                break
            if not await self._returns(who, self._undo_end()):
                break
        return problem

    async def _end_parking(self) -> str:
        """Close the parking worker; first move keys that only it has elsewhere.

        They go to the new process if they arrived late, or to other workers if the new
        process did not come. Without room, they stay; the text reports it.
        """
        staying = self.unsendable.staying
        lost = staying if self.end_tasks else ()
        texts = []
        if alone := self.parking.alone(lost, self.process):
            back = self.process in self.scheduler.running
            most = 0 if self.resizing is None else self.resizing.most
            limits = {self.process.address: most} if back else self.process_limits
            wanted = await self.evacuation.away_from_parking(limits, staying)
            policy = MovePolicy(wanted, limits, ())  # the replicas there end with it
            await self._move_back(policy)
            moved = alone - self.parking.alone(lost, self.process)
            if moved and not back:
                texts = [f"{plural(moved, 'key')} moved to other workers"]
        why, at_once = str(self.unsendable), self.end_tasks
        texts.append(await self.parking.close(why, lost, self.process, at_once=at_once))
        return "; ".join(filter(None, texts))

    async def _move_back(self, policy: MovePolicy) -> None:
        """Move keys while that makes progress; the wait for Dask's moves is limited."""
        over = partial(policy.is_blocked, self.end, GRACE)
        await move_until(self.scheduler, policy, self.hold, over)
        self.nbytes += policy.nbytes

    async def _bring_home(self, address: str) -> str:
        """Move existing keys back; copy the keys that had other replicas."""
        if self.parking.is_open() and self._keeps_keys(self.old_process):
            await self.evacuation.note_kept(self.old_process)
        target = self.scheduler.workers.get(address)
        if target is not None and self.parking.is_open():
            files = await self.evacuation.spilled_files(self.parking.worker)
            await self.parking.adopt(target, files)
        moved, copied = await self.held.to_return(address)
        left: Counter[str] = Counter()
        most = self.resizing.most if self.resizing is not None else 0
        # a former process that ends its tasks still needs their inputs
        all_others = () if self.end_tasks and self.parking.nanny else None
        for wanted, sources in ((moved, all_others), (copied, ())):
            process_limits = {address: most} if most else {}
            policy = MovePolicy(wanted, process_limits, sources, (address,))
            await self._move_back(policy)
            left += policy.left
            if policy.unsent and self.parking.is_open():
                await self.unsendable.find(self.parking.worker, policy.unsent)
        # a key that was released meanwhile is not missing
        places = [self.held.holders(key) for key, _ in (*moved, *copied)]
        missing = sum(bool(found) and address not in found for found in places)
        if not missing:
            return ""
        former = self._keeps_keys(self.old_process)
        where = "its former process" if former else "other workers"
        return f"{missing} keys are still on {where} ({reasons(left)})"
