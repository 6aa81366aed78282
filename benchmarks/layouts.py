"""Training data as it lies before a fit: the same rows in partitions of any kind,
anywhere.

A row depends on its number alone, so that every layout, and one process without Dask,
trains on the same ones.
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

BLOCK = 1000  # rows that are made together
TINY = 1000  # partitions of all rows
HUGE = 3  # partitions of all rows

Shares = Sequence[float]  # of the rows, in any unit


@dataclass(frozen=True)
class Table:
    """Rows of numbers with a signal in them."""

    rows: int
    columns: int
    dtype: str

    @property
    def nbytes(self) -> int:
        return self.rows * (self.columns + 1) * np.dtype(self.dtype).itemsize

    def make(self, start: int, stop: int) -> tuple[Any, Any]:
        """X and y from one row to another; there are rows beyond the last one."""
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
    """Into what partitions X and y are cut, and which worker has each."""

    X: Shares
    y: Shares
    workers: Sequence[int]


def even(partitions: int, n_workers: int) -> Layout:
    """As many rows in all partitions, which lie on the workers in turns."""
    return Layout(
        [1] * partitions, [1] * partitions, [i % n_workers for i in range(partitions)]
    )


def skewed(partitions: int, n_workers: int) -> Layout:
    """Give every partition more rows than the one before, and workers equal numbers."""
    shares = list(range(1, partitions + 1))
    return Layout(
        shares, shares, [i * n_workers // partitions for i in range(partitions)]
    )


def tiny(partitions: int, n_workers: int) -> Layout:
    """Partitions so many that each is hardly any work."""
    return even(TINY, n_workers)


def huge(partitions: int, n_workers: int) -> Layout:
    """Partitions so few that they cannot lie evenly."""
    return even(HUGE, n_workers)


def misaligned(partitions: int, n_workers: int) -> Layout:
    """As many rows on each worker and as many partitions of X and y, but other rows."""
    where = even(partitions, n_workers).workers
    shares = [1.5 if i // n_workers % 2 else 0.5 for i in range(partitions)]
    return Layout(shares, [1] * partitions, where)


def half(partitions: int, n_workers: int) -> Layout:
    """All on half of the workers, as after a scale-up."""
    return even(partitions, n_workers // 2)


LAYOUTS: dict[str, Callable[[int, int], Layout]] = {
    f.__name__: f for f in (even, skewed, tiny, huge, misaligned, half)
}


def load(
    client: Client, table: Table, layout: Layout, *, labels: bool = True
) -> list[Any]:
    """X, and y, made on the workers that shall hold them."""
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
    """Futures in the order of the rows."""
    return sorted(futures_of(collection), key=lambda future: future.key[1])


def holders(client: Client, collection: Any) -> list[tuple[str, ...]]:
    """Who holds each partition."""
    futures = partitions(collection)
    found = client.who_has(futures)
    return [tuple(found[f.key]) for f in futures]
