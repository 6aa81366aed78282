"""A function of many items, added up on the workers: ``map_reduce``.

What is decided is in ``batching``; this sends it to the cluster as one graph, waits for
the one result, and lets everything go. What all tasks share and is large is a task of
its own in that graph and not scattered: it is computed again where a worker is lost,
and freed with the graph.
"""

from __future__ import annotations

import asyncio
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any
from uuid import uuid4

import cloudpickle
import dask.array as da
import numpy as np
from dask._task_spec import List, Task, TaskRef
from dask.base import is_dask_collection
from dask.delayed import Delayed
from dask.sizeof import sizeof
from distributed import Client, Future, KilledWorker

from clustertune import graphs, inputs, monitor
from clustertune.errors import (
    AlignmentError,
    ConnectionLostError,
    IncompleteError,
    ItemError,
    NoWorkersError,
)
from clustertune.model import Key
from clustertune.remote import ship, summing
from clustertune.training import batching
from clustertune.training.batching import Argument, Plan
from clustertune.wording import bytes_text, plural, printable

POLL = 0.02  # seconds between two looks whether pieces are in memory
WATCH = 2.0  # seconds between two looks whether a worker was lost
LARGE = 10_000_000  # bytes of items that had better lie on the cluster, as Dask says

Reduce = Callable[[Any, Any], Any]


class MapReduce:
    """Adds up a function of many items on the workers; see :meth:`__call__`."""

    def __call__(
        self,
        client: Client,
        func: Callable[..., Any],
        items: Any,
        *,
        broadcast: Sequence[Any] = (),
        reduce: Reduce | None = None,
    ) -> Any:
        """Sum ``func(item, *broadcast)`` over all items, on the workers.

        One task for each thread adds up its share of the items; results are joined on
        the workers, those of the same worker first, and one comes home. The order of
        the sum is that of the items and of where they lie, so the same layout gives the
        same bits. Nothing stays on the cluster.

        Parameters
        ----------
        client
            A connected client, synchronous or asynchronous; with the latter the result
            is awaited.
        func
            Called with an item and what is broadcast; it must not change either.
        items
            A sequence (list, tuple, range, rows of a NumPy array); a list of futures; a
            Dask Array, DataFrame or Series, whose pieces are the items; or a tuple of
            row-aligned ones such as ``(X, y)``: then ``func(X_i, y_i, *broadcast)``
            runs where the piece lies. Collections that are not in memory are loaded for
            the call.
        broadcast
            Further arguments, the same for all items; futures stand for their results.
        reduce
            Instead of a sum, what makes one result of two, which are whole results of
            ``func`` or of ``reduce``: ``max``, ``np.maximum``. It must not mind how
            they are grouped, and must not change them.

        Returns
        -------
        object
            What ``func`` returns, added up: a number or an array, or dicts, lists,
            tuples and named tuples of them. Truth values are counted.

        Raises
        ------
        TypeError, ValueError
            An argument is not what it should be, or cannot be sent to workers.
        ItemError
            ``func`` failed at an item, or what it returned does not fit the others;
            tasks that had not begun are cancelled.
        AlignmentError
            The collections are not row-aligned, or cut in columns.
        IncompleteError
            Items were lost with a worker, and nobody can make them again.
        NoWorkersError, ConnectionLostError, VersionMismatchError
            There is no worker, no cluster, or none to which code may be sent.

        Examples
        --------
        >>> w = w - step * map_reduce(client, gradient, (X, y),
        ...                           broadcast=(w,))           # doctest: +SKIP
        """
        request = _request(client, func, items, broadcast, reduce)
        for remark in request.remarks:
            warnings.warn(remark, stacklevel=2)
        return client.sync(_carry_out, request)

    def plan(
        self,
        client: Client,
        func: Callable[..., Any],
        items: Any,
        *,
        broadcast: Sequence[Any] = (),
        reduce: Reduce | None = None,
    ) -> Any:
        """Say what a call with these arguments would do, and why.

        Nothing runs, and collections that are not in memory are not loaded: what lies
        nowhere yet is shown as spread evenly.

        Returns
        -------
        Plan
            The tasks with their workers; as text, in words. An asynchronous client is
            given an awaitable.

        Raises
        ------
        TypeError, ValueError, AlignmentError, NoWorkersError
            As the call would.
        """
        return client.sync(_plan, _request(client, func, items, broadcast, reduce))


map_reduce = MapReduce()


# --- what was asked for ---------------------------------------------------------------


@dataclass(frozen=True)
class _Request:
    """Arguments that have been checked."""

    client: Client
    code: bytes  # function and reduction
    values: Any  # items of this process, in a sequence that can be sliced; or None
    collections: tuple[Any, ...]  # or else these
    futures: tuple[Future[Any], ...]  # or else these
    broadcast: tuple[Any, ...]
    remarks: tuple[str, ...] = ()


def _request(
    client: Any, func: Any, items: Any, broadcast: Any, reduce: Any
) -> _Request:
    inputs.check_client(client, inputs.NOTHING)
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
                f"broadcast[{i}] is lazy ({_type(value)}): every worker would need "
                "all of it; give what compute() returns, or a future"
            )
    request = _Request(
        client=client,
        code=_pickled(func, reduce),
        values=None,
        collections=(),
        futures=(),
        broadcast=tuple(broadcast),
    )
    return _with_items(request, items)


def _pickled(func: Any, reduce: Any) -> bytes:
    for name, value in {"func": func, "reduce": reduce}.items():
        _refuse_unsendable(name, value)
    code: bytes = cloudpickle.dumps((func, reduce))
    return code


def _refuse_unsendable(name: str, value: Any) -> None:
    try:
        # arrays are not copied: their bytes are what is handed over beside
        cloudpickle.dumps(value, protocol=5, buffer_callback=lambda _: False)
    # whatever a class of somebody's does when it is pickled
    except Exception as error:
        raise TypeError(
            f"{name} cannot be sent to workers: {_type(value)} does not pickle "
            f"({error}); leave out what belongs to this process, such as locks, open "
            "files and clients"
        ) from error


def _with_items(request: _Request, items: Any) -> _Request:
    if isinstance(items, tuple) and any(map(is_dask_collection, items)):
        return _with_collections(request, items)
    if is_dask_collection(items):
        return _with_collections(request, (items,))
    sequence = isinstance(items, Sequence) and not isinstance(items, str | bytes)
    if not sequence and not (isinstance(items, np.ndarray) and items.ndim):
        raise TypeError(
            "items must be a sequence (whose length and order are known), a Dask "
            "collection, or a tuple of row-aligned ones; it was "
            f"{_type(items)}. Make it one: items = list(items)"
        )
    if not len(items):
        raise ValueError("items is empty: there is nothing to add up")
    rows = isinstance(items, np.ndarray) and items.dtype.kind != "O"
    if rows or isinstance(items, range):
        return _with_values(request, items)
    listed = items if isinstance(items, list | tuple) else list(items)
    if all(isinstance(item, Future) for item in listed):
        _refuse_foreign(request.client, listed)
        return replace(request, futures=tuple(listed))
    _refuse_mixed(listed)
    return _with_values(request, listed)


def _refuse_mixed(listed: Sequence[Any]) -> None:
    for i, item in enumerate(listed):
        if isinstance(item, Delayed):
            raise TypeError(
                f"items[{i}] is a Delayed: nothing has computed it yet; "
                "items = client.compute(items) makes futures of all"
            )
        if is_dask_collection(item):
            raise TypeError(
                f"items[{i}] is a Dask collection in a list; row-aligned collections "
                "are given in a tuple: items=(X, y)"
            )
        if isinstance(item, Future):
            raise TypeError(f"items[{i}] is a future and others are not; give one kind")


def _with_values(request: _Request, values: Any) -> _Request:
    nbytes = sizeof(values)
    if nbytes <= LARGE:
        return replace(request, values=values)
    remark = (
        f"items take {bytes_text(nbytes)}, which go from this process to the workers "
        "in each call; have them loaded there instead (func can read its part), or "
        "send them once: items = client.scatter(items)"
    )
    return replace(request, values=values, remarks=(remark,))


def _refuse_foreign(client: Client, futures: Sequence[Future[Any]]) -> None:
    for i, future in enumerate(futures):
        owner = future.client
        if owner is None or owner.status != "running" or future.cancelled():
            raise ValueError(f"items[{i}] is released or cancelled; compute it again")
        theirs = getattr(owner.scheduler, "address", None)
        ours = getattr(client.scheduler, "address", None)
        if owner is not client and theirs != ours:
            raise ValueError(
                f"items[{i}] lies on the cluster {theirs}, but client is connected to "
                f"{ours}; give the client of that cluster"
            )


def _with_collections(request: _Request, items: tuple[Any, ...]) -> _Request:
    X, y, *others = (*items, None) if len(items) == 1 else items
    given = inputs.gather(X, y, others, {}, None)
    inputs.check_client(request.client, given)
    collections = {label: given.collection(label) for label in given.training}
    rows = {label: _rows(label, x) for label, x in collections.items()}
    first, *rest = rows
    for label in rest:
        _refuse_misaligned(first, rows[first], label, rows[label])
    return replace(request, collections=tuple(collections.values()))


def _rows(label: str, collection: Any) -> list[float]:
    """Rows of each piece, NaN where nobody knows."""
    if not isinstance(collection, da.Array):
        return [math.nan] * collection.npartitions
    if math.prod(collection.numblocks[1:]) > 1:
        raise AlignmentError(
            f"{label} is cut in columns, so none of its pieces has whole rows; join "
            f"them: {label} = {label}.rechunk({{0: 'auto', 1: -1}})"
        )
    return list(collection.chunks[0])


def _refuse_misaligned(
    first: str, ours: Sequence[float], label: str, theirs: Sequence[float]
) -> None:
    advice = f"clustertune.prepare(client, {first}, {label}) cuts them alike"
    if len(ours) != len(theirs):
        raise AlignmentError(
            f"{first} has {plural(len(ours), 'piece')} and {label} has "
            f"{len(theirs):,}: they are not row-aligned; {advice}"
        )
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if not math.isnan(a) and not math.isnan(b) and a != b:
            raise AlignmentError(
                f"piece {i} of {first} has {a:,} rows and that of {label} has {b:,}: "
                f"they are not row-aligned; {advice}"
            )


def _type(value: Any) -> str:
    return type(value).__name__


# --- what will be done ----------------------------------------------------------------


async def _plan(request: _Request) -> Plan:
    columns = [list(request.futures)] if request.futures else []
    for collection in request.collections:
        keys, futures = inputs.pieces(collection)
        # nothing lies anywhere yet: pieces are loaded, evenly as far as is known
        columns.append(futures or [None] * len(keys))
    return await _decided(request, columns)


async def _decided(request: _Request, columns: Sequence[Sequence[Any]]) -> Plan:
    names, threads = await _workers(request.client)
    remarks = list(request.remarks)
    if columns:
        pieces = await _places(request.client, columns)
        batches = batching.where_they_lie(pieces, threads)
        remarks += batching.remarks(batches, pieces)
    else:
        batches = batching.spread(len(request.values), threads)
    return Plan(
        batches=batches,
        joins=batching.tree(batches),
        arguments=tuple(_arguments(request, len(batches))),
        workers=names,
        threads=threads,
        remarks=tuple(remarks),
    )


def _arguments(request: _Request, n_tasks: int) -> Iterator[Argument]:
    size = len(request.code)
    yield Argument("func", size, batching.apart(size, n_tasks))
    for i, value in enumerate(request.broadcast):
        name = f"broadcast[{i}]"
        if isinstance(value, Future):
            yield Argument(name, None, apart=False)
        else:
            size = sizeof(value)
            yield Argument(name, size, batching.apart(size, n_tasks))


async def _workers(
    client: Client,
) -> tuple[dict[str, str | int], dict[str, int]]:
    """Names and threads by address, in the order of the names."""
    identity = await monitor.identify(client)
    entries = identity["workers"]
    approved = await monitor.approve(client, entries)
    names = {
        address: monitor.worker_id(address, entry)
        for address, entry in entries.items()
        if entry["status"] == "running" and address in approved
    }
    if not names:
        raise NoWorkersError(
            f"the cluster {printable(identity['address'])} has no running worker to "
            f"which code may be sent (of {len(entries)}); start one, or wait: "
            "client.wait_for_workers(1)"
        )
    # 2 before 10, whether they are numbers or texts
    ordered = sorted(names, key=lambda a: (len(str(names[a])), str(names[a])))
    threads = {address: int(entries[address]["nthreads"]) for address in ordered}
    return {address: names[address] for address in ordered}, threads


async def _places(
    client: Client, columns: Sequence[Sequence[Any]]
) -> list[dict[str, int]]:
    """By address, how many bytes of each item a worker holds; of all collections."""
    scheduler: Any = client.scheduler
    keys = [f.key for column in columns for f in column if f is not None]
    holders: Mapping[Key, Any] = await scheduler.who_has(keys=keys) if keys else {}
    sizes = await scheduler.nbytes(keys=keys, summary=False) if keys else {}
    found = []
    for item in zip(*columns, strict=True):
        held: dict[str, int] = {}
        for key in (f.key for f in item if f is not None):
            for worker in holders.get(key, ()):
                held[worker] = held.get(worker, 0) + sizes.get(key, 0)
        found.append(held)
    return found


# --- and done -------------------------------------------------------------------------


async def _carry_out(request: _Request) -> Any:
    with _loaded(request) as columns:
        await _settle(request.client, [f for column in columns for f in column])
        plan, name = await _decided(request, columns), uuid4().hex
        graph = _graph(request, plan, columns, name)
        try:
            (result,) = graphs.submit(request.client, graph).values()
        # whatever a class of somebody's does when it is pickled
        except Exception:
            _refuse_unsendable_arguments(request)
            raise
        try:
            return await _awaited(request.client, result, plan, name)
        except (RuntimeError, KilledWorker) as error:
            failure = _failure(error, plan)
            if failure is None:
                raise
            raise failure from (error.args[3] if _ours(error) else error)
        except CancelledError as error:
            raise IncompleteError(
                "items or results were lost with a worker and cannot be made again, as "
                f"what was scattered: {printable(str(error), longest=300)}; load the "
                "items again"
            ) from error
        finally:
            # at once, and not when the error is forgotten: nothing waits on the cluster
            result.release()


@contextmanager
def _loaded(request: _Request) -> Iterator[list[list[Future[Any]]]]:
    """Futures of the items, by collection; those made for this call are let go."""
    columns = [list(request.futures)] if request.futures else []
    made: list[Future[Any]] = []
    try:
        found = [inputs.pieces(x)[1] for x in request.collections]
        lazy = [
            # small pieces of Parquet files are joined now, or would be missing after
            x if isinstance(x, da.Array) else x.optimize()
            for x, futures in zip(request.collections, found, strict=True)
            if futures is None
        ]
        persisted = iter(request.client.persist(lazy)) if lazy else iter(())
        for futures in found:
            column = futures or inputs.pieces(next(persisted))[1]
            assert column is not None
            made += column if futures is None else []
            columns.append(column)
        if len({len(column) for column in columns}) > 1:
            raise AlignmentError(
                "Dask joined pieces of one collection when it was loaded, so they are "
                "not row-aligned any more; clustertune.prepare loads all as they are"
            )
        yield columns
    finally:
        for future in made:
            future.release()


async def _settle(client: Client, futures: Sequence[Future[Any]]) -> None:
    """Wait until the items are somewhere, or have failed."""
    # "lost" is what a client calls a key whose worker died until it is there again
    pending = futures
    while pending := [f for f in pending if f.status in ("pending", "lost")]:
        if client.status != "running":
            raise ConnectionLostError(f"the client is {client.status}")
        # looking at 100,000 states takes as long as the pause should
        await asyncio.sleep(POLL + len(pending) * 1e-6)


async def _awaited(client: Client, result: Future[Any], plan: Plan, name: str) -> Any:
    """The result; where a worker is lost meanwhile, no task waits for it."""
    gathering = asyncio.ensure_future(client.gather(result))
    try:
        while not (await asyncio.wait({gathering}, timeout=WATCH))[0]:
            workers = (await monitor.identify(client))["workers"]
            if not plan.workers.keys() <= workers.keys():
                await ship.on_scheduler(client, summing.free_stuck, name=name)
        return await gathering
    finally:
        gathering.cancel()


def _graph(
    request: _Request, plan: Plan, columns: Sequence[Sequence[Future[Any]]], name: str
) -> graphs.Graph:
    graph = graphs.Graph(loose=True)
    code, *broadcast = (
        _argument(graph, (f"broadcast-{name}", i), argument, value)
        for i, (argument, value) in enumerate(
            zip(plan.arguments, (request.code, *request.broadcast), strict=True)
        )
    )
    run, join = _shipped(summing.batch), _shipped(summing.join)
    keys: list[Key] = []
    first: list[int] = []  # item of each of them
    for i, batch in enumerate(plan.batches):
        key = (f"map_reduce-{name}", i)
        items = _items(request, columns, batch.items)
        task = Task(key, run, code, batch.items, items, List(*broadcast))
        graph.tasks[key], graph.where[key] = task, batch.worker
        keys.append(key)
        first.append(batch.items[0])
    for i, step in enumerate(plan.joins):
        key = (f"join-{name}", i)
        numbers = [first[part] for part in step.parts]
        parts = [TaskRef(keys[part]) for part in step.parts]
        graph.tasks[key] = Task(key, join, code, numbers, *parts)
        graph.where[key] = step.worker
        keys.append(key)
        first.append(numbers[0])
    graph.pieces["result"] = [keys[-1]]
    return graph


_shipped = cache(ship.function)  # pickling them takes longer than a small sum


def _argument(graph: graphs.Graph, key: Key, argument: Argument, value: Any) -> Any:
    """What stands for it in the tasks."""
    if argument.nbytes is None:
        return TaskRef(value.key)
    if not argument.apart:
        return value
    graph.tasks[key] = Task(key, _shipped(summing.same), value)
    return TaskRef(key)


def _items(
    request: _Request, columns: Sequence[Sequence[Future[Any]]], numbers: Sequence[int]
) -> Any:
    if not columns:
        return [request.values[numbers[0] : numbers[-1] + 1]]
    refs = [[TaskRef(column[i].key) for i in numbers] for column in columns]
    return List(*(List(*column) for column in refs))


# --- what went wrong ------------------------------------------------------------------


def _refuse_unsendable_arguments(request: _Request) -> None:
    for i, value in enumerate(request.broadcast):
        _refuse_unsendable(f"broadcast[{i}]", value)
    for i, value in enumerate(() if request.values is None else request.values):
        _refuse_unsendable(f"items[{i}]", value)


def _ours(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and error.args[:1] == (summing.FAILED,)


def _failure(error: BaseException, plan: Plan) -> ItemError | None:
    """The error for the user; None: it is not ours to explain."""
    if isinstance(error, KilledWorker):
        return _killed(error, plan)
    if not _ours(error):
        return None
    _, what, number, cause, where = error.args
    text = printable(str(cause) or type(cause).__name__, longest=1000)
    said = {
        "func": f"func failed at item {number}: {type(cause).__name__}: {text} "
        f"({printable(where, longest=300)})",
        "reduce": f"reduce failed when the result of item {number} came to it: "
        f"{type(cause).__name__}: {text} ({printable(where, longest=300)})",
        "sum": f"the result of item {number} does not fit those before it: {text}",
    }
    failure = ItemError(said[what])
    failure.items = (number,)
    return failure


def _killed(error: KilledWorker, plan: Plan) -> ItemError | None:
    """A task that took its workers with it, one after the other."""
    name, number = error.task if isinstance(error.task, tuple) else (error.task, -1)
    if not str(name).startswith("map_reduce-") or not isinstance(number, int):
        return None
    items = tuple(plan.batches[number].items)
    failure = ItemError(
        f"{error.allowed_failures + 1} workers ended while they worked on "
        f"{_numbers(items)}, as when memory is exceeded or native code fails; see the "
        "workers' logs"
    )
    failure.items = items
    return failure


def _numbers(items: Sequence[int]) -> str:
    first, last = items[0], items[-1]
    return f"item {first}" if first == last else f"some of the items {first} to {last}"
