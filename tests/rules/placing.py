"""Collections with partitions on chosen workers, and rows to rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import wait
from sklearn.metrics import ndcg_score

from tests.processes import workers_of


def workers(client: Any) -> list[str]:
    """Return the addresses of the workers in the order of names."""
    found = workers_of(client)
    return sorted(found, key=lambda address: str(found[address]["name"]))


def placed(client: Any, partitions: Sequence[Any], where: Sequence[int]) -> Any:
    """Return a collection of these partitions, each on the worker with that number.

    A partition that is lost with its worker is computed again on any worker.
    """
    addresses, name = workers(client), f"placed-{uuid4().hex}"
    first = partitions[0]
    array = isinstance(first, np.ndarray)
    tail = (0,) * (first.ndim - 1) if array else ()
    futures = {
        (name, i, *tail): client.submit(
            lambda x: x,
            partition,
            key=(name, i, *tail),
            workers=[addresses[where[i]]],
            allow_other_workers=True,
            pure=False,
        )
        for i, partition in enumerate(partitions)
    }
    wait(list(futures.values()))
    if not array:
        divisions = (None,) * (len(partitions) + 1)
        return dd.from_graph(futures, first.iloc[:0], divisions, list(futures), name)
    chunks = (tuple(map(len, partitions)), *((n,) for n in first.shape[1:]))
    return da.Array(futures, name, chunks, dtype=first.dtype)


def cut(values: Any, *rows: int) -> list[Any]:
    """Return partitions with these numbers of rows."""
    assert sum(rows) == len(values)
    ends = np.cumsum(rows).tolist()
    frame = isinstance(values, pd.DataFrame | pd.Series)
    rows_of = values.iloc if frame else values
    return [rows_of[end - n : end] for end, n in zip(ends, rows)]


def ranking(n_groups: int, size: int) -> tuple[Any, Any, Any]:
    """Return rows with an order that can be learned only within a group."""
    rng = np.random.default_rng(6)
    X = rng.random((n_groups * size, 4))
    qid = np.repeat(np.arange(n_groups), size)
    level = np.repeat(rng.random(n_groups), size)
    X[:, 0] += 5 * level
    rank = (X[:, 1] + 0.01 * X[:, 2]).reshape(n_groups, size).argsort(1).argsort(1)
    return X, np.minimum(3, rank.reshape(-1) * 4 // size), qid


def gain(predicted: Any, y: Any, n_groups: int) -> float:
    return float(ndcg_score(y.reshape(n_groups, -1), predicted.reshape(n_groups, -1)))
