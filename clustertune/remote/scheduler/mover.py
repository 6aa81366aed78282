"""Moving keys between workers: copy, confirm, then drop. Runs on the scheduler.

The mover is a private Active Memory Manager with one policy: a key is replicated to its
target, and dropped elsewhere once the scheduler knows that the copy is there. The
manager's own rules hold: the last copy is never dropped, nor one that a task on that
worker needs. Keys keep their names, so collections made of them stay valid.

The default manager is held off meanwhile, or it would drop the new copy as a surplus
one; but only while copies are in flight, for ``EPOCH`` and ``DRAIN`` seconds at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import (
    AsyncIterator,
    Collection,
    Generator,
    Iterable,
    Iterator,
)
from contextlib import asynccontextmanager
from time import monotonic, time
from typing import Any

from distributed.active_memory_manager import (
    ActiveMemoryManagerExtension,
    ActiveMemoryManagerPolicy,
    Suggestion,
)
from distributed.core import Status

from clustertune.remote.scheduler.workers import counted

logger = logging.getLogger("distributed.clustertune")
CYCLE = 0.02  # seconds between two runs of the policy
EPOCH = 20.0  # seconds for which the default memory manager is held off at a time,
DRAIN = 5.0  # and seconds more in which what is in flight may land
MOST_KEYS = 2000  # in flight: a cycle with 1,000 suggestions blocks the loop for 4 ms
MOST_BYTES = 512 * 2**20  # in flight, of all workers together
PATIENCE = 30.0  # seconds without any progress after which what is open is given up
SLOWEST = 5e6  # bytes per second: a piece in flight gets this much time on top
AGAIN = 5.0  # seconds after which a copy that did not arrive is asked for again


class ManagerHold:
    """Pauses the default memory manager while any move holds it.

    Only its timer stops, so to Dask and its clients the manager still runs. If a client
    stops the manager meanwhile, it stays stopped.
    """

    def __init__(self, scheduler: Any):
        self.scheduler = scheduler
        self.holders = 0
        self.timer: Any = None  # that was stopped

    def running(self) -> bool | None:
        """Whether the default manager runs, or is only paused here.

        None if the scheduler has none.
        """
        manager = self.scheduler.extensions.get("amm")
        return None if manager is None else bool(manager.running)

    def _running_timer(self) -> Any:
        """The manager's timer; None if the manager was stopped, or there is none."""
        manager = self.scheduler.extensions.get("amm")
        return self.scheduler.periodic_callbacks.get(f"amm-{id(manager)}")

    def take(self) -> None:
        if self.holders == 0:
            self.timer = self._running_timer()
            if self.timer is not None:
                self.timer.stop()
        self.holders += 1

    def give_back(self) -> None:
        self.holders -= 1
        if self.holders or self.timer is None:
            return
        timer, self.timer = self.timer, None
        # a client that stops the manager removes its timer
        alive = self.scheduler.status is Status.running
        if alive and self._running_timer() is timer:
            timer.start()

    @asynccontextmanager
    async def epoch(self) -> AsyncIterator[None]:
        """Hold it off, and keep ``rebalance``, ``replicate`` and ``retire`` waiting."""
        async with self.scheduler._replica_lock(("clustertune", object())):
            self.take()
            try:
                yield
            finally:
                self.give_back()


class Placing(ActiveMemoryManagerPolicy):
    """Brings each key to its target and to it alone.

    ``waiting`` holds (key, address of the target); ``flying`` what was asked for and is
    not confirmed; ``left`` counts, by reason, what was given up. ``ceilings`` are the
    bytes of process memory, by address, above which nothing more is sent to a target.
    ``sources`` are the addresses of workers from which keys are dropped: all by
    default, and copies on other workers stay where it is given. ``shelters`` are
    addresses of workers that take keys though they do not run.
    """

    def __init__(
        self,
        wanted: Iterable[tuple[Any, str]],
        ceilings: dict[str, int],
        sources: Collection[str] | None = None,
        shelters: Collection[str] = (),
    ):
        self.waiting = deque(wanted)
        self.ceilings = ceilings
        self.sources = sources
        self.shelters = shelters
        self.flying: dict[Any, Flight] = {}
        self.inbound: Counter[str] = Counter()  # bytes in flight, by target
        self.in_flight = 0  # bytes, to all targets
        self.unmanaged: dict[str, int] = {}  # bytes, by target, when first looked at
        self.left: Counter[str] = Counter()
        self.total = len(self.waiting)
        self.done = 0
        self.nbytes = 0  # that travelled
        self.stopped = False  # for good: land what is in flight, begin no more
        self.launching = True
        self.last_progress = monotonic()

    def state(self) -> dict[str, Any]:
        """How far it is, what was given up and why; plain types."""
        return {
            "total": self.total,
            "done": self.done,
            "nbytes": self.nbytes,
            "left": dict(self.left),
            "waiting": len(self.waiting),
        }

    @property
    def open(self) -> bool:
        """Whether there is anything left to do."""
        return bool(self.flying) or (not self.stopped and bool(self.waiting))

    def run(self) -> Generator[Any, Any, None]:
        """One cycle: land what has arrived, send what there is room for."""
        for key in list(self.flying):
            yield from self._land(key)
        if self.launching and not self.stopped:
            yield from self._launch()
        self._give_up_if_stuck()

    def requeue(self) -> None:
        """Take what is still in flight as not begun; a copy that arrives is found."""
        for key, flight in self.flying.items():
            self.waiting.append((key, flight.target))
        self.flying.clear()
        self.inbound.clear()
        self.in_flight = 0

    def _land(self, key: Any) -> Iterator[Any]:
        flight = self.flying[key]
        ts: Any = self.manager.scheduler.tasks.get(key)
        target = self.manager.scheduler.workers.get(flight.target)
        if ts is None or ts.state != "memory":
            self._finish(key, "no longer in memory")
        elif not self._takes(target):
            self._finish(key, f"{flight.target} is gone or paused")
        elif target not in ts.who_has:
            if monotonic() - flight.asked > AGAIN:
                flight.asked = monotonic()
                yield from self._replicate(ts, target)
        else:
            if flight.travels:
                flight.travels = False
                self.nbytes += ts.nbytes
                self.last_progress = monotonic()
            others = self._surplus(ts, target)
            if not others:
                self._finish(key)
            for _ in range(len(others)):
                yield Suggestion("drop", ts, others)

    def _surplus(self, ts: Any, target: Any) -> set[Any]:
        """Workers from which the key is to be dropped."""
        others = ts.who_has - {target}
        if self.sources is None:
            return set(others)
        return {ws for ws in others if ws.address in self.sources}

    def _launch(self) -> Iterator[Any]:
        for _ in range(min(len(self.waiting), MOST_KEYS - len(self.flying))):
            key, address = self.waiting.popleft()
            if key in self.flying:  # given twice
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
            elif target not in ts.who_has and not self._room(target, ts.nbytes):
                self.waiting.append((key, address))
            else:
                travels = target not in ts.who_has
                self.flying[key] = Flight(address, ts.nbytes, travels)
                if travels:
                    self.inbound[address] += ts.nbytes
                    self.in_flight += ts.nbytes
                    yield from self._replicate(ts, target)

    def _takes(self, target: Any) -> bool:
        """Whether keys may be sent to a worker, which may be gone."""
        if target is None:
            return False
        return target in self.manager.scheduler.running or (
            target.address in self.shelters
        )

    def _replicate(self, ts: Any, target: Any) -> Iterator[Any]:
        if target in self.manager.scheduler.running:
            yield Suggestion("replicate", ts, {target})
        else:  # the manager's own way, which it goes to workers that run alone
            self.manager.scheduler.request_acquire_replicas(
                target.address, [ts.key], stimulus_id=f"clustertune-park-{time()}"
            )

    def _room(self, target: Any, nbytes: int) -> bool:
        """A single large piece may exceed the bytes in flight, never the ceiling."""
        if self.in_flight and self.in_flight + nbytes > MOST_BYTES:
            return False
        ceiling = self.ceilings.get(target.address, 0)
        return not ceiling or self._expected(target) + nbytes <= ceiling

    def _expected(self, target: Any) -> Any:
        """Bytes of process memory once what is in flight has arrived.

        The process memory that the scheduler knows is a heartbeat old, the sizes of the
        keys there are not: the larger of the two views counts.
        """
        address = target.address
        managed, process = counted(target), target.memory.process
        unmanaged = self.unmanaged.setdefault(address, max(0, process - managed))
        return max(process, unmanaged + managed) + self.inbound[address]

    def _finish(self, key: Any, reason: str = "") -> None:
        flight = self.flying.pop(key)
        if flight.sent:
            self.inbound[flight.target] -= flight.nbytes
            self.in_flight -= flight.nbytes
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

    def _give_up_if_stuck(self) -> None:
        idle = monotonic() - self.last_progress
        if not self.open or idle < PATIENCE + self.in_flight / SLOWEST:
            return
        for key, flight in list(self.flying.items()):
            late = "did not arrive" if flight.travels else "old copy is in use"
            self._finish(key, f"{late} for {PATIENCE:g} s or more")
        while self.waiting and not self.stopped:
            self.waiting.popleft()
            self._give_up("its target has no room below its ceiling")


class Flight:
    """A key on its way: where to, how large, whether bytes travel, when asked for."""

    __slots__ = ("asked", "nbytes", "sent", "target", "travels")

    def __init__(self, target: str, nbytes: int, travels: bool):
        self.target = target
        self.nbytes = nbytes
        self.sent = travels  # counts as in flight until it is done
        self.travels = travels  # until the scheduler knows of the copy
        self.asked = monotonic()


async def place(scheduler: Any, policy: Placing, hold: ManagerHold) -> None:
    """Run the policy until nothing is open, holding the default manager off in epochs.

    An epoch ends early enough to land what is in flight: a copy whose source is not
    dropped yet is a surplus one to the default manager, which would choose at random.
    """
    manager = ActiveMemoryManagerExtension(
        scheduler, policies={policy}, register=False, start=False
    )
    while policy.open:
        waiting = monotonic()
        async with hold.epoch():
            # waiting for the lock was no fault; an epoch without progress is, or a move
            # that cannot go on would begin one epoch after the other
            policy.last_progress += monotonic() - waiting
            policy.launching = True
            await _run(manager, policy, EPOCH)
            policy.launching = False
            await _run(manager, policy, DRAIN)
            if not policy.stopped:  # then it ends when nothing is in flight
                policy.requeue()
        default = scheduler.extensions.get("amm")
        if policy.open and default is not None and default.running:
            default.run_once()


async def _run(manager: Any, policy: Placing, seconds: float) -> None:
    """Cycles until nothing is open, or in flight once launching has ended."""
    end = monotonic() + seconds
    while monotonic() < end and _goes_on(policy):
        done = policy.done
        manager.run_once()
        if _goes_on(policy):
            # else all targets are full: not otherwise in 20 ms
            busy = policy.flying or policy.done > done
            await asyncio.sleep(CYCLE if busy else 10 * CYCLE)


def _goes_on(policy: Placing) -> bool:
    return policy.open if policy.launching else bool(policy.flying)
