"""Tasks of ``map_reduce`` and ``joblib_backend``: sums and fits on a worker.

Results are added in the order of the arguments. The first two make a new array, because
a function may return its item or an array that Dask stores. Later ones are added to it.

This module travels by value. It may import Dask, NumPy and other travelling modules.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from traceback import extract_tb
from typing import Any

from distributed.protocol import pickle as dask_pickle

from clustertune.remote.scheduler import bindings

# --- sums -----------------------------------------------------------------------------

FAILED = "clustertune: failed at an item"  # first argument of our task errors

Reduce = Callable[[Any, Any], Any]


# --- errors of user code --------------------------------------------------------------


def error_location(error: BaseException) -> str:
    """Return file and line of the innermost call."""
    last = extract_tb(error.__traceback__)[-1]
    return f"{last.filename}:{last.lineno} in {last.name}"


def picklable_error(error: BaseException) -> BaseException:
    """Return the error, or a ``RuntimeError`` with its text if it does not pickle."""
    try:
        dask_pickle.loads(dask_pickle.dumps(error))
    # a class of the user may raise any error while it is pickled
    except Exception:  # noqa: BLE001
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


# --- tasks ----------------------------------------------------------------------------


def sum_batch(
    function: bytes,
    reduction: bytes,
    numbers: Sequence[int],
    columns: Sequence[Sequence[Any]],
    broadcast: Sequence[Any],
) -> Any:
    """Return the sum of ``function(*item, *broadcast)`` over some items.

    Functions are pickled; a pickled None as reduction means a sum. ``columns`` are the
    first arguments of all items, then the second arguments, and so on. If an item
    fails, the arguments of the error are ``FAILED``, the operation, the number of the
    item, the error and its location.
    """
    call = pickle.loads(function)  # noqa: S301 (made by the caller's client)
    total = _Total(reduction)
    for number, *item in zip(numbers, *columns, strict=True):
        # no variable holds the result, so only one result is in memory at a time
        total.add(_guarded("func", number, _call, call, item, broadcast), number)
    return total.value


def join_sums(reduction: bytes, numbers: Sequence[int], sums: Sequence[Any]) -> Any:
    """Return the sum of batches; ``numbers`` are the first items of the batches."""
    total = _Total(reduction)
    for number, value in zip(numbers, sums, strict=True):
        total.add(value, number)
    return total.value


# --- on the scheduler -----------------------------------------------------------------


async def free_stuck(dask_scheduler: Any, name: str) -> None:
    """Let tasks of a sum run on any worker if their worker is gone.

    Dask moves tasks with ``allow_other_workers`` only when it schedules them. A task
    that was scheduled while no worker ran keeps waiting for its lost worker.
    """
    waiting = [
        task
        for task in dask_scheduler.unrunnable
        if isinstance(task.key, tuple) and str(task.key[0]).endswith(name)
    ]
    for task in waiting:
        bindings.unbind(task)
    await bindings.start_waiting(dask_scheduler, waiting)


# --- one result after the other -------------------------------------------------------


def _call(
    function: Callable[..., Any], item: Sequence[Any], broadcast: Sequence[Any]
) -> Any:
    # a sparse matrix has no len()
    rows = [int(partition.shape[0]) for partition in item if len(item) > 1]
    if len(set(rows)) > 1:
        raise ValueError(
            f"its partitions have {' and '.join(map(str, rows))} rows, so rows would "
            "be paired with other rows' labels. Run clustertune.prepare on the "
            "collections: it aligns them"
        )
    return function(*item, *broadcast)


class _Total:
    def __init__(self, reduction: bytes):
        # made by the caller's client
        self.reduce: Reduce | None = pickle.loads(reduction)  # noqa: S301
        self.count = 0  # results so far
        self.value: Any = None

    def add(self, value: Any, number: int) -> None:
        """Add a result; ``number`` is its first item."""
        self.count += 1
        if self.reduce is None and self.count == 1:
            self.value = _guarded("sum", number, _first, value)
        elif self.reduce is None:
            owned = self.count > 2  # no other code refers to the arrays of a sum
            self.value = _guarded("sum", number, add, self.value, value, owned)
        elif self.count == 1:
            self.value = value
        else:
            self.value = _guarded("reduce", number, self.reduce, self.value, value)


def _guarded(
    operation: str, number: int, function: Callable[..., Any], *arguments: Any
) -> Any:
    try:
        return function(*arguments)
    except (SystemExit, KeyboardInterrupt):
        raise  # Dask ends the worker
    # user code may raise any error; the client raises it with the item's number
    except BaseException as error:  # noqa: BLE001
        # a built-in error, because the client cannot unpickle classes of this module
        failed = RuntimeError(
            FAILED, operation, number, picklable_error(error), error_location(error)
        )
    # raised outside the clause, because its context may not pickle
    raise failed


# --- the sum of two results -----------------------------------------------------------


def add(total: Any, more: Any, owned: bool = False) -> Any:
    """Return the sum of two results of the same structure.

    They are numbers or arrays in dicts, lists, tuples and named tuples, or both None.
    Arrays in an ``owned`` total are changed in place.
    """
    if owned and _fits_in(total, more):
        total += more
        return total
    if isinstance(total, Mapping) or isinstance(more, Mapping):
        both = isinstance(total, Mapping) and isinstance(more, Mapping)
        _require(both and total.keys() == more.keys(), total, more)
        return {k: add(total[k], more[k], owned) for k in total}
    if isinstance(total, list | tuple) or isinstance(more, list | tuple):
        same = type(total) is type(more) and len(total) == len(more)
        _require(same, total, more)
        pairs = zip(total, more, strict=True)
        return _like(total, [add(a, b, owned) for a, b in pairs])
    if total is None and more is None:
        return None
    more = _first(more)
    _refuse_other_shape(total, more)
    return total + more


def _first(value: Any) -> Any:
    """Return the first value of a sum: booleans count, small integers are widened."""
    import numpy as np

    if isinstance(value, Mapping):
        return {k: _first(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return _like(value, [_first(v) for v in value])
    if value is None:
        return None
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biu":
        wide = np.uint64 if value.dtype.kind == "u" else np.int64
        return value.astype(wide, copy=False)
    if isinstance(value, bool):
        return int(value)
    number = hasattr(value, "__add__") and not isinstance(value, str | bytes)
    if not number:
        raise TypeError(
            f"a {type(value).__name__} cannot be added up. Return numbers and arrays, "
            "optionally in dicts, lists or tuples, or pass reduce="
        )
    return value


def _like(one: Any, values: list[Any]) -> Any:
    """Return the values as a list, tuple or named tuple of the same class."""
    if hasattr(one, "_fields"):
        return type(one)(*values)
    return tuple(values) if isinstance(one, tuple) else values


def _require(same: bool, total: Any, more: Any) -> None:
    if not same:
        raise ValueError(f"{_kind(more)} after {_kind(total)}")


def _refuse_other_shape(total: Any, more: Any) -> None:
    shapes = [tuple(getattr(x, "shape", ())) for x in (total, more)]
    same = shapes[0] == shapes[1] and (total is None) == (more is None)
    _require(same, total, more)
    axes = zip(*(getattr(x, "axes", ()) or () for x in (total, more)), strict=False)
    if not all(labels.equals(others) for labels, others in axes):
        raise ValueError(
            "rows or columns have other labels than before, so pandas would insert "
            "missing values; return the same labels for each item"
        )


def _fits_in(total: Any, more: Any) -> bool:
    """Return whether these are arrays whose sum has the type and shape of the first.

    Most sums add such arrays. All other tests together take as long as adding some
    10,000 numbers.
    """
    import numpy as np

    return (
        type(total) is np.ndarray
        and type(more) is np.ndarray
        and total.shape == more.shape
        and np.result_type(total, more) == total.dtype
    )


def _kind(value: Any) -> str:
    """Describe a result for an error: ``a dict of ['a']``, ``shape (3,)``."""
    if isinstance(value, Mapping):
        return f"a dict of {sorted(map(str, value))}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    if hasattr(value, "shape"):
        return f"shape {tuple(value.shape)}"
    return f"a value of type {type(value).__name__}"


# --- fits -----------------------------------------------------------------------------

#: a function, its positional and its keyword arguments
Fit = tuple[Callable[..., Any], list[Any], dict[str, Any]]


def run_fits(fits: list[Fit]) -> list[Any]:
    """Run fits one after the other; joblib calls inside a fit run in its thread."""
    import joblib

    with joblib.parallel_config("sequential"):
        return [function(*args, **kwargs) for function, args, kwargs in fits]


def ready() -> None:
    """Do nothing: the answer shows that a worker is not frozen."""


# --- workers that ended ---------------------------------------------------------------


async def ended_workers(dask_scheduler: Any, keys: list[str]) -> list[tuple[str, str]]:
    """Return the workers that ended unexpectedly with a task of ``keys``, and why.

    Dask keeps the last events only. Any client may log any event.
    """

    def events(topic: str) -> list[dict[str, Any]]:
        logged = dask_scheduler.get_events(topic)
        return [event for _, event in logged if type(event) is dict]

    exceeded = {str(event.get("worker")) for event in events("worker-restart-memory")}
    found = []
    for event in events("all"):
        is_end = event.get("action") == "remove-worker" and not event.get("expected")
        if is_end and not event.get("processing-tasks", set()).isdisjoint(keys):
            memory = event["worker"] in exceeded
            reason = "exceeded its memory limit" if memory else "its process ended"
            found.append((event["worker"], reason))
    return found
