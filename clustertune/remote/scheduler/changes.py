"""Workers that join, leave, restart or die, and what Dask recorded about the reason.

Changes are recorded while a client asks for them. Dask has the reason in several
places: the stimulus of the removal, events that the worker or its nanny logged before,
and the nanny's log, which has the exit status of the process. A nanny is asked only
after its worker has ended.

A worker that returns soon with the same name is one change, not two.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Collection
from itertools import chain, takewhile
from time import monotonic, time
from typing import Any

from clustertune.remote.scheduler.page import PageData
from clustertune.remote.scheduler.state import Id, id_of, is_parking, training_workers

MAX_CHANGES = 1000
WATCHED = 600.0  # seconds after a request for which changes are recorded
RETURN = 30.0  # seconds within which a nanny starts its worker again
ANSWER = 3.0  # seconds to wait for a nanny's log
POLL_INTERVAL = 0.3  # seconds between two looks for the next process
MAX_READS = 20  # of logs at the same time
LINES = 500  # of a nanny's log
MAX_TEXT = 200  # characters of a reason that a worker sent
#: stimuli of removals after which no nanny starts the worker again
FINAL = ("retire-workers-", "clustertune-retire-")
#: lines of a nanny's log about the end of a process
LOGGED = (
    r"Worker process {0} (?P<exit>was killed by \w+ \w+|exited with status \d+)"
    r"|\(pid={0}\) exceeded (?P<budget>\d+)% memory budget"
)


class WorkerProcess:
    """One process of a worker; ``recorded`` is what Dask logged about its end."""

    def __init__(self, ws: Any):
        self.id = id_of(ws)
        self.address: str = ws.address
        self.nanny: str | None = ws.nanny
        self.pid: int = ws.pid
        self.recorded: dict[str, Any] = {}
        self.next: WorkerProcess | None = None  # registered before this one ended


class Change:
    """A worker that joined, or one whose process ended."""

    def __init__(self, number: int, process: WorkerProcess, n_workers: int):
        self.number = number
        self.process = process
        self.n_workers = n_workers
        self.time = time()
        self.stimulus: str | None = None  # None: it joined
        self.computed: Collection[Any] = ()  # keys that only this worker had
        self.scattered: Collection[Any] = ()
        self.returned: float | None = None  # seconds until the next process registers
        self.asking: asyncio.Task[None] | None = None

    def is_known(self) -> bool:
        """Whether it is known if the worker returns."""
        return self.stimulus is None or (self.asking is not None and self.asking.done())


class WorkerChanges:
    """The last changes of the workers of one scheduler."""

    def __init__(self, scheduler: Any, page_data: PageData):
        self.scheduler = scheduler
        self.page_data = page_data
        self.kept: deque[Change] = deque(maxlen=MAX_CHANGES)
        self.processes: dict[str, WorkerProcess] = {}  # by address
        self.reading = asyncio.Semaphore(MAX_READS)
        self.watched = -WATCHED  # monotonic time of the last request
        # numbers of a scheduler that was started again are larger than those before
        self.last = int(time() * 1000)

    # --- record -----------------------------------------------------------------------

    def is_watched(self) -> bool:
        """Whether a client asks for changes; forget all changes otherwise."""
        if monotonic() - self.watched < WATCHED:
            return True
        self.kept.clear()
        self.processes.clear()
        return False

    def added(self, ws: Any) -> None:
        """Record a worker that registered, unless it returns after a restart."""
        if not self.is_watched() or is_parking(ws.name):
            return
        process = WorkerProcess(ws)
        former = self._parked(process.id)
        self.processes[ws.address] = process
        if former is not None:
            former.next = process
        own = (c for c in reversed(self.kept) if c.process.id == process.id)
        last = next(own, None)
        if last is not None and last.returned is None and not last.is_known():
            seconds = time() - last.time
            if seconds < RETURN:
                last.returned = seconds
                return
        if former is None:
            self._note(process)

    def _parked(self, id: Id) -> WorkerProcess | None:
        """Return the process that keeps a worker's keys while the next one starts."""
        for process in self.processes.values():
            ws = self.scheduler.workers.get(process.address)
            if process.id == id and ws is not None and is_parking(ws.name):
                return process
        return None

    def removed(
        self,
        address: str,
        stimulus: str,
        computed: Collection[Any],
        scattered: Collection[Any],
    ) -> None:
        """Record a worker that Dask has removed, with the keys that only it had."""
        process = self.processes.pop(address, None)
        if process is not None and self.is_watched():
            change = self._note(process)
            change.stimulus = stimulus
            change.computed, change.scattered = computed, scattered
            if process.next in self.processes.values():
                change.returned = 0.0

    def note_event(self, topic: str, event: Any) -> None:
        """Record the reason in an event of Dask; any client may log any event."""
        if type(event) is not dict or not self.processes:
            return
        action, process = event.get("action"), self.processes.get(topic)
        if action == "closing-worker" and process is not None:
            process.recorded["closing"] = str(event.get("reason"))[:MAX_TEXT]
        elif action == "retired" and process is not None:
            process.recorded["retired"] = str(event.get("stimulus_id"))[:MAX_TEXT]
        elif action == "worker-ttl-timed-out" and topic == "scheduler":
            for address in event.get("workers", ()):
                if address in self.processes:
                    self.processes[address].recorded["ttl"] = float(event["ttl"])
        elif topic == "worker-restart-memory":
            # Dask may have removed the worker before
            ended = (change.process for change in reversed(self.kept))
            for known in chain(self.processes.values(), ended):
                if known.address == event.get("worker"):
                    known.recorded["rss"] = int(event["rss"])
                    break

    def _note(self, process: WorkerProcess) -> Change:
        self.last += 1
        n_workers = len(training_workers(self.scheduler))
        change = Change(self.last, process, n_workers)
        self.kept.append(change)
        return change

    # --- answer -----------------------------------------------------------------------

    async def since(self, after: int | None = None) -> dict[str, Any]:
        """Return the changes after a number, oldest first; None: after now.

        A change is returned once it is known whether the worker returns. ``fits`` is
        the progress of running fits.
        """
        if not self.is_watched():
            for ws in training_workers(self.scheduler):
                self.processes[ws.address] = WorkerProcess(ws)
        self.watched = monotonic()
        if after is None:
            after = self.last
        new = [change for change in self.kept if change.number > after]
        for change in new:
            if change.stimulus is not None and change.asking is None:
                change.asking = asyncio.ensure_future(self._follow(change))
        known = list(takewhile(Change.is_known, new))
        return {
            "last": known[-1].number if known else after,
            "changes": [await self._plain(change) for change in known],
            "data": await self.page_data.rows_now() if known else [],
            "leased": self.page_data.plugin.lease.holder() is not None,
            "fits": self.page_data.plugin.fits.listed(),
        }

    async def _plain(self, change: Change) -> dict[str, Any]:
        process = change.process
        answer = {
            "time": change.time,
            "worker": process.id,
            "n_workers": change.n_workers,
            "stimulus": change.stimulus,
        }
        if change.stimulus is None:
            return answer
        lost = (*change.computed, *change.scattered)
        return answer | {
            "recorded": process.recorded,
            "returned": change.returned,
            "computed": len(change.computed),
            "scattered": len(change.scattered),
            "rows": await self.page_data.rows_of(lost),
        }

    async def _follow(self, change: Change) -> None:
        """Wait until the worker returns or will not; then read its nanny's log.

        The log is also read before, at growing intervals, to notice a nanny that ended.
        """
        process, stimulus = change.process, change.stimulus or ""
        if process.nanny is None or stimulus.startswith(FINAL):
            return
        next_read, interval = 0.0, POLL_INTERVAL
        while time() < change.time + RETURN:
            returned = change.returned is not None
            if returned or time() >= next_read:
                if not await self._read_log(process) or returned:
                    return
                next_read, interval = time() + interval, 2 * interval
            await asyncio.sleep(POLL_INTERVAL)

    async def _read_log(self, process: WorkerProcess) -> bool:
        """Record what the nanny logged about the process; return if it answered."""
        nanny = self.scheduler.rpc(process.nanny)
        try:
            async with self.reading:
                lines = await asyncio.wait_for(nanny.get_logs(n=LINES), ANSWER)
        except (OSError, asyncio.TimeoutError):
            return False
        pattern = re.compile(LOGGED.format(process.pid))
        for _, text in lines:
            if found := pattern.search(text):
                logged = found.groupdict()
                process.recorded |= {k: v for k, v in logged.items() if v}
        return True

    def close(self) -> list[asyncio.Task[None]]:
        """Return the tasks that are to be cancelled."""
        return [change.asking for change in self.kept if change.asking is not None]
