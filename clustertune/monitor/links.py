"""How fast workers receive and copy, measured on this cluster.

What a worker has received before tells how fast it does. Where it has received nothing
large yet, some bytes are sent to it once, and the worker's own log says how long that
took. Only :mod:`clustertune.monitor.monitor` uses it.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Sequence
from statistics import median
from typing import Any
from uuid import uuid4

import numpy as np
from dask._task_spec import Task, TaskRef
from distributed import Client, wait

from clustertune.collections import graphs
from clustertune.remote import ship
from clustertune.remote.worker import probe

PREFIX = "clustertune-link"
SIZES = (2**16, 2**24)  # bytes: the first ones also have to connect the two
PATIENCE = 5.0  # seconds in which a worker answers, or bytes arrive

Speeds = dict[str, tuple[float, float]]
"""By address: bytes per second received and copied; 0: unknown."""


async def measure(
    client: Client,
    addresses: Sequence[str],
    pair: tuple[str, str] | None,
    *,
    copying: bool,
) -> Speeds:
    """How fast these workers are; a link is timed where nothing is known of any.

    Parameters
    ----------
    client
        A connected client.
    addresses
        Workers to which code may go.
    pair
        Sender and receiver of the bytes with which a link is timed; None: nothing is
        sent, and what no worker knows stays unknown.
    copying
        Whether it is wanted to know how fast they copy.
    """
    found = await _ask(client, addresses, copying=copying)
    if pair and not any(received for received, _ in found.values()):
        await _send(client, *pair)
        sent = await _ask(client, pair[1:], copying=False)
        found |= {a: (speed, found[a][1]) for a, (speed, _) in sent.items()}
    known = [received for received, _ in found.values() if received]
    usual = median(known) if known else 0.0  # of those that have received nothing
    return {a: (received or usual, copied) for a, (received, copied) in found.items()}


async def _ask(client: Client, addresses: Sequence[str], *, copying: bool) -> Speeds:
    answers = await ship.on_workers(
        client, probe.speeds, list(addresses), timeout=PATIENCE, copying=copying
    )
    return {a: _speeds(answers[a]) for a in addresses}


def _speeds(answer: Any) -> tuple[float, float]:
    """A worker that does not answer is as any other."""
    if not isinstance(answer, list):
        return 0.0, 0.0
    received, copied = answer
    return float(received), float(copied)


async def _send(client: Client, source: str, target: str) -> None:
    """Have bytes travel that no compression makes less."""
    for nbytes in SIZES:
        name = f"{PREFIX}-{uuid4().hex}"
        numbers = Task(None, np.random.default_rng, 0)
        draw = operator.methodcaller("random", nbytes // 8)
        sent, arrived = (name, 0), (name, 1)
        graph = graphs.Graph(
            tasks={
                sent: Task(sent, draw, numbers),
                arrived: Task(arrived, len, TaskRef(sent)),
            },
            where={sent: source, arrived: target},
            pieces={PREFIX: [sent, arrived]},
        )
        if not await _arrives(client, graph):
            return


async def _arrives(client: Client, graph: graphs.Graph) -> bool:
    """Wait until all is done; False: nobody waits for it any longer."""
    futures = (await asyncio.to_thread(graphs.submit, client, graph)).values()
    try:
        with client.as_current():
            done: Any = wait(list(futures))
        await asyncio.wait_for(done, PATIENCE)
    except asyncio.TimeoutError:  # somebody else's work has come meanwhile
        return False
    finally:
        for future in futures:
            future.release()
    return True
