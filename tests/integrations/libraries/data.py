"""Rows with labels that every library can learn."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np

ROWS, PARTITIONS, GROUP = 1200, 4, 20
CHUNK = ROWS // PARTITIONS


def features(seed: int = 3) -> Any:
    return da.random.default_rng(seed).random((ROWS, 5), chunks=(CHUNK, 5))


def labels(X: Any) -> Any:
    return (X[:, 0] > 0.5).astype("f8")


def groups() -> Any:
    """Return the group of each row, ascending; every partition has whole groups."""
    return da.from_array(np.arange(ROWS) // GROUP, chunks=CHUNK)


def spread(model: Any, X: Any) -> float:
    """Return how much predictions differ between rows."""
    predicted = model.predict(X).compute()
    return float(predicted.max() - predicted.min())
