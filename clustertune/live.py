"""The live cluster: the port through which the main loop sees and changes it.

It translates between Dask's collections and the plain members of the model, holds the
lease, and cleans up after itself whichever way a call ends: a move that is cancelled
lands what is in flight and stops, and the lease is given back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from distributed import Client

from clustertune import adapters, inputs, monitor
from clustertune.errors import (
    ConnectionLostError,
    IncompleteError,
    LeaseHeldError,
    NoWorkersError,
    ScaleError,
)
from clustertune.model import (
    Goal,
    Layout,
    Member,
    Moves,
    Notify,
    Result,
    View,
)
from clustertune.remote import keys
from clustertune.wording import names_text

logger = logging.getLogger("clustertune")

POLL = 0.05  # seconds between two questions how far something is
LANDING = 10.0  # seconds that a cancelled move is given to land what is in flight


class LiveCluster:
    """One client's cluster and the data that ``prepare`` was given.

    Parameters
    ----------
    client
        A connected client.
    given
        What the user gave, checked; :attr:`given` is replaced as data is loaded.
    goal
        What the user asked for.
    remaining
        Seconds that are left for everything.
    """

    def __init__(
        self,
        client: Client,
        given: inputs.Inputs,
        goal: Goal,
        remaining: Callable[[], float],
    ):
        self.client = client
        self.given = given
        self.goal = goal
        self.remaining = remaining
        self.token = ""
        self.opened = False
        self.opened = False

    # --- begin ------------------------------------------------------------------------

    async def open(self, workers: Sequence[str | int] | None) -> None:
        """See that code may be sent, and that what was asked for is possible.

        Raises
        ------
        NoWorkersError, VersionMismatchError, ScaleError, ValueError
            As the case may be; nothing was changed.
        """
        self._refuse_lost()
        identity = await self._scheduler.identity(n_workers=-1)
        self._refuse_empty(identity)
        wanted = None if workers is None else _ids(workers, identity["workers"])
        self._refuse_scale(identity["workers"])
        self.goal = replace(self.goal, workers=wanted)
        await monitor.open_door(self.client, list(identity["workers"]))
        self.opened = True

    def _refuse_lost(self) -> None:
        if self.client.status != "running" or self.client.scheduler is None:
            raise ConnectionLostError(
                f"the client is {self.client.status}; the scheduler may be gone"
            )

    def _refuse_empty(self, identity: Mapping[str, Any]) -> None:
        states = [w["status"] for w in identity["workers"].values()]
        if "running" not in states:
            raise NoWorkersError(
                f"the cluster {identity['address']} has no running worker (workers: "
                f"{', '.join(sorted(set(states))) or 'none'}); start one, or wait with "
                "client.wait_for_workers(1)"
            )

    def _refuse_scale(self, workers: Mapping[str, Any]) -> None:
        wanted, there = self.goal.n_workers, len(workers)
        if wanted is None or wanted == there:
            return
        if wanted < there:
            raise ScaleError(
                f"n_workers={wanted}, but the cluster has {there}: prepare only adds "
                "workers; to train on fewer give workers=[...]"
            )
        reason = adapters.obstacle(self.client.cluster, wanted)
        if reason is not None:
            raise ScaleError(f"n_workers={wanted}: {reason}")

    # --- one plan at a time -----------------------------------------------------------

    @asynccontextmanager
    async def lease(self, label: str, notify: Notify) -> AsyncIterator[None]:
        """Hold the cluster's lease; waits while another plan holds it.

        Raises
        ------
        LeaseHeldError
            Somebody else still holds it when the time is up.
        """
        self.token = await self._acquire(label, notify)
        try:
            yield
        finally:
            await self._quietly("release", token=self.token)

    async def _acquire(self, label: str, notify: Notify) -> str:
        while True:
            answer = await monitor.ask(
                self.client, "acquire", owner=self.client.id, label=label
            )
            if "token" in answer:
                return str(answer["token"])
            holder = answer["holder"]
            if self.remaining() < 1:
                raise LeaseHeldError(
                    f"another plan is being carried out on this cluster: "
                    f"{holder['label']} (client {holder['client']}); try again when it "
                    "has ended, or give a longer timeout"
                )
            notify(f"waiting for another plan to end: {holder['label']}", None)
            await asyncio.sleep(0.5)

    @property
    def _scheduler(self) -> Any:
        return self.client.scheduler

    async def _quietly(self, method: str, **arguments: Any) -> None:
        """A request that tidies up: where the scheduler is gone, so is the mess."""
        if self.client.status != "running" or not self.opened:
            return
        try:
            await asyncio.wait_for(
                monitor.ask(self.client, method, **arguments), LANDING
            )
        except (OSError, asyncio.TimeoutError) as error:
            logger.warning("clustertune could not %s: %r", method, error)

    # --- look -------------------------------------------------------------------------

    async def look(self, notify: Notify) -> View:
        """See cluster and data; waits until what was submitted has been computed."""
        self._refuse_lost()
        groups = [
            (g.label, [(x, *inputs.pieces(x.collection)) for x in g.given])
            for g in self.given.groups
        ]
        futures = [f for _, g in groups for _, _, fs in g for f in fs or ()]
        members = [
            inputs.member(x, names, fs is not None)
            for _, g in groups
            for x, names, fs in g
        ]
        await self._settle(futures, notify)
        snapshot, found = await monitor.look(self.client, members)
        while any(_is_missing_pieces(m) for m in found):
            # a worker died between the two: what it held is being computed again
            await asyncio.sleep(POLL)
            await self._settle(futures, notify)
            snapshot, found = await monitor.look(self.client, members)
        layouts = self._layouts(found)
        return View(snapshots=(snapshot,), goal=self.goal, layouts=layouts)

    def _layouts(self, members: tuple[Member, ...]) -> tuple[Layout, ...]:
        rest = iter(members)
        return tuple(
            Layout(label=g.label, members=tuple(next(rest) for _ in g.given))
            for g in self.given.groups
        )

    async def _settle(self, futures: list[Any], notify: Notify) -> None:
        """Wait until every piece is in memory; raise what went wrong with one."""
        pending = futures
        # "lost" is what a client calls a key whose worker died until it is there again
        while pending := [f for f in pending if f.status in ("pending", "lost")]:
            done = 1 - len(pending) / len(futures)
            notify(f"loading {len(futures)} pieces", done)
            self._refuse_lost()
            # looking at 100,000 states takes as long as the pause should
            await asyncio.sleep(POLL + len(pending) * 1e-6)
        for future in futures:
            if future.status == "error":
                raise IncompleteError(
                    f"the piece {future.key!r} could not be computed: "
                    f"{await future.exception()!r}"
                ) from await future.exception()
            if future.status != "finished":
                raise IncompleteError(
                    f"the piece {future.key!r} is {future.status}: its data was lost "
                    "with a worker and cannot be recomputed, or it was cancelled; "
                    "load the data again"
                )

    # --- act --------------------------------------------------------------------------

    async def persist(self, notify: Notify) -> None:
        """Persist what is not, in one call.

        Two calls would optimise two graphs, and the pieces of X and y that come from
        one Parquet data set would then differ in number.
        """
        everything = list(self.given)
        lazy = [
            i
            for i, x in enumerate(everything)
            if inputs.pieces(x.collection)[1] is None
        ]
        loaded = self.client.persist([everything[i].collection for i in lazy])
        collections = [x.collection for x in everything]
        for i, collection in zip(lazy, loaded, strict=True):
            collections[i] = collection
        self.given = self.given.with_collections(collections)
        futures = [f for c in loaded for f in inputs.pieces(c)[1] or ()]
        await self._settle(futures, notify)

    async def scale(self, n_workers: int, notify: Notify) -> None:
        """Ask the cluster object for workers and wait until they are there.

        Raises
        ------
        ScaleError
            The cluster cannot be scaled, or workers did not come in time.
        """
        cluster = self.client.cluster
        adapter = adapters.find(cluster)
        reason = adapters.obstacle(cluster, n_workers)
        if adapter is None or reason is not None:
            raise ScaleError(f"n_workers={n_workers}: {reason}")
        await adapter.scale(cluster, n_workers)
        while (there := await self._registered()) < n_workers:
            notify(f"{there} of {n_workers} workers are there", there / n_workers)
            if self.remaining() < 1:
                raise ScaleError(
                    f"asked for {n_workers} workers, {there} are there: "
                    f"{adapter.state(cluster)}; see the workers' logs, or give a "
                    "longer timeout"
                )
            await asyncio.sleep(0.2)

    async def _registered(self) -> int:
        """Workers that are there to stay; one that is paused is."""
        identity = await self._scheduler.identity(n_workers=-1)
        states = [w["status"] for w in identity["workers"].values()]
        return states.count("running") + states.count("paused")

    async def move(self, moves: Moves, notify: Notify) -> Result:
        """Have the resident move keys; cancelled, it lands what is in flight."""
        job = await monitor.ask(
            self.client,
            "move",
            token=self.token,
            workers=list(moves.workers),
            ceilings=list(moves.ceilings),
            moves=[
                (keys.pack(m.keys), np.asarray(m.targets, dtype=np.int64).tobytes())
                for m in moves.moves
            ],
            deadline=max(1.0, self.remaining()),
        )
        try:
            state = await self._follow(job, notify)
        except BaseException:
            await self._quietly("stop", job=job)
            raise
        reasons = [f"{n} keys: {reason}" for reason, n in state["left"].items()]
        reasons += [state["error"]] if state["error"] else []
        return Result(nbytes=state["nbytes"], undone="; ".join(reasons))

    async def _follow(self, job: str, notify: Notify) -> dict[str, Any]:
        pause = 0.02
        while True:
            state: dict[str, Any] = await monitor.ask(self.client, "progress", job=job)
            if state["finished"]:
                return state
            done = state["done"] / max(1, state["total"])
            notify(f"moving {state['total']} keys", done)
            await asyncio.sleep(pause)
            pause = min(0.25, pause * 1.5)

    # --- what prepare hands over ------------------------------------------------------

    async def keep(self, report: str) -> None:
        """Leave the report with the scheduler, for whoever asks later."""
        if self.opened:
            await self._quietly("keep", report=report)


def _is_missing_pieces(member: Member) -> bool:
    """Whether a loaded member has a piece that nobody holds."""
    if not member.loaded or member.holders is None:
        return False
    return len(np.unique(member.holders[0])) < len(member.keys)


def _ids(
    workers: Sequence[str | int], known: Mapping[str, Mapping[str, Any]]
) -> frozenset[str | int]:
    """The ids of workers that were named, by name or by address.

    Raises
    ------
    ValueError
        There is no such worker; the text names those that there are.
    """
    by_any: dict[str | int, str | int] = {
        a: monitor.worker_id(a, entry) for a, entry in known.items()
    }
    by_any |= {i: i for i in list(by_any.values())}
    unknown = [w for w in workers if w not in by_any]
    if unknown:
        raise ValueError(
            f"workers: there is no {names_text(unknown)} in this cluster; its workers "
            f"are {names_text(sorted(set(by_any.values()), key=str), most=8)}"
        )
    return frozenset(by_any[w] for w in workers)
