"""Release data on request: by prefix, or by a restart.

The scans take time that grows with all keys, in short turns of the event loop. They run
only before data is destroyed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Container, Mapping
from time import monotonic, time
from typing import Any

from distributed.core import Status

from clustertune.remote.keys import batches, drained, in_turns
from clustertune.remote.scheduler.evacuation import Refused
from clustertune.remote.scheduler.nanny import POLL_INTERVAL
from clustertune.remote.scheduler.published import (
    shared_names,
    unpublish_all,
)
from clustertune.remote.scheduler.state import (
    COMING,
    begun_tasks,
    identity,
    still_running,
)

logger = logging.getLogger("distributed.clustertune")

MAX_GROUPS = 5000  # of prefix and owners that are reported
REASON = "released"
MESSAGE = "Its data was released on purpose, by clustertune. Load or compute it again."


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
    scheduler: Any, owner: str, kept: Container[Any] = ()
) -> list[list[Any]]:
    """Return data in memory, by prefix and by the clients that want it.

    Returns
    -------
    list of [prefix, keys, nbytes, scattered, coming, mine, others, shared]
        ``coming`` are tasks without a result yet, ``others`` clients besides the owner,
        ``shared`` pairs of kind and name. A name without keys in memory has a row of
        its own, without keys.
    """
    names = shared_names(scheduler)
    found = {("", frozenset([client])): [0, 0, 0, 0] for client in names}
    async for ts, wanting in wanted_tasks(scheduler, kept):
        there = ts.state == "memory"
        if not (there or ts.state in COMING):
            continue
        entry = (str(ts.prefix.name), wanting)
        if entry not in found and len(found) >= MAX_GROUPS:
            entry = ("", wanting)
        numbers = found.setdefault(entry, [0, 0, 0, 0])
        numbers[0] += there
        numbers[1] += ts.nbytes if there else 0
        numbers[2] += there and ts.run_spec is None
        numbers[3] += not there
    return [
        [
            prefix,
            *numbers,
            owner in wanting,
            sorted(wanting - {owner} - names.keys()),
            sorted(names[c] for c in wanting & names.keys()),
        ]
        for (prefix, wanting), numbers in found.items()
    ]


async def release(
    scheduler: Any, owner: str, prefix: str, kept: Container[Any]
) -> tuple[int, int]:
    """Release the keys of a prefix that only the owner wants, except ``kept`` keys.

    Tasks that are still to run keep their inputs until they have run. Futures of the
    released keys are cancelled. Returns the number of released keys, and their bytes.
    """
    nbytes = 0
    going: list[Any] = []
    async for ts, wanting in wanted_tasks(scheduler, kept):
        if ts.state == "memory" and ts.prefix.name == prefix and wanting == {owner}:
            nbytes += ts.nbytes
            going.append(ts.key)
    count = len(going)
    await release_for(scheduler, {owner: going})
    return count, nbytes


async def release_for(scheduler: Any, going: Mapping[str, list[Any]]) -> None:
    """Release keys by client, and drain the lists; their futures are cancelled."""
    for client, keys in going.items():
        async for some in in_turns(batches(drained(keys))):
            scheduler.client_releases_keys(
                keys=some, client=client, stimulus_id=f"clustertune-release-{time()}"
            )
            message = {"op": "cancelled-keys", "keys": some}
            scheduler.report(
                message | {"reason": REASON, "msg": MESSAGE}, client=client
            )


class ClusterRestart:
    """A restart of all workers at once, without their data.

    Running tasks are waited for, ``wait`` seconds at most, and the data is counted once
    more before it is lost. Nothing changes until then. Unless ``others`` is set, data
    that other clients want stops it. The workers must be back within ``timeout``
    seconds.
    """

    def __init__(
        self, scheduler: Any, owner: str, others: bool, wait: float, timeout: float
    ):
        self.scheduler = scheduler
        self.owner = owner
        self.others = others
        self.wait = wait
        self.timeout = timeout
        self.stopped = False
        self.began = False  # from then on the data is lost
        self.doing = "waiting for all tasks to end"
        self.keys = 0
        self.nbytes = 0
        self.names: list[str] = []  # published names that were removed
        self.event = {"action": "drop", "client": owner}  # fields of logged events

    async def run(self) -> str:
        """Restart the workers; return a refusal, the missing workers, or ""."""
        try:
            self._refuse()
            await self._wait_for_tasks()
            await self._count()
            self._refuse()
        except Refused as error:
            return str(error)
        self.doing = "restarting all workers"
        before = {identity(ws) for ws in self.scheduler.workers.values()}
        end = monotonic() + self.timeout
        self.began = True
        self.names = unpublish_all(self.scheduler)
        try:
            await self.scheduler.restart(
                timeout=self.timeout, stimulus_id=f"clustertune-drop-{time()}"
            )
        except asyncio.TimeoutError:
            logger.warning("not all workers were back within %g s", self.timeout)
        # Dask counts workers, and registered workers may not run yet
        workers = self.scheduler.workers
        while missing := before - {
            identity(ws) for ws in workers.values() if ws.status is Status.running
        }:
            if monotonic() > end:
                some = ", ".join(sorted(str(nanny) for nanny, _ in missing)[:3])
                return f"{len(missing)} workers did not come back, of nannies {some}"
            await asyncio.sleep(POLL_INTERVAL)
        return ""

    def _refuse(self) -> None:
        workers = self.scheduler.workers.values()
        alone = [ws.address for ws in workers if not ws.nanny]
        if alone:
            raise Refused(f"{len(alone)} workers have no nanny, such as {alone[0]}")
        if self.stopped:
            raise Refused("stopped")

    async def _wait_for_tasks(self) -> None:
        end = monotonic() + self.wait
        while running := sum(map(begun_tasks, self.scheduler.workers.values())):
            if self.stopped:
                raise Refused("stopped")
            if monotonic() > end:
                raise Refused(still_running(running, self.wait))
            await asyncio.sleep(POLL_INTERVAL)

    async def _count(self) -> None:
        """Count the data that will be lost; the plan may be old."""
        async for ts, wanting in wanted_tasks(self.scheduler, ()):
            there = ts.state == "memory"
            if not (there or ts.state in COMING):
                continue
            if not self.others and wanting != {self.owner}:
                other = min(wanting - {self.owner})
                raise Refused(f"client {other} now wants data that would be lost")
            self.keys += there
            self.nbytes += ts.nbytes if there else 0

    def state(self) -> dict[str, Any]:
        """Return the progress as plain data."""
        return {
            "doing": self.doing,
            "keys": self.keys,
            "nbytes": self.nbytes,
            "began": self.began,
        }
