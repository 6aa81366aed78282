"""Data that a cluster loses with its memory, by owner (pure)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from clustertune.core.model import KeyGroup
from clustertune.core.wording import bytes_text, plural, printable

MAX_SHOWN = 3  # prefixes of an owner, and owners
_KINDS = {
    "published": "the published data set",
    "variable": "the variable",
    "queue": "the queue",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LostData:
    """Data of one owner that would be lost."""

    owner: str  # as text
    mine: bool
    prefixes: tuple[tuple[str, int, int], ...]  # name, keys, bytes; most bytes first
    pending: int  # tasks whose results are not in memory yet

    @property
    def nbytes(self) -> int:
        return sum(nbytes for _, _, nbytes in self.prefixes)

    def __str__(self) -> str:
        shown = [
            f"{printable(name, longest=60)} ({plural(n, 'key')}, {bytes_text(nbytes)})"
            for name, n, nbytes in self.prefixes[:MAX_SHOWN]
        ]
        more = len(self.prefixes) - MAX_SHOWN
        shown += [plural(more, "more prefix", "more prefixes")] if more > 0 else []
        shown += [f"{plural(self.pending, 'task')} not done"] if self.pending else []
        owner = printable(self.owner, longest=80)
        what = f": {', '.join(shown)}" if shown else ""
        return f"{bytes_text(self.nbytes)} of {owner}{what}"


def lost_data(
    holdings: Iterable[KeyGroup], restored: Sequence[str]
) -> tuple[LostData, ...]:
    """Return the lost data of each owner; this client first, then by bytes.

    ``holdings`` is all data in memory that is not saved. ``restored`` are the names of
    data sets that are saved and published again.
    """
    saved = {("published", name) for name in restored}
    rows: dict[tuple[bool, str], list[KeyGroup]] = defaultdict(list)
    for h in holdings:
        owners = [(True, "this client")] * h.mine
        owners += [(False, f"client {name}") for name in h.others]
        owners += [
            (False, f"{_KINDS[kind]} {name!r}")
            for kind, name in h.shared
            if (kind, name) not in saved
        ]
        for owner in owners:
            rows[owner].append(h)
    lost = [_of_owner(owner, mine, groups) for (mine, owner), groups in rows.items()]
    return tuple(sorted(lost, key=lambda x: (not x.mine, -x.nbytes)))


def _of_owner(owner: str, mine: bool, groups: Sequence[KeyGroup]) -> LostData:
    keys: Counter[str] = Counter()
    nbytes: Counter[str] = Counter()
    for h in groups:
        if h.keys:
            keys[h.prefix] += h.keys
            nbytes[h.prefix] += h.nbytes
    prefixes = tuple((prefix, keys[prefix], n) for prefix, n in nbytes.most_common())
    pending = sum(h.coming for h in groups)
    return LostData(owner=owner, mine=mine, prefixes=prefixes, pending=pending)


def objection(
    lost: Sequence[LostData], *, drop_data: bool, include_others: bool
) -> str | None:
    """Return why the arguments do not allow this loss; None if they allow it."""
    mine = [str(loss) for loss in lost if loss.mine]
    others = [str(loss) for loss in lost if not loss.mine]
    reasons = []
    if mine and not drop_data:
        reasons.append(
            f"{mine[0]} would be lost: give these collections too, with save_to=PATH, "
            "or release them, or give drop_data=True"
        )
    if others and not include_others:
        shown = "; ".join(others[:MAX_SHOWN])
        more = len(others) - MAX_SHOWN
        shown += f"; and {more} more" if more > 0 else ""
        reasons.append(
            f"others would lose {shown}: if the owners agree, "
            "give include_other_clients=True"
        )
    return "; ".join(reasons) or None
