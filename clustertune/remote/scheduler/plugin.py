"""The resident: what of clustertune must outlive a client, in the scheduler.

It keeps the lease (one plan at a time per cluster), carries out moves and restarts,
answers where given keys lie, and keeps the last report. Holds, bindings, published
names, runs, schedules and the panel have a module each. It holds plain data and decides
nothing. It is reached through a handler of its own, so that after it is installed no
more code travels: requests and answers are msgpack.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from time import time
from typing import Any
from uuid import uuid4

from distributed.diagnostics.plugin import SchedulerPlugin

from clustertune.remote.keys import Places, unpack
from clustertune.remote.scheduler import runs
from clustertune.remote.scheduler.bindings import Bindings, unmet_of_keys
from clustertune.remote.scheduler.lease import Holds, Owners, has_closed, log_loss, told
from clustertune.remote.scheduler.mover import ManagerHold, Placing, place
from clustertune.remote.scheduler.page import Showing
from clustertune.remote.scheduler.published import Names
from clustertune.remote.scheduler.release import Dropping, holdings, release
from clustertune.remote.scheduler.replicas import Homes
from clustertune.remote.scheduler.restart import Restarting
from clustertune.remote.scheduler.schedule_runner import OWNER, Schedules
from clustertune.remote.scheduler.survey import burdens, running, survey
from clustertune.remote.scheduler.workers import is_parking, memory_of, worker_id

logger = logging.getLogger("distributed.clustertune")
NAME = "clustertune"
PROTOCOL = 16
STATE = 1  # format of what a resident hands over to a newer one
YIELD = 2000  # keys between two yields to the event loop
MOST_RESTARTS = 50
LONGEST = 1.0  # seconds that an answer how far a job is waits for its end, at most
MOST_REPORT = 2**24  # characters: 50,000 workers in each of two layouts
UNREADABLE = {
    "client": "",
    "label": "schedules, reports and run history that this release cannot read",
    "since": 0.0,
}


class LeaseEndedError(PermissionError):
    """A request of a call whose lease has ended; it is answered, not raised.

    Dask logs a traceback for each exception of a handler, and this one is expected.
    """


def present(dask_scheduler: Any) -> int | None:
    """The protocol of the resident that is there; None: there is none.

    A few bytes travel for this question, and for :func:`install` all of the code.
    """
    protocol: int | None = getattr(dask_scheduler.plugins.get(NAME), "protocol", None)
    return protocol


async def install(dask_scheduler: Any) -> dict[str, Any]:
    """Put the resident into the scheduler unless the same or a newer one is there.

    An older one hands over what it keeps. It stays if that is not possible: while a
    client holds the cluster, or if this release cannot read what it keeps.

    Returns
    -------
    dict
        ``protocol`` of the resident that is there now, and ``busy``: why an older one
        could not be replaced (``client``, ``label``, ``since``), or None.
    """
    present = dask_scheduler.plugins.get(NAME)
    if present is None:
        Resident(dask_scheduler).attach()
        return {"protocol": PROTOCOL, "busy": None}
    if present.protocol >= PROTOCOL:
        return {"protocol": present.protocol, "busy": None}
    if getattr(present, "state_format", None) != STATE:
        return {"protocol": present.protocol, "busy": UNREADABLE}
    busy = present.busy()
    if busy is not None:
        return {"protocol": present.protocol, "busy": busy}
    # in one turn of the event loop: no request comes between the two
    new = Resident(dask_scheduler)
    new.restore(present.state())
    dask_scheduler.remove_plugin(name=NAME)
    new.attach()
    await present.close(handed_over=True)
    return {"protocol": PROTOCOL, "busy": None}


class Resident(SchedulerPlugin):
    """A scheduler plugin with one handler, ``clustertune``."""

    name = NAME
    protocol = PROTOCOL
    state_format = STATE

    def __init__(self, scheduler: Any):
        self.scheduler = scheduler
        self.lease: dict[str, Any] | None = None
        self.jobs: dict[str, Job] = {}
        self.manager = ManagerHold(scheduler)  # of Dask's own; holds of fits are below
        self.turn = asyncio.Lock()  # of those that look for room at the same time
        self.report = ""
        self.released: deque[str] = deque(maxlen=1000)  # tokens
        #: seconds from the end of a process to the next, of the last restarts
        self.restarts: deque[float] = deque(maxlen=MOST_RESTARTS)
        self.bindings = Bindings(scheduler)
        self.homes = Homes(scheduler)
        self.runs = runs.Runs()
        self.owners = Owners(scheduler)
        self.graces: dict[str, asyncio.TimerHandle] = {}  # by client
        self.holds = Holds(self.owners)
        self.names = Names(scheduler)
        self.findings: dict[str, Any] | None = None
        self.schedules = Schedules(self)
        self.showing = Showing(scheduler, self)
        self.watching: list[asyncio.Task[None]] = []
        self.last_event: dict[str, Any] = {}  # of a worker that is being removed

    def attach(self) -> None:
        self.scheduler.add_plugin(self, name=NAME)
        self.scheduler.handlers[NAME] = self.handle
        watches = (
            runs.watch(self.scheduler, self.runs, self.holds),
            self.bindings.watch(),
        )
        self.watching = [asyncio.ensure_future(w) for w in watches]

    async def close(self, handed_over: bool = False) -> None:
        """End what runs. Unregistering a plugin alone would leave its tasks running.

        Schedules that were handed over go on in the next resident.
        """
        self.showing.close()
        for timer in self.graces.values():
            timer.cancel()
        tasks: list[asyncio.Task[Any]] = [job.task for job in self.jobs.values()]
        tasks += self.schedules.close(handed_over)
        tasks += self.watching
        for task in tasks:
            task.cancel()
        tasks += self.bindings.ending
        await asyncio.gather(*tasks, return_exceptions=True)
        # the function may be another one: whoever asks ships the class once more
        if getattr(self.scheduler.handlers.get(NAME), "__self__", None) is self:
            del self.scheduler.handlers[NAME]

    def add_worker(self, scheduler: Any, worker: str) -> None:
        """A new process: it has none of the memory that the one before it had."""
        ws = scheduler.workers[worker]
        self.runs.forget(worker_id(ws.address, ws.name, ws.nanny))

    def transition(self, key: Any, start: Any, finish: Any, *_: Any, **__: Any) -> None:
        """Note work, and end the run when the last training task of a fit has ended.

        The scheduler calls this for each transition of each task.
        """
        if self.runs.transition(key, start, finish, time()):
            self.runs.end("training", runs.measured(self.scheduler))

    def log_event(self, topic: str, msg: Any) -> None:
        """Keep Dask's event about a removed worker until :meth:`remove_worker`.

        Both are called within one turn of the event loop. The log itself is bounded.
        """
        event = msg if topic == "all" and isinstance(msg, dict) else {}
        if event.get("action") == "remove-worker":
            self.last_event = event

    def remove_worker(
        self, scheduler: Any, worker: str, *, stimulus_id: str = "", **_: Any
    ) -> None:
        """Give restarts the keys that were lost with a worker, each key to one."""
        event, self.last_event = self.last_event, {}
        if (event.get("worker"), event.get("stimulus_id")) != (worker, stimulus_id):
            logger.error("clustertune cannot count the keys lost with %s", worker)
            return
        works = [
            job.work
            for job in self.jobs.values()
            if isinstance(job.work, Restarting) and not job.task.done()
        ]
        computed = event["lost-computed-tasks"]
        scattered = event["lost-scattered-tasks"]
        for work in works:
            computed, scattered = work.removed(worker, computed, scattered)
        if works:
            works[0].note_others(worker, computed | scattered)

    def remove_client(self, scheduler: Any, client: str) -> None:
        """End what a client holds that closes; a lost one has a grace period.

        Until then the client may reconnect, and no other client gets its lease.
        """
        if has_closed(scheduler, client) or not self._owns(client):
            self._end_all_of(client)
            return
        self.owners.begin_grace(client)
        later = self.owners.grace + 0.1
        loop = asyncio.get_running_loop()
        self._forget_grace(client)
        self.graces[client] = loop.call_later(later, self._end_grace, client)

    def _owns(self, client: str) -> bool:
        owners = [h["client"] for h in self.holds.kept.values()]
        owners += [] if self.lease is None else [self.lease["client"]]
        return client in owners or client in self.names.noted

    def _end_grace(self, client: str) -> None:
        self._forget_grace(client)
        if not self.owners.is_alive(client):
            self._end_all_of(client, self.owners.silence())

    def _forget_grace(self, client: str) -> None:
        timer = self.graces.pop(client, None)
        if timer is not None:
            timer.cancel()

    def _end_all_of(self, client: str, problem: str = "") -> None:
        """End the lease, the holds and the noted names of a client.

        A plan whose lease ends lands what is in flight and stops.
        """
        self._forget_grace(client)
        self.owners.forget(client)
        self.holds.forget(client, problem)
        self.names.forget(client)
        if self.lease is not None and self.lease["client"] == client:
            self._end_lease(problem)

    async def handle(self, method: str, asker: str = "", **arguments: Any) -> Any:
        """Entry for all requests; ``method`` is one of ``METHODS``.

        ``asker`` is the client. Each request is a sign that it is alive.
        """
        if method not in METHODS:
            raise ValueError(f"clustertune's resident does not know {method!r}")
        self.owners.note(asker)
        try:
            result = getattr(self, method)(**arguments)
            found = await result if asyncio.iscoroutine(result) else result
        except LeaseEndedError as error:
            return {"lease_ended": str(error)}
        # wrapped: None is what distributed answers where there is no such handler
        return {"result": found}

    # --- one resident after another ---------------------------------------------------

    def busy(self) -> dict[str, Any] | None:
        """Who would lose something if this resident ended now: client, label, since.

        A lease, a hold and a running job belong to a client that speaks this protocol.
        They cannot be handed over to a newer resident.
        """
        holder = self.holder() or next(iter(self.holds.there()), None)
        if holder is not None:
            return told(holder)
        if any(not job.task.done() for job in self.jobs.values()):
            return self._landing()
        return self.schedules.running()

    def state(self) -> dict[str, Any]:
        """All that outlives a client, as plain data, for :meth:`restore`."""
        return {
            "report": self.report,
            "released": list(self.released),
            "findings": self.findings,
            "names": dict(self.names.noted),
            "schedules": self.schedules.state(),
            "runs": self.runs.state(),
            "showing": self.showing.handed(),
            "restarts": list(self.restarts),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what another resident kept; before this one is attached."""
        self.report = state["report"]
        self.released.extend(state["released"])
        self.restarts.extend(state.get("restarts", ()))  # older ones have none
        self.findings = state["findings"]
        there = self.scheduler.clients
        self.names.noted = {c: n for c, n in state["names"].items() if c in there}
        self.runs.restore(state["runs"])
        self.showing.restore(state["showing"])
        self.schedules.restore(state["schedules"])

    # --- what is there ----------------------------------------------------------------

    async def look(self, collections: Sequence[Sequence[Any]]) -> dict[str, Any]:
        """Memory of all workers, holders and bytes of the given keys.

        Numbers come as bytes of int64 arrays; ``time`` is by the scheduler's clock, as
        is when it last heard of a worker. ``collections`` are packed keys. A key
        that is not in memory has no holder. Keys may vanish between two yields.
        """
        workers = dict(self.scheduler.workers)
        index = {ws: i for i, ws in enumerate(workers.values())}
        numbers = array("q")
        for ws in workers.values():
            numbers.extend((*memory_of(ws), len(ws.processing)))
        found = [await self._holders(packed, index) for packed in collections]
        return {
            "time": time(),
            "workers": list(workers),
            "memory": numbers.tobytes(),
            "manager": self.manager.running(),
            "collections": found,
            "restarts": list(self.restarts),
        }

    async def _holders(
        self, packed: Sequence[Any], index: dict[Any, int]
    ) -> dict[str, Any]:
        nbytes, pieces, holders = array("q"), array("q"), array("q")
        scattered = 0
        tasks = self.scheduler.tasks
        for i, key in enumerate(unpack(packed)):
            if i % YIELD == YIELD - 1:
                await asyncio.sleep(0)
            ts = tasks.get(key)
            here = () if ts is None or ts.state != "memory" else ts.who_has
            nbytes.append(ts.nbytes if here else 0)
            scattered += bool(here) and ts.run_spec is None
            for ws in here:
                if ws in index:
                    pieces.append(i)
                    holders.append(index[ws])
        return {
            "nbytes": nbytes.tobytes(),
            "pieces": pieces.tobytes(),
            "holders": holders.tobytes(),
            "scattered": scattered,
        }

    async def survey(self, owner: str, packages: Sequence[str]) -> dict[str, Any]:
        """What a diagnosis asks of clients, tasks and names."""
        return await survey(self.scheduler, owner, packages)

    async def work(self, owner: str, workers: Sequence[str]) -> dict[str, Any]:
        """Tasks that run on these workers, and whose lease or hold is in the way.

        ``tasks`` are pairs: an address, and pairs of a prefix and a number. ``holder``
        is no plan or hold of the owner's own: client, label, since; or None.
        """
        holder = self.holder()
        if holder is not None and holder["client"] == owner:
            holder = None
        return {
            "tasks": await running(self.scheduler, workers),
            "holder": told(holder) if holder else self.holds.of_others(owner),
        }

    async def past(self) -> list[dict[str, Any]]:
        """The last runs, oldest first."""
        return await runs.settled(self.scheduler, self.runs)

    # --- one plan at a time -----------------------------------------------------------

    def holder(self) -> dict[str, Any] | None:
        """Who holds the lease, unless that client is gone or frozen."""
        if self.lease is None or self.lease["client"] == OWNER:
            return self.lease
        if not self.owners.is_alive(self.lease["client"]):
            self._end_lease(self.owners.silence())
        return self.lease

    def acquire(self, owner: str, label: str, token: str) -> dict[str, Any]:
        """Take the lease, or learn who holds it.

        The token is the caller's own, so that it can be released by somebody who was
        interrupted before the answer came; released before it was acquired, it is void.

        Returns
        -------
        dict
            ``token`` where it was granted; else ``holder``: ``client``, ``label`` and
            ``since`` (epoch seconds).
        """
        if token in self.released:
            raise LeaseEndedError("this lease was released before it was granted")
        holder = self.holder()
        if holder is not None:
            return {"holder": told(holder)}
        hold = self.holds.of_others(owner)
        if hold is not None:
            return {"holder": hold}
        if any(not job.task.done() for job in self.jobs.values()):
            return {"holder": self._landing()}
        self.jobs.clear()
        self.lease = {"client": owner, "label": label, "token": token, "since": time()}
        self.owners.note(owner)
        return {"token": token}

    def _landing(self) -> dict[str, Any]:
        label = "a plan that has ended is landing its partitions"
        return {"client": "", "label": label, "since": time()}

    def release(self, token: str) -> None:
        """End the lease of this token, now or when it should come later."""
        self.released.append(token)
        if self.lease is not None and self.lease["token"] == token:
            self._end_lease()

    def is_held(self, name: str) -> bool:
        """Whether the lease with this token, or the hold with this name, is there."""
        holder = self.holder()
        if holder is not None and holder["token"] == name:
            return True
        self.holds.there()  # ends the holds of clients that are gone
        return name in self.holds.kept

    def _end_lease(self, problem: str = "") -> None:
        if problem and self.lease is not None:
            log_loss(self.scheduler, "lease", self.lease, problem)
        self.lease = None
        for job in self.jobs.values():
            job.work.stopped = True
        # what was bound to workers must not stay so when its plan has gone
        self.bindings.end_all()

    # --- holds ------------------------------------------------------------------------

    def begin_hold(self, owner: str, label: str, name: str) -> dict[str, Any]:
        """Keep adaptive scaling and plans of other clients off, until it is ended.

        Returns
        -------
        dict
            Nothing where it has begun; else ``holder``: whose plan is being carried
            out, as of :meth:`acquire`.
        """
        holder = self.holder()
        if holder is not None and holder["client"] != owner:
            return {"holder": told(holder)}
        self.holds.take(owner, label, name)
        self.owners.note(owner)
        return {}

    def end_hold(self, name: str) -> bool:
        """Whether it was still there. The run that it protected ends with it."""
        there = self.holds.give_back(name)
        if there:
            self.runs.end("hold", runs.measured(self.scheduler))
        return there

    def valid_workers_downscaling(
        self, scheduler: Any, workers: list[Any]
    ) -> list[Any]:
        """None may go while a plan or a fit goes on; asked by the scheduler.

        Nor one in which keys are parked.
        """
        if self.holds.there() or self.holder():
            return []
        return [ws for ws in workers if not is_parking(ws.name)]

    # --- moves ------------------------------------------------------------------------

    async def move(
        self,
        token: str,
        workers: Sequence[str],
        ceilings: Sequence[int],
        moves: Sequence[tuple[Sequence[Any], bytes]],
        deadline: float,
    ) -> str:
        """Begin to bring keys to their targets; returns the name of the job.

        ``moves`` are packed keys, each with the targets as bytes of an int64 array of
        indices into ``workers``. ``deadline`` is in seconds from now.
        """
        self._check(token)
        pairs = [
            zip(unpack(packed), array("q", targets), strict=True)
            for packed, targets in moves
        ]
        wanted = []
        # round robin over the collections: X_i and y_i travel one after the other
        for row in zip_longest(*pairs):
            some = [(key, workers[i]) for key, i in filter(None, row)]
            wanted += some
            for key, address in some:
                self.homes.put(key, address)
            if len(wanted) % YIELD < len(pairs):
                await asyncio.sleep(0)
        self._check(token)  # it may have ended in between
        self.homes.begin()
        policy = Placing(wanted, dict(zip(workers, ceilings, strict=True)))
        return self._begin(policy, self._carry_out(policy, deadline))

    async def stay(
        self,
        token: str,
        workers: Sequence[str],
        places: Sequence[tuple[Sequence[Any], bytes]],
    ) -> None:
        """Have Dask's memory manager keep prepared keys on their workers.

        ``places`` are packed keys, each with their workers as :meth:`move` has targets.
        """
        self._check(token)
        for packed, homes in places:
            pairs = zip(unpack(packed), array("q", homes), strict=True)
            for n, (key, i) in enumerate(pairs):
                if n % YIELD == YIELD - 1:
                    await asyncio.sleep(0)
                self.homes.put(key, workers[i])
        self.homes.begin()

    def _check(self, token: str) -> None:
        """Raise unless the caller holds the lease."""
        if self.lease is None or self.lease["token"] != token:
            raise LeaseEndedError(
                "the lease of this call has ended: the scheduler had no sign of its "
                f"client for {self.owners.grace:g} s, or the call has ended already. "
                "Nothing more is done for it. Run the call again"
            )

    async def _carry_out(self, policy: Placing, deadline: float) -> str:
        """The job's task; answers with what went wrong as a whole, or nothing."""
        work = place(self.scheduler, policy, self.manager)
        try:
            await asyncio.wait_for(work, deadline)
        except asyncio.TimeoutError:
            return f"the mover's deadline of {deadline:g} s passed"
        except Exception as error:  # noqa: BLE001, _failed logs it
            return self._failed("mover", error)
        return ""

    def _failed(self, what: str, error: Exception) -> str:
        logger.error("clustertune's %s failed", what, exc_info=error)
        self.scheduler.log_event(NAME, {"action": "failed", "error": repr(error)})
        return f"the {what} failed: {error!r}"

    # --- restarts ---------------------------------------------------------------------

    async def burdens(self, workers: Sequence[str]) -> dict[str, list[int]]:
        """What each of these workers holds, and what only it holds."""
        return await burdens(self.scheduler, workers)

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
        """Begin to restart a worker that loses nothing; returns the name of the job.

        ``collections`` are packed keys of row-aligned ones: pieces of the same rows
        stay together meanwhile. ``ceilings`` are of process memory, by address of those
        workers that may hold what it has; ``wait`` and ``timeout`` in seconds.
        ``parking`` is the pickled ``open_parking`` where no worker may hold it.
        ``resizing`` are the terms of ``Resizing``.
        """
        self._check(token)
        work = Restarting(
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
        return self._begin(work, self._restart(work))

    async def _restart(self, work: Restarting) -> str:
        what = "retire" if work.retire else "restart"
        event = {"action": what, "worker": work.address}
        self.scheduler.log_event(NAME, event | {"state": "began"})
        try:
            problem = await work.run()
        except Exception as error:  # noqa: BLE001, _failed logs it
            problem = self._failed("restart", error)
        if work.seconds is not None:
            self.restarts.append(work.seconds)
        self.scheduler.log_event(
            NAME, event | work.state() | {"state": "ended", "problem": problem}
        )
        return problem

    # --- restarts that wait for a gap -------------------------------------------------

    def schedule(self, terms: Mapping[str, Any]) -> dict[str, Any]:
        """Restart workers once there is a gap; what it waits for, as it is listed."""
        return self.schedules.add(terms)

    def list_schedules(self) -> dict[str, Any]:
        """All that wait and the last that have ended; when findings are from."""
        found = self.findings and self.findings["time"]
        return {"schedules": self.schedules.listed(), "findings": found, "now": time()}

    def cancel_schedule(self, name: str) -> dict[str, Any] | None:
        """End one, now or after the worker whose turn it is; None: there is none."""
        return self.schedules.cancel(name)

    def tell(self, event: Mapping[str, Any]) -> None:
        """To Dask's event log."""
        self.scheduler.log_event(NAME, dict(event))

    # --- data that is let go ----------------------------------------------------------

    async def holdings(self, owner: str, kept: Sequence[Any]) -> list[list[Any]]:
        """Which keys are in memory, and who wants them; but packed keys to be kept."""
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
        """Release keys with a prefix, but for packed ones; as ``holdings.release``.

        Keys that other clients want, too, only if ``others`` is set.
        """
        self._check(token)
        event = {"action": "release", "prefix": prefix, "client": owner}
        keep = set(unpack(kept))
        answer = await release(
            self.scheduler, owner, prefix, keep, others, frozenset(together)
        )
        count, _, names = answer
        self.scheduler.log_event(NAME, event | {"keys": count, "unpublished": names})
        return answer

    def drop(
        self, token: str, owner: str, others: bool, wait: float, timeout: float
    ) -> str:
        """Begin to restart all workers with what they hold; returns the job's name."""
        self._check(token)
        work = Dropping(self.scheduler, owner, others, wait, timeout)
        return self._begin(work, self._drop(work))

    async def _drop(self, work: Dropping) -> str:
        event = {"action": "drop", "client": work.owner}
        try:
            problem = await work.run()
        except Exception as error:  # noqa: BLE001, _failed logs it
            problem = self._failed("restart", error)
        self.scheduler.log_event(NAME, event | work.state() | {"problem": problem})
        return problem

    # --- published names --------------------------------------------------------------

    def note_names(self, owner: str, names: Sequence[str]) -> dict[str, int]:
        """Remember what published names point to; how many keys of each are gone."""
        return self.names.note(owner, names)

    async def point_names(
        self, owner: str, new: Sequence[Any], kept: Mapping[str, str]
    ) -> dict[str, Any]:
        """Have names point to other data, all at once; answers with what hinders it.

        ``new`` are names, packed keys and serialized data; ``kept`` new names for what
        noted ones point to.
        """
        answer = await self.names.point(owner, new, kept)
        if not answer:
            event = {"action": "publish", "names": [name for name, *_ in new]}
            self.scheduler.log_event(NAME, event | {"client": owner})
        return answer

    # --- jobs -------------------------------------------------------------------------

    def _begin(self, work: Placing | Restarting | Dropping, task: Any) -> str:
        """Begin a job; its name."""
        name = uuid4().hex
        self.jobs[name] = Job(work, task)
        return name

    async def progress(self, job: str, token: str, wait: float) -> dict[str, Any]:
        """How far a job is, and once it is finished what went wrong, if anything.

        The answer comes when it has finished, after ``wait`` seconds at the latest.
        """
        self._check(token)
        work, task = self.jobs[job].work, self.jobs[job].task
        await asyncio.wait([task], timeout=min(wait, LONGEST))
        self._check(token)  # it may have ended in between
        # only `close` cancels jobs: these have no result, and the plugin ends
        finished = task.done() and not task.cancelled()
        return work.state() | {
            "finished": finished,
            "error": task.result() if finished else "",
        }

    def stop(self, job: str) -> None:
        """Start no more moves; what is in flight lands, what was prepared is undone."""
        if job in self.jobs:
            self.jobs[job].work.stopped = True

    async def wanted(self, keys: Sequence[Any], owner: str) -> int:
        """How many of packed keys clients other than the owner want, or hold published.

        A data set that is published is wanted by a client of its own.
        """
        count = 0
        for i, key in enumerate(unpack(keys)):
            if i % YIELD == YIELD - 1:
                await asyncio.sleep(0)
            ts = self.scheduler.tasks.get(key)
            if ts is not None:
                count += any(c.client_key != owner for c in ts.who_wants or ())
        return count

    async def claims(self, owner: str, keys: Sequence[Any]) -> dict[str, bytes]:
        """Which packed keys will not be in memory, and which the owner does not want.

        Positions as bytes of int64 arrays. Nothing computes a released key unless a
        graph names it again.
        """
        gone, unwanted = array("q"), array("q")
        client = self.scheduler.clients.get(owner)
        for i, key in enumerate(unpack(keys)):
            if i % YIELD == YIELD - 1:
                await asyncio.sleep(0)
            ts = self.scheduler.tasks.get(key)
            if ts is None or ts.state in ("released", "forgotten"):
                gone.append(i)
            elif client not in (ts.who_wants or ()):
                unwanted.append(i)
        return {"gone": gone.tobytes(), "unwanted": unwanted.tobytes()}

    # --- tasks bound to workers -------------------------------------------------------

    async def pin(self, token: str, keys: Sequence[Any]) -> str:
        """Remember packed keys of new tasks that are going to be bound to workers.

        Returns the name of the set.
        """
        self._check(token)
        bound = await self.bindings.unknown(keys)
        self._check(token)  # it may have ended in between
        return self.bindings.keep(bound)

    async def free_stuck(self, token: str, name: str) -> int:
        """Let those of the tasks run anywhere whose worker is gone or paused."""
        self._check(token)
        return await self.bindings.free_stuck(name)

    async def unpin(self, token: str, name: str) -> None:
        """Let all of them run anywhere from now on."""
        self._check(token)
        await self.bindings.end(name)

    async def in_vain(self, keys: Sequence[Any]) -> list[list[Any]]:
        """What packed keys wait for and no worker has; of how many tasks."""
        return await unmet_of_keys(self.scheduler, unpack(keys))

    # --- the last report --------------------------------------------------------------

    def keep(self, report: str) -> None:
        """Keep a report (JSON) for whoever asks later."""
        if len(report) > MOST_REPORT:
            raise ValueError(f"a report of {len(report):,} characters is not kept")
        self.report = report

    def recall(self) -> str:
        """The last report (JSON), or nothing."""
        return self.report

    # --- the panel --------------------------------------------------------------------

    def keep_facts(self, facts: Mapping[str, Any], diagnosis: bool = False) -> None:
        """Keep what the panel shows besides what the scheduler knows itself.

        What a diagnosis has found is kept for scheduled restarts, too, whatever the
        fewer checks of a call find later.
        """
        self.showing.keep(facts)
        if diagnosis:
            self.findings = self.showing.facts["findings"]

    def page(self) -> dict[str, Any]:
        """What the panel shows now, as of :mod:`clustertune.dashboard.state`."""
        return self.showing.look()


class Job:
    """Work and the task that carries it out; the reference keeps the task alive."""

    def __init__(self, work: Placing | Restarting | Dropping, task: Any):
        self.work = work
        self.task = asyncio.ensure_future(task)


METHODS = frozenset(
    (
        "look",
        "survey",
        "past",
        "acquire",
        "release",
        "is_held",
        "begin_hold",
        "end_hold",
        "move",
        "stay",
        "burdens",
        "work",
        "restart_worker",
        "holdings",
        "release_keys",
        "drop",
        "note_names",
        "point_names",
        "progress",
        "stop",
        "pin",
        "free_stuck",
        "unpin",
        "in_vain",
        "wanted",
        "claims",
        "schedule",
        "list_schedules",
        "cancel_schedule",
        "keep",
        "recall",
        "keep_facts",
        "page",
    )
)
