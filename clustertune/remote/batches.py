"""Batches of rows from pieces in this worker's memory, read ahead by a thread.

One piece is read at a time and as many batches wait as were asked for: a consumer that
is slow holds the reader back, and one that ends, ends it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

Rows = tuple[Any, ...]  # of each collection the same rows


def cut(pieces: Iterable[Rows], size: int | None, steps: int | None) -> Iterator[Rows]:
    """Batches in the order of the rows.

    Parameters
    ----------
    pieces
        Rows of X, y, and on, as many of each.
    size
        Rows of a batch, over the boundaries of pieces; the last one may have fewer.
        None: a batch for each piece.
    steps
        How many batches at most; None: all.
    """
    batches = (p for p in pieces if rows(p)) if size is None else _cut(pieces, size)
    # whatever is not asked for is not read
    return islice(batches, steps)


def rows(piece: Rows) -> int:
    """How many; a sparse matrix has no length."""
    return int(piece[0].shape[0])


def _cut(pieces: Iterable[Rows], size: int) -> Iterator[Rows]:
    held: list[Rows] = []
    lacking = size
    for piece in pieces:
        start, total = 0, rows(piece)
        while start < total:
            stop = min(start + lacking, total)
            held.append(tuple(_slice(part, start, stop) for part in piece))
            lacking -= stop - start
            start = stop
            if not lacking:
                yield _joined(held)
                held, lacking = [], size
    if held:
        yield _joined(held)


def _slice(part: Any, start: int, stop: int) -> Any:
    return part.iloc[start:stop] if hasattr(part, "iloc") else part[start:stop]


def _joined(held: list[Rows]) -> Rows:
    return (
        held[0]
        if len(held) == 1
        else tuple(_join(list(x)) for x in zip(*held, strict=True))
    )


def _join(parts: list[Any]) -> Any:
    """By Dask's own functions, which know frames and arrays of other libraries."""
    if hasattr(parts[0], "iloc"):
        from dask.dataframe.dispatch import concat

        return concat(parts)
    from dask.array.dispatch import concatenate_lookup

    return concatenate_lookup.dispatch(type(parts[0]))(parts, axis=0)


class Feed:
    """What an iterator yields, made by a thread of its own a few steps ahead."""

    def __init__(self, source: Iterator[Rows], ahead: int):
        self._source = source
        self._ahead = ahead
        self._waiting: deque[Rows] = deque()
        self._ended = False  # nothing more comes
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(
            target=self._fill, name="clustertune-batches", daemon=True
        )
        self._thread.start()

    def _fill(self) -> None:
        try:
            for batch in self._source:
                with self._changed:
                    self._changed.wait_for(self._has_room)
                    if self._ended:
                        return
                    self._waiting.append(batch)
                    self._changed.notify_all()
        # whatever it is, the consumer raises it
        except BaseException as error:  # noqa: BLE001
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _has_room(self) -> bool:
        return self._ended or len(self._waiting) < self._ahead

    def __iter__(self) -> Iterator[Rows]:
        return self

    def __next__(self) -> Rows:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ended)
            if self._waiting:
                self._changed.notify_all()
                return self._waiting.popleft()
            error, self._error = self._error, None
        if error is not None:
            raise error
        raise StopIteration

    def close(self) -> None:
        """End the thread, and let go of what waits."""
        with self._changed:
            self._ended = True
            self._waiting.clear()
            self._changed.notify_all()
        self._thread.join()
