"""What the values of the given data are like: one computation over all pieces.

Only where it is asked for (``deep=True``), since it reads everything. Each piece is
looked at where it lies, or where Dask loads it; what comes back are a few numbers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any
from uuid import uuid4

from dask._task_spec import Task, TaskRef, convert_legacy_graph
from dask.base import collections_to_expr
from dask.core import flatten
from distributed import Client, Future

from clustertune import graphs
from clustertune.errors import IncompleteError
from clustertune.inputs import Inputs
from clustertune.model import Contents, Layout
from clustertune.remote import content, ship
from clustertune.wording import printable

ROLES = {"X": content.features, "qid": content.groups}  # of the rest: labels


def graph(given: Inputs, futures: Mapping[str, Sequence[Any]]) -> graphs.Graph:
    """Tasks that look at every piece of X, y and qid, by label.

    ``futures`` are those of what is loaded, by label.
    """
    made = graphs.Graph()
    for x in given:
        role = x.label.rpartition(".")[2]
        if role not in ("X", "y", "qid"):
            continue
        keys = _sources(made, x.collection, futures.get(x.label))
        function = ship.function(ROLES.get(role, content.labels))
        name = f"contents-{uuid4().hex}"
        made.pieces[x.label] = [(name, i) for i in range(len(keys))]
        for key, source in zip(made.pieces[x.label], keys, strict=True):
            made.tasks[key] = Task(key, function, TaskRef(source))
    return made


def _sources(
    made: graphs.Graph, collection: Any, futures: Sequence[Any] | None
) -> list[Any]:
    """Keys of the pieces; those of what is not loaded are made by the graph."""
    if futures is not None:
        return [f.key for f in futures]
    expression = collections_to_expr([collection]).optimize()
    made.tasks |= convert_legacy_graph(expression.__dask_graph__())
    return list(flatten(expression.__dask_keys__()))


def bind(made: graphs.Graph, workers: Sequence[str]) -> None:
    """Have our own tasks run on these workers only: to others no code may go."""
    ours = [key for keys in made.pieces.values() for key in keys]
    made.where |= dict(zip(ours, cycle(workers), strict=False))


async def read(client: Client, made: graphs.Graph) -> dict[str, Contents]:
    """Compute it; what is found in the pieces of each label, in order.

    Raises
    ------
    IncompleteError
        A piece cannot be loaded or read.
    """
    futures: Mapping[Any, Future[Any]] = await asyncio.to_thread(
        graphs.submit, client, made
    )
    try:
        answers = await client.gather(futures, asynchronous=True)
    # whatever the user's own code raises while pieces are loaded
    except Exception as error:
        raise IncompleteError(
            f"the data could not be read: {printable(repr(error), longest=500)}"
        ) from error
    return {
        label: Contents(pieces=tuple(answers[key] for key in keys))
        for label, keys in made.pieces.items()
    }


def with_contents(layout: Layout, found: Mapping[str, Contents]) -> Layout:
    """The layout whose members know what their values are like."""
    members = tuple(
        replace(m, contents=found.get(m.label, m.contents)) for m in layout.members
    )
    return replace(layout, members=members)
