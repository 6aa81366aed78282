"""``map_reduce``: sum a function of many items on the workers.

``reduction_plan`` decides the tasks. This module sends them as one graph, waits for the
one result and releases everything. A large argument that all tasks need is a task of
the graph. If it were scattered, Dask could not recompute it after the loss of a worker.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary, WeakSet

import dask.array as da
import numpy as np
from dask._task_spec import List, Task, TaskRef
from dask.sizeof import sizeof
from distributed import Client, Future, KilledWorker
from distributed.sizeof import safe_sizeof

from clustertune.collections import graphs
from clustertune.core.model import Key
from clustertune.core.wording import printable
from clustertune.errors import (
    AlignmentError,
    FunctionError,
    IncompleteError,
    NoWorkersError,
)
from clustertune.monitor import connection, monitor
from clustertune.monitor.connection import sync
from clustertune.remote import ship
from clustertune.remote.scheduler.state import by_name
from clustertune.training import reduction_plan, remote_sums
from clustertune.training.reduction_plan import Plan, Reduce, SumRequest

WATCH_INTERVAL = 2.0  # seconds between two checks for lost workers
#: seconds after which the results of a call are released if no other call follows
RELEASE_DELAY = 0.05
SMALL = 100_000  # bytes of a result up to which the client makes the last join
MAX_SIZES = 100  # functions whose results' sizes are remembered

#: Sent before a large array, so that the array starts at an aligned address. NumPy
#: reads aligned numbers up to twice as fast. Dask aligns all arrays of a message except
#: the first.
_PAD = np.zeros(1, dtype=np.uint8)


def map_reduce(
    client: Client,
    func: Callable[..., Any],
    items: Any,
    *,
    broadcast: Sequence[Any] = (),
    reduce: Reduce | None = None,
) -> Any:
    """Sum ``func(item, *broadcast)`` over all items, on the workers.

    One task per thread adds up its share of the items. The workers join the
    results, first those of the same worker, and the client receives one, or at most
    four small ones. The order of additions depends on the items and their holders
    only, so the same layout gives the same bits. No data stays on the cluster.

    Parameters
    ----------
    client
        A connected client; an asynchronous one returns an awaitable.
    func
        Function of an item and the broadcast arguments. It must change neither.
    items
        A sequence (list, tuple, range, rows of a NumPy array); a list of futures; a
        Dask Array, DataFrame or Series, whose partitions are the items; or a tuple
        of row-aligned collections such as ``(X, y)``. Then
        ``func(X_i, y_i, *broadcast)`` runs on the holder of the partition.
        Collections that are not in memory are loaded for the call.
    broadcast
        Further arguments, the same for all items. Futures stand for their results.
    reduce
        Function that combines two results instead of adding them: ``max``,
        ``np.maximum``. It must be associative and commutative, because the holders
        of the items decide the order. It must not change its arguments.

    Returns
    -------
    object
        The sum of the results: a number or an array, or dicts, lists, tuples and
        named tuples of them. Booleans are counted.

    Raises
    ------
    TypeError, ValueError
        An argument has a wrong type or value, or cannot be sent to workers.
    FunctionError
        ``func`` failed for an item, or its result does not fit the others. Waiting
        tasks are cancelled.
    AlignmentError
        The collections are not row-aligned, or have several column blocks.
    IncompleteError
        Items were lost with a worker and cannot be recomputed.
    NoWorkersError, ConnectionLostError, VersionMismatchError
        The cluster has no worker, is gone, or cannot run code of this client.

    Examples
    --------
    >>> w = w - step * map_reduce(client, gradient, (X, y),
    ...                           broadcast=(w,))           # doctest: +SKIP
    """
    request = reduction_plan.check_arguments(client, func, items, broadcast, reduce)
    return sync(client, _run, request)


# --- the plan -------------------------------------------------------------------------


async def _planned(request: SumRequest, columns: Sequence[Sequence[Any]]) -> Plan:
    parts = [[f.key for f in item] for item in zip(*columns, strict=True)]
    threads, items = await asyncio.gather(
        _workers(request.client), monitor.held_bytes(request.client, parts)
    )
    if columns:
        batches = reduction_plan.group_by_holder(items, threads)
    else:
        batches = reduction_plan.spread_items(len(request.values), threads)
    return Plan(batches, reduction_plan.join_tree(batches), frozenset(threads))


async def _workers(client: Client) -> dict[str, int]:
    """Return threads of usable workers by address, ordered by name."""
    entries, running = await monitor.running_workers(client)
    if not running:
        scheduler: Any = client.scheduler
        raise NoWorkersError(
            f"the cluster {printable(scheduler.address)} has no running worker that "
            f"can run code of this client (of {len(entries)} workers). Start one, or "
            "wait: client.wait_for_workers(1)"
        )
    ordered = sorted(running, key=lambda a: by_name(monitor.worker_id(a, entries[a])))
    return {a: int(entries[a]["nthreads"]) for a in ordered}


# --- execution ------------------------------------------------------------------------


async def _run(request: SumRequest) -> Any:
    with _loaded(request) as columns:
        await _wait_for_items(request.client, [f for column in columns for f in column])
        plan, name = await _planned(request, columns), uuid4().hex
        earlier = _earlier.setdefault(request.client, _Earlier())
        function = hash(request.function)
        small = earlier.sizes.get(function, SMALL + 1) <= SMALL
        graph, numbers = _graph(request, plan, columns, name, small=small)
        earlier.release()
        try:
            results = list(graphs.submit(request.client, graph).values())
        # a class of the user may raise any error while it is pickled
        except Exception:
            reduction_plan.refuse_unpicklable(request)
            raise
        size = None
        try:
            sums = await _results(request.client, results, plan, name)
            total = sums[0]
            if len(sums) > 1:
                total = remote_sums.join_sums(request.reduction, numbers, sums)
            size = safe_sizeof(total)
        except (RuntimeError, KilledWorker, CancelledError) as error:
            failure = _failure(error, plan)
            if failure is None:
                raise
            raise failure from failure.__cause__ or error
        finally:
            earlier.note(function, results, size)
        return total


@dataclass(eq=False)
class _Results:
    """The results of a call. Only the timer of their release refers to them.

    They refer to their client, which would not be freed if its loop ended before.
    """

    futures: list[Future[Any]]

    def release(self) -> None:
        while self.futures:
            self.futures.pop().release()


@dataclass
class _Earlier:
    """What earlier calls of one client have left for the next one."""

    results: WeakSet[_Results] = field(default_factory=WeakSet)
    sizes: dict[int, int] = field(default_factory=dict)  # bytes, by hash of function

    def note(self, function: int, futures: list[Future[Any]], size: int | None) -> None:
        """Keep the size of a result, and the futures for a short time.

        Dask's client sends messages at most every 10 ms. If results were released at
        the end of a call, the graph of the next call would wait for that. After a
        failure (``size`` None) they are released at once: their tasks may wait, and a
        traceback would keep them.
        """
        results = _Results(futures)
        if size is None:
            results.release()
            return
        if len(self.sizes) >= MAX_SIZES:
            self.sizes.clear()
        self.sizes[function] = size
        self.results.add(results)
        asyncio.get_running_loop().call_later(RELEASE_DELAY, results.release)

    def release(self) -> None:
        for results in list(self.results):
            results.release()


_earlier: WeakKeyDictionary[Client, _Earlier] = WeakKeyDictionary()


@contextmanager
def _loaded(request: SumRequest) -> Iterator[list[list[Future[Any]]]]:
    """Yield the futures of the items by collection; load lazy collections meanwhile."""
    columns = [list(request.futures)] if request.futures else []
    made: list[Future[Any]] = []
    try:
        found = [graphs.partitions(x)[1] for x in request.collections]
        lazy = [
            # Dask joins small Parquet partitions, which must happen before loading
            x if isinstance(x, da.Array) else x.optimize()
            for x, futures in zip(request.collections, found, strict=True)
            if futures is None
        ]
        persisted = iter(request.client.persist(lazy)) if lazy else iter(())
        for futures in found:
            column = futures or graphs.partitions(next(persisted))[1]
            assert column is not None
            made += column if futures is None else []
            columns.append(column)
        if len({len(column) for column in columns}) > 1:
            raise AlignmentError(
                "Dask joined partitions of one collection while loading it, so the "
                "collections are not row-aligned. Load them with clustertune.prepare, "
                "which keeps partitions"
            )
        yield columns
    finally:
        for future in made:
            future.release()


async def _wait_for_items(client: Client, futures: Sequence[Future[Any]]) -> None:
    """Wait until all items are in memory or have failed."""
    # a client calls a key "lost" until it is recomputed after the loss of a worker
    pending = futures
    while pending := [f for f in pending if f.status in ("pending", "lost")]:
        connection.refuse_closed(client)
        await graphs.wait_for_last(client, pending, WATCH_INTERVAL)


async def _results(
    client: Client, results: list[Future[Any]], plan: Plan, name: str
) -> list[Any]:
    """Wait for the results; let tasks of lost workers run on other workers."""
    gathering: asyncio.Future[list[Any]] = asyncio.ensure_future(client.gather(results))
    try:
        while not (await asyncio.wait({gathering}, timeout=WATCH_INTERVAL))[0]:
            workers = (await monitor.identify(client))["workers"]
            if not plan.workers <= workers.keys():
                await ship.on_scheduler(client, remote_sums.free_stuck, name=name)
        return await gathering
    finally:
        gathering.cancel()


def _graph(
    request: SumRequest,
    plan: Plan,
    columns: Sequence[Sequence[Future[Any]]],
    name: str,
    *,
    small: bool,
) -> tuple[graphs.Graph, list[int]]:
    """Return the graph, and the first item of each result that the client joins.

    The client makes the last join if results are ``small``, else there is one result.
    """
    graph = graphs.Graph(loose=True)
    function, *broadcast = (
        _argument(graph, (f"broadcast-{name}", i), value, len(plan.batches))
        for i, value in enumerate((request.function, *request.broadcast))
    )
    run, join = _tasks(remote_sums.sum_batch), _tasks(remote_sums.join_sums)
    keys: list[Key] = []
    first: list[int] = []  # first item of each task
    for i, batch in enumerate(plan.batches):
        key = (f"map_reduce-{name}", i)
        items = _items(request, columns, batch.items)
        codes = function, request.reduction
        graph.tasks[key] = run(key, *codes, batch.items, items, List(broadcast))
        graph.where[key] = batch.worker
        keys.append(key)
        first.append(batch.items[0])
    last = [len(keys) - 1 + len(plan.joins)]
    joins = list(plan.joins)
    if small and joins and len(joins[-1].parts) <= reduction_plan.JOIN_WIDTH:
        last = list(joins.pop().parts)
    for i, step in enumerate(joins):
        key = (f"join-{name}", i)
        numbers = [first[part] for part in step.parts]
        parts = [TaskRef(keys[part]) for part in step.parts]
        graph.tasks[key] = join(key, request.reduction, numbers, List(*parts))
        graph.where[key] = step.worker
        keys.append(key)
        first.append(numbers[0])
    graph.partitions["result"] = [keys[i] for i in last]
    return graph, [first[i] for i in last]


_tasks = cache(ship.Tasks)  # pickling a function takes longer than a small sum


def _argument(graph: graphs.Graph, key: Key, value: Any, n_tasks: int) -> Any:
    """Return the argument as it appears in tasks."""
    if isinstance(value, Future):
        return TaskRef(value.key)
    if reduction_plan.is_separate(sizeof(value), n_tasks):
        graph.tasks[key] = Task(key, list, [_PAD, value])
        return Task(None, operator.getitem, TaskRef(key), 1)
    # copying an array aligns it
    return Task(None, np.array, value) if type(value) is np.ndarray else value


def _items(
    request: SumRequest,
    columns: Sequence[Sequence[Future[Any]]],
    numbers: Sequence[int],
) -> Any:
    if not columns:
        return [request.values[numbers[0] : numbers[-1] + 1]]
    refs = [[TaskRef(column[i].key) for i in numbers] for column in columns]
    return List(*(List(*column) for column in refs))


# --- errors ---------------------------------------------------------------------------


def _failure(error: BaseException, plan: Plan) -> Exception | None:
    """Return the error that explains the failure of a task; None for other errors."""
    if isinstance(error, CancelledError):
        return IncompleteError(
            "items, broadcast futures or results are not on this cluster: they were "
            "cancelled, or scattered and lost with a worker, or are of another "
            f"cluster: {printable(str(error), longest=300)}. Load or compute the items "
            "and broadcast futures again, with this client"
        )
    if isinstance(error, KilledWorker):
        return _killed(error, plan)
    if error.args[:1] != (remote_sums.FAILED,):
        return None
    _, operation, number, cause, location = error.args
    text = printable(str(cause) or type(cause).__name__, longest=1000)
    details = f"{type(cause).__name__}: {text} ({printable(location, longest=300)})"
    texts = {
        "func": f"func failed at item {number}: {details}",
        "reduce": f"reduce failed at the result of item {number}: {details}",
        "sum": f"the result of item {number} does not fit earlier results: {text}",
    }
    failure = FunctionError(texts[operation])
    failure.items, failure.__cause__ = (number,), cause
    return failure


def _killed(error: KilledWorker, plan: Plan) -> FunctionError | None:
    """Return the error for a task during which several workers ended."""
    name, number = error.task if isinstance(error.task, tuple) else (error.task, -1)
    if not str(name).startswith("map_reduce-") or not isinstance(number, int):
        return None
    items = tuple(plan.batches[number].items)
    first, last = items[0], items[-1]
    of = f"item {first}" if first == last else f"some of the items {first} to {last}"
    failure = FunctionError(
        f"{error.allowed_failures + 1} workers ended while they worked on {of}. They "
        "may have exceeded their memory, or native code crashed; see the workers' logs"
    )
    failure.items = items
    return failure
