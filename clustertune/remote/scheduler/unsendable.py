"""Decide what happens to the keys of a worker that cannot be sent.

A key that no client and no task needs is dropped. So is a key that only failed tasks
used: LightGBM leaves open sockets when a fit fails. A value that cannot be read, but
computed, is computed again. The others stay where they are, and are named.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import time
from typing import Any

from clustertune.core.wording import printable
from clustertune.remote.keys import in_turns
from clustertune.remote.scheduler.nanny import Parking
from clustertune.remote.scheduler.release import release_for
from clustertune.remote.scheduler.state import COMING

MAX_NAMED = 5  # keys in a message


class UnsendableKeys:
    """The keys of one worker that cannot be sent, and the reasons."""

    def __init__(self, scheduler: Any, parking: Parking):
        self.scheduler = scheduler
        self.parking = parking
        self.staying: dict[Any, str] = {}  # reasons
        self.dropped = 0  # that no client and no task needed
        self.recomputed = 0

    async def find(
        self, worker: Any, keys: Iterable[Any] | None = None, *, ending: bool = False
    ) -> None:
        """Drop and recompute keys of a worker; the others are ``staying``.

        With ``keys`` only these are tested, but all of their values. ``ending``: the
        worker ends in any case, so that every key is recomputed if possible.
        """
        unneeded: dict[str, list[Any]] = {}
        released = []
        for key, problem, readable in await self.parking.unsendable(worker, keys):
            ts = self.scheduler.tasks.get(key)
            if ts is None or worker not in (ts.who_has or ()):
                continue
            if not readable and (len(ts.who_has) > 1 or ts.run_spec is not None):
                # a worker whose spill file is gone ends if Dask tells it to delete
                # that key, so it is not told
                self.scheduler.remove_replica(ts, worker)
                if not ts.who_has:
                    self.recomputed += is_needed(ts)
                    self._release(ts.key)
                continue
            if len(ts.who_has) > 1:
                continue
            if not is_needed(ts):
                self.dropped += 1
                released.append(key)
                for client in ts.who_wants:
                    unneeded.setdefault(client.client_key, []).append(key)
            elif ts.run_spec is not None and ending:
                self.recomputed += 1
                released.append(key)
            else:
                self.staying[key] = problem
        await release_for(self.scheduler, unneeded)
        async for key in in_turns(released):
            self._release(key)

    def _release(self, key: Any) -> None:
        """Have Dask forget a key, or compute it again if it is needed."""
        ts = self.scheduler.tasks.get(key)
        if ts is not None and ts.state == "memory":
            name = f"clustertune-unsendable-{time()}"
            self.scheduler.transitions({key: "released"}, name)

    def __str__(self) -> str:
        """Name keys and reasons, as in a message."""
        there = self.scheduler.tasks
        named = [
            f"{printable(str(key), longest=80)} ({printable(why, longest=120)})"
            for key, why in self.staying.items()
            if key in there
        ]
        more = f" and {len(named) - MAX_NAMED} more" if len(named) > MAX_NAMED else ""
        return ", ".join(named[:MAX_NAMED]) + more


def is_needed(ts: Any) -> bool:
    """Whether a client or an unfinished task needs a key.

    A computed key that only failed tasks used is not needed, although the client may
    still refer to it: its traceback keeps the futures of a failed fit.
    """
    if any(dependent.state in COMING for dependent in ts.dependents):
        return True
    failed = [d for d in ts.dependents if d.state == "erred"]
    if ts.run_spec is not None and failed and len(failed) == len(ts.dependents):
        return False
    return bool(ts.who_wants)
