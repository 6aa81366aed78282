"""The live cluster: the port through which public calls read and change a cluster.

It opens the cluster, looks, and moves or releases keys. The functions of ``workers``
and the class :class:`CallData` carry out the other actions.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from distributed import Client

from clustertune.actions.cluster import workers as on_workers
from clustertune.actions.cluster.data import CallData, refuse_gone
from clustertune.actions.cluster.lease import POLL, Lease
from clustertune.collections import contents, inputs
from clustertune.core.model import (
    Bounds,
    CollectionInfo,
    Drop,
    Goal,
    Key,
    Load,
    Moves,
    Notify,
    Rechunk,
    Release,
    Result,
    Snapshot,
    Trim,
    View,
    WorkerEnd,
    attach_result,
)
from clustertune.core.wording import bytes_text, names_text, plural, printable
from clustertune.errors import NoWorkersError
from clustertune.integrations import managers
from clustertune.monitor import inquiry, monitor
from clustertune.planner import machines
from clustertune.planner.layouts import home_workers
from clustertune.remote import keys

#: statuses of workers that can be restarted, or that another plan restarts
RESTARTABLE = ("running", "paused", "closing_gracefully")


@dataclass(frozen=True, kw_only=True)
class LookOptions:
    """Optional facts of a look; the time for some grows with all keys."""

    held_data: bool = False  # unreplicated keys of each worker, and past runs
    least_memory: bool = False  # the least memory that each process has had
    holdings: bool = False  # keys in memory, and the clients that hold them
    kept: tuple[Key, ...] = ()  # keys that are not listed in holdings
    values: bool = False  # the values of the data that the workload depends on
    task_seconds: float = math.inf  # for tasks that count rows of spilled partitions


class LiveCluster:
    """The cluster of a client, and the ``data`` of a call.

    ``goal`` is the request of the user, ``remaining`` returns the seconds that remain
    for the call, and ``options`` has what each look reads in addition.
    """

    def __init__(
        self,
        client: Client,
        given: inputs.Inputs,
        goal: Goal,
        remaining: Callable[[], float],
        *,
        options: LookOptions = LookOptions(),
    ):
        self.client = client
        self.goal = goal
        self._lease = Lease(client, remaining)
        self.data = CallData(self._lease, given)
        self.remaining = remaining
        self._bounds: managers.Bounds | None = None  # before an action changed them
        self._packed: tuple[Any, list[Any]] = ((), [])  # keys of the last restart
        self.options = options
        self._looked = False
        self._computes = True  # some worker runs, or may join

    # --- begin ------------------------------------------------------------------------

    async def open(
        self,
        workers: Sequence[str | int] | None,
        *,
        needs: Collection[str] = ("running",),
    ) -> None:
        """Check that the request is possible, and that code may be sent.

        Some worker must have one of the statuses in ``needs``, unless that is empty or
        the goal starts the first one.
        Raises ``NoWorkersError``, ``VersionMismatchError`` or
        ``ValueError`` if the call is not possible; nothing was changed.
        """
        identity = await monitor.identify(self.client)
        statuses = {w["status"] for w in identity["workers"].values()}
        if needs and statuses.isdisjoint(needs):
            if statuses or not await self._starts_workers():
                raise NoWorkersError(self._no_worker(identity, statuses))
            self._computes = False  # until the first one runs
        else:
            self._computes = _can_compute(statuses)
        entries = identity["workers"].items()
        known = {a: monitor.worker_id(a, entry) for a, entry in entries}
        # the goal of a finished call has the ids of its workers, which may have left
        wanted = self.goal.workers if workers is None else _named(workers, known)
        await monitor.install_plugin(self.client, identity)
        if isinstance(self.goal.n_workers, int):
            n_workers, there = self.goal.n_workers, identity["workers"]
            await on_workers.refuse_scale(self.client, n_workers, there)
        self._lease.opened = True
        self.goal = replace(self.goal, workers=wanted)

    async def _starts_workers(self) -> bool:
        """Whether the goal starts workers on a cluster that has none.

        An adaptive cluster starts workers for tasks, so this call requests the first.
        """
        adapter = managers.find(self.client.cluster)
        if adapter.obstacle(1) is not None:
            return False
        bounds = await adapter.bounds()
        adaptive = isinstance(bounds, tuple) and bounds[1] >= 1
        if self.goal.n_workers is None and adaptive and tuple(self.data.given):
            self.goal = replace(self.goal, n_workers="adaptive")
        return self.goal.n_workers is not None

    def _no_worker(self, identity: Mapping[str, Any], statuses: Collection[str]) -> str:
        """Explain why no task can run, with a fix."""
        shown = printable(", ".join(sorted(statuses))) or "none"
        if "paused" in statuses:
            fix = (
                "their memory is full. Restart them, which keeps their data: "
                "clustertune.restart_workers(client), or `clustertune restart`"
            )
        elif self.client.cluster is None:
            wanted = self.goal.n_workers
            empty = Snapshot(time=0.0, scheduler=identity["address"], workers=())
            missing = wanted if isinstance(wanted, int) else 1
            fix = machines.start_by_hand(empty, missing)
        else:
            fix = (
                "start one with client.cluster.scale(1); if workers are starting, run "
                "client.wait_for_workers(1)"
            )
        return (
            f"the cluster {printable(identity['address'])} has no running worker "
            f"(workers: {shown}); {fix}"
        )

    def lease(
        self,
        label: str,
        notify: Notify,
        patience: float = math.inf,
        despite_holds: bool = False,
    ) -> AbstractAsyncContextManager[None]:
        """Hold the cluster's lease; wait ``patience`` seconds for another plan."""
        return self._lease.held(label, notify, patience, despite_holds)

    # --- look -------------------------------------------------------------------------

    async def look(self, notify: Notify) -> View:
        """Read cluster and data; wait for submitted tasks first."""
        data = self.data
        collections, futures = await data.describe()
        labels = {c.label: c.keys for c in collections}
        if not self._looked:
            waiting = [f for f in futures if f.status in ("pending", "lost")]
            await refuse_gone(self.client, waiting)
        if self._computes:
            await data.computing.settle(futures, notify, "loading", labels)
        if self._looked:  # actions followed that look
            await inquiry.refresh_memory(self.client)
        self._looked = True
        snapshot, seen = await monitor.look(self.client, collections)
        statuses = (w.status for w in snapshot.workers)
        self._computes = _can_compute(statuses, may_join=self._computes)
        while self._computes and any(_is_missing_partitions(m) for m in seen):
            # A worker ended. Its keys are recomputed, unless the scheduler has
            # forgotten their tasks.
            await refuse_gone(self.client, futures)
            await asyncio.sleep(POLL)
            await data.computing.settle(futures, notify, "loading", labels)
            snapshot, seen = await monitor.look(self.client, collections)
        view = await self._read(snapshot, seen)
        runs = None
        if self.options.held_data:
            snapshot = await inquiry.with_held_data(self.client, snapshot)
            runs = await inquiry.past_runs(self.client)
        if self.options.least_memory:
            snapshot = await inquiry.with_least_memory(self.client, snapshot)
        if self.options.holdings:
            holdings = await inquiry.holdings(self.client, self.options.kept)
            snapshot = replace(snapshot, key_groups=holdings)
        return replace(view, snapshots=(snapshot,), runs=runs)

    async def _read(self, snapshot: Snapshot, seen: tuple[CollectionInfo, ...]) -> View:
        """Add the rows of partitions, and the values that the workload depends on."""
        data, workers = self.data, [w.address for w in snapshot.workers]
        looks: dict[str, contents.Look] = {}
        if self.options.values and self._computes:
            placed = data.layouts(seen)
            looks = data.values.unread(data.given, placed, self.goal, len(workers))
        runs = any(w.running for w in snapshot.workers)
        # a parking worker has bytes in place of partitions
        parking = {w.address for w in snapshot.workers if w.parking}
        approved = monitor.known(self.client).addresses - parking
        counted, answers = await contents.in_memory(
            self.client,
            seen,
            workers,
            approved=approved,
            looks=looks,
            task_seconds=self.options.task_seconds if runs else 0.0,
        )
        layouts = data.layouts(counted)
        view = View(snapshots=(snapshot,), goal=self.goal, layouts=layouts)
        if not self.options.values:
            return view
        found = await contents.read(
            self.client,
            data.given,
            await data.futures(),
            looks,
            view,
            approved=approved,
            answers=answers,
        )
        return data.values.complete(view, found)

    # --- act --------------------------------------------------------------------------

    async def load(self, load: Load, notify: Notify) -> Result:
        return await self.data.load(load, notify)

    async def rechunk(self, recut: Rechunk, notify: Notify) -> Result:
        return await self.data.rechunk(recut, notify)

    async def scale(self, n_workers: int, notify: Notify) -> Result:
        return await on_workers.scale(self._lease, n_workers, notify)

    async def adapt(self, bounds: Bounds, notify: Notify) -> Result:  # noqa: ARG002
        """Change the bounds of adaptive scaling; keep the previous ones."""

        def note(was: managers.Bounds) -> None:
            self._bounds = self._bounds or was

        return await on_workers.adapt(self.client, bounds, note)

    async def restart(self, args: WorkerEnd, notify: Notify) -> Result:
        if self._packed[0] is not args.collections:  # once for successive restarts
            packed = [keys.pack(names) for names in args.collections]
            self._packed = args.collections, packed
        return await on_workers.restart(self._lease, args, self._packed[1], notify)

    async def drop(self, drop: Drop, notify: Notify) -> Result:
        return await on_workers.drop(self._lease, drop, notify)

    async def trim(self, trim: Trim, notify: Notify) -> Result:  # noqa: ARG002
        return await on_workers.trim(self.client, trim)

    async def move(self, moves: Moves, notify: Notify) -> Result:
        """Have the scheduler plugin move keys; copies in flight always arrive."""
        if moves.copies:
            return await self.data.copy(moves, notify)

        def show(state: Mapping[str, Any]) -> None:
            done = state["done"] / max(1, state["total"])
            notify(f"moving {state['total']} keys", done)

        ended: list[dict[str, Any]] = []
        job = self._lease.job(
            "move",
            show,
            ended,
            workers=list(moves.workers),
            ceilings=list(moves.process_limits),
            moves=[
                (keys.pack(m.keys), np.asarray(m.targets, dtype=np.int64).tobytes())
                for m in moves.moves
            ],
            deadline=max(1.0, self.remaining()),
        )
        try:
            return _moved(await job)
        except BaseException as error:
            if ended and ended[0]["finished"]:
                attach_result(error, _moved(ended[0]))
            raise

    async def release(self, release: Release, notify: Notify) -> Result:  # noqa: ARG002
        """Release keys; their futures are cancelled."""
        count, nbytes = await self._lease.ask(
            "release_keys",
            owner=self.client.id,
            prefix=release.prefix,
            kept=keys.pack(release.excluded),
        )
        text = f"{plural(count, 'key')} ({bytes_text(nbytes)}) released"
        return Result(nbytes=0, details=text, count=count)

    # --- end --------------------------------------------------------------------------

    async def finish(self, view: View) -> None:
        """Complete the prepared collections, and keep them on their workers."""
        places = await asyncio.to_thread(_places, view)
        workers = [w.address for w in view.now.workers]
        placed = {"workers": workers, "ceilings": [0] * len(workers), "moves": places}
        await self._lease.ask("move", **placed, deadline=0)
        if self.goal.workload.group_sizes:
            await self.data.size_groups(view)
        self.data.tell_rows(view)
        if self.goal.n_workers == "adaptive":
            await self.put_bounds_back()

    @property
    def lost(self) -> Mapping[str, tuple[int, int]] | None:
        """Lost and coming keys of workers that ended, by address; None: unknown."""
        return self._lease.lost

    async def put_bounds_back(self) -> None:
        """Restore the bounds of adaptive scaling that :meth:`adapt` has changed."""
        was, self._bounds = self._bounds, None
        if was is not None:
            await on_workers.put_bounds_back(self.client, was)

    async def keep(self, report: str, facts: Mapping[str, Any] | None = None) -> None:
        """Store the report, and the facts of the dashboard page, on the scheduler."""
        await self._lease.quietly("report", text=report, facts=facts)


def _moved(state: Mapping[str, Any]) -> Result:
    """Return the result of a move from its last state."""
    reasons = [f"{n} keys: {reason}" for reason, n in state["left"].items()]
    if state["waiting"]:
        reasons.append(f"{state['waiting']} keys: the move was stopped before them")
    counted = state["done"] + sum(state["left"].values()) + state["waiting"]
    if in_flight := state["total"] - counted:
        reasons.append(f"{in_flight} keys: on their way, so they may arrive later")
    reasons += [state["error"]] if state["error"] else []
    return Result(
        nbytes=state["nbytes"],
        not_done="; ".join(reasons),
        count=state["done"],
    )


def _places(view: View) -> list[tuple[Any, bytes]]:
    """Return packed keys of loaded, aligned data, and the index of each worker."""
    found = []
    for layout in view.layouts:
        if not (layout.loaded and layout.aligned):
            continue
        home = home_workers(layout, len(view.now.workers))
        known = np.flatnonzero(home >= 0)
        for collection in layout.collections:
            packed = keys.pack([collection.keys[i] for i in known.tolist()])
            found.append((packed, home[known].tobytes()))
    return found


def _can_compute(statuses: Iterable[str], *, may_join: bool = True) -> bool:
    """Whether some worker runs, or may join: paused workers start no tasks."""
    found = set(statuses)
    return "running" in found or (may_join and not found)


def _is_missing_partitions(collection: CollectionInfo) -> bool:
    """Whether a loaded collection has a key without a holder."""
    if not collection.loaded or collection.holders is None:
        return False
    return not np.bincount(collection.holders[0], minlength=len(collection.keys)).all()


def ids_of(names: Sequence[str | int] | None, view: View) -> frozenset[str | int]:
    """The ids of workers that are named by name or address; None: of all.

    Raises ``ValueError`` if there is no such worker.
    """
    known = {w.address: w.id for w in view.now.workers}
    return frozenset(known.values()) if names is None else _named(names, known)


def _named(
    names: Sequence[str | int], known: Mapping[str, str | int]
) -> frozenset[str | int]:
    """The ids of named workers, among those known by address.

    Raises ``ValueError`` if there is no such worker; the text lists the workers.
    """
    by_any: dict[str | int, str | int] = {i: i for i in known.values()}
    by_any |= {str(i): i for i in known.values() if str(i) not in by_any}  # of a shell
    by_any.update(known)
    unknown = [w for w in names if w not in by_any]
    if unknown:
        raise ValueError(
            f"workers: there is no {names_text(unknown)} in this cluster; its workers "
            f"are {names_text(sorted(set(known.values()), key=str), most=8)}"
        )
    return frozenset(by_any[w] for w in names)
