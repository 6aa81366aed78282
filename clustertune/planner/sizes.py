"""How large data is: by its pieces once it is loaded, before by what it says itself.

Bytes are those that Dask counts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import numpy as np

from clustertune.core.model import Int64s, Layout, Member, Unknown
from clustertune.planner.layouts import piece_bytes


def member_bytes(member: Member) -> int | Unknown:
    """Bytes of one collection."""
    if member.nbytes is not None:
        return int(member.nbytes.sum())
    if member.total_bytes is not None:
        return member.total_bytes
    return Unknown(f"{member.label} is not loaded and does not tell its size")


def sum_bytes(members: Iterable[Member]) -> int | Unknown:
    """Bytes of several collections together; unknown if those of one are."""
    total = 0
    for amount in map(member_bytes, members):
        if isinstance(amount, Unknown):
            return amount
        total += amount
    return total


def layout_bytes(layout: Layout) -> int | Unknown:
    """Bytes of all members."""
    return sum_bytes(layout.members)


def largest_piece(layout: Layout) -> int | Unknown:
    """Bytes of the largest piece, all members together where they are aligned."""
    if layout.loaded and layout.aligned:
        return int(piece_bytes(layout).max(initial=0))
    return _largest(map(_largest_of, layout.members))


def held_bytes(layouts: Iterable[Layout], n_workers: int) -> Int64s:
    """Bytes of these layouts on every worker, copies included."""
    total = np.zeros(n_workers, dtype=np.int64)
    for member in (m for layout in layouts for m in layout.members):
        if member.holders is not None and member.nbytes is not None:
            piece, worker = member.holders
            np.add.at(total, worker, member.nbytes[piece])
    return total


def part_bytes(member: Member, key: Int64s, n_rows: Int64s) -> Int64s:
    """Bytes of rows of these keys of a loaded member, as they will be.

    Exact for numbers, in arrays and frames; with Python 3.10 up to 8 bytes are lacking
    for a part whose index is a range, as 0 takes less there than other numbers do. Of
    text and other objects Dask itself knows only about how large they are.

    Parameters
    ----------
    member
        Loaded and counted.
    key, n_rows : (parts,)
        Index into its keys; how many rows of that key.
    """
    assert member.nbytes is not None
    assert member.rows is not None
    blocks, conversion = member.column_blocks, member.conversion
    rows, nbytes = np.repeat(member.rows, blocks), member.nbytes
    if conversion is None or conversion.row_bytes is None:
        fixed, each = member.fixed, np.maximum(0, nbytes - member.fixed)
    else:
        fixed, whole = (
            conversion.fixed,
            np.add.reduceat(nbytes, _starts(nbytes, blocks)),
        )
        # of a row, each block of columns has as much as before
        part = nbytes / np.maximum(1, np.repeat(whole, blocks))
        each = conversion.row_bytes * rows * part
    amount = each[key] * n_rows / np.maximum(1, rows[key])
    return np.rint(fixed + amount).astype(np.int64)


def _starts(nbytes: Int64s, blocks: int) -> Int64s:
    return np.arange(0, len(nbytes), blocks)


def list_bytes(lengths: Int64s) -> Int64s:
    """Bytes of lists of so many parts, besides those of the parts."""
    known = {n: sys.getsizeof(list(range(n))) for n in set(lengths.tolist())}
    return np.array([known[n] for n in lengths.tolist()], dtype=np.int64)


def _largest_of(member: Member) -> int | Unknown:
    if member.nbytes is not None:
        return int(member.nbytes.max(initial=0))
    total = member_bytes(member)
    if isinstance(total, Unknown):
        return total
    if member.rows is None or not member.rows.sum():
        return total // max(1, member.n_pieces)
    return int(total * member.rows.max() / member.rows.sum())


def _largest(amounts: Iterable[int | Unknown]) -> int | Unknown:
    known = list(amounts)
    unknown = [a for a in known if isinstance(a, Unknown)]
    return unknown[0] if unknown else max(a for a in known if isinstance(a, int))
