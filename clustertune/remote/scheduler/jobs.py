"""The jobs that a client has started: moves of keys and restarts of workers.

A job continues without its client. If the lease of the client ends, its jobs start
nothing new: a move waits for the copies in flight, a restart undoes its changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any
from uuid import uuid4

from clustertune.remote.ending import within
from clustertune.remote.keys import in_turns
from clustertune.remote.scheduler.lease import SCHEDULER_OWNER, TOPIC
from clustertune.remote.scheduler.mover import ManagerHold, MovePolicy, move_keys
from clustertune.remote.scheduler.release import DataDrop
from clustertune.remote.scheduler.restart import WorkerRestart
from clustertune.remote.scheduler.state import is_coming, is_lost

logger = logging.getLogger("distributed.clustertune")

MAX_WAIT = 1.0  # seconds that an answer about progress waits for the end of a job

Work = MovePolicy | WorkerRestart | DataDrop


class Job:
    """Work and the task that carries it out; the reference keeps the task alive."""

    def __init__(self, work: Work, task: Any):
        self.work = work
        self.task = asyncio.ensure_future(task)


class Jobs:
    """The jobs of one lease, by name; ``manager`` pauses Dask's own memory manager."""

    def __init__(self, scheduler: Any, manager: ManagerHold):
        self.scheduler = scheduler
        self.manager = manager
        self.kept: dict[str, Job] = {}
        self.last_event: dict[str, Any] = {}  # of a worker that is being removed
        #: keys that no restart counts, by the address of a removed worker
        self.lost_keys: dict[str, set[Any]] = {}
        self.cause: dict[str, Any] = {}  # fields of events: who has the lease
        self.counting = False  # during a lease
        self.cleared = False  # a client has restarted the cluster: losses are unknown

    # --- start ------------------------------------------------------------------------

    def move(self, policy: MovePolicy, deadline: float) -> str:
        """Start to move keys; return the name of the job."""
        return self._begin(policy, self._move(policy, deadline))

    def restart(self, work: WorkerRestart | DataDrop) -> str:
        """Start to restart or to retire workers; return the name of the job."""
        return self._begin(work, self._restart(work))

    def _begin(self, work: Work, task: Any) -> str:
        name = uuid4().hex
        self.kept[name] = Job(work, task)
        return name

    async def _move(self, policy: MovePolicy, deadline: float) -> str:
        """Move keys; return a problem of the whole job, or ""."""
        work = move_keys(self.scheduler, policy, self.manager)
        try:
            await within(work, deadline, once=True)
        except asyncio.TimeoutError:
            return f"the mover's deadline of {deadline:g} s passed"
        except Exception as error:  # noqa: BLE001, _failed logs it
            return self._failed("mover", error)
        return ""

    async def _restart(self, work: WorkerRestart | DataDrop) -> str:
        self._log(work.event | {"state": "began"})
        try:
            problem = await work.run()
        except Exception as error:  # noqa: BLE001, _failed logs it
            problem = self._failed("restart", error)
        self._log(work.event | work.state() | {"state": "ended", "problem": problem})
        return problem

    def _failed(self, what: str, error: Exception) -> str:
        logger.error("clustertune's %s failed", what, exc_info=error)
        self._log({"action": "failed", "error": repr(error)})
        return f"the {what} failed: {error!r}"

    def _log(self, event: dict[str, Any]) -> None:
        self.scheduler.log_event(TOPIC, self.cause | event)

    # --- progress and end -------------------------------------------------------------

    def are_running(self) -> bool:
        return any(not job.task.done() for job in self.kept.values())

    async def wait(self, name: str, seconds: float) -> None:
        """Wait for the end of a job, but not for long."""
        await asyncio.wait([self.kept[name].task], timeout=min(seconds, MAX_WAIT))

    def state(self, name: str) -> dict[str, Any]:
        """The state of a job, and its problem once it has finished."""
        work, task = self.kept[name].work, self.kept[name].task
        # only the end of the plugin cancels jobs, which then have no result
        finished = task.done() and not task.cancelled()
        return work.state() | {
            "finished": finished,
            "error": task.result() if finished else "",
        }

    def stop(self, job: str | None = None) -> None:
        """Stop one job or all: copies in flight arrive, other changes are undone."""
        for name, one in self.kept.items():
            if job in (None, name):
                one.work.stopped = True

    # --- lost keys --------------------------------------------------------------------

    def begin(self, owner: str) -> None:
        """Forget the jobs of the last lease, and count lost keys for the next one."""
        self.kept.clear()
        self.cause = {} if owner == SCHEDULER_OWNER else {"client": owner}
        self.lost_keys, self.counting, self.cleared = {}, True, False

    async def end(self) -> list[tuple[str, int, int]] | None:
        """Count the keys that workers lost during the lease.

        Returns the address of each worker, the number of its lost keys, and of its keys
        that are not computed again yet. Keys that a restart counts do not count. None:
        the lost keys are unknown.
        """
        lost, self.lost_keys, self.counting = self.lost_keys, {}, False
        gone: Counter[str] = Counter()
        coming: Counter[str] = Counter()
        async for address, key in in_turns((a, k) for a in lost for k in lost[a]):
            gone[address] += is_lost(self.scheduler, key)
            coming[address] += is_coming(self.scheduler, key)
        if self.cleared:
            return None
        return [(a, gone[a], coming[a]) for a in lost if gone[a] or coming[a]]

    def note_cleared(self) -> None:
        """Note that Dask has released all keys, before it restarts all workers."""
        running = [job.work for job in self.kept.values() if not job.task.done()]
        for work in running:
            if isinstance(work, DataDrop) and work.clears_cluster():
                return  # it has counted them
            if isinstance(work, WorkerRestart):
                work.held.cleared = True
        self.cleared = True

    def note_event(self, topic: str, message: Any) -> None:
        """Keep Dask's event about a removed worker until :meth:`worker_removed`.

        Dask calls both within one turn of the event loop. The log itself is bounded.
        """
        event = message if topic == "all" and isinstance(message, dict) else {}
        if event.get("action") == "remove-worker":
            self.last_event = event

    def worker_removed(
        self, worker: str, stimulus_id: str
    ) -> tuple[set[Any], set[Any]]:
        """Report the keys that were lost with a worker, each key to one restart.

        Returns the computed and the scattered keys.
        """
        event, self.last_event = self.last_event, {}
        if (event.get("worker"), event.get("stimulus_id")) != (worker, stimulus_id):
            logger.error("clustertune cannot count the keys lost with %s", worker)
            self.note_cleared()  # their number is as unknown
            return set(), set()
        running = [job.work for job in self.kept.values() if not job.task.done()]
        computed = event["lost-computed-tasks"]
        scattered = event["lost-scattered-tasks"]
        lost = computed, scattered
        for work in running:
            if isinstance(work, WorkerRestart):
                found = work.held.worker_removed(worker, computed, scattered)
                computed, scattered = found
        drops = (work for work in running if isinstance(work, DataDrop))
        # a restart without data counts its keys before
        if self.counting and not any(drop.has_counted(worker) for drop in drops):
            self.lost_keys.setdefault(worker, set()).update(computed, scattered)
        return lost
