"""Fits on real clusters that lose workers, drawn from seeds.

A fit has to finish, or to end with an error of clustertune. Then all workers are free,
the data is complete, and the next fit, without a fault, finishes. A fit that finished
has about the same loss on rows that it has not seen as the next one.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from time import monotonic, sleep
from typing import Any

import numpy as np
from dask.utils import parse_bytes
from lightgbm.basic import LightGBMError
from xgboost.core import XGBoostError

import clustertune
from clustertune.errors import ClustertuneError, IncompleteError
from clustertune.remote.worker.rounds import training_tasks
from tests.chaos.clusters import LIMIT, LocalWorkers, becomes_true
from tests.chaos.rounds import Round
from tests.operations import test_surviving as fits

DEADLINE = 120.0  # seconds for a fit with its faults, and for that of a second client
FREE = 30.0  # seconds until workers are free after a fit
#: seconds for which a worker is frozen; the longer is above the limit of a fit
FROZEN = {"freeze": 10.0, "freeze long": 120.0}
UNSEEN = range(100, 110)  # numbers of blocks that no fit has seen
LOSS = 0.01  # of the loss of the next fit
LIBRARIES = ("xgboost", "lightgbm")
N_WORKERS = 3
ROUNDS = 800
KINDS = (
    *("kill", "kill two", "kill in turn", "freeze", "freeze long", "retire"),
    *("fill memory", "kill while another trains"),
)
TWO = ("kill two", "kill in turn")
#: the state of the scheduler at which a fault is injected
PHASES = {
    "loading": lambda now: now["loading"],
    "preparing": lambda now: now["preparing"],
    "set-up": lambda now: now["training"],
    "training": lambda now: now["round"] > 0.1 * ROUNDS,
    "the end": lambda now: now["round"] > 0.95 * ROUNDS,
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One fit and its fault."""

    seed: int
    library: str
    kind: str
    phase: str
    workers: tuple[int, ...]
    delay: float  # seconds after the begin of the phase
    between: float  # seconds between two kills in turn
    max_failures: int


def draw(seed: int) -> Case:
    rng = Random(seed)
    kind = rng.choice(KINDS)
    return Case(
        seed=seed,
        library=rng.choice(LIBRARIES),
        kind=kind,
        phase=rng.choice(list(PHASES)),
        workers=tuple(rng.sample(range(N_WORKERS), 2 if kind in TWO else 1)),
        delay=rng.choice((0.0, 0.0, 0.02, 0.1)),
        max_failures=rng.choice((0, 1, -1)),
        between=rng.uniform(0.5, 10.0),
    )


def state(dask_scheduler: Any, client: str) -> dict[str, Any]:
    """What the fault waits for; ``client`` is that of the fit."""
    plugin = dask_scheduler.plugins.get("clustertune")
    known = list(dask_scheduler.tasks.values())
    running = [str(ts.key) for ts in known if ts.state == "processing"]
    leased = plugin is not None and plugin.lease.holder() is not None
    fitted = list(plugin.fits.running.values()) if plugin else []
    rounds = [fit.round for fit in fitted if fit.owner == client]
    return {
        "loading": bool(running) and leased,
        "preparing": bool(known) and leased and not running,
        "training": any(key.startswith(("fn-", "_train_part")) for key in running),
        "round": max(rounds, default=0),
    }


def play(case: Case) -> Round:
    """Play one round on a new cluster."""
    cluster, start = LocalWorkers(N_WORKERS), monotonic()
    try:
        outcome, broken, notes, injected = _play(case, cluster)
    finally:
        cluster.close()
    names = " and ".join(map(str, case.workers))
    fault = (f"{case.kind} worker {names}", case.phase)
    return Round(
        seed=case.seed,
        action=f"fit {case.library}, max_failures={case.max_failures}",
        outcome=outcome,
        seconds=monotonic() - start,
        faults=(fault,) if injected else (),
        broken=tuple(broken),
        notes=notes,
    )


def _play(case: Case, cluster: LocalWorkers) -> tuple[str, list[str], str, bool]:
    addresses = _addresses(cluster)
    result: dict[str, Any] = {}
    given = (case, cluster, case.max_failures, result)
    work = threading.Thread(target=_fit, args=given, daemon=True)
    injected = threading.Event()
    over = threading.Event()
    fault = threading.Thread(
        target=_inject, args=(case, cluster, addresses, injected, over), daemon=True
    )
    begun = threading.Event()
    other = threading.Thread(
        target=_train, args=(case, cluster, begun, over), daemon=True
    )
    if case.kind == "kill while another trains":
        other.start()
        begun.wait(DEADLINE)
    fault.start()
    work.start()
    seconds = DEADLINE + FROZEN.get(case.kind, 0.0)
    work.join(seconds)
    over.set()
    if other.ident is not None:
        other.join(seconds)
    if work.is_alive() or other.is_alive():
        stacks = {w: list(tasks) for w, tasks in cluster.watch.processing().items()}
        whose = "the fit" if work.is_alive() else "the fit of the second client"
        text = f"{whose} had no end after {seconds:g} s"
        return "hung", [text], str(stacks), injected.is_set()
    fault.join()
    error = result.get("error")
    outcome = "finished" if error is None else type(error).__name__
    broken = list(_broken(case, cluster, error, result))
    notes = str(error) if error else "\n".join(result["notes"])
    if "loss" in result:
        notes += f"\nloss: {result['loss']:.5f} times that of the next fit"
    return outcome, broken, notes, injected.is_set()


def _fit(
    case: Case,
    cluster: LocalWorkers,
    max_failures: int,
    result: dict[str, Any],
) -> None:
    try:
        result["data"] = fits.lazy()
        model = fits.model(case.library, n_estimators=ROUNDS)
        fitted = clustertune.fit(
            cluster.client,
            model,
            *result["data"],
            progress=False,
            max_failures=max_failures,
            checkpoint_every=0.2 if max_failures else None,
        )
        result["model"], result["trees"] = fitted, len(fits.trees(fitted))
        result["notes"] = fitted.clustertune_report_.notes
    except Exception as error:
        result["error"] = error


def _train(
    case: Case,
    cluster: LocalWorkers,
    begun: threading.Event,
    over: threading.Event,
) -> None:
    """Train as a second client until the round is over; its fits may lose workers.

    It calls ``fit``, or the library in a hold. Then it begins while the first fit
    trains: two trainings that begin at once wait for each other, as with Dask alone,
    except those of XGBoost.
    """
    fits_with_us = case.seed % 2 or case.library == "lightgbm"
    X, y = fits.lazy(seed=1)
    while not over.is_set():
        model = fits.model("xgboost", n_estimators=200)
        model.client = cluster.watch
        with suppress(Exception):
            if fits_with_us:
                clustertune.fit(cluster.watch, model, X, y, progress=False)
            else:
                held = clustertune.hold(cluster.watch, on_lost_worker="cancel")
                with cluster.watch.as_current(), held:
                    model.fit(X, y)
        begun.set()
        while not (fits_with_us or over.wait(0.02)):
            if cluster.watch.run_on_scheduler(state, client=cluster.client.id)["round"]:
                break


def _broken(case: Case, cluster: LocalWorkers, error: Any, result: Any) -> Any:
    early = case.phase in ("loading", "preparing")
    # the training that was seen may be that of the second client
    early |= case.kind == "kill while another trains" and case.phase == "set-up"
    right: tuple[type[Exception], ...]
    right = (ClustertuneError if early else IncompleteError,)
    if (
        case.kind in FROZEN
    ):  # then the library's call is interrupted, and no worker lost
        right += (XGBoostError, LightGBMError)
    if error is not None and not isinstance(error, right):
        yield f"wrong error: {error!r}"[:500]
    elif isinstance(error, ClustertuneError) and case.max_failures == -1 and not early:
        yield f"it ended although max_failures=-1: {error}"[:500]
    if error is None and result["trees"] != ROUNDS:
        yield f"{result['trees']} of {ROUNDS} trees"
    expected = N_WORKERS - (case.kind == "retire")
    if not becomes_true(lambda: len(_addresses(cluster)) >= expected, FREE):
        yield f"{len(_addresses(cluster))} of {expected} workers"
    if not becomes_true(lambda: not _busy(cluster), FREE):
        yield f"stuck tasks on workers: {_busy(cluster)}"[:500]
        return  # the data cannot be computed
    computed = cluster.client.compute(result["data"])
    if not becomes_true(lambda: all(f.done() for f in computed), FREE):
        yield "the data cannot be computed"
        return
    X, y = cluster.client.gather(computed)
    if not fits.is_whole(X, y):
        yield "the data has other values"
    yield from _next_fit(case, cluster, result)


def _next_fit(case: Case, cluster: LocalWorkers, result: dict[str, Any]) -> Any:
    """Fit without a fault, and compare the loss of both fits."""
    again: dict[str, Any] = {}
    work = threading.Thread(target=_fit, args=(case, cluster, 0, again), daemon=True)
    work.start()
    work.join(DEADLINE)
    if work.is_alive():
        yield f"the next fit had no end after {DEADLINE:g} s"
    elif "error" in again:
        yield f"the next fit failed: {again['error']!r}"[:500]
    elif "model" in result:
        result["loss"] = _loss(result["model"]) / _loss(again["model"])
        if abs(result["loss"] - 1) > LOSS:
            yield f"the loss is {result['loss']:.4f} times that of the next fit"


def _loss(fitted: Any) -> float:
    """Return the mean log loss on unseen rows."""
    values = np.concatenate([fits.block(i) for i in UNSEEN])
    rows, labels = values[:, :8], values[:, 8]
    if hasattr(fitted, "get_booster"):
        ones = fitted.get_booster().inplace_predict(rows)
    else:
        ones = fitted.to_local().predict_proba(rows)[:, 1]
    right = np.where(labels == 1, ones, 1 - ones)
    return float(-np.log(np.clip(right, 1e-7, 1)).mean())


def _addresses(cluster: LocalWorkers) -> dict[Any, str]:
    identity = cluster.watch.sync(cluster.watch.scheduler.identity, n_workers=-1)
    return {w["name"]: address for address, w in identity["workers"].items()}


def _busy(cluster: LocalWorkers) -> dict[str, Any]:
    """Return the tasks that workers execute, or their errors, if there are any."""
    found = cluster.watch.run(training_tasks, prefixes=[""], on_error="return")
    return {address: busy for address, busy in found.items() if busy}


# --- the fault ------------------------------------------------------------------------


def _inject(
    case: Case,
    cluster: LocalWorkers,
    addresses: dict[Any, str],
    injected: threading.Event,
    over: threading.Event,
) -> None:
    pids = cluster.pids()
    while not over.is_set():
        now = cluster.watch.run_on_scheduler(state, client=cluster.client.id)
        if PHASES[case.phase](now):
            break
        over.wait(0.005)
    else:
        return
    sleep(case.delay)
    injected.set()
    targets = [addresses[name] for name in case.workers]
    if case.kind == "retire":
        cluster.watch.retire_workers(targets)
        return
    if case.kind == "fill memory":
        cluster.watch.run(_begin_to_fill, workers=targets)
        return
    frozen = FROZEN.get(case.kind)
    for address in targets:
        with suppress(ProcessLookupError):  # its nanny may have ended it since
            os.kill(pids[address], signal.SIGKILL if frozen is None else signal.SIGSTOP)
        if case.kind == "kill in turn":
            over.wait(case.between)
    if frozen is not None:
        over.wait(frozen)
        for address in targets:
            with suppress(ProcessLookupError):  # it was restarted
                os.kill(pids[address], signal.SIGCONT)


def _begin_to_fill() -> None:
    threading.Thread(target=_fill, daemon=True).start()


def _fill() -> None:
    """Take more than the memory limit, until the nanny ends the process."""
    taken = [b"x" * 2**24 for _ in range(parse_bytes(LIMIT) // 2**24)]
    threading.Event().wait(FREE)
    del taken
