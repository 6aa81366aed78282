"""Moves keys between workers: copy, confirm, then drop. Runs on the scheduler.

The mover is a private Active Memory Manager with one policy. It replicates a key to its
target, and drops it elsewhere once the scheduler knows of the new replica. The
manager's own rules hold: it never drops the last replica, nor one that a task on that
worker needs. Keys keep their names, so collections stay valid.

The default manager is paused meanwhile, because it would drop the new replica as
surplus; but only while copies are in flight, for ``EPOCH`` and ``DRAIN`` seconds at a
time.
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

from clustertune.core.rules import free_bytes
from clustertune.remote.scheduler.state import counted_bytes

logger = logging.getLogger("distributed.clustertune")

CYCLE = 0.02  # seconds between two runs of the policy
EPOCH = 20.0  # seconds for which the default memory manager is paused at a time,
DRAIN = 5.0  # and further seconds in which keys in flight may arrive
MAX_KEYS = 2000  # in flight: a cycle with 1,000 suggestions takes 4 ms
MAX_BYTES = 512 * 2**20  # in flight, to all workers
PATIENCE = 30.0  # seconds without progress after which open keys are given up
SLOWEST = 5e6  # bytes per second: keys in flight get this much more time
RETRY = 5.0  # seconds after which a replica that did not arrive is requested again


class ManagerHold:
    """Pauses the default memory manager while any move holds it.

    Only its timer stops, so to Dask and its clients the manager still runs. If a client
    stops the manager meanwhile, it stays stopped.
    """

    def __init__(self, scheduler: Any):
        self.scheduler = scheduler
        self.holders = 0
        self.timer: Any = None  # the stopped one

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
        """Pause the manager, and block ``rebalance``, ``replicate`` and ``retire``."""
        async with self.scheduler._replica_lock(("clustertune", object())):
            self.take()
            try:
                yield
            finally:
                self.give_back()


class MovePolicy(ActiveMemoryManagerPolicy):
    """Brings each key to its target, and drops it elsewhere.

    ``wanted`` has keys and addresses of their targets. A target gets no keys above its
    ceiling, in bytes of process memory; 0: any. Keys are dropped from ``sources`` only,
    if given. ``shelters`` take keys though they do not run. ``waiting`` has the keys
    that are still to do, ``flying`` the requested ones, and ``left`` counts by reason
    the keys that were given up.
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
        self.unmanaged: dict[str, int] = {}  # bytes, by target, at the first look
        self.left: Counter[str] = Counter()
        self.total = len(self.waiting)
        self.done = 0
        self.nbytes = 0  # that travelled
        self.stopped = False  # finally: keys in flight arrive, no more are sent
        self.launching = True
        self.last_progress = monotonic()

    def state(self) -> dict[str, Any]:
        """The progress, and what was given up and why; plain types."""
        return {
            "total": self.total,
            "done": self.done,
            "nbytes": self.nbytes,
            "left": dict(self.left),
            "waiting": len(self.waiting),
        }

    @property
    def open(self) -> bool:
        """Whether anything is left to do."""
        return bool(self.flying) or (not self.stopped and bool(self.waiting))

    def run(self) -> Generator[Any, Any, None]:
        """Run one cycle: handle arrived keys, and send what there is room for."""
        for key in list(self.flying):
            yield from self._land(key)
        if self.launching and not self.stopped:
            yield from self._launch()
        self._give_up_if_stuck()

    def requeue(self) -> None:
        """Return keys in flight to the queue; a replica that arrives is found later."""
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
            if monotonic() - flight.asked > RETRY:
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
        for _ in range(min(len(self.waiting), MAX_KEYS - len(self.flying))):
            key, address = self.waiting.popleft()
            if key in self.flying:  # it was given twice
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
        else:  # as the manager does, but it does so for running workers only
            self.manager.scheduler.request_acquire_replicas(
                target.address, [ts.key], stimulus_id=f"clustertune-park-{time()}"
            )

    def _room(self, target: Any, nbytes: int) -> bool:
        """Whether a key has room: only one large key may exceed the bytes in flight."""
        if self.in_flight and self.in_flight + nbytes > MAX_BYTES:
            return False
        address = target.address
        managed, process = counted_bytes(target), target.memory.process
        unmanaged = self.unmanaged.setdefault(address, max(0, process - managed))
        return nbytes <= free_bytes(
            self.ceilings.get(address, 0),
            process,
            unmanaged + managed,
            self.inbound[address],
        )

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
    """A key in flight."""

    __slots__ = ("asked", "nbytes", "sent", "target", "travels")

    def __init__(self, target: str, nbytes: int, travels: bool):
        self.target = target
        self.nbytes = nbytes
        self.sent = travels  # its bytes count until it is done
        self.travels = travels  # until the scheduler knows of the replica
        self.asked = monotonic()


async def move_keys(scheduler: Any, policy: MovePolicy, hold: ManagerHold) -> None:
    """Run the policy until nothing is open, and pause the default manager in epochs.

    An epoch ends early enough to land the keys in flight. The default manager would
    take a replica whose source is not dropped yet as surplus, and drop one of them at
    random.
    """
    manager = ActiveMemoryManagerExtension(
        scheduler, policies={policy}, register=False, start=False
    )
    while policy.open:
        waiting = monotonic()
        async with hold.epoch():
            # the wait for the lock does not count as a stall; an epoch without progress
            # does, or a blocked move would begin one epoch after the other
            policy.last_progress += monotonic() - waiting
            policy.launching = True
            await _run(manager, policy, EPOCH)
            policy.launching = False
            await _run(manager, policy, DRAIN)
            if not policy.stopped:  # a stopped policy ends when nothing is in flight
                policy.requeue()
        default = scheduler.extensions.get("amm")
        if policy.open and default is not None and default.running:
            default.run_once()


async def _run(manager: Any, policy: MovePolicy, seconds: float) -> None:
    """Run cycles until nothing is open, or in flight once launching has ended."""
    end = monotonic() + seconds
    while monotonic() < end and _goes_on(policy):
        done = policy.done
        manager.run_once()
        if _goes_on(policy):
            # if all targets are full, 20 ms change nothing
            busy = policy.flying or policy.done > done
            await asyncio.sleep(CYCLE if busy else 10 * CYCLE)


def _goes_on(policy: MovePolicy) -> bool:
    return policy.open if policy.launching else bool(policy.flying)
