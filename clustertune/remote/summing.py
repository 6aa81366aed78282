"""Results of a function added up on a worker; runs inside tasks.

The order is that of the arguments. Results are added in place to the first one where
nobody else has that, else to a new one that the first two make: what the function
returned may be the item itself, or lie in memory under a key of Dask's.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from clustertune.remote.failures import sendable, where
from clustertune.remote.scheduler.bindings import unbind

FAILED = "clustertune: failed at an item"  # first argument of the error that says so

Reduce = Callable[[Any, Any], Any]


# --- tasks ----------------------------------------------------------------------------


def batch(
    function: bytes,
    reduction: bytes,
    numbers: Sequence[int],
    columns: Sequence[Sequence[Any]],
    broadcast: Sequence[Any],
) -> Any:
    """The sum of ``function(*item, *broadcast)``.

    Parameters
    ----------
    function, reduction
        Pickled; for a sum the reduction is None.
    numbers
        Of the items, for errors.
    columns
        The arguments that differ: the first of each item, the second of each, and on.
    broadcast
        The arguments that are the same for all.

    Raises
    ------
    RuntimeError
        Something failed at an item: ``FAILED``, what was called, the item's number, the
        error, and where it arose.
    """
    call = pickle.loads(function)  # noqa: S301 (made by the caller's client)
    total = _Total(reduction)
    for number, *item in zip(numbers, *columns, strict=True):
        # a result is let go before the next is made: memory for one is enough
        total.take(number, [_guarded("func", number, _call, call, item, broadcast)])
    return total.value


def join(reduction: bytes, numbers: Sequence[int], parts: Sequence[Any]) -> Any:
    """The sum of the results of batches, which begin with the items ``numbers``."""
    total = _Total(reduction)
    for number, part in zip(numbers, parts, strict=True):
        total.take(number, [part])
    return total.value


def same(value: Any) -> Any:
    """What many tasks need, as a task: it can be made again where a worker is lost."""
    return value


# --- on the scheduler -----------------------------------------------------------------


async def free_stuck(dask_scheduler: Any, name: str) -> int:
    """Let tasks run anywhere that wait for a worker that is gone; how many there were.

    Dask lets tasks with ``allow_other_workers`` run elsewhere in the moment in which
    they are handed out. Where no worker runs in that moment, they wait for theirs.
    """
    waiting = [
        task
        for task in dask_scheduler.unrunnable
        if isinstance(task.key, tuple) and str(task.key[0]).endswith(name)
    ]
    for task in waiting:
        unbind(task)
    recommended = {task.key: "processing" for task in waiting}
    dask_scheduler.transitions(recommended, f"clustertune-{name}")
    return len(waiting)


# --- one after the other --------------------------------------------------------------


def _call(
    function: Callable[..., Any], item: Sequence[Any], broadcast: Sequence[Any]
) -> Any:
    rows = [len(piece) for piece in item if len(item) > 1]
    if len(set(rows)) > 1:
        raise ValueError(
            f"its pieces have {' and '.join(map(str, rows))} rows: they are not "
            "row-aligned; clustertune.prepare cuts them alike"
        )
    return function(*item, *broadcast)


class _Total:
    """What results add up to that come one after the other."""

    def __init__(self, reduction: bytes):
        # made by the caller's client
        self.reduce: Reduce | None = pickle.loads(reduction)  # noqa: S301
        self.begun = False
        self.ours = False  # whether nobody else has it
        self.value: Any = None

    def take(self, number: int, held: list[Any]) -> None:
        """Add the one that is held: the result of an item, or of several from it on."""
        if not self.begun:
            self.begun, self.ours = True, _nobody_elses(held)
            begin = _begin if self.reduce is None else same
            self.value = _guarded("sum", number, begin, held[0])
        elif self.reduce is None:
            self.value = _guarded("sum", number, add, self.value, held[0], self.ours)
            self.ours = True
        else:
            self.value = _guarded("reduce", number, self.reduce, self.value, held[0])


def _nobody_elses(held: list[Any]) -> bool:
    """Whether the array in a list is found there only, so that nobody sees it change.

    The list may be the only one that refers to it; the other reference is that with
    which it is asked for.
    """
    import numpy as np

    return (
        sys.getrefcount(held[0]) == 2
        and type(held[0]) is np.ndarray
        and held[0].flags.owndata
        and held[0].flags.writeable
    )


def _guarded(
    what: str, number: int, function: Callable[..., Any], *arguments: Any
) -> Any:
    try:
        return function(*arguments)
    # whatever the user's code raises; the worker's log and the client's error have it
    except Exception as error:  # noqa: BLE001
        # arguments of a built-in error: the client has no class of ours to unpickle
        failed = RuntimeError(FAILED, what, number, sendable(error), where(error))
    # not in the clause: its context would travel too, and may not pickle
    raise failed


# --- the sum of two -------------------------------------------------------------------


def add(total: Any, more: Any, ours: bool = False, path: str = "") -> Any:
    """The sum of two results of the same shape: numbers, arrays, or nests of them.

    Parameters
    ----------
    total, more
        Numbers or arrays in dicts, lists, tuples and named tuples; None with None.
    ours
        Whether arrays in ``total`` may be changed: nobody else has them.
    path
        Where in the result this is, for errors.

    Raises
    ------
    TypeError, ValueError
        They cannot be added; the text says where and why.
    """
    if ours and _alike(total, more):
        total += more
        return total
    if isinstance(total, Mapping) or isinstance(more, Mapping):
        _same_keys(total, more, path)
        return {k: add(total[k], more[k], ours, f"{path}[{k!r}]") for k in total}
    if isinstance(total, list | tuple) or isinstance(more, list | tuple):
        _same_lengths(total, more, path)
        pairs = enumerate(zip(total, more, strict=True))
        return _like(total, [add(a, b, ours, f"{path}[{i}]") for i, (a, b) in pairs])
    if total is None and more is None:
        return None
    more = _begin(more, path)
    _refuse_other_shape(total, more, path)
    if ours and _in_place(total, more):
        total += more
        return total
    return total + more


def _begin(value: Any, path: str = "") -> Any:
    """A result as the first of a sum: truth values count, small integers get room."""
    import numpy as np

    if isinstance(value, Mapping):
        return {k: _begin(v, f"{path}[{k!r}]") for k, v in value.items()}
    if isinstance(value, list | tuple):
        parts = [_begin(v, f"{path}[{i}]") for i, v in enumerate(value)]
        return _like(value, parts)
    if value is None:
        return None
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biu":
        room = np.uint64 if value.dtype.kind == "u" else np.int64
        return value.astype(room, copy=False)
    if isinstance(value, bool):
        return int(value)
    number = hasattr(value, "__add__") and not isinstance(value, str | bytes)
    if not number:
        raise TypeError(
            f"{_at(path)}a {type(value).__name__} cannot be added up; return numbers "
            "and arrays, in dicts, lists or tuples if need be, or give reduce="
        )
    return value


def _like(one: Any, parts: list[Any]) -> Any:
    """A list, tuple or named tuple of the same class."""
    if hasattr(one, "_fields"):
        return type(one)(*parts)
    return tuple(parts) if isinstance(one, tuple) else parts


def _same_keys(total: Any, more: Any, path: str) -> None:
    both = isinstance(total, Mapping) and isinstance(more, Mapping)
    if not both or total.keys() != more.keys():
        raise ValueError(f"{_at(path)}{_kind(more)} after {_kind(total)}")


def _same_lengths(total: Any, more: Any, path: str) -> None:
    if type(total) is not type(more) or len(total) != len(more):
        raise ValueError(f"{_at(path)}{_kind(more)} after {_kind(total)}")


def _refuse_other_shape(total: Any, more: Any, path: str) -> None:
    shapes = [tuple(getattr(x, "shape", ())) for x in (total, more)]
    if shapes[0] != shapes[1] or (total is None) != (more is None):
        raise ValueError(f"{_at(path)}{_kind(more)} after {_kind(total)}")
    if not all(map(_equal, *(getattr(x, "axes", ()) or () for x in (total, more)))):
        raise ValueError(
            f"{_at(path)}rows or columns have other labels than those before; pandas "
            "would put missing values where labels differ"
        )


def _alike(total: Any, more: Any) -> bool:
    """Whether these are arrays of numbers of one type and shape: what most sums add.

    All else that is asked of results takes as long as adding some 10,000 numbers.
    """
    import numpy as np

    return (
        type(total) is np.ndarray
        and type(more) is np.ndarray
        and total.dtype == more.dtype
        and total.dtype.kind in "iufc"
        and total.shape == more.shape
    )


def _equal(labels: Any, others: Any) -> bool:
    return bool(labels.equals(others))


def _in_place(total: Any, more: Any) -> bool:
    """Whether adding to the array keeps its type, as a new sum would have it."""
    import numpy as np

    return type(total) is np.ndarray and np.result_type(total, more) == total.dtype


def _kind(value: Any) -> str:
    """What a result is, for an error: ``a dict of ['a']``, ``shape (3,)``."""
    if isinstance(value, Mapping):
        return f"a dict of {sorted(map(str, value))}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    if hasattr(value, "shape"):
        return f"shape {tuple(value.shape)}"
    return f"something of type {type(value).__name__}"


def _at(path: str) -> str:
    return f"at {path}: " if path else ""
