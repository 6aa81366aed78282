"""What the values of one piece are like; runs as a task where the piece lies.

Answers in plain types, a few numbers for each piece. NumPy and pandas are those of the
worker, which made the piece.
"""

from __future__ import annotations

from typing import Any

MOST_CLASSES = 1000  # different labels, above which y is no class


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
    import numpy as np

    values = np.asarray(piece).ravel()
    if not len(values):
        return {"ends": None, "sorted": True, "scattered": False}
    starts = np.flatnonzero(values[1:] != values[:-1]) + 1
    heads = values[np.concatenate([[0], starts])]
    return {
        "ends": [_plain(values[0]), _plain(values[-1])],
        "sorted": bool((values[1:] >= values[:-1]).all()),
        "scattered": len(np.unique(heads)) < len(heads),
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
