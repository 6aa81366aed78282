"""The scheduler plugin: the part of clustertune that must outlive a client.

It keeps the lease and the holds, runs the jobs (moves and restarts), answers requests
about keys and workers, and keeps schedules, run history, the last report and the data
of the dashboard page. It makes no decisions. Clients reach it through a handler, so
that after its installation no more code travels: requests and answers are msgpack.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from time import time
from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin

from clustertune.remote.keys import KEYS_PER_TURN, Places, in_turns, unpack
from clustertune.remote.scheduler import survey
from clustertune.remote.scheduler.audit import audit
from clustertune.remote.scheduler.bindings import Bindings, unmet_of_keys
from clustertune.remote.scheduler.jobs import Jobs
from clustertune.remote.scheduler.lease import (
    Holds,
    Lease,
    LeaseEndedError,
    Owners,
    has_closed,
    public,
)
from clustertune.remote.scheduler.metrics import Metrics
from clustertune.remote.scheduler.mover import ManagerHold, MovePolicy
from clustertune.remote.scheduler.page import PageData
from clustertune.remote.scheduler.published import PublishedNames
from clustertune.remote.scheduler.release import ClusterRestart, holdings, release
from clustertune.remote.scheduler.replicas import PreparedKeys
from clustertune.remote.scheduler.restart import WorkerRestart
from clustertune.remote.scheduler.runs import Runs, measured, settled, watch_runs
from clustertune.remote.scheduler.schedule_runner import ScheduleRunner
from clustertune.remote.scheduler.state import is_parking, worker_id

NAME = "clustertune"
PROTOCOL = 17
STATE = 1  # format of the state that a plugin hands over to a newer one
MAX_REPORT = 2**24  # characters: 50,000 workers in each of two layouts
UNREADABLE = {
    "client": "",
    "label": "schedules, reports and run history that this release cannot read",
    "since": 0.0,
}


def present(dask_scheduler: Any) -> int | None:
    """The protocol of the installed plugin, or None.

    This question is a few bytes of code, while :func:`install` sends all of it.
    """
    protocol: int | None = getattr(dask_scheduler.plugins.get(NAME), "protocol", None)
    return protocol


async def install(dask_scheduler: Any) -> dict[str, Any]:
    """Install the plugin unless the same or a newer one is installed.

    An older plugin hands over its state. It stays while a client uses the cluster, and
    if this release cannot read its state.

    Returns
    -------
    dict
        ``protocol`` of the installed plugin, and ``busy``: why an older one could not
        be replaced (``client``, ``label``, ``since``), or None.
    """
    old = dask_scheduler.plugins.get(NAME)
    if old is None:
        ClustertunePlugin(dask_scheduler).attach()
        return {"protocol": PROTOCOL, "busy": None}
    if old.protocol >= PROTOCOL:
        return {"protocol": old.protocol, "busy": None}
    if getattr(old, "state_format", None) != STATE:
        return {"protocol": old.protocol, "busy": UNREADABLE}
    busy = old.busy()
    if busy is not None:
        return {"protocol": old.protocol, "busy": busy}
    # in one turn of the event loop: no request comes between the two
    new = ClustertunePlugin(dask_scheduler)
    new.restore(old.state())
    dask_scheduler.remove_plugin(name=NAME)
    new.attach()
    await old.close(handed_over=True)
    return {"protocol": PROTOCOL, "busy": None}


class ClustertunePlugin(SchedulerPlugin):
    """A scheduler plugin with one handler, ``clustertune``."""

    name = NAME
    protocol = PROTOCOL
    state_format = STATE

    def __init__(self, scheduler: Any):
        self.scheduler = scheduler
        self.owners = Owners(scheduler)
        self.holds = Holds(self.owners)
        self.lease = Lease(self.owners, self.holds, self._lease_ended)
        self.manager = ManagerHold(scheduler)
        self.jobs = Jobs(scheduler, self.manager)
        self.turn = asyncio.Lock()  # held by the restart that looks for room
        self.bindings = Bindings(scheduler)
        self.prepared = PreparedKeys(scheduler)
        self.names = PublishedNames(scheduler)
        self.runs = Runs()
        self.schedules = ScheduleRunner(self)
        self.page_data = PageData(scheduler, self)
        self.metrics = Metrics(self)
        self.report = ""
        self.findings: dict[str, Any] | None = None
        self.watches: list[asyncio.Task[None]] = []

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

    async def close(self, handed_over: bool = False) -> None:
        """End all tasks; Dask calls it when it closes, but not when it unregisters.

        Schedules that were handed over go on in the next plugin.
        """
        self.page_data.close()
        self.metrics.close()
        self.owners.close()
        tasks: list[asyncio.Task[Any]] = [job.task for job in self.jobs.kept.values()]
        tasks += self.schedules.close(handed_over)
        tasks += self.watches
        for task in tasks:
            task.cancel()
        tasks += self.bindings.ending
        await asyncio.gather(*tasks, return_exceptions=True)
        # the next plugin may have replaced the handler
        if getattr(self.scheduler.handlers.get(NAME), "__self__", None) is self:
            del self.scheduler.handlers[NAME]

    def busy(self) -> dict[str, Any] | None:
        """The user of the cluster that the end of the plugin would harm.

        A lease, a hold and a running job belong to a client that speaks this protocol.
        They cannot be handed over to a newer plugin.
        """
        holder = self.lease.holder() or next(iter(self.holds.active()), None)
        if holder is not None:
            return public(holder)
        return _landing() if self.jobs.are_running() else self.schedules.running()

    def state(self) -> dict[str, Any]:
        """All that outlives a client, as plain data, for :meth:`restore`."""
        return {
            "report": self.report,
            "released": list(self.lease.released),
            "findings": self.findings,
            "names": dict(self.names.noted),
            "schedules": self.schedules.state(),
            "runs": self.runs.state(),
            "showing": self.page_data.state(),
            "restarts": list(self.jobs.restarts),
            "metrics": self.metrics.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over the state of another plugin; before this one is attached."""
        self.report = state["report"]
        self.lease.released.extend(state["released"])
        self.jobs.restarts.extend(state.get("restarts", ()))  # older plugins have none
        if "metrics" in state:  # older plugins have none
            self.metrics.restore(state["metrics"])
        self.findings = state["findings"]
        clients = self.scheduler.clients
        self.names.noted = {c: n for c, n in state["names"].items() if c in clients}
        self.runs.restore(state["runs"])
        self.page_data.restore(state["showing"])
        self.schedules.restore(state["schedules"])

    # --- called by Dask ---------------------------------------------------------------

    def add_worker(self, scheduler: Any, worker: str) -> None:
        """Forget the memory of the worker's former process."""
        ws = scheduler.workers[worker]
        self.runs.forget(worker_id(ws.address, ws.name, ws.nanny))

    def transition(self, key: Any, start: Any, finish: Any, *_: Any, **__: Any) -> None:
        """Note work, and end the run when the last training task of a fit has ended.

        The scheduler calls this for each transition of each task.
        """
        if self.runs.transition(key, start, finish, time()):
            self.runs.end("training", measured(self.scheduler))

    def log_event(self, topic: str, msg: Any) -> None:
        self.jobs.note_event(topic, msg)
        self.metrics.note_event(topic, msg)
        audit(topic, msg)

    def remove_worker(
        self, scheduler: Any, worker: str, *, stimulus_id: str = "", **_: Any
    ) -> None:
        self.metrics.note_lost(*self.jobs.worker_removed(worker, stimulus_id))

    def remove_client(self, scheduler: Any, client: str) -> None:
        """End the claims of a client that closes; a lost client has a grace period.

        Until then the client may reconnect, and no other client gets its lease.
        """
        owns = self.lease.owns(client) or client in self.names.noted
        if has_closed(scheduler, client) or not owns:
            self._forget_client(client)
            return
        self.owners.begin_grace(
            client, lambda: self._forget_client(client, self.owners.silence())
        )

    def _forget_client(self, client: str, problem: str = "") -> None:
        self.names.forget(client)
        self.lease.forget(client, problem)

    def _lease_ended(self) -> None:
        """Have the jobs land what is in flight and stop, and free bound tasks."""
        self.jobs.stop_all()
        self.bindings.end_all()

    def valid_workers_downscaling(
        self, scheduler: Any, workers: list[Any]
    ) -> list[Any]:
        """Keep all workers during a plan or a fit, and parking workers always."""
        if self.holds.active() or self.lease.holder():
            return []
        return [ws for ws in workers if not is_parking(ws.name)]

    # --- requests ---------------------------------------------------------------------

    async def handle(self, method: str, client: str = "", **arguments: Any) -> Any:
        """Answer a request; ``method`` is one of ``METHODS``.

        ``client`` is the client. Each request is a sign that it is alive.
        """
        if method not in METHODS:
            raise ValueError(f"clustertune's scheduler plugin has no method {method!r}")
        self.owners.note(client)
        try:
            result = getattr(self, method)(**arguments)
            found = await result if asyncio.iscoroutine(result) else result
        except LeaseEndedError as error:
            return {"lease_ended": str(error)}
        # wrapped, because distributed answers None if there is no such handler
        return {"result": found}

    # --- requests about the lease and holds -------------------------------------------

    def acquire(self, owner: str, label: str, token: str) -> dict[str, Any]:
        """Take the lease, or return its holder.

        The caller makes the token, so that it can release the lease even if it was
        interrupted before the answer came. A token that is released first is void.

        Returns
        -------
        dict
            ``token`` if the lease was granted; else ``holder``: ``client``, ``label``
            and ``since`` (epoch seconds).
        """
        holder = self.lease.obstacle(owner, token)
        if holder is None and self.jobs.are_running():
            holder = _landing()
        if holder is not None:
            return {"holder": holder}
        self.jobs.kept.clear()
        self.lease.grant(owner, label, token)
        return {"token": token}

    def release(self, token: str) -> None:
        """End the lease of this token, also if it is granted later."""
        self.lease.release(token)

    def is_held(self, name: str) -> bool:
        """Whether the lease with this token, or the hold with this name, is active."""
        return self.lease.is_held(name)

    def begin_hold(self, owner: str, label: str, name: str) -> dict[str, Any]:
        """Keep adaptive scaling and plans of other clients off until the hold ends.

        Returns
        -------
        dict
            Nothing if it has begun; else ``holder`` as :meth:`acquire` returns it.
        """
        holder = self.lease.holder()
        if holder is not None and holder["client"] != owner:
            return {"holder": public(holder)}
        self.holds.begin(owner, label, name)
        self.owners.note(owner)
        return {}

    def end_hold(self, name: str) -> bool:
        """End a hold and its run; False if the hold has ended already."""
        there = self.holds.end(name)
        if there:
            self.runs.end("hold", measured(self.scheduler))
        return there

    # --- requests about keys, workers and clients -------------------------------------

    async def look(self, collections: Sequence[Sequence[Any]]) -> dict[str, Any]:
        """Memory of all workers; holders and bytes of packed keys."""
        memory, found = await survey.look(self.scheduler, collections)
        return memory | {
            "manager": self.manager.running(),
            "collections": found,
            "restarts": list(self.jobs.restarts),
        }

    async def survey(self, owner: str, packages: Sequence[str]) -> dict[str, Any]:
        """Clients, tasks and names for a diagnosis."""
        return await survey.survey(self.scheduler, owner, packages)

    async def work(self, owner: str, workers: Sequence[str]) -> dict[str, Any]:
        """Tasks that run on these workers, and a lease or hold of another client.

        ``tasks`` are pairs: an address, and pairs of a prefix and a number. ``holder``
        has client, label, since; or it is None.
        """
        holder = self.lease.holder()
        if holder is not None and holder["client"] == owner:
            holder = None
        return {
            "tasks": await survey.running_tasks(self.scheduler, workers),
            "holder": public(holder) if holder else self.holds.of_others(owner),
        }

    async def held_data(self, workers: Sequence[str]) -> dict[str, list[int]]:
        """The keys of these workers, and those that are unique."""
        return await survey.held_data(self.scheduler, workers)

    async def wanted(self, keys: Sequence[Any], owner: str) -> int:
        """Count packed keys that other clients want, or that are published."""
        return await survey.wanted_by_others(self.scheduler, keys, owner)

    async def claims(self, owner: str, keys: Sequence[Any]) -> dict[str, bytes]:
        """Packed keys that will not be in memory, or that the owner does not want."""
        return await survey.claims(self.scheduler, owner, keys)

    async def unmet_restrictions(self, keys: Sequence[Any]) -> list[list[Any]]:
        """Requirements of packed keys that no worker meets, with numbers of tasks."""
        return await unmet_of_keys(self.scheduler, unpack(keys))

    async def past(self) -> list[dict[str, Any]]:
        """The last runs, oldest first."""
        return await settled(self.scheduler, self.runs)

    # --- requests for jobs ------------------------------------------------------------

    async def move(
        self,
        token: str,
        workers: Sequence[str],
        ceilings: Sequence[int],
        moves: Sequence[tuple[Sequence[Any], bytes]],
        deadline: float,
    ) -> str:
        """Start to move keys to their targets; return the name of the job.

        ``moves`` are packed keys, each with the targets as bytes of an int64 array of
        indices into ``workers``. ``deadline`` is in seconds from now.
        """
        self.lease.check(token)
        pairs = [_with_targets(packed, targets) for packed, targets in moves]
        wanted = []
        # round robin over the collections: X_i and y_i travel one after the other
        for row in zip_longest(*pairs):
            some = [(key, workers[i]) for key, i in filter(None, row)]
            wanted += some
            for key, address in some:
                self.prepared.put(key, address)
            if len(wanted) % KEYS_PER_TURN < len(pairs):
                await asyncio.sleep(0)
        self.lease.check(token)  # it may have ended meanwhile
        self.prepared.begin()
        policy = MovePolicy(wanted, dict(zip(workers, ceilings, strict=True)))
        return self.jobs.move(policy, deadline)

    async def stay(
        self,
        token: str,
        workers: Sequence[str],
        places: Sequence[tuple[Sequence[Any], bytes]],
    ) -> None:
        """Have Dask's memory manager keep prepared keys on their workers.

        ``places`` are packed keys and their workers, as :meth:`move` has targets.
        """
        self.lease.check(token)
        for packed, homes in places:
            async for key, i in in_turns(_with_targets(packed, homes)):
                self.prepared.put(key, workers[i])
        self.prepared.begin()

    def restart_worker(
        self,
        token: str,
        address: str,
        collections: Sequence[Sequence[Any]],
        workers: Sequence[str],
        ceilings: Sequence[int],
        wait: float,
        timeout: float,
        retire: bool = False,
        parking: bytes = b"",
        resizing: Mapping[str, Any] | None = None,
    ) -> str:
        """Start to restart a worker without losing data; return the job's name.

        ``collections`` are packed keys of row-aligned collections. ``workers`` may hold
        the worker's keys, up to ``ceilings``. The other arguments are those of
        :class:`WorkerRestart`.
        """
        self.lease.check(token)
        work = WorkerRestart(
            self.scheduler,
            self.manager,
            address,
            Places(collections),
            dict(zip(workers, ceilings, strict=True)),
            wait,
            timeout,
            retire,
            parking,
            self.turn,
            resizing,
        )
        return self.jobs.restart(work)

    def drop(
        self, token: str, owner: str, others: bool, wait: float, timeout: float
    ) -> str:
        """Start to restart all workers without their data; return the job's name."""
        self.lease.check(token)
        work = ClusterRestart(self.scheduler, owner, others, wait, timeout)
        return self.jobs.drop(work)

    async def progress(self, job: str, token: str, wait: float) -> dict[str, Any]:
        """The state of a job, and its problem once it has finished.

        The answer comes when it has finished, after ``wait`` seconds at the latest.
        """
        self.lease.check(token)
        await self.jobs.wait(job, wait)
        self.lease.check(token)  # it may have ended meanwhile
        return self.jobs.state(job)

    def stop(self, job: str) -> None:
        """Start no more moves; copies in flight arrive, other changes are undone."""
        self.jobs.stop(job)

    # --- requests about released and published data -----------------------------------

    async def holdings(self, owner: str, kept: Sequence[Any]) -> list[list[Any]]:
        """Data in memory and the clients that want it, without packed keys."""
        return await holdings(self.scheduler, owner, set(unpack(kept)))

    async def release_keys(
        self,
        token: str,
        owner: str,
        prefix: str,
        kept: Sequence[Any],
        others: bool,
        together: Sequence[str] = (),
    ) -> tuple[int, int, list[str]]:
        """Release the keys of a prefix, without packed ones."""
        self.lease.check(token)
        event = {"action": "release", "prefix": prefix, "client": owner}
        keep = set(unpack(kept))
        answer = await release(
            self.scheduler, owner, prefix, keep, others, frozenset(together)
        )
        count, _, names = answer
        self.scheduler.log_event(NAME, event | {"keys": count, "unpublished": names})
        return answer

    def note_names(self, owner: str, names: Sequence[str]) -> dict[str, int]:
        """Remember the data of published names; count the lost keys of each."""
        return self.names.note(owner, names)

    async def point_names(
        self, owner: str, new: Sequence[Any], kept: Mapping[str, str]
    ) -> dict[str, Any]:
        """Replace the data of all names at once; return obstacles."""
        answer = await self.names.replace(owner, new, kept)
        if not answer:
            event = {"action": "publish", "names": [name for name, *_ in new]}
            self.scheduler.log_event(NAME, event | {"client": owner})
        return answer

    # --- requests about tasks bound to workers ----------------------------------------

    async def pin(self, token: str, keys: Sequence[Any]) -> str:
        """Remember packed keys of new tasks before they are bound to workers.

        Returns the name of the set.
        """
        self.lease.check(token)
        bound = await self.bindings.unknown(keys)
        self.lease.check(token)  # it may have ended meanwhile
        return self.bindings.keep(bound)

    async def free_stuck(self, token: str, name: str) -> int:
        """Unbind the tasks whose worker is gone or paused."""
        self.lease.check(token)
        return await self.bindings.free_stuck(name)

    async def unpin(self, token: str, name: str) -> None:
        """Unbind all tasks of a set."""
        self.lease.check(token)
        await self.bindings.end(name)

    # --- requests about schedules, the report and the page ----------------------------

    def schedule(self, terms: Mapping[str, Any]) -> dict[str, Any]:
        """Schedule a restart of workers; return its description."""
        return self.schedules.add(terms)

    def list_schedules(self) -> dict[str, Any]:
        """Waiting and recently ended schedules, and when checks have run last."""
        found = self.findings and self.findings["time"]
        return {"schedules": self.schedules.listed(), "findings": found, "now": time()}

    def cancel_schedule(self, name: str) -> dict[str, Any] | None:
        """Cancel a schedule, now or after the current worker; None if unknown."""
        return self.schedules.cancel(name)

    def keep(self, report: str) -> None:
        """Keep a report (JSON) for later requests."""
        if len(report) > MAX_REPORT:
            raise ValueError(f"a report of {len(report):,} characters is not kept")
        self.report = report

    def recall(self) -> str:
        """The last report (JSON), or nothing."""
        return self.report

    def keep_facts(self, facts: Mapping[str, Any], diagnosis: bool = False) -> None:
        """Keep facts for the page that the scheduler does not have itself.

        Scheduled restarts use the findings of a diagnosis, not those of the fewer
        checks of other calls.
        """
        self.page_data.keep(facts)
        if diagnosis:
            self.findings = self.page_data.facts["findings"]

    def page(self) -> dict[str, Any]:
        """The page state, as :mod:`clustertune.dashboard.state` describes it."""
        return self.page_data.look()


def _landing() -> dict[str, Any]:
    """The holder of a cluster whose last plan still moves keys."""
    label = "a plan that has ended is landing its partitions"
    return {"client": "", "label": label, "since": time()}


def _with_targets(packed: Sequence[Any], targets: bytes) -> Any:
    """Pairs of a key and the index of its worker."""
    return zip(unpack(packed), array("q", targets), strict=True)


METHODS = frozenset((
    "look", "survey", "past", "acquire", "release", "is_held", "begin_hold", "end_hold",
    "move", "stay", "held_data", "work", "restart_worker", "holdings", "release_keys",
    "drop", "note_names", "point_names", "progress", "stop", "pin", "free_stuck",
    "unpin", "unmet_restrictions", "wanted", "claims", "schedule", "list_schedules",
    "cancel_schedule", "keep", "recall", "keep_facts", "page",
))  # fmt: skip
