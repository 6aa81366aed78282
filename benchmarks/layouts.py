"""Training data in different partitions on different workers.

A row depends only on its number, so all layouts, and one process without Dask, train on
the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import dask
import dask.array as da
import numpy as np
from distributed import Client, futures_of, wait
from measure import workers_of

BLOCK = 1000  # rows made from one seed
TINY = 1000  # partitions
HUGE = 3  # partitions

Shares = Sequence[float]  # relative sizes of partitions


@dataclass(frozen=True)
class Table:
    """Random rows with a signal for the label."""

    rows: int
    columns: int
    dtype: str

    @property
    def nbytes(self) -> int:
        return self.rows * (self.columns + 1) * np.dtype(self.dtype).itemsize

    def make(self, start: int, stop: int) -> tuple[Any, Any]:
        """X and y of a range of rows, which may exceed the table."""
        first, last = start // BLOCK, -(-stop // BLOCK)
        made = [self._block(number) for number in range(first, last)]
        X, y = (np.concatenate(parts) for parts in zip(*made, strict=True))
        here = slice(start - first * BLOCK, stop - first * BLOCK)
        return X[here].copy(), y[here].copy()

    def _block(self, number: int) -> tuple[Any, Any]:
        rng = np.random.default_rng([7, number])
        X = rng.standard_normal((BLOCK, self.columns), dtype=np.float32)
        noise = rng.standard_normal(BLOCK, dtype=np.float32)
        y = X[:, 0] + X[:, 1] ** 2 + 0.5 * noise > 1
        return X.astype(self.dtype, copy=False), y.astype(self.dtype)


@dataclass(frozen=True)
class Layout:
    """Sizes of the partitions of X and y, and the worker of each."""

    X: Shares
    y: Shares
    workers: Sequence[int]


def even(partitions: int, n_workers: int) -> Layout:
    """Equal partitions, on the workers in turns."""
    return Layout(
        [1] * partitions, [1] * partitions, [i % n_workers for i in range(partitions)]
    )


def skewed(partitions: int, n_workers: int) -> Layout:
    """Growing partitions, in equal numbers on the workers."""
    shares = list(range(1, partitions + 1))
    return Layout(
        shares, shares, [i * n_workers // partitions for i in range(partitions)]
    )


def tiny(partitions: int, n_workers: int) -> Layout:
    """Many small partitions."""
    return even(TINY, n_workers)


def huge(partitions: int, n_workers: int) -> Layout:
    """Three large partitions, which two workers cannot share evenly."""
    return even(HUGE, n_workers)


def misaligned(partitions: int, n_workers: int) -> Layout:
    """X and y with equally many partitions but different boundaries."""
    where = even(partitions, n_workers).workers
    shares = [1.5 if i // n_workers % 2 else 0.5 for i in range(partitions)]
    return Layout(shares, [1] * partitions, where)


def half(partitions: int, n_workers: int) -> Layout:
    """All rows on half of the workers, as after a scale-up."""
    return even(partitions, n_workers // 2)


LAYOUTS: dict[str, Callable[[int, int], Layout]] = {
    f.__name__: f for f in (even, skewed, tiny, huge, misaligned, half)
}


def load(
    client: Client, table: Table, layout: Layout, *, labels: bool = True
) -> list[Any]:
    """X, and y, loaded on the workers of the layout."""
    addresses = list(workers_of(client))
    where = [addresses[i] for i in layout.workers]
    X = da.map_blocks(
        _partition,
        table=table,
        member=0,
        chunks=(_cut(table.rows, layout.X), (table.columns,)),
        meta=np.empty((0, 0), table.dtype),
    )
    y = da.map_blocks(
        _partition,
        table=table,
        member=1,
        chunks=(_cut(table.rows, layout.y),),
        meta=np.empty(0, table.dtype),
    )
    with dask.annotate(workers=lambda key: where[key[1]], allow_other_workers=False):
        loaded = list(client.persist([X, y] if labels else [X]))
    wait(loaded)
    assert all(holders(client, c) == [(w,) for w in where] for c in loaded)
    return loaded


def _cut(rows: int, shares: Shares) -> tuple[int, ...]:
    ends = np.rint(np.cumsum(shares) / sum(shares) * rows).astype(int)
    return tuple(np.diff(ends, prepend=0).tolist())


def _partition(table: Table, member: int, block_info: Any = None) -> Any:
    start, stop = block_info[None]["array-location"][0]
    return table.make(start, stop)[member]


def partitions(collection: Any) -> list[Any]:
    """Futures of the partitions, in row order."""
    return sorted(futures_of(collection), key=lambda future: future.key[1])


def holders(client: Client, collection: Any) -> list[tuple[str, ...]]:
    """Holders of each partition."""
    futures = partitions(collection)
    found = client.who_has(futures)
    return [tuple(found[f.key]) for f in futures]
