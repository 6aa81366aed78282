"""The scheduler plugin: the part of clustertune that must outlive a client.

It keeps the lease and the holds, runs the jobs (moves and restarts), answers requests
about keys and workers, and keeps schedules, run history, the last report and the data
of the dashboard page. It makes no decisions. Clients send requests to its handler, in
msgpack and without code, except the pickled functions that nannies run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import time
from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin

from clustertune.remote.ending import end_tasks
from clustertune.remote.keys import Places, count, in_rotation, in_turns
from clustertune.remote.scheduler import survey
from clustertune.remote.scheduler.bindings import Bindings, PreparedKeys
from clustertune.remote.scheduler.fits import Fits
from clustertune.remote.scheduler.jobs import Jobs
from clustertune.remote.scheduler.lease import (
    SCHEDULER_OWNER,
    Holds,
    Lease,
    LeaseEndedError,
    Owners,
    Runs,
    has_closed,
    measured,
    settled,
    watch_runs,
)
from clustertune.remote.scheduler.mover import ManagerHold, MovePolicy
from clustertune.remote.scheduler.page import PageData
from clustertune.remote.scheduler.release import DataDrop, holdings, release
from clustertune.remote.scheduler.restart import WorkerRestart
from clustertune.remote.scheduler.schedule_runner import ScheduleRunner
from clustertune.remote.scheduler.state import is_parking, worker_id
from clustertune.remote.scheduler.telemetry import Metrics, WorkerChanges, audit

NAME = "clustertune"
PROTOCOL = 35  # of requests and answers; clients of another protocol are refused
#: packed keys with their workers: bytes of an int64 array of indices into a list
Placed = Sequence[tuple[Sequence[Any], bytes]]
MAX_REPORT = 2**24  # characters: 50,000 workers in each of two layouts


def present(dask_scheduler: Any) -> dict[str, Any] | None:
    """Return what is known of the installed plugin, or None.

    This function is small, while :func:`install` sends all code of the plugin. The
    answer has ``protocol``, ``version`` and ``preloaded``.
    """
    plugin = dask_scheduler.plugins.get(NAME)
    names = "protocol", "version", "preloaded"
    return None if plugin is None else {name: getattr(plugin, name) for name in names}


async def install(
    dask_scheduler: Any, version: str, preloaded: bool = False
) -> dict[str, Any]:
    """Install the plugin unless there is one; return the facts of :func:`present`."""
    if NAME not in dask_scheduler.plugins:
        # Dask has removed a plugin from its list without closing it
        former = getattr(dask_scheduler.handlers.get(NAME), "__self__", None)
        if former is not None:
            await former.close()
    if NAME not in dask_scheduler.plugins:
        plugin = ClustertunePlugin(dask_scheduler)
        plugin.version, plugin.preloaded = version, preloaded
        plugin.attach()
    return present(dask_scheduler) or {}


class ClustertunePlugin(SchedulerPlugin):
    """A scheduler plugin with one handler, ``clustertune``."""

    name = NAME
    protocol = PROTOCOL
    version = ""  # of clustertune, from the process that has installed it
    preloaded = False  # whether the scheduler itself has installed it

    def __init__(self, scheduler: Any):
        self.scheduler = scheduler
        self.owners = Owners(scheduler)
        self.holds = Holds(self.owners)
        self.fits = Fits(scheduler, self.holds)
        self.lease = Lease(self.owners, self.holds, self._lease_ended)
        self.manager = ManagerHold(scheduler)
        self.jobs = Jobs(scheduler, self.manager)
        self.turn = asyncio.Lock()  # one restart at a time moves its keys away
        self.bindings = Bindings(scheduler)
        self.prepared = PreparedKeys(scheduler)
        self.runs = Runs()
        self.schedules = ScheduleRunner(self)
        self.page_data = PageData(scheduler, self)
        self.changes = WorkerChanges(scheduler, self.page_data)
        self.metrics = Metrics(self)
        self.report = ""
        self.watches: list[asyncio.Task[None]] = []
        #: all requests of clients
        self.requests: dict[str, Callable[..., Any]] = {
            "acquire": self.acquire,
            "is_held": self.lease.is_held,
            "release": self.release,
            "look": self.look,
            "look_at_workers": partial(survey.held_data, scheduler),
            "look_at_keys": partial(survey.look_at_keys, scheduler),
            "survey": partial(survey.survey, scheduler),
            "past_runs": partial(settled, scheduler, self.runs),
            "holdings": partial(holdings, scheduler),
            "move": self.move,
            "restart": self.restart_workers,
            "progress": self.progress,
            "release_keys": self.release_keys,
            "pin": self.pin,
            "unpin": self.unpin,
            "schedules": self.schedules.answer,
            "report": self.keep_report,
            "page": self.page_data.look,
            "worker_changes": self.changes.since,
            "fit": self.fits.answer,
        }

    # --- installation and end ---------------------------------------------------------

    def attach(self) -> None:
        self.scheduler.add_plugin(self, name=NAME)
        self.scheduler.handlers[NAME] = self.handle
        watches = (
            watch_runs(self.scheduler, self.runs, self.holds),
            self.bindings.watch(),
        )
        self.watches = [asyncio.ensure_future(watch) for watch in watches]
        self.metrics.register()

    async def close(self) -> None:
        """Cancel all tasks. Dask calls this when the scheduler closes."""
        self.page_data.close()
        self.metrics.close()
        self.owners.close()
        jobs = [job.task for job in self.jobs.kept.values()]
        await asyncio.gather(
            # a restart undoes its changes, which may take a while
            end_tasks(*jobs, *self.schedules.close(), once=True),
            end_tasks(*self.watches, *self.changes.close()),
            *self.bindings.ending,
            return_exceptions=True,
        )
        # another plugin may have replaced the handler
        if getattr(self.scheduler.handlers.get(NAME), "__self__", None) is self:
            del self.scheduler.handlers[NAME]

    # --- called by Dask ---------------------------------------------------------------

    def add_worker(self, scheduler: Any, worker: str) -> None:
        """Forget the memory of the worker's former process."""
        ws = scheduler.workers[worker]
        self.runs.forget(worker_id(ws.address, ws.name, ws.nanny))
        self.changes.added(ws)

    def transition(self, key: Any, start: Any, finish: Any, *_: Any, **__: Any) -> None:
        """Record work, and end the run with the last training task of a fit."""
        self.bindings.transition(key, finish)
        self.fits.transition(key, finish)
        if self.runs.transition(key, start, finish, time()):
            self.runs.end("training", measured(self.scheduler))

    def log_event(self, topic: str, msg: Any) -> None:
        self.jobs.note_event(topic, msg)
        self.metrics.note_event(topic, msg)
        audit(topic, msg)
        self.changes.note_event(topic, msg)

    def remove_worker(
        self, scheduler: Any, worker: str, *, stimulus_id: str = "", **_: Any
    ) -> None:
        self.fits.worker_removed(worker)
        lost = self.jobs.worker_removed(worker, stimulus_id)
        self.metrics.note_lost(*map(len, lost))
        self.changes.removed(worker, stimulus_id, *lost)

    def restart(self, scheduler: Any) -> None:
        """Note that a client restarts the cluster, which loses all keys."""
        self.jobs.note_cleared()

    def remove_client(self, scheduler: Any, client: str) -> None:
        """Release the lease and the holds of a client that closes.

        A client that lost its connection keeps them for a grace period, in which it
        may reconnect.
        """
        if has_closed(scheduler, client) or not self.lease.owns(client):
            self._forget_client(client)
            return
        self.owners.begin_grace(
            client, lambda: self._forget_client(client, self.owners.silence())
        )

    def _forget_client(self, client: str, problem: str = "") -> None:
        self.lease.forget(client, problem)
        self.fits.forget(client)

    def _lease_ended(self) -> None:
        """Stop the jobs after the copies in flight, and unbind tasks."""
        self.jobs.stop()
        self.jobs.counting = False
        self.bindings.end_all()

    def valid_workers_downscaling(
        self, scheduler: Any, workers: list[Any]
    ) -> list[Any]:
        """Protect all workers during a plan or a fit, and parking workers always."""
        if self.lease.in_use() is not None:
            return []
        return [ws for ws in workers if not is_parking(ws.name)]

    # --- requests ---------------------------------------------------------------------

    async def handle(self, method: str, client: str = "", **arguments: Any) -> Any:
        """Answer one of the requests; each shows that its ``client`` is alive."""
        answer = self.requests.get(method)
        if answer is None:
            raise ValueError(f"clustertune's scheduler plugin has no method {method!r}")
        self.owners.note(client)
        try:
            result = answer(**arguments)
            found = await result if asyncio.iscoroutine(result) else result
        except LeaseEndedError as error:
            return {"lease_ended": str(error)}
        # wrapped, because distributed answers None if there is no such handler
        return {"result": found}

    # --- requests about the lease and holds -------------------------------------------

    def acquire(
        self,
        owner: str,
        label: str,
        token: str,
        hold: bool = False,
        fit: Mapping[str, Any] | None = None,
        despite_holds: bool = False,
    ) -> dict[str, Any]:
        """Grant the lease or a hold, or return the holder that prevents it.

        Plans get the lease in the order of their requests, if they repeat them. A hold
        blocks adaptive scaling and plans of other clients until it ends, except a plan
        ``despite_holds``. It may protect a ``fit``, which are the other
        arguments of :meth:`Fits.begin`. The caller makes the token. So it can release
        the lease even if it is interrupted before the answer. A released token gets
        neither a lease nor a hold.

        Returns ``token`` if it is granted. Otherwise ``holder`` with ``client``,
        ``label`` and ``since`` (epoch seconds), and ``waits`` if it has only requested
        the lease, earlier than this caller.
        """
        if hold:
            if token in self.lease.released:
                raise LeaseEndedError("this hold was released before it was granted")
            holder = self.lease.of_others(owner)
        else:
            holder = self.lease.obstacle(owner, token, despite_holds)
            if holder is None and self.jobs.are_running():
                what = "a plan that has ended still moves partitions"
                holder = {"client": "", "label": what, "since": time()}
        if holder is not None:
            if not hold and owner != SCHEDULER_OWNER:  # a schedule asks with others
                self.lease.wait(owner, label, token)
            return {"holder": holder}
        if hold:
            self.holds.begin(owner, label, token)
            if fit is not None:
                self.fits.begin(token, owner, **fit)
            self.owners.note(owner)
        else:
            self.jobs.begin(owner)
            self.lease.grant(owner, label, token)
        return {"token": token}

    async def release(self, token: str) -> dict[str, Any]:
        """End the lease or the hold of this token.

        A lease or hold with this token is refused if it is requested later. The end of
        a hold ends a run.

        Returns ``held``, whether it had not ended before, and ``lost``, the losses that
        no job has counted: see :meth:`Jobs.end`.
        """
        self.fits.end(token)
        if self.holds.end(token):
            self.lease.release(token)  # a repeated request would take it again
            self.runs.end("hold", measured(self.scheduler))
            return {"held": True, "lost": []}
        held = self.lease.is_held(token)
        lost = await self.jobs.end() if held else []
        self.lease.release(token)
        return {"held": held, "lost": lost}

    # --- requests about keys, workers and clients -------------------------------------

    async def look(self, collections: Sequence[Sequence[Any]]) -> dict[str, Any]:
        """Return the memory of all workers, and holders and bytes of packed keys."""
        memory, found = await survey.look(self.scheduler, collections)
        return memory | {
            "manager": self.manager.running(),
            "collections": found,
        }

    # --- requests for jobs ------------------------------------------------------------

    async def move(
        self,
        token: str,
        workers: Sequence[str],
        ceilings: Sequence[int],
        moves: Placed,
        deadline: float,
    ) -> str:
        """Start to move keys to their targets; return the name of the job.

        Dask's memory manager keeps these keys on their targets. ``deadline`` is in
        seconds from now. 0: the keys are there already, and nothing moves.
        """
        self.lease.check(token)
        async for key, address in in_turns(in_rotation(moves, workers)):
            self.prepared.put(key, address)
        self.lease.check(token)  # it may have ended meanwhile
        self.prepared.begin()
        if not deadline:
            return ""
        policy = MovePolicy(
            in_rotation(moves, workers),
            dict(zip(workers, ceilings, strict=True)),
            total=sum(count(packed) for packed, _ in moves),
        )
        return self.jobs.move(policy, deadline)

    async def restart_workers(
        self,
        token: str,
        collections: Sequence[Sequence[Any]] = (),
        drop: Mapping[str, Any] | None = None,
        **terms: Any,
    ) -> str:
        """Start to restart workers; return the job's name.

        ``collections`` are packed keys of row-aligned collections, and ``terms`` the
        other arguments of :class:`WorkerRestart`. With ``drop``, the arguments of
        :class:`DataDrop`, the workers lose their data.
        """
        self.lease.check(token)
        if drop is not None:
            return self.jobs.restart(DataDrop(self.scheduler, **drop))
        places = await Places.of(collections)
        self.lease.check(token)  # it may have ended meanwhile
        work = WorkerRestart(
            self.scheduler, self.manager, partitions=places, turn=self.turn, **terms
        )
        return self.jobs.restart(work)

    async def progress(
        self, job: str, token: str, wait: float, stop: bool = False
    ) -> dict[str, Any]:
        """Return the state of a job, when it has finished or after ``wait`` seconds.

        A finished job has its problem as ``error``. ``stop`` stops it before.
        """
        if stop:
            self.jobs.stop(job)
        self.lease.check(token)
        await self.jobs.wait(job, wait)
        self.lease.check(token)  # it may have ended meanwhile
        return self.jobs.state(job)

    # --- requests about released data -------------------------------------------------

    async def release_keys(
        self, token: str, owner: str, prefix: str, kept: Sequence[Any]
    ) -> tuple[int, int]:
        """Release keys as :func:`release` does, and log it."""
        self.lease.check(token)
        keys, nbytes = await release(self.scheduler, owner, prefix, kept)
        event = {"action": "release", "prefix": prefix, "client": owner, "keys": keys}
        self.scheduler.log_event(NAME, event)
        return keys, nbytes

    # --- requests about tasks bound to workers ----------------------------------------

    async def pin(self, token: str, keys: Sequence[Any]) -> str:
        """Record packed keys of new tasks before they are bound to workers.

        Returns the name of this set of tasks.
        """
        self.lease.check(token)
        bound = await self.bindings.unknown(keys)
        self.lease.check(token)  # it may have ended meanwhile
        return self.bindings.keep(bound)

    async def unpin(self, token: str, name: str, stuck: bool = False) -> int:
        """Unbind all tasks of a set, or those whose worker is gone or paused.

        Returns the number of unbound tasks, if only the latter are.
        """
        self.lease.check(token)
        if stuck:
            return await self.bindings.free_stuck(name)
        await self.bindings.end(name)
        return 0

    # --- requests about the report and the page ---------------------------------------

    def keep_report(
        self, text: str | None = None, facts: Mapping[str, Any] | None = None
    ) -> str:
        """Keep a report (JSON), and facts for the page that only clients have.

        Returns the last report, or "".
        """
        if facts is not None:
            self.page_data.keep(facts)
        if text is not None:
            if len(text) > MAX_REPORT:
                raise ValueError(f"a report of {len(text):,} characters is not kept")
            self.report = text
        return self.report
