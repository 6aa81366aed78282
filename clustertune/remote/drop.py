"""Restarts all workers at once and forgets what they held. Runs on the scheduler.

Tasks that run are waited for, and what there is to lose is looked at once more before
it is lost; until then nothing is touched.
"""

from __future__ import annotations

import asyncio
import logging
from time import monotonic, time
from typing import Any

from distributed.core import Status

from clustertune.remote.holdings import unpublish_all, wanted
from clustertune.remote.restart import LOOK, Refused, begun, identity, still_run
from clustertune.remote.survey import COMING

logger = logging.getLogger("distributed.clustertune")


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
