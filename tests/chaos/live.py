"""Chaos on live clusters: a drawn call on drawn data, and one thing that happens.

Afterwards every row is there beside its label, or the call has said in an error of its
own why not; what was changed to work is as it was, and nobody holds anything.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from random import Random
from time import perf_counter
from typing import Any

import numpy as np
from distributed import Client, wait
from distributed.utils import get_mp_context

from clustertune.errors import ClustertuneError, TimedOutError
from tests.chaos import acts, blows, data
from tests.chaos.acts import Act, Done
from tests.chaos.blows import Blow, Striker
from tests.chaos.data import Data, Spec
from tests.chaos.houses import House, Outside, soon
from tests.chaos.rounds import Log, Round

BLOCK = 10  # seeds that are played on the same cluster
PATIENCE = 60.0  # seconds for what has to come
BOUND = 0.25  # of the rounds whose data may be bound to workers
HUNG = 240.0  # seconds after which a round will not end any more
ANYWHERE = (
    *("kill worker", "kill worker", "kill worker", "freeze worker", "pause worker"),
    *("lag", "block worker", "hog", "interrupt", "interrupt", "rival", "leave"),
    *("kill client", "freeze client"),
)
LOCAL = (*ANYWHERE, "join")
OUTSIDE = (*ANYWHERE, "kill nanny", "kill nanny", "kill nanny")
CLIENTS = ("kill client", "freeze client")  # calls are made in another process


@dataclass(frozen=True, kw_only=True)
class Case:
    """What a seed means."""

    seed: int
    outside: bool
    n_workers: int
    spec: Spec
    act: Act
    blow: Blow | None
    filled: str = ""  # how the workers lack memory, in rounds of ``rescue``


def draw(seed: int) -> Case:
    """The case of that number."""
    place, rng = Random(seed // BLOCK), Random(seed + 10**6)
    outside = place.random() < 0.25
    n_workers = place.choice((2, 3, 3, 4))
    kinds = OUTSIDE if outside else LOCAL
    spec, act = data.draw(rng, seed), acts.draw(rng)
    bound = Random(seed + 2 * 10**6).random() < BOUND
    if bound and spec.place != "lazy" and not acts.takes_workers_away(act):
        spec = replace(spec, bound=True)
    told = act.name not in ("hold", "map_reduce", "trim", "release")
    return Case(
        seed=seed,
        outside=outside,
        n_workers=n_workers,
        spec=spec,
        act=act,
        blow=blows.draw(rng, kinds, told=told) if rng.random() < 0.9 else None,
    )


class Stage:
    """The cluster of the round; the next one takes it over if it fits."""

    def __init__(self) -> None:
        self.house: House | None = None

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        house, self.house = self.house, None
        if house is not None:
            house.close()

    def of(self, case: Case) -> House:
        kind = Outside if case.outside else House
        there = self.house
        fits = type(there) is kind and there.n_workers == case.n_workers
        if there is None or not fits or not there.mend():
            self.close()
            self.house = kind(case.n_workers)
        assert self.house is not None
        return self.house


def play(
    case: Case,
    stage: Stage,
    log: Log | None = None,
    fill: Callable[[House, str], Any] | None = None,
) -> Round:
    """Play a round on the cluster of the stage, or on a new one."""
    with _watched(case, log):
        house = stage.of(case)
        before = house.watch.run_on_scheduler(state)
        start = perf_counter()
        played = _Played(case, house, fill)
        played.play()
        broken = played.broken + list(_changed(house, before))
        seconds = perf_counter() - start
        if broken:
            stage.close()  # the next round is not to suffer from this one
    return Round(
        seed=case.seed,
        action=" ".join(filter(None, [case.filled, case.act.name])),
        outcome=played.outcome,
        seconds=seconds,
        faults=tuple(played.hits),
        broken=tuple(broken),
        notes=played.notes,
    )


class _Played:
    """One round: what came out, what struck, what is broken."""

    def __init__(self, case: Case, house: House, fill: Any):
        self.case, self.house, self.fill = case, house, fill
        self.outcome, self.notes = "", ""
        self.hits: list[tuple[str, str]] = []
        self.broken: list[str] = []

    def play(self) -> None:
        given = data.make(self.case.spec, self.house.client)
        rescue = self.fill(self.house, self.case.filled) if self.fill else None
        blow = self.case.blow
        if blow is not None and blow.kind in CLIENTS:
            self._play_elsewhere(given, blow)
            done = None
        else:
            done = self._play_here(given)
        if rescue is not None:
            self.broken += rescue.end(self.case.act.name, self.hits, self.outcome)
        self._look_at(given, done)

    def _play_here(self, given: Data) -> Done | None:
        striker = Striker(self.house, self.case.blow)
        done = None
        with _interruptible() as armed:
            striker.start()
            try:
                try:
                    armed.set()
                    done = acts.carry_out(
                        self.case.act, self.house.client, given, striker.notify
                    )
                finally:
                    armed.clear()
                self.outcome = done.status
            except KeyboardInterrupt:
                if self.case.blow is None or self.case.blow.kind != "interrupt":
                    raise  # whoever plays has had enough
                self.outcome = "interrupted"
            except Exception as error:
                self._failed(error)
            striker.end()
        self.hits += striker.hits
        self.notes += striker.trouble
        # nobody but its nanny can bring a worker back, and it is waited for
        patient = any(kind == "kill nanny" for kind, _ in self.hits)
        if self.outcome == TimedOutError.__name__ and not patient:
            self.broken.append("it took all of its time")
        return done

    def _failed(self, error: Exception) -> None:
        self.outcome = type(error).__name__
        self.notes += f"{error} "
        if not isinstance(error, ClustertuneError):
            lines = "".join(traceback.format_exception(error)[-6:])
            self.broken.append(f"came out: {lines}")

    def _play_elsewhere(self, given: Data, blow: Blow) -> None:
        """Another client makes the call, on published data, and is struck."""
        client = self.house.client
        client.publish_dataset(list(given), name="chaos")
        ours, theirs = multiprocessing.Pipe()
        address = client.scheduler.address
        other = get_mp_context().Process(
            target=_elsewhere, args=(address, self.case, theirs), daemon=True
        )
        other.start()
        theirs.close()
        try:
            self._strike_client(other, ours, blow)
        finally:
            with suppress(ProcessLookupError):
                os.kill(other.pid, signal.SIGKILL)
            other.join(20)
            ours.close()
            other.close()

    def _strike_client(self, other: Any, ours: Connection, blow: Blow) -> None:
        phase, notices, ended = "begin", -1, None
        while notices < blow.notices and ended is None:
            phase, ended = _heard(ours, phase, PATIENCE)
            notices += 1
        if ended is None and ours.poll(blow.delay):
            phase, ended = _heard(ours, phase, 0)
        if ended is None:
            kill = blow.kind == "kill client"
            os.kill(other.pid, signal.SIGKILL if kill else signal.SIGSTOP)
            self.hits.append((blow.kind, phase))
            if kill:
                self.outcome = "killed"
                return
            threading.Event().wait(blow.seconds)
            os.kill(other.pid, signal.SIGCONT)
        while ended is None:
            phase, ended = _heard(ours, phase, 2 * PATIENCE)
        self.outcome, broken = ended
        self.broken += broken

    # --- afterwards -------------------------------------------------------------------

    def _look_at(self, given: Data, done: Done | None) -> None:
        """Every row is there, beside its own label."""
        client, spec, ordered = self.house.client, given.spec, True
        now: list[tuple[Any, ...]] = [tuple(given)]
        names = client.list_datasets()
        lent = self.case.act.options.get("release_inputs")
        if done is not None:
            self.broken += done.wrong
            ordered = done.ordered
            if done.collections:
                now = [done.collections] if lent else [done.collections, tuple(given)]
            if done.status in ("fine", "done") and done.separated:
                self.broken.append(f"the report says {done.separated} pairs are apart")
        elif saved := [n for n in names if n.startswith("clustertune-")]:
            if not any(n.endswith("-left") for n in saved):
                now = [tuple(client.get_dataset(saved[0]))[:3]]
            else:
                now = []
        for number, collections in enumerate(now):
            aside = done.remainder if done is not None and number == 0 else ()
            self._look_at_values(collections, aside, spec, ordered or number == 1)
        for name in names:
            client.unpublish_dataset(name)

    def _look_at_values(
        self, collections: Any, aside: Any, spec: Spec, ordered: bool
    ) -> None:
        futures = self.house.client.compute([*collections, *aside])
        try:
            wait(futures, timeout=PATIENCE)
            values = [np.asarray(v) for v in self.house.client.gather(futures)]
        except Exception as error:
            self.broken.append(f"the data cannot be read any more: {error!r}")
            return
        main = values[:3]
        if aside:
            main = [np.concatenate(both) for both in zip(main, values[3:], strict=True)]
        self.broken += data.wrong(spec, tuple(main), ordered=ordered)


def _heard(ours: Connection, phase: str, seconds: float) -> tuple[str, Any]:
    """What the other process says next: its phase, or how it has ended."""
    if not ours.poll(seconds):
        return phase, ("silent", [f"the other client said nothing for {seconds:g} s"])
    try:
        what, value = ours.recv()
    except EOFError:
        return phase, ("gone", ["the other client is gone without a word"])
    return (phase, value) if what == "end" else (blows.phase_of(value), None)


def _elsewhere(address: str, case: Case, pipe: Connection) -> None:
    """What the process of the other client does."""
    broken: list[str] = []
    with Client(address) as client:
        given = Data(case.spec, *client.get_dataset("chaos"))
        pipe.send(("phase", "begin"))
        try:
            done = acts.carry_out(
                case.act, client, given, lambda text, _: pipe.send(("phase", text))
            )
            outcome, broken = done.status, list(done.wrong)
        except ClustertuneError as error:
            outcome = type(error).__name__
        except Exception as error:
            outcome = type(error).__name__
            lines = "".join(traceback.format_exception(error)[-6:])
            broken.append(f"came out: {lines}")
        pipe.send(("end", (outcome, broken)))


# --- what is as it was ----------------------------------------------------------------


def state(dask_scheduler: Any) -> dict[str, Any]:
    """What must be put back, and what must be nobody's."""
    resident = dask_scheduler.plugins.get("clustertune")
    found = {
        "memory manager": dask_scheduler.extensions["amm"].running,
        "parking workers": sum(
            str(ws.name).startswith("clustertune-parking")
            for ws in dask_scheduler.workers.values()
        ),
        "lease": None,
        "jobs": 0,
        "manager held by": 0,
        "bound": 0,
        "holds": 0,
        "schedules": 0,
    }
    if resident is not None:
        found |= {
            "lease": resident.lease.holder(),
            "jobs": sum(not j.task.done() for j in resident.jobs.kept.values()),
            "manager held by": resident.manager.holders,
            "bound": sum(map(len, resident.bindings.kept.values())),
            "holds": len(resident.holds.active()),
            "schedules": sum(not s.ended for s in resident.schedules.kept.values()),
        }
    found["paused"] = sum(
        ws.status.name != "running" for ws in dask_scheduler.workers.values()
    )
    found["restricted"] = sum(
        bool(ts.worker_restrictions) and not ts.loose_restrictions
        for ts in dask_scheduler.tasks.values()
    )
    return found


def left(dask_scheduler: Any) -> list[str]:
    """Keys that somebody still wants, or that are in memory."""
    return [str(k) for k in dask_scheduler.tasks][:5]


def _changed(house: House, before: dict[str, Any]) -> Iterator[str]:
    """What is not as it was, though it was given time."""
    watch = house.watch
    gc.collect()
    # a worker whose nanny is gone is waited for, for two minutes from when it went
    if not soon(lambda: watch.run_on_scheduler(state) == before, 2 * PATIENCE):
        now = watch.run_on_scheduler(state)
        for name, was in before.items():
            if now[name] != was:
                yield f"{name}: {now[name]!r}, was {was!r}"
    if not soon(lambda: not watch.run_on_scheduler(left), 20):
        yield f"keys are left: {watch.run_on_scheduler(left)}"


# --- ^C, and what never ends ----------------------------------------------------------


@contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """While what it gives is set, a SIGINT is a KeyboardInterrupt; else nothing."""
    armed = threading.Event()

    def heard(number: int, frame: Any) -> None:
        if armed.is_set():
            armed.clear()
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, heard)
    try:
        yield armed
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _watched(case: Case, log: Log | None) -> Iterator[None]:
    """A round that hangs is written down, with where it hangs; nothing can end it."""

    def over() -> None:
        import faulthandler

        faulthandler.dump_traceback()
        if log is not None:
            hung = Round(
                seed=case.seed,
                action=case.act.name,
                outcome="hung",
                seconds=HUNG,
                faults=((case.blow.kind, "unknown"),) if case.blow else (),
                broken=(f"it has not ended after {HUNG:g} s",),
            )
            log.add(hung)
        os._exit(3)

    timer = threading.Timer(HUNG, over)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
