"""Faults that are injected into a real cluster during a call of clustertune."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from time import sleep
from typing import Any, NamedTuple

from distributed import Client

import clustertune
from clustertune.errors import ClustertuneError
from tests.chaos.clusters import LocalWorkers

BUSY_LOOP = "while True: pass"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A kind of fault, its moment, its target and its duration."""

    kind: str
    n_messages: int  # progress messages before the delay begins
    delay: float  # seconds
    target: int
    seconds: float


def draw(rng: Random, kinds: tuple[str, ...], *, reports_progress: bool) -> Fault:
    """Draw a fault of one of these kinds; early if the call reports no progress."""
    return Fault(
        kind=rng.choice(kinds),
        n_messages=rng.choice((0, 1, 1, 2, 3, 5) if reports_progress else (0, 1)),
        delay=rng.choice((0.0, rng.uniform(0, 0.05), rng.uniform(0, 0.5))),
        target=rng.randrange(64),
        seconds=rng.choice((0.3, 1.0, 2.0)),
    )


class Target(NamedTuple):
    """The worker of a fault, and the duration of the fault."""

    seconds: float
    address: str
    pid: int


class FaultInjector(threading.Thread):
    """Injects one fault during a call, and reverts it if possible.

    Attributes
    ----------
    injected : list of (kind, phase)
        The injected fault, and the phase of the call.
    trouble : str
        Error of the injection itself.
    """

    def __init__(self, cluster: LocalWorkers, fault: Fault | None):
        super().__init__(daemon=True)
        self.cluster, self.fault = cluster, fault
        self.injected: list[tuple[str, str]] = []
        self.trouble = ""
        self.phase = "begin"
        self._n_messages = 0
        self._changed = threading.Condition()
        self._over = False

    def notify(self, text: str, fraction: float | None = None) -> None:
        """Count a progress message, and note its phase."""
        with self._changed:
            self._n_messages += 1
            self.phase = phase_of(text)
            self._changed.notify_all()

    def end(self) -> None:
        """Note that the call has ended, and wait until the fault is reverted."""
        with self._changed:
            self.phase = "after the end"
            self._over = True
            self._changed.notify_all()
        self.join(60)
        if self.is_alive():
            self.trouble = "the fault was not reverted within a minute"

    def run(self) -> None:
        fault = self.fault
        if fault is None:
            return
        with self._changed:
            self._changed.wait_for(
                lambda: self._over or self._n_messages >= fault.n_messages, timeout=30
            )
            self._changed.wait_for(lambda: self._over, timeout=fault.delay)
            phase = self.phase
        try:
            if self._inject(fault):
                self.injected.append((fault.kind, phase))
        # the round reports it
        except Exception as error:
            self.trouble = f"{fault.kind}: {error!r}"

    def _inject(self, fault: Fault) -> bool:
        """Inject a fault; whether that was possible."""
        if fault.kind in ELSEWHERE:
            return ELSEWHERE[fault.kind](self, fault)
        workers = sorted(self.cluster.pids().items())
        if not workers:
            return False
        address, pid = workers[fault.target % len(workers)]
        return ON_WORKER[fault.kind](self, Target(fault.seconds, address, pid))

    def wait(self, seconds: float) -> None:
        """Wait until the fault is to be reverted."""
        with self._changed:
            self._changed.wait_for(lambda: False, timeout=seconds)


def phase_of(text: str) -> str:
    """The first word of a progress message."""
    words = text.lower().split()
    return words[0].strip(":;,") if words else "begin"


# --- workers --------------------------------------------------------------------------


def _kill(injector: FaultInjector, one: Target) -> bool:
    return _signal(one.pid, signal.SIGKILL)


def _signal(pid: int, number: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def _freeze(injector: FaultInjector, one: Target) -> bool:
    if not _signal(one.pid, signal.SIGSTOP):
        return False
    try:
        injector.wait(one.seconds)
    finally:
        _signal(one.pid, signal.SIGCONT)
    return True


def _pause(injector: FaultInjector, one: Target) -> bool:
    """Lower the pause threshold of a worker for a while."""

    def below(fraction: Any, dask_worker: Any) -> Any:
        manager = dask_worker.memory_manager
        before, manager.memory_pause_fraction = manager.memory_pause_fraction, fraction
        return before

    return _for_a_while(injector, one, below, 1e-9)


def leak(fraction: float, dask_worker: Any) -> None:
    """Fill a worker's process up to a fraction of its limit with unmanaged memory."""
    import builtins

    there = dask_worker.monitor.get_process_memory()
    nbytes = int(fraction * dask_worker.memory_manager.memory_limit) - there
    vars(builtins).setdefault("leaked", []).append(b"x" * max(0, nbytes))


def _fill_memory(injector: FaultInjector, one: Target) -> bool:
    """Fill a worker to 90 %, below the fraction at which its nanny kills it."""
    return _run(injector, one, leak, 0.9) is None


def _run(injector: FaultInjector, one: Target, function: Any, value: Any) -> Any:
    """Run a function in a worker; return its result or error, True without any."""
    found = injector.cluster.watch.run(
        function, value, workers=[one.address], on_error="return"
    )
    return found.get(one.address, True)


def _slow_transfers(injector: FaultInjector, one: Target) -> bool:
    """Delay the answers of a worker to other workers."""

    def slow(by: Any, dask_worker: Any) -> None:
        import asyncio

        before = dask_worker.handlers["get_data"]

        async def get_data(comm: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(by)
            return await before(comm, **kwargs)

        get_data.before = before  # type: ignore[attr-defined]
        dask_worker.handlers["get_data"] = get_data

    def back(_: Any, dask_worker: Any) -> None:
        now = dask_worker.handlers["get_data"]
        dask_worker.handlers["get_data"] = getattr(now, "before", now)

    return _for_a_while(injector, one, slow, 0.2, back)


def _for_a_while(
    injector: FaultInjector, one: Target, change: Any, value: Any, back: Any = None
) -> bool:
    """Change a worker, and revert the change later."""
    before = _run(injector, one, change, value)
    if isinstance(before, BaseException):
        return False
    injector.wait(one.seconds)
    _run(injector, one, back or change, before)
    return True


def _block(injector: FaultInjector, one: Target) -> bool:
    """Block the event loop of a worker."""
    return _run(injector, one, sleep, one.seconds) is None


def _retire(injector: FaultInjector, one: Target) -> bool:
    """Retire a worker with Dask."""
    if len(injector.cluster.pids()) < 2:
        return False
    return bool(injector.cluster.watch.retire_workers([one.address]))


# --- nannies, clients, the cluster ----------------------------------------------------


def _use_cpu(injector: FaultInjector, fault: Fault) -> bool:
    """Run another process that uses a CPU."""
    with subprocess.Popen([sys.executable, "-c", BUSY_LOOP]) as busy:
        try:
            injector.wait(fault.seconds)
        finally:
            busy.kill()
    return True


def _kill_nanny(injector: FaultInjector, fault: Fault) -> bool:
    found = injector.cluster.nannies()
    return len(found) > 1 and _signal(found[fault.target % len(found)], signal.SIGKILL)


def _interrupt(injector: FaultInjector, fault: Fault) -> bool:
    """Send SIGINT to the main thread."""
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)
    return True


def _add_worker(injector: FaultInjector, fault: Fault) -> bool:
    cluster = injector.cluster
    cluster.cluster.scale(len(cluster.cluster.worker_spec) + 1)
    return True


def _other_client(injector: FaultInjector, fault: Fault) -> bool:
    """Call clustertune from another client at the same time."""
    address = injector.cluster.watch.scheduler.address
    with Client(address, set_as_default=False) as other, suppress(ClustertuneError):
        clustertune.trim_memory(other, progress=False, timeout="20s")
    return True


ON_WORKER: Mapping[str, Callable[[FaultInjector, Target], bool]] = {
    "kill worker": _kill,
    "freeze worker": _freeze,
    "pause worker": _pause,
    "fill memory": _fill_memory,
    "slow transfers": _slow_transfers,
    "block worker": _block,
    "retire worker": _retire,
}
ELSEWHERE: Mapping[str, Callable[[FaultInjector, Fault], bool]] = {
    "busy CPU": _use_cpu,
    "kill nanny": _kill_nanny,
    "interrupt": _interrupt,
    "add worker": _add_worker,
    "other client": _other_client,
}
FAULTS = (*ON_WORKER, *ELSEWHERE)
