"""A function of many items, added up on the workers: ``map_reduce``.

What is decided is in ``batching``; this sends it to the cluster as one graph, waits for
the one result, and lets everything go. What all tasks share and is large is a task of
its own in that graph and not scattered: it is computed again where a worker is lost,
and freed with the graph.
"""

from __future__ import annotations

import asyncio
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from functools import cache
from typing import Any
from uuid import uuid4

import dask.array as da
import numpy as np
from dask._task_spec import List, Task, TaskRef
from dask.sizeof import sizeof
from distributed import Client, Future, KilledWorker

from clustertune.collections import graphs, inputs
from clustertune.core.model import Key
from clustertune.core.wording import printable
from clustertune.errors import (
    AlignmentError,
    IncompleteError,
    ItemError,
    NoWorkersError,
)
from clustertune.monitor import connection, monitor
from clustertune.remote import ship, summing
from clustertune.training import batching, terms
from clustertune.training.batching import Argument, Plan
from clustertune.training.terms import Reduce, Terms

POLL = 0.02  # seconds between two looks whether pieces are in memory
WATCH = 2.0  # seconds between two looks whether a worker was lost

#: Goes before what is large, so that its numbers begin at multiples of their size; they
#: are read up to twice as fast there. Of what travels together, Dask reads the first
#: array to where it happens to come, and the others to memory of their own.
_PAD = np.zeros(1, dtype=np.uint8)


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
        asked = terms.check(client, func, items, broadcast, reduce)
        for remark in asked.remarks:
            warnings.warn(remark, stacklevel=2)
        return client.sync(_carry_out, asked)

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
        return client.sync(_plan, terms.check(client, func, items, broadcast, reduce))


map_reduce = MapReduce()


# --- what will be done ----------------------------------------------------------------


async def _plan(asked: Terms) -> Plan:
    columns = [list(asked.futures)] if asked.futures else []
    for collection in asked.collections:
        keys, futures = inputs.pieces(collection)
        # nothing lies anywhere yet: pieces are loaded, evenly as far as is known
        columns.append(futures or [None] * len(keys))
    return await _decided(asked, columns)


async def _decided(asked: Terms, columns: Sequence[Sequence[Any]]) -> Plan:
    (names, threads), pieces = await asyncio.gather(
        _workers(asked.client), _places(asked.client, columns)
    )
    remarks = list(asked.remarks)
    if columns:
        batches = batching.where_they_lie(pieces, threads)
        remarks += batching.remarks(batches, pieces)
    else:
        batches = batching.spread(len(asked.values), threads)
    return Plan(
        batches=batches,
        joins=batching.tree(batches),
        arguments=tuple(_arguments(asked, len(batches))),
        workers=names,
        threads=threads,
        remarks=tuple(remarks),
    )


def _arguments(asked: Terms, n_tasks: int) -> Iterator[Argument]:
    size = len(asked.function)
    yield Argument("func", size, batching.apart(size, n_tasks))
    for i, value in enumerate(asked.broadcast):
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
    if not keys:
        return [{} for _ in zip(*columns, strict=True)]
    holders: Mapping[Key, Any]
    sizes: Mapping[Key, int]
    holders, sizes = await asyncio.gather(
        scheduler.who_has(keys=keys), scheduler.nbytes(keys=keys, summary=False)
    )
    found = []
    for item in zip(*columns, strict=True):
        held: dict[str, int] = {}
        for key in (f.key for f in item if f is not None):
            for worker in holders.get(key, ()):
                held[worker] = held.get(worker, 0) + sizes.get(key, 0)
        found.append(held)
    return found


# --- and done -------------------------------------------------------------------------


async def _carry_out(asked: Terms) -> Any:
    with _loaded(asked) as columns:
        await _settle(asked.client, [f for column in columns for f in column])
        plan, name = await _decided(asked, columns), uuid4().hex
        graph = _graph(asked, plan, columns, name)
        try:
            (result,) = graphs.submit(asked.client, graph).values()
        # whatever a class of somebody's does when it is pickled
        except Exception:
            terms.refuse_unsendable(asked)
            raise
        try:
            return await _awaited(asked.client, result, plan, name)
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
def _loaded(asked: Terms) -> Iterator[list[list[Future[Any]]]]:
    """Futures of the items, by collection; those made for this call are let go."""
    columns = [list(asked.futures)] if asked.futures else []
    made: list[Future[Any]] = []
    try:
        found = [inputs.pieces(x)[1] for x in asked.collections]
        lazy = [
            # small pieces of Parquet files are joined now, or would be missing after
            x if isinstance(x, da.Array) else x.optimize()
            for x, futures in zip(asked.collections, found, strict=True)
            if futures is None
        ]
        persisted = iter(asked.client.persist(lazy)) if lazy else iter(())
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
        connection.refuse_closed(client)
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
    asked: Terms, plan: Plan, columns: Sequence[Sequence[Future[Any]]], name: str
) -> graphs.Graph:
    graph = graphs.Graph(loose=True)
    function, *broadcast = (
        _argument(graph, (f"broadcast-{name}", i), argument, value)
        for i, (argument, value) in enumerate(
            zip(plan.arguments, (asked.function, *asked.broadcast), strict=True)
        )
    )
    run, join = _tasks(summing.batch), _tasks(summing.join)
    keys: list[Key] = []
    first: list[int] = []  # item of each of them
    for i, batch in enumerate(plan.batches):
        key = (f"map_reduce-{name}", i)
        items = _items(asked, columns, batch.items)
        codes = function, asked.reduction
        graph.tasks[key] = run(key, *codes, batch.items, items, List(broadcast))
        graph.where[key] = batch.worker
        keys.append(key)
        first.append(batch.items[0])
    for i, step in enumerate(plan.joins):
        key = (f"join-{name}", i)
        numbers = [first[part] for part in step.parts]
        parts = [TaskRef(keys[part]) for part in step.parts]
        graph.tasks[key] = join(key, asked.reduction, numbers, List(*parts))
        graph.where[key] = step.worker
        keys.append(key)
        first.append(numbers[0])
    graph.pieces["result"] = [keys[-1]]
    return graph


_tasks = cache(ship.Tasks)  # pickling a function takes longer than a small sum


def _argument(graph: graphs.Graph, key: Key, argument: Argument, value: Any) -> Any:
    """What stands for it in the tasks."""
    if argument.nbytes is None:
        return TaskRef(value.key)
    if argument.apart:
        graph.tasks[key] = Task(key, list, [_PAD, value])
        return Task(None, operator.getitem, TaskRef(key), 1)
    # a copy is aligned
    return Task(None, np.array, value) if type(value) is np.ndarray else value


def _items(
    asked: Terms, columns: Sequence[Sequence[Future[Any]]], numbers: Sequence[int]
) -> Any:
    if not columns:
        return [asked.values[numbers[0] : numbers[-1] + 1]]
    refs = [[TaskRef(column[i].key) for i in numbers] for column in columns]
    return List(*(List(*column) for column in refs))


# --- what went wrong ------------------------------------------------------------------


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
