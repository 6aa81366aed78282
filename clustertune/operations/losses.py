"""Data that is lost with a cluster, by owner, and whether the user allows it (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from clustertune.core.model import KeyGroup
from clustertune.core.wording import bytes_text, plural, printable

MOST = 3  # prefixes in the text of a loss, and losses in a refusal
NAMED = {
    "published": "the published data set",
    "variable": "the variable",
    "queue": "the queue",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Data of one owner that would be lost."""

    owner: str  # as text
    mine: bool
    prefixes: tuple[tuple[str, int, int], ...]  # name, keys, bytes; most bytes first
    coming: int  # tasks whose results are not in memory yet

    @property
    def nbytes(self) -> int:
        return sum(nbytes for _, _, nbytes in self.prefixes)

    def __str__(self) -> str:
        shown = [
            f"{printable(name, longest=60)} ({plural(n, 'key')}, {bytes_text(nbytes)})"
            for name, n, nbytes in self.prefixes[:MOST]
        ]
        more = len(self.prefixes) - MOST
        shown += [f"{plural(more, 'more prefix', 'more prefixes')}"] if more > 0 else []
        shown += [f"{plural(self.coming, 'task')} not done"] if self.coming else []
        owner = printable(self.owner, longest=80)
        what = f": {', '.join(shown)}" if shown else ""
        return f"{bytes_text(self.nbytes)} of {owner}{what}"


def losses(holdings: Iterable[KeyGroup], restored: Sequence[str]) -> tuple[Loss, ...]:
    """The losses of each owner; this client first, then by bytes (pure).

    Parameters
    ----------
    holdings
        All data in memory that is not saved.
    restored
        Names of data sets that are saved and published again.
    """
    saved = {("published", name) for name in restored}
    rows: dict[tuple[bool, str], list[KeyGroup]] = {}
    for h in holdings:
        owners = [(True, "this client")] * h.mine
        owners += [(False, f"client {name}") for name in h.others]
        owners += [
            (False, f"{NAMED[kind]} {name!r}")
            for kind, name in h.shared
            if (kind, name) not in saved
        ]
        for owner in owners:
            rows.setdefault(owner, []).append(h)
    lost = [_loss(owner, mine, some) for (mine, owner), some in rows.items()]
    return tuple(sorted(lost, key=lambda loss: (not loss.mine, -loss.nbytes)))


def _loss(owner: str, mine: bool, some: Sequence[KeyGroup]) -> Loss:
    found: dict[str, tuple[int, int]] = {}
    for h in some:
        if h.keys:
            keys, nbytes = found.get(h.prefix, (0, 0))
            found[h.prefix] = (keys + h.keys, nbytes + h.nbytes)
    prefixes = sorted(((p, *n) for p, n in found.items()), key=lambda row: -row[2])
    coming = sum(h.coming for h in some)
    return Loss(owner=owner, mine=mine, prefixes=tuple(prefixes), coming=coming)


def objection(
    lost: Sequence[Loss], *, drop_data: bool, include_others: bool
) -> str | None:
    """Why the losses are not allowed; None if the user allows them (pure)."""
    mine = [str(loss) for loss in lost if loss.mine]
    others = [str(loss) for loss in lost if not loss.mine]
    reasons = []
    if mine and not drop_data:
        reasons.append(
            f"{mine[0]} would be lost: also give these collections with save_to=PATH, "
            "or release them, or give drop_data=True"
        )
    if others and not include_others:
        more = f"; and {len(others) - MOST} more" if len(others) > MOST else ""
        reasons.append(
            f"others would lose {'; '.join(others[:MOST])}{more}: if the owners agree, "
            "give include_other_clients=True"
        )
    return "; ".join(reasons) or None
