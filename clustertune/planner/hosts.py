"""Place partitions on several hosts, with few bytes between them (pure).

Bytes within a host use no network. So partitions are first placed on hosts, each with
the shares and budgets of all its workers, and then on the workers of each host. From
there the search of :mod:`~clustertune.planner.placement` goes on with all workers. It
alone, from worker to worker, seldom finds that partitions have to change places within
a host to make room for one of another host.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from clustertune.core.model import Bools, Float64s, Int64s
from clustertune.errors import CapacityError
from clustertune.planner import layouts
from clustertune.planner.layouts import HeldBytes, Targets
from clustertune.planner.placement import (
    WORTH,
    Placement,
    fewest_bytes,
    place,
    placed,
)

WITHIN = 16  # bytes moved within a host that count as one between hosts
MOST = 4_000_000  # holdings by host; with more, each has only its own worker
#: partitions; with more, the way by hosts takes seconds and saves hardly any bytes
FEW = 1_000
ENOUGH = 1.01  # bytes between hosts within this factor of the fewest need no other way


def place_on_hosts(
    rows: Int64s,
    held: HeldBytes,
    weights: Float64s,
    *,
    hosts: Int64s,
    nbytes: Int64s,
    budget: Float64s | None,
    tolerance: float,
    aim: float,
    first: Targets | None = None,
) -> Placement:
    """Choose a worker for every partition, and move the fewest bytes between hosts.

    ``hosts`` has the number of each worker's host. The other parameters and the errors
    are those of :func:`~clustertune.planner.placement.place`.
    """
    trains = weights > 0
    each = np.bincount(hosts[trains])
    several = np.count_nonzero(each) > 1
    several &= len(held.partition) * each.max(initial=0) <= MOST
    near = nearby(held, nbytes, trains, hosts) if several else held

    search = partial(
        place,
        rows,
        near,
        weights,
        nbytes=nbytes,
        budget=budget,
        tolerance=tolerance,
        aim=aim,
    )
    found = search(first=first)
    if not several:
        return found
    if each.max() > 1 and len(rows) <= FEW:
        start = _by_host(rows, held, weights, hosts, nbytes, budget, tolerance, found)
        if start is not None:
            other = search(first=start)
            # less even rows have to save many bytes
            factor = 1.0 if other.imbalance <= found.limit else WORTH
            found = other if other.moved * factor < found.moved else found
    return placed(rows, held, weights, nbytes=nbytes, target=found.target)


def nearby(held: HeldBytes, nbytes: Int64s, trains: Bools, hosts: Int64s) -> HeldBytes:
    """Count most bytes on a host as held by each worker that trains there.

    A placement that keeps the most of these bytes moves the fewest bytes between hosts,
    and then the fewest within hosts.
    """
    there = _on_hosts(held, nbytes, hosts)
    mates = [np.flatnonzero(trains & (hosts == h)) for h in range(hosts.max() + 1)]
    count = np.array([len(some) for some in mates])[there.worker]
    near = HeldBytes(
        np.repeat(there.partition, count),
        np.concatenate([mates[0][:0], *(mates[h] for h in there.worker.tolist())]),
        np.repeat(there.nbytes - there.nbytes // WITHIN, count),
    )
    own = held._replace(nbytes=held.nbytes // WITHIN)
    return layouts.added([near, own], len(trains))


def _on_hosts(held: HeldBytes, nbytes: Int64s, hosts: Int64s) -> HeldBytes:
    """Return the bytes that each host holds of partitions, a row once."""
    there = layouts.added([held._replace(worker=hosts[held.worker])], len(hosts))
    return there._replace(nbytes=np.minimum(there.nbytes, nbytes[there.partition]))


def _by_host(
    rows: Int64s,
    held: HeldBytes,
    weights: Float64s,
    hosts: Int64s,
    nbytes: Int64s,
    budget: Float64s | None,
    tolerance: float,
    found: Placement,
) -> Targets | None:
    """Place partitions on hosts, then on their workers.

    None: they do not fit, or what was found moves hardly more bytes between hosts than
    any placement.
    """
    there, claim = _on_hosts(held, nbytes, hosts), np.bincount(hosts, weights)
    now = placed(rows, there, claim, nbytes=nbytes, target=hosts[found.target])
    limit = max(1 + tolerance, found.limit)
    least = fewest_bytes(rows, there, claim, nbytes=nbytes, limit=limit)
    if now.moved <= ENOUGH * least:
        return None
    room = np.full(len(weights), np.inf) if budget is None else budget
    try:
        host = place(
            rows,
            there,
            claim,
            nbytes=nbytes,
            budget=np.bincount(hosts, np.where(weights > 0, room, 0)),
            tolerance=tolerance,
        ).target
        target = np.zeros(len(rows), np.int64)
        for number in np.unique(host).tolist():
            some, here = host == number, np.where(hosts == number, weights, 0.0)
            share = rows.sum() * here.sum() / weights.sum()
            own = max(1, rows[some].sum())
            target[some] = place(
                rows[some],
                layouts.of_partitions(held, some),
                here,
                nbytes=nbytes[some],
                budget=budget,
                tolerance=max(0.0, (1 + tolerance) * share / own - 1),
            ).target
    except CapacityError:
        return None
    return target
