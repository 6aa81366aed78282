"""Read properties of the values of the given data, in one computation.

This reads all data, so it runs only for ``deep=True``, and for what a workload must
know. Each partition is read on its worker, or where Dask loads it, and returns a few
numbers.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import uuid4

import dask.dataframe as dd
import numpy as np
from dask._task_spec import List, TaskRef
from distributed import Client, Future

from clustertune.collections import conversion, graphs
from clustertune.collections.inputs import Given, Inputs
from clustertune.core.model import (
    CollectionInfo,
    Contents,
    Conversion,
    Goal,
    Key,
    Layout,
    View,
)
from clustertune.core.wording import printable
from clustertune.errors import IncompleteError, NoWorkersError
from clustertune.remote import ship
from clustertune.remote.worker import content

Look = Callable[[Any], dict[str, Any]]
"""Reads a partition; a function of :mod:`clustertune.remote.worker.content`."""

DEEP: Mapping[str, Look] = {
    "X": content.features,
    "y": content.labels,
    "qid": content.groups,
}
ROWS = 64  # row positions of each class, one for each worker


def of_everything(given: Inputs) -> dict[str, Look]:
    """Return how a diagnosis reads the partitions, by label."""
    roles = {x.label: x.label.rpartition(".")[2] for x in given}
    return {label: DEEP[role] for label, role in roles.items() if role in DEEP}


def of_need(
    info: CollectionInfo, goal: Goal, n_workers: int, *, training: bool
) -> Look | None:
    """Return how to read a collection for what the goal needs; None: not at all."""
    profile, role = goal.workload, info.label.rpartition(".")[2]
    if role == "qid" and (goal.workload.groups or goal.order == "sort"):
        return content.runs
    if role == "y" and training and profile.needs_all_classes is not False:
        return partial(content.classes, most=max(ROWS, n_workers))
    if role == "y" and training and profile.random_order:
        return content.moments
    if role == "X" and info.kind == "dataframe":
        listed = profile.categories and "category" in info.types
        if listed or (profile.one_number_type and len(info.types) > 1):
            return content.types
    return None


@dataclass
class _Bundles:
    """Tasks that read several partitions each; the partitions of each, by label."""

    graph: graphs.Graph = field(default_factory=graphs.Graph)
    partitions: dict[str, list[list[int]]] = field(default_factory=dict)


def _bundled(
    given: Inputs,
    futures: Mapping[str, Sequence[Any]],
    looks: Mapping[str, Look],
    homes: Mapping[str, Sequence[int]],
) -> _Bundles:
    """Return tasks that read every partition of the labels in ``looks``.

    One task reads the partitions with the same home, on their worker: separate tasks
    take longer than the reading. ``futures`` are those of loaded data, by label.
    """
    made = _Bundles()
    for x in given:
        if x.label not in looks:
            continue
        keys = _sources(made.graph, x.collection, futures.get(x.label))
        look = ship.Tasks(partial(content.each, looks[x.label]))
        name = f"contents-{uuid4().hex}"
        bundles = _by_home(homes.get(x.label, range(len(keys))))
        made.partitions[x.label] = bundles
        made.graph.partitions[x.label] = [(name, i) for i in range(len(bundles))]
        for key, bundle in zip(made.graph.partitions[x.label], bundles, strict=True):
            sources = List(*(TaskRef(keys[i]) for i in bundle))
            made.graph.tasks[key] = look(key, sources)
    return made


def _by_home(homes: Sequence[int]) -> list[list[int]]:
    """Return the partitions of each home, in order."""
    bundles: dict[int, list[int]] = {}
    for partition, home in enumerate(homes):
        bundles.setdefault(home, []).append(partition)
    return list(bundles.values())


def _sources(
    made: graphs.Graph, collection: Any, futures: Sequence[Any] | None
) -> list[Any]:
    """Return the keys of the partitions; the graph loads those not in memory."""
    if futures is not None:
        return [f.key for f in futures]
    tasks, (keys,) = graphs.optimized([collection])
    made.tasks |= tasks
    return keys


def _bind(made: graphs.Graph, workers: Sequence[str]) -> None:
    """Bind our tasks to these workers; others may not receive code."""
    ours = [key for keys in made.partitions.values() for key in keys]
    made.where |= dict(zip(ours, cycle(workers), strict=False))


async def read(
    client: Client,
    given: Inputs,
    futures: Mapping[str, Sequence[Any]],
    looks: Mapping[str, Look],
    workers: Sequence[str],
    *,
    approved: Collection[str],
    homes: Mapping[str, Sequence[int]] = MappingProxyType({}),
) -> dict[str, Contents]:
    """Read the partitions; return the results by label, in order.

    Parameters
    ----------
    client, given
        The client and the data.
    futures
        Futures of loaded data, by label.
    looks
        How to read each label.
    workers
        Addresses of all workers.
    approved
        Addresses of workers that may receive code.
    homes
        Numbers by label. Partitions with the same number are read by one task, and
        those of a label without numbers one by one.

    Raises
    ------
    IncompleteError
        A partition cannot be loaded or read.
    NoWorkersError
        No worker may receive code.
    """
    if not looks:
        return {}
    made = await asyncio.to_thread(_bundled, given, futures, looks, homes)
    known = [address for address in workers if address in approved]
    if not known:
        raise NoWorkersError(
            "the versions of no worker are known, so no code can be sent that reads "
            f"the values of {', '.join(looks)}"
        )
    if len(known) < len(workers):
        _bind(made.graph, known)
    return await _answers(client, made)


async def _answers(client: Client, made: _Bundles) -> dict[str, Contents]:
    futures: Mapping[Any, Future[Any]] = await asyncio.to_thread(
        graphs.submit, client, made.graph
    )
    try:
        answers = await client.gather(futures, asynchronous=True)
    # any error that the user's own code raises while partitions are loaded
    except Exception as error:
        raise IncompleteError(
            f"the data could not be read: {printable(repr(error), longest=500)}"
        ) from error
    found = {}
    for label, bundles in made.partitions.items():
        keys = made.graph.partitions[label]
        pairs = [
            pair
            for key, bundle in zip(keys, bundles, strict=True)
            for pair in zip(bundle, answers[key], strict=True)
        ]
        in_order = dict(sorted(pairs, key=operator.itemgetter(0)))
        found[label] = Contents(partitions=tuple(in_order.values()))
    return found


def with_contents(layout: Layout, found: Mapping[str, Contents]) -> Layout:
    """Return the layout with the contents of its collections."""
    infos = tuple(
        replace(m, contents=found.get(m.label, m.contents)) for m in layout.collections
    )
    return replace(layout, collections=infos)


def _homes(info: CollectionInfo, threads: Sequence[int]) -> Sequence[int]:
    """Return a number for each key, the same for keys that one thread reads.

    ``threads`` are the threads of each worker. Keys without a holder share a number.
    """
    homes = np.full(len(info.keys), -1, dtype=np.int64)
    if info.holders is not None:
        homes[info.holders[0]] = info.holders[1]
    order = np.argsort(homes, kind="stable")
    first = np.searchsorted(homes[order], homes[order])
    turn = np.empty_like(homes)
    turn[order] = np.arange(len(homes)) - first
    shares = np.array([*threads, 1], dtype=np.int64)[
        homes
    ]  # index -1 is the last entry
    numbers: list[int] = (homes + (len(threads) + 1) * (turn % shares)).tolist()
    return numbers


class _Looked(NamedTuple):
    """The contents of a collection and what they were read for."""

    keys: tuple[Key, ...]
    n_workers: int  # for which positions of classes are known
    contents: Contents

    def is_of(self, info: CollectionInfo, n_workers: int) -> bool:
        enough = n_workers <= max(self.n_workers, ROWS)
        return self.keys == info.keys and enough


class Values:
    """The contents of the given data, and the conversions that follow from them.

    Partitions are read once, as long as their keys stay the same.
    """

    def __init__(self) -> None:
        self._looked: dict[str, _Looked] = {}  # by label
        self._categories: dict[str, dict[Any, Any]] = {}  # by label: types of columns

    async def look(
        self,
        client: Client,
        given: Inputs,
        futures: Mapping[str, Sequence[Any]],
        view: View,
        *,
        approved: Collection[str],
    ) -> tuple[Layout, ...]:
        """Read what the workload must know; return the layouts with it.

        Raises
        ------
        IncompleteError, NoWorkersError
            As :func:`read`.
        """
        workers = [w.address for w in view.now.workers]
        infos = [
            (m, layout is view.layouts[0])
            for layout in view.layouts
            for m in layout.collections
            if m.loaded
        ]
        looks = {}
        for m, training in infos:
            wanted = of_need(m, view.goal, len(workers), training=training)
            before = self._looked.get(m.label)
            if wanted and not (before and before.is_of(m, len(workers))):
                looks[m.label] = wanted
        threads = [w.nthreads for w in view.now.workers]
        homes = {m.label: _homes(m, threads) for m, _ in infos if m.label in looks}
        found = await read(
            client, given, futures, looks, workers, approved=approved, homes=homes
        )
        keys = {m.label: m.keys for m, _ in infos}
        self._looked |= {
            k: _Looked(keys[k], len(workers), own) for k, own in found.items()
        }
        known = {
            k: x.contents for k, x in self._looked.items() if keys.get(k) == x.keys
        }
        self._categories = categories(known)
        becomes = {x.label: self.conversion(x, view.goal) for x in given}
        return tuple(
            replace(
                x,
                collections=tuple(
                    replace(m, conversion=becomes[m.label]) for m in x.collections
                ),
            )
            for x in (with_contents(layout, known) for layout in view.layouts)
        )

    def conversion(self, x: Given, goal: Goal) -> Conversion | None:
        """Return the conversion that the goal and the workload need."""
        found = self._looked.get(x.label)
        needed = None if found is None else number_type(x, found.contents, goal)
        goal = replace(goal, dtype=goal.dtype or needed)
        made = conversion.requested(x.label, x.collection, goal)
        lists = self._categories.get(x.label)
        if not lists:
            return made
        return conversion.with_categories(x.collection, lists, made)


def categories(found: Mapping[str, Contents]) -> dict[str, dict[Any, Any]]:
    """Return the common types of columns of categories, by label of features.

    All partitions of the training data and of eval sets get the same type.
    """
    lists: dict[Any, list[Any]] = {}
    own: dict[str, dict[Any, list[Any]]] = {}
    for label, looked in found.items():
        for partition in looked.partitions:
            for column, dtype in partition.get("lists", {}).items():
                lists.setdefault(column, []).append(dtype)
                own.setdefault(label, {}).setdefault(column, []).append(dtype)
    wanted = {column: conversion.union(types) for column, types in lists.items()}
    return {
        label: {
            column: wanted[column]
            for column, types in columns.items()
            if wanted[column] is not None and any(t != wanted[column] for t in types)
        }
        for label, columns in own.items()
    }


def number_type(x: Given, looked: Contents, goal: Goal) -> str | None:
    """Return the type to which all numbers of a frame can be cast exactly."""
    if not goal.workload.one_number_type or not isinstance(x.collection, dd.DataFrame):
        return None
    if any("largest" not in partition for partition in looked.partitions):
        return None
    largest = max((p["largest"] for p in looked.partitions), default=0)
    types = {str(t) for t in x.collection.dtypes}
    return conversion.exact_float(types, largest)
