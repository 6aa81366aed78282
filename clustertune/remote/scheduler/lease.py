"""The lease, the holds and the runs: which client may act, and when work runs.

The lease lets one plan at a time change the cluster. A hold protects the workers of a
fit: adaptive scaling removes none of them, and other clients get no lease. Both end
when their client closes, or after a grace period without a message of the client. Dask
removes a client when its connection breaks, even if the client then reconnects with the
same id. So a broken connection only starts the grace period.

A run is a span of work. It ends with a hold, with the training tasks of a library, or
after a short gap without tasks. The scheduler plugin keeps the last runs with the
memory that each left on the workers, so that a leak shows even if no client watches.
Each worker has an id that survives a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from time import monotonic, time
from typing import Any, NamedTuple

from clustertune.core import rules
from clustertune.remote.scheduler.state import Id, id_of, memory_of, training_workers

# --- leases and holds -----------------------------------------------------------------

GRACE = 15.0  # seconds without a message after which a client counts as lost
TOPIC = "clustertune"  # of Dask's events
SCHEDULER_OWNER = "clustertune"  # owner of a lease that belongs to no client
MAX_RELEASED = 1000  # tokens
#: seconds without a repetition after which a refused request has been given up; clients
#: repeat it twice a second
QUEUED = 3.0


class LeaseEndedError(PermissionError):
    """A request of a call whose lease has ended.

    The handler catches it and answers, because Dask logs a traceback for exceptions.
    """


class Owners:
    """The time of the last message of each client."""

    def __init__(self, scheduler: Any):
        self.scheduler = scheduler
        self.grace = GRACE
        self.seen: dict[str, float] = {}  # epoch seconds, without heartbeats
        #: epoch seconds at which the scheduler last went on after a pause
        self.resumed = 0.0
        self.timers: dict[str, asyncio.TimerHandle] = {}  # ends of grace periods

    def note(self, client: str) -> None:
        """Record a message of a client that is connected or in its grace period."""
        if client in self.scheduler.clients or client in self.seen:
            self.seen[client] = time()

    def begin_grace(self, client: str, on_end: Callable[[], None]) -> None:
        """Call a function unless the client sends a message in the grace period."""

        def end() -> None:
            self.end_grace(client)
            if not self.is_alive(client):
                on_end()
            elif client not in self.scheduler.clients:
                self.begin_grace(client, on_end)

        self.seen[client] = time()
        self.end_grace(client)
        loop = asyncio.get_running_loop()
        self.timers[client] = loop.call_later(self.grace + 0.1, end)

    def end_grace(self, client: str) -> None:
        timer = self.timers.pop(client, None)
        if timer is not None:
            timer.cancel()

    def forget(self, client: str) -> None:
        self.end_grace(client)
        self.seen.pop(client, None)

    def close(self) -> None:
        for client in list(self.timers):
            self.end_grace(client)

    def is_alive(self, client: str) -> bool:
        """Whether a client sent a message within the grace period.

        Messages to a scheduler that was suspended, or whose clock was set, wait to be
        read, so another period begins with its end.
        """
        state = self.scheduler.clients.get(client)
        heartbeat = 0.0 if state is None else state.last_seen
        last = max(heartbeat, self.seen.get(client, 0.0), self.resumed)
        return time() - last <= self.grace

    def note_delay(self, seconds: float) -> None:
        """Note how much later than planned the scheduler ran."""
        if seconds > self.grace / 3:
            self.resumed = time()

    def silence(self) -> str:
        """Return the reason why a client counts as lost."""
        return f"no message from its client for {self.grace:g} s"


class Holds:
    """The holds of one scheduler, by name."""

    def __init__(self, owners: Owners):
        self.owners = owners
        self.kept: dict[str, dict[str, Any]] = {}

    def begin(self, owner: str, label: str, name: str) -> None:
        self.kept[name] = {"client": owner, "label": label, "since": time()}

    def end(self, name: str) -> bool:
        """End a hold; False if it has ended already."""
        return self.kept.pop(name, None) is not None

    def forget(self, client: str, problem: str = "") -> None:
        """End all holds of a client; log the loss if there is a problem."""
        gone = {n: h for n, h in self.kept.items() if h["client"] == client}
        self.kept = {n: h for n, h in self.kept.items() if n not in gone}
        for hold in gone.values() if problem else ():
            log_loss(self.owners.scheduler, "hold", hold, problem)

    def active(self) -> list[dict[str, Any]]:
        """End holds of lost clients, and return the others, oldest first."""
        for client in {h["client"] for h in self.kept.values()}:
            if not self.owners.is_alive(client):
                self.forget(client, self.owners.silence())
        return list(self.kept.values())

    def protects_nothing(self, name: str) -> None:
        """Let plans of other clients begin: the fit in this hold has ended."""
        if name in self.kept:
            self.kept[name]["over"] = True

    def of_others(self, owner: str) -> dict[str, Any] | None:
        """A hold of another client that protects a fit, if there is one."""
        others = (h for h in self.active() if h["client"] != owner)
        return next((h for h in others if "over" not in h), None)


class Lease:
    """The lease of one scheduler; ``on_end`` is called whenever a lease ends."""

    def __init__(self, owners: Owners, holds: Holds, on_end: Callable[[], None]):
        self.owners = owners
        self.holds = holds
        self.on_end = on_end
        self.current: dict[str, Any] | None = None
        self.released: deque[str] = deque(maxlen=MAX_RELEASED)
        #: refused requests by token, oldest first, with the time of the last one
        self.waiting: dict[str, tuple[dict[str, Any], float]] = {}

    def holder(self) -> dict[str, Any] | None:
        """Return the current lease; end it first if its client is lost."""
        if self.current is None or self.current["client"] == SCHEDULER_OWNER:
            return self.current
        if not self.owners.is_alive(self.current["client"]):
            self.end(self.owners.silence())
        return self.current

    def in_use(self) -> dict[str, Any] | None:
        """Return the lease or the oldest hold, or None."""
        holder = self.holder() or next(iter(self.holds.active()), None)
        return holder and public(holder)

    def of_others(self, owner: str) -> dict[str, Any] | None:
        """Return the lease of another client, if there is one."""
        holder = self.holder()
        return None if holder is None or holder["client"] == owner else public(holder)

    def obstacle(
        self, owner: str, token: str, despite_holds: bool = False
    ) -> dict[str, Any] | None:
        """Return the lease or hold that prevents a new lease, or None."""
        if token in self.released:
            raise LeaseEndedError("this lease was released before it was granted")
        holder = self.holder()
        if holder is not None:
            return public(holder)
        if despite_holds:
            return None
        found = self.holds.of_others(owner)
        # the first one may wait for a hold of this owner
        return found if found or self.owns(owner) else self._first(token)

    def wait(self, owner: str, label: str, token: str) -> None:
        """Note a request for a lease that was refused, and that will be repeated."""
        asked, _ = self.waiting.get(
            token, ({"client": owner, "label": label, "since": time()}, 0.0)
        )
        self.waiting[token] = asked, monotonic()

    def _first(self, token: str) -> dict[str, Any] | None:
        """Return what has waited for longest, unless it is this request."""
        now = monotonic()
        recent = {t: w for t, w in self.waiting.items() if now - w[1] < QUEUED}
        self.waiting = recent
        first = next(iter(recent), token)
        return None if first == token else recent[first][0] | {"waits": True}

    def grant(self, owner: str, label: str, token: str) -> None:
        self.waiting.pop(token, None)
        holder = {"client": owner, "label": label, "since": time()}
        self.current = holder | {"token": token}
        self.owners.note(owner)

    def release(self, token: str) -> None:
        """End the lease of a token; refuse it if it is requested later."""
        self.released.append(token)
        self.waiting.pop(token, None)
        if self.current is not None and self.current["token"] == token:
            self.end()

    def check(self, token: str) -> None:
        """Raise an error unless the caller holds the lease."""
        if self.current is None or self.current["token"] != token:
            raise LeaseEndedError(
                "the lease of this call has ended: the scheduler had no message from "
                f"its client for {self.owners.grace:g} s, or the call has ended. The "
                "scheduler starts nothing more for it. Run the call again"
            )

    def is_held(self, name: str) -> bool:
        """Whether the lease with this token, or the hold with this name, is active."""
        holder = self.holder()
        if holder is not None and holder["token"] == name:
            return True
        self.holds.active()  # ends the holds of lost clients
        return name in self.holds.kept

    def end(self, problem: str = "") -> None:
        """End the lease; log the loss if there is a problem."""
        if problem and self.current is not None:
            log_loss(self.owners.scheduler, "lease", self.current, problem)
        self.current = None
        self.on_end()

    def owns(self, client: str) -> bool:
        """Whether a client has the lease or a hold."""
        owners = [hold["client"] for hold in self.holds.kept.values()]
        owners += [] if self.current is None else [self.current["client"]]
        return client in owners

    def forget(self, client: str, problem: str = "") -> None:
        """End the lease and the holds of a client."""
        self.owners.forget(client)
        self.holds.forget(client, problem)
        if self.current is not None and self.current["client"] == client:
            self.end(problem)


def public(holder: Mapping[str, Any]) -> dict[str, Any]:
    """Return a lease or hold without its token, for other clients."""
    return {name: holder[name] for name in ("client", "label", "since")}


def log_loss(scheduler: Any, kind: str, holder: Mapping[str, Any], why: str) -> None:
    """Log in Dask's event log that a lease or a hold ended without its client."""
    event = {"action": f"{kind} lost", "label": holder["label"], "problem": why}
    scheduler.log_event(TOPIC, event | {"client": holder["client"]})


def has_closed(scheduler: Any, client: str) -> bool:
    """Whether the client that Dask is removing has closed, rather than lost contact.

    A client that closes asks for its removal over its connection, which is still open
    at that moment.
    """
    comm = scheduler.client_comms.get(client)
    return comm is not None and not comm.closed()


# --- runs -----------------------------------------------------------------------------

logger = logging.getLogger("distributed.clustertune")

MAX_RUNS = 50
#: seconds without tasks after which a run has ended: longer than a client pauses
#: within a fit to build the next graph, shorter than the time between two fits
GAP = 5.0
TICK = 0.5  # seconds between two samples, as between heartbeats
LAG = 0.05  # seconds by which the clocks of workers may seem to differ
RECENT = 3  # runs to which a late heartbeat may belong
POLL_INTERVAL = 0.05  # seconds between two looks for heartbeats after the last run
SETTLE = 3.0  # seconds for which an answer waits for heartbeats after the last run
#: Beginnings of keys. A fit ends with the last such task that runs. XGBoost collects
#: the boosters of all workers in one last task (from 3.0 on; its training tasks are
#: named "fn", as others may be), which Dask fuses with others if one worker trains. It
#: had one training task per worker before, as LightGBM and
#: clustertune.training.run_roles have.
TRAINING = (
    "first_valid-aggregate-",
    "bag-from-delayed-first_valid-aggregate-",
    "dispatched_train-",
    "_train_part-",
    "role-",
)


class SampledMemory(NamedTuple):
    """Memory of one worker as its last heartbeat reported it."""

    process: int  # bytes
    unmanaged: int  # bytes
    sampled: float  # epoch seconds of the measurement, by the scheduler's clock


Memory = Mapping[Id, SampledMemory]
IdleMemory = tuple[int, int]  # unmanaged and managed bytes


@dataclass
class Ended:
    """A run that has ended, while heartbeats may still report the memory after it."""

    run: dict[str, Any]
    workers: set[Id]  # of the run
    left: dict[Id, IdleMemory]  # least memory from its end to that of the next run

    def __post_init__(self) -> None:
        self.update_run()

    @property
    def pending(self) -> set[Id]:
        """Workers whose memory after the run is not known yet."""
        return self.workers - self.left.keys()

    def measure(self, worker: Id, now: IdleMemory) -> None:
        if worker in self.workers:
            self.left[worker] = min(now, self.left.get(worker, now))
            self.update_run()

    def update_run(self) -> None:
        """Store the memory in the run as plain data."""
        left = self.left.items()
        self.run["floors"] = [(worker, unmanaged) for worker, (unmanaged, _) in left]
        self.run["managed"] = [(worker, managed) for worker, (_, managed) in left]


class Runs:
    """The last runs as plain values, from samples and from transitions of tasks."""

    def __init__(self) -> None:
        self.gap = GAP
        self.kept: deque[dict[str, Any]] = deque(maxlen=MAX_RUNS)
        self.began: float | None = None  # begin of the current run
        self.worked: float = 0.0  # time of the last work
        self.peaks: dict[Id, int] = {}
        #: least unmanaged memory since the last work
        self.floors: dict[Id, IdleMemory] = {}
        self.training: set[str] = set()  # keys of training tasks that run
        self.recent: deque[Ended] = deque(maxlen=RECENT)  # oldest first

    def note(self, now: float, busy: bool, memory: Memory, held: bool = False) -> None:
        """Record the cluster at one moment. A gap within a hold ends no run."""
        if busy:
            self._work(now)
        self.measure(memory)
        if not held and now - self.worked >= self.gap:
            self.end("gap", memory)

    def transition(self, key: Any, start: str, finish: str, now: float) -> bool:
        """Record a task; return whether it was the last training task of a fit."""
        if start != "processing" and finish != "processing":
            return False
        self._work(now)
        if not isinstance(key, str) or not key.startswith(TRAINING):
            return False
        if finish == "processing":
            self.training.add(key)
            return False
        self.training.discard(key)
        return not self.training

    def _work(self, now: float) -> None:
        if self.began is None:
            self.began, self.peaks = now, {}
        self.worked = now
        if self.floors:
            self.floors = {}

    def measure(self, memory: Memory) -> None:
        """Record the memory that heartbeats have reported.

        Each measurement belongs to the last run that had ended at its time. Runs that
        follow each other faster than heartbeats have no value for some workers.
        """
        for worker, (process, unmanaged, sampled) in memory.items():
            self.peaks[worker] = max(process, self.peaks.get(worker, 0))
            now = unmanaged, process - unmanaged
            if self.began is not None and sampled > self.worked + LAG:
                self.floors[worker] = min(now, self.floors.get(worker, now))
            # even if a run has begun since: a few tasks may follow each fit
            for ended in reversed(self.recent):
                if sampled > ended.run["ended"] + LAG:
                    ended.measure(worker, now)
                    break

    def end(self, how: str, memory: Memory) -> None:
        """End the current run, if there is one; ``how`` is one of ``ENDS``."""
        if self.began is None:
            return
        self.measure(memory)
        run = {"began": self.began, "ended": self.worked, "ended_by": how}
        run["peaks"] = list(self.peaks.items())
        self.recent.append(Ended(run, set(memory), dict(self.floors)))
        self.kept.append(run)
        self.began = None

    def forget(self, worker: Id) -> None:
        """Forget the memory after runs of a worker's former process; keep its peaks."""
        self.floors.pop(worker, None)
        for ended in self.recent:
            ended.workers.discard(worker)
            ended.left.pop(worker, None)
        for run in self.kept:
            for name in ("floors", "managed"):
                run[name] = [row for row in run.get(name, ()) if row[0] != worker]


async def watch_runs(scheduler: Any, runs: Runs, holds: Holds) -> None:
    """Record the cluster until cancelled; a failure leaves one gap."""
    due = time()
    while True:
        holds.owners.note_delay(time() - due)
        try:
            held, busy = bool(holds.active()), _is_busy(scheduler)
            runs.note(time(), busy, measured(scheduler), held)
        except Exception:
            logger.exception("clustertune could not record the memory of the workers")
        # a large cluster is sampled less often: below 1 ms of each second
        pause = max(TICK, len(scheduler.workers) / 500)
        due = time() + pause
        await asyncio.sleep(pause)


async def settled(scheduler: Any, runs: Runs) -> list[dict[str, Any]]:
    """Return the runs once each worker has sent a heartbeat after the last one.

    The wait is short; workers that send none have no value for that run.
    """
    # Dask's heartbeats are rarer on a large cluster
    longest = SETTLE + len(scheduler.workers) / 200
    while runs.recent and time() < runs.recent[-1].run["ended"] + longest:
        memory = measured(scheduler)
        runs.measure(memory)
        if not runs.recent[-1].pending & memory.keys():
            break
        await asyncio.sleep(POLL_INTERVAL)
    return list(runs.kept)


def growth(
    runs: Iterable[Mapping[str, Any]], least: Mapping[Id, float] | None = None
) -> dict[Id, float]:
    """Return by how many bytes each worker's unmanaged memory grows from run to run.

    0: it does not grow by the ``least`` bytes of the worker. A worker without enough
    runs that ended alike is absent.
    """
    kept, found = list(runs), dict[Id, float]()
    for group in rules.alike([run.get("ended_by", "gap") for run in kept]):
        left: dict[Id, list[rules.MemoryAfterRun]] = {}
        for n, run in enumerate(kept[i] for i in group):
            managed = dict(run.get("managed", ()))
            for id, nbytes in run.get("floors", ()):
                after = rules.MemoryAfterRun(n, nbytes, managed.get(id, 0))
                left.setdefault(id, []).append(after)
        for id, memory in left.items():
            if len(memory) >= rules.ENOUGH:
                step = rules.step(memory, (least or {}).get(id, 0.0)) or 0.0
                found[id] = max(step, found.get(id, 0.0))
    return found


def _is_busy(scheduler: Any) -> bool:
    return bool(scheduler.queued) or any(
        ws.processing for ws in scheduler.workers.values()
    )


def measured(scheduler: Any) -> Memory:
    """Return the memory of all workers except parking workers."""
    found = {}
    for ws in training_workers(scheduler):
        now = memory_of(ws)
        # a heartbeat has the last sample of the worker, which may be older
        sampled = ws.metrics.get("time", 0.0) + ws.time_delay
        found[id_of(ws)] = SampledMemory(now.process, now.unmanaged, sampled)
    return found
