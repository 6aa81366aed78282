"""What the values of the given data are like: one computation over all pieces.

Only where it is asked for (``deep=True``), since it reads everything, and what a
workload needs to know. Each piece is looked at where it lies, or where Dask loads it;
what comes back are a few numbers.
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
from dask._task_spec import List, TaskRef, convert_legacy_graph
from dask.base import collections_to_expr
from dask.core import flatten
from distributed import Client, Future

from clustertune.collections import conversion, graphs
from clustertune.collections.inputs import Given, Inputs
from clustertune.core.model import Contents, Conversion, Goal, Key, Layout, Member, View
from clustertune.core.wording import printable
from clustertune.errors import IncompleteError, NoWorkersError
from clustertune.remote import ship
from clustertune.remote.worker import content

Look = Callable[[Any], dict[str, Any]]
"""Looks at a piece; of :mod:`clustertune.remote.worker.content`."""

DEEP: Mapping[str, Look] = {
    "X": content.features,
    "y": content.labels,
    "qid": content.groups,
}
ROWS = 64  # of each class of which the place is told: workers that can have one


def of_everything(given: Inputs) -> dict[str, Look]:
    """By label how a diagnosis looks at the pieces."""
    roles = {x.label: x.label.rpartition(".")[2] for x in given}
    return {label: DEEP[role] for label, role in roles.items() if role in DEEP}


def of_need(
    member: Member, goal: Goal, n_workers: int, *, training: bool
) -> Look | None:
    """How a member is looked at for what must be known of it; None: not at all."""
    profile, role = goal.workload, member.label.rpartition(".")[2]
    if role == "qid" and (goal.workload.groups or goal.order == "sort"):
        return content.runs
    if role == "y" and training and profile.needs_all_classes is not False:
        return partial(content.classes, most=max(ROWS, n_workers))
    if role == "y" and training and profile.random_order:
        return content.moments
    if role == "X" and member.kind == "dataframe":
        listed = profile.categories and "category" in member.types
        if listed or (profile.one_number_type and len(member.types) > 1):
            return content.types
    return None


@dataclass
class _Bundles:
    """Tasks, each of which looks at several pieces; which ones, by label."""

    graph: graphs.Graph = field(default_factory=graphs.Graph)
    pieces: dict[str, list[list[int]]] = field(default_factory=dict)


def _bundled(
    given: Inputs,
    futures: Mapping[str, Sequence[Any]],
    looks: Mapping[str, Look],
    homes: Mapping[str, Sequence[int]],
) -> _Bundles:
    """Tasks that look at every piece of the labels in ``looks``.

    Pieces with the same home are looked at in one task, which runs where they are: a
    task for each of them takes longer than the look. ``futures`` are
    those of what is loaded, by label.
    """
    made = _Bundles()
    for x in given:
        if x.label not in looks:
            continue
        keys = _sources(made.graph, x.collection, futures.get(x.label))
        look = ship.Tasks(partial(content.each, looks[x.label]))
        name = f"contents-{uuid4().hex}"
        bundles = _by_home(homes.get(x.label, range(len(keys))))
        made.pieces[x.label] = bundles
        made.graph.pieces[x.label] = [(name, i) for i in range(len(bundles))]
        for key, bundle in zip(made.graph.pieces[x.label], bundles, strict=True):
            sources = List(*(TaskRef(keys[i]) for i in bundle))
            made.graph.tasks[key] = look(key, sources)
    return made


def _by_home(homes: Sequence[int]) -> list[list[int]]:
    """Pieces of the same home, in order."""
    bundles: dict[int, list[int]] = {}
    for piece, home in enumerate(homes):
        bundles.setdefault(home, []).append(piece)
    return list(bundles.values())


def _sources(
    made: graphs.Graph, collection: Any, futures: Sequence[Any] | None
) -> list[Any]:
    """Keys of the pieces; those of what is not loaded are made by the graph."""
    if futures is not None:
        return [f.key for f in futures]
    expression = collections_to_expr([collection]).optimize()
    made.tasks |= convert_legacy_graph(expression.__dask_graph__())
    return list(flatten(expression.__dask_keys__()))


def _bind(made: graphs.Graph, workers: Sequence[str]) -> None:
    """Have our own tasks run on these workers only: to others no code may go."""
    ours = [key for keys in made.pieces.values() for key in keys]
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
    """Look at the pieces; what is found in those of each label, in order.

    ``approved`` are the workers to which code may be sent. ``homes`` are numbers by
    label, the same for pieces that are looked at together;
    those of a label that is not there are looked at one by one, as they are loaded.

    Raises
    ------
    IncompleteError
        A piece cannot be loaded or read.
    NoWorkersError
        Code may go to none of the workers.
    """
    if not looks:
        return {}
    made = await asyncio.to_thread(_bundled, given, futures, looks, homes)
    known = [address for address in workers if address in approved]
    if not known:
        raise NoWorkersError(
            "no worker has said its versions, so no code may go to one that would "
            f"look at the values of {', '.join(looks)}"
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
    # whatever the user's own code raises while pieces are loaded
    except Exception as error:
        raise IncompleteError(
            f"the data could not be read: {printable(repr(error), longest=500)}"
        ) from error
    found = {}
    for label, bundles in made.pieces.items():
        keys = made.graph.pieces[label]
        pairs = [
            pair
            for key, bundle in zip(keys, bundles, strict=True)
            for pair in zip(bundle, answers[key], strict=True)
        ]
        in_order = dict(sorted(pairs, key=operator.itemgetter(0)))
        found[label] = Contents(pieces=tuple(in_order.values()))
    return found


def with_contents(layout: Layout, found: Mapping[str, Contents]) -> Layout:
    """The layout whose members know what their values are like."""
    members = tuple(
        replace(m, contents=found.get(m.label, m.contents)) for m in layout.members
    )
    return replace(layout, members=members)


def _homes(member: Member, threads: Sequence[int]) -> Sequence[int]:
    """A number for each key: the same for those that one thread looks at.

    ``threads`` are those of the workers. A key that nobody holds is with its like.
    """
    homes = np.full(len(member.keys), -1, dtype=np.int64)
    if member.holders is not None:
        homes[member.holders[0]] = member.holders[1]
    order = np.argsort(homes, kind="stable")
    first = np.searchsorted(homes[order], homes[order])
    turn = np.empty_like(homes)
    turn[order] = np.arange(len(homes)) - first
    shares = np.array([*threads, 1], dtype=np.int64)[homes]  # -1 is the last one
    numbers: list[int] = (homes + (len(threads) + 1) * (turn % shares)).tolist()
    return numbers


class _Looked(NamedTuple):
    """What the values of a collection are like."""

    keys: tuple[Key, ...]
    n_workers: int  # for as many its classes are known
    contents: Contents

    def is_of(self, member: Member, n_workers: int) -> bool:
        enough = n_workers <= max(self.n_workers, ROWS)
        return self.keys == member.keys and enough


class Values:
    """What is known of the values of the given data, and what it becomes for them.

    Pieces are looked at once, as long as they are the same.
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
        """Look at what the workload must know; the layouts with that.

        Raises
        ------
        IncompleteError, NoWorkersError
            As :func:`read`.
        """
        workers = [w.address for w in view.now.workers]
        members = [
            (m, layout is view.layouts[0])
            for layout in view.layouts
            for m in layout.members
            if m.loaded
        ]
        looks = {}
        for m, training in members:
            wanted = of_need(m, view.goal, len(workers), training=training)
            before = self._looked.get(m.label)
            if wanted and not (before and before.is_of(m, len(workers))):
                looks[m.label] = wanted
        threads = [w.nthreads for w in view.now.workers]
        homes = {m.label: _homes(m, threads) for m, _ in members if m.label in looks}
        found = await read(
            client, given, futures, looks, workers, approved=approved, homes=homes
        )
        keys = {m.label: m.keys for m, _ in members}
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
                members=tuple(
                    replace(m, conversion=becomes[m.label]) for m in x.members
                ),
            )
            for x in (with_contents(layout, known) for layout in view.layouts)
        )

    def conversion(self, x: Given, goal: Goal) -> Conversion | None:
        """What a collection has to become: as asked for, and as the workload needs."""
        found = self._looked.get(x.label)
        needed = None if found is None else number_type(x, found.contents, goal)
        goal = replace(goal, dtype=goal.dtype or needed)
        made = conversion.asked(x.label, x.collection, goal)
        lists = self._categories.get(x.label)
        if not lists:
            return made
        return conversion.with_categories(x.collection, lists, made)


def categories(found: Mapping[str, Contents]) -> dict[str, dict[Any, Any]]:
    """By label of features the types that columns of categories are to have.

    One for all pieces of the training data and of eval sets.
    """
    lists: dict[Any, list[Any]] = {}
    own: dict[str, dict[Any, list[Any]]] = {}
    for label, looked in found.items():
        for piece in looked.pieces:
            for column, dtype in piece.get("lists", {}).items():
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
    """The type to which all numbers of a frame are cast, without changing one."""
    if not goal.workload.one_number_type or not isinstance(x.collection, dd.DataFrame):
        return None
    if any("largest" not in piece for piece in looked.pieces):
        return None
    largest = max((p["largest"] for p in looked.pieces), default=0)
    types = {str(t) for t in x.collection.dtypes}
    return conversion.exact_float(types, largest)
