"""Build graphs that rechunk: cut on the old worker, join on the new worker.

Parts that leave a worker are views there. They are bundled by new partition and travel
as one key. The target joins the new partition. Parts that stay are copied, because a
view would keep its old partition in memory. All task functions are those of libraries,
so no code of this package travels. Dask can recompute new partitions from old ones.
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
from clustertune.collections.graphs import Graph, Partitions, collection, nested
from clustertune.core.model import COPIED, Conversion, Cut, Key, Rechunk

Ends: TypeAlias = tuple[bool, Any, Any]
"""Whether the index of a partition is sorted; its first and last value, if any."""

LEAVING, ARRIVING, STAYING = 2, 1, 0  # priorities: leaving parts free memory first


def build(
    recut: Rechunk,
    collections: Mapping[str, Any],
    types: Mapping[str, Iterable[str]] = MappingProxyType({}),
) -> Graph:
    """Return the graph of the new partitions of the collections that are cut.

    ``types`` are the names of the types of chunks, by label.

    If old partitions are freed, copies of staying parts wait until the leaving parts
    have arrived. So the memory of a worker hardly rises.
    """
    graph = Graph()
    for cut in recut.cuts:
        kind = _Rows(collections[cut.label], cut.conversion, types.get(cut.label, ()))
        _cut(graph, cut, recut, kind)
    if recut.released:
        _delay_copies(graph)
    for cut in recut.cuts if recut.copies == 1 else ():
        if getattr(collections[cut.label], "known_divisions", False):
            _ends(graph, cut)
    return graph


def collections(
    recut: Rechunk,
    given: Mapping[str, Any],
    graph: Graph,
    futures: Mapping[Key, Any],
    ends: Mapping[str, Sequence[Ends]] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the collections of new partitions by label, without the remainder.

    ``ends`` are the results of ``graph.ends``.
    """
    which = slice(0, len(recut.rows) - bool(recut.remainder))
    known = {label: divisions(own[which]) for label, own in ends.items()}
    return _collections(recut, given, graph, futures, which, known)


def divisions(ends: Sequence[Ends]) -> list[Any] | None:
    """Return divisions; None: unsorted, or an index value is in two partitions."""
    if not all(is_sorted and len(first) for is_sorted, first, _ in ends):
        return None
    firsts, lasts = [first[0] for _, first, _ in ends], [last[0] for _, _, last in ends]
    if any(last >= first for last, first in zip(lasts, firsts[1:], strict=False)):
        return None
    return [*firsts, lasts[-1]]


def set_aside(
    recut: Rechunk,
    given: Mapping[str, Any],
    graph: Graph,
    futures: Mapping[Key, Any],
) -> dict[str, Any]:
    """Return the collections of the remainder by label."""
    return _collections(recut, given, graph, futures, slice(len(recut.rows) - 1, None))


def _collections(
    recut: Rechunk,
    given: Mapping[str, Any],
    graph: Graph,
    futures: Mapping[Key, Any],
    which: slice,
    known: Mapping[str, Sequence[Any] | None] = MappingProxyType({}),
) -> dict[str, Any]:
    return {
        cut.label: collection(
            given[cut.label],
            {key: futures[key] for key in graph.partitions[cut.label][which]},
            recut.rows[which].tolist(),
            cut.conversion,
            known.get(cut.label),
            joined=True,
        )
        for cut in recut.cuts
    }


def sent(graph: Graph) -> list[str]:
    """Return the names of the keys that travel."""
    return sorted({k[0] for k, p in graph.priority.items() if p == LEAVING})  # type: ignore[index]


def _ends(graph: Graph, cut: Cut) -> None:
    """Add tasks that read the first and last value of each new index."""
    if cut.conversion is not None and cut.conversion.kind == "array":
        return
    name = f"ends-{uuid4().hex}"
    graph.ends[cut.label] = [(name, i) for i in range(len(graph.partitions[cut.label]))]
    pairs = zip(graph.ends[cut.label], graph.partitions[cut.label], strict=True)
    for key, partition in pairs:
        index = Task(None, getattr, TaskRef(partition), "index")
        is_sorted = Task(None, getattr, index, "is_monotonic_increasing")
        first = Task(None, operator.getitem, index, slice(0, 1))
        last = Task(None, operator.getitem, index, slice(-1, None))
        both = Task(key, list, List(is_sorted, first, last))
        graph.add(both, graph.where[partition], ARRIVING)


def _delay_copies(graph: Graph) -> None:
    """Make the copies on each worker depend on the arrival of what it sends.

    Tasks on the targets count arrived keys, so only a number travels back.
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
        graph.add(Task(count, len, List(*map(TaskRef, keys))), target, ARRIVING)
        counts.setdefault(source, []).append(TaskRef(count))
    gates: dict[str, TaskRef] = {}
    for number, (source, there) in enumerate(counts.items(), len(arrived)):
        gate = (name, number)
        graph.add(Task(gate, len, List(*there)), source, ARRIVING)
        gates[source] = TaskRef(gate)
    for key, task in list(graph.tasks.items()):
        if graph.priority[key] == STAYING and graph.where[key] in gates:
            made = Task(None, task.func, *task.args)
            after = gates[graph.where[key]]
            graph.tasks[key] = Task(key, operator.getitem, List(made, after), 0)


# --- one collection -------------------------------------------------------------------


def _cut(graph: Graph, cut: Cut, recut: Rechunk, kind: _Rows) -> None:
    # the name identifies replicas that are given again
    copied = f"{COPIED}-" * (recut.copies > 1)
    name = f"{copied}{kind.name}-{uuid4().hex}"
    keys: list[Key] = []
    for partition, parts in groupby(_parts(cut), key=operator.attrgetter("new")):
        key = (name, partition, *kind.tail)
        keys.append(key)
        _partition(
            graph, key, list(parts), int(recut.targets[partition]), recut.workers, kind
        )
    graph.partitions[cut.label] = keys


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


def _partition(
    graph: Graph,
    key: Key,
    parts: list[_Part],
    target: int,
    workers: Sequence[str],
    kind: _Rows,
) -> None:
    """Add the tasks of one new partition, on its target and on the senders."""
    sources: dict[int, list[Any]] = {}  # views that each owner sends
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
    if len(joined) > 1:
        task = kind.join(key, joined)
    elif sources:
        task = kind.arrived(key, joined[0])
    else:
        # a view would keep the old partition in memory
        task = kind.alone(key, joined[0])
    graph.add(task, workers[target], ARRIVING if sources else STAYING)


def _bundle(key: Any, owner: int) -> tuple[Any, ...]:
    name, *position = key
    return (f"parts-{name}", *position, owner)


class _Rows:
    """Tasks that cut and join rows of one kind of collection, by library functions."""

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
        """Return a function whose result shares no memory with the old partition."""
        if plain and not self.given.array:
            return partial(np.array, order="C")  # a frame stores columns
        # this keeps the memory order, masks, and sparse formats
        return copy if plain else operator.methodcaller("copy")

    def view(self, part: _Part) -> Any:
        """Return the converted rows of an old partition."""
        view = self.given.take(TaskRef(part.key), slice(part.start, part.stop))
        return converting.applied(self.convert, view)

    def alone(self, key: Key, view: Any) -> Task:
        """Return a partition of one view, without memory of the old partition."""
        if self.given.array and self.convert:
            return Task(key, view.func, *view.args)  # a cast has copied
        return Task(key, self.copy, view)

    def arrived(self, key: Key, part: Any) -> Task:
        """Return a partition of one part that was sent."""
        if self.array and not self.given.array:
            return Task(key, np.ascontiguousarray, part)  # a frame stores columns
        return Task(key, part.func, *part.args)

    def join(self, key: Key, parts: Sequence[Any]) -> Task:
        """Return a partition of parts joined along rows, and blocks of columns."""
        dense = self.array and not self.given.format
        if self.convert and dense:  # all have one type, and rows become contiguous
            blocks = self.given.blocks if self.given.array else (1,) * len(self.tail)
            return Task(key, concatenate3, nested(parts, blocks))
        joined = self.given.join(parts)
        return Task(key, joined.func, *joined.args)
