"""Actions of the live cluster on its workers: scale, adapt, restart, resize, trim."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from distributed import Client

from clustertune.actions.cluster.lease import Lease
from clustertune.core import environment
from clustertune.core.model import (
    Bounds,
    Drop,
    Key,
    MeasuredMemory,
    Notify,
    Restart,
    Result,
    Trim,
    WorkerSize,
    attach_result,
)
from clustertune.core.wording import bytes_text, names_text, plural, printable
from clustertune.errors import NoWorkersError
from clustertune.integrations import managers
from clustertune.monitor import inquiry, monitor
from clustertune.planner import machines
from clustertune.remote import keys, ship
from clustertune.remote.worker import park, process

logger = logging.getLogger("clustertune")

POLL = 0.2  # seconds between two looks for workers
JOB_SHARE = 0.9  # of the remaining time; the rest is for the answer and the report


class WorkerActions:
    """The actions on workers, under the lease of a call.

    Attributes
    ----------
    bounds
        Previous bounds of adaptive scaling, if an action changed them; else None.
    """

    def __init__(self, lease: Lease):
        self.client = lease.client
        self._lease = lease
        self.bounds: tuple[int, float] | None = None
        self._packed: tuple[Any, list[Any]] = ((), [])  # of the restart before this one

    # --- how many ---------------------------------------------------------------------

    async def refuse_scale(self, wanted: int, workers: Mapping[str, Any]) -> None:
        """Refuse a number of workers that the cluster cannot have.

        Raises ``NoWorkersError`` if the cluster cannot scale up, or has more workers;
        the text has a fix.
        """
        there = _to_stay(workers)
        if wanted == there:
            return
        if wanted < there:
            raise NoWorkersError(
                f"n_workers={wanted}, but the cluster has {there}: prepare only adds "
                "workers. To train on fewer, give workers=[...]"
            )
        reason = managers.obstacle(self.client.cluster, wanted)
        if self.client.cluster is None:
            snapshot, _ = await monitor.look(self.client, [])
            reason = machines.start_by_hand(snapshot, wanted - there)
        if reason is not None:
            raise NoWorkersError(f"n_workers={wanted}: {reason}")

    async def scale(self, n_workers: int, notify: Notify) -> Result:
        """Request workers from the cluster object and wait until they run.

        Raises ``NoWorkersError`` if the cluster cannot scale, or workers did not start
        in time.
        """
        cluster = self.client.cluster
        adapter = managers.find(cluster)
        reason = managers.obstacle(cluster, n_workers)
        if adapter is None or reason is not None:
            raise NoWorkersError(f"n_workers={n_workers}: {reason}")
        await adapter.scale(cluster, n_workers, await self._there())
        while (there := await self._there()) < n_workers:
            notify(f"{there} of {n_workers} workers run", there / n_workers)
            if self._lease.remaining() < 1:
                raise NoWorkersError(
                    f"requested {n_workers} workers, {there} run: "
                    f"{await adapter.state(cluster)}; see the workers' logs, or "
                    "give a longer timeout"
                )
            await asyncio.sleep(POLL)
        return Result(nbytes=0, count=there)

    async def _there(self) -> int:
        identity = await monitor.identify(self.client)
        return _to_stay(identity["workers"])

    async def adapt(self, bounds: Bounds, notify: Notify) -> Result:  # noqa: ARG002
        """Change the bounds of adaptive scaling; keep the previous ones."""
        cluster = self.client.cluster
        was = await managers.bounds(cluster)
        if not isinstance(was, tuple):
            kind = type(cluster).__name__
            return Result(not_done=f"{kind} does not scale adaptively")
        await managers.adapt(cluster, bounds.minimum, bounds.maximum)
        if self.bounds is None:
            self.bounds = was
        return Result(nbytes=0, details=_bounds_text(*was))

    async def put_bounds_back(self) -> None:
        """Restore the bounds from before :meth:`adapt`.

        A failure is logged only, so it hides no error of the call.
        """
        was, self.bounds = self.bounds, None
        if was is None:
            return
        try:
            await managers.adapt(self.client.cluster, *was)
        # managers raise errors of their own
        except Exception as error:  # noqa: BLE001
            text = _bounds_text(*was)
            logger.warning("adaptive scaling has other bounds (%r); %s", error, text)

    # --- restart ----------------------------------------------------------------------

    async def restart(self, restart: Restart, notify: Notify) -> Result:
        """Have the scheduler plugin restart a worker; a cancelled restart is undone.

        The cluster object gets a new size, too. Otherwise it would start the worker
        with the old size again.
        """
        result, back = await self._restart(restart, notify)
        if restart.size is None or not back:
            return result
        managers.resized(self.client.cluster, restart.id, restart.size)
        await monitor.look(self.client, [])  # approves the new process for code
        other = await _differences(self.client, back, restart.size)
        undone = "; ".join(filter(None, [result.not_done, other]))
        details = f"{result.details}; {restart.size}"
        return replace(result, not_done=undone, details=details)

    async def _restart(self, restart: Restart, notify: Notify) -> tuple[Result, str]:
        """Return the result, and the address of a resized process."""
        identity = await monitor.identify(self.client)
        ids = {a: monitor.worker_id(a, e) for a, e in identity["workers"].items()}
        others = {a: i for a, i in ids.items() if i in restart.process_limits}
        verb = "closing" if restart.retire else "restarting"
        what = f"{verb} worker {names_text([restart.id])}"
        away = () if restart.retire else (restart.id,)
        ended: list[dict[str, Any]] = []
        refused = restart.address in monitor.known(self.client).refused
        before = None
        if not restart.retire:
            before = await inquiry.process_memory(self.client, restart.address)
        with managers.expecting(self.client.cluster, away):
            job = self._lease.job(
                "restart_worker",
                lambda state: notify(f"{what}: {state['doing']}", None),
                ended,
                address=restart.address,
                collections=self._pack(restart.collections),
                workers=list(others),
                ceilings=[restart.process_limits[i] for i in others.values()],
                wait=restart.wait,
                timeout=JOB_SHARE * max(0.0, self._lease.remaining()),
                retire=restart.retire,
                parking=b"" if refused else ship.pickled(park.act),
                resizing=_resize_terms(restart),
                end_tasks=restart.end_tasks,
            )
            try:
                state = await job
            except BaseException as error:
                if ended:
                    last = self._restarted(restart, ended[0], ids, before)
                    attach_result(error, last)
                raise
        if restart.retire and not state["error"]:
            await managers.retired(self.client.cluster, restart.id)
        back = state["address"] if state["resized"] else ""
        result = self._restarted(restart, state, ids, before)
        return await self._measured(result, state), back

    async def _measured(self, result: Result, state: Mapping[str, Any]) -> Result:
        """Add the memory of the new process after its keys returned."""
        if not state["address"]:
            return result
        try:
            nbytes = await inquiry.process_memory(self.client, state["address"])
        except BaseException as error:
            attach_result(error, result)
            raise
        measured = tuple(replace(m, after=nbytes) for m in result.measured)
        return replace(result, measured=measured)

    def _restarted(
        self,
        restart: Restart,
        state: Mapping[str, Any],
        ids: Mapping[str, str | int],
        before: int | None,
    ) -> Result:
        """Return the result of a restart from the last state of its job."""
        if not state["finished"]:
            continues = f"the scheduler continues after this call: {state['doing']}"
            return Result(nbytes=state["nbytes"], not_done=continues, count=0)
        way = "away" if restart.retire else "away and back"
        if state["direct"]:
            way = "to its new process"
        elif state["detour"]:
            why = printable(state["detour"], longest=200)
            way += f" (because its nanny cannot run two processes: {why})"
        said = f"{state['keys']:,} keys moved {way}; lost {state['lost']:,}"
        if ended := state["ended_tasks"]:
            said += f"; ended {plural(ended, 'task')}"
        if dropped := state["unsendable"]["dropped"]:
            said += (
                f"; dropped {plural(dropped, 'key')} of failed tasks, such as open "
                "sockets, which cannot be sent"
            )
        undone = "; ".join(filter(None, [state["error"], *_missing(state, ids)]))
        finished = bool(state["address"]) or (restart.retire and not state["error"])
        measured = MeasuredMemory(
            worker=restart.id, before=before, after=None, keys=state["keys"]
        )
        return Result(
            nbytes=state["nbytes"],
            not_done=undone,
            details=said,
            count=int(finished),
            lost=state["lost"],
            unchanged=not finished and state["unchanged"],
            measured=() if restart.retire else (measured,),
        )

    def _pack(self, collections: tuple[tuple[Key, ...], ...]) -> list[Any]:
        """Pack the keys once for successive restarts."""
        if self._packed[0] is not collections:
            self._packed = collections, [keys.pack(names) for names in collections]
        return self._packed[1]

    async def drop(self, drop: Drop, notify: Notify) -> Result:
        """Restart workers at once; cancelled while it waits, it loses nothing."""
        away = tuple(drop.workers.values())
        with managers.expecting(self.client.cluster, away):
            state = await self._lease.job(
                "restart_without_data",
                lambda state: notify(str(state["doing"]), None),
                owner=self.client.id,
                others=drop.include_other_clients,
                workers=None if drop.all else list(drop.workers),
                parking=ship.pickled(park.act),
                wait=drop.wait,
                timeout=JOB_SHARE * max(0.0, self._lease.remaining()),
            )
        if state["error"]:
            # The keys were counted before the restart. They are lost once it has begun.
            unchanged = not state["began"]
            return Result(
                nbytes=0,
                not_done=printable(state["error"], longest=500),
                count=0 if unchanged else None,
                lost=0 if unchanged else state["keys"],
                unchanged=unchanged,
            )
        details = (
            f"{plural(state['keys'], 'key')} ({bytes_text(state['nbytes'])}) dropped"
        )
        if cancelled := state["cancelled"]:
            details += f"; {plural(cancelled, 'task')} cancelled"
        return Result(
            nbytes=0,
            details=details,
            count=len(drop.workers),
            lost=state["keys"],
        )

    # --- memory -----------------------------------------------------------------------

    async def trim(self, trim: Trim, notify: Notify) -> Result:  # noqa: ARG002
        """Have workers collect garbage and return unused memory to their hosts."""
        approved = monitor.known(self.client).addresses
        answers = await ship.on_workers(
            self.client,
            process.trim,
            [a for a in trim.workers if a in approved],
            timeout=monitor.PATIENCE,
        )
        mute = trim.workers.keys() - approved
        undone = [f"{len(mute)} gave no or other versions"] if mute else []
        said, measured = [], []
        for address, answer in answers.items():
            id = trim.workers[address]
            who = names_text([id])
            if isinstance(answer, BaseException):
                undone.append(f"worker {who}: {printable(repr(answer), longest=200)}")
                continue
            before, after, asked = answer
            measured.append(MeasuredMemory(worker=id, before=before, after=after))
            text = f"worker {who}: {bytes_text(before)} to {bytes_text(after)}"
            said.append(text if asked else f"{text} (no malloc_trim there)")
        return Result(
            nbytes=0,
            not_done="; ".join(undone),
            details="; ".join(said),
            count=len(said),
            measured=tuple(measured),
        )


def _missing(state: Mapping[str, Any], ids: Mapping[str, str | int]) -> Iterator[str]:
    """Yield the numbers of lost and recomputed keys of a restart, with reasons."""
    if lost := state["lost"]:
        ended = [ids.get(address, address) for address in state["ended"]]
        why = f" with worker {names_text(ended)}, which ended meanwhile"
        yield f"lost {lost:,} keys{why if ended else ''}"
    if again := state["again"]:
        yield f"{plural(again, 'key')} recomputed, because their workers ended"
    if again := state["unsendable"]["recomputed"]:
        yield f"{plural(again, 'key')} recomputed, because they could not be sent"


def _to_stay(workers: Mapping[str, Mapping[str, Any]]) -> int:
    """Count the workers that remain; paused workers do."""
    states = [w["status"] for w in workers.values()]
    return states.count("running") + states.count("paused")


def _bounds_text(least: int, most: float) -> str:
    text = 'float("inf")' if math.isinf(most) else f"{most:g}"
    line = f"cluster.adapt(minimum={least}, maximum={text})"
    return f"{line} restores the previous bounds; so does the end of a `with` block"


def _resize_terms(restart: Restart) -> dict[str, Any] | None:
    """The arguments of ``remote.scheduler.nanny.Resizing``; None: the size stays."""
    size = restart.size
    if size is None:
        return None
    wanted = {"nthreads": size.nthreads, "memory_limit": size.memory_limit}
    line, most = restart.lowered_limits
    return {
        "change": ship.pickled(process.change),
        "settle": ship.pickled(process.settle),
        "wanted": wanted | {"env": dict(size.env) or None},
        "line": line,
        "most": most,
    }


async def _differences(client: Client, address: str, size: WorkerSize) -> str:
    """Describe how a restarted worker differs from its requested size."""
    answers = await ship.on_workers(
        client,
        process.started_with,
        [address],
        timeout=monitor.PATIENCE,
        names=list(size.env),
    )
    found = answers[address]
    if isinstance(found, BaseException):
        text = printable(repr(found), longest=200)
        return f"the worker did not report its size: {text}"
    wanted: Mapping[str, Any] = {
        "threads": (size.nthreads, found["nthreads"]),
        "memory limit": (size.memory_limit, found["memory_limit"]),
    }
    wrong = [
        printable(f"{name} is {has!r}, not {want!r}", longest=200)
        for name, (want, has) in wanted.items()
        if want is not None and has != want
    ]
    other = {k: v for k, v in size.env.items() if found["env"].get(k) != v}
    wrong += [f"{variable} was not set" for variable in environment.text(other)]
    return "; ".join(wrong)
