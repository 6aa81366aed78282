"""True row counts of pieces: what is in memory counts, not what a collection says.

One call per worker over what it has in memory (2,000 pieces: 0.22 s, against 0.82 s as
a task each). Only :mod:`clustertune.cluster.monitor` uses it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from distributed import Client, Future

from clustertune.model import Key, Member
from clustertune.remote import probe, ship

PATIENCE = 10.0  # seconds in which a worker answers


async def count_rows(
    client: Client, members: Sequence[Member], addresses: Sequence[tuple[str, bool]]
) -> tuple[Member, ...]:
    """True row counts: what is in memory counts, not what a collection says of itself.

    Counted anew at every look: the same key may stand for other data (a file that has
    changed, a piece that was computed again). ``addresses`` are those of the workers,
    each with whether code may be sent there.
    """
    asked: dict[tuple[str, bool], list[Key]] = {}
    for member in members:
        for key, holder in _first_holders(member):
            asked.setdefault(addresses[holder], []).append(key)
    counter = ship.function(probe.row_counts)
    counts = await asyncio.gather(
        *(_ask_rows(client, counter, *where, wanted) for where, wanted in asked.items())
    )
    rows = {key: n for found in counts for key, n in found.items()}
    return tuple(_with_rows(m, rows) for m in members)


def _first_holders(member: Member) -> list[tuple[Key, int]]:
    if member.holders is None:
        return []
    piece, index = np.unique(member.holders[0], return_index=True)
    holder = member.holders[1][index]
    pairs = zip(piece.tolist(), holder.tolist(), strict=True)
    return [(member.keys[p], h) for p, h in pairs]


async def _ask_rows(
    client: Client, counter: Any, address: str, approved: bool, wanted: list[Key]
) -> dict[Key, int]:
    """Rows of pieces on one worker.

    Through tasks where they are spilled (Dask knows how to bring those back) and where
    the worker did not answer: a task that is a library's function ships no code.
    """
    found: dict[Key, int] = {}
    if approved:
        answers = await ship.on_workers(
            client, counter, [address], timeout=PATIENCE, keys=wanted
        )
        if isinstance(counts := answers.get(address), list):
            found = {k: n for k, n in zip(wanted, counts, strict=True) if n >= 0}
    rest = [k for k in wanted if k not in found]
    return found | await _rows_by_task(client, address, rest)


async def _rows_by_task(
    client: Client, address: str, wanted: Sequence[Key]
) -> dict[Key, int]:
    ours = [key for key in wanted if key in client.futures]
    lengths = [
        client.submit(
            np.shape,
            Future(key, client=client),
            pure=False,
            workers=[address],
            allow_other_workers=True,
        )
        for key in ours
    ]
    shapes = await asyncio.gather(*lengths, return_exceptions=True)
    return {
        key: int(shape[0])
        for key, shape in zip(ours, shapes, strict=True)
        if isinstance(shape, tuple) and shape
    }


def _with_rows(member: Member, rows: Mapping[Key, int]) -> Member:
    """Rows from row 0 of every column block; unknown if any piece is not counted."""
    counts = [rows.get(key, -1) for key in member.keys[:: member.column_blocks]]
    if min(counts, default=-1) < 0:
        return replace(member, rows=None)
    return replace(member, rows=np.array(counts, dtype=np.int64))
