"""The former process of a worker keeps its keys while the next one runs."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
from distributed import Nanny
from distributed.core import Status
from distributed.utils_test import gen_cluster

from clustertune.remote import ship
from clustertune.remote.scheduler.nanny import Parking, set_status
from clustertune.remote.worker import park
from tests.processes import soon

ONE: dict[str, Any] = {
    "client": True,
    "Worker": Nanny,
    "nthreads": [("127.0.0.1", 1)],
    "timeout": 60,
    "worker_kwargs": {"memory_limit": "1 GiB"},
}


async def replaced(s: Any, code: Any = park.act) -> tuple[Parking, Any, Any]:
    """Start the next process of the only worker.

    Return the parking, the former process, and the answer.
    """
    (worker,) = s.workers.values()
    set_status(s, worker, Status.closing_gracefully)
    parking = Parking(s, ship.pickled(code))
    return parking, worker, await parking.replace(worker, 0, 40)


def pause_and_continue(dask_worker: Any) -> None:
    """Do what the memory monitor does; an event then arrives after the statuses."""
    dask_worker.status = Status.paused
    dask_worker.status = Status.running
    dask_worker.log_event("test-statuses", "sent")


@gen_cluster(**ONE)
async def test_a_former_process_gets_no_tasks(c: Any, s: Any, nanny: Any) -> None:
    """It stays excluded when it is no longer paused."""
    kept = await c.scatter(np.arange(9))
    parking, former, answer = await replaced(s)
    assert answer == ("", "")
    function = pickle.dumps(pause_and_continue)
    await s.rpc(former.address).run(function=function)
    await soon(lambda: s.get_events("test-statuses"))
    assert parking.is_open()
    assert former.status is Status.closing_gracefully
    assert former not in s.running
    del kept
