"""Wait for idle times, and carry out scheduled restarts.

One task reads the scheduler's state every second while a schedule waits. It restarts
workers one at a time, as a client does, and holds the lease for one worker only. A fit,
a hold or a plan that comes meanwhile waits for one worker at most. The remaining
workers then wait for the next gap.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from time import time
from typing import Any
from uuid import uuid4

from clustertune.core.rules import needed_elsewhere, problem
from clustertune.remote.scheduler.lease import SCHEDULER_OWNER, TOPIC
from clustertune.remote.scheduler.nanny import ANSWER_TIMEOUT, call
from clustertune.remote.scheduler.schedule import Moment, Schedule
from clustertune.remote.scheduler.state import (
    begun_tasks,
    free_bytes,
    id_of,
    is_parking,
    training_workers,
)
from clustertune.remote.scheduler.survey import held_data

logger = logging.getLogger("distributed.clustertune")

POLL_INTERVAL = 1.0  # seconds between two looks; more on large clusters
PAUSE = 1.0  # seconds between two workers, in which others can take the lease
RETRY = 30.0  # seconds between two looks at conditions and room
MAX_WAITING = 20
MAX_ENDED = 20


class ScheduleRunner:
    """The schedules of one scheduler, by name.

    It uses the lease and the restarts of the scheduler plugin.
    """

    def __init__(self, plugin: Any):
        self.plugin = plugin
        self.scheduler = plugin.scheduler
        self.kept: dict[str, Schedule] = {}
        self.task: asyncio.Task[None] | None = None
        self.idle_since = time()
        self.seen = -1  # transitions of tasks
        self.again, self.pause = RETRY, PAUSE
        self.max_waiting, self.max_ended = MAX_WAITING, MAX_ENDED

    # --- requests ---------------------------------------------------------------------

    def add(self, terms: Mapping[str, Any]) -> dict[str, Any]:
        """Add a schedule; ``refused`` if too many schedules wait."""
        if len(self._waiting()) >= self.max_waiting:
            text = f"{self.max_waiting} restarts wait already: cancel some of them"
            return {"refused": text}
        now, name = time(), uuid4().hex[:6]
        self.kept[name] = Schedule(name, terms, now)
        self._log(self.kept[name], "made")
        self._begin_watch()
        return self.kept[name].describe(now)

    def _begin_watch(self) -> None:
        if self.task is None or self.task.done():
            self.idle_since, self.seen = time(), -1
            self.task = asyncio.ensure_future(self._watch())

    def listed(self) -> list[dict[str, Any]]:
        return [s.describe(time()) for s in self.kept.values()]

    def cancel(self, name: str) -> dict[str, Any] | None:
        """Cancel a schedule: at once, or after the current worker."""
        schedule = self.kept.get(name)
        if schedule is None:
            return None
        if not schedule.ended:
            schedule.cancelled = True
            if schedule.state == "waiting":
                self._note(schedule, "cancelled")
        return schedule.describe(time())

    def running(self) -> dict[str, Any] | None:
        """Return the schedule that restarts workers now: client, label and since."""
        for schedule in self.kept.values():
            if schedule.state == "running":
                whose = {"client": schedule.terms["owner"], "since": schedule.made}
                return whose | {"label": f"a scheduled restart ({schedule.name})"}
        return None

    def state(self) -> dict[str, Any]:
        """Return plain data for :meth:`restore` of the next plugin."""
        return {"kept": [s.to_state() for s in self.kept.values()]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue the schedules of another plugin."""
        for one in state["kept"]:
            schedule = Schedule.from_state(one)
            self.kept[schedule.name] = schedule
        if self._waiting():
            self._begin_watch()

    def close(self, handed_over: bool = False) -> list[asyncio.Task[None]]:
        """Stop waiting; return the cancelled task."""
        for schedule in () if handed_over else self._waiting():
            self._note(schedule, "cancelled")
        if self.task is None:
            return []
        self.task.cancel()
        return [self.task]

    # --- waiting ----------------------------------------------------------------------

    def _waiting(self) -> list[Schedule]:
        return [s for s in self.kept.values() if not s.ended]

    async def _watch(self) -> None:
        while waiting := self._waiting():
            for schedule in waiting:
                await self._check_safely(schedule)
            await asyncio.sleep(self._tick())

    async def _check_safely(self, schedule: Schedule) -> None:
        try:
            await self._check(schedule)
        except Exception as error:
            logger.exception("clustertune's scheduled restart failed")
            self._note(schedule, "failed", repr(error))

    def _tick(self) -> float:
        idle_for: list[float] = [s.terms["idle_for"] / 4 for s in self._waiting()]
        # a large cluster is read less often: below 1 ms of each second
        shortest = min([POLL_INTERVAL, *idle_for])
        return max(shortest, 0.05, len(self.scheduler.workers) / 500)

    def _moment(self) -> Moment:
        """Return the current state; earlier tasks and holds count as work."""
        scheduler, now = self.scheduler, time()
        tasks = sum(begun_tasks(ws) for ws in scheduler.workers.values())
        queued = len(scheduler.queued) if scheduler.running else 0
        holder = self.plugin.lease.in_use()
        worked = scheduler.transition_counter != self.seen
        if tasks or queued or worked or holder is not None:
            self.idle_since = now
        self.seen = scheduler.transition_counter
        return Moment(now, tasks, queued, self.idle_since, holder)

    async def _check(self, schedule: Schedule) -> None:
        moment = self._moment()
        if schedule.ended:  # it was cancelled while another schedule had its turn
            return
        if moment.now >= schedule.terms["expires"]:
            self._note(schedule, "expired")
            return
        reason = schedule.obstacle(moment)
        if reason is not None:
            schedule.wait(reason)
            return
        if schedule.left is None and not self._is_met(schedule):
            return
        workers = self._workers(schedule)
        if schedule.left is not None and not workers:
            self._note(schedule, "done", "the remaining workers are gone")
            return
        problem = await self._obstacle(schedule, workers)
        if problem:
            schedule.wait({"for": "room", "text": problem}, time() + self.again)
        elif not schedule.ended and schedule.obstacle(self._moment()) is None:
            await self._roll(schedule, workers)

    def _is_met(self, schedule: Schedule) -> bool:
        runs, findings = self.plugin.runs.kept, self.plugin.findings
        yes, text = schedule.is_met(self.scheduler, runs, findings)
        if yes:
            return True
        if schedule.instants:  # the next instant gives it another chance
            self._note(schedule, "not needed", text)
        else:
            schedule.wait({"for": "condition", "text": text}, time() + self.again)
        return False

    # --- obstacles --------------------------------------------------------------------

    def _workers(self, schedule: Schedule) -> dict[Any, Any]:
        """Return the workers to restart, by id; "all" includes later workers."""
        there = {id_of(ws): ws for ws in training_workers(self.scheduler)}
        wanted = schedule.left
        if wanted is None:
            wanted = schedule.terms["workers"]
        if wanted is None:
            return there
        return {id: there[id] for id in wanted if id in there}

    async def _obstacle(self, schedule: Schedule, workers: Mapping[Any, Any]) -> str:
        """Return why one of the workers cannot be restarted now, or ""."""
        if not workers:
            return "none of its workers is on the cluster"
        if any(is_parking(ws.name) for ws in self.scheduler.workers.values()):
            return (
                "an earlier restart has left keys on a parking worker: `clustertune "
                "restart` brings them back"
            )
        found = await held_data(self.scheduler, [ws.address for ws in workers.values()])
        ceilings = self._lines(schedule).items()
        there = self.scheduler.workers
        # most free memory first, so that most workers fit at the first attempt
        rooms = sorted(
            ((free_bytes(there[a], most), a) for a, most in ceilings), reverse=True
        )
        for id, ws in workers.items():
            if ws.address in found:
                why = await self._reason(schedule, id, ws, found[ws.address], rooms)
                if why:
                    return why
        return ""

    async def _reason(
        self,
        schedule: Schedule,
        id: Any,
        worker: Any,
        held: Sequence[int],
        rooms: Sequence[tuple[float, str]],
    ) -> str:
        _, _, nbytes, _, actors = held
        if not worker.nanny:
            return f"worker {id} has no nanny that could start it again"
        if actors:
            return f"worker {id} holds {actors} actors, which cannot be moved"
        free = None
        for room, address in rooms:
            if address != worker.address:
                free = (free or 0.0) + room
                if free >= nbytes:
                    return ""
        if not nbytes:
            return ""
        in_memory = max(0, nbytes - worker.memory.spilled)
        in_nanny = await self._room_in_nanny(schedule, worker)
        why = problem(nbytes, in_memory, free, in_nanny)
        return why and f"no headroom for worker {id}: {why}"

    async def _room_in_nanny(self, schedule: Schedule, worker: Any) -> Any:
        """Return the free bytes for a parking worker, or why they are unknown."""
        code = self._parking(schedule, worker)
        if not code:
            return "unknown, because the worker came after the restart was scheduled"
        wanted = {"what": "room"}
        room, why = await call(
            self.scheduler, worker.nanny, code, wanted, ANSWER_TIMEOUT
        )
        return f"unknown: {why}" if why else room

    def _parking(self, schedule: Schedule, worker: Any) -> bytes:
        """Return the code of a parking worker, if its nanny may receive code."""
        terms = schedule.terms
        code: bytes = terms["parking"] if worker.nanny in terms["nannies"] else b""
        return code

    def _ceilings(self, schedule: Schedule, worker: Any) -> dict[str, int]:
        """Return the process limits of the workers that accept a worker's keys."""
        lines = self._lines(schedule)
        lines.pop(worker.address, None)
        return lines

    def _lines(self, schedule: Schedule) -> dict[str, int]:
        """Return by address the process memory at which a worker spills or pauses.

        A worker that came later is assumed to be like the others.
        """
        lines = {id: min(at.values()) for id, at in schedule.lines.items() if at}
        lowest = min(lines.values(), default=0.0)
        found = {}
        for ws in self.scheduler.running:
            if is_parking(ws.name):
                continue
            id = id_of(ws)
            line = lines.get(id, 0.0 if id in schedule.lines else lowest)
            found[ws.address] = int(line * (ws.memory_limit or 0))
        return found

    # --- the restart ------------------------------------------------------------------

    async def _roll(self, schedule: Schedule, workers: Mapping[Any, Any]) -> None:
        """Restart workers one at a time, until an interruption."""
        schedule.state, schedule.waits = "running", {}
        workers = await self._ordered(workers)
        schedule.left = list(workers)
        self._log(schedule, "began")
        began = time()
        turns: list[dict[str, Any]] = []
        for id, worker in workers.items():
            if turns:
                await asyncio.sleep(self.pause)
            outcome, problem = self._interruption(schedule, began)
            if not outcome and self.scheduler.workers.get(worker.address) is worker:
                turn = await self._turn(schedule, worker)
                turns.append({"worker": id} | turn)
                outcome, problem = self._judge(turn)
                if turn["address"]:
                    schedule.left.remove(id)
            elif not outcome:  # the worker has left
                schedule.left.remove(id)
            if outcome:
                self._note(schedule, outcome, problem, turns)
                return
        self._note(schedule, "done", turns=turns)

    async def _ordered(self, workers: Mapping[Any, Any]) -> dict[Any, Any]:
        """Sort the workers by the memory that they need on others, smallest first."""
        found = await held_data(self.scheduler, [ws.address for ws in workers.values()])

        def needed(item: tuple[Any, Any]) -> int:
            ws = item[1]
            nbytes = found[ws.address][2] if ws.address in found else 0
            return needed_elsewhere(ws.status.name, ws.memory.spilled, nbytes)

        return dict(sorted(workers.items(), key=needed))

    def _judge(self, turn: Mapping[str, Any]) -> tuple[str, str]:
        """Return the outcome of a worker's restart, and its problem."""
        if turn["lost"]:
            return "lost", f"{turn['lost']} keys were lost; {turn['problem']}"
        if not turn["problem"]:
            return "", ""
        moment = self._moment()
        busy = turn["held"] or moment.tasks or moment.queued
        # a restart that a task or another plan has prevented
        prevented = not turn["address"] and busy
        return ("interrupted" if prevented else "failed"), turn["problem"]

    def _interruption(self, schedule: Schedule, since: float) -> tuple[str, str]:
        """Return a reason to stop between two workers; ended tasks count."""
        moment = self._moment()
        if schedule.cancelled:
            return "cancelled", ""
        if moment.now >= schedule.terms["expires"]:
            return "expired", ""
        if moment.holder is not None:
            return "interrupted", f"by {moment.holder['label']}"
        # a fit between two phases continues in a moment
        if moment.tasks or moment.queued or moment.idle_since > since:
            return "interrupted", "tasks came"
        return "", ""

    async def _turn(self, schedule: Schedule, worker: Any) -> dict[str, Any]:
        """Restart one worker under the lease."""
        plugin, terms, token = self.plugin, schedule.terms, uuid4().hex
        ceilings = self._ceilings(schedule, worker)
        label = f"a scheduled restart ({schedule.name})"
        answer = plugin.acquire(SCHEDULER_OWNER, label, token)
        if "holder" in answer:
            nothing = {"address": "", "keys": 0, "nbytes": 0, "lost": 0, "held": True}
            return nothing | {"problem": f"held by {answer['holder']['label']}"}
        try:
            name = await plugin.restart_worker(
                token,
                worker.address,
                terms["collections"],
                list(ceilings),
                list(ceilings.values()),
                terms["wait"],
                terms["timeout"],
                parking=self._parking(schedule, worker),
            )
            job = plugin.jobs.kept[name]
            problem = await job.task
        finally:
            plugin.release(token)
        state: dict[str, Any] = job.work.state()
        return state | {"problem": problem, "held": False}

    # --- results ----------------------------------------------------------------------

    def _note(
        self,
        schedule: Schedule,
        outcome: str,
        problem: str = "",
        turns: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Record the result of an attempt, and change the schedule's state."""
        now = time()
        result = {
            "time": now,
            "outcome": outcome,
            "problem": problem[:500],
            "restarted": [turn["worker"] for turn in turns if turn["address"]],
            "left": list(schedule.left or ()),
            "keys": sum(turn["keys"] for turn in turns),
            "nbytes": sum(turn["nbytes"] for turn in turns),
            "lost": sum(turn["lost"] for turn in turns),
        }
        if turns or outcome not in ("cancelled", "expired"):
            schedule.results.append(result)
        if outcome == "done":
            schedule.restarted = now
        if outcome in ("done", "not needed"):
            schedule.end_instant(now)
        elif outcome == "failed":
            schedule.failed(now)
        elif outcome == "lost":
            schedule.end("failed")
        elif outcome == "interrupted":
            schedule.wait_for_next_gap(now)
        if outcome in ("cancelled", "expired"):
            schedule.end(outcome)
        elif schedule.cancelled and not schedule.ended:
            schedule.end("cancelled")
        self._log(schedule, outcome, result)
        self._forget()

    def _forget(self) -> None:
        ended = [name for name, s in self.kept.items() if s.ended]
        for name in ended[: -self.max_ended]:
            del self.kept[name]

    def _log(
        self, schedule: Schedule, state: str, result: Mapping[str, Any] | None = None
    ) -> None:
        event = {"action": "schedule", "id": schedule.name, "state": state}
        event |= {k: schedule.terms[k] for k in ("owner", "reason")}
        self.scheduler.log_event(TOPIC, event | dict(result or {}))
