"""The fits that run: their round, their last checkpoint, and their lost workers.

A hold may protect a fit. The training task of rank 0 then reports its round here, and
sends checkpoints. The client waits here for news. So it learns of a lost worker at
once, although the training library may wait for that worker without an end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from time import monotonic, time
from typing import Any

from clustertune.remote.ending import within
from clustertune.remote.scheduler.lease import TRAINING, Holds
from clustertune.remote.scheduler.state import id_of, is_parking

#: beginnings of keys of tasks in which a library trains, or prepares its training.
#: XGBoost names its training tasks "fn"; theirs name one worker and allow others.
XGBOOST = "fn-"
PORTS = "_acquire_port-"  # of LightGBM, before its training tasks
TASKS = (*TRAINING, XGBOOST, PORTS)
MAX_MODEL = 2**28  # bytes of a checkpoint
SILENT = 60.0  # seconds without a heartbeat after which a member counts as lost
TICK = 0.5  # seconds between two looks at heartbeats
# A scheduler that was suspended, or whose clock was set, finds all heartbeats old until
# it has read the waiting ones.
GAP = 5.0  # seconds between two looks from which on they may wait
CATCH_UP = 10.0  # seconds in which they are read
#: seconds in which the training tasks of a fit arrive once it may train and no other
#: training occupies its workers
BEGIN = 10.0


class Fit:
    """One fit, from the begin of its hold to its end."""

    def __init__(self, owner: str, rounds: int | None, members: Mapping[str, Any]):
        self.owner = owner
        self.rounds = rounds  # of the whole training; None: unknown
        self.members = dict(members)  # id by address
        self.began = monotonic()
        self.looked = self.judged = time()  # last look; silence counts after the second
        self.round = 0
        self.first: tuple[int, float] | None = None  # first round, and its time
        self.metric = ""
        self.model: Mapping[str, Any] | None = None  # the last checkpoint
        self.wanted = False  # whether a checkpoint is wanted at the next round
        self.too_large = 0  # bytes of a checkpoint that was not kept
        self.lost: dict[str, dict[str, Any]] = {}  # by address
        self.losses = 0  # a worker may be lost again at the same address
        #: keys of the training tasks at the last loss, if members are not known. Later
        #: ones are of another fit in the same hold, such as the user's next try.
        self.torn = set[str]()
        self.cancelled = False
        self.freed = False  # whether its threads are free after that
        self.turn = 0.0  # when it was told to train
        self.idle = set[str]()  # members where its training tasks then have to arrive
        self.version = 0
        self.changed = asyncio.Event()

    def change(self) -> None:
        self.version += 1
        self.changed.set()
        self.changed = asyncio.Event()

    def lose(
        self, address: str, how: str, worker: Any = None, *, again: bool = False
    ) -> None:
        """Record that a member has left, leaves, or does not answer.

        ``worker`` is the id of a worker that is no known member. ``again``: a loss
        that was recorded at this address was that of an earlier process.
        """
        before = self.lost.get(address)
        if before is None or again:
            self.losses += 1
        elif before["how"] == how:
            return
        number = self.losses if before is None or again else before["number"]
        id = self.members.get(address, address if worker is None else worker)
        now = {"worker": id, "address": address, "how": how, "number": number}
        self.lost[address] = now
        self.change()

    def take_back(self, address: str) -> None:
        """Record that a silent member answers; a fit that was cancelled has lost it."""
        if self.cancelled:
            self.lost[address]["how"] = "back"
        else:
            del self.lost[address]
        self.change()

    @property
    def rate(self) -> float | None:
        """Rounds per second since the first report."""
        if self.first is None or self.round <= self.first[0]:
            return None
        return (self.round - self.first[0]) / max(1e-9, monotonic() - self.first[1])

    def progress(self) -> dict[str, Any]:
        return {
            "round": self.round,
            "rounds": self.rounds,
            "metric": self.metric,
            "rate": self.rate,
            "seconds": monotonic() - self.began,
        }


class Fits:
    """The fits of one scheduler, by the name of their hold."""

    def __init__(self, scheduler: Any, holds: Holds):
        self.scheduler = scheduler
        self.holds = holds
        self.running: dict[str, Fit] = {}
        #: address and id of the worker of each training task that runs, also while that
        #: worker is being removed
        self.training: dict[str, tuple[str, Any]] = {}
        #: the same of tasks that another worker has taken over meanwhile
        self.moved: dict[str, tuple[str, Any]] = {}

    # --- begin and end ----------------------------------------------------------------

    def begin(
        self,
        name: str,
        owner: str,
        rounds: int | None,
        workers: Collection[tuple[str, Any]],
    ) -> None:
        """Begin a fit; ``workers`` are addresses and ids of members, if known.

        A fit goes on if its client takes the hold again, which may have ended while the
        client was silent. So it keeps its checkpoint and its losses.
        """
        fit = self.running.get(name)
        if fit is not None:
            if fit.freed:
                self.holds.protects_nothing(name)
            return
        self.running[name] = fit = Fit(owner, rounds, dict(workers))
        for address in fit.members:
            if address not in self.scheduler.workers:  # lost before the fit began
                fit.lose(address, "left")

    def end(self, name: str) -> None:
        fit = self.running.pop(name, None)
        if fit is not None:
            fit.change()

    def forget(self, client: str) -> None:
        """End the fits of a client that is gone; a silent one may come back."""
        for name in [n for n, fit in self.running.items() if fit.owner == client]:
            self.end(name)

    # --- called by Dask ---------------------------------------------------------------

    def transition(self, key: Any, finish: str) -> None:
        """Record where a training task runs."""
        if finish == "processing":
            ts = self.scheduler.tasks[key]
            if is_training(ts) and ts.processing_on is not None:
                was = self.training.get(key)
                if was is not None and was[0] not in self.scheduler.workers:
                    self.moved[key] = was
                address = ts.processing_on.address
                self.training[key] = address, id_of(ts.processing_on)
                begin = [fit for fit in self.running.values() if fit.idle]
                if begin and not key.startswith(PORTS):
                    owners = self._owners([key])
                    for fit in (fit for fit in begin if fit.owner in owners):
                        fit.idle.discard(address)
        elif finish in ("memory", "erred", "forgotten"):
            # in other states its worker may be gone: see worker_removed
            self.training.pop(key, None)

    def worker_removed(self, address: str) -> None:
        """Record the loss of a member, or of a worker that trained for the client."""
        there = {id_of(ws) for ws in self.scheduler.workers.values() if self.running}
        every = (*self.training.items(), *self.moved.items())
        torn = {key: id for key, (where, id) in every if where == address}
        for key in torn:
            if self.moved.pop(key, None) is None:
                del self.training[key]
        owners = self._owners(torn)
        for fit in self.running.values():
            its = torn and self._may_train_on(fit, owners)
            if fit.cancelled and not its and fit.members.get(address) in there:
                continue  # its next process is there: a plan has freed its threads
            if its:
                trained = (ts.key for ts in self._trained(fit) if _is_of(ts, fit))
                fit.torn = {*torn, *trained}
                fit.cancelled = fit.cancelled and bool(fit.members)
            if address in fit.members or its:
                again = bool(its) and address not in fit.members
                fit.lose(address, "left", next(iter(torn.values()), None), again=again)

    def _owners(self, keys: Collection[str]) -> set[str]:
        """Clients that want tasks, or what needs them, as far as they are known."""
        known, owners, seen = self.scheduler.tasks, set[str](), set[str]()
        todo = [known[key] for key in keys if key in known]
        while todo:
            ts = todo.pop()
            if ts.key not in seen:
                seen.add(ts.key)
                owners |= {client.client_key for client in ts.who_wants or ()}
                todo += ts.dependents
        return owners

    def _may_train_on(self, fit: Fit, owners: Collection[str]) -> bool:
        """Whether lost training tasks, which ``owners`` want, may be those of a fit.

        A library may move rows, and Dask may steal a task that packs them, so workers
        may train that are no members. Such a worker is not known to belong to one of
        several fits of the same client.
        """
        if not fit.members:
            return not owners or fit.owner in owners
        fits = [other for other in self.running.values() if other.owner == fit.owner]
        return fit.owner in owners and fits == [fit]

    # --- requests ---------------------------------------------------------------------

    def answer(self, name: str, do: str, **arguments: Any) -> Any:
        """Answer ``note`` of a training task, or a request of the fit's client."""
        fit = self.running.get(name)
        if fit is None:
            return {"ended": True}
        if do == "cancel":
            cancelled = self._cancel(fit, **arguments)
            return {"cancelled": cancelled, "over": fit.cancelled}
        if do == "freed":  # a plan that began earlier could wait for its threads
            fit.freed = True
            self.holds.protects_nothing(name)
            return {}
        if do == "checkpoint":
            return {"checkpoint": fit.model}
        known: dict[str, Callable[..., Any]] = {
            "note": self._note,
            "state": self._state,
            "stuck": self._stuck,
            "turn": self._turn,
        }
        return known[do](fit, **arguments)

    def _note(
        self,
        fit: Fit,
        round: int,  # noqa: A002 - the library's word
        metric: str = "",
        model: bytes | None = None,
        history: Any = None,
    ) -> dict[str, Any]:
        """Record what rank 0 reports; return whether it shall send a checkpoint."""
        fit.round, fit.metric = round, metric[:200]
        fit.idle.clear()  # also members without rows
        if fit.first is None:
            fit.first = (round, monotonic())
        if model is not None:
            fit.wanted = False
            if len(model) <= MAX_MODEL:
                fit.model = {"rounds": round, "model": model, "history": history}
            else:
                fit.too_large = len(model)
        fit.change()
        return {"checkpoint": fit.wanted}

    def _turn(self, fit: Fit) -> dict[str, Any]:
        """Return whether a fit may train now: on each worker, one at a time begins.

        Tasks of two trainings may reach the workers in other orders. Each training then
        has some of the threads, and waits for the others without an end.
        """
        now, there = monotonic(), self.scheduler.workers
        occupied = {address for address, _ in self.training.values()}
        for other in self.running.values():
            if other is fit or other.cancelled or not other.idle & fit.members.keys():
                continue
            if occupied & other.idle:  # it may wait for these threads
                other.turn = now
            if now - other.turn <= BEGIN and other.idle.intersection(there):
                return {"wait": True}
        fit.turn, fit.idle = now, set(fit.members)
        return {}

    async def _state(self, fit: Fit, after: int, wait: float) -> dict[str, Any]:
        """Return the state of a fit once it is newer than ``after``, or in a while."""
        end = monotonic() + wait
        self._look(fit)
        while fit.version <= after and monotonic() < end:
            changed = fit.changed.wait()
            try:
                await within(changed, min(TICK, max(0.0, end - monotonic())))
            except asyncio.TimeoutError:
                self._look(fit)
        saved = fit.model["rounds"] if fit.model else None
        return fit.progress() | {
            "version": fit.version,
            "lost": list(fit.lost.values()),
            "saved": saved,
            "too_large": fit.too_large,
        }

    def listed(self) -> list[dict[str, Any]]:
        """Return the progress of all fits that have reported a round."""
        return [fit.progress() for fit in self.running.values() if fit.first]

    def _cancel(self, fit: Fit, reason: str, *, finished: bool = False) -> int:
        """Cancel tasks of the fit that the owner wants; return their number.

        ``finished``: the library's fit has returned. Without tasks, another one counts
        as cancelled only if its members are not known: it may go on, as those of
        dask-ml do, or it may not train yet.

        Dask's own ``cancel`` raises an error for dependents that no client wants, which
        ends the connection of the client. Without a loss, tasks of another fit of the
        owner could not be told apart.
        """
        others = (other for other in self.running.values() if other is not fit)
        if not fit.lost and any(other.owner == fit.owner for other in others):
            return 0
        keys = list(self._wanted(fit))
        fit.cancelled = fit.cancelled or bool(keys) or finished or not fit.members
        if keys:
            self.scheduler.client_releases_keys(keys=keys, client=fit.owner)
            message = {"op": "cancelled-keys", "keys": keys, "reason": "lost-worker"}
            self.scheduler.report(message | {"msg": reason}, client=fit.owner)
        return len(keys)

    def _stuck(self, fit: Fit, tasks: Mapping[str, Collection[str]]) -> dict[str, Any]:
        """Sort out workers that execute training tasks; ``tasks`` are keys by address.

        Returns addresses: ``stuck``, where all were cancelled; ``shared``, where one is
        still needed. ``more``: another fit has lost a worker and is not cancelled yet,
        so more may come.
        """
        known = self.scheduler.tasks
        stuck, shared = list[str](), list[str]()
        for address, keys in tasks.items():
            where = [known[key].processing_on for key in keys if key in known]
            needed = [ws for ws in where if ws is not None and ws.address == address]
            if len(needed) < len(keys):
                (shared if needed else stuck).append(address)
        others = [other for other in self.running.values() if other is not fit]
        return {
            "stuck": stuck,
            "shared": shared,
            "more": any(
                other.lost and not other.cancelled and self._wanted(other)
                for other in others
            ),
        }

    # --- helpers ----------------------------------------------------------------------

    def _look(self, fit: Fit) -> None:
        """Find members that leave, and those whose heartbeats stop or begin again."""
        now = time()
        if not 0 <= now - fit.looked < GAP:
            fit.judged = now + CATCH_UP
        fit.looked = now
        for address in fit.members:
            ws = self.scheduler.workers.get(address)
            if ws is None:
                continue  # its removal was recorded
            was = fit.lost.get(address, {}).get("how")
            if now - ws.last_seen > SILENT:
                if now >= fit.judged:
                    fit.lose(address, "silent")
            elif was == "silent" or (was == "leaving" and _stays(ws, fit)):
                fit.take_back(address)
            elif ws.status.name == "closing_gracefully" and not is_parking(ws.name):
                fit.wanted = True
                fit.lose(address, "leaving")

    def _wanted_tasks(self, fit: Fit) -> Collection[Any]:
        client = self.scheduler.clients.get(fit.owner)
        return () if client is None else client.wants_what

    def _trained(self, fit: Fit) -> list[Any]:
        """Training tasks that the owner wants and that have no result, or that run."""
        known = self.scheduler.tasks
        wanted = (ts for ts in self._wanted_tasks(fit) if ts.state != "memory")
        running = (known[key] for key in self.training if key in known)
        return [*filter(is_training, wanted), *running]

    def _wanted(self, fit: Fit) -> set[str]:
        """Keys of training tasks that the owner wants and that have no result.

        Tasks that pack partitions may be bound to workers that are gone. They would
        wait without an end, so they are among them. So is what needs a training task:
        XGBoost wants a task that needs its training tasks, which go on for its sake.
        A training that began after a loss, without the lost workers, goes on.
        """
        wanted = self._wanted_tasks(fit)
        keys = set[str]()
        for ts in (ts for ts in wanted if ts.state != "memory"):
            bound = ts.worker_restrictions or ()
            if bound and not ts.loose_restrictions and fit.lost.keys() >= bound:
                keys.add(ts.key)
        todo = [ts for ts in self._trained(fit) if _is_of(ts, fit)]
        if fit.torn and not fit.members:
            todo = [ts for ts in todo if ts.key in fit.torn]
        named = set[str]().union(*(ts.worker_restrictions or () for ts in todo))
        if fit.lost and not (fit.torn or fit.lost.keys() & named):
            todo = []
        seen = set[str]()
        while todo:
            ts = todo.pop()
            if ts.key not in seen and ts.state != "memory":
                seen.add(ts.key)
                todo += ts.dependents
                if ts in wanted:
                    keys.add(ts.key)
        return keys


def _stays(ws: Any, fit: Fit) -> bool:
    """Whether a worker that was retiring does not leave after all."""
    return not fit.cancelled and ws.status.name in ("running", "paused")


def _is_of(ts: Any, fit: Fit) -> bool:
    """Whether a training task may belong to a fit, by its workers if they are known."""
    if ts.key in fit.torn:
        return True
    where = set(ts.worker_restrictions or ())
    if ts.processing_on is not None:
        where.add(ts.processing_on.address)
    return not (fit.members and where) or not where.isdisjoint(fit.members)


def is_training(ts: Any) -> bool:
    """Whether a library trains in a task, or prepares its training in it."""
    key = ts.key
    if not isinstance(key, str) or not key.startswith(TASKS):
        return False
    bound = ts.worker_restrictions and ts.loose_restrictions
    return bool(bound) or not key.startswith(XGBOOST)
