"""New pieces as a Dask graph: cut where the bytes lie, joined where they will be.

Parts that leave a worker are views there, bundled by the new piece for which they are,
and travel as one key; the new piece is joined on its target. Parts that stay are
copied, since a view would keep its whole old piece in memory. All task functions are
those of libraries, so nothing of ours travels, and the new pieces can be computed again
from the old ones, and those from what they were made of.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any
from uuid import uuid4

import dask
import dask.array as da
import numpy as np
from dask._task_spec import List, Task, TaskRef
from dask.array.core import concatenate3
from dask.array.utils import meta_from_array
from dask.base import annotate
from dask.dataframe import dispatch
from dask.dataframe.dask_expr import from_graph
from distributed import Client

from clustertune.model import Cut, Int64s, Key, Recut

LEAVING, ARRIVING, STAYING = 2, 1, 0  # priorities: what leaves makes room


@dataclass
class Graph:
    """Tasks, the worker of each, and the keys of the new pieces by label."""

    tasks: dict[Key, Task] = field(default_factory=dict)
    where: dict[Key, str] = field(default_factory=dict)
    priority: dict[Key, int] = field(default_factory=dict)
    pieces: dict[str, list[Key]] = field(default_factory=dict)
    sent: set[str] = field(default_factory=set)  # names of the keys that travel

    def add(self, task: Task, worker: str, priority: int) -> None:
        self.tasks[task.key] = task
        self.where[task.key] = worker
        self.priority[task.key] = priority


def build(recut: Recut, collections: Mapping[str, Any]) -> Graph:
    """The graph that makes the new pieces of the collections that are cut.

    Where old pieces are freed, copies of what stays on a worker wait until what leaves
    it has arrived, so that its memory hardly rises above what it held.
    """
    graph = Graph()
    for cut in recut.cuts:
        _add(graph, cut, recut, collections[cut.label])
    if recut.freed:
        _let_leave_first(graph)
    return graph


def _let_leave_first(graph: Graph) -> None:
    """Have the copies on each worker depend on the arrival of what it sends.

    What arrives is looked at where it is: only its number travels back.
    """
    arrived: dict[tuple[str, str], list[Key]] = {}
    for key, task in graph.tasks.items():
        if graph.priority[key] == ARRIVING:
            sources = {graph.where[d] for d in task.dependencies if d in graph.where}
            for source in sources:
                arrived.setdefault((source, graph.where[key]), []).append(key)
    name = f"arrived-{uuid4().hex}"
    gates: dict[str, list[TaskRef]] = {}
    for number, ((source, target), keys) in enumerate(arrived.items()):
        gate = (name, number)
        graph.add(Task(gate, len, List(*map(TaskRef, keys))), target, ARRIVING)
        gates.setdefault(source, []).append(TaskRef(gate))
    for key, task in list(graph.tasks.items()):
        after = gates.get(graph.where[key])
        if graph.priority[key] == STAYING and after:
            made = Task(None, task.func, *task.args)
            graph.tasks[key] = Task(key, operator.getitem, List(made, *after), 0)


def submit(client: Client, graph: Graph) -> dict[Key, Any]:
    """Send it to the scheduler; the futures of the new pieces by key.

    The keys of old pieces are known there and are named only: thousands of futures
    need not travel.
    """
    wanted = [key for keys in graph.pieces.values() for key in keys]
    quiet = {"distributed.admin.large-graph-warning-threshold": "1 TB"}
    with (
        dask.config.set(quiet),
        annotate(
            workers=_lookup(graph.where),
            priority=_lookup(graph.priority),
            allow_other_workers=False,
        ),
    ):
        futures = client.get(graph.tasks, wanted, sync=False)
    return dict(zip(wanted, futures, strict=True))


def _lookup(known: Mapping[Key, Any]) -> Callable[[Key], Any]:
    """A closure: it travels by value, and an instance would end the connection."""

    def lookup(key: Key) -> Any:
        return known.get(key)

    return lookup


def rebuilt(
    collection: Any, keys: Sequence[Key], rows: Int64s, futures: Mapping[Key, Any]
) -> Any:
    """The collection made of its new pieces."""
    graph = {key: futures[key] for key in keys}
    if isinstance(collection, da.Array):
        columns = tuple((sum(sizes),) for sizes in collection.chunks[1:])
        first: Any = keys[0]
        return da.Array(
            graph,
            first[0],
            (tuple(rows.tolist()), *columns),
            meta=meta_from_array(collection),
        )
    return from_graph(
        graph,
        collection._meta,  # noqa: SLF001 (its public name is that of a property)
        (None,) * (len(keys) + 1),
        list(keys),
        "prepared",
    )


# --- one collection -------------------------------------------------------------------


def _add(graph: Graph, cut: Cut, recut: Recut, collection: Any) -> None:
    kind = _Rows(collection)
    name = f"{kind.name}-{uuid4().hex}"
    keys: list[Key] = []
    for piece, parts in groupby(_parts(cut), key=operator.attrgetter("new")):
        key = (name, piece, *kind.tail)
        keys.append(key)
        _piece(graph, key, list(parts), int(recut.targets[piece]), recut.workers, kind)
    graph.pieces[cut.label] = keys


@dataclass(frozen=True, slots=True)
class _Part:
    new: int
    key: Key
    start: int
    stop: int
    owner: int


def _parts(cut: Cut) -> Iterator[_Part]:
    columns = (cut.new, cut.key, cut.start, cut.stop, cut.owner)
    for new, key, start, stop, owner in zip(
        *(c.tolist() for c in columns), strict=True
    ):
        yield _Part(new, cut.keys[key], start, stop, owner)


def _piece(
    graph: Graph,
    key: Key,
    parts: list[_Part],
    target: int,
    workers: Sequence[str],
    kind: _Rows,
) -> None:
    """The tasks of one new piece, on its target and on those who send to it."""
    sources: dict[int, list[Any]] = {}  # by owner, the views that it sends
    joined: list[Any] = []  # in the order of rows and blocks
    for part in parts:
        view = kind.view(part)
        if part.owner == target:
            joined.append(view)
            continue
        sent = sources.setdefault(part.owner, [])
        sent.append(view)
        there = TaskRef(_bundle(key, part.owner))
        joined.append(Task(None, operator.getitem, there, len(sent) - 1))
    for owner, views in sources.items():
        bundle = _bundle(key, owner)
        graph.add(Task(bundle, list, List(*views)), workers[owner], LEAVING)
        graph.sent.add(bundle[0])
    if len(joined) > 1:
        task = kind.join(key, joined)
    elif sources:
        (owner,) = sources
        task = Task(key, operator.getitem, TaskRef(_bundle(key, owner)), 0)
    else:
        # a part would keep the old piece alive; a whole one is that piece
        task = Task(key, kind.copy, joined[0])
    graph.add(task, workers[target], ARRIVING if sources else STAYING)


def _bundle(key: Any, owner: int) -> tuple[Any, ...]:
    name, *position = key
    return (f"parts-{name}", *position, owner)


class _Rows:
    """How rows of one kind of collection are cut and joined, in library functions."""

    def __init__(self, collection: Any):
        self.array = isinstance(collection, da.Array)
        self.blocks = collection.numblocks[1:] if self.array else ()
        self.tail = (0,) * len(self.blocks)
        self.name = "array" if self.array else "frame"
        plain = self.array and type(meta_from_array(collection)) is np.ndarray
        # np.array keeps the order of columns and rows in memory
        self.copy: Callable[..., Any] = (
            np.array if plain else operator.methodcaller("copy")
        )

    def view(self, part: _Part) -> Any:
        """These rows of an old piece."""
        rows = TaskRef(part.key)
        where = rows if self.array else Task(None, getattr, rows, "iloc")
        return Task(None, operator.getitem, where, slice(part.start, part.stop))

    def join(self, key: Key, parts: Iterable[Any]) -> Task:
        """All of them below each other, blocks of columns side by side."""
        if self.array:
            return Task(key, concatenate3, self._nested(list(parts)))
        return Task(key, dispatch.concat, List(*parts))

    def _nested(self, parts: list[Any]) -> Any:
        """Lists in lists, as deep as the array has dimensions."""
        nested = parts
        for size in reversed(self.blocks):
            nested = [List(*nested[i : i + size]) for i in range(0, len(nested), size)]
        assert len(nested) * math.prod(self.blocks) == len(parts)
        return List(*nested)
