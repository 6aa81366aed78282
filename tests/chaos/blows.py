"""What happens to a live cluster while clustertune works on it, at a drawn moment."""

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
from typing import Any

from distributed import Client

import clustertune
from clustertune.errors import ClustertuneError
from tests.chaos.houses import House

HOG = "while True: pass"


@dataclass(frozen=True, kw_only=True)
class Blow:
    """What happens, when, to whom and for how long."""

    kind: str
    notices: int  # of progress, after which it is counted down
    delay: float  # seconds
    whom: int
    seconds: float


def draw(rng: Random, kinds: tuple[str, ...], *, told: bool) -> Blow:
    """One of these; of what is not ``told`` how far it is, soon."""
    return Blow(
        kind=rng.choice(kinds),
        notices=rng.choice((0, 1, 1, 2, 3, 5) if told else (0, 1)),
        delay=rng.choice((0.0, rng.uniform(0, 0.05), rng.uniform(0, 0.5))),
        whom=rng.randrange(64),
        seconds=rng.choice((0.3, 1.0, 2.0)),
    )


class Striker(threading.Thread):
    """Strikes once, while something else goes on; then undoes what can be undone.

    Attributes
    ----------
    hits : list of (kind, phase)
        What has happened, and what was said to be going on.
    trouble : str
        What went wrong with the blow itself.
    """

    def __init__(self, house: House, blow: Blow | None):
        super().__init__(daemon=True)
        self.house, self.blow = house, blow
        self.hits: list[tuple[str, str]] = []
        self.trouble = ""
        self.phase = "begin"
        self._notices = 0
        self._heard = threading.Condition()
        self._over = False

    def notify(self, text: str, fraction: float | None = None) -> None:
        """Told of progress: counts it, and notes the phase."""
        with self._heard:
            self._notices += 1
            self.phase = phase_of(text)
            self._heard.notify_all()

    def end(self) -> None:
        """The work has ended; what is going on is undone, and nothing new begins."""
        with self._heard:
            self.phase = "after the end"
            self._over = True
            self._heard.notify_all()
        self.join(60)
        if self.is_alive():
            self.trouble = "the blow has not ended within a minute"

    def run(self) -> None:
        blow = self.blow
        if blow is None:
            return
        with self._heard:
            self._heard.wait_for(
                lambda: self._over or self._notices >= blow.notices, timeout=30
            )
            self._heard.wait_for(lambda: self._over, timeout=blow.delay)
            phase = self.phase
        try:
            if BLOWS[blow.kind](self, blow):
                self.hits.append((blow.kind, phase))
        # whoever plays the round is to hear of it
        except Exception as error:
            self.trouble = f"{blow.kind}: {error!r}"

    def last(self, seconds: float) -> None:
        """Wait so long: until what was done is undone."""
        with self._heard:
            self._heard.wait_for(lambda: False, timeout=seconds)


def phase_of(text: str) -> str:
    """What is going on, without names and numbers."""
    words = text.lower().split()
    return words[0].strip(":;,") if words else "begin"


# --- workers --------------------------------------------------------------------------


def _one(striker: Striker, blow: Blow) -> tuple[str, int] | None:
    found = sorted(striker.house.pids().items())
    return found[blow.whom % len(found)] if found else None


def _kill(striker: Striker, blow: Blow) -> bool:
    one = _one(striker, blow)
    return one is not None and _signal(one[1], signal.SIGKILL)


def _signal(pid: int, number: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def _freeze(striker: Striker, blow: Blow) -> bool:
    one = _one(striker, blow)
    if one is None or not _signal(one[1], signal.SIGSTOP):
        return False
    try:
        striker.last(blow.seconds)
    finally:
        _signal(one[1], signal.SIGCONT)
    return True


def _pause(striker: Striker, blow: Blow) -> bool:
    """Its memory manager finds too much memory in it, and after a while enough."""

    def below(fraction: Any, dask_worker: Any) -> Any:
        manager = dask_worker.memory_manager
        before, manager.memory_pause_fraction = manager.memory_pause_fraction, fraction
        return before

    return _for_a_while(striker, blow, below, 1e-9)


def leak(fraction: float, dask_worker: Any) -> None:
    """Fill a worker's process up to a fraction of its limit with unmanaged memory."""
    import builtins

    there = dask_worker.monitor.get_process_memory()
    nbytes = int(fraction * dask_worker.memory_manager.memory_limit) - there
    vars(builtins).setdefault("leaked", []).append(b"x" * max(0, nbytes))


def _fill(striker: Striker, blow: Blow) -> bool:
    """Its memory grows further: not yet up to the fraction at which its nanny acts."""
    one = _one(striker, blow)
    if one is None:
        return False
    found = striker.house.watch.run(leak, 0.9, workers=[one[0]], on_error="return")
    return found.get(one[0], True) is None


def _lag(striker: Striker, blow: Blow) -> bool:
    """What others fetch from it takes longer to come."""

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

    return _for_a_while(striker, blow, slow, 0.2, back)


def _for_a_while(
    striker: Striker, blow: Blow, change: Any, value: Any, back: Any = None
) -> bool:
    """Change a worker, and change it back, if it is still there."""
    one = _one(striker, blow)
    if one is None:
        return False
    watch, address = striker.house.watch, one[0]

    def ask(function: Any, given: Any) -> Any:
        found = watch.run(function, given, workers=[address], on_error="return")
        return found.get(address)

    before = ask(change, value)
    if isinstance(before, BaseException):
        return False
    striker.last(blow.seconds)
    ask(back or change, before)
    return True


def _block(striker: Striker, blow: Blow) -> bool:
    """Its event loop answers nobody."""
    from time import sleep

    one = _one(striker, blow)
    if one is None:
        return False
    found = striker.house.watch.run(
        sleep, blow.seconds, workers=[one[0]], on_error="return"
    )
    return found[one[0]] is None


def _hog(striker: Striker, blow: Blow) -> bool:
    """Another process takes the CPU."""
    with subprocess.Popen([sys.executable, "-c", HOG]) as hog:
        try:
            striker.last(blow.seconds)
        finally:
            hog.kill()
    return True


# --- nannies, clients, the cluster ----------------------------------------------------


def _kill_nanny(striker: Striker, blow: Blow) -> bool:
    found = striker.house.nannies()
    return len(found) > 1 and _signal(found[blow.whom % len(found)], signal.SIGKILL)


def _interrupt(striker: Striker, blow: Blow) -> bool:
    """^C, which only who has said that it may come takes notice of."""
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)
    return True


def _join(striker: Striker, blow: Blow) -> bool:
    house = striker.house
    if house.kind != "local":
        return False
    house.cluster.scale(len(house.cluster.worker_spec) + 1)
    return True


def _leave(striker: Striker, blow: Blow) -> bool:
    """Somebody else takes a worker away, as Dask does it."""
    one = _one(striker, blow)
    if one is None or len(striker.house.pids()) < 2:
        return False
    return bool(striker.house.watch.retire_workers([one[0]]))


def _rival(striker: Striker, blow: Blow) -> bool:
    """Another client wants the cluster at the same time."""
    address = striker.house.watch.scheduler.address
    with Client(address, set_as_default=False) as other, suppress(ClustertuneError):
        clustertune.trim_memory(other, progress=False, timeout="20s")
    return True


BLOWS: Mapping[str, Callable[[Striker, Blow], bool]] = {
    "kill worker": _kill,
    "freeze worker": _freeze,
    "pause worker": _pause,
    "fill": _fill,
    "lag": _lag,
    "block worker": _block,
    "hog": _hog,
    "kill nanny": _kill_nanny,
    "interrupt": _interrupt,
    "join": _join,
    "leave": _leave,
    "rival": _rival,
}
