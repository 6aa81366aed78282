"""What the values of one piece are like; runs as a task where the piece lies.

Answers in plain types, a few numbers for each piece, or arrays of them. NumPy and
pandas are those of the worker, which made the piece.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MOST_CLASSES = 1000  # different labels, above which y is no class
EXACT = 2**53  # up to which floats hold all whole numbers


def each(look: Callable[[Any], dict[str, Any]], pieces: list[Any]) -> list[Any]:
    """What one of the others says of every piece."""
    return [look(piece) for piece in pieces]


def features(piece: Any) -> dict[str, Any]:
    """Values of features that are not finite, and categories by column."""
    return {"not_finite": _not_finite(piece), "categories": _categories(piece)}


def labels(piece: Any) -> dict[str, Any]:
    """Values of labels that are not finite, how often each class is there, moments."""
    return {
        "not_finite": _not_finite(piece),
        "classes": _classes(piece),
        "moments": _moments(piece),
    }


def groups(piece: Any) -> dict[str, Any]:
    """First and last group, whether they are sorted, and whether one comes back."""
    found = runs(piece)
    return {name: found[name] for name in ("ends", "sorted", "scattered")}


def runs(piece: Any) -> dict[str, Any]:
    """What :func:`groups` says, and every group with its number of rows.

    In the order of rows; where one comes back, in that of groups, each once.
    """
    import numpy as np

    values = np.asarray(piece).ravel()
    if values.dtype.kind == "O":  # numbers that may lack a value, or texts
        values = np.array(values.tolist())
        values = values.astype(str) if values.dtype.kind == "O" else values
    if not len(values):
        none = {"values": values, "counts": np.zeros(0, dtype="i8")}
        return {"ends": None, "sorted": True, "scattered": False, **none}
    starts = np.flatnonzero(values[1:] != values[:-1]) + 1
    edges = np.concatenate([[0], starts, [len(values)]])
    heads, counts = values[edges[:-1]], np.diff(edges)
    once, again = np.unique(heads, return_inverse=True)
    scattered = len(once) < len(heads)
    if scattered:
        heads, counts = once, np.bincount(again.reshape(-1), counts).astype("i8")
    return {
        "ends": [_plain(values[0]), _plain(values[-1])],
        "sorted": bool((values[1:] >= values[:-1]).all()),
        "scattered": scattered,
        "values": heads,
        "counts": counts,
    }


def classes(piece: Any, most: int) -> dict[str, Any]:
    """How often each class is there, rows of some of each; moments, what is lacking.

    ``most`` is how many rows of each class are named at most; they lie far apart.
    """
    import numpy as np

    labels = np.asarray(piece)
    if labels.ndim > 1 and labels.shape[1] == 1:  # a frame of one column
        labels = labels.ravel()
    if labels.dtype.kind == "f" and (np.abs(labels) < EXACT).all():
        whole = labels.astype("i8")  # 0.0 and 1.0 are classes too
        labels = whole if (whole == labels).all() else labels
    found = _classes(labels)
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
        "moments": _moments(labels),
        "not_finite": _not_finite(piece),
    }


def moments(piece: Any) -> dict[str, Any]:
    """Rows, sum and sum of squares of labels that are numbers; how many are none."""
    return {"moments": _moments(piece), "not_finite": _not_finite(piece)}


def types(piece: Any) -> dict[str, Any]:
    """By column the lists of categories; the largest of all whole numbers."""
    import numpy as np

    if not hasattr(piece, "columns"):
        return {"categories": {}, "lists": {}, "largest": 0}
    plain = {c: t for c, t in piece.dtypes.items() if isinstance(t, np.dtype)}
    whole = [c for c, t in plain.items() if t.kind in "iu" and len(piece)]
    values = [piece[c].to_numpy() for c in whole]
    ends = [abs(int(f(v))) for v in values for f in (np.min, np.max)]
    lists = {c: piece[c].dtype for c in piece.columns if hasattr(piece[c], "cat")}
    return {
        "categories": _categories(piece),
        "lists": lists,
        "largest": max(ends, default=0),
    }


def _not_finite(piece: Any) -> list[int]:
    """How many are lacking (NaN, NA), and how many are infinite."""
    import numpy as np

    columns = (
        [piece[c] for c in piece.columns] if hasattr(piece, "columns") else [piece]
    )
    lacking = infinite = 0
    for column in columns:
        kind = getattr(getattr(column, "dtype", None), "kind", "O")
        if hasattr(column, "isna"):
            lacking += int(column.isna().sum())
            if kind == "f":
                infinite += int(np.isinf(column.to_numpy()).sum())
        elif kind in "fc":
            lacking += int(np.isnan(column).sum())
            infinite += int(np.isinf(column).sum())
        elif kind == "O":
            lacking += sum(map(_lacks, np.ravel(column)))
    return [lacking, infinite]


def _lacks(value: Any) -> bool:
    """Whether an object stands for a value that is not there; NaN is not itself."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float) and value != value  # noqa: PLR0124


def _categories(piece: Any) -> dict[str, str]:
    """By column of categories a text that is the same where they are, in order."""
    if not hasattr(piece, "columns"):
        return {}
    return {
        str(c): repr(list(piece[c].cat.categories))
        for c in piece.columns
        if hasattr(piece[c], "cat")
    }


def _classes(piece: Any) -> list[list[Any]] | None:
    """(class, rows) where labels are whole numbers or texts, and not too many."""
    import numpy as np

    values = np.asarray(piece)
    if values.ndim != 1 or values.dtype.kind not in "biuOUS":
        return None
    try:
        found, counts = np.unique(values, return_counts=True)
    except TypeError:  # objects of several kinds have no order
        return None
    if len(found) > MOST_CLASSES:
        return None
    return [[_plain(v), int(n)] for v, n in zip(found, counts, strict=True)]


def _moments(piece: Any) -> list[float] | None:
    """(rows, sum, sum of squares) of the finite ones, where labels are numbers."""
    import numpy as np

    values = np.asarray(piece)
    if values.ndim != 1 or values.dtype.kind not in "biuf":
        return None
    finite = values[np.isfinite(values)].astype("f8")
    return [len(finite), float(finite.sum()), float((finite**2).sum())]


def _plain(value: Any) -> Any:
    """A number or text that any side can read."""
    item = value.item() if hasattr(value, "item") else value
    return item if isinstance(item, bool | int | float | str) else str(item)
