"""What happens to a cluster: changes of its workers, metrics, and the audit trail.

Changes are recorded while a client asks for them. Dask has the reason in several
places: the stimulus of the removal, events that the worker or its nanny logged before,
and the nanny's log, which has the exit status of the process. A nanny is asked only
after its worker has ended. A worker that returns soon with the same name is one change,
not two.

Metrics and audit trail follow the events of the topic ``clustertune``, which any client
may log. The metrics are on the scheduler's own ``/metrics`` page, if the scheduler has
``prometheus_client``. Counters grow with events and with the keys that Dask reports as
lost. Gauges are read from the scheduler plugin at each scrape. Labels come from fixed
sets, and their number is bounded.

The audit trail has every operation of every client as one line of JSON, in Python's
logger ``clustertune.audit`` of the scheduler's process. To keep the lines, add a
handler there and set the logger's level to INFO, or set ``clustertune.audit`` for
``clustertune.preload``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime, timezone
from itertools import chain, product, takewhile
from time import monotonic, time
from typing import Any

from clustertune.remote.ending import within
from clustertune.remote.scheduler.lease import TOPIC, growth
from clustertune.remote.scheduler.page import PageData
from clustertune.remote.scheduler.state import Id, id_of, is_parking, training_workers

# --- changes of workers ---------------------------------------------------------------

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
        if type(event) is not dict:
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
        await self._read_log(process)  # the client may ask first after that time

    async def _read_log(self, process: WorkerProcess) -> bool:
        """Record what the nanny logged about the process; return if it answered."""
        nanny = self.scheduler.rpc(process.nanny)
        try:
            async with self.reading:
                lines = await within(nanny.get_logs(n=LINES), ANSWER)
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


# --- metrics and the audit trail ------------------------------------------------------

logger = logging.getLogger("distributed.clustertune")
audit_logger = logging.getLogger("clustertune.audit")

MAX_LINE = 100_000  # characters of the audit trail
MAX_NAME = 200  # characters
SCHEDULER = "the scheduler"

OTHER = "other"  # the label of names that are not in the sets below
OPERATIONS = frozenset((
    "fit", "merge", "prepare", "release", "resize", "restart", "scale", "trim",
))  # fmt: skip
STATUSES = frozenset(("done", "failed", "fine", "left", "refused"))
SEVERITIES = ("critical", "warning", "info", "unknown")
SCHEDULES = ("waiting", "running", "failed")
RECENT = 3600.0  # seconds for which a failed schedule counts
CHECK = re.compile(r"[a-z][a-z0-9_]{0,59}")  # other packages may add checks
MAX_CHECKS = 100
MAX_STEPS = 1000  # of one event

#: labels and text of each counter and gauge
COUNTERS = {
    "operations": (
        ("operation", "status"),
        "Operations that changed the cluster, by outcome",
    ),
    "operation_seconds": (("operation",), "Seconds that these operations took"),
    "moved_bytes": ((), "Bytes that steps transferred between workers"),
    "lost_keys": (("kind",), "Keys whose only replica was on a worker that is gone"),
}
GAUGES = {
    "findings": (("check", "severity"), "Findings of the last checks"),
    "findings_timestamp_seconds": ((), "Time of the last checks; 0: no check has run"),
    "holds": ((), "Holds that protect workers during a fit"),
    "lease": ((), "1 while an operation changes the cluster"),
    "schedules": (("state",), "Scheduled restarts, by state; failed ones for an hour"),
    "unmanaged_memory_growth_bytes": (
        (),
        "Growth of unmanaged memory with each run, on the worker where it is largest",
    ),
}


class Metrics:
    """A collector of ``prometheus_client`` for one scheduler plugin."""

    def __init__(self, plugin: Any):
        self.plugin = plugin
        # Prometheus sees an increase only of series that were there before
        self.counted: dict[str, Counter[tuple[str, ...]]] = {
            "operations": Counter(dict.fromkeys(product(OPERATIONS, STATUSES), 0)),
            "operation_seconds": Counter(dict.fromkeys(product(OPERATIONS), 0)),
            "moved_bytes": Counter({(): 0}),
            "lost_keys": Counter({("computed",): 0, ("scattered",): 0}),
        }
        self.registered = False

    def register(self) -> None:
        """Add the metrics to those of this process, if it can serve any.

        A process has one set of metrics. If two schedulers share a process, only the
        first has them, until it has ended.
        """
        try:
            from prometheus_client import REGISTRY
        except ImportError:
            return
        try:
            REGISTRY.register(self)
        except ValueError:
            logger.info("another scheduler of this process has clustertune's metrics")
            return
        self.registered = True

    def close(self) -> None:
        """Remove the metrics from those of this process."""
        if self.registered:
            from prometheus_client import REGISTRY

            REGISTRY.unregister(self)
            self.registered = False

    # --- counters ---------------------------------------------------------------------

    def note_event(self, topic: str, event: Any) -> None:
        """Count the operation of a client's event, and the bytes of its steps."""
        if topic != TOPIC or type(event) is not dict:
            return
        status, steps = event.get("status"), event.get("steps")
        if status is None or not isinstance(steps, list | tuple):
            return
        action = _one_of(OPERATIONS, event.get("action"))
        self._add("operations", 1, action, _one_of(STATUSES, status))
        self._add("operation_seconds", _amount(event.get("seconds")), action)
        for step in steps[:MAX_STEPS]:
            if type(step) is dict:
                self._add("moved_bytes", _amount(step.get("nbytes")))

    def note_lost(self, computed: int, scattered: int) -> None:
        """Count keys whose only replica was on a worker that is gone."""
        self._add("lost_keys", computed, "computed")
        self._add("lost_keys", scattered, "scattered")

    def _add(self, name: str, value: Any, *labels: str) -> None:
        self.counted[name][labels] += value

    # --- a scrape ---------------------------------------------------------------------

    def collect(self) -> Iterator[Any]:
        """Yield the metrics; ``prometheus_client`` calls this at each scrape."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        values = self.counted | self._gauges()
        for name, (labels, text) in (COUNTERS | GAUGES).items():
            kind = CounterMetricFamily if name in COUNTERS else GaugeMetricFamily
            metric = kind(f"clustertune_{name}", text, labels=labels)
            for own, value in sorted(values[name].items()):
                metric.add_metric(own, value)
            yield metric

    def _gauges(self) -> dict[str, Mapping[Any, float]]:
        plugin = self.plugin
        every, since = plugin.schedules.kept.values(), time() - RECENT
        states = Counter(s.state for s in every if not s.ended)
        states["failed"] = sum(s.failed_at > since for s in every)
        there = {id_of(ws) for ws in training_workers(plugin.scheduler)}
        grown = growth(plugin.runs.kept).items()
        growths = [nbytes for id, nbytes in grown if id in there]
        return {
            "findings": self._findings(),
            "findings_timestamp_seconds": {
                (): _amount(self._last_findings().get("time"))
            },
            "holds": {(): len(plugin.holds.active())},
            "lease": {(): int(plugin.lease.holder() is not None)},
            "schedules": {(state,): states[state] for state in SCHEDULES},
            "unmanaged_memory_growth_bytes": {(): max(growths)} if growths else {},
        }

    def _last_findings(self) -> Mapping[str, Any]:
        return self.plugin.page_data.facts.get("findings") or {}

    def _findings(self) -> Counter[tuple[str, str]]:
        found: Counter[tuple[str, str]] = Counter()
        for finding in self._last_findings().get("found", ()):
            name, severity = str(finding.get("check")), finding.get("severity")
            if severity not in SEVERITIES:
                continue
            known = CHECK.fullmatch(name) and len(found) < MAX_CHECKS
            found[name if known else OTHER, severity] += 1
        return found


def _one_of(known: frozenset[str], name: Any) -> str:
    return name if type(name) is str and name in known else OTHER


def _amount(value: Any) -> float:
    """A finite number of at least 0; anything else is 0."""
    right = type(value) in (int, float) and 0 <= value < 2.0**63
    return value if right else 0.0


# --- the audit trail ------------------------------------------------------------------


def audit(topic: str, event: Any) -> None:
    """Log one event as a line of JSON; clients may send any event."""
    wanted = topic == TOPIC and audit_logger.isEnabledFor(logging.INFO)
    if wanted and isinstance(event, Mapping):
        audit_logger.info("%s", audit_line(event))


def audit_line(event: Mapping[str, Any]) -> str:
    """Return an event as one line of JSON, with its time in UTC and who caused it.

    The time is that of the scheduler, whatever the event has under that name.
    """
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    # events of the scheduler plugin have the id of a client
    by = event.get("by") or event.get("client") or event.get("owner") or SCHEDULER
    always = {"time": now, "by": str(by)[:MAX_NAME]}
    own = {k: v for k, v in event.items() if k not in always}
    # json escapes line breaks and control characters in texts
    text = json.dumps(always | _plain(own), default=repr, allow_nan=False)
    if len(text) > MAX_LINE:
        always["action"] = str(event.get("action"))[:MAX_NAME]
        # the escapes of its quotes and backslashes may double its length
        text = json.dumps(always | {"shortened": text[: MAX_LINE // 3]})
    return text


def _plain(value: Any) -> Any:
    """The value with texts as keys, and without numbers that JSON does not have."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value
