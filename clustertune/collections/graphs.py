"""Graphs of our own: tasks that are bound to workers, and collections made of them.

A graph is sent as it is: Dask neither joins nor renames its tasks, so the keys of all
pieces and the worker of each are known beforehand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import Any
from uuid import uuid4

import dask
import dask.array as da
import numpy as np
from dask._task_spec import Task
from dask.base import annotate
from dask.core import flatten
from dask.dataframe.dask_expr import from_graph
from dask.highlevelgraph import HighLevelGraph
from distributed import CancelledError, Client, wait

from clustertune.collections import conversion as converting
from clustertune.collections import joining
from clustertune.core.model import Conversion, Int64s, Key

THRESHOLD = "distributed.admin.large-graph-warning-threshold"
_threshold = Lock()


@dataclass
class Graph:
    """Tasks, the worker of each, and the keys of the pieces to be made, by label.

    ``loose`` tasks run elsewhere where their worker is gone. ``ends`` are keys by
    label, one for each partition: with what its index begins and ends.
    """

    tasks: dict[Key, Any] = field(default_factory=dict)
    where: dict[Key, str] = field(default_factory=dict)
    priority: dict[Key, int] = field(default_factory=dict)
    pieces: dict[str, list[Key]] = field(default_factory=dict)
    ends: dict[str, list[Key]] = field(default_factory=dict)
    loose: bool = False


def constants(label: str, values: Sequence[Any], workers: Sequence[str]) -> Graph:
    """A graph of small arrays, each on a worker of its own."""
    graph = Graph()
    name = f"constants-{uuid4().hex}"
    graph.pieces[label] = [(name, i) for i in range(len(values))]
    for key, value, worker in zip(graph.pieces[label], values, workers, strict=True):
        graph.tasks[key] = Task(key, np.array, value)
        graph.where[key] = worker
    return graph


def submit(client: Client, graph: Graph) -> dict[Key, Any]:
    """Send it to the scheduler; the futures of the pieces, and of their ends, by key.

    Keys that the scheduler knows may be named only: thousands of futures need not
    travel.
    """
    groups = [*graph.pieces.values(), *graph.ends.values()]
    wanted = [key for keys in groups for key in keys]
    # as a graph of layers it is named at random; of a dict Dask would hash every task
    layers = HighLevelGraph({"clustertune": graph.tasks}, {"clustertune": set()})
    with ExitStack() as around:
        around.enter_context(_without_warning())
        if graph.where:
            bound = {"workers": _lookup(graph.where, ())}
            around.enter_context(annotate(**bound, allow_other_workers=graph.loose))
        if graph.priority:
            around.enter_context(annotate(priority=_lookup(graph.priority, 0)))
        futures = client.get(layers, wanted, sync=False)
    return dict(zip(wanted, futures, strict=True))


async def wait_for_last(client: Client, futures: Sequence[Any], seconds: float) -> None:
    """Wait until the last of some futures is done, at most some seconds.

    The caller checks all futures afterwards. The wait grows with their number, because
    checking 100,000 futures takes as long as a short pause.
    """
    await asyncio.sleep(len(futures) * 1e-6)
    with client.as_current():
        waiting: Any = wait(futures[-1], timeout=seconds)
    # the caller's check finds cancelled futures
    with suppress(asyncio.TimeoutError, CancelledError):
        await waiting


@contextmanager
def _without_warning() -> Iterator[None]:
    """Have Dask not warn that the graph is large: that advice is for users' graphs.

    Dask reads the threshold from its configuration, which all threads share. So one
    thread at a time changes it, or it would not be put back.
    """
    with _threshold, dask.config.set({THRESHOLD: "1 TB"}):
        yield


def _lookup(known: Mapping[Key, Any], rest: Any) -> Callable[[Key], Any]:
    """A closure: it travels by value, and an instance would end the connection."""

    def lookup(key: Key) -> Any:
        return known.get(key, rest)

    return lookup


def collection(
    like: Any,
    pieces: Mapping[Key, Any],
    rows: Sequence[float],
    conversion: Conversion | None = None,
    divisions: Sequence[Any] | None = None,
    *,
    joined: bool = False,
) -> Any:
    """A collection of these pieces, which are like those of another one.

    Parameters
    ----------
    like
        The Array, DataFrame or Series that the pieces come from.
    pieces
        Futures by key, in order.
    rows
        Of every piece, NaN where unknown; used for arrays.
    conversion
        What the pieces have become.
    divisions
        Of a frame; None: unknown.
    joined
        Whether rows were taken and joined, and blocks of columns, too.
    """
    meta, keys = converting.meta(like, conversion), list(pieces)
    meta = joining.joined_meta(meta) if joined else meta
    if isinstance(like, da.Array) or isinstance(meta, np.ndarray):
        named = _numbered(pieces)
        first: Any = next(iter(named))
        columns = converting.column_chunks(like, joined=joined)
        return da.Array(named, first[0], (tuple(rows), *columns), meta=meta)
    unknown = (None,) * (len(keys) + 1)
    return from_graph(dict(pieces), meta, divisions or unknown, keys, "prepared")


def of_futures(x: Any, futures: Sequence[Any]) -> Any:
    """The same loaded collection, with other futures of its pieces."""
    if isinstance(x, da.Array):
        named = dict(zip(flatten(x.__dask_keys__()), futures, strict=True))
        return da.Array(named, x.name, x.chunks, meta=x._meta)  # noqa: SLF001
    return collection(x, {f.key: f for f in futures}, (), divisions=x.divisions)


def _numbered(pieces: Mapping[Key, Any]) -> dict[Key, Any]:
    """Pieces of an array by keys that are numbered from 0, as Dask needs them."""
    first: Any = next(iter(pieces))
    if first[1] == 0:
        return dict(pieces)
    keys: list[Any] = list(pieces)
    return {
        (f"{first[0]}-from-{first[1]}", i - first[1], *rest): pieces[(name, i, *rest)]
        for name, i, *rest in keys
    }


def with_rows(x: Any, rows: Int64s | None) -> Any:
    """The same array, which now knows the rows of its pieces."""
    if rows is None or not isinstance(x, da.Array):
        return x
    if tuple(rows.tolist()) == x.chunks[0]:
        return x
    chunks = (tuple(rows.tolist()), *x.chunks[1:])
    return da.Array(x.dask, x.name, chunks, meta=x._meta)  # noqa: SLF001
