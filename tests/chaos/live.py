"""Rounds on real clusters: one call on random data, and one fault.

Afterwards every row exists with its label, or the call has raised an error of
clustertune. Settings are restored, and no lease, hold, job or key remains.
"""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import os
import signal
import threading
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

from clustertune.errors import TimedOutError
from tests.chaos import data, faults, operations
from tests.chaos.clusters import LocalWorkers, ProcessWorkers, becomes_true
from tests.chaos.data import Data, Spec
from tests.chaos.faults import Fault, FaultInjector
from tests.chaos.operations import Operation, Result
from tests.chaos.rounds import Log, Round, failure

BLOCK = 10  # consecutive seeds on the same cluster
WAIT = 60.0  # seconds to wait for an expected condition
BOUND = 0.25  # fraction of rounds with data that is bound to workers
HUNG = 240.0  # seconds after which a round counts as hung
ANYWHERE = (
    *("kill worker", "kill worker", "kill worker", "freeze worker", "pause worker"),
    *("slow transfers", "block worker", "busy CPU", "interrupt", "interrupt"),
    *("other client", "retire worker", "kill client", "freeze client"),
)
LOCAL = (*ANYWHERE, "add worker")
OUTSIDE = (*ANYWHERE, "kill nanny", "kill nanny", "kill nanny")
CLIENTS = ("kill client", "freeze client")  # the call runs in another process


@dataclass(frozen=True, kw_only=True)
class Case:
    """The cluster, data, operation and fault of a seed."""

    seed: int
    outside: bool
    n_workers: int
    spec: Spec
    operation: Operation
    fault: Fault | None
    filled: str = ""  # how memory is filled, in rounds of ``low-memory``


def draw(seed: int) -> Case:
    """Draw the case of a seed."""
    cluster_rng, rng = Random(seed // BLOCK), Random(seed + 10**6)
    outside = cluster_rng.random() < 0.25
    n_workers = cluster_rng.choice((2, 3, 3, 4))
    kinds = OUTSIDE if outside else LOCAL
    spec, operation = data.draw(rng, seed), operations.draw(rng)
    bound = Random(seed + 2 * 10**6).random() < BOUND
    if bound and spec.place != "lazy" and not operations.removes_workers(operation):
        spec = replace(spec, bound=True)
    reports_progress = operation.name not in ("hold", "map_reduce", "trim", "release")
    return Case(
        seed=seed,
        outside=outside,
        n_workers=n_workers,
        spec=spec,
        operation=operation,
        fault=faults.draw(rng, kinds, reports_progress=reports_progress)
        if rng.random() < 0.9
        else None,
    )


class ClusterPool:
    """The cluster of the last round; the next round uses it again if it fits."""

    def __init__(self) -> None:
        self.cluster: LocalWorkers | None = None

    def __enter__(self) -> ClusterPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        cluster, self.cluster = self.cluster, None
        if cluster is not None:
            cluster.close()

    def of(self, case: Case) -> LocalWorkers:
        kind = ProcessWorkers if case.outside else LocalWorkers
        there = self.cluster
        fits = type(there) is kind and there.n_workers == case.n_workers
        if there is None or not fits or not there.repair():
            self.close()
            self.cluster = kind(case.n_workers)
        assert self.cluster is not None
        return self.cluster


def play(
    case: Case,
    pool: ClusterPool,
    log: Log | None = None,
    fill: Callable[[LocalWorkers, str], Any] | None = None,
) -> Round:
    """Play a round on the cluster of the pool, or on a new one."""
    with _watched(case, log):
        cluster = pool.of(case)
        before = cluster.watch.run_on_scheduler(state)
        start = perf_counter()
        played = _RoundPlayer(case, cluster, fill)
        played.play()
        broken = played.broken + list(_changed(cluster, before))
        seconds = perf_counter() - start
        if broken:
            pool.close()  # the next round gets a new cluster
    return Round(
        seed=case.seed,
        action=" ".join(filter(None, [case.filled, case.operation.name])),
        outcome=played.outcome,
        seconds=seconds,
        faults=tuple(played.injected),
        broken=tuple(broken),
        notes=played.notes,
    )


class _RoundPlayer:
    """Plays one round, and collects outcome, faults and problems."""

    def __init__(self, case: Case, cluster: LocalWorkers, fill: Any):
        self.case, self.cluster, self.fill = case, cluster, fill
        self.outcome, self.notes = "", ""
        self.injected: list[tuple[str, str]] = []
        self.broken: list[str] = []

    def play(self) -> None:
        given = data.make(self.case.spec, self.cluster.client)
        filled = self.fill(self.cluster, self.case.filled) if self.fill else None
        fault = self.case.fault
        if fault is not None and fault.kind in CLIENTS:
            self._play_in_process(given, fault)
            done = None
        else:
            done = self._play_here(given)
        if filled is not None:
            self.broken += filled.end(
                self.case.operation.name, self.injected, self.outcome
            )
        self._check_data(given, done)

    def _play_here(self, given: Data) -> Result | None:
        injector = FaultInjector(self.cluster, self.case.fault)
        done = None
        with _interruptible() as armed:
            injector.start()
            try:
                try:
                    armed.set()
                    done = operations.run(
                        self.case.operation, self.cluster.client, given, injector.notify
                    )
                finally:
                    armed.clear()
                self.outcome = done.status
            except KeyboardInterrupt:
                if self.case.fault is None or self.case.fault.kind != "interrupt":
                    raise  # the user stops the run
                self.outcome = "interrupted"
            except Exception as error:
                self.notes += f"{error} "
                self.outcome, broken = failure(error)
                self.broken += broken
            injector.end()
        self.injected += injector.injected
        self.notes += injector.trouble
        # restarts wait for a worker whose nanny was killed
        waits = any(kind == "kill nanny" for kind, _ in self.injected)
        if self.outcome == TimedOutError.__name__ and not waits:
            self.broken.append("the call reached its timeout")
        return done

    def _play_in_process(self, given: Data, fault: Fault) -> None:
        """Make the call in another process on published data, and disturb it."""
        client = self.cluster.client
        client.publish_dataset(list(given), name="chaos")
        ours, theirs = multiprocessing.Pipe()
        address = client.scheduler.address
        other = get_mp_context().Process(
            target=_call_in_process, args=(address, self.case, theirs), daemon=True
        )
        other.start()
        theirs.close()
        try:
            self._disturb_client(other, ours, fault)
        finally:
            with suppress(ProcessLookupError):
                os.kill(other.pid, signal.SIGKILL)
            other.join(20)
            ours.close()
            other.close()

    def _disturb_client(self, other: Any, ours: Connection, fault: Fault) -> None:
        phase, n_messages, ended = "begin", -1, None
        while n_messages < fault.n_messages and ended is None:
            phase, ended = _receive(ours, phase, WAIT)
            n_messages += 1
        if ended is None and ours.poll(fault.delay):
            phase, ended = _receive(ours, phase, 0)
        if ended is None:
            kill = fault.kind == "kill client"
            os.kill(other.pid, signal.SIGKILL if kill else signal.SIGSTOP)
            self.injected.append((fault.kind, phase))
            if kill:
                self.outcome = "killed"
                return
            threading.Event().wait(fault.seconds)
            os.kill(other.pid, signal.SIGCONT)
        while ended is None:
            phase, ended = _receive(ours, phase, 2 * WAIT)
        self.outcome, broken = ended
        self.broken += broken

    # --- afterwards -------------------------------------------------------------------

    def _check_data(self, given: Data, done: Result | None) -> None:
        """Check that every row exists with its label."""
        client = self.cluster.client
        now: list[tuple[Any, ...]] = [tuple(given)]
        names = client.list_datasets()
        gives_inputs = self.case.operation.options.get("release_inputs")
        if done is not None:
            self.broken += done.wrong
            if done.collections:
                now = (
                    [done.collections]
                    if gives_inputs
                    else [done.collections, tuple(given)]
                )
            if done.status in ("fine", "done") and done.separated:
                self.broken.append(
                    f"the report counts {done.separated} separated pairs"
                )
        elif saved := [n for n in names if n.startswith("clustertune-")]:
            if not any(n.endswith("-left") for n in saved):
                now = [tuple(client.get_dataset(saved[0]))[:3]]
            else:
                now = []
        for collections in now:
            self._check_values(collections, given.spec)
        for name in names:
            client.unpublish_dataset(name)

    def _check_values(self, collections: Any, spec: Spec) -> None:
        futures = self.cluster.client.compute([*collections])
        try:
            wait(futures, timeout=WAIT)
            values = [np.asarray(v) for v in self.cluster.client.gather(futures)]
        except Exception as error:
            self.broken.append(f"the data cannot be read: {error!r}")
            return
        self.broken += data.wrong(spec, tuple(values[:3]))


def _receive(ours: Connection, phase: str, seconds: float) -> tuple[str, Any]:
    """The next message of the other process: its phase, or its outcome."""
    if not ours.poll(seconds):
        return phase, ("silent", [f"the other client sent nothing for {seconds:g} s"])
    try:
        what, value = ours.recv()
    except EOFError:
        return phase, ("gone", ["the other client ended without a message"])
    return (phase, value) if what == "end" else (faults.phase_of(value), None)


def _call_in_process(address: str, case: Case, pipe: Connection) -> None:
    """Make the call in the process of the other client."""
    with Client(address) as client:
        given = Data(case.spec, *client.get_dataset("chaos"))
        pipe.send(("phase", "begin"))
        try:
            done = operations.run(
                case.operation,
                client,
                given,
                lambda text, _: pipe.send(("phase", text)),
            )
            outcome, broken = done.status, list(done.wrong)
        except Exception as error:
            outcome, broken = failure(error)
        pipe.send(("end", (outcome, broken)))


# --- state of the cluster -------------------------------------------------------------


def state(dask_scheduler: Any) -> dict[str, Any]:
    """Settings that calls restore, and resources that they free."""
    plugin = dask_scheduler.plugins.get("clustertune")
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
    if plugin is not None:
        found |= {
            "lease": plugin.lease.holder(),
            "jobs": sum(not j.task.done() for j in plugin.jobs.kept.values()),
            "manager held by": dask_scheduler._replica_lock._count,
            "bound": sum(
                len(part)
                for keys in plugin.bindings.kept.values()
                for part in keys.parts
            ),
            "holds": len(plugin.holds.active()),
            "schedules": sum(not s.ended for s in plugin.schedules.kept.values()),
        }
    found["paused"] = sum(
        ws.status.name != "running" for ws in dask_scheduler.workers.values()
    )
    found["restricted"] = sum(
        bool(ts.worker_restrictions) and not ts.loose_restrictions
        for ts in dask_scheduler.tasks.values()
    )
    return found


def remaining_keys(dask_scheduler: Any) -> list[str]:
    """Keys that are still on the scheduler."""
    return [str(k) for k in dask_scheduler.tasks][:5]


def _changed(cluster: LocalWorkers, before: dict[str, Any]) -> Iterator[str]:
    """Differences from the state before the round, after some time."""
    watch = cluster.watch
    gc.collect()
    # a restart waits two minutes for a worker whose nanny was killed
    if not becomes_true(lambda: watch.run_on_scheduler(state) == before, 2 * WAIT):
        now = watch.run_on_scheduler(state)
        for name, was in before.items():
            if now[name] != was:
                yield f"{name}: {now[name]!r}, was {was!r}"
    if not becomes_true(lambda: not watch.run_on_scheduler(remaining_keys), 20):
        yield f"keys remain: {watch.run_on_scheduler(remaining_keys)}"


# --- interrupts and timeouts ----------------------------------------------------------


@contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """Raise KeyboardInterrupt on SIGINT only while the returned event is set."""
    armed = threading.Event()

    def handle(number: int, frame: Any) -> None:
        if armed.is_set():
            armed.clear()
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield armed
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _watched(case: Case, log: Log | None) -> Iterator[None]:
    """Log a round that hangs, with its stacks, and exit."""

    def exit_hung() -> None:
        faulthandler.dump_traceback()
        if log is not None:
            hung = Round(
                seed=case.seed,
                action=case.operation.name,
                outcome="hung",
                seconds=HUNG,
                faults=((case.fault.kind, "unknown"),) if case.fault else (),
                broken=(f"the round did not end within {HUNG:g} s",),
            )
            log.add(hung)
        os._exit(3)

    timer = threading.Timer(HUNG, exit_hung)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
