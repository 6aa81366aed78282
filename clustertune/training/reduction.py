"""``map_reduce``: sum a function of many items on the workers.

``reduction_plan`` decides the tasks. This module sends them as one graph, waits for the
one result and releases everything. A large argument that all tasks need is a task of
the graph. If it were scattered, Dask could not recompute it after the loss of a worker.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import CancelledError
from functools import cache
from time import monotonic
from typing import Any
from uuid import uuid4

import numpy as np
from dask._task_spec import List, Task, TaskRef
from dask.sizeof import sizeof
from distributed import Client, Future, KilledWorker

from clustertune.collections import graphs
from clustertune.core.model import Key
from clustertune.core.wording import printable, seconds_text, workers_text
from clustertune.errors import FunctionError, IncompleteError, NoWorkersError
from clustertune.monitor import connection, monitor
from clustertune.monitor.connection import sync
from clustertune.remote import ship
from clustertune.remote.scheduler.state import by_name
from clustertune.training import reduction_plan, remote_sums
from clustertune.training.reduction_plan import Plan, SumRequest
from clustertune.training.remote_sums import Reduce

WATCH_INTERVAL = 2.0  # seconds between two checks for lost workers
NO_WORKER_TIMEOUT = 300.0  # seconds without any worker after which a call ends
#: seconds after which the result of a call is released if no other call follows
RELEASE_DELAY = 0.05
LATEST = "_clustertune_map_reduce"  # attribute of a client: result of its last call
#: states of futures without a result; "lost": until a lost result is recomputed
PENDING = ("pending", "lost")
MAX_REPEATED = 8_000_000  # bytes of an argument that may travel repeatedly, in total

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
    results, first those of the same worker, and the client receives one. The order of
    additions depends on the items and their holders only, so the same layout gives the
    same bits. No data stays on the cluster.

    Parameters
    ----------
    client
        A connected client; an asynchronous one returns an awaitable.
    func
        Function of an item and the broadcast arguments. It must change neither.
    items
        A sequence (list, tuple, range, rows of a NumPy array); a list of futures; a
        Dask Array, DataFrame or Series in memory, whose partitions are the items; or
        a tuple of row-aligned collections such as ``(X, y)``. Then
        ``func(X_i, y_i, *broadcast)`` runs on the holder of the partition.
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
        The collections have other numbers of partitions, or several column blocks.
    IncompleteError
        Items were lost with a worker and cannot be recomputed.
    NoWorkersError, ConnectionLostError, VersionMismatchError
        The cluster has no worker, or none for 5 minutes of the call. It is gone, or
        cannot run code of this client.

    Examples
    --------
    >>> w = w - step * map_reduce(client, gradient, (X, y),
    ...                           broadcast=(w,))           # doctest: +SKIP
    """
    request = reduction_plan.check_arguments(client, func, items, broadcast, reduce)
    return sync(client, _run, request)


# --- the plan -------------------------------------------------------------------------


async def _planned(request: SumRequest) -> Plan:
    parts = [[f.key for f in item] for item in zip(*request.columns, strict=True)]
    threads, items = await asyncio.gather(
        _threads(request.client), monitor.held_bytes(request.client, parts)
    )
    if parts:
        batches = reduction_plan.group_by_holder(items, threads)
    else:
        batches = reduction_plan.spread_items(len(request.values), threads)
    return Plan(batches, reduction_plan.join_tree(batches))


async def _threads(client: Client) -> dict[str, int]:
    """Return threads of usable workers by address, ordered by name."""
    found = await monitor.usable_workers(client)
    ordered = sorted(found, key=lambda a: by_name(monitor.worker_id(a, found[a])))
    return {a: int(found[a]["nthreads"]) for a in ordered}


# --- execution ------------------------------------------------------------------------


async def _run(request: SumRequest) -> Any:
    futures = [future for column in request.columns for future in column]
    await _wait_for_items(request.client, futures)
    plan, name = await _planned(request), uuid4().hex
    graph = _graph(request, plan, name)
    _release_latest(request.client)
    try:
        (result,) = graphs.submit(request.client, graph).values()
    # a class of the user may raise any error while it is pickled
    except Exception as error:
        connection.refuse_closed(request.client)
        raise reduction_plan.unsendable("items or broadcast", error) from error
    try:
        total = await _watched(
            request.client, request.client.gather(result), plan, name
        )
    except BaseException as error:
        result.release()  # at once, because its tasks may wait
        if isinstance(error, CancelledError):
            connection.refuse_closed(request.client)
        failure = _failure(error, plan)
        if failure is None:
            raise
        raise failure from failure.__cause__ or error
    # Dask's client sends messages at most every 10 ms. If the result was released
    # now, the graph of the next call would wait for that. As an attribute of its
    # client, it is freed with it if the event loop ends before.
    vars(request.client)[LATEST] = result
    asyncio.get_running_loop().call_later(RELEASE_DELAY, result.release)
    return total


def _release_latest(client: Client) -> None:
    """Release the result of the last call; releasing it twice has no effect."""
    latest: Future[Any] | None = vars(client).pop(LATEST, None)
    if latest is not None:
        latest.release()


async def _wait_for_items(client: Client, futures: Sequence[Future[Any]]) -> None:
    """Wait until all items are in memory or have failed."""
    if any(f.status in PENDING for f in futures):
        await _watched(client, _settled(client, futures))
    if gone := [f.key for f in futures if f.status == "cancelled"]:
        connection.refuse_closed(client)
        raise _gone(str(gone[0]))


async def _settled(client: Client, futures: Sequence[Future[Any]]) -> None:
    while futures := [f for f in futures if f.status in PENDING]:
        await graphs.wait_for_last(client, futures, WATCH_INTERVAL)


async def _watched(
    client: Client, work: Awaitable[Any], plan: Plan | None = None, name: str = ""
) -> Any:
    """Wait for work, and end a wait without any worker.

    The tasks of a plan run on other workers if theirs are lost.
    """
    waiting = asyncio.ensure_future(work)
    bound = {batch.worker for batch in plan.batches} if plan else set()
    seen = monotonic()  # time at which there was a worker
    try:
        while not (await asyncio.wait({waiting}, timeout=WATCH_INTERVAL))[0]:
            workers = (await monitor.identify(client))["workers"]
            if workers:
                seen = monotonic()
            elif monotonic() - seen > NO_WORKER_TIMEOUT:
                limit = seconds_text(NO_WORKER_TIMEOUT)
                raise NoWorkersError(
                    f"the cluster has had no worker for {limit}. Start one, and call "
                    "map_reduce again"
                )
            if not bound <= workers.keys():
                await ship.on_scheduler(client, remote_sums.free_stuck, name=name)
        return await waiting
    finally:
        waiting.cancel()


def _graph(request: SumRequest, plan: Plan, name: str) -> graphs.Graph:
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
        items = _items(request, batch.items)
        codes = function, request.reduction
        graph.tasks[key] = run(key, *codes, batch.items, items, List(broadcast))
        graph.where[key] = batch.worker
        keys.append(key)
        first.append(batch.items[0])
    # Dask runs a join on a worker that has one of the results
    for i, parts in enumerate(plan.joins):
        key = (f"join-{name}", i)
        numbers = [first[part] for part in parts]
        sums = List(*(TaskRef(keys[part]) for part in parts))
        graph.tasks[key] = join(key, request.reduction, numbers, sums)
        keys.append(key)
        first.append(numbers[0])
    graph.partitions["result"] = keys[-1:]
    return graph


_tasks = cache(ship.Tasks)  # pickling a function takes longer than a small sum


def _argument(graph: graphs.Graph, key: Key, value: Any, n_tasks: int) -> Any:
    """Return the argument as it appears in tasks."""
    if isinstance(value, Future):
        return TaskRef(value.key)
    # a task more, for which workers wait; otherwise each task travels with the value
    if (n_tasks - 1) * sizeof(value) > MAX_REPEATED:
        graph.tasks[key] = Task(key, list, [_PAD, value])
        return Task(None, operator.getitem, TaskRef(key), 1)
    # copying an array aligns it
    return Task(None, np.array, value) if type(value) is np.ndarray else value


def _items(request: SumRequest, numbers: Sequence[int]) -> Any:
    if not request.columns:
        return [request.values[numbers[0] : numbers[-1] + 1]]
    refs = [[TaskRef(column[i].key) for i in numbers] for column in request.columns]
    return List(*(List(*column) for column in refs))


# --- errors ---------------------------------------------------------------------------


def _gone(text: str) -> IncompleteError:
    return IncompleteError(
        "items, broadcast futures or results are not on this cluster: they were "
        "cancelled, or scattered and lost with a worker, or are of another cluster: "
        f"{printable(text, longest=300)}. Load or compute the items and broadcast "
        "futures again, with this client"
    )


def _failure(error: BaseException, plan: Plan) -> Exception | None:
    """Return the error that explains the failure of a task; None for other errors."""
    # an error of asyncio, which ends the call, has another class
    if isinstance(error, CancelledError):
        return _gone(str(error))
    if isinstance(error, KilledWorker):
        return _killed(error, plan)
    is_ours = isinstance(error, RuntimeError)
    if not is_ours or error.args[:1] != (remote_sums.FAILED,):
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
    worker = str(error.last_worker.address)
    failure = FunctionError(
        f"{error.allowed_failures + 1} workers ended while they worked on {of}, the "
        f"last one {workers_text([printable(worker)])}. They may have exceeded their "
        "memory, or native code crashed; see the logs of workers and nannies. Use "
        "workers with more memory (clustertune.resize_workers), or less data"
    )
    failure.worker = worker
    failure.items = items
    return failure
