"""New pieces as a Dask graph: cut where the bytes lie, joined where they will be.

Parts that leave a worker are views there, bundled by the new piece for which they are,
and travel as one key; the new piece is joined on its target. Parts that stay are
copied, since a view would keep its whole old piece in memory. All task functions are
those of libraries, so nothing of ours travels, and the new pieces can be computed again
from the old ones, and those from what they were made of.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from types import MappingProxyType
from typing import Any, TypeAlias
from uuid import uuid4

import numpy as np
from dask._task_spec import List, Task, TaskRef
from dask.array.core import concatenate3

from clustertune.collections import conversion as converting
from clustertune.collections.graphs import Graph, collection
from clustertune.collections.joining import Partitions, nested
from clustertune.core.model import COPIED, Conversion, Cut, Key, Recut

Ends: TypeAlias = tuple[bool, Any, Any]
"""Whether the index of a partition is sorted; its first and its last value, if any."""

LEAVING, ARRIVING, STAYING = 2, 1, 0  # priorities: what leaves makes room


def build(
    recut: Recut,
    collections: Mapping[str, Any],
    types: Mapping[str, Iterable[str]] = MappingProxyType({}),
) -> Graph:
    """The graph that makes the new pieces of the collections that are cut.

    ``types`` are the names of the types of chunks, by label.

    Where old pieces are freed, copies of what stays on a worker wait until what leaves
    it has arrived, so that its memory hardly rises above what it held.
    """
    graph = Graph()
    for cut in recut.cuts:
        kind = _Rows(collections[cut.label], cut.conversion, types.get(cut.label, ()))
        _cut(graph, cut, recut, kind)
    if recut.freed:
        _let_leave_first(graph)
    for cut in recut.cuts if recut.copies == 1 else ():
        if getattr(collections[cut.label], "known_divisions", False):
            _ends(graph, cut)
    return graph


def collections(
    recut: Recut,
    given: Mapping[str, Any],
    graph: Graph,
    futures: Mapping[Key, Any],
    ends: Mapping[str, Sequence[Ends]] = MappingProxyType({}),
) -> dict[str, Any]:
    """By label the collections of new pieces, but for rows that are set aside.

    ``ends`` are the results of ``graph.ends``, once they are computed.
    """
    which = slice(0, len(recut.rows) - bool(recut.aside))
    known = {label: divisions(own[which]) for label, own in ends.items()}
    return _collections(recut, given, graph, futures, which, known)


def divisions(ends: Sequence[Ends]) -> list[Any] | None:
    """Divisions of sorted partitions; None where an index value is in two of them."""
    if not all(is_sorted and len(first) for is_sorted, first, _ in ends):
        return None
    firsts, lasts = [first[0] for _, first, _ in ends], [last[0] for _, _, last in ends]
    if any(last >= first for last, first in zip(lasts, firsts[1:], strict=False)):
        return None
    return [*firsts, lasts[-1]]


def set_aside(
    recut: Recut,
    given: Mapping[str, Any],
    graph: Graph,
    futures: Mapping[Key, Any],
) -> dict[str, Any]:
    """By label the collections of the rows that are."""
    return _collections(recut, given, graph, futures, slice(len(recut.rows) - 1, None))


def _collections(
    recut: Recut,
    given: Mapping[str, Any],
    graph: Graph,
    futures: Mapping[Key, Any],
    which: slice,
    known: Mapping[str, Sequence[Any] | None] = MappingProxyType({}),
) -> dict[str, Any]:
    return {
        cut.label: collection(
            given[cut.label],
            {key: futures[key] for key in graph.pieces[cut.label][which]},
            recut.rows[which].tolist(),
            cut.conversion,
            known.get(cut.label),
            joined=True,
        )
        for cut in recut.cuts
    }


def sent(graph: Graph) -> list[str]:
    """Names of the keys that travel."""
    return sorted({k[0] for k, p in graph.priority.items() if p == LEAVING})  # type: ignore[index]


def _ends(graph: Graph, cut: Cut) -> None:
    """Add tasks that read the ends of each new index, which become divisions."""
    if cut.conversion is not None and cut.conversion.kind == "array":
        return
    name = f"ends-{uuid4().hex}"
    graph.ends[cut.label] = [(name, i) for i in range(len(graph.pieces[cut.label]))]
    pairs = zip(graph.ends[cut.label], graph.pieces[cut.label], strict=True)
    for key, piece in pairs:
        index = Task(None, getattr, TaskRef(piece), "index")
        is_sorted = Task(None, getattr, index, "is_monotonic_increasing")
        first = Task(None, operator.getitem, index, slice(0, 1))
        last = Task(None, operator.getitem, index, slice(-1, None))
        both = Task(key, list, List(is_sorted, first, last))
        _add(graph, both, graph.where[piece], ARRIVING)


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
    counts: dict[str, list[TaskRef]] = {}
    for number, ((source, target), keys) in enumerate(arrived.items()):
        count = (name, number)
        _add(graph, Task(count, len, List(*map(TaskRef, keys))), target, ARRIVING)
        counts.setdefault(source, []).append(TaskRef(count))
    gates: dict[str, TaskRef] = {}
    for number, (source, there) in enumerate(counts.items(), len(arrived)):
        gate = (name, number)
        _add(graph, Task(gate, len, List(*there)), source, ARRIVING)
        gates[source] = TaskRef(gate)
    for key, task in list(graph.tasks.items()):
        if graph.priority[key] == STAYING and graph.where[key] in gates:
            made = Task(None, task.func, *task.args)
            after = gates[graph.where[key]]
            graph.tasks[key] = Task(key, operator.getitem, List(made, after), 0)


# --- one collection -------------------------------------------------------------------


def _add(graph: Graph, task: Task, worker: str, priority: int) -> None:
    graph.tasks[task.key] = task
    graph.where[task.key] = worker
    graph.priority[task.key] = priority


def _cut(graph: Graph, cut: Cut, recut: Recut, kind: _Rows) -> None:
    # copies are known by their names when they are given again
    copied = f"{COPIED}-" * (recut.copies > 1)
    name = f"{copied}{kind.name}-{uuid4().hex}"
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
        _add(graph, Task(bundle, list, List(*views)), workers[owner], LEAVING)
    if len(joined) > 1:
        task = kind.join(key, joined)
    elif sources:
        task = kind.arrived(key, joined[0])
    else:
        # a part would keep the old piece alive; a whole one is that piece
        task = kind.alone(key, joined[0])
    _add(graph, task, workers[target], ARRIVING if sources else STAYING)


def _bundle(key: Any, owner: int) -> tuple[Any, ...]:
    name, *position = key
    return (f"parts-{name}", *position, owner)


class _Rows:
    """How rows of one kind of collection are cut and joined, in library functions."""

    def __init__(
        self, collection: Any, conversion: Conversion | None, types: Iterable[str]
    ):
        self.given = Partitions(collection, types)
        self.convert = (
            () if conversion is None else converting.converter(collection, conversion)
        )
        meta = converting.meta(collection, conversion)
        self.array = self.given.array or isinstance(meta, np.ndarray)
        self.tail = (0,) * (meta.ndim - 1) if self.array else ()
        self.name = "array" if self.array else "frame"
        self.copy = self._copy(plain=type(meta) is np.ndarray)

    def _copy(self, *, plain: bool) -> Callable[..., Any]:
        """What makes rows that share no memory with their old piece."""
        if plain and not self.given.array:
            return partial(np.array, order="C")  # a frame lies by columns
        # this keeps the order of columns and rows in memory, masks, and what is sparse
        return copy if plain else operator.methodcaller("copy")

    def view(self, part: _Part) -> Any:
        """These rows of an old piece, as they will be."""
        view = self.given.take(TaskRef(part.key), slice(part.start, part.stop))
        return converting.applied(self.convert, view)

    def alone(self, key: Key, view: Any) -> Task:
        """A piece of one view, which shares no memory with the old piece."""
        if self.given.array and self.convert:
            return Task(key, view.func, *view.args)  # numbers that were cast are new
        return Task(key, self.copy, view)

    def arrived(self, key: Key, part: Any) -> Task:
        """A piece of one part that was sent."""
        if self.array and not self.given.array:
            return Task(key, np.ascontiguousarray, part)  # a frame lies by columns
        return Task(key, part.func, *part.args)

    def join(self, key: Key, parts: Sequence[Any]) -> Task:
        """All of them below each other, blocks of columns side by side."""
        dense = self.array and not self.given.format
        if self.convert and dense:  # of one type, and rows come to lie as rows
            blocks = self.given.blocks if self.given.array else (1,) * len(self.tail)
            return Task(key, concatenate3, nested(parts, blocks))
        joined = self.given.join(parts)
        return Task(key, joined.func, *joined.args)
