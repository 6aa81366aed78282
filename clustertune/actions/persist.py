"""Load everything that is not in memory yet, jointly.

Collections that are persisted one by one may come out with other pieces than they say
(the readers of Parquet merge small columns), and their pieces land on different
workers. Arrays are persisted in one call and frames in one: Dask warns where they mix.
Nothing is at risk: what is loaded can be loaded again.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.model import (
    Cluster,
    Finding,
    Member,
    Notify,
    Price,
    Result,
    Step,
    View,
)
from clustertune.wording import bytes_text


def propose(findings: tuple[Finding, ...], view: View) -> Iterator[Step]:
    """One step for all collections that are not loaded."""
    lazy = [m for layout in view.layouts for m in layout.members if not m.loaded]
    if not lazy:
        return
    size = _size(lazy)
    amount = "of unknown size" if size is None else f"({bytes_text(size)})"
    yield Step(
        action="persist",
        summary=f"load {', '.join(m.label for m in lazy)} {amount} in one call",
        price=Price(nbytes=None, seconds=None, peak=size),
        gain="pieces and row counts of all collections agree and are known",
    )


def _size(members: list[Member]) -> int | None:
    sizes = [m.total_bytes for m in members]
    known = [s for s in sizes if s is not None]
    return sum(known) if len(known) == len(sizes) else None


async def enact(step: Step, cluster: Cluster, notify: Notify) -> Result:
    """Persist and wait."""
    await cluster.persist(notify)
    return Result()
