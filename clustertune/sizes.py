"""How large data is: by its pieces once it is loaded, before by what it says itself."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from clustertune.layouts import piece_bytes
from clustertune.model import Int64s, Layout, Member, Unknown


def member_bytes(member: Member) -> int | Unknown:
    """Bytes of one collection."""
    if member.nbytes is not None:
        return int(member.nbytes.sum())
    if member.total_bytes is not None:
        return member.total_bytes
    return Unknown(f"{member.label} is not loaded and does not tell its size")


def layout_bytes(layout: Layout) -> int | Unknown:
    """Bytes of all members."""
    return _sum(map(member_bytes, layout.members))


def data_bytes(layouts: Iterable[Layout]) -> int | Unknown:
    """Bytes of all collections that the fit takes."""
    return _sum(map(layout_bytes, layouts))


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


def _largest_of(member: Member) -> int | Unknown:
    if member.nbytes is not None:
        return int(member.nbytes.max(initial=0))
    total = member_bytes(member)
    if isinstance(total, Unknown):
        return total
    if member.rows is None or not member.rows.sum():
        return total // max(1, member.n_pieces)
    return int(total * member.rows.max() / member.rows.sum())


def _sum(amounts: Iterable[int | Unknown]) -> int | Unknown:
    total = 0
    for amount in amounts:
        if isinstance(amount, Unknown):
            return amount
        total += amount
    return total


def _largest(amounts: Iterable[int | Unknown]) -> int | Unknown:
    known = list(amounts)
    unknown = [a for a in known if isinstance(a, Unknown)]
    return unknown[0] if unknown else max(a for a in known if isinstance(a, int))
