"""Watch a fit: show its rounds, end it if it cannot go on, and find out what was lost.

A training library may wait without an end for a worker that has left. The watch runs in
the event loop of the client while ``model.fit`` blocks its thread. It cancels the
training tasks, so that ``fit`` returns with an error, and ends tasks that still occupy
threads of the other workers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from time import monotonic
from traceback import clear_frames
from typing import Any
from uuid import uuid4

from distributed import Client

from clustertune.actions import release as releasing
from clustertune.actions import restart as restarting
from clustertune.core.model import Notify, Step, View
from clustertune.core.sections import headlines
from clustertune.core.wording import (
    bytes_text,
    names_text,
    printable,
    rounds_text,
    workers_text,
)
from clustertune.errors import ClustertuneError, ConnectionLostError
from clustertune.integrations.libraries.boosting import Checkpoint
from clustertune.monitor import monitor
from clustertune.operations.call import Procedure, carry_out
from clustertune.operations.watch import Monitor
from clustertune.operations.worker_changes import REASONS
from clustertune.operations.workers import RESTART_LOOK, SKIPS
from clustertune.remote import ship
from clustertune.remote.ending import within
from clustertune.remote.scheduler.fits import MAX_MODEL, TASKS
from clustertune.remote.worker.rounds import training_tasks

logger = logging.getLogger("clustertune")

POLL = 2.0  # seconds for which the scheduler keeps a request for news
RETRY = 1.0  # seconds between two tries to reach a scheduler that is gone
FREED = REASONS["clustertune-restart"]  # of a worker without its stuck tasks
#: seconds for which a library may raise its own error after it lost a worker. XGBoost
#: takes 0.5 s, or never does: its members may wait for a thread that has ended.
GRACE = 2.0
CHECKPOINT = 5.0  # seconds for which a fit may take one with a member that leaves
NOTICE = 1.0  # seconds in which the scheduler notices what a library has noticed
FREE = 3.0  # seconds in which training tasks end after they were cancelled
#: seconds in which a worker that leaves ends, and in which other fits that have lost a
#: worker are cancelled
LEAVE = 30.0
REASON = 35.0  # seconds until it is known whether a worker returns
ANSWER = 5.0  # seconds for an answer of a worker
TRIES = 5  # times that a fit is ended after its library has returned
#: reasons by how a member that did not end is lost
NO_ANSWER = {
    "silent": "it does not answer",
    "back": "it did not answer for a minute",
}
UNKNOWN = "reason unknown, Dask recorded none"
INTERVAL = 0.2  # seconds between two looks
PATIENCE = 120.0  # seconds for which plans of other clients delay a restart


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Workers that a fit has lost."""

    workers: tuple[str | int, ...]
    gone: frozenset[str | int]  # ids and addresses of workers that leave or are gone
    emptied: frozenset[str | int]  # ids of workers with keys that only they had
    reasons: tuple[str, ...]  # one for each worker
    round: int
    rounds: int | None
    checkpoint: Checkpoint | None
    at: float  # monotonic time at which the client learned of it

    def __str__(self) -> str:
        each = [
            f"{names_text([worker])}: {reason}"
            for worker, reason in zip(self.workers, self.reasons, strict=True)
        ]
        where = f"at round {self.round:,}" if self.round else "before its first round"
        total = f" of {self.rounds:,}" if self.rounds and self.round else ""
        noun = "worker" if len(self.workers) == 1 else "workers"
        return f"the fit lost {noun} {'; '.join(each)} ({where}{total})"


class FitWatch:
    """The watch of one fit.

    ``rounds`` are those of the whole training; None: unknown. ``workers`` are addresses
    and ids of the workers that hold data of the fit; empty: workers with training
    tasks. ``notify`` shows the rounds. ``keep`` stores a new checkpoint outside of the
    cluster.
    """

    def __init__(
        self,
        client: Client,
        *,
        rounds: int | None = None,
        workers: Collection[tuple[str, str | int]] = (),
        notify: Notify | None = None,
        keep: Callable[[Checkpoint], Awaitable[None]] | None = None,
    ):
        self.client = client
        self.name = uuid4().hex
        self.rounds = rounds
        self.workers = tuple(workers)
        self.state: Mapping[str, Any] = {}
        self._notify = notify
        self._keep = keep
        self._kept = 0  # rounds of the checkpoint that was stored
        self._storing: asyncio.Task[None] | None = None
        self._lost_at = 0.0  # monotonic time at which the client learned of a loss
        self._warned = False  # that a checkpoint was too large
        self._finished = asyncio.Event()  # the library's fit has returned
        self._ending: asyncio.Task[None] | None = None
        self._handled = set[int]()  # numbers of losses after which the fit was ended
        self._restarted = set[str]()  # addresses of workers that were restarted here

    @property
    def request(self) -> dict[str, Any]:
        """The part of the request for a hold that begins the watch."""
        return {"rounds": self.rounds, "workers": list(self.workers)}

    # --- watch ------------------------------------------------------------------------

    async def run(self) -> None:
        """Watch until cancelled, or until the client is closed."""
        said = ""
        while self.client.status not in ("closing", "closed"):
            try:
                await self._follow(POLL)
                continue
            except ConnectionLostError:
                pass  # the hold reports it
            except Exception as error:  # noqa: BLE001, a later loss must be seen
                text = printable(repr(error), longest=200)
                if text != said:
                    logger.warning("the watch of the fit goes on after %s", text)
                said = text
            await asyncio.sleep(RETRY)

    async def turn(self) -> None:
        """Wait until no other fit begins its training, before this one begins."""
        while self.rounds:  # tasks of other libraries are not known by their keys
            answer = await self._ask("turn")
            if not answer.get("wait"):
                break
            await asyncio.sleep(INTERVAL)

    async def close(self) -> None:
        """End a fit that has lost a worker, and free its workers, if that is not done.

        The library may have raised its error before the watch noticed the loss. Another
        worker may be lost while the loss of the first one is handled.
        """
        self._finished.set()
        try:
            for _ in range(TRIES):
                await self._news()
                is_ending = self._ending is not None and not self._ending.done()
                if not (is_ending or self._new_losses()):
                    break
                await self._end_once()
        except (ClustertuneError, OSError) as error:
            _may_still_train(error)

    def _begin_to_end(self) -> None:
        """Begin to end the fit after each loss; in a hold, another fit may follow."""
        if self._new_losses() and (self._ending is None or self._ending.done()):
            self._ending = asyncio.ensure_future(self._end_fit())

    async def _end_once(self) -> None:
        """Begin to end the fit unless that has begun, and wait until it has ended."""
        self._begin_to_end()
        if self._ending is not None:
            await asyncio.shield(self._ending)

    def _new_losses(self) -> list[Mapping[str, Any]]:
        lost = self.state.get("lost", ())
        return [x for x in lost if x["number"] not in self._handled]

    async def _follow(self, wait: float) -> None:
        """Wait for news, show them, and end a fit that has lost a worker."""
        after = self.state.get("version", -1)
        state = await self._ask("state", after=after, wait=wait)
        if state.get("ended"):  # the scheduler forgot the hold, which is taken again
            await asyncio.sleep(RETRY)
            return
        self._set(state)
        self._begin_to_end()
        if state["too_large"] and not self._warned:
            self._warned = True
            logger.warning(
                "the model has %s, and the scheduler keeps checkpoints of up to %s; "
                "after a loss, the fit continues from an earlier one",
                bytes_text(state["too_large"]),
                bytes_text(MAX_MODEL),
            )
        is_new = self._keep is not None and (state["saved"] or 0) > self._kept
        if is_new and self._storing is None:
            # apart, since a slow store must not hide a loss
            self._storing = asyncio.ensure_future(self._store())
        self._show()

    async def _store(self) -> None:
        """Store the last checkpoint outside of the cluster; a failure is logged."""
        try:
            checkpoint = await self.checkpoint()
            if checkpoint is not None and self._keep is not None:
                self._kept = checkpoint.rounds
                await self._keep(checkpoint)
        except Exception as error:  # noqa: BLE001, a file system raises any
            text = printable(repr(error), longest=300)
            logger.warning(
                "a checkpoint was not written: %s; the scheduler has it", text
            )
        finally:
            self._storing = None

    def _show(self) -> None:
        state = self.state
        if self._notify is None or not state["round"]:
            return
        rounds = state["rounds"]
        done = state["round"] / rounds if rounds else None
        self._notify(printable(rounds_text(state)), done)

    async def _end_fit(self) -> None:
        """End the fit; a failure is logged, and the next look tries again."""
        try:
            await self._cancel_training()
        except Exception as error:  # noqa: BLE001, the fit must end all the same
            _may_still_train(error)

    async def _cancel_training(self) -> None:
        """Cancel the training unless the library ends it itself, and free its workers.

        A member that only leaves takes a checkpoint with it, if one arrives in time.
        The training may begin later, with the lost member. So a loss is handled only
        once training was cancelled, or the library's fit has returned.
        """
        end = monotonic() + (CHECKPOINT if self._only_leaving() else GRACE)
        before = self.state["saved"]
        while not self._finished.is_set() and monotonic() < end:
            if not self._new_losses():
                return  # a silent member answers again, so the fit goes on
            if self._only_leaving() and self.state["saved"] != before:
                break
            with suppress(asyncio.TimeoutError):
                await within(self._finished.wait(), INTERVAL)
        lost = self._new_losses()
        await self._news()
        lost = self._new_losses() or lost
        names = names_text(sorted({x["worker"] for x in lost}, key=str))
        answer = await self._free(f"the fit lost worker {names}")
        if answer.get("cancelled"):
            logger.warning("the fit lost worker %s and was cancelled", names)
        silent = self._silent()
        await self._news()
        if silent - self._silent():  # a member answers again, and may still train
            await self._restart(await self._stuck(), drop_data=False)
        await self._restart(sorted(self._silent() - self._restarted), drop_data=True)
        if answer["over"]:
            self._handled |= {x["number"] for x in lost}

    async def _free(self, reason: str) -> dict[str, Any]:
        """Cancel the training, and end its tasks if it is over; return the answer."""
        finished = self._finished.is_set()
        answer = dict(await self._ask("cancel", reason=reason, finished=finished))
        answer["over"] = answer.get("over", True) or finished or not self.workers
        if answer["over"]:
            await self._restart(await self._stuck(), drop_data=False)
            await self._ask("freed")
        return answer

    async def _restart(self, addresses: list[str], *, drop_data: bool) -> None:
        """Restart workers that cannot be used otherwise; a failure is only logged.

        A fit of another client may have lost the same worker, and its plan may run. The
        first that may act frees the workers of both, which then have other addresses.
        A hold cannot make it wait: tasks of that fit wait for the threads.
        """
        if not addresses:
            return
        self._restarted.update(addresses)

        def steps(view: View, *_: object) -> Iterator[Step]:
            there = [w for w in view.now.workers if w.address in addresses]
            if not drop_data:
                ids = {w.id for w in there}
                return restarting.steps(view, ids, wait=0.0, end_tasks=True)
            # nothing computes scattered keys again, and a frozen process may go on
            kept = [w.id for w in there if not w.held_data or w.held_data.scattered]
            if kept:
                logger.warning(
                    "%s with scattered or unknown data: kept", workers_text(kept)
                )
            # each apart: a nanny that is silent too stops its own only
            ids = {w.id for w in there}.difference(kept)
            each = (releasing.drops(view, {id}, whole=False) for id in ids)
            return chain.from_iterable(each)

        procedure = Procedure(
            client=self.client,
            name="restart",
            steps=steps,
            timeout=restarting.TIMEOUT,
            dry_run=False,
            progress=False,
            look=replace(RESTART_LOOK, holdings=drop_data),
            skips=(*SKIPS, "restart_loses_nothing"),
            patience=PATIENCE,
            despite_holds=not drop_data,
        )
        try:
            report = await carry_out(procedure)
        except ClustertuneError as error:
            text = str(error)
        else:
            if report.status in ("done", "fine"):
                return
            text = "; ".join(headlines(report))
        logger.warning(
            "workers at %s could not be freed: %s",
            names_text(addresses),
            printable(text, longest=500),
        )

    def _silent(self) -> set[str]:
        return {x["address"] for x in self._new_losses() if x["how"] == "silent"}

    def _only_leaving(self) -> bool:
        return all(x["how"] == "leaving" for x in self._new_losses())

    async def _news(self, wait: float = 0.0) -> Mapping[str, Any]:
        after = self.state.get("version", -1)
        state = await self._ask("state", after=after, wait=wait)
        if not state.get("ended"):
            self._set(state)
        return self.state

    def _set(self, state: Mapping[str, Any]) -> None:
        if not state["lost"]:  # a silent member answers again
            self._lost_at = 0.0
        elif not self._lost_at:
            self._lost_at = monotonic()
        self.state = state

    async def checkpoint(self) -> Checkpoint | None:
        """Return the last checkpoint that the scheduler has."""
        found = (await self._ask("checkpoint")).get("checkpoint")
        return None if found is None else Checkpoint(**found)

    async def _ask(self, do: str, **arguments: Any) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = await monitor.ask(
            self.client, "fit", name=self.name, do=do, **arguments
        )
        return answer

    # --- afterwards -------------------------------------------------------------------

    async def ended(self, watched: Monitor, error: Exception) -> Loss | None:
        """Return what a fit that has failed had lost, or None; free its workers.

        Members of a fit may wait for one that failed. The scheduler may notice a loss
        after the library. The ``error`` of the fit then keeps no local variables, since
        futures of the fit are among them.
        """
        self._finished.set()
        state = await self._news()
        end = monotonic() + NOTICE
        while not state["lost"] and monotonic() < end:
            state = await self._news(end - monotonic())
        if not state["lost"]:
            try:
                await self._free("another worker of the fit has failed")
            except (ClustertuneError, OSError) as problem:
                _may_still_train(problem)  # the caller raises the error of the fit
            return None
        clear_frames(error.__traceback__)
        checkpoint = await self.checkpoint()
        await self._end_once()
        # more may have left meanwhile; this watch restarts workers itself
        more = (x for x in self.state["lost"] if x["address"] not in self._restarted)
        every = {x["worker"]: x for x in (*more, *state["lost"])}
        lost = {worker: x["how"] for worker, x in every.items()}
        reasons = await self._reasons(lost, watched)
        # another fit has lost the same worker, and its watch freed threads of this one
        freed = [w for w, why in reasons.items() if why == FREED]
        for worker in freed if len(freed) < len(lost) else ():
            del lost[worker], reasons[worker]
        workers, _ = await monitor.running_workers(self.client)
        leaving = {x["address"] for x in every.values() if x["how"] == "leaving"}
        here = {
            a: monitor.worker_id(a, entry)
            for a, entry in workers.items()
            if a not in leaving
        }
        gone = {x["address"] for x in every.values()} - here.keys()
        return Loss(
            workers=tuple(lost),
            gone=frozenset({*gone, *(lost.keys() - set(here.values()))}),
            emptied=frozenset(
                e.worker.worker
                for e in watched.events
                if e.worker is not None and e.worker.computed
            )
            | {
                x["worker"]
                for x in self.state["lost"]
                if x["how"] == "silent" and x["address"] not in workers
            },
            reasons=tuple(reasons.values()),
            round=state["round"],
            rounds=state["rounds"],
            checkpoint=checkpoint,
            at=self._lost_at,
        )

    async def _reasons(
        self, lost: Mapping[str | int, str], watched: Monitor
    ) -> dict[str | int, str]:
        """Return why each worker left: Dask knows once it is back, or will not be."""
        reasons = {w: NO_ANSWER[how] for w, how in lost.items() if how in NO_ANSWER}
        end = monotonic() + REASON
        while reasons.keys() != lost.keys() and monotonic() < end:
            for event in watched.events:
                change = event.worker
                if change is not None and event.kind != "joined":
                    # its next process may end too
                    reasons.setdefault(change.worker, change.reason or UNKNOWN)
            reasons = {w: reasons[w] for w in lost if w in reasons}
            await asyncio.sleep(INTERVAL)
        return {worker: reasons.get(worker, UNKNOWN) for worker in lost}

    async def _stuck(self) -> list[str]:
        """Wait until no cancelled training occupies a thread.

        Returns addresses of workers where one does. A library ends its tasks soon after
        their peers are gone, or never.
        """
        latest, end = monotonic() + LEAVE, monotonic() + FREE
        leaving = {x["address"] for x in self.state["lost"] if x["how"] == "leaving"}
        more = False  # whether tasks of another fit will be cancelled
        #: not stuck at the look before: a task may end between the answers of one look
        free: set[str] | None = None
        while True:
            workers, running = await monitor.running_workers(self.client)
            if more or not leaving.isdisjoint(workers):
                end = min(latest, monotonic() + FREE)
            answers = await ship.on_workers(
                self.client,
                training_tasks,
                running,
                timeout=ANSWER,
                prefixes=list(TASKS),
            )
            tasks = {w: keys for w, keys in answers.items() if isinstance(keys, list)}
            found = await self._ask("stuck", tasks=tasks)
            if found.get("ended"):
                return []
            stuck, shared, more = found["stuck"], found["shared"], found["more"]
            late = monotonic() >= end and free is not None
            if late and shared:
                logger.warning(
                    "a cancelled training does not end on workers at %s, where another "
                    "client trains; restart them with end_tasks=True afterwards",
                    names_text(shared),
                )
            if late or not (stuck or shared or more):
                return [address for address in stuck if address not in (free or ())]
            free = tasks.keys() - stuck
            await asyncio.sleep(INTERVAL)


def _may_still_train(error: Exception) -> None:
    text = printable(repr(error), longest=200)
    logger.warning("workers of the fit may still train: %s", text)
