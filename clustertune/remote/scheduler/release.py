"""Which keys are in memory, whose they are, and letting go of them.

Runs on the scheduler, in short turns; the time that it takes grows with all keys, so it
is done only where somebody is going to destroy data.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection
from time import monotonic, time
from typing import Any

from distributed.core import Status

from clustertune.remote.scheduler.published import _unpublish, shared, unpublish_all
from clustertune.remote.scheduler.restart import LOOK, Refused, still_run
from clustertune.remote.scheduler.workers import COMING, begun, identity

MAX_GROUPS = 5000  # prefixes, each with those who want it, that are told apart
YIELD = 2000  # keys between two yields to the event loop
REASON = "released"
SAID = "Its data was released on purpose, by clustertune. Load or compute it again."
logger = logging.getLogger("distributed.clustertune")


async def holdings(
    scheduler: Any, owner: str, kept: Collection[Any] = ()
) -> list[list[Any]]:
    """By prefix and by who wants them: how many keys, bytes, scattered ones.

    Returns
    -------
    list of [prefix, keys, nbytes, scattered, coming, mine, others, shared]
        ``coming`` are tasks that are still to be done, ``others`` clients besides the
        owner, ``shared`` pairs of kind and name. A name of which no key is in memory
        has a row of its own, without keys.
    """
    names = shared(scheduler)
    found = {("", frozenset([client])): [0, 0, 0, 0] for client in names}
    async for ts, wanting in wanted(scheduler, kept):
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


async def wanted(
    scheduler: Any, kept: Collection[Any]
) -> AsyncIterator[tuple[Any, frozenset[str]]]:
    """Tasks of which somebody wants the results kept, and who these are."""
    for i, ts in enumerate(list(scheduler.tasks.values())):
        if i % YIELD == YIELD - 1:
            await asyncio.sleep(0)
        if ts.who_wants and ts.key not in kept:
            yield ts, frozenset(c.client_key for c in ts.who_wants)


async def release(
    scheduler: Any,
    owner: str,
    prefix: str,
    kept: Collection[Any],
    others: bool,
    together: Collection[str] = (),
) -> tuple[int, int, list[str]]:
    """Have clients want the keys of a prefix no more.

    Unless ``others`` is set, only those that the owner alone wants. What tasks that are
    still to run depend on stays until these have run. Names that were published for
    these keys are removed first, so that none points to nothing. A name that also holds
    keys of prefixes that are not in ``together`` keeps all of its keys.

    Returns
    -------
    tuple
        How many keys, their bytes, and the names that were removed.
    """
    sizes: dict[Any, int] = {}
    going: dict[str, list[Any]] = {}
    async for ts, wanting in wanted(scheduler, kept):
        there = ts.state == "memory" and ts.prefix.name == prefix
        if there and (others or wanting == {owner}):
            sizes[ts.key] = ts.nbytes
            for client in wanting:
                going.setdefault(client, []).append(ts.key)
    names, staying = _unpublish(scheduler, going, {prefix, *together})
    released = [n for key, n in sizes.items() if key not in staying]
    for client, keys in going.items():
        for start in range(0, len(keys), YIELD):
            some = keys[start : start + YIELD]
            scheduler.client_releases_keys(
                keys=some, client=client, stimulus_id=f"clustertune-release-{time()}"
            )
            message = {"op": "cancelled-keys", "keys": some}
            scheduler.report(message | {"reason": REASON, "msg": SAID}, client=client)
            await asyncio.sleep(0)
    return len(released), sum(released), names


class Dropping:
    """The restart of all workers.

    Parameters
    ----------
    scheduler
        The scheduler.
    owner
        The client that asked for it.
    others
        Whether data that other clients want may be lost, too.
    wait
        Seconds that running tasks are waited for.
    timeout
        Seconds in which the workers have to be back.
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
        self.names: list[str] = []  # published ones that went with their data

    async def run(self) -> str:
        """Restart them; answers with why not, or who is missing, or nothing."""
        try:
            self._refuse()
            await self._idle()
            await self._count()
            self._refuse()
        except Refused as error:
            return str(error)
        self.doing = "restarting all workers"
        there = {identity(ws) for ws in self.scheduler.workers.values()}
        end = monotonic() + self.timeout
        self.began = True
        self.names = unpublish_all(self.scheduler)
        try:
            await self.scheduler.restart(
                timeout=self.timeout, stimulus_id=f"clustertune-drop-{time()}"
            )
        except asyncio.TimeoutError:
            logger.warning("not all workers were back within %g s", self.timeout)
        # it counts workers: those that have registered may not run yet
        while missing := there - self._running():
            if monotonic() > end:
                some = ", ".join(sorted(str(nanny) for nanny, _ in missing)[:3])
                return (
                    f"{len(missing)} workers did not come back: of the nannies {some}"
                )
            await asyncio.sleep(LOOK)
        return ""

    def _running(self) -> set[Any]:
        return {
            identity(ws)
            for ws in self.scheduler.workers.values()
            if ws.status is Status.running
        }

    def _refuse(self) -> None:
        workers = self.scheduler.workers.values()
        alone = [ws.address for ws in workers if not ws.nanny]
        if alone:
            raise Refused(f"{len(alone)} workers have no nanny, such as {alone[0]}")
        if self.stopped:
            raise Refused("stopped")

    async def _idle(self) -> None:
        end = monotonic() + self.wait
        while running := sum(map(begun, self.scheduler.workers.values())):
            if self.stopped:
                raise Refused("stopped")
            if monotonic() > end:
                raise Refused(still_run(running, self.wait))
            await asyncio.sleep(LOOK)

    async def _count(self) -> None:
        """What is going to be lost; the plan may have been made some time ago."""
        async for ts, wanting in wanted(self.scheduler, ()):
            there = ts.state == "memory"
            if not (there or ts.state in COMING):
                continue
            if not self.others and wanting != {self.owner}:
                other = min(wanting - {self.owner})
                raise Refused(f"{other} has come to want data that would be lost")
            self.keys += there
            self.nbytes += ts.nbytes if there else 0

    def state(self) -> dict[str, Any]:
        """How far it is; plain types."""
        return {
            "doing": self.doing,
            "keys": self.keys,
            "nbytes": self.nbytes,
            "began": self.began,
        }
