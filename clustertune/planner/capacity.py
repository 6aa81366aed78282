"""Whether what is to be loaded fits, and what to do where it does not (pure)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clustertune.core.model import Float64s
from clustertune.core.wording import bytes_text, names_text, plural
from clustertune.errors import CapacityError


def refuse_too_much(labels: Sequence[str], size: int, free: Float64s) -> None:
    """Refuse data that is larger than the workers have room for.

    Parameters
    ----------
    labels
        The collections, by name.
    size
        Bytes that they take.
    free
        Bytes that each worker that may have some has room for, without spilling.

    Raises
    ------
    CapacityError
        Says how many workers would do.
    """
    if not len(free) or size <= free.sum():
        return
    raise CapacityError(
        f"{names_text(labels)} ({bytes_text(size)}) cannot be loaded: "
        f"{_room(len(free), free.sum())}{_remedy(size, free)}"
    )


def refuse_overfull(
    labels: Sequence[str], free: Float64s, n_pieces: int, there: int, nbytes: int
) -> None:
    """Refuse data of unknown size once what is there of it takes more than the room.

    Parameters
    ----------
    labels
        The collections, by name.
    free
        Bytes that each worker that may have some has room for, without spilling.
    n_pieces
        In how many pieces the data is loaded.
    there, nbytes
        How many of them are in memory, and the bytes that they take.

    Raises
    ------
    CapacityError
        Says how many workers would do, if other pieces are like those that are there.
    """
    if nbytes <= free.sum() or there >= n_pieces:
        return
    size = nbytes / there * n_pieces
    raise CapacityError(
        f"{names_text(labels)} cannot be loaded: {there:,} of "
        f"{plural(n_pieces, 'piece')} took {bytes_text(nbytes)}, so all take about "
        f"{bytes_text(size)}; {_room(len(free), free.sum())}. What was loaded is let go"
        f"{_remedy(size, free)}"
    )


def _room(n_workers: int, free: float) -> str:
    return (
        f"below the lines at which workers spill, {plural(n_workers, 'worker')} have "
        f"{bytes_text(free)} of room"
    )


def _remedy(size: float, free: Float64s) -> str:
    if not free.any():
        return "; free memory there, or add workers: n_workers="
    enough = max(len(free) + 1, int(np.ceil(size / free.mean())))
    return (
        f"; about {enough} workers of this size would do: n_workers={enough}; or make "
        'it smaller, for example with dtype="float32"'
    )
