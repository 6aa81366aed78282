"""Wait for idle times, and carry out scheduled restarts.

One task reads the scheduler's state every second while a schedule waits. It restarts
workers one at a time, as a client does, and holds the lease for one worker only. A fit,
a hold or a plan that comes meanwhile waits for one worker at most. The remaining
workers then wait for the next gap. A worker that cannot be restarted is left as it is,
and the others are restarted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from time import monotonic, time
from typing import Any
from uuid import uuid4

from distributed.versions import get_versions

from clustertune.core import rules
from clustertune.core.wording import plural
from clustertune.remote.scheduler.lease import SCHEDULER_OWNER, TOPIC, growth
from clustertune.remote.scheduler.schedule import Moment, Schedule, result_text
from clustertune.remote.scheduler.state import (
    begun_tasks,
    id_of,
    is_parking,
    memory_of,
    training_workers,
)
from clustertune.remote.scheduler.survey import held_data
from clustertune.remote.ship import objections

logger = logging.getLogger("distributed.clustertune")

POLL_INTERVAL = 1.0  # seconds between two looks; more on large clusters
WAIT = 10.0  # seconds to wait for tasks that begin on a worker just before its turn
PAUSE = 1.0  # seconds between two workers, in which others can take the lease
RETRY = 30.0  # seconds between two looks at workers that cannot be restarted yet
MAX_WAITING = 20
MAX_ENDED = 20
MAX_TEXT = 500  # characters of a problem
MAX_NAMED = 3  # workers in a text


class ScheduleRunner:
    """The schedules of one scheduler, by name.

    It uses the lease and the restarts of the scheduler plugin.
    """

    def __init__(self, plugin: Any):
        self.plugin = plugin
        self.scheduler = plugin.scheduler
        self.kept: dict[str, Schedule] = {}
        #: schedules of the scheduler's configuration that could not be added yet
        self.refused: dict[str, Schedule] = {}
        self.task: asyncio.Task[None] | None = None
        self.idle_since = monotonic()
        self.seen = -1  # transitions of tasks
        self.again, self.pause = RETRY, PAUSE
        self.max_waiting, self.max_ended = MAX_WAITING, MAX_ENDED

    # --- requests ---------------------------------------------------------------------

    def answer(
        self, add: Mapping[str, Any] | None = None, cancel: str = ""
    ) -> dict[str, Any]:
        """Add or cancel a schedule, if one is given; return it, and all schedules."""
        one = None if add is None else self.add(add)
        one = self.cancel(cancel) if cancel else one
        return {"one": one, "all": self.listed()}

    def add(self, terms: Mapping[str, Any]) -> dict[str, Any]:
        """Add a schedule; ``refused`` if too many schedules wait."""
        if len(self._waiting()) >= self.max_waiting:
            text = f"{self.max_waiting} restarts wait already: cancel some of them"
            return {"refused": text}
        now, name = time(), uuid4().hex[:6]
        self.kept[name] = Schedule(name, terms, now, monotonic())
        self._log(self.kept[name], "made")
        if self.task is None or self.task.done():
            self.idle_since, self.seen = monotonic(), -1
            self.task = asyncio.ensure_future(self._watch())
        return self.kept[name].describe(now)

    def refuse(self, name: str, terms: Mapping[str, Any], problem: str) -> bool:
        """List a schedule of the configuration; return whether the problem is new."""
        schedule = Schedule(name, terms, time(), monotonic())
        schedule.state = "refused"
        schedule.waits = problem[:MAX_TEXT]
        known = self.refused.get(name)
        if known is not None and known.waits == schedule.waits:
            return False
        self.refused[name] = schedule
        self._log(schedule, "refused", {"problem": problem[:MAX_TEXT]})
        return True

    def listed(self) -> list[dict[str, Any]]:
        """Return waiting, running and ended schedules, and refused ones first."""
        every = [*self.refused.values(), *self.kept.values()]
        return [s.describe(time()) for s in every]

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

    def close(self) -> list[asyncio.Task[None]]:
        """Return the task that is to be cancelled."""
        for schedule in self._waiting():
            self._note(schedule, "cancelled")
        return [] if self.task is None else [self.task]

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
        scheduler, clock = self.scheduler, monotonic()
        tasks = sum(begun_tasks(ws) for ws in scheduler.workers.values())
        queued = len(scheduler.queued) if scheduler.running else 0
        holder = self.plugin.lease.in_use()
        worked = scheduler.transition_counter != self.seen
        if tasks or queued or worked or holder is not None:
            self.idle_since = clock
        self.seen = scheduler.transition_counter
        return Moment(time(), clock, tasks, queued, self.idle_since, holder)

    async def _check(self, schedule: Schedule) -> None:
        moment = self._moment()
        if schedule.ended:  # it was cancelled while another schedule had its turn
            return
        if moment.now >= schedule.terms["expires"]:
            self._note(schedule, "expired")
            return
        if reason := schedule.obstacle(moment):
            schedule.wait(reason)
            return
        if any(is_parking(ws.name) for ws in self.scheduler.workers.values()):
            text = (
                "an earlier restart has left keys on a parking worker: `clustertune "
                "restart` brings them back"
            )
            schedule.wait(text, moment.clock + self.again)
            return
        workers, refused = self._due(schedule)
        if workers:
            await self._roll(schedule, workers, refused)
        elif schedule.left is not None:
            self._note(schedule, "done", "the remaining workers are gone")
        else:
            self._wait_for_workers(schedule, refused, moment.clock)

    def _wait_for_workers(
        self, schedule: Schedule, refused: Mapping[Any, str], clock: float
    ) -> None:
        text = _texts(refused) or "none of its workers is on the cluster"
        if needless := schedule.terms["if_needed"] and not refused:
            text = "no worker needs a restart"
        if needless and schedule.instants:  # the next instant is another chance
            self._note(schedule, "not needed", text)
        else:
            schedule.wait(text, clock + self.again)

    # --- workers ----------------------------------------------------------------------

    def _due(self, schedule: Schedule) -> tuple[dict[Any, Any], dict[Any, str]]:
        """Return the workers to restart, and why others cannot be restarted, by id.

        All workers of a schedule include later ones.
        """
        there = {id_of(ws): ws for ws in training_workers(self.scheduler)}
        wanted = schedule.terms["workers"] if schedule.left is None else schedule.left
        if wanted is not None:
            there = {id: there[id] for id in wanted if id in there}
        if schedule.left is None and schedule.terms["if_needed"]:
            reasons = self._needs(schedule, there)
            there = {id: ws for id, ws in there.items() if reasons[id]}
        ours = get_versions()["packages"]
        whether = {
            id: rules.restart_refusal(nanny=bool(ws.nanny)) or _other_version(ws, ours)
            for id, ws in there.items()
        }
        refused = {id: why for id, why in whether.items() if why}
        return {id: ws for id, ws in there.items() if id not in refused}, refused

    def _needs(self, schedule: Schedule, there: Mapping[Any, Any]) -> dict[Any, str]:
        """Return why each worker needs a restart, or ""; see ``restart_reason``."""
        limits = {id: ws.memory_limit or 0 for id, ws in there.items()}
        least = {id: rules.LEAST_GROWTH * limit for id, limit in limits.items()}
        grows = growth(self.plugin.runs.kept, least)
        thresholds, found = self._thresholds(schedule), {}
        for id, ws in there.items():
            memory = memory_of(ws)
            found[id] = rules.restart_reason(
                {name: int(x * limits[id]) for name, x in thresholds[id].items()},
                memory.process,
                memory.managed,
                paused=ws.status.name == "paused",
                growth=int(grows.get(id) or 0),
                fresh=schedule.terms["fresh"],
            )
        return found

    def _thresholds(self, schedule: Schedule) -> dict[Any, dict[str, float]]:
        """Return by id the thresholds of process memory, as fractions of its limit.

        A worker that came later is assumed to have the lowest ones.
        """
        known: dict[Any, dict[str, float]] = dict(schedule.terms["thresholds"])
        some = [at for at in known.values() if at]
        lowest: dict[str, float] = min(
            some, key=lambda at: min(at.values()), default={}
        )
        ids = map(id_of, training_workers(self.scheduler))
        return {id: known.get(id, lowest) for id in ids}

    def _ceilings(self, schedule: Schedule, worker: Any) -> dict[str, int]:
        """Return the process limits of the workers that accept a worker's keys."""
        thresholds = self._thresholds(schedule)
        return {
            ws.address: int(
                min(thresholds[id_of(ws)].values(), default=0.0)
                * (ws.memory_limit or 0)
            )
            for ws in self.scheduler.running
            if ws is not worker and not is_parking(ws.name)
        }

    # --- the restart ------------------------------------------------------------------

    async def _roll(
        self, schedule: Schedule, workers: Mapping[Any, Any], refused: dict[Any, str]
    ) -> None:
        """Restart workers one at a time, until an interruption."""
        schedule.state, schedule.waits = "running", ""
        workers = await self._ordered(workers)
        left = schedule.left = [*workers]
        self._log(schedule, "began")
        began = monotonic()
        turns: list[dict[str, Any]] = []
        for id, worker in workers.items():
            if turns:
                await asyncio.sleep(self.pause)
            outcome, problem = self._interruption(schedule, began)
            if outcome:
                self._note(schedule, outcome, problem, turns)
                return
            if self.scheduler.workers.get(worker.address) is not worker:  # it has left
                left.remove(id)
                continue
            turn = await self._turn(schedule, id, worker)
            turns.append(turn)
            outcome, problem = self._judge(turn)
            if turn["address"]:
                left.remove(id)
            if outcome == "refused":
                refused[id] = problem
            elif outcome:
                self._note(schedule, outcome, problem, turns)
                return
        outcome = "partly" if left else "done"
        self._note(schedule, outcome, _texts(refused), turns)

    async def _ordered(self, workers: Mapping[Any, Any]) -> dict[Any, Any]:
        """Sort the workers by the memory that they need on others, smallest first."""
        found = await held_data(self.scheduler, [ws.address for ws in workers.values()])

        def needed(item: tuple[Any, Any]) -> int:
            ws = item[1]
            nbytes = found[ws.address][2] if ws.address in found else 0
            return rules.needed_elsewhere(ws.status.name, ws.memory.spilled, nbytes)

        return dict(sorted(workers.items(), key=needed))

    def _judge(self, turn: Mapping[str, Any]) -> tuple[str, str]:
        """Return the outcome of a worker's restart, and its problem."""
        if turn["lost"] is None:
            return (
                "interrupted",
                "a client restarted the cluster: lost keys are unknown",
            )
        if turn["lost"]:
            return "lost", f"{turn['lost']} keys were lost; {turn['problem']}"
        if not turn["problem"]:
            return "", ""
        moment = self._moment()
        if not turn["address"] and (turn["held"] or moment.tasks or moment.queued):
            return "interrupted", turn["problem"]
        return ("refused" if turn["unchanged"] else "failed"), turn["problem"]

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

    async def _turn(self, schedule: Schedule, id: Any, worker: Any) -> dict[str, Any]:
        """Restart one worker under the lease."""
        plugin, terms, token = self.plugin, schedule.terms, uuid4().hex
        ceilings = self._ceilings(schedule, worker)
        turn: dict[str, Any] = {"worker": id, "address": "", "unchanged": True}
        turn |= {"keys": 0, "nbytes": 0, "lost": 0, "seconds": 0.0, "held": False}
        label = f"a scheduled restart ({schedule.name})"
        answer = plugin.acquire(SCHEDULER_OWNER, label, token)
        if "holder" in answer:
            text = f"held by {answer['holder']['label']}"
            return turn | {"problem": text, "held": True}
        began = monotonic()
        try:
            name = await plugin.restart_workers(
                token,
                address=worker.address,
                collections=terms["collections"],
                process_limits=ceilings,
                wait=WAIT,
                timeout=terms["timeout"],
                parking=terms["parking"],
            )
            job = plugin.jobs.kept[name]
            problem = await job.task
        finally:
            lost = (await plugin.release(token))["lost"]
        turn |= job.work.state() | {"seconds": monotonic() - began}
        if turn["lost"] is not None:
            others = None if lost is None else sum(n for _, n, _ in lost)
            turn["lost"] = None if others is None else turn["lost"] + others
        return turn | {"problem": problem}

    # --- results ----------------------------------------------------------------------

    def _note(
        self,
        schedule: Schedule,
        outcome: str,
        problem: str = "",
        turns: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Record the result of an attempt, and change the schedule's state."""
        now, lost = time(), [turn["lost"] for turn in turns]
        result = {
            "time": now,
            "outcome": outcome,
            "problem": problem[:MAX_TEXT],
            "restarted": [turn["worker"] for turn in turns if turn["address"]],
            "left": list(schedule.left or ()),
            "keys": sum(turn["keys"] for turn in turns),
            "nbytes": sum(turn["nbytes"] for turn in turns),
            "lost": None if None in lost else sum(lost),  # None: unknown
        }
        repeated = outcome == "partly" and not result["restarted"]
        if not repeated and (turns or outcome not in ("cancelled", "expired")):
            schedule.last = result_text(result)
        schedule.settle(outcome, result["problem"], now, monotonic(), self.again)
        if not repeated:
            self._log(schedule, outcome, result)
        if turns:
            self._log_operation(schedule, outcome, result, turns)
        ended = [name for name, s in self.kept.items() if s.ended]
        for name in ended[: -self.max_ended]:
            del self.kept[name]

    def _log_operation(
        self,
        schedule: Schedule,
        outcome: str,
        result: Mapping[str, Any],
        turns: Sequence[Mapping[str, Any]],
    ) -> None:
        """Log the restarts like those of a client, for metrics and the audit trail."""
        steps = [
            {
                "action": "restart",
                "summary": f"restart worker {turn['worker']}",
                "status": _status(turn),
                "seconds": turn["seconds"],
                "nbytes": turn["nbytes"],
                "reason": str(turn["problem"])[:MAX_TEXT],
            }
            for turn in turns
        ]
        failed = outcome in ("failed", "lost")
        # a fit that begins meanwhile is no failure: the rest waits for the next gap
        waits = outcome == "interrupted" and result["lost"] == 0
        left = (outcome != "done" and not waits) or result["lost"] != 0
        rest = "; the others wait for the next gap" if waits else ""
        done = plural(len(result["restarted"]), "worker")
        event = {
            "action": "restart",
            "summary": f"restarted {done}" + ("; some are left" if left else rest),
            "status": "failed" if failed else "left" if left else "done",
            "schedule": schedule.name,
            "client": schedule.terms["owner"],
            "reason": schedule.terms["reason"],
            "seconds": sum(turn["seconds"] for turn in turns),
            "lost": result["lost"],
            "steps": steps,
            "problem": result["problem"],
        }
        self.scheduler.log_event(TOPIC, event)

    def _log(
        self, schedule: Schedule, state: str, result: Mapping[str, Any] | None = None
    ) -> None:
        event = {"action": "schedule", "id": schedule.name, "state": state}
        event |= {k: schedule.terms[k] for k in ("owner", "reason")}
        # Dask adds the time of the event
        own = {k: v for k, v in (result or {}).items() if k != "time"}
        self.scheduler.log_event(TOPIC, event | own)


def _other_version(worker: Any, ours: Mapping[str, Any]) -> str:
    """Return why a worker's nanny gets no code, or "".

    The code comes from a client with the versions of the scheduler. Workers send their
    versions when they join.
    """
    theirs = worker.versions.get("packages", {})
    return "; ".join(f"it {why}" for why in objections(ours, theirs, "the scheduler"))


def _status(turn: Mapping[str, Any]) -> str:
    """Return the outcome of one worker's restart, in the words of reports."""
    if not turn["problem"]:
        return "done"
    if turn["address"]:
        return "partly"
    return "refused" if turn["unchanged"] else "failed"


def _texts(refused: Mapping[Any, str]) -> str:
    """Name workers that were not restarted, with the reasons of the first ones."""
    shown = [f"worker {id}: {why}" for id, why in refused.items()]
    more = len(shown) - MAX_NAMED
    return "; ".join([*shown[:MAX_NAMED], *[f"and {more} more"] * (more > 0)])
