"""Build graphs that rechunk: cut on the old worker, join on the new worker.

Parts that leave a worker are views there. They are bundled by new partition and travel
as one key. The target joins the new partition. Parts that stay are copied, because a
view would keep its old partition in memory. All task functions are those of libraries,
so no code of this package travels. Dask can recompute new partitions from old ones.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from itertools import groupby
from types import MappingProxyType
from typing import Any, TypeAlias
from uuid import uuid4

import numpy as np
from dask._task_spec import List, Task, TaskRef

from clustertune.collections import metadata
from clustertune.collections.graphs import Graph, Partitions, collection
from clustertune.core.model import COPIED, PARTS, Cut, Key, Rechunk

Ends: TypeAlias = tuple[bool, Any, Any]
"""Whether the index of a partition is sorted; its first and last value, if any."""

LEAVING, ARRIVING, STAYING = 2, 1, 0  # priorities: leaving parts free memory first


def build(
    recut: Rechunk,
    collections: Mapping[str, Any],
    types: Mapping[str, Iterable[str]] = MappingProxyType({}),
) -> Graph:
    """Return the graph of the new partitions of the collections that are cut.

    ``types`` are the names of the types of chunks, by label. If old partitions are
    released, copies of staying parts wait until the leaving parts have arrived. So the
    memory of a worker hardly rises.
    """
    graph = Graph()
    for cut in recut.cuts:
        kind = _Rows(collections[cut.label], types.get(cut.label, ()))
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
    """Return the collections of new partitions by label.

    ``ends`` are the results of ``graph.ends``.
    """
    return {
        cut.label: collection(
            given[cut.label],
            {key: futures[key] for key in graph.partitions[cut.label]},
            recut.rows.tolist(),
            divisions(ends[cut.label]) if cut.label in ends else None,
            joined=True,
        )
        for cut in recut.cuts
    }


def divisions(ends: Sequence[Ends]) -> list[Any] | None:
    """Return divisions; None: unsorted, or an index value is in two partitions."""
    if not all(is_sorted and len(first) for is_sorted, first, _ in ends):
        return None
    firsts, lasts = [first[0] for _, first, _ in ends], [last[0] for _, _, last in ends]
    if any(last >= first for last, first in zip(lasts, firsts[1:], strict=False)):
        return None
    return [*firsts, lasts[-1]]


def _ends(graph: Graph, cut: Cut) -> None:
    """Add tasks that read the first and last value of each new index."""
    name = f"ends-{uuid4().hex}"
    graph.ends[cut.label] = []
    for number, partition in enumerate(graph.partitions[cut.label]):
        index = Task(None, getattr, TaskRef(partition), "index")
        is_sorted = Task(None, getattr, index, "is_monotonic_increasing")
        first = Task(None, operator.getitem, index, slice(0, 1))
        last = Task(None, operator.getitem, index, slice(-1, None))
        key: Key = (name, number)
        ends = Task(None, list, List(is_sorted, first, last))
        graph.add(key, ends, graph.where[partition], ARRIVING)
        graph.ends[cut.label].append(key)


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
        count: Key = (name, number)
        graph.add(count, Task(None, len, List(*map(TaskRef, keys))), target, ARRIVING)
        counts.setdefault(source, []).append(TaskRef(count))
    all_arrived: dict[str, TaskRef] = {}
    for number, (source, references) in enumerate(counts.items(), len(arrived)):
        key = (name, number)
        graph.add(key, Task(None, len, List(*references)), source, ARRIVING)
        all_arrived[source] = TaskRef(key)
    for key, task in list(graph.tasks.items()):
        if graph.priority[key] == STAYING and graph.where[key] in all_arrived:
            copied = Task(None, task.func, *task.args)
            after = all_arrived[graph.where[key]]
            graph.tasks[key] = Task(key, operator.getitem, List(copied, after), 0)


# --- one collection -------------------------------------------------------------------


def _cut(graph: Graph, cut: Cut, recut: Rechunk, kind: _Rows) -> None:
    # a later call recognizes replicas by the name of their keys
    prefix = f"{COPIED}-" if recut.copies > 1 else ""
    name = f"{prefix}{kind.name}-{uuid4().hex}"
    graph.partitions[cut.label] = []
    rows = np.stack((cut.new, cut.key, cut.start, cut.stop, cut.owner), axis=1)
    for partition, parts in groupby(rows.tolist(), key=operator.itemgetter(0)):
        target = int(recut.targets[partition])
        position = (partition, *kind.tail)
        key: Key = (name, *position)
        sent: dict[int, list[Any]] = {}  # views by sender
        joined: list[Any] = []  # in the order of rows and blocks
        for _, old, start, stop, owner in parts:
            view = kind.view(cut.keys[old], slice(start, stop))
            if owner != target:
                views = sent.setdefault(owner, [])
                views.append(view)
                bundle = TaskRef((f"{PARTS}-{name}", *position, owner))
                view = Task(None, operator.getitem, bundle, len(views) - 1)
            joined.append(view)
        for owner, views in sent.items():
            bundle_key: Key = (f"{PARTS}-{name}", *position, owner)
            task = Task(None, list, List(*views))
            graph.add(bundle_key, task, recut.workers[owner], LEAVING)
            graph.sent.add(f"{PARTS}-{name}")
        # a sent array may begin anywhere in a message, and XGBoost refuses labels of an
        # eval set that are not aligned; a copy is
        as_sent = bool(sent) and recut.copies == 1
        task = kind.partition(joined, as_sent=as_sent)
        graph.add(key, task, recut.workers[target], ARRIVING if sent else STAYING)
        graph.partitions[cut.label].append(key)


class _Rows:
    """Tasks that cut and join rows of one kind of collection, by library functions."""

    def __init__(self, collection: Any, types: Iterable[str]):
        self.given = Partitions(collection, types)
        self.tail = self.given.tail
        self.name = "array" if self.given.array else "frame"
        # the copy shares no memory with the old partition, which can then be released;
        # `copy` keeps the memory order, masks, and sparse formats
        plain = self.given.array and type(metadata.meta(collection)) is np.ndarray
        self.copy: Callable[[Any], Any] = (
            copy if plain else operator.methodcaller("copy")
        )

    def view(self, partition: Key, rows: slice) -> Task:
        """Return rows of an old partition."""
        return self.given.take(TaskRef(partition), rows)

    def partition(self, parts: Sequence[Task], *, as_sent: bool) -> Task:
        """Return a partition of parts; a single one ``as_sent`` is not copied."""
        if len(parts) > 1:
            return self.given.join(parts)
        return parts[0] if as_sent else Task(None, self.copy, *parts)
