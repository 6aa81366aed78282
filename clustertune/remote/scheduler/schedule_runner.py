"""Wait for idle times, and carry out scheduled restarts.

One task reads the scheduler's state every second while a schedule waits. It restarts
workers one at a time, as a client does, and holds the lease for one worker only. A fit,
a hold or a plan that comes meanwhile waits for one worker at most. The remaining
workers then wait for the next gap. A worker that cannot be restarted is left as it is,
and the others are restarted. If none can be, the restart waits.
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
from clustertune.core.wording import utc_text
from clustertune.remote.scheduler.lease import SCHEDULER_OWNER, TOPIC, growth
from clustertune.remote.scheduler.schedule import (
    Moment,
    Schedule,
    busy_text,
    result_text,
)
from clustertune.remote.scheduler.state import (
    begun_tasks,
    id_of,
    is_parking,
    memory_of,
    other_versions,
    training_workers,
)
from clustertune.remote.scheduler.survey import held_data

logger = logging.getLogger("distributed.clustertune")

POLL_INTERVAL = 1.0  # seconds between two looks; more on large clusters
WAIT = 10.0  # seconds to wait for tasks that begin on a worker just before its turn
PAUSE = 1.0  # seconds between two workers, in which others can take the lease
RETRY = 30.0  # seconds between two looks at workers that cannot be restarted yet
MAX_ENDED = 20
CONFIGURED = "configured-"  # and a number: a schedule of the scheduler's configuration
MAX_TEXT = 500  # characters of a problem
MAX_STEPS = 400  # workers of an event
MAX_NAMED = 3  # workers in a text
NOT_NEEDED = "no worker needs a restart"
NO_WORKERS = "none of its workers is on the cluster"


class ScheduleRunner:
    """The schedules of one scheduler, by name.

    It uses the lease and the restarts of the scheduler plugin.
    """

    def __init__(self, plugin: Any):
        self.plugin = plugin
        self.scheduler = plugin.scheduler
        self.kept: dict[str, Schedule] = {}
        self.task: asyncio.Task[None] | None = None
        self.idle_since = monotonic()
        self.seen = -1  # transitions of tasks
        self.poll, self.again, self.pause = POLL_INTERVAL, RETRY, PAUSE
        self.max_ended = MAX_ENDED

    # --- requests ---------------------------------------------------------------------

    def answer(
        self, add: Mapping[str, Any] | None = None, cancel: str = ""
    ) -> dict[str, Any]:
        """Add or cancel a schedule, if one is given; return it, and all schedules."""
        one = None if add is None else self.add(add)
        one = self.cancel(cancel) if cancel else one
        return {"one": one, "all": self.listed()}

    def add(self, terms: Mapping[str, Any]) -> dict[str, Any]:
        """Add a schedule, and watch it."""
        now, name = time(), uuid4().hex[:6]
        self.kept[name] = Schedule(name, terms, now, monotonic())
        self._log(self.kept[name], "made")
        if self.task is None or self.task.done():
            self.idle_since, self.seen = monotonic(), -1
            self.task = asyncio.ensure_future(self._watch())
        return self.kept[name].describe(now)

    def refuse(self, name: str, terms: Mapping[str, Any], problem: str) -> bool:
        """List a schedule of the scheduler's configuration that could not be added.

        Return whether the problem is new.
        """
        former = self.kept.get(name)
        if former is not None and former.last.endswith(f"; {problem[:MAX_TEXT]}"):
            former.failed_at = time()
            return False
        schedule = self.kept[name] = Schedule(name, terms, time(), monotonic())
        self._note(schedule, "refused", problem)
        return True

    def listed(self) -> list[dict[str, Any]]:
        """Return waiting, running and ended schedules."""
        return [s.describe(time()) for s in self.kept.values()]

    def cancel(self, name: str) -> dict[str, Any] | None:
        """Cancel a schedule: at once, or after the current worker."""
        schedule = self.kept.get(name)
        # a configured one that could not be added is tried again
        if schedule is None or name.startswith(CONFIGURED):
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
                await asyncio.sleep(0)  # the next one is read in another turn
            # a large cluster is read less often: below 1 ms of each second
            await asyncio.sleep(max(self.poll, len(self.scheduler.workers) / 500))

    async def _check_safely(self, schedule: Schedule) -> None:
        try:
            await self._check(schedule)
        except Exception as error:
            logger.exception("clustertune's scheduled restart failed")
            self._note(schedule, "failed", repr(error))

    def _moment(self) -> Moment:
        """Return the current state; earlier tasks and holds count as work."""
        scheduler, clock = self.scheduler, monotonic()
        tasks = sum(begun_tasks(ws) for ws in scheduler.workers.values())
        queued = len(scheduler.queued) if scheduler.running else 0
        busy = busy_text(tasks, queued, self.plugin.lease.in_use())
        if busy or scheduler.transition_counter != self.seen:
            self.idle_since = clock
        self.seen = scheduler.transition_counter
        return Moment(time(), clock, busy, self.idle_since)

    async def _check(self, schedule: Schedule) -> None:
        moment = self._moment()
        if schedule.ended:  # it was cancelled while another schedule had its turn
            return
        if state := schedule.must_end(moment.now):
            self._note(schedule, state)
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
        only_needed = schedule.terms["if_needed"]
        if workers:
            await self._roll(schedule, workers, refused)
        elif schedule.left is not None:
            text = _texts(refused) or "the remaining workers are gone"
            self._note(schedule, "done", text)
        elif only_needed and schedule.terms["instants"] and not refused:
            self._note(schedule, "done", NOT_NEEDED)
        else:
            text = _texts(refused) or (NOT_NEEDED if only_needed else NO_WORKERS)
            schedule.wait(text, moment.clock + self.again)

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
            id: rules.restart_refusal(nanny=bool(ws.nanny)) or other_versions(ws, ours)
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
        workers, has_begun = await self._ordered(workers), schedule.left is not None
        left = schedule.left = [*workers]
        since, outcome, problem = monotonic(), "", ""
        turns: list[dict[str, Any]] = []
        failed = False
        for id, worker in workers.items():
            if turns:
                await asyncio.sleep(self.pause)
            if self.scheduler.workers.get(worker.address) is not worker:  # it has left
                left.remove(id)
                continue
            turn, outcome, problem = await self._attempt(schedule, since, id, worker)
            turns += turn
            if any(one["address"] for one in turn):
                left.remove(id)
            if outcome in ("refused", "failed", "lost"):
                refused[id] = problem
            if self._stops(outcome, worker):
                break
            failed = failed or outcome == "failed"
        else:
            outcome = "failed" if failed else "done"
        if outcome != "interrupted":
            problem = _texts(refused)
        begun = has_begun or any(turn["address"] for turn in turns)
        if not begun and outcome in ("done", "interrupted"):
            schedule.left = None
        if not begun and outcome == "done":  # no worker can be restarted yet
            schedule.wait(problem or NO_WORKERS, monotonic() + self.again)
            return
        self._note(schedule, outcome, problem, turns)

    async def _attempt(
        self, schedule: Schedule, since: float, id: Any, worker: Any
    ) -> tuple[list[dict[str, Any]], str, str]:
        """Return a worker's turn, if it had one, the outcome and the problem."""
        token = uuid4().hex
        outcome, problem = self._begin_turn(schedule, since, token)
        if outcome:
            return [], outcome, problem
        turn = await self._turn(schedule, id, worker, token)
        return [turn], *self._judge(turn)

    def _stops(self, outcome: str, worker: Any) -> bool:
        """Return whether no other worker is restarted now.

        A worker that failed and is gone may show what would happen to the others.
        """
        if outcome == "failed":
            return self.scheduler.workers.get(worker.address) is not worker
        return outcome not in ("", "refused")

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
        if not turn["address"] and self._moment().busy:
            return "interrupted", turn["problem"]
        return ("refused" if turn["unchanged"] else "failed"), turn["problem"]

    def _begin_turn(
        self, schedule: Schedule, since: float, token: str
    ) -> tuple[str, str]:
        """Take the lease for one worker, or return why the restart stops before it.

        Tasks that have ended since the restart began count, too.
        """
        moment = self._moment()
        if state := schedule.must_end(moment.now):
            return state, ""
        # a fit between two phases continues in a moment
        if moment.busy or moment.idle_since > since:
            return "interrupted", moment.busy or "tasks came"
        label = f"a scheduled restart ({schedule.name})"
        answer = self.plugin.acquire(SCHEDULER_OWNER, label, token)
        if "holder" in answer:
            return "interrupted", f"held by {answer['holder']['label']}"
        return "", ""

    async def _turn(
        self, schedule: Schedule, id: Any, worker: Any, token: str
    ) -> dict[str, Any]:
        """Restart one worker under the lease of this token, and end the lease."""
        plugin, terms, began = self.plugin, schedule.terms, monotonic()
        try:
            name = await plugin.restart_workers(
                token,
                address=worker.address,
                collections=terms["collections"],
                process_limits=self._ceilings(schedule, worker),
                wait=WAIT,
                timeout=terms["timeout"],
                parking=terms["parking"],
            )
            job = plugin.jobs.kept[name]
            problem = await job.task
        finally:
            lost = (await plugin.release(token))["lost"]
        turn: dict[str, Any] = job.work.state()
        turn |= {"worker": id, "problem": problem, "seconds": monotonic() - began}
        if lost is None:
            turn["lost"] = None
        elif turn["lost"] is not None:
            turn["lost"] += sum(n for _, n, _ in lost)
        return turn

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
            "outcome": outcome,
            "problem": problem[:MAX_TEXT],
            "restarted": [turn["worker"] for turn in turns if turn["address"]],
            "left": list(schedule.left or ()),
            "keys": sum(turn["keys"] for turn in turns if turn["address"]),
            "nbytes": sum(turn["nbytes"] for turn in turns),
            "lost": None if None in lost else sum(lost),  # None: unknown
        }
        schedule.settle(outcome, now, monotonic())
        text = result_text(result)
        if turns or outcome not in ("cancelled", "expired"):
            schedule.last = f"{utc_text(now)}: {text}"
        self._log(schedule, outcome, result | _operation(result, text, turns))
        ended = [name for name, s in self.kept.items() if s.ended]
        for name in ended[: -self.max_ended]:
            del self.kept[name]

    def _log(
        self, schedule: Schedule, state: str, more: Mapping[str, Any] | None = None
    ) -> None:
        event = {"action": "schedule", "id": schedule.name, "state": state}
        event |= {k: schedule.terms[k] for k in ("owner", "reason")}
        self.scheduler.log_event(TOPIC, event | dict(more or {}))


def _operation(
    result: Mapping[str, Any], text: str, turns: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the fields of a client's restart, for metrics and the audit trail."""
    if not turns:
        return {}
    outcome = result["outcome"]
    status = "failed" if outcome in ("failed", "lost") else "left"
    # a fit that begins meanwhile is no failure: the rest waits for the next gap
    complete = outcome == "interrupted" or (outcome == "done" and not result["left"])
    if complete and result["lost"] == 0:
        status = "done"
    return {
        "action": "restart",
        "summary": text,
        "status": status,
        "seconds": sum(turn["seconds"] for turn in turns),
        "steps": [
            {
                "action": "restart",
                "summary": f"restart worker {turn['worker']}",
                "status": _status(turn),
                "seconds": turn["seconds"],
                "nbytes": turn["nbytes"],
                "reason": str(turn["problem"])[:MAX_TEXT],
            }
            for turn in turns[:MAX_STEPS]
        ],
        "more_steps": max(0, len(turns) - MAX_STEPS),
    }


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
