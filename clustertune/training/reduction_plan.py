"""Arguments and plan of ``map_reduce``: which items form a task, and how sums join.

The plan is made before the first task runs, from the number of items, the threads of
the workers and the holders of partitions. The order of additions does not depend on
which task ends first, so the same layout gives the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import cloudpickle
import dask.array as da
import numpy as np
from dask.base import is_dask_collection
from distributed import Client, Future

from clustertune.collections import graphs, inputs
from clustertune.core.wording import plural, printable
from clustertune.errors import AlignmentError
from clustertune.operations.call import check_client

JOIN_WIDTH = 4  # results of workers that one task joins


@dataclass(frozen=True)
class SumRequest:
    """Checked arguments of a sum. Items are values or futures."""

    client: Client
    function: bytes  # pickled
    reduction: bytes  # pickled; None means a sum
    broadcast: tuple[Any, ...]
    values: Any = None  # a sequence of this process that can be sliced
    columns: tuple[tuple[Future[Any], ...], ...] = ()  # of each collection


@dataclass(frozen=True, slots=True)
class Batch:
    """A task that adds the results of some items, in this order."""

    worker: str  # address
    items: Sequence[int]  # their numbers


@dataclass(frozen=True, slots=True)
class Plan:
    """Tasks of :func:`clustertune.training.map_reduce`; the last makes the result."""

    batches: tuple[Batch, ...]
    joins: tuple[tuple[int, ...], ...]  # the tasks whose results each join adds


# --- arguments ------------------------------------------------------------------------


def check_arguments(
    client: Any, func: Any, items: Any, broadcast: Any, reduce: Any
) -> SumRequest:
    """Check the arguments of :func:`clustertune.training.map_reduce`."""
    check_client(client)
    for name, value in {"func": func, "reduce": reduce}.items():
        if not callable(value) and not (name == "reduce" and value is None):
            raise TypeError(f"{name} must be a function; it was {_type(value)}")
    if not isinstance(broadcast, tuple | list):
        raise TypeError(
            "broadcast must be a tuple of arguments, like broadcast=(w,); it was "
            f"{_type(broadcast)}"
        )
    for i, value in enumerate(broadcast):
        if is_dask_collection(value):
            raise TypeError(
                f"broadcast[{i}] is lazy ({_type(value)}), but every worker needs all "
                "of it. Pass the result of compute(), or a future"
            )
    request = SumRequest(
        client=client,
        function=pickled("func", func),
        reduction=pickled("reduce", reduce),
        broadcast=tuple(broadcast),
    )
    return _with_items(request, items)


def pickled(name: str, value: Any) -> bytes:
    """Pickle an argument of the user; an error names the argument."""
    try:
        code: bytes = cloudpickle.dumps(value)
    # a class of the user may raise any error while it is pickled
    except Exception as error:
        raise unsendable(name, error) from error
    return code


def unsendable(name: str, error: Exception) -> TypeError:
    """Return the error for an argument that does not pickle."""
    return TypeError(
        f"{name} cannot be sent to workers: {printable(str(error), longest=300)}. "
        "Remove objects of this process, such as locks, open files and clients"
    )


def _with_items(request: SumRequest, items: Any) -> SumRequest:
    several = items if isinstance(items, tuple) else (items,)
    if any(map(is_dask_collection, several)):
        return _with_collections(request, several)
    sequence = isinstance(items, Sequence) and not isinstance(items, str | bytes)
    if not sequence and not (isinstance(items, np.ndarray) and items.ndim):
        raise TypeError(
            "items must be a sequence with a length and an order, a Dask collection, "
            f"or a tuple of row-aligned collections; it was {_type(items)}. Make a "
            "list: items = list(items)"
        )
    if not len(items):
        raise ValueError("items is empty, so there is no result; pass at least one")
    rows = isinstance(items, np.ndarray) and items.dtype.kind != "O"
    if rows or isinstance(items, range):
        return replace(request, values=items)
    listed = items if isinstance(items, list | tuple) else list(items)
    if all(isinstance(item, Future) for item in listed):
        if {future.client for future in listed} != {request.client}:
            raise ValueError(
                "items has futures that were released, or that another client made; "
                "pass that client, or compute them again with this one"
            )
        return replace(request, columns=(tuple(listed),))
    for i, item in enumerate(listed):
        if is_dask_collection(item) or isinstance(item, Future):
            raise TypeError(
                f"items[{i}] is a {_type(item)} in a list of values. Pass futures of "
                "all items: items = client.compute(items). Pass row-aligned "
                "collections in a tuple: items=(X, y)"
            )
    return replace(request, values=listed)


def _with_collections(request: SumRequest, items: tuple[Any, ...]) -> SumRequest:
    given = inputs.of_rows(items)
    check_client(request.client, given)
    collections = {label: given.collection(label) for label in given.training}
    counts = {label: _partitions(label, x) for label, x in collections.items()}
    (first, expected), *rest = counts.items()
    for label, n in rest:
        if n != expected:
            raise AlignmentError(
                f"{first} has {plural(expected, 'partition')} and {label} has {n:,}: "
                "they are not row-aligned. Run clustertune.prepare(client, "
                f"{first}, {label})"
            )
    columns = []
    for label, x in collections.items():
        futures = graphs.partitions(x)[1]
        if futures is None:
            raise ValueError(
                f"items: {label} is not in memory, so each call would load it. Load it "
                "once, with clustertune.prepare or client.persist"
            )
        columns.append(tuple(futures))
    return replace(request, columns=tuple(columns))


def _partitions(label: str, collection: Any) -> int:
    if not isinstance(collection, da.Array):
        return int(collection.npartitions)
    if math.prod(collection.numblocks[1:]) > 1:
        raise AlignmentError(
            f"{label} has several column blocks, so no partition has whole rows. Join "
            f"them: {label} = {label}.rechunk({{0: 'auto', 1: -1}})"
        )
    return int(collection.numblocks[0])


def _type(value: Any) -> str:
    return type(value).__name__


# --- batches --------------------------------------------------------------------------


def spread_items(n_items: int, threads: Mapping[str, int]) -> tuple[Batch, ...]:
    """Make batches of items without holders: neighbours for each thread.

    With fewer items than threads, each worker gets one before any gets a second.
    """
    slots = [(i, worker) for worker, n in threads.items() for i in range(n)]
    first = sorted(slots, key=lambda slot: slot[0])[:n_items]  # a stable sort
    order = {worker: i for i, worker in enumerate(threads)}
    used = sorted((worker for _, worker in first), key=order.__getitem__)
    return tuple(
        Batch(worker, items)
        for worker, items in zip(used, _shares(n_items, len(used)), strict=True)
    )


def _shares(number: int, most: int) -> list[range]:
    """Split a number of neighbours into at most ``most`` equal shares, none empty."""
    n = min(number, most)
    return [range(number * i // n, number * (i + 1) // n) for i in range(n)]


def group_by_holder(
    items: Sequence[Mapping[str, int]], threads: Mapping[str, int]
) -> tuple[Batch, ...]:
    """Make batches of partitions: neighbours on one worker for each of its threads.

    Workers are ordered by their first partitions, not by their addresses. A restart
    changes addresses, and the order of the sum must not change with them. Each item
    has its bytes by address of the holder.
    """
    held: dict[str, list[int]] = {}
    load = dict.fromkeys(threads, 0.0)
    for i, holders in enumerate(items):
        most = max((n for w, n in holders.items() if w in threads), default=0)
        # an item without a running holder may be computed on any worker
        able = [w for w in threads if most and holders.get(w, 0) == most] or threads
        owner = min(able, key=lambda w: load[w])
        load[owner] += 1 / threads[owner]
        held.setdefault(owner, []).append(i)
    return tuple(
        Batch(worker, tuple(numbers[i] for i in share))
        for worker, numbers in held.items()
        for share in _shares(len(numbers), threads[worker])
    )


def join_tree(batches: Sequence[Batch]) -> tuple[tuple[int, ...], ...]:
    """Return the tasks that each join adds, in this order: batches first, then joins.

    Results of one worker are joined first, then those of a few workers at a time.
    """
    joins: list[tuple[int, ...]] = []

    def join(parts: Sequence[int]) -> int:
        if len(parts) == 1:
            return parts[0]
        joins.append(tuple(parts))
        return len(batches) + len(joins) - 1

    by_worker: dict[str, list[int]] = {}
    for i, batch in enumerate(batches):
        by_worker.setdefault(batch.worker, []).append(i)
    level = [join(parts) for parts in by_worker.values()]
    while len(level) > 1:
        starts = range(0, len(level), JOIN_WIDTH)
        level = [join(level[i : i + JOIN_WIDTH]) for i in starts]
    return tuple(joins)
