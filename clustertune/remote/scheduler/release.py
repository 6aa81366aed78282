"""Release data on request: the keys of a prefix, or all data of workers.

Workers whose data is released restart at once, without their data and tasks. The scans
take time that grows with all keys, in short turns of the event loop. They run only
before data is destroyed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import (
    AsyncIterator,
    Collection,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from time import monotonic, time
from typing import Any

from distributed.core import Status
from distributed.versions import get_versions

from clustertune.core.rules import NO_NANNY
from clustertune.remote.keys import KeyRange, Places, batches, drained, in_turns
from clustertune.remote.scheduler.bindings import bound_to, follow
from clustertune.remote.scheduler.fits import is_training
from clustertune.remote.scheduler.nanny import (
    GRACE,
    NANNY_TIMEOUT,
    POLL_INTERVAL,
    NannyWatch,
    Refused,
    call,
    expecting,
    silent_nannies,
)
from clustertune.remote.scheduler.state import (
    COMING,
    begun_tasks,
    identity,
    is_computable,
    is_parking,
    other_versions,
    waits_for_gone,
)

logger = logging.getLogger("distributed.clustertune")

MAX_GROUPS = 5000  # of prefix and owners that are reported
REASON = "released"
MESSAGE = "Its data was released on purpose, by clustertune. Load or compute it again."
CANCELLED = "Its worker was restarted on purpose, by clustertune. Compute it again."


async def wanted_tasks(
    scheduler: Any, kept: Container[Any]
) -> AsyncIterator[tuple[Any, frozenset[str]]]:
    """Yield tasks whose results clients want, and these clients."""
    todo = list(scheduler.tasks.values())
    todo.reverse()  # drained from its end
    async for ts in in_turns(drained(todo)):
        if ts.who_wants and ts.key not in kept:
            yield ts, frozenset(c.client_key for c in ts.who_wants)


async def holdings(
    scheduler: Any, owner: str, kept: Sequence[KeyRange]
) -> list[list[Any]]:
    """Return data in memory except packed keys, by prefix and the clients that want it.

    Returns
    -------
    list of [prefix, keys, nbytes, scattered, mine, others]
        ``others`` are clients besides the owner, also Dask's clients of names, such as
        ``published-train``. Tasks without a result add clients, and no keys.
    """
    found: dict[tuple[str, frozenset[str]], list[int]] = {}
    async for ts, wanting in wanted_tasks(scheduler, await Places.of([kept])):
        there = ts.state == "memory"
        if not (there or ts.state in COMING):
            continue
        entry = (str(ts.prefix.name), wanting)
        if entry not in found and len(found) >= MAX_GROUPS:
            entry = ("", wanting)
        numbers = found.setdefault(entry, [0, 0, 0])
        numbers[0] += there
        numbers[1] += ts.nbytes if there else 0
        numbers[2] += there and not is_computable(ts)
    return [
        [prefix, *numbers, owner in wanting, sorted(wanting - {owner})]
        for (prefix, wanting), numbers in found.items()
    ]


async def release(
    scheduler: Any, owner: str, prefix: str, kept: Sequence[KeyRange]
) -> tuple[int, int]:
    """Release the keys of a prefix that only the owner wants, except packed keys.

    Tasks that are still to run keep their inputs until they have run. Futures of the
    released keys are cancelled. Returns the number of released keys, and their bytes.
    """
    nbytes = 0
    going: list[Any] = []
    async for ts, wanting in wanted_tasks(scheduler, await Places.of([kept])):
        if ts.state == "memory" and ts.prefix.name == prefix and wanting == {owner}:
            nbytes += ts.nbytes
            going.append(ts.key)
    count = len(going)
    await release_for(scheduler, {owner: going})
    return count, nbytes


async def release_for(
    scheduler: Any, going: Mapping[str, list[Any]], reason: str = MESSAGE
) -> None:
    """Release keys by client, and drain the lists; their futures are cancelled."""
    for client, keys in going.items():
        async for some in in_turns(batches(drained(keys))):
            if client not in scheduler.clients:  # it has left meanwhile
                break
            scheduler.client_releases_keys(
                keys=some, client=client, stimulus_id=f"clustertune-release-{time()}"
            )
            message = {"op": "cancelled-keys", "keys": some}
            scheduler.report(message | {"reason": REASON, "msg": reason}, client=client)


# --- published names ------------------------------------------------------------------


def unpublish_all(scheduler: Any) -> None:
    """Remove all published names that hold keys, before all keys are lost."""
    datasets = getattr(scheduler.extensions.get("publish"), "datasets", {})
    for name in [name for name, entry in datasets.items() if entry["keys"]]:
        del datasets[name]


# --- restarts at once -----------------------------------------------------------------


class DataDrop:
    """A restart of workers at once, without their data and tasks.

    Nothing changes until the data is counted. Unless ``others`` is set, data and tasks
    that other clients want stop it. The workers must be back within ``timeout``
    seconds.

    Parameters
    ----------
    scheduler, owner
        The scheduler, and the client that requests it.
    others
        Whether data and tasks of other clients may be lost.
    workers
        Addresses. None: all workers, which ends parking workers, too.
    wait
        Seconds to wait for running tasks. They are cancelled then.
    parking
        The pickled ``park.act``, which ends former processes.
    """

    def __init__(
        self,
        scheduler: Any,
        owner: str,
        others: bool,
        workers: Collection[str] | None,
        wait: float,
        timeout: float,
        parking: bytes,
    ):
        self.scheduler = scheduler
        self.owner = owner
        self.others = others
        self.addresses = None if workers is None else frozenset(workers)
        self.wait = wait
        self.timeout = timeout
        self.parking = parking
        self.stopped = False
        self.began = False  # from then on the data is lost
        #: keys of tasks that are bound to the workers, by address
        self.bound: dict[str, set[Any]] = {}
        self.doing = "waiting for tasks to end"
        self.keys = 0  # that are lost
        self.nbytes = 0
        self.cancelled = 0  # tasks
        self.event = {"action": "drop", "client": owner}  # fields of logged events

    def has_counted(self, address: str) -> bool:
        """Whether the lost keys of a worker are counted here."""
        named = self.addresses is not None and address in self.addresses
        return self.clears_cluster() or (self.began and named)

    def clears_cluster(self) -> bool:
        """Whether it restarts all workers now, after it has counted their keys."""
        return self.began and self.addresses is None

    def _workers(self) -> list[Any]:
        there = self.scheduler.workers.values()
        named = self.addresses
        return [ws for ws in there if named is None or ws.address in named]

    async def run(self) -> str:
        """Restart the workers; return a refusal, the missing workers, or ""."""
        try:
            await self._refuse_silent()
            await self._wait_for_tasks()
            if self.addresses is not None:
                self.bound = await bound_to(self.scheduler, self.addresses)
            await self._refuse_silent()
            await self._count()
            self._refuse()  # at once after the count: nothing may arrive meanwhile
        except Refused as error:
            return str(error)
        self.doing = "restarting workers"
        workers = self._workers()
        parked = [ws for ws in workers if is_parking(ws.name)]
        hosts = {ws.host for ws in parked}
        near = [ws for ws in self.scheduler.workers.values() if ws.host in hosts]
        ours = get_versions()["packages"]
        nannies = {w.nanny for w in near if w.nanny and not other_versions(w, ours)}
        with expecting(self.scheduler, workers):
            return await self._replace(workers, nannies)

    async def _replace(self, workers: Collection[Any], nannies: Collection[Any]) -> str:
        """End the processes, and wait for the next ones; return the missing workers."""
        before = {identity(ws) for ws in workers if not is_parking(ws.name)}
        end = monotonic() + self.timeout
        self.began = True
        await self._end_processes(workers)
        # a former process may not end by itself
        await asyncio.gather(*map(self._end_former, nannies))
        watches = {n: NannyWatch(self.scheduler, str(n)) for n, _ in before}
        while missing := before - self._running(workers):
            silent = await asyncio.gather(*(watches[n].is_silent() for n, _ in missing))
            if monotonic() > end or all(silent):
                some = ", ".join(sorted(str(nanny) for nanny, _ in missing)[:3])
                return f"{len(missing)} workers did not come back, of nannies {some}"
            await asyncio.sleep(POLL_INTERVAL)
        await self._follow(workers)
        return ""

    async def _end_former(self, nanny: str) -> None:
        wanted = {"what": "end", "at_once": True}
        try:
            _, why = await call(self.scheduler, nanny, self.parking, wanted, GRACE)
        except Exception as error:  # noqa: BLE001, such as of a class that it lacks
            why = repr(error)
        if why:
            text = "clustertune: the nanny %s did not end a former process: %s"
            logger.warning(text, nanny, why)

    def _running(self, former: Collection[Any]) -> set[Any]:
        """Return the identities of new processes that run."""
        return {
            identity(ws)
            for ws in self.scheduler.workers.values()
            if ws not in former and ws.status is Status.running
        }

    async def _end_processes(self, workers: Collection[Any]) -> None:
        scheduler, name = self.scheduler, f"clustertune-drop-{time()}"
        try:
            if self.addresses is None:
                unpublish_all(scheduler)
                await scheduler.restart(
                    timeout=NANNY_TIMEOUT, wait_for_workers=False, stimulus_id=name
                )
                return
            tasks = [ts for ws in workers for ts in ws.processing]
            self.cancelled = await cancel(scheduler, tasks)
            for ws in workers:
                if not ws.nanny:
                    await scheduler.remove_worker(ws.address, stimulus_id=name)
            await scheduler.restart_workers(
                [ws.address for ws in workers if ws.nanny],
                timeout=NANNY_TIMEOUT,
                wait_for_workers=False,
                on_error="return",
                stimulus_id=name,
            )
        except asyncio.TimeoutError:
            logger.warning("not all processes ended within %g s", NANNY_TIMEOUT)

    async def _follow(self, workers: Collection[Any]) -> None:
        """Bind tasks to the new addresses; otherwise they could never be computed."""
        there = {identity(ws): ws.address for ws in self.scheduler.workers.values()}
        for ws in workers:
            former, address = ws.address, there.get(identity(ws), ws.address)
            if former in self.bound and former != address:
                await follow(self.scheduler, self.bound[former], {former}, address)

    async def _refuse_silent(self) -> None:
        self._refuse()
        nannies = [ws.nanny for ws in self._workers()]
        if silent := await silent_nannies(self.scheduler, nannies):
            raise Refused(silent)

    def _refuse(self) -> None:
        alone = [
            ws.address
            for ws in self._workers()
            if not ws.nanny and not is_parking(ws.name)
        ]
        if alone:
            raise Refused(f"{alone[0]}: {NO_NANNY}")
        if self.stopped:
            raise Refused("stopped")

    async def _wait_for_tasks(self) -> None:
        end = monotonic() + self.wait
        while monotonic() < end and any(begun_tasks(ws) for ws in self._workers()):
            if self.stopped:
                raise Refused("stopped")
            await asyncio.sleep(POLL_INTERVAL)

    async def _count(self) -> None:
        """Count the data that will be lost; the plan may be old."""
        if self.addresses is not None:
            await self._count_named()
            return
        async for ts, wanting in wanted_tasks(self.scheduler, ()):
            there = ts.state == "memory"
            if not (there or ts.state in COMING):
                continue
            self._refuse_others(wanting)
            self.keys += there
            self.nbytes += ts.nbytes if there else 0
        for client in self.scheduler.clients.values():  # which may want more by now
            if any(ts.state in ("memory", *COMING) for ts in client.wants_what):
                self._refuse_others({client.client_key})

    async def _count_named(self) -> None:
        """Count keys that only the named workers have, and that are not computed."""
        workers = self._workers()
        ending, fates = set(workers), dict[Any, bool]()
        held: Any = (ts for ws in workers for ts in list(ws.has_what))
        while held:
            async for ts in in_turns(_judged(held, ending, fates)):
                if ts.who_has and fates.get(ts):
                    self._refuse_wanted(ts)
                    self.keys += 1
                    self.nbytes += ts.nbytes
            # keys that have come meanwhile
            held = [ts for ws in workers for ts in ws.has_what if ts not in fates]
        for ts in _waiting_for(ts for ws in workers for ts in ws.processing):
            self._refuse_wanted(ts)

    def _refuse_wanted(self, ts: Any) -> None:
        self._refuse_others({c.client_key for c in ts.who_wants or ()})

    def _refuse_others(self, wanting: Collection[str]) -> None:
        if not self.others and set(wanting) - {self.owner}:
            other = min(set(wanting) - {self.owner})
            raise Refused(f"client {other} wants data or tasks that would be lost")

    def state(self) -> dict[str, Any]:
        """Return the progress as plain data."""
        return {
            "doing": self.doing,
            "keys": self.keys,
            "nbytes": self.nbytes,
            "cancelled": self.cancelled,
            "began": self.began,
        }


def _judged(
    tasks: Iterable[Any], workers: Collection[Any], fates: dict[Any, bool]
) -> Iterator[Any]:
    """Judge whether Dask cannot compute results again after the end of workers.

    Yields tasks and their inputs. The last time that a task is yielded, ``fates`` has
    its answer. Tasks that have one already are not yielded.
    """
    for ts in tasks:
        todo = [ts]
        while todo:
            one = todo[-1]
            if one in fates:
                todo.pop()
                continue
            if one.state in COMING or (one.who_has and not one.who_has <= workers):
                fates[one] = False
            elif one.state == "erred" or not is_computable(one):
                fates[one] = True
            elif new := [d for d in one.dependencies if d not in fates]:
                todo += new
            else:
                fates[one] = any(fates[d] for d in one.dependencies)
            yield one


def _waiting_for(tasks: Iterable[Any]) -> list[Any]:
    """Return these tasks, and the tasks that wait for them.

    It does not pause: what others add meanwhile would be cancelled, too.
    """
    found = dict.fromkeys(tasks)
    todo = list(found)
    while todo:
        new = [d for d in todo.pop().dependents if d.state in COMING and d not in found]
        found |= dict.fromkeys(new)
        todo += new
    return list(found)


def failed_fits(scheduler: Any, worker: Any) -> list[Any]:
    """Return training tasks without a result of fits that have lost a member.

    Only fits that train on this worker count. A member has erred, or is bound to a
    worker that has left.
    """
    found: set[Any] = set()
    for ts in list(worker.processing):
        if not is_training(ts):
            continue
        wanted = (key for cs in ts.who_wants or () for key in cs.wants_what)
        fit = [t for t in wanted if t.prefix is ts.prefix and is_training(t)]
        if any(t.state == "erred" or waits_for_gone(scheduler, t) for t in fit):
            found.update(t for t in fit if t.state in COMING)
    return list(found)


async def cancel(scheduler: Any, tasks: Iterable[Any]) -> int:
    """Cancel tasks and what waits for them; return the number of cancelled futures.

    Only wanted keys are released. Dask ends the connection of a client that cancels
    another key.
    """
    going: dict[str, list[Any]] = {}
    count = 0
    async for ts in in_turns(_waiting_for(tasks)):
        count += bool(ts.who_wants)
        for client in ts.who_wants or ():
            going.setdefault(client.client_key, []).append(ts.key)
    await release_for(scheduler, going, CANCELLED)
    return count
