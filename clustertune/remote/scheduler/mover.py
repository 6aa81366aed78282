"""Move keys between workers: copy, confirm, then drop. Runs on the scheduler.

The mover is a private Active Memory Manager with one policy. It replicates a key to its
target. When the scheduler has registered the new replica, it drops the other replicas.
The manager never drops the last replica, nor one that a task on its worker needs. Keys
keep their names, so collections stay valid. While a target sends no heartbeats, it may
be frozen. So its keys wait, and their other replicas stay.

Dask's default manager could drop the new replica as surplus. It is paused while copies
are in flight, for ``EPOCH`` and ``DRAIN`` seconds at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import asynccontextmanager
from itertools import islice
from time import monotonic, perf_counter, time
from typing import Any

from distributed.active_memory_manager import (
    ActiveMemoryManagerExtension,
    ActiveMemoryManagerPolicy,
    RetireWorker,
    Suggestion,
)
from distributed.core import Status

from clustertune.core.rules import CYCLE, KEYS_PER_CYCLE, free_bytes
from clustertune.remote.scheduler.state import counted_bytes, is_late

logger = logging.getLogger("distributed.clustertune")

REST = 10  # least time between two runs, in times of the last run
EPOCH = 20.0  # seconds in which copies start while the default manager is paused
DRAIN = 5.0  # further seconds in which copies may arrive
MAX_KEYS = 2000  # in flight
MIN_BYTES = 32 * 2**20  # in flight, to all workers, also over slow links
MAX_BYTES = 512 * 2**20  # in flight, to all workers
AHEAD = 5.0  # seconds that the bytes in flight need over the measured links
STALL_TIMEOUT = 30.0  # seconds without progress after which the mover gives up keys
PROGRESS = 2**20  # bytes that arrive on a host: more than its heartbeats are
MAX_TIMES = 4  # bytes on a host that count as progress, in times of those in flight
END_INTERVAL = 0.1  # seconds between two looks whether a move has to end
RETRY = 5.0  # seconds after which a replica that did not arrive is requested again
BLOCKED = "another move of the scheduler, such as a retirement, did not end"
GAP = 15.0  # seconds between two runs from which on the scheduler was suspended


class ManagerHold:
    """Pause the default memory manager while any move runs.

    Only its timer stops, so Dask and its clients still report that the manager runs. If
    a client stops the manager meanwhile, it stays stopped.
    """

    def __init__(self, scheduler: Any):
        self.scheduler = scheduler

    def running(self) -> bool | None:
        """Whether the default manager runs or is paused here; None if there is none."""
        manager = self.scheduler.extensions.get("amm")
        return None if manager is None else bool(manager.running)

    def _running_timer(self) -> Any:
        """The manager's timer; None if the manager was stopped, or there is none."""
        manager = self.scheduler.extensions.get("amm")
        return self.scheduler.periodic_callbacks.get(f"amm-{id(manager)}")

    @asynccontextmanager
    async def epoch(self) -> AsyncIterator[None]:
        """Pause the manager, and block ``rebalance``, ``replicate`` and ``retire``."""
        async with self.scheduler._replica_lock(("clustertune", object())):
            timer = self._running_timer()
            if timer is not None:
                timer.stop()
            try:
                yield
            finally:
                alive = self.scheduler.status is Status.running
                # a client that stops the manager removes its timer
                if timer is not None and alive and self._running_timer() is timer:
                    timer.start()


class WorkersMemory(dict[Any, int]):
    """The memory of workers as Dask's manager compares it, read when it is needed."""

    def __init__(self, measure: str):
        self.measure = measure

    def __missing__(self, worker: Any) -> int:
        self[worker] = getattr(worker.memory, self.measure)
        return self[worker]


class Mover(ActiveMemoryManagerExtension):
    """A manager that reads the memory of targets and holders only.

    Dask's reads the memory of all workers in each run, which takes 3 us for each.
    """

    def run_once(self) -> None:
        self.pending = {}
        self.workers_memory = WorkersMemory(self.measure)
        try:
            self._run_policies()
            self._enact_suggestions()
        finally:
            del self.workers_memory
            del self.pending


class MovePolicy(ActiveMemoryManagerPolicy):
    """Move each key to its target.

    Parameters
    ----------
    wanted
        Keys and the addresses of their targets.
    process_limits
        Greatest process memory of each target in bytes; 0: any.
    sources
        Workers that drop the keys; None: all except the target.
    parking
        Parking workers, which accept keys although they do not run.
    total
        Number of keys, if ``wanted`` is read during the move; None: it is read now.
    """

    def __init__(
        self,
        wanted: Iterable[tuple[Any, str]],
        process_limits: dict[str, int],
        sources: Collection[str] | None = None,
        parking: Collection[str] = (),
        total: int | None = None,
    ):
        if total is None:
            wanted = list(wanted)
            total = len(wanted)
        self.unread = iter(wanted)
        self.queued: deque[tuple[Any, str]] = deque()  # read, but not requested yet
        #: keys that did not arrive with others, so that each is sent alone
        self.alone: deque[tuple[Any, str]] = deque()
        self.alone_now: tuple[Any, str] = ("", "")  # the one that is sent now
        self.sender: asyncio.Task[None] | None = None  # sends it
        self.unsent: list[Any] = []  # keys that did not arrive alone either
        self.process_limits = process_limits
        self.sources = sources
        self.parking = parking
        self.requested: dict[Any, Transfer] = {}
        self.inbound: Counter[str] = Counter()  # bytes in flight, by target
        self.received: Counter[str] = Counter()  # by target, since keys arrived there
        self.seen: dict[str, float] = {}  # last heartbeat of each target
        self.in_flight = 0  # bytes, to all targets
        self.unmanaged: dict[str, int] = {}  # bytes, by target, at the first look
        self.memory: dict[str, tuple[int, int]] = {}  # by target, in this cycle
        self.left: Counter[str] = Counter()  # keys that were given up, by reason
        self.total = total
        self.done = 0
        self.nbytes = 0  # transferred bytes
        self.blocked_since: float | None = None  # it waits for Dask's own moves
        self.stopped = False  # True: copies in flight arrive, no more are sent
        self.sending = True
        self.began = self.last_progress = self.last_run = monotonic()

    def state(self) -> dict[str, Any]:
        """The progress, and what was given up and why; plain types."""
        return {
            "total": self.total,
            "done": self.done,
            "nbytes": self.nbytes,
            "left": dict(self.left),
            "waiting": self.waiting,
        }

    @property
    def waiting(self) -> int:
        """The number of keys that are not requested yet."""
        return self.total - self.done - self.left.total() - len(self.requested)

    @property
    def open(self) -> bool:
        """Whether keys wait or are in flight."""
        return self.has_sent or (not self.stopped and self.waiting > 0)

    @property
    def has_sent(self) -> bool:
        """Whether keys are in flight."""
        return bool(self.requested) or self.sender is not None

    def is_blocked(self, end: float, seconds: float) -> bool:
        """Whether it waits for Dask's moves after ``end``, and for these seconds."""
        start = self.blocked_since
        return start is not None and monotonic() > max(end, start + seconds)

    def run(self) -> Generator[Any, Any, None]:
        """Run one cycle: handle arrived keys, then request copies that fit."""
        self.memory.clear()
        if monotonic() - self.last_run > GAP:
            self.last_progress = monotonic()  # no progress was possible
        self.last_run = monotonic()
        for key in list(islice(self.requested, KEYS_PER_CYCLE)):
            yield from self._check_arrival(key)
            if key in self.requested:  # the next cycle checks others first
                self.requested[key] = self.requested.pop(key)
        if self.sending and not self.stopped:
            yield from self._send()
            if self.alone and self.sender is None:
                self.alone_now = self.alone.popleft()
                sending = self._send_alone(*self.alone_now)
                self.sender = asyncio.ensure_future(sending)
        self._read_received()
        self._give_up_if_stuck()

    def requeue(self) -> None:
        """Return keys in flight to the queue; a replica that arrives is found later."""
        for key, transfer in self.requested.items():
            self.queued.append((key, transfer.target))
        self.requested.clear()
        self.inbound.clear()
        self.in_flight = 0
        if self.sender is not None:
            self.end_sender()
            self.queued.append(self.alone_now)

    def _check_arrival(self, key: Any) -> Iterator[Any]:
        transfer = self.requested[key]
        ts: Any = self.manager.scheduler.tasks.get(key)
        target = self.manager.scheduler.workers.get(transfer.target)
        if ts is None or ts.state != "memory":
            self._finish(key, "no longer in memory")
        elif not self._takes(target):
            self._finish(key, f"{transfer.target} is gone or paused")
        elif target not in ts.who_has:
            if monotonic() - transfer.requested_at > RETRY:
                transfer.requested_at = monotonic()
                if not _receives(target):  # the message of several keys has failed
                    self._forget(key)
                    self.alone.append((key, transfer.target))
        else:
            arrives = transfer.travels
            if arrives:
                transfer.travels = False
                self.nbytes += ts.nbytes
                self.received[transfer.target] = 0
                self.last_progress = monotonic()
            others = self._surplus(ts, target)
            if not others:
                self._finish(key)
            elif not arrives and not self._has_answered(target, transfer):
                return  # the next cycles look again
            for _ in range(len(others)):
                yield Suggestion("drop", ts, others)

    def _surplus(self, ts: Any, target: Any) -> set[Any]:
        """Workers that must drop the key."""
        others = ts.who_has - {target}
        if self.sources is None:
            return set(others)
        return {ws for ws in others if ws.address in self.sources}

    def _send(self) -> Iterator[Any]:
        room = min(KEYS_PER_CYCLE, MAX_KEYS - len(self.requested))
        unread = self.waiting - len(self.alone) - (self.sender is not None)
        for _ in range(min(unread, room)):
            if self.in_flight >= self._most_in_flight():
                break
            key, address = next(self.unread, None) or self.queued.popleft()
            if key in self.requested:  # the caller named it twice
                self._count_done()
                continue
            ts: Any = self.manager.scheduler.tasks.get(key)
            target = self.manager.scheduler.workers.get(address)
            if ts is None or ts.state != "memory":
                self._give_up("not in memory")
            elif not self._takes(target):
                self._give_up(f"{address} is gone or paused")
            elif ts.actor:
                self._give_up("is an actor")
            elif target in ts.who_has and not self._surplus(ts, target):
                self._count_done()
            elif is_late(target, self.manager.scheduler) or (
                target not in ts.who_has and not self._has_room(target, ts.nbytes)
            ):
                self.queued.append((key, address))
            else:
                travels = target not in ts.who_has
                self.requested[key] = Transfer(address, ts.nbytes, travels)
                if travels:
                    self.inbound[address] += ts.nbytes
                    self.in_flight += ts.nbytes
                    yield from self._replicate(ts, target)

    def _takes(self, target: Any) -> bool:
        """Whether a worker accepts keys; None is a worker that has left."""
        if target is None:
            return False
        return target in self.manager.scheduler.running or (
            target.address in self.parking
        )

    def _replicate(self, ts: Any, target: Any) -> Iterator[Any]:
        if target in self.manager.scheduler.running:
            yield Suggestion("replicate", ts, {target})
        else:  # the manager sends such requests only to running workers
            self.manager.scheduler.request_acquire_replicas(
                target.address, [ts.key], stimulus_id=f"clustertune-park-{time()}"
            )

    def _has_room(self, target: Any, nbytes: int) -> bool:
        """Whether a key fits; only a single key may exceed the bytes in flight."""
        if self.in_flight and self.in_flight + nbytes > self._most_in_flight():
            return False
        address = target.address
        most = self.process_limits.get(address, 0)
        if address not in self.memory:
            managed, process = counted_bytes(target), target.memory.process
            unmanaged = self.unmanaged.setdefault(address, max(0, process - managed))
            self.memory[address] = process, unmanaged + managed
        return nbytes <= free_bytes(most, *self.memory[address], self.inbound[address])

    def _forget(self, key: Any) -> None:
        transfer = self.requested.pop(key)
        if transfer.sent:
            self.inbound[transfer.target] -= transfer.nbytes
            self.in_flight -= transfer.nbytes

    def _finish(self, key: Any, reason: str = "") -> None:
        self._forget(key)
        if reason:
            self._give_up(reason)
        else:
            self._count_done()

    def _count_done(self) -> None:
        self.done += 1
        self.last_progress = monotonic()

    def _give_up(self, reason: str) -> None:
        self.left[reason] += 1
        self.last_progress = monotonic()

    def _most_in_flight(self) -> float:
        """Return how many bytes may be in flight over links as fast as measured."""
        rate = self.nbytes / max(CYCLE, monotonic() - self.began)
        return min(MAX_BYTES, max(MIN_BYTES, AHEAD * rate))

    def _read_received(self) -> None:
        """Count bytes that arrive on the hosts of targets as progress.

        A large key needs long over a slow link. Other traffic on the host is not
        progress, so only some times the bytes in flight count.
        """
        arriving, workers = Counter(self.inbound), self.manager.scheduler.workers
        if self.sender is not None:
            key, address = self.alone_now
            ts: Any = self.manager.scheduler.tasks.get(key)
            arriving[address] += 0 if ts is None else ts.nbytes
        for address, nbytes in arriving.items():
            worker = workers.get(address)
            if worker is None or not nbytes:
                continue
            before = self.seen.get(address, worker.last_seen)
            self.seen[address] = worker.last_seen
            rate = worker.metrics.get("host_net_io", {}).get("read_bps", 0)
            former = self.received[address]
            self.received[address] += int(rate * (worker.last_seen - before))
            progress = self.received[address] // PROGRESS - former // PROGRESS
            if progress and former < MAX_TIMES * nbytes:
                self.last_progress = monotonic()

    def _give_up_if_stuck(self) -> None:
        if not self.open or monotonic() - self.last_progress < STALL_TIMEOUT:
            return
        for key, transfer in list(self.requested.items()):
            late = "did not arrive" if transfer.travels else "old copy is in use"
            silent = self._silent(transfer.target)
            self._finish(key, silent or f"{late} for {STALL_TIMEOUT:g} s or more")
        late_alone = len(self.alone) + (self.sender is not None)
        self.end_sender()  # also of a stopped move, which waits for it
        if self.waiting and not self.stopped:
            if late_alone:
                reason = f"did not arrive for {STALL_TIMEOUT:g} s or more"
                self.left[reason] += late_alone
            self.alone.clear()
            for _, address in self.queued:
                if silent := self._silent(address):
                    self.left[silent] += 1
            if self.waiting:
                full = "its target has no room below its memory limit"
                self.left[full] += self.waiting
            self.queued.clear()

    def _silent(self, address: str) -> str:
        """Return why a target gets no keys if it sends no heartbeats."""
        target = self.manager.scheduler.workers.get(address)
        silent = target is not None and is_late(target, self.manager.scheduler)
        return f"{address} sends no heartbeats" if silent else ""

    def _has_answered(self, worker: Any, transfer: Transfer) -> bool:
        """Whether a worker that had the key before has sent a heartbeat since."""
        late = is_late(worker, self.manager.scheduler)
        return not late and worker.last_seen >= transfer.began

    async def _send_alone(self, key: Any, address: str) -> None:
        """Send one key without others, and queue it again once it has arrived."""
        scheduler = self.manager.scheduler
        ts: Any = scheduler.tasks.get(key)
        failed: Any = ()
        travels = False
        try:
            # a key that is computed again has no holders
            holders = [ws.address for ws in ts.who_has or ()] if ts is not None else []
            travels = bool(holders) and address not in holders
            if travels:
                failed = await scheduler.gather_on_worker(address, {key: holders})
        except asyncio.CancelledError:
            raise
        # Dask raises errors of the target, too
        except Exception as error:  # noqa: BLE001, the key is reported
            logger.info("clustertune: %r was not sent: %r", key, error)
            failed = (key,)
        finally:
            if self.sender is asyncio.current_task():  # the next one may run already
                self.sender = None
        if failed:
            self.unsent.append(key)
            self._give_up("cannot be sent")
            return
        if travels:
            self.nbytes += ts.nbytes
        self.last_progress = monotonic()
        self.queued.append((key, address))  # the next cycle drops the other replicas

    def end_sender(self) -> None:
        """Stop waiting for the key that is sent alone."""
        if self.sender is not None:
            self.sender.cancel()
            self.sender = None


def _receives(worker: Any) -> bool:
    """Whether a worker received keys at its last heartbeat."""
    return bool(worker.metrics.get("transfer", {}).get("incoming_bytes"))


class Transfer:
    """A requested copy of a key."""

    __slots__ = ("began", "nbytes", "requested_at", "sent", "target", "travels")

    def __init__(self, target: str, nbytes: int, travels: bool):
        self.target = target
        self.nbytes = nbytes
        self.sent = travels  # its bytes count until it is done
        self.travels = travels  # until the scheduler knows of the replica
        self.requested_at = monotonic()
        self.began = time()  # the clock of heartbeats


async def move_keys(scheduler: Any, policy: MovePolicy, hold: ManagerHold) -> None:
    """Run the policy until all keys are done; pause the default manager in epochs.

    Copies in flight arrive before an epoch ends. Otherwise the default manager could
    treat the source and its new replica as surplus, and drop either of them.
    """
    manager = Mover(scheduler, policies={policy}, register=False, start=False)
    try:
        await _move(scheduler, manager, policy, hold)
    finally:
        policy.end_sender()


async def _move(
    scheduler: Any, manager: Mover, policy: MovePolicy, hold: ManagerHold
) -> None:
    while policy.open:
        started = policy.blocked_since = monotonic()
        async with hold.epoch():
            policy.blocked_since = None
            # the wait for the lock is no stall; an epoch without progress is one, so
            # that a blocked move does not begin epochs without end
            policy.last_progress += monotonic() - started
            policy.last_run += monotonic() - started
            policy.sending = True
            await _run(manager, policy, EPOCH)
            policy.sending = False
            await _run(manager, policy, DRAIN)
            if not policy.stopped:  # a stopped policy ends when nothing is in flight
                policy.requeue()
        default = scheduler.extensions.get("amm")
        if policy.open and default is not None and default.running:
            default.run_once()


async def _run(manager: Any, policy: MovePolicy, seconds: float) -> None:
    """Run cycles until nothing is open, or in flight once launching has ended."""
    end = monotonic() + seconds
    while monotonic() < end and _is_unfinished(policy):
        done, start = policy.done, perf_counter()
        manager.run_once()
        if _is_unfinished(policy):
            seconds = pause(perf_counter() - start)
            # if all targets are full, a short wait changes nothing
            busy = policy.requested or policy.sender or policy.done > done
            await asyncio.sleep(seconds if busy else max(seconds, 10 * CYCLE))


async def move_until(
    scheduler: Any, policy: MovePolicy, hold: ManagerHold, over: Callable[[], bool]
) -> None:
    """Run the mover until ``over()``; it ends after the copies in flight."""
    moving = asyncio.ensure_future(move_keys(scheduler, policy, hold))
    try:
        while not moving.done():
            await asyncio.wait([moving], timeout=END_INTERVAL)
            if over():
                policy.stopped = True
                if not policy.has_sent:  # it may wait for Dask's own moves
                    moving.cancel()
                    if policy.blocked_since is not None and policy.waiting:
                        policy.left[BLOCKED] = policy.waiting
    finally:
        moving.cancel()
        await asyncio.gather(moving, return_exceptions=True)
    if not moving.cancelled():
        moving.result()


def drop_retirement(scheduler: Any, address: str) -> None:
    """Remove the policy of a cancelled retirement, which would go on moving keys."""
    manager = scheduler.extensions.get("amm")
    for policy in [] if manager is None else list(manager.policies):
        if isinstance(policy, RetireWorker) and policy.address == address:
            manager.policies.remove(policy)


def pause(seconds: float) -> float:
    """Return the time between two runs, so that the mover uses little of the loop."""
    return max(CYCLE, REST * seconds)


def _is_unfinished(policy: MovePolicy) -> bool:
    return policy.open if policy.sending else policy.has_sent


def reasons(left: Mapping[str, int]) -> str:
    """Return why keys did not move, as text."""
    return "; ".join(f"{n} keys: {reason}" for reason, n in left.items())
