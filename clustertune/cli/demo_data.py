"""The data of ``clustertune demo``: made here or the user's own, split and loaded.

Training and validation set, features and label all come from one frame and are loaded
in one call, so that their rows stay paired.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import numpy.typing as npt
import pandas as pd
from distributed import Client, wait

from clustertune.errors import ClustertuneError

LABEL = "digit"  # of the data made here
CLASSES = 20  # most different values of a whole-number label that are taken as classes
FEWEST_ROWS = 100
FILES = 4  # of the data made here
_SEED = 0


class DemoError(ClustertuneError):
    """The demo cannot run with what it was given; the text says what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """A loaded training set and its validation set, and what the label asks for."""

    X: Any
    y: Any
    X_valid: Any
    y_valid: Any
    classes: int | None  # None: the label is a quantity, not a class


# --- made here ----------------------------------------------------------------------


def write_digits(folder: Path, *, rows: int, pieces: int) -> None:
    """Write Parquet files with uneven row groups: real digits, repeated with noise.

    The noise (a quarter of the range) makes each row another one, and the task hard
    enough that rows with wrong labels would show in the score. The digits are the
    images that scikit-learn brings along; the same image can be in the training and in
    the validation set, so the score compares two fits and praises none.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    random = np.random.default_rng(_SEED)
    names = [f"pixel_{i}" for i in range(images.shape[1])]
    schema = pa.schema([(n, pa.float32()) for n in names] + [(LABEL, pa.int64())])
    folder.mkdir(parents=True)
    for number, sizes in enumerate(np.array_split(row_groups(rows, pieces), FILES)):
        with pq.ParquetWriter(folder / f"part-{number}.parquet", schema) as writer:
            for size in sizes.tolist():
                which = random.integers(0, len(images), size)
                noise = random.standard_normal((size, len(names)), dtype=np.float32)
                pixels = images[which].astype(np.float32) + 4 * noise
                table = pa.table([*pixels.T, digits[which]], schema=schema)
                writer.write_table(table, row_group_size=size)


def row_groups(rows: int, pieces: int) -> npt.NDArray[np.int64]:
    """Sizes of so many row groups, the largest up to five times the smallest."""
    share = np.random.default_rng(_SEED).uniform(0.4, 2.0, pieces)
    ends = np.round(np.cumsum(share) / share.sum() * rows).astype(np.int64)
    sizes: npt.NDArray[np.int64] = np.diff(ends, prepend=0)
    return sizes


# --- the user's own -----------------------------------------------------------------


def read(path: str, label: str) -> Any:
    """The data as a lazy frame, every row group a partition.

    Raises
    ------
    DemoError
        It cannot be read, the label is not in it, or its columns are not numbers.
    """
    try:
        frame = dd.read_parquet(path, split_row_groups=True)
    except (OSError, ValueError, ImportError, NotImplementedError) as error:
        reason = (str(error).strip() or repr(error)).splitlines()[-1]
        raise DemoError(f"{path!r} cannot be read as Parquet: {reason}") from error
    columns = [str(c) for c in frame.columns]
    if label not in columns:
        raise DemoError(
            f"label={label!r} is not a column; the columns are {_listed(columns)}"
        )
    if len(columns) == 1:
        raise DemoError(f"{label!r} is the only column: there is nothing to learn from")
    odd = [
        f"{name} ({dtype})"
        for name, dtype in frame.drop(columns=label).dtypes.items()
        if not (_is_number(dtype) or _is_category(dtype))
    ]
    if odd:
        raise DemoError(
            f"these columns are neither numbers nor categories: {_listed(odd)}; drop "
            "them, or store them as numbers or categories"
        )
    return frame


def _is_number(dtype: Any) -> bool:
    return bool(pd.api.types.is_numeric_dtype(dtype)) and dtype.kind != "c"


def _is_category(dtype: Any) -> bool:
    return isinstance(dtype, pd.CategoricalDtype)


def _listed(names: list[str], most: int = 20) -> str:
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


# --- loading ------------------------------------------------------------------------


def load(client: Client, frame: Any, label: str, *, pieces: int) -> Data:
    """Split and load as a user would, on the workers that there are.

    Parameters
    ----------
    client
        Where to load it.
    frame, label
        What :func:`read` gave.
    pieces
        Cut the frame into so many partitions if it has fewer than a quarter of them:
        whole pieces must do to share it out evenly.

    Raises
    ------
    DemoError
        There are too few rows, or the label cannot be learned.
    """
    if 4 * frame.npartitions < pieces:
        frame = frame.repartition(npartitions=pieces)
    categories = [n for n, dtype in frame.dtypes.items() if _is_category(dtype)]
    if categories:
        frame = frame.categorize(columns=categories, index=False)
    halves = frame.random_split([0.9, 0.1], random_state=_SEED)
    lazy = [part for half in halves for part in (half.drop(columns=label), half[label])]
    X, y, X_valid, y_valid = client.persist(lazy)
    wait([X, y, X_valid, y_valid])
    classes = _classes(y, y_valid, label)
    if classes is not None:
        numbered = pd.CategoricalDtype(classes)
        y, y_valid = client.persist(
            [part.astype(numbered).cat.codes for part in (y, y_valid)]
        )
        wait([y, y_valid])
    return Data(
        X=X,
        y=y,
        X_valid=X_valid,
        y_valid=y_valid,
        classes=None if classes is None else len(classes),
    )


def _classes(y: Any, y_valid: Any, label: str) -> list[Any] | None:
    """The different labels if they are few and no quantities, else None."""
    rows = len(y) + len(y_valid)
    if rows < FEWEST_ROWS:
        raise DemoError(f"{rows:,} rows are too few; the demo needs {FEWEST_ROWS}")
    absent = sum(int(part.isna().sum().compute()) for part in (y, y_valid))
    if absent:
        raise DemoError(
            f"the label {label!r} is missing in {absent:,} of {rows:,} rows; drop "
            "these rows first"
        )
    whole = pd.api.types.is_integer_dtype(y.dtype)
    if _is_number(y.dtype) and not whole and not pd.api.types.is_bool_dtype(y.dtype):
        return None
    found = sorted(y.unique(split_out=1).compute())
    if whole and len(found) > CLASSES:
        return None
    if not 2 <= len(found) <= CLASSES:
        raise DemoError(
            f"the label {label!r} ({y.dtype}) has {len(found):,} different values; "
            f"2 to {CLASSES} can be told apart, or give a column of quantities"
        )
    return found
