"""Describes the values of partitions; runs on a worker that holds them.

Answers are plain types, a few numbers for each partition, or arrays of them. NumPy and
pandas are those of the worker, which made the partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from types import MappingProxyType
from typing import Any

from clustertune.remote.worker.probe import rows as count_rows

MOST_CLASSES = 1000  # more different labels than that are no classes
MOST_TEXTS = 20  # distinct texts that an answer has
EXACT = 2**53  # floats hold all integers up to this one
SECONDS = 1.0  # for reading in one call; after it, tasks read on all threads
LONGER = 2.0  # seconds to wait for the last partitions
BATCH = 2**24  # bytes of partitions that a thread reads at a time


async def in_memory(
    dask_worker: Any,
    keys: Sequence[Any],
    labels: Sequence[str],
    looks: Mapping[str, Callable[[Any], dict[str, Any]]] = MappingProxyType({}),
) -> list[tuple[int, dict[str, Any] | None]]:
    """Rows of each partition, and the answer of the function for its label.

    Rows are -1 for a partition that is not in memory: reading a spilled one here would
    block the event loop. A thread reads values, of a few partitions at a time, so that
    Dask can spill the others. The answer is None if the time is over, or the memory of
    the worker is full.
    """
    data = getattr(dask_worker.data, "memory", dask_worker.data)
    rows = [_rows(data.get(key)) for key in keys]
    answers: list[dict[str, Any] | None] = [None] * len(keys)
    known = [i for i, n in enumerate(rows) if n >= 0 and labels[i] in looks]
    end = monotonic() + SECONDS

    def nbytes(number: int) -> int:  # a key may leave meanwhile
        task = dask_worker.state.tasks.get(keys[number])
        return 0 if task is None else task.nbytes or 0

    for some in _batches(known, nbytes):
        left = end - monotonic()
        if left <= 0 or dask_worker.status.name != "running":
            break
        work = asyncio.to_thread(
            _read, [(looks[labels[i]], data.get(keys[i])) for i in some]
        )
        reading = asyncio.ensure_future(work)
        done, _ = await asyncio.wait([reading], timeout=left + LONGER)
        if not done:  # of a large partition
            break
        for i, answer in zip(some, reading.result(), strict=True):
            answers[i] = answer
    return list(zip(rows, answers, strict=True))


def _rows(partition: Any) -> int:
    return -1 if partition is None else count_rows(partition)


def _batches(
    numbers: Iterable[int], nbytes: Callable[[int], int]
) -> Iterator[list[int]]:
    batch: list[int] = []
    total = 0
    for number in numbers:
        size = nbytes(number)
        if batch and total + size > BATCH:
            yield batch
            batch, total = [], 0
        batch.append(number)
        total += size
    if batch:
        yield batch


def _read(wanted: Iterable[tuple[Any, Any]]) -> list[dict[str, Any] | None]:
    answers: list[dict[str, Any] | None] = []
    for look, partition in wanted:
        answer = None
        if partition is not None:
            with suppress(Exception):  # the task that reads it next has the error
                answer = look(partition)
        answers.append(answer)
    return answers


def all_of(partition: Any, looks: list[Callable[[Any], dict[str, Any]]]) -> Any:
    """Merge the answers of other functions."""
    return {name: x for look in looks for name, x in look(partition).items()}


def finite(partition: Any) -> dict[str, Any]:
    """Missing and infinite labels, and labels that are texts."""
    return {"nonfinite_values": _not_finite(partition), "texts": _texts(partition)}


def columns(partition: Any, names: list[Any], kinds: list[str]) -> dict[str, Any]:
    """Difference of the columns from those of the metadata, in words; "": none."""
    import pandas as pd

    own = list(partition.columns) if hasattr(partition, "columns") else names
    if pd.Index(own).equals(pd.Index(names)):  # a name may be NaN
        own = names
    lacks = [str(name) for name in names if name not in own]
    more = [str(name) for name in own if name not in names]
    if lacks or more:
        parts = [f"lacks {', '.join(lacks[:9])}"] * bool(lacks)
        parts += [f"has {', '.join(more[:9])} in addition"] * bool(more)
        return {"columns": " and ".join(parts)}
    if own != names:
        return {"columns": f"has the order {', '.join(map(str, own[:9]))}"}
    for name, column, wanted in zip(names, _columns(partition), kinds, strict=True):
        if wanted != "other" and kind(column.dtype) != wanted:
            return {"columns": f"has {column.dtype} in {name} instead of {wanted}"}
    return {"columns": ""}


def kind(dtype: Any) -> str:
    """``"numbers"``, ``"categories"``, ``"times"`` or ``"other"``."""
    if str(dtype) == "category":
        return "categories"
    letter = getattr(dtype, "kind", "O")
    return {"M": "times", "m": "times"}.get(
        letter, "numbers" if letter in "biufc" else "other"
    )


def index(partition: Any) -> dict[str, Any]:
    """Digest of the index in its order, and a sum that does not depend on the order."""
    import hashlib

    import pandas as pd

    own = getattr(partition, "index", None)
    if not isinstance(own, pd.Index):
        return {"index": None}
    hashes = pd.util.hash_pandas_object(own, index=False).to_numpy()
    digest = hashlib.blake2b(hashes.tobytes(), digest_size=16).hexdigest()
    return {"index": [len(own), digest, int(hashes.sum(dtype="u8"))]}


def features(partition: Any) -> dict[str, Any]:
    """Values of features that are not finite, and categories by column."""
    return {
        "nonfinite_values": _not_finite(partition),
        "categories": _categories(partition),
    }


def labels(partition: Any) -> dict[str, Any]:
    """The answers of :func:`distinct` and :func:`classes`, without positions."""
    found = classes(partition, 0)
    names = found["classes"] and [name for name, _ in found["classes"]]
    return {**found, "texts": _texts(partition), "distinct": names}


def distinct(partition: Any) -> dict[str, Any]:
    """Different labels if they are classes, besides the answer of :func:`finite`."""
    found = None if _is_masked(partition) else _classes(_as_labels(partition))
    names = None if found is None else [name for name, _ in found]
    return {**finite(partition), "distinct": names}


def without_group(partition: Any) -> dict[str, Any]:
    """The number of rows without a group."""
    return {"missing": _not_finite(partition)[0]}


def runs(partition: Any) -> dict[str, Any]:
    """Every group with its number of rows, and rows without a group.

    Groups are in the order of rows. If one recurs, they are sorted, each once.
    """
    import numpy as np

    values = np.asarray(partition).ravel()
    if values.dtype.kind == "O":  # numbers with missing values, or texts
        values = np.array(values.tolist())
        values = values.astype(str) if values.dtype.kind == "O" else values
    begins = np.ones(len(values), dtype=bool)
    begins[1:] = values[1:] != values[:-1]
    starts = np.flatnonzero(begins)
    heads, counts = values[starts], np.diff(np.append(starts, len(values)))
    once, again = np.unique(heads, return_inverse=True)
    scattered = len(once) < len(heads)
    if scattered:
        heads, counts = once, np.bincount(again.reshape(-1), counts).astype("i8")
    return {
        "scattered": scattered,
        "missing": _not_finite(partition)[0],
        "values": heads,
        "counts": counts,
    }


def classes(partition: Any, most: int) -> dict[str, Any]:
    """Counts and some row numbers of each class, moments, and missing values.

    ``most`` is the number of rows of each class to return; they are far apart.
    """
    import numpy as np

    labels = _as_labels(partition)
    found = None if _is_masked(partition) else _classes(labels)
    rows = {}
    if found is not None and most:
        values, order = np.unique(labels, return_inverse=True)
        order = order.reshape(-1)
        by_class = np.argsort(order, kind="stable")
        ends = np.cumsum(np.bincount(order, minlength=len(values)))
        for (name, n), end in zip(found, ends.tolist(), strict=True):
            take = np.unique(np.linspace(0, n - 1, min(n, most)).astype("i8"))
            rows[name] = by_class[end - n : end][take]
    return {
        "classes": found,
        "positions": rows,
        "moments": None if _is_masked(partition) else _moments(labels),
        "nonfinite_values": _not_finite(partition),
    }


def _as_labels(partition: Any) -> Any:
    """Return labels as an array of one dimension, whole numbers as integers."""
    import numpy as np

    labels = np.asarray(partition)
    if labels.ndim > 1 and labels.shape[1] == 1:  # a DataFrame with one column
        labels = labels.ravel()
    if labels.dtype.kind == "f" and (np.abs(labels) < EXACT).all():
        whole = labels.astype("i8")  # 0.0 and 1.0 are classes too
        labels = whole if (whole == labels).all() else labels
    return labels


def moments(partition: Any) -> dict[str, Any]:
    """Rows, sum and sum of squares of numeric labels, and missing values."""
    return {"moments": _moments(partition), "nonfinite_values": _not_finite(partition)}


def types(partition: Any) -> dict[str, Any]:
    """Categories by column."""
    return {"categories": _categories(partition)}


def _columns(partition: Any) -> list[Any]:
    """Return the columns of a frame by position, since names may repeat."""
    if not hasattr(partition, "columns"):
        return [partition]
    return [partition.iloc[:, number] for number in range(partition.shape[1])]


def _not_finite(partition: Any) -> list[int]:
    """Count missing values (NaN, NA, masked) and infinite ones.

    Only stored values of a sparse matrix are read: the others are zero.
    """
    import numpy as np

    missing = infinite = 0
    for given in _columns(partition):
        column = given.tocoo().data if hasattr(given, "tocoo") else given
        if isinstance(column, np.ma.MaskedArray):
            missing += int(np.ma.getmaskarray(column).sum())
            column = column.compressed()
        kind = getattr(getattr(column, "dtype", None), "kind", "O")
        if hasattr(column, "isna"):
            missing += int(column.isna().sum())
            if kind == "f":
                plain = column.to_numpy("float64", na_value=np.nan)
                infinite += int(np.isinf(plain).sum())
        elif kind in "fc":
            missing += int(np.isnan(column).sum())
            infinite += int(np.isinf(column).sum())
        elif kind == "O":
            missing += sum(map(_lacks, np.ravel(column)))
    return [missing, infinite]


def _lacks(value: Any) -> bool:
    """Whether an object stands for a missing value; NaN is not equal to itself."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float) and value != value  # noqa: PLR0124


def _categories(partition: Any) -> dict[str, list[Any]]:
    """By column of categories, their number and a digest of them in their order."""
    import hashlib

    if not hasattr(partition, "columns"):
        return {}
    found = {}
    for column in _columns(partition):
        if hasattr(column, "cat"):
            listed = list(column.cat.categories)
            digest = hashlib.blake2b(repr(listed).encode(), digest_size=16).hexdigest()
            found[str(column.name)] = [len(listed), digest]
    return found


def _classes(partition: Any) -> list[list[Any]] | None:
    """(class, rows) if labels are integers or texts, and not too many."""
    import numpy as np

    values = np.asarray(partition)
    if values.ndim != 1 or values.dtype.kind not in "biuOUS" or _is_masked(partition):
        return None
    try:
        found, counts = np.unique(values, return_counts=True)
    except TypeError:  # objects of several kinds have no order
        return None
    if len(found) > MOST_CLASSES:
        return None
    return [[_plain(v), int(n)] for v, n in zip(found, counts, strict=True)]


def _texts(partition: Any) -> list[str]:
    """The first distinct texts."""
    import numpy as np

    values = np.asarray(partition)
    if values.dtype.kind not in "OUS":
        return []
    return sorted({x for x in values.ravel().tolist() if isinstance(x, str)})[
        :MOST_TEXTS
    ]


def _moments(partition: Any) -> list[float] | None:
    """(rows, sum, sum of squares) of the finite labels, if they are numbers."""
    import numpy as np

    values = np.asarray(partition)
    if values.ndim != 1 or values.dtype.kind not in "biuf" or _is_masked(partition):
        return None
    finite = values[np.isfinite(values)].astype("f8")
    return [len(finite), float(finite.sum()), float((finite**2).sum())]


def _is_masked(partition: Any) -> bool:
    """Whether some values are masked, so that the stored values are no labels."""
    import numpy as np

    return bool(np.ma.is_masked(partition))


def _plain(value: Any) -> Any:
    """A number or text that any side can read."""
    item = value.item() if hasattr(value, "item") else value
    return item if isinstance(item, bool | int | float | str) else str(item)
