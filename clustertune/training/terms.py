"""What a sum is of: function, items, and what is broadcast, checked before it begins.

Everything that can be wrong with an argument is said here, but for what only pickling
the whole graph shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import cloudpickle
import dask.array as da
import numpy as np
from dask.base import is_dask_collection
from dask.delayed import Delayed
from dask.sizeof import sizeof
from distributed import Client, Future

from clustertune.collections import inputs
from clustertune.core.wording import bytes_text, plural
from clustertune.errors import AlignmentError
from clustertune.operations.call import check_client

LARGE = 10_000_000  # bytes of items that had better lie on the cluster, as Dask says

Reduce = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Terms:
    """Arguments of a sum that have been checked.

    Attributes
    ----------
    client
        Connected.
    function, reduction
        Pickled; the second one is that of None for a sum.
    values
        Items of this process, in a sequence that can be sliced; or None,
    collections
        or else row-aligned collections, whose pieces are the items,
    futures
        or else futures of the items.
    broadcast
        Further arguments.
    remarks
        What the caller could do better.
    """

    client: Client
    function: bytes
    reduction: bytes
    values: Any
    collections: tuple[Any, ...]
    futures: tuple[Future[Any], ...]
    broadcast: tuple[Any, ...]
    remarks: tuple[str, ...] = ()


def check(client: Any, func: Any, items: Any, broadcast: Any, reduce: Any) -> Terms:
    """The arguments of :func:`clustertune.training.map_reduce`.

    Raises
    ------
    TypeError, ValueError
        One is not what it should be, or does not pickle.
    AlignmentError
        Collections are not row-aligned, or cut in columns.
    """
    check_client(client)
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
    terms = Terms(
        client=client,
        function=_pickled("func", func),
        reduction=_pickled("reduce", reduce),
        values=None,
        collections=(),
        futures=(),
        broadcast=tuple(broadcast),
    )
    return _with_items(terms, items)


def refuse_unsendable(terms: Terms) -> None:
    """Name what kept the graph from being pickled.

    Pickling each argument alone takes long: it is done where the graph has failed.

    Raises
    ------
    TypeError
        An item, or something that is broadcast, does not pickle.
    """
    for i, value in enumerate(terms.broadcast):
        _refuse_unsendable(f"broadcast[{i}]", value)
    for i, value in enumerate(() if terms.values is None else terms.values):
        _refuse_unsendable(f"items[{i}]", value)


def _pickled(name: str, function: Any) -> bytes:
    try:
        code: bytes = cloudpickle.dumps(function)
    # whatever a class of somebody's does when it is pickled
    except Exception as error:
        raise _unsendable(name, function, error) from error
    return code


def _refuse_unsendable(name: str, value: Any) -> None:
    try:
        # arrays are not copied: their bytes are what is handed over beside
        cloudpickle.dumps(value, protocol=5, buffer_callback=lambda _: False)
    # whatever a class of somebody's does when it is pickled
    except Exception as error:
        raise _unsendable(name, value, error) from error


def _unsendable(name: str, value: Any, error: Exception) -> TypeError:
    return TypeError(
        f"{name} cannot be sent to workers: {_type(value)} does not pickle ({error}); "
        "leave out what belongs to this process, such as locks, open files and clients"
    )


def _with_items(terms: Terms, items: Any) -> Terms:
    if isinstance(items, tuple) and any(map(is_dask_collection, items)):
        return _with_collections(terms, items)
    if is_dask_collection(items):
        return _with_collections(terms, (items,))
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
        return _with_values(terms, items)
    listed = items if isinstance(items, list | tuple) else list(items)
    if all(isinstance(item, Future) for item in listed):
        _refuse_foreign(terms.client, listed)
        return replace(terms, futures=tuple(listed))
    _refuse_mixed(listed)
    return _with_values(terms, listed)


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


def _with_values(terms: Terms, values: Any) -> Terms:
    nbytes = sizeof(values)
    if nbytes <= LARGE:
        return replace(terms, values=values)
    remark = (
        f"items take {bytes_text(nbytes)}, which go from this process to the workers "
        "in each call; have them loaded there instead (func can read its part), or "
        "send them once: items = client.scatter(items)"
    )
    return replace(terms, values=values, remarks=(remark,))


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


def _with_collections(terms: Terms, items: tuple[Any, ...]) -> Terms:
    given = inputs.of_rows(items)
    check_client(terms.client, given)
    collections = {label: given.collection(label) for label in given.training}
    rows = {label: _rows(label, x) for label, x in collections.items()}
    first, *rest = rows
    for label in rest:
        _refuse_misaligned(first, rows[first], label, rows[label])
    return replace(terms, collections=tuple(collections.values()))


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
